// The conversation: what was asked, what comes back, and who computed it.
//
// The conversation lives in this tab and nowhere else. One answer streams at a time; it can be stopped, asked again, and
// any question can be edited, which forgets what came after it. Every answer carries a line that says who computed it,
// who checked it, how fast it was and which faults it survived, as the node reports them.

import { strip } from './chart.js';
import { $, announce, clean, count, duration, h, list, number, rate, s, write } from './dom.js';
import { Failure, events, request } from './http.js';
import { Growing } from './markdown.js';
import { readVerdict, tell } from './swarm.js';
import { kindOf, stageMs } from './view.js';

/** How often a node that is not ready is asked again before the user has to. */
const MAX_RETRIES = 20;
/** How often in a row a broken connection is taken up again. */
const MAX_RESUMES = 5;
/** Longest answer kept, in characters; a longer one is stopped. */
const MAX_ANSWER = 2_000_000;
/** Distance from the end, in pixels, within which the page keeps following a growing answer. */
const FOLLOW_PX = 80;

const MODES = [
  { mode: 'local', sentence: 'Computed on this machine alone. No one else can read it.' },
  { mode: 'trusted', sentence: 'Computed only on machines you named. Their owners can read it.' },
  { mode: 'boomerang', sentence: 'Strangers never receive your text, but a determined one can reconstruct most of it from what it computes on.' },
  { mode: 'open', sentence: 'Any machine of the swarm may read your text and the answer.' },
];

export class Chat {
  constructor(swarm) {
    this.swarm = swarm;
    /** `{ role, content, node }`, alternating user and assistant. */
    this.turns = [];
    this.models = [];
    this.answering = null;
    /** Answers that are complete and not yet checked: `{ turn, outcome }`. */
    this.pending = new Set();
    this.mode = 'local';
    this.modeChosen = false;
    this.log = $('log');
    this.build();
    swarm.addEventListener('change', () => this.refresh());
    swarm.addEventListener('failover', ({ detail }) => this.onFailover(detail));
  }

