// The table of nodes, and what the owner of this one calls them: names and colors, kept on this machine.

import { $, announce, clean, duration, h, write } from './dom.js';
import { json } from './http.js';
import { t } from './language.js';
import { kindOf } from './view.js';

const COLORS = ['none', 'red', 'orange', 'yellow', 'green', 'teal', 'blue', 'purple', 'brown'];
const MAX_NAME = 32;
/** Rows of the table. */
const MAX_ROWS = 200;

export class Nodes {
  constructor(swarm) {
    this.swarm = swarm;
    $('naming-colors').append(...COLORS.map((color) => h('label', { class: 'swatch' }, h('input', { type: 'radio', name: 'color', value: color, class: 'hidden' }), h('span', { class: `dot ${color}` }), h('span', { class: 'hidden' }, t(`color.${color}`)))));
    $('naming-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.keep($('naming-name').value, new FormData(event.target).get('color'));
    });
    $('naming-forget').addEventListener('click', () => this.keep('', 'none'));
    $('naming-close').addEventListener('click', () => $('naming').close());
    $('naming').addEventListener('close', () => this.focus(this.asked));
  }

  focus(id) {
    [...$('nodes').querySelectorAll('button')].find((button) => button.dataset.node === id)?.focus();
  }

  ask(node) {
    this.asked = node.id;
    const { name, color } = this.swarm.names.get(node.id) ?? { name: '', color: 'none' };
    write($('naming-node'), node.id);
    $('naming-name').value = name;
    for (const field of $('naming-colors').querySelectorAll('input')) field.checked = field.value === color;
    $('naming-forget').disabled = !this.swarm.names.has(node.id);
    $('naming-fault').hidden = true;
    $('naming').showModal();
    $('naming-name').select();
  }

  async keep(text, color) {
    const name = [...text.trim()].slice(0, MAX_NAME).join('');
    try {
      await json('/swarm/names', { body: { node: this.asked, name, color } });
      // The node tells it to every page, this one included.
      announce(t(name || color !== 'none' ? 'naming.kept' : 'naming.forgotten'));
      $('naming').close();
    } catch (error) {
      write($('naming-fault'), error.message);
      $('naming-fault').hidden = false;
    }
  }

  render() {
    const { swarm } = this;
    const near = (node) => (node.self ? -1 : (node.rttMs ?? 1e9));
    const holdings = (node) => [...Map.groupBy(node.layers, (held) => held.model)]
      .map(([model, ranges]) => `${swarm.model(model)?.name ?? clean(model, 8)} ${ranges.map((held) => `${held.start}–${held.end}`).join(', ')}`)
      .join('; ');
    const rows = [...swarm.nodes.values()].sort((a, b) => near(a) - near(b)).slice(0, MAX_ROWS).map((node) => [node, holdings(node)]);
    // A table that is the same stays, with the focus in it.
    const state = JSON.stringify(rows);
    if (state === this.state) return;
    this.state = state;
    const within = $('nodes').contains(document.activeElement) && document.activeElement.dataset.node;
    $('nodes').replaceChildren(...rows.map(([node, held]) => h('tr', { class: `${kindOf(node)} ${node.state}` },
      h('th', { scope: 'row' },
        h('button', { type: 'button', class: 'quiet name', 'data-node': node.id, 'aria-label': t('naming.of', { name: node.short }), click: () => this.ask(node) }, h('span', { class: `key ${kindOf(node)} ring ${node.color}` }), node.short),
        ' ', h('code', { title: node.id }, clean(node.id.slice(0, 8), 8))),
      h('td', null, t(`path.${node.path}`)),
      h('td', { class: 'n' }, node.rttMs === null ? '–' : duration(node.rttMs)),
      h('td', null, held || t('none')),
      h('td', { class: 'n' }, node.layerMs === null ? '–' : node.device ? t('nodes.layer_on', { time: duration(node.layerMs), device: node.device }) : duration(node.layerMs)),
      h('td', { class: 'n' }, node.failed ? t('nodes.wrong', { right: node.passed, wrong: node.failed }) : node.passed ? t('nodes.right', { right: node.passed }) : '–'),
      h('td', null, t(`state.${node.state}`)))));
    if (within) this.focus(within);
  }
}
