// The only place that builds elements. Text always becomes text nodes; nothing here, or anywhere in the page, parses HTML.

import { figure } from './language.js';

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === 'function') node.addEventListener(name, value);
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** An HTML element. A function value is a listener for the event of that name. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** The element with this id; the page's own ids only. */
export const $ = (id) => document.getElementById(id);

/**
 * A name that another person chose, fit to be shown on one line: control, format and direction characters are dropped (a name
 * must not turn the text after it around), white space is folded, and what is left is cut at `max` characters.
 */
export function clean(name, max = 40) {
  const text = String(name ?? '')
    .slice(0, 4 * max)
    .replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, '')
    .replace(/\s+/gu, ' ')
    .trim();
  const letters = [...text];
  return letters.length > max ? `${letters.slice(0, max - 1).join('')}…` : text;
}

/** A finite number, or `otherwise`: whatever a server sends, arithmetic and coordinates stay finite. */
export const number = (value, otherwise = 0) => (typeof value === 'number' && Number.isFinite(value) ? value : otherwise);

/** An array, or an empty one, cut at `max` entries. */
export const list = (value, max = 512) => (Array.isArray(value) ? value.slice(0, max) : []);

/** "1.4 GB"; decimal units, as disks and links are sold. */
export function bytes(count) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let value = Math.max(0, number(count));
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${figure(value, unit === 0 || value >= 100 ? 0 : 1)} ${units[unit]}`;
}

/** "8.4 ms", "310 ms", "1.2 s". */
export function duration(ms) {
  const value = number(ms, NaN);
  if (Number.isNaN(value)) return '–';
  if (value >= 1000) return `${figure(value / 1000, 1)} s`;
  return `${figure(value, value >= 20 ? 0 : value < 0.1 ? 2 : 1)} ms`;
}

/** "11.8", "240": a rate in three figures. */
export const rate = (value) => figure(number(value), number(value) >= 100 ? 0 : 1);

/** Says a sentence to screen readers without moving anything on the screen. */
export function announce(sentence) {
  $('status').textContent = sentence;
}

/** Replaces the text of a node only when it differs, so that an unchanged page is not laid out again. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
