// The drawing of a swarm: a chart one can read without a legend.
//
// Left to right lie the layers of one model; each row is a node, this machine first and the others by distance. A pale bar
// is what a node holds, a full one what it computes now, and the line through the full bars is the way of one token. The
// dotted line above closes the lap: a token comes out, goes in again, the next one follows. Below, like the soundings of a
// nautical chart, stands how many nodes hold each layer: where the water is shallow, a failure hurts.
//
// All geometry is here and pure: `draw` is given a view (see `view.js`) and an element, and replaces its content.

import { duration, rate, s } from './dom.js';
import { t } from './language.js';

const ROW = 46;
const BAR = 14;
const TOP = 64;
const SOUNDINGS = 44;
/** How long the drawn token takes for one lap; the animation in the style sheet takes as long. */
const LAP_MS = 2600;
/** Below this width labels are shortened. */
const NARROW = 520;

/** Widths of a text in letters; one of Chinese is wider than two. */
const letters = (text) => [...text].reduce((sum, letter) => sum + (letter >= '\u2e80' ? 2.4 : 1), 0);

/** An arrow head that points right, its tip at the origin. */
const HEAD = 'M0 0 L-7 -3.5 L-7 3.5 Z';

/** Steps of the scale so that about eight labels fit. */
function step(layers, width) {
  const wanted = layers / Math.max(2, Math.min(8, width / 56));
  return [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128].find((size) => size >= wanted) ?? Math.ceil(wanted);
}

/** The way of a token through its stages, from the left edge to the right one. */
function thread(stages, x, y) {
  let path = `M${x(0) - 16} ${y(stages[0].row)}`;
  stages.forEach((stage, i) => {
    const next = stages[i + 1];
    const here = y(stage.row);
    const turn = next ? Math.min(16, (x(stage.end) - x(stage.start)) / 2, (x(next.end) - x(next.start)) / 2) : 0;
    if (!next) {
      path += ` H${x(stage.end) + 16}`;
    } else if (next.row === stage.row) {
      path += ` H${x(stage.end)}`;
    } else {
      const there = y(next.row);
      const sign = Math.sign(there - here);
      const r = Math.min(turn, Math.abs(there - here) / 2);
      const b = x(stage.end);
      path += ` H${b - r} Q${b} ${here} ${b} ${here + sign * r} V${there - sign * r} Q${b} ${there} ${b + r} ${there}`;
    }
  });
  return path;
}

/** The way back over the top, from the right edge at the last row to the left edge at the first. */
const back = (left, right, r, first) => `V${22 + r} Q${right} 22 ${right - r} 22 H${left + r} Q${left} 22 ${left} ${22 + r} V${first}`;

/**
 * The token on its lap: one, as only one is under way at a time. It is slower than the real one, and where it is depends on
 * the clock alone, so that it does not jump when the drawing is redone.
 */
function bead(path) {
  return ['halo', 'bead'].map((name) => {
    const node = s('path', { class: name, d: path, pathLength: 100 });
    node.style.animationDelay = `${-Math.round(performance.now() % LAP_MS)}ms`;
    return node;
  });
}

function lap(view, x, y, narrow) {
  const first = y(view.stages[0].row);
  const last = y(view.stages.at(-1).row);
  const left = x(0) - 16;
  const right = x(view.layers) + 16;
  const r = 12;
  const path = `M${right} ${last} ${back(left, right, r, first)}`;
  const total = view.stages.reduce((sum, stage) => sum + (stage.ms || 0), 0);
  const words = t(narrow ? 'chart.lap.short' : 'chart.lap', { time: duration(total) });
  const text = view.tokS > 0 ? `${words} · ${t('unit.rate', { rate: rate(view.tokS) })}` : words;
  const middle = (left + right) / 2;
  const half = letters(text) * 3 + 8;
  return [
    s('path', { class: 'lap', d: path }),
    s('path', { class: 'lap-head', d: HEAD, transform: `translate(${left} ${first - 2}) rotate(90)` }),
    s('rect', { class: 'behind', x: middle - half, y: 12, width: 2 * half, height: 20 }),
    s('text', { class: 'lap-text', x: middle, y: 26, 'text-anchor': 'middle' }, text),
  ];
}

/** The time on the way, beside each change of row. */
function hops(view, x, y) {
  return view.stages.slice(1).map((stage, i) => {
    const sign = Math.sign(stage.row - view.stages[i].row);
    if (stage.hopMs === null || sign === 0) return null;
    return s('text', { class: 'hop', x: x(stage.start) + 7, y: y(view.stages[i].row) + sign * 17 + 4 }, duration(stage.hopMs));
  });
}

