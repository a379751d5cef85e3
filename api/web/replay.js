// An answer again, step by step: who promised, when the first token came, which machine was lost, who took over, what it was
// given again, and when the answer went on. By buttons, and by the arrow keys where the drawing has the focus.

import { $, clean, duration, h, list, number, s, write } from './dom.js';
import { json } from './http.js';
import { figure, locale, t } from './language.js';
import { kindOf } from './view.js';

const KINDS = ['leased', 'first_token', 'lost', 'took_over', 'replayed', 'fetched', 'hedged', 'went_on', 'ended'];
const REASONS = ['closed', 'timeout', 'refused', 'wrong'];
const ROW = 30;
const BAR = 12;
/** When something happened; seconds with two digits, since much happens within one. */
const when = (ms) => (ms >= 1000 ? `${figure(ms / 1000, 2)} s` : duration(ms));
const id = (value) => String(value ?? '').slice(0, 128);

const readSpan = (value) => {
  const start = Math.min(4096, Math.max(0, Math.floor(number(value?.start))));
  return { node: id(value?.node), start, end: Math.min(4096, Math.max(start + 1, Math.floor(number(value?.end)))) };
};

const readStep = (value) => ({
  kind: KINDS.includes(value?.step) ? value.step : 'ended',
  at: Math.max(0, number(value?.at_ms)),
  token: number(value?.token),
  node: id(value?.node),
  from: id(value?.from),
  why: REASONS.includes(value?.why) ? value.why : 'stopped',
  first: number(value?.first),
  end: number(value?.end),
  stall: Math.max(0, number(value?.stall_ms)),
  again: false,
  span: readSpan(value),
  stages: list(value?.stages, 128).map(readSpan),
});

/** The same, with every agreement but the first marked as another one. */
const marked = (steps) => {
  const first = steps.findIndex((step) => step.kind === 'leased');
  return steps.map((step, i) => ({ ...step, again: step.kind === 'leased' && i > first }));
};

const readAnswer = (value) => ({
  session: id(value?.session),
  model: clean(value?.model, 48) || t('unnamed'),
  tokens: number(value?.tokens),
  faults: number(value?.faults),
  began: new Date(number(value?.timeline?.began_ms)),
  left: number(value?.timeline?.left_out),
  steps: marked(list(value?.timeline?.steps, 256).map(readStep)),
});

/** Who computes which layers after the first steps, who was lost, and who was named last. */
export function stateAt(steps, upto) {
  const state = { spans: [], lost: new Set(), named: '' };
  for (const step of steps.slice(0, upto + 1)) {
    state.named = step.kind === 'took_over' ? step.span.node : step.node;
    if (step.kind === 'leased') {
      state.spans = step.stages;
      state.lost.clear();
    } else if (step.kind === 'lost') {
      state.lost.add(step.node);
    } else if (step.kind === 'took_over') {
      const { start, end } = step.span;
      state.spans = [...state.spans.filter((span) => span.end <= start || span.start >= end), step.span].sort((a, b) => a.start - b.start);
    }
  }
  return state;
}