  build() {
    const prompt = $('prompt');
    $('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.answering) this.answering.abort();
      else this.send(prompt.value);
    });
    prompt.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.answering) this.send(prompt.value);
    });
    prompt.addEventListener('input', () => this.grow());
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.answering && !document.querySelector('dialog[open]')) this.answering.abort();
      const typing = /^(?:INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? '');
      if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey && !$('chat').hidden) {
        event.preventDefault();
        prompt.focus();
      }
    });
    $('rounding').checked = localStorage.getItem('shoal.rounding') === 'allowed';
    $('rounding').addEventListener('change', (event) => localStorage.setItem('shoal.rounding', event.target.checked ? 'allowed' : 'never'));
    $('modes').addEventListener('change', (event) => this.choose(event.target.value));
    $('fresh').addEventListener('click', () => this.clear());
    for (const button of document.querySelectorAll('#welcome button')) button.addEventListener('click', () => this.send(button.textContent));
    $('scroll').addEventListener('scroll', () => {
      const box = $('scroll');
      this.following = box.scrollHeight - box.scrollTop - box.clientHeight < FOLLOW_PX;
    }, { passive: true });
    this.following = true;
    this.say();
  }

  /** The field is as high as its text; the style sheet says where that ends. */
  grow() {
    const prompt = $('prompt');
    prompt.style.height = 'auto';
    prompt.style.height = `${prompt.scrollHeight}px`;
  }

  /** A mode was picked: where strangers come in and the owner has not agreed yet, the sentence is agreed to first. */
  async choose(mode) {
    if (!this.agreed(mode) && !(await this.agree(mode))) {
      document.querySelector(`#modes input[value="${this.mode}"]`).checked = true;
    } else {
      this.mode = mode;
      this.modeChosen = true;
    }
    this.say();
  }

  /** Whether prompts may go out in this mode: the node keeps its owner's word. */
  agreed(mode) {
    return this.info(mode)?.agreed ?? true;
  }

  /** Shows the sentence of a mode; whether it was agreed to, and the node took note. */
  async agree(mode) {
    const dialog = $('consent');
    write($('consent-sentence'), this.sentence(mode));
    $('consent-fault').hidden = true;
    for (;;) {
      dialog.returnValue = '';
      dialog.showModal();
      await new Promise((resolve) => dialog.addEventListener('close', resolve, { once: true }));
      if (dialog.returnValue !== 'yes') return false;
      try {
        await this.swarm.agree(mode);
        return true;
      } catch (error) {
        write($('consent-fault'), error.message);
        $('consent-fault').hidden = false;
      }
    }
  }

  info(mode) {
    return this.swarm.modes.find((one) => one.mode === mode);
  }

  sentence(mode) {
    return this.info(mode)?.sentence || MODES.find((one) => one.mode === mode).sentence;
  }

  /** The sentence under the modes: who can read what is about to be sent. */
  say() {
    const info = this.info(this.mode);
    const missing = info && !info.available ? ` Not possible now: ${info.reason || 'no such machine is connected'}.` : '';
    write($('sentence'), this.sentence(this.mode) + missing);
    $('sentence').className = `sentence ${this.mode}`;
  }

  /** What the swarm tells: the modes that work, the line above the prompt, the models. */
  refresh() {
    if (!this.modeChosen && this.swarm.known && this.mode !== this.swarm.defaultMode && MODES.some(({ mode }) => mode === this.swarm.defaultMode)) {
      if (this.agreed(this.swarm.defaultMode)) {
        this.mode = this.swarm.defaultMode;
        document.querySelector(`#modes input[value="${this.mode}"]`).checked = true;
      }
    }
    this.say();
    this.settle();
    this.course();
  }

  /** Answers that were being checked say what came of it; a node that knows nothing of it will not say any more. */
  settle() {
    for (const entry of this.pending) {
      const { turn, outcome } = entry;
      const verdict = this.swarm.verdicts.get(outcome.request);
      const silent = !verdict && this.swarm.snapshots > outcome.snapshots;
      if (!turn.node.isConnected || (verdict && !verdict.checking)) this.pending.delete(entry);
      if (!turn.node.isConnected || (!silent && (!verdict || verdict.checking === outcome.verdict.checking))) continue;
      outcome.verdict = verdict ?? { ...outcome.verdict, checking: false };
      const old = turn.node.querySelector('.badge');
      const badge = this.badge(outcome);
      badge.open = old.open;
      const held = old.contains(document.activeElement);
      old.replaceWith(badge);
      if (held) badge.querySelector('summary').focus();
      if (verdict && !verdict.checking) announce(`About your answer: ${checked(outcome.verdict)}.`);
    }
  }

  /** The models that can be asked; fetched again when the node becomes ready. */
  setModels(models) {
    this.models = models;
    const picker = $('model');
    const chosen = picker.value;
    picker.replaceChildren(...models.map((model) => h('option', { value: model.id }, model.shown)));
    picker.disabled = models.length === 0;
    if (models.some((model) => model.id === chosen)) picker.value = chosen;
  }

  /** The line above the prompt: the way of the running answer, or what would happen next. */
  course() {
    const running = this.answering && [...this.swarm.pipelines.values()].findLast((one) => one.request && one.request === this.answering.request);
    const pipeline = running || undefined;
    const layers = this.swarm.model(pipeline?.model)?.layers ?? 1;
    const stages = (pipeline?.stages ?? []).map((stage) => ({ ...stage, kind: kindOf(this.swarm.nodes.get(stage.node)) }));
    strip($('course-strip'), stages, layers);
    if (this.answering && performance.now() < (this.answering.alarmUntil ?? 0)) return;
    $('course').classList.remove('alarm');
    write($('course-text'), this.courseText(pipeline, stages));
  }

  courseText(pipeline, stages) {
    const { swarm } = this;
    if (!swarm.connected) return swarm.known ? 'The node does not answer; trying again.' : 'Connecting to the node.';
    if (this.answering?.waiting) return this.answering.waiting;
    if (!this.answering) {
      if (swarm.state !== 'ready') return swarm.reason || (swarm.state === 'starting' ? 'The node is starting.' : 'The node cannot answer now.');
      return `Ready. ${count([...swarm.nodes.values()].filter((node) => !node.self && node.state !== 'gone').length, 'peer')} in reach.`;
    }
    const names = [...new Set(stages.filter((stage) => stage.kind !== 'home').map((stage) => swarm.called(stage.node)))];
    const { tokens, firstAt, mode } = this.answering;
    // Where it is computed is said only when it is known.
    const where = names.length ? ` through ${names.slice(0, 3).join(', ')}${names.length > 3 ? ` and ${names.length - 3} more` : ''}` : pipeline || mode === 'local' ? ' on this machine' : '';
    if (tokens === 0) return pipeline ? `Reading the prompt${where}.` : 'Waiting for the first token.';
    const seconds = (performance.now() - firstAt) / 1000;
    return `${count(tokens, 'token')}${where}${seconds > 0.5 ? `, ${rate(tokens / seconds)} per second` : ''}`;
  }

  onFailover(failover) {
    const { answering } = this;
    if (!answering || (failover.request && answering.request && failover.request !== answering.request)) return;
    const sentence = tell(this.swarm, failover);
    answering.alarmUntil = performance.now() + 6000;
    answering.faults.push(sentence);
    $('course').classList.add('alarm');
    write($('course-text'), sentence);
    announce(sentence);
  }

  clear() {
    this.answering?.abort();
    this.turns = [];
    this.log.replaceChildren();
    $('welcome').hidden = false;
    $('fresh').hidden = true;
    $('prompt').focus();
  }

  /** Adds a question and its answer. */
  async send(text) {
    const content = text.trim();
    if (!content || this.answering) return;
    // The word may have been taken back meanwhile.
    if (!this.agreed(this.mode) && !(await this.agree(this.mode))) return;
    $('prompt').value = '';
    this.grow();
    this.following = true;
    this.addQuestion(content);
    this.answer();
  }

  addQuestion(content) {
    const turn = { role: 'user', content };
    turn.node = h('article', { class: 'turn asked', 'aria-label': 'You' });
    this.showQuestion(turn);
    this.put(turn);
  }

  put(turn) {
    this.turns.push(turn);
    this.log.append(turn.node);
    $('welcome').hidden = true;
    $('fresh').hidden = false;
    this.follow();
  }

  showQuestion(turn) {
    const edit = h('button', { type: 'button', class: 'quiet', click: () => this.edit(turn) }, 'Edit');
    turn.node.replaceChildren(h('p', { class: 'question' }, turn.content), h('div', { class: 'tools' }, edit));
  }

  /** Turns a question into a field; sending it forgets everything after it. */
  edit(turn) {
    if (this.answering) return;
    const field = h('textarea', { rows: Math.min(12, turn.content.split('\n').length + 1), 'aria-label': 'Edit your question' });
    field.value = turn.content;
    const back = () => {
      this.showQuestion(turn);
      turn.node.querySelector('button').focus();
    };
    const form = h('form', {
      class: 'edit',
      submit: (event) => {
        event.preventDefault();
        const content = field.value.trim();
        if (!content || this.answering) return;
        turn.content = content;
        this.showQuestion(turn);
        this.forgetAfter(turn);
        this.answer();
      },
      keydown: (event) => {
        if (event.key === 'Escape') back();
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      },
    }, field, h('div', { class: 'tools' }, h('button', { type: 'submit', class: 'solid small' }, 'Ask again'), h('button', { type: 'button', class: 'quiet', click: back }, 'Cancel')));
    turn.node.replaceChildren(form);
    field.focus();
  }

  forgetAfter(turn) {
    for (const gone of this.turns.splice(this.turns.indexOf(turn) + 1)) gone.node.remove();
  }

  /** Asks again for the answer `turn`, and forgets it. */
  regenerate(turn) {
    if (this.answering) return;
    this.forgetAfter(this.turns[this.turns.indexOf(turn) - 1]);
    this.answer();
  }

  body() {
    const body = {
      model: $('model').value || undefined,
      messages: this.turns.map(({ role, content }) => ({ role, content })),
      stream: true,
      stream_options: { include_usage: true },
      mode: this.mode,
      // Drawn here and not by the node, so that it is known when the connection breaks.
      seed: crypto.getRandomValues(new Uint32Array(1))[0],
    };
    for (const field of document.querySelectorAll('#sampling input')) {
      const value = field.value.trim();
      if (value !== '' && Number.isFinite(Number(value))) body[field.name] = Number(value);
    }
    if ($('rounding').checked) body.allow_rounding = true;
    return body;
  }

  /** Streams the answer to the turns so far. */
  async answer() {
    const controller = new AbortController();
    const answering = { abort: () => controller.abort(), tokens: 0, firstAt: 0, startedAt: performance.now(), mode: this.mode, request: '', faults: [], waiting: '' };
    this.answering = answering;
    const body = this.body();
    const turn = { role: 'assistant', content: '' };
    const text = h('div', { class: 'text', 'aria-busy': 'true' });
    // What the model thinks before it answers: there to be opened, and no part of the conversation.
    const thought = h('div', { class: 'thought' });
    const thinking = h('details', { class: 'thinking', hidden: '' }, h('summary', {}, 'Thinking'), thought);
    turn.node = h('article', { class: 'turn answer', 'aria-label': 'Answer' }, thinking, text);
    this.put(turn);
    this.setBusy(true);
    const growing = new Growing(text);
    let drawn = true;
    let thoughtLength = 0;
    const show = () => {
      drawn = true;
      growing.update(turn.content);
      this.follow();
      this.course();
    };
    const outcome = { finish: 'stopped', mode: body.mode, seed: body.seed };
    try {
      for await (const chunk of this.chunks(body, controller.signal, answering, outcome)) {
        if (chunk.error) throw new Error(clean(chunk.error.message, 300) || 'The node reports a fault.');
        readChunk(outcome, chunk);
        const choice = list(chunk.choices, 1)[0];
        const piece = choice?.delta?.content;
        const reasoning = choice?.delta?.reasoning_content;
        if (choice?.finish_reason) outcome.finish = clean(choice.finish_reason, 20);
        if (typeof reasoning === 'string' && reasoning !== '') {
          answering.tokens += 1;
          answering.firstAt ||= performance.now();
          thinking.hidden = false;
          thought.append(reasoning);
          thoughtLength += reasoning.length;
          this.follow();
          this.course();
          if (thoughtLength > MAX_ANSWER) controller.abort();
        }
        if (typeof piece !== 'string' || piece === '') continue;
        answering.tokens += 1;
        answering.firstAt ||= performance.now();
        turn.content += piece;
        if (drawn) requestAnimationFrame(show);
        drawn = false;
        if (turn.content.length > MAX_ANSWER) controller.abort();
      }
    } catch (error) {
      if (error.name !== 'AbortError') outcome.error = error.message;
    }
    show();
    text.removeAttribute('aria-busy');
    outcome.tokens ||= answering.tokens;
    outcome.seconds = answering.firstAt ? (performance.now() - answering.firstAt) / 1000 : 0;
    outcome.firstMs = answering.firstAt ? answering.firstAt - answering.startedAt : NaN;
    outcome.told = answering.faults;
    outcome.request = answering.request;
    outcome.verdict = readVerdict(outcome.report ?? {});
    outcome.snapshots = this.swarm.snapshots;
    outcome.pipeline = [...this.swarm.pipelines.values()].findLast((one) => answering.request && one.request === answering.request);
    this.answering = null;
    this.setBusy(false);
    this.finish(turn, outcome);
  }

  /**
   * The chunks of one answer. When the connection breaks, the same request, seed included, is sent again with
   * the number of the last token seen: the node computes the same tokens and leaves those out.
   */
  async *chunks(body, signal, answering, outcome) {
    let seen;
    for (let attempt = 0; ; attempt += 1) {
      try {
        const response = await this.open(body, signal, answering, seen);
        readHeaders(outcome, response.headers);
        answering.request = clean(response.headers.get('x-request-id'), 128);
        for await (const event of events(response)) {
          if (event.data === '[DONE]') return;
          seen = event.id ?? seen;
          const chunk = JSON.parse(event.data);
          answering.request ||= clean(chunk.id, 128);
          yield chunk;
          attempt = 0;
        }
        if (outcome.finish !== 'stopped') return;
        throw new Failure(0, 'The connection to the node broke.');
      } catch (error) {
        if (error.status !== 0 || !seen || attempt >= MAX_RESUMES) throw error;
        await this.pause(1, 'The connection broke; going on from the last token', signal, answering);
      }
    }
  }

  /** Opens the stream; a node that says when to try again (503, 429) is tried again then. */
  async open(body, signal, answering, seen) {
    const headers = seen === undefined ? {} : { 'last-event-id': seen };
    for (let attempt = 0; ; attempt += 1) {
      try {
        return await request('/v1/chat/completions', { body, signal, accept: 'text/event-stream', headers });
      } catch (error) {
        if (![429, 503].includes(error.status) || !error.retryAfter || attempt >= MAX_RETRIES) throw error;
        await this.pause(Math.min(60, error.retryAfter), error.message.replace(/\.$/, ''), signal, answering);
      }
    }
  }

  /** Waits, saying why; ends early with AbortError. */
  async pause(seconds, why, signal, answering) {
    answering.waiting = `${why}; asking again in ${seconds} s.`;
    this.course();
    await new Promise((resolve, reject) => {
      const timer = setTimeout(resolve, 1000 * seconds);
      signal.addEventListener('abort', () => {
        clearTimeout(timer);
        reject(new DOMException('stopped', 'AbortError'));
      }, { once: true });
    });
    answering.waiting = '';
  }

  setBusy(busy) {
    const button = $('send');
    write(button, busy ? 'Stop' : 'Send');
    button.classList.toggle('stop', busy);
    $('composer').classList.toggle('busy', busy);
    document.body.classList.toggle('answering', busy);
    if (busy) announce('Answering.');
    this.course();
  }

  finish(turn, outcome) {
    if (outcome.error) {
      turn.node.append(h('p', { class: 'fault', role: 'alert' }, turn.content ? `The answer broke off: ${outcome.error}` : outcome.error));
    } else if (!turn.content) {
      turn.node.append(h('p', { class: 'note' }, outcome.finish === 'stopped' ? 'Stopped before the first token.' : 'The answer is empty.'));
    }
    if (turn.content) {
      turn.node.append(this.badge(outcome));
      if (outcome.verdict.checking) this.pending.add({ turn, outcome });
      this.settle();
    }
    const copy = h('button', { type: 'button', class: 'quiet', click: () => navigator.clipboard?.writeText(turn.content).then(() => announce('Copied.'), () => {}) }, 'Copy');
    turn.node.append(h('div', { class: 'tools' },
      turn.content && copy,
      h('button', { type: 'button', class: 'quiet', click: () => this.regenerate(turn) }, outcome.error ? 'Try again' : 'Regenerate')));
    // A question without an answer would be sent again as if it had one.
    if (!turn.content) turn.content = '';
    this.follow();
    announce(outcome.error ? '' : `Answer complete, ${count(outcome.tokens, 'token')}.`);
  }

  /** The line under an answer, and behind it the whole account. */
  badge(outcome) {
    const { swarm } = this;
    const layers = swarm.model(outcome.pipeline?.model)?.layers ?? 1;
    const stages = (outcome.pipeline?.stages ?? []).map((stage) => ({ ...stage, kind: kindOf(swarm.nodes.get(stage.node)) }));
    const planned = stages.length ? stages : readRoute(outcome.route);
    const report = outcome.report ?? {};
    // An answer that was cut has no report: then the plan says who took part, and nothing says who checked.
    const took = outcome.report ? list(report.computed_by, 64) : planned.map((stage) => (stage.kind === 'home' ? 'me' : stages.length ? swarm.called(stage.node) : stage.node));
    const peers = [...new Set(took.map((name) => clean(name, 24)))].filter((name) => name && name !== 'me');
    const known = took.length > 0 || outcome.mode === 'local';
    const { verdict } = outcome;
    const judged = outcome.report && (peers.length || verdict.convicted.length);
    const speed = number(report.tok_s) || (outcome.seconds > 0 ? outcome.tokens / outcome.seconds : 0);
    const faults = Math.max(number(report.faults_survived), outcome.told.length);
    const facts = [peers.length ? count(peers.length, 'peer') : known ? 'this machine alone' : `mode ${outcome.mode}`];
    if (judged) facts.push(checked(verdict));
    if (speed) facts.push(`${rate(speed)} tok/s`);
    if (faults) facts.push(`${count(faults, 'fault')} survived`);
    if (outcome.finish === 'stopped') facts.push('stopped by you');
    if (outcome.finish === 'length') facts.push('cut at the token limit');
    const line = s('svg', { class: 'strip', 'aria-hidden': 'true' });
    strip(line, planned, Math.max(layers, ...planned.map((stage) => stage.end)));
    const row = (name, value) => value && h('div', null, h('dt', null, name), h('dd', null, value));
    return h('details', { class: 'badge' },
      h('summary', null, line, h('span', { class: 'facts' }, facts.map((fact, i) => h('span', { class: /survived|unchecked|cheat/.test(fact) ? 'fact marked' : 'fact' }, i > 0 && ' · ', fact)))),
      h('dl', null,
        row('Mode', outcome.mode),
        row('Way', stages.length ? stages.map((stage) => `${stage.kind === 'home' ? 'this machine' : swarm.called(stage.node)} ${stage.start}–${stage.end} (${duration(stageMs(stage))})`).join(' → ') : clean(outcome.route, 400)),
        row('Computed by', peers.length ? peers.join(', ') : known ? 'this machine' : ''),
        row('Checked by', judged ? account(verdict) : ''),
        row('Caught', verdict.convicted.length ? `${verdict.convicted.join(', ')} computed something else. ${verdict.wrongFrom === null ? 'Nothing of that is in the answer.' : `What you read from token ${verdict.wrongFrom + 1} on follows from it and is not to be relied on: ask again.`}` : ''),
        row('Speed', `${rate(speed)} tokens per second${outcome.predicted ? `, ${rate(outcome.predicted)} predicted` : ''}`),
        row('Drafts', drafted(report.drafts)),
        row('First token', Number.isFinite(outcome.firstMs) ? `after ${duration(outcome.firstMs)}` : ''),
        row('Wire', outcome.wire && outcome.wire !== 'raw' ? `${outcome.wire}, rounded before layers ${outcome.cuts}` : ''),
        row('Seed', `${outcome.seed}: with it, the same tokens come again`),
        row('Faults', outcome.told.join(' '))));
  }

  follow() {
    if (this.following) $('scroll').scrollTop = $('scroll').scrollHeight;
  }
}