function rowLabels(row, y, left, narrow) {
  const room = Math.floor((left - 18) / 7.4);
  const cut = (text) => {
    let end = text.length;
    while (end > 1 && letters(text.slice(0, end)) > room - (end < text.length ? 1 : 0)) end -= 1;
    return end < text.length ? `${text.slice(0, end)}…` : text;
  };
  const path = t(`path.${row.path}`);
  const far = row.kind === 'home' ? '' : row.rttMs === null ? path : narrow ? duration(row.rttMs) : `${path} · ${duration(row.rttMs)}`;
  return s(
    'g',
    { class: `label ${row.kind} ${row.state}` },
    s('title', null, row.id),
    s('circle', { class: `buoy ring ${row.color}`, cx: 7, cy: y, r: 4.5 }),
    s('text', { class: 'name', x: 18, y: y + (far ? -1 : 4) }, cut(row.kind === 'home' && !row.own ? t(narrow ? 'here' : 'me') : row.short)),
    far && s('text', { class: 'far', x: 18, y: y + 13 }, cut(row.state === 'up' ? far : t(`state.${row.state}`))),
  );
}

function stageBar(stage, i, view, x, y, narrow, dead) {
  const row = view.rows[stage.row];
  const from = x(stage.start);
  const wide = x(stage.end) - from;
  const last = i === view.stages.length - 1 && i > 0;
  const anchor = wide < 70 ? (i === 0 ? 'start' : last ? 'end' : 'middle') : 'middle';
  const at = anchor === 'start' ? from : anchor === 'end' ? from + wide : from + wide / 2;
  const range = `${stage.start}–${stage.end}`;
  const ms = narrow ? stage.ms : (stage.computeMs ?? NaN);
  const text = narrow || wide < 96 ? duration(ms) : `${t('layers', { range })} · ${duration(ms)}`;
  return s(
    'g',
    { class: `stage ${row.kind}${dead ? ' dead' : ''}` },
    s('title', null, t('chart.stage', { name: row.short, range, time: duration(stage.ms) })),
    s('rect', { x: from, y: y(stage.row) - BAR / 2, width: Math.max(3, wide), height: BAR, rx: 3 }),
    !dead && s('text', { x: at, y: y(stage.row) - BAR / 2 - 6, 'text-anchor': anchor, 'data-ms': i }, text),
  );
}

function scarMark(scar, hatch, x, y, width) {
  const from = x(scar.start);
  const to = x(scar.end);
  const here = y(scar.row);
  const bar = { x: from, y: here - BAR / 2, width: Math.max(3, to - from), height: BAR, rx: 3 };
  const room = width - 8 - letters(scar.text) * 6.2;
  const parts = [
    s('rect', { class: 'scar-bar', ...bar }),
    s('rect', { ...bar, fill: `url(#${hatch})` }),
    s('text', { class: 'scar-text', x: Math.max(8, Math.min(from + 8, room)), y: here - BAR / 2 - 6 }, scar.text),
  ];
  if (scar.to !== undefined && scar.to !== scar.row) {
    // Near the end of the bar, where neither label stands.
    const at = to - Math.min(22, (to - from) / 3);
    const there = y(scar.to);
    const sign = Math.sign(there - here);
    parts.push(
      s('path', { class: 'scar-way', d: `M${at} ${here + (sign * BAR) / 2} V${there - sign * (BAR / 2 + 8)}` }),
      s('path', { class: 'scar-head', d: HEAD, transform: `translate(${at} ${there - sign * (BAR / 2 + 1)}) rotate(${sign * 90}) scale(1.3)` }),
    );
  }
  return s('g', { class: 'scar' }, parts);
}

function seabed(view, x, top, narrow) {
  const runs = view.soundings;
  const most = Math.max(1, ...runs.map((run) => run.holders));
  const depth = (holders) => top + (holders / most) * (SOUNDINGS - 16) + 2;
  let path = `M${x(0)} ${top}`;
  for (const run of runs) path += ` V${depth(run.holders)} H${x(run.end)}`;
  path += ` V${top} Z`;
  return s(
    'g',
    { class: 'seabed' },
    s('text', { class: 'far', x: narrow ? 0 : 18, y: top + 14 }, t('chart.holders')),
    s('path', { class: 'water', d: path }),
    runs
      .filter((run) => x(run.end) - x(run.start) > 14)
      .map((run) => s('text', { class: run.holders <= view.shallow ? 'sounding thin' : 'sounding', x: (x(run.start) + x(run.end)) / 2, y: depth(run.holders) + 12, 'text-anchor': 'middle' }, String(run.holders))),
  );
}

