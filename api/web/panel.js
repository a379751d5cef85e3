// The page about the swarm: the drawing, figures, what this node gives, failovers, models and nodes.

import { draw } from './chart.js';
import { $, announce, bytes, clean, count, duration, h, rate, s, write } from './dom.js';
import { tell } from './swarm.js';
import { chartView, kindOf, pickModel } from './view.js';

/** The tables change at most this often; the drawing follows every frame. */
const TABLES_MS = 500;
/** Rows of the drawing beside the chat. */
const BESIDE_ROWS = 7;

const STATES = { up: 'up', suspect: 'silent', paused: 'paused', gone: 'gone' };

export class Panel {
  constructor(swarm) {
    this.swarm = swarm;
    this.chosen = '';
    this.tablesAt = 0;
    swarm.addEventListener('change', () => this.render());
    swarm.addEventListener('failover', ({ detail }) => this.addFailover(detail));
    new ResizeObserver(() => this.render(true)).observe($('chart-frame'));
    new ResizeObserver(() => this.render(true)).observe($('beside-frame'));
    $('chart-model').addEventListener('change', (event) => {
      this.chosen = event.target.value;
      this.render(true);
    });
    $('pause').addEventListener('click', () => this.change({ paused: !this.swarm.contribution.paused }));
    $('caps').addEventListener('submit', (event) => {
      event.preventDefault();
      this.setCaps(new FormData(event.target));
    });
  }

  /** Draws what is visible. */
  render(now = false) {
    this.drawing('chart', 'chart-title', 'chart-frame', undefined);
    this.drawing('beside-chart', 'beside-title', 'beside-frame', BESIDE_ROWS);
    write($('where'), this.where());
    $('where').classList.toggle('down', !this.swarm.connected || this.swarm.state !== 'ready');
    $('swarm').classList.toggle('known', this.swarm.known);
    if ($('swarm').hidden) return;
    this.figures();
    if (!now && performance.now() - this.tablesAt < TABLES_MS) {
      this.later ??= setTimeout(() => {
        this.later = undefined;
        this.render(true);
      }, TABLES_MS);
      return;
    }
    this.tablesAt = performance.now();
    this.contribution();
    this.models();
    this.nodes();
  }

  where() {
    const { swarm } = this;
    if (!swarm.connected) return swarm.known ? 'node unreachable' : 'connecting';
    if (swarm.contribution.paused) return 'serving paused';
    if (swarm.state !== 'ready') return swarm.state;
    const peers = [...swarm.nodes.values()].filter((node) => !node.self && node.state !== 'gone').length;
    const name = swarm.called(swarm.me);
    return `${name}${swarm.name ? ` in ${swarm.name}` : ''}, ${count(peers, 'peer')}`;
  }

  drawing(chart, title, frame, rows) {
    const width = Math.floor($(frame).clientWidth);
    if (width < 120) return;
    const model = pickModel(this.swarm, this.chosen);
    const view = chartView(this.swarm, model, rows);
    write($(title), view.title);
    draw($(chart), view, width);
    if (chart !== 'chart') return;
    $('chart-more').hidden = view.hidden <= 0;
    write($('chart-more'), `${count(view.hidden, 'further node')} hold layers too; the table below lists them.`);
    const picker = $('chart-model');
    const names = this.swarm.models.map((one) => one.id + one.name).join();
    if (picker.dataset.names !== names) {
      picker.dataset.names = names;
      picker.replaceChildren(...this.swarm.models.map((one) => h('option', { value: one.id }, one.name)));
      picker.closest('label').hidden = this.swarm.models.length < 2;
    }
    if (model && picker.value !== model.id) picker.value = model.id;
  }

  figures() {
    const { swarm } = this;
    write($('now-rate'), swarm.rates.at(-1) > 0 ? rate(swarm.rates.at(-1)) : 'idle');
    write($('now-peers'), String([...swarm.nodes.values()].filter((node) => !node.self && node.state !== 'gone').length));
    write($('now-faults'), String(Math.max(swarm.log.length, [...swarm.pipelines.values()].reduce((sum, one) => sum + one.faults, 0))));
    const most = Math.max(1, ...swarm.rates);
    const points = swarm.rates.map((value, i) => `${120 - swarm.rates.length + i} ${(31 - (29 * value) / most).toFixed(1)}`);
    if (points.length > 1) $('spark').replaceChildren(s('path', { class: 'spark-area', d: `M${121 - points.length - 1} 32 L${points.join(' L')} L119 32 Z` }), s('path', { class: 'spark-line', d: `M${points.join(' L')}` }));
  }

