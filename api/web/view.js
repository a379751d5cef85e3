// Turns what is known of the swarm into what the drawing shows: which rows, in which order, and what happens on them.

import { clean, rate } from './dom.js';
import { t } from './language.js';

/** Rows of the drawing; further nodes are counted in a sentence and listed in the table. */
const MAX_ROWS = 14;

/** Who owns a node, as far as reading a prompt goes: `home`, `trusted` or `stranger`. */
export const kindOf = (node) => (node?.self ? 'home' : node?.trusted ? 'trusted' : 'stranger');

/** The model to show: the chosen one, else the one that runs, else the one most nodes hold. */
export function pickModel(swarm, chosen) {
  const held = (model) => model.holders.reduce((sum, holders) => sum + holders, 0) / model.layers;
  return swarm.model(chosen) ?? swarm.model(swarm.current()?.model) ?? [...swarm.models].sort((a, b) => held(b) - held(a))[0];
}

/** Runs of layers that equally many nodes hold, as `{ start, end, holders }`. */
export function soundings(model) {
  const runs = [];
  model?.holders.forEach((holders, layer) => {
    if (runs.at(-1)?.holders === holders) runs.at(-1).end = layer + 1;
    else runs.push({ start: layer, end: layer + 1, holders });
  });
  return runs;
}

/** Milliseconds a token spends at a stage and on the way there. */
export const stageMs = (stage) => (stage.computeMs ?? 0) + (stage.hopMs ?? 0);

/** What `chart.draw` needs, for one model. `maxRows` is smaller where there is little room. */
export function chartView(swarm, model, maxRows = MAX_ROWS) {
  const layers = model?.layers ?? 1;
  const pipeline = model && swarm.current(model);
  const inside = (range) => range.start < layers && range.end > range.start;
  const cut = (range) => ({ ...range, end: Math.min(layers, range.end) });
  const scars = swarm.scars.filter((scar) => model && swarm.model(scar.model) === model);
  const busy = new Set([...(pipeline?.stages ?? []), ...(pipeline?.standbys ?? [])].map((stage) => stage.node));
  for (const scar of scars) busy.add(scar.from).add(scar.to);
  const holders = [...swarm.nodes.values()]
    .map((node) => ({ ...node, held: node.layers.filter((held) => held.model === model?.id && inside(held)).map(cut) }))
    .filter((node) => node.self || busy.has(node.id) || (node.held.length && node.state !== 'gone'));
  const near = (node) => (node.self ? -1 : (node.rttMs ?? 1e9));
  const rows = holders
    .slice()
    .sort((a, b) => Number(b.self || busy.has(b.id)) - Number(a.self || busy.has(a.id)) || near(a) - near(b))
    .slice(0, maxRows)
    .sort((a, b) => near(a) - near(b) || (a.id < b.id ? -1 : 1))
    .map((node) => ({ ...node, kind: kindOf(node) }));
  const index = new Map(rows.map((row, i) => [row.id, i]));
  const place = (entry) => ({ ...cut(entry), row: index.get(entry.node), ms: entry.computeMs === null && entry.hopMs === null ? NaN : stageMs(entry) });
  const onRow = (entry) => index.has(entry.node) && inside(entry);
  const stages = (pipeline?.stages ?? []).filter(onRow).map(place);
  const flowing = swarm.moves(pipeline);
  const peers = new Set(stages.map((stage) => rows[stage.row]).filter((row) => !row.self).map((row) => row.id)).size;
  const others = holders.filter((node) => !node.self && node.state !== 'gone').length;
  return {
    layers,
    rows,
    soundings: soundings(model),
    shallow: others > 0 ? 1 : 0,
    stages,
    standbys: (pipeline?.standbys ?? []).filter(onRow).map(place),
    scars: scars.filter((scar) => index.has(scar.from) && inside(scar)).map((scar) => ({
      ...cut(scar),
      row: index.get(scar.from),
      to: index.get(scar.to),
      text: t('chart.lost', { token: String(scar.position) }),
    })),
    flowing,
    tokS: flowing ? pipeline.tokS : 0,
    hidden: holders.length - rows.length,
    title: sentence(swarm, model, { peers, flowing, tokS: pipeline?.tokS ?? 0, others }),
  };
}

/** The drawing in one sentence; also its name for screen readers. */
function sentence(swarm, model, { peers, flowing, tokS, others }) {
  if (!swarm.known) return t('chart.waiting');
  if (!model) return t('chart.none');
  // A name breaks nowhere but at its spaces.
  const name = clean(model.name, 48).replaceAll('-', '-\u2060');
  if (flowing && peers > 0) return t('chart.through', { name, n: peers, rate: rate(tokS) });
  if (flowing) return t('chart.alone', { name, rate: rate(tokS) });
  if (others === 0) return t('chart.mine', { name });
  return t('chart.held', { name, n: others });
}