/** Height of the drawing of this many rows, known before it is drawn so that nothing moves when it is. */
export const height = (rows) => TOP + Math.max(1, rows) * ROW + SOUNDINGS + 10;

/** Draws `view` into `host`, an SVG element `width` CSS pixels wide. */
export function draw(host, view, width) {
  const narrow = width < NARROW;
  const left = narrow ? 108 : 168;
  const right = narrow ? 26 : 112;
  const layers = Math.max(1, view.layers);
  const x = (layer) => left + (layer / layers) * (width - left - right);
  const y = (row) => TOP + row * ROW + ROW / 2 - 2;
  const bottom = TOP + Math.max(1, view.rows.length) * ROW;
  const dead = new Set(view.rows.flatMap((row, i) => (row.state === 'gone' ? [i] : [])));

  const ticks = [];
  const size = step(layers, width - left - right);
  for (let layer = 0; layer <= layers; layer += size) {
    if (layers - layer > 0 && layers - layer < size / 2) continue;
    ticks.push(layer);
  }
  if (ticks.at(-1) !== layers) ticks.push(layers);

  const parts = [
    s('g', { class: 'grid' }, ticks.map((layer) => [
      s('line', { x1: x(layer), x2: x(layer), y1: TOP - 8, y2: bottom + 2 }),
      s('text', { x: x(layer), y: TOP - 14, 'text-anchor': 'middle' }, String(layer)),
    ])),
    !narrow && s('text', { class: 'axis', x: 18, y: TOP - 14 }, t('chart.layer')),
    view.rows.map((row, i) => [
      rowLabels(row, y(i), left - 22, narrow),
      row.held.map((range) => s('rect', { class: `held ${row.kind} ${row.state}`, x: x(range.start), y: y(i) - BAR / 2, width: Math.max(2, x(range.end) - x(range.start)), height: BAR, rx: 3 })),
      !narrow && row.layerMs !== null && row.state === 'up' && s('text', { class: 'speed', x: width - 4, y: y(i) + 4, 'text-anchor': 'end' }, t('chart.each', { time: duration(row.layerMs) })),
    ]),
    view.standbys.map((shadow) => s('g', { class: 'shadow' },
      s('title', null, t('chart.shadow.why', { name: view.rows[shadow.row].short, range: `${shadow.start}–${shadow.end}` })),
      s('rect', { x: x(shadow.start) + 1, y: y(shadow.row) - BAR / 2 - 2, width: Math.max(3, x(shadow.end) - x(shadow.start) - 2), height: BAR + 4, rx: 4 }),
      x(shadow.end) - x(shadow.start) > 60 && s('text', { x: (x(shadow.start) + x(shadow.end)) / 2, y: y(shadow.row) + 4, 'text-anchor': 'middle' }, t('chart.shadow')))),
  ];
  if (view.stages.length) {
    parts.push(
      lap(view, x, y, narrow),
      view.stages.map((stage, i) => stageBar(stage, i, view, x, y, narrow, dead.has(stage.row))),
      s('path', { class: 'thread', d: thread(view.stages, x, y) }),
      s('path', { class: 'thread-head', d: HEAD, transform: `translate(${x(layers) + 18} ${y(view.stages.at(-1).row)})` }),
      !narrow && hops(view, x, y),
      view.flowing && bead(`${thread(view.stages, x, y)} ${back(x(0) - 16, x(layers) + 16, 12, y(view.stages[0].row))}`),
    );
  }
  parts.push(view.scars.map((scar) => scarMark(scar, `${host.id}-hatch`, x, y, width)), seabed(view, x, bottom + 4, narrow));
  host.classList.toggle('resting', !view.flowing);
  host.setAttribute('width', width);
  host.setAttribute('height', height(view.rows.length));
  host.replaceChildren(
    s('defs', null, s('pattern', { id: `${host.id}-hatch`, class: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, s('line', { x1: 0, x2: 0, y1: 0, y2: 6 }))),
    ...parts.flat(Infinity).filter(Boolean),
  );
}

/** The stages as one thin line, for answers and for the line above the prompt. */
export function strip(host, stages, layers) {
  host.setAttribute('viewBox', '0 0 100 6');
  host.setAttribute('preserveAspectRatio', 'none');
  const all = Math.max(1, layers);
  host.replaceChildren(
    s('rect', { class: 'strip-bed', x: 0, y: 0, width: 100, height: 6 }),
    ...stages.map((stage) => s('rect', { class: `strip ${stage.kind}${stage.dead ? ' dead' : ''}`, x: (100 * stage.start) / all + 0.3, y: 0, width: Math.max(0.6, (100 * (stage.end - stage.start)) / all - 0.6), height: 6 })),
  );
}
