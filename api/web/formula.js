// Mathematics: TeX as MathML, which browsers draw themselves.
//
// The library is fetched with the first formula. It gives a tree; only the elements and attributes of MathML that are listed
// here are built from it, so a formula can neither link nor load nor style anything. What is no formula stays as typed.

import { h } from './dom.js';

/** Longest formula, in characters. */
const MAX_TEX = 2_000;
/** Formulas whose drawing is kept: while an answer grows its last block is built again and again. */
const MAX_KEPT = 300;
/** Elements of one formula. */
const MAX_NODES = 3_000;

const MATHML = 'http://www.w3.org/1998/Math/MathML';
const ELEMENTS = new Set(['math', 'mfrac', 'mi', 'mmultiscripts', 'mn', 'mo', 'mover', 'mpadded', 'mphantom', 'mprescripts', 'mroot', 'mrow', 'mspace', 'msqrt', 'mstyle', 'msub', 'msubsup', 'msup', 'mtable', 'mtd', 'mtext', 'mtr', 'munder', 'munderover', 'none']);
const ATTRIBUTES = new Set(['accent', 'accentunder', 'columnalign', 'columnspan', 'depth', 'display', 'displaystyle', 'fence', 'form', 'height', 'largeop', 'linethickness', 'lspace', 'mathvariant', 'maxsize', 'minsize', 'movablelimits', 'rspace', 'rowspacing', 'scriptlevel', 'separator', 'stretchy', 'symmetric', 'voffset', 'width']);
/** Lengths: a negative or long one would draw over what is not the formula's. */
const LENGTHS = new Set(['depth', 'height', 'lspace', 'rspace', 'voffset', 'width']);
/** Longest length either way, in em; of what is measured by the formula itself, in whole widths. */
const MAX_EM = 3;
const UNITS = { '': 1, width: 1, height: 1, depth: 1, em: 1, ex: 0.5, px: 1 / 16, pt: 1 / 12, mu: 1 / 18, '%': 0.01 };
const OPTIONS = { throwOnError: true, trust: false, strict: false, maxExpand: 200, maxSize: [10, 20] };

let library;
let loading;
const kept = new Map();

function load(then) {
  if (library) return then();
  loading ??= import('./lib-formula.js').then((found) => (library = found.default));
  loading.then(then, () => {});
}

function fits(name, value) {
  if (!LENGTHS.has(name)) return true;
  const [, length, unit] = /^([+-]?[\d.]+)([a-z%]*)$/.exec(value) ?? [];
  return Math.abs(length * UNITS[unit]) <= MAX_EM;
}

/** A node of the library's tree as an element of the lists above. */
function build(node, room) {
  if (typeof node.text === 'string' && !node.type) return [document.createTextNode(node.text)];
  room.nodes += 1;
  if (room.nodes > MAX_NODES) throw new RangeError('too large');
  const inside = (node.children ?? []).flatMap((child) => build(child, room));
  if (!ELEMENTS.has(node.type)) return inside;
  const element = document.createElementNS(MATHML, node.type);
  for (const [name, value] of Object.entries(node.attributes ?? {})) {
    if (ATTRIBUTES.has(name) && /^[\w.+% -]{1,32}$/.test(String(value)) && fits(name, String(value))) element.setAttribute(name, String(value));
  }
  element.append(...inside);
  return [element];
}

function drawn(tex, display) {
  const key = `${display} ${tex}`;
  if (!kept.has(key)) {
    let formula = null;
    try {
      [formula] = build(library.__renderToMathMLTree(tex, { ...OPTIONS, displayMode: display }), { nodes: 0 });
    } catch {
      // It is no formula.
    }
    if (kept.size >= MAX_KEPT) kept.delete(kept.keys().next().value);
    kept.set(key, formula);
  }
  return kept.get(key)?.cloneNode(true);
}

/** A formula; `typed` stands in its place until it is drawn, and if it is none. */
export function formula(tex, display, typed) {
  const place = h('span', { class: display ? 'formula wide' : 'formula' }, typed);
  if (tex.length > MAX_TEX) return place;
  load(() => {
    const found = drawn(tex, display);
    if (!found) return;
    // Read aloud and copied as TeX by who cannot use MathML.
    found.setAttribute('alttext', tex);
    place.replaceChildren(found);
  });
  return place;
}