/** What is known of an answer's checks, in a few words. */
function checked({ checking, checkedBy, convicted, wrongFrom }) {
  if (convicted.length) return `cheat found: ${convicted[0]}${wrongFrom === null ? ', and undone' : ', not to be relied on'}`;
  if (checking || !checkedBy.length) return checking ? 'being checked' : 'unchecked';
  return `checked by ${named(checkedBy).slice(0, 2).join(', ')}${checkedBy.length > 2 ? ` and ${checkedBy.length - 2} more` : ''}`;
}

/** The same as a sentence. */
function account({ checking, checkedBy, checkedTokens }) {
  if (!checkedBy.length) return checking ? 'no node yet: it is being computed again' : 'no node';
  const equal = checkedTokens ? `: ${count(checkedTokens, 'token')} recomputed and equal` : '';
  return `${named(checkedBy).join(', ')}${equal}${checking ? '; the rest is being computed again' : ''}`;
}

/** What came of drafted tokens, as a sentence. */
function drafted(drafts) {
  if (!drafts || !number(drafts.proposed)) return '';
  const by = list(drafts.by, 4).map((name) => clean(name, 24)).join(' and ');
  return `${number(drafts.tokens_per_pass).toFixed(1)} tokens a pass; ${number(drafts.right)} of ${number(drafts.proposed)} drafted by ${by} were right`;
}

const named = (nodes) => nodes.map((name) => (name === 'me' ? 'this machine' : name));

/** What the response's headers say about the plan. */
function readHeaders(outcome, headers) {
  outcome.mode = clean(headers.get('x-shoal-mode'), 16) || outcome.mode;
  outcome.route = clean(headers.get('x-shoal-route'), 400);
  outcome.wire = clean(headers.get('x-shoal-wire'), 16);
  outcome.cuts = clean(headers.get('x-shoal-cuts'), 400);
  outcome.predicted = Number(headers.get('x-shoal-predicted-tok-s')) || 0;
}

/** The stages in a route such as `me:0-2 3f2a91c0:2-16`. */
const readRoute = (route) =>
  [...(route ?? '').matchAll(/(\w{1,16}):(\d{1,4})-(\d{1,4})/g)].map(([, node, start, end]) => ({ node, kind: node === 'me' ? 'home' : 'stranger', start: Number(start), end: Number(end) }));

/** What a chunk says beside its text: the last one has the report on the whole answer. */
function readChunk(outcome, chunk) {
  if (Array.isArray(chunk.shoal?.computed_by)) outcome.report = chunk.shoal;
  outcome.tokens = number(chunk.usage?.completion_tokens) || outcome.tokens;
}
