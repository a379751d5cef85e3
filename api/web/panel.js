// The page about the swarm: the drawing, figures, what this node gives, failovers and models. What else stands there is in
// `records.js`.

import { draw } from './chart.js';
import { $, announce, bytes, clean, h, rate, s, write } from './dom.js';
import { figure, locale, t } from './language.js';
import { tell } from './swarm.js';
import { chartView, pickModel } from './view.js';

/** The tables change at most this often; the drawing follows every frame. */
const TABLES_MS = 500;
/** Rows of the drawing beside the chat. */
const BESIDE_ROWS = 7;

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
    this.tables?.();
  }

  where() {
    const { swarm } = this;
    if (!swarm.connected) return t(swarm.known ? 'where.unreachable' : 'where.connecting');
    if (swarm.contribution.paused) return t('where.paused');
    if (swarm.state !== 'ready') return t(`where.${swarm.state}`);
    const n = [...swarm.nodes.values()].filter((node) => !node.self && node.state !== 'gone').length;
    const name = swarm.called(swarm.me);
    return t(swarm.name ? 'where.swarm' : 'where.ready', { name, swarm: swarm.name, peers: t('count.peers', { n }) });
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
    write($('chart-more'), t('chart.more', { n: view.hidden }));
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
    write($('now-rate'), swarm.rates.at(-1) > 0 ? rate(swarm.rates.at(-1)) : t('now.idle'));
    write($('now-peers'), figure([...swarm.nodes.values()].filter((node) => !node.self && node.state !== 'gone').length));
    write($('now-faults'), figure(Math.max(swarm.log.length, [...swarm.pipelines.values()].reduce((sum, one) => sum + one.faults, 0))));
    const most = Math.max(1, ...swarm.rates);
    const points = swarm.rates.map((value, i) => `${120 - swarm.rates.length + i} ${(31 - (29 * value) / most).toFixed(1)}`);
    if (points.length > 1) $('spark').replaceChildren(s('path', { class: 'spark-area', d: `M${121 - points.length - 1} 32 L${points.join(' L')} L119 32 Z` }), s('path', { class: 'spark-line', d: `M${points.join(' L')}` }));
  }

  contribution() {
    const { contribution: give, connected, nodes, me } = this.swarm;
    const button = $('pause');
    button.disabled = !connected;
    write(button, t(give.paused ? 'give.resume' : 'give.pause'));
    const held = give.layers.map((layers) => `${layers.start}–${layers.end}`).join(', ');
    write($('give-state'), give.paused ? t('give.paused') : held ? t('give.layers', { layers: held }) : t('give.nothing'));
    write($('give-served'), t('give.passes', { n: give.layerTokens }));
    write($('give-sessions'), t('count.prompts', { n: give.sessions }));
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
      announce(t(this.swarm.contribution.paused ? 'give.stopped' : 'give.set'));
    } catch (error) {
      write(fault, error.message);
      fault.hidden = false;
    }
  }

  addFailover(failover) {
    const item = h('li', null, h('time', { datetime: failover.at.toISOString() }, failover.at.toLocaleTimeString(locale)), h('span', null, tell(this.swarm, failover)));
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
        h('span', { class: 'small' }, t(model.fileBytes ? 'swarm.model.size' : 'swarm.model', {
          layers: t('count.layers', { n: model.layers }), size: bytes(model.fileBytes),
          holders: model.complete ? t('swarm.holders', { n: least }) : t('swarm.gap'), own: own ? t('swarm.here', { layers: own }) : t('swarm.away'),
        })),
        all > 0 && h('progress', { max: all, value: have, 'aria-label': t('swarm.download', { name: model.name }) }, t('part', { have: bytes(have), all: bytes(all) })));
    }));
  }
}