export class Replay {
  constructor(swarm) {
    Object.assign(this, { swarm, answers: [], at: 0 });
    $('replay-answer').addEventListener('change', () => this.choose(this.answers.find((one) => one.session === $('replay-answer').value)));
    const go = { 'replay-first': () => 0, 'replay-back': () => this.at - 1, 'replay-next': () => this.at + 1, 'replay-last': () => this.answer.steps.length - 1 };
    for (const [button, to] of Object.entries(go)) $(button).addEventListener('click', () => this.go(to()));
    const keys = { Home: 'replay-first', ArrowLeft: 'replay-back', ArrowRight: 'replay-next', End: 'replay-last' };
    $('replay-view').addEventListener('keydown', (event) => {
      const to = go[keys[event.key]];
      if (!to || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      this.go(to());
    });
    new ResizeObserver(() => this.draw()).observe($('replay-view'));
    swarm.addEventListener('change', () => this.rename());
  }

  /** Tells the steps again when nodes are called otherwise, or are known by now. */
  rename() {
    if (!this.answer || $('swarm').hidden) return;
    const told = JSON.stringify(this.answer.steps.map((step) => this.tell(step)));
    if (told === this.told) return;
    this.list();
    this.go(this.at, false);
  }

  /** Reads the last answers; called when the page is turned to, and when an answer has ended. The one that is shown stays, and so does the step. */
  async refresh() {
    try {
      this.answers = list((await json('/swarm/answers')).answers, 64).map(readAnswer).filter((one) => one.steps.length);
      write($('replay-none'), this.answers.length ? '' : t('replay.none'));
    } catch (error) {
      this.answers = [];
      write($('replay-none'), error.status === 404 ? t('past.alone') : error.message);
    }
    $('replay-view').hidden = $('replay-pick').hidden = !this.answers.length;
    const name = (one) => t(one.faults ? 'replay.answer.faults' : 'replay.answer', { time: one.began.toLocaleTimeString(locale), model: one.model, tokens: t('count.tokens', { n: one.tokens }), faults: t('count.survived', { n: one.faults }) });
    const names = this.answers.map(name);
    const state = JSON.stringify([this.answers.map((one) => one.session), names]);
    if (state !== this.listed) $('replay-answer').replaceChildren(...this.answers.map((one, i) => h('option', { value: one.session }, names[i])));
    this.listed = state;
    const shown = this.answers.find((one) => one.session === this.answer?.session);
    if (shown) {
      $('replay-answer').value = shown.session;
      // What was being checked has more to tell now.
      if (shown.steps.length !== this.answer.steps.length) this.choose(shown, this.at);
    }
    // At first the last one that lost a machine: that is worth a look.
    else if (this.answers.length) this.choose(this.answers.find((one) => one.faults) ?? this.answers[0]);
  }

  choose(answer, at = 0) {
    if (!answer) return;
    this.answer = answer;
    $('replay-answer').value = answer.session;
    this.list();
    this.go(at, false);
  }

  tell(step) {
    const name = (node) => (node === this.swarm.me ? t('me') : this.swarm.called(node));
    const layers = (span) => t('layers', { range: `${span.start}–${span.end}` });
    switch (step.kind) {
      case 'leased':
        return t(step.again ? 'step.leased.again' : 'step.leased', { stages: step.stages.map((span) => `${name(span.node)} ${span.start}–${span.end}`).join(', ') });
      case 'lost':
        return t('step.lost', { name: name(step.node), why: t(`failover.${step.why}`), token: String(step.token) });
      case 'took_over':
        return t('step.took_over', { name: name(step.span.node), from: name(step.from), layers: layers(step.span) });
      case 'replayed':
        return t('step.replayed', { name: name(step.node), n: Math.max(0, step.end - step.first) });
      case 'fetched':
        return t('step.fetched', { name: name(step.node), from: name(step.from), n: step.end });
      case 'hedged':
        return t('step.hedged', { name: name(step.node) });
      case 'went_on':
        return t('step.went_on', { time: duration(step.stall) });
      default:
        return t(`step.${step.kind}`);
    }
  }

  list() {
    $('replay-steps').replaceChildren(...this.answer.steps.map((step, i) => h('li', null, h('button', { type: 'button', class: step.kind, tabindex: '-1', click: () => this.go(i) }, h('span', { class: 'at' }, when(step.at)), h('span', null, this.tell(step))))));
    this.told = JSON.stringify(this.answer.steps.map((step) => this.tell(step)));
    write($('replay-left'), this.answer.left ? t('replay.left', { n: this.answer.left }) : '');
  }

  go(to, told = true) {
    const last = this.answer.steps.length - 1;
    this.at = Math.max(0, Math.min(last, to));
    // A button that turns dead takes the focus with it.
    const held = document.activeElement;
    for (const [button, dead] of [['replay-first', this.at === 0], ['replay-back', this.at === 0], ['replay-next', this.at === last], ['replay-last', this.at === last]]) $(button).disabled = dead;
    if (held?.disabled) $('replay-view').focus();
    const step = this.answer.steps[this.at];
    const where = t('replay.at', { at: String(this.at + 1), all: String(last + 1), time: when(step.at), token: String(step.token) });
    write($('replay-where'), where);
    write($('replay-told'), this.tell(step));
    [...$('replay-steps').children].forEach((item, i) => {
      const button = item.firstChild;
      if (i !== this.at) return button.removeAttribute('aria-current');
      button.setAttribute('aria-current', 'step');
      const list = $('replay-steps');
      if (told) list.scrollTop = item.offsetTop - list.offsetTop - list.clientHeight / 2;
    });
    this.draw();
  }

  /** The layers from left to right, a row for each machine that takes part, and below them the time. */
  draw() {
    const width = Math.floor($('replay-frame').clientWidth);
    if (!this.answer || width < 120) return;
    const { steps } = this.answer;
    const { spans, lost, named } = stateAt(steps, this.at);
    const all = steps.flatMap((step) => [...step.stages, ...(step.kind === 'took_over' ? [step.span] : [])]);
    const layers = Math.max(1, ...all.map((span) => span.end));
    const rows = [...new Set([this.swarm.me, ...all.map((span) => span.node)])].filter((node) => all.some((span) => span.node === node)).slice(0, 24);
    const left = width < 520 ? 92 : 150;
    const x = (layer) => left + (layer / layers) * (width - left - 12);
    const y = (row) => 8 + row * ROW + ROW / 2;
    const bottom = 8 + rows.length * ROW;
    const total = Math.max(1, steps.at(-1).at);
    const place = (ms) => left + (ms / total) * (width - left - 12);
    const known = (node) => this.swarm.nodes.get(node);
    const kind = (node) => (node === this.swarm.me ? 'home' : kindOf(known(node)));
    const cut = (text) => ([...text].length * 7.4 > left - 26 ? `${[...text].slice(0, Math.floor((left - 26) / 7.4)).join('')}…` : text);
    const past = new Set(steps.slice(0, this.at + 1).flatMap((step) => [...step.stages.map((span) => span.node), step.node, step.span.node]));
    const host = $('replay-chart');
    host.setAttribute('width', width);
    host.setAttribute('height', bottom + 40);
    host.replaceChildren(
      s('defs', null, s('pattern', { id: 'replay-hatch', class: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, s('line', { x1: 0, x2: 0, y1: 0, y2: 6 }))),
      ...rows.flatMap((node, i) => [
        s('g', { class: `label ${kind(node)} ${lost.has(node) ? 'gone' : 'up'}${past.has(node) ? '' : ' later'}` },
          s('circle', { class: `buoy ring ${known(node)?.color ?? 'none'}`, cx: 7, cy: y(i), r: 4.5 }),
          s('text', { class: 'name', x: 18, y: y(i) + 4 }, cut(node === this.swarm.me ? t('here') : this.swarm.called(node)))),
        s('line', { class: 'plot-grid', x1: x(0), x2: x(layers), y1: y(i), y2: y(i) }),
      ]),
      ...spans.flatMap((span) => {
        const row = rows.indexOf(span.node);
        if (row < 0) return [];
        const bar = { x: x(span.start) + 0.5, y: y(row) - BAR / 2, width: Math.max(3, x(span.end) - x(span.start) - 1), height: BAR, rx: 3 };
        if (lost.has(span.node)) return [s('rect', { class: 'scar-bar', ...bar }), s('rect', { ...bar, fill: 'url(#replay-hatch)' })];
        return [s('g', { class: `stage ${kind(span.node)}` }, s('title', null, `${span.start}–${span.end}`), s('rect', bar)), ...(span.node === named ? [s('rect', { class: 'replay-named', ...bar, x: bar.x - 2, y: bar.y - 2, width: bar.width + 4, height: bar.height + 4, rx: 5 })] : [])];
      }),
      s('line', { class: 'plot-axis', x1: left, x2: width - 12, y1: bottom + 14, y2: bottom + 14 }),
      s('text', { class: 'plot-text', x: left, y: bottom + 34 }, '0'),
      s('text', { class: 'plot-text', x: width - 12, y: bottom + 34, 'text-anchor': 'end' }, when(total)),
      ...steps.map((step, i) => s('circle', { class: `replay-mark ${step.kind}${i === this.at ? ' now' : ''}`, cx: place(step.at), cy: bottom + 14, r: i === this.at ? 6 : 3.5 })).sort((a, b) => a.classList.contains('now') - b.classList.contains('now')),
    );
  }
}