  contribution() {
    const { contribution: give, connected, nodes, me } = this.swarm;
    const button = $('pause');
    button.disabled = !connected;
    write(button, give.paused ? 'Resume' : 'Pause');
    const held = give.layers.map((layers) => `${layers.start}–${layers.end}`).join(', ');
    write($('give-state'), give.paused ? 'Paused: this machine serves nothing now.' : held ? `Others may use layers ${held} on this machine.` : 'This machine holds no layers for others.');
    write($('give-served'), `${give.layerTokens.toLocaleString('en')} layer passes`);
    write($('give-sessions'), count(give.sessions, 'prompt'));
    write($('give-bytes'), `${bytes(give.bytesIn)}, ${bytes(give.bytesOut)}`);
    const form = $('caps');
    if (form.contains(document.activeElement)) return;
    form.elements.memory.value = give.memoryBytes === null ? '' : Math.round(give.memoryBytes / 1e8) / 10;
    form.elements.threads.value = give.threads ?? '';
    form.elements.upload.value = give.uploadBytesPerS === null ? '' : Math.round(give.uploadBytesPerS / 1e5) / 10;
  }

  setCaps(form) {
    const change = {};
    const put = (field, name, scale) => {
      const value = form.get(name);
      if (value !== '' && Number.isFinite(Number(value))) change[field] = Math.round(Number(value) * scale);
    };
    put('memory_bytes', 'memory', 1e9);
    put('threads', 'threads', 1);
    put('upload_bytes_per_s', 'upload', 1e6);
    document.activeElement?.blur();
    this.change(change);
  }

  async change(change) {
    const fault = $('give-fault');
    fault.hidden = true;
    try {
      await this.swarm.contribute(change);
      announce(this.swarm.contribution.paused ? 'Serving is paused.' : 'The contribution is set.');
    } catch (error) {
      write(fault, error.message);
      fault.hidden = false;
    }
  }

  addFailover(failover) {
    const item = h('li', null, h('time', { datetime: failover.at.toISOString() }, failover.at.toLocaleTimeString()), h('span', null, tell(this.swarm, failover)));
    $('failovers').prepend(item);
    while ($('failovers').children.length > 60) $('failovers').lastElementChild.remove();
    $('no-failovers').hidden = true;
  }

  models() {
    const mine = this.swarm.nodes.get(this.swarm.me)?.layers ?? [];
    $('models').replaceChildren(...this.swarm.models.map((model) => {
      const least = model.holders.length ? Math.min(...model.holders) : 0;
      const own = mine.filter((held) => held.model === model.id).map((held) => `${held.start}–${held.end}`).join(', ');
      const [have, all] = model.download ?? [0, 0];
      return h('li', null,
        h('span', { class: 'model-name' }, model.name, ' ', h('code', null, clean(model.id.slice(0, 8), 8))),
        h('span', { class: 'small' }, `${count(model.layers, 'layer')}${model.fileBytes ? `, ${bytes(model.fileBytes)}` : ''}. ${model.complete ? `Every layer has at least ${count(least, 'holder')}.` : 'Some layers have no holder.'} ${own ? `Here: layers ${own}.` : 'Nothing of it here.'}`),
        all > 0 && h('progress', { max: all, value: have, 'aria-label': `Download of ${model.name}` }, `${bytes(have)} of ${bytes(all)}`));
    }));
  }

  nodes() {
    const near = (node) => (node.self ? -1 : (node.rttMs ?? 1e9));
    const holdings = (node) => [...Map.groupBy(node.layers, (held) => held.model)]
      .map(([model, ranges]) => `${this.swarm.model(model)?.name ?? clean(model, 8)} ${ranges.map((held) => `${held.start}–${held.end}`).join(', ')}`)
      .join('; ');
    $('nodes').replaceChildren(...[...this.swarm.nodes.values()].sort((a, b) => near(a) - near(b)).slice(0, 200).map((node) => h('tr', { class: `${kindOf(node)} ${node.state}` },
      h('th', { scope: 'row' }, h('span', { class: `key ${kindOf(node)}` }), node.short, ' ', h('code', { title: node.id }, clean(node.id.slice(0, 8), 8))),
      h('td', null, node.path),
      h('td', { class: 'n' }, node.rttMs === null ? '–' : duration(node.rttMs)),
      h('td', null, holdings(node) || 'none'),
      h('td', { class: 'n' }, node.layerMs === null ? '–' : duration(node.layerMs)),
      h('td', { class: 'n' }, node.failed ? `${node.passed} right, ${node.failed} wrong` : node.passed ? `${node.passed} right` : '–'),
      h('td', null, STATES[node.state]))));
  }
}
