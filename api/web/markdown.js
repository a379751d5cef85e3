// Markdown into elements of a fixed list: p, h3-h6, ul, ol, li, blockquote, pre, code, em, strong, del, a, br, hr, table, and
// those of code.js and formula.js.
//
// A model's answer is a stranger's text. Nothing in it becomes HTML: raw tags stay visible as text, images are named and
// never fetched (an image address can carry a secret out), and links go to http, https and mailto only, by the reader's
// own click. The grammar is the part of CommonMark and of GitHub's tables that models write; every rule is linear in the
// text or bounded by a constant below, so no input makes it slow.

import { color } from './code.js';
import { h } from './dom.js';
import { formula } from './formula.js';
import { t } from './language.js';

/** Depth of quotes, lists and emphasis; what lies deeper is shown as plain text. */
const MAX_DEPTH = 10;
/** Longest address of a link and longest text inside its brackets. */
const MAX_URL = 2048;
const MAX_LABEL = 512;
/** Lines of one formula. */
const MAX_FORMULA_LINES = 64;
/** Widest table. */
const MAX_COLUMNS = 32;

/** The address if following it is harmless, else null. */
export function safeUrl(text) {
  if (text.length > MAX_URL || /[\s\p{Cc}\p{Cf}]/u.test(text) || !/^(?:https?:\/\/|mailto:)/i.test(text)) return null;
  try {
    const url = new URL(text);
    if (url.username || url.password) return null;
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const link = (href, children) =>
  h('a', { href, target: '_blank', rel: 'noopener noreferrer', title: href }, children);

const MARKS = [
  ['**', 'strong'],
  ['__', 'strong'],
  ['~~', 'del'],
  ['*', 'em'],
  ['_', 'em'],
];
const wordish = (letter) => letter !== undefined && /[\p{L}\p{N}_]/u.test(letter);

/** Where emphasis opened before `from` ends, or -1. */
function closing(text, mark, from) {
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at + 1)) {
    if (at === from || /\s/.test(text[at - 1]) || text[at - 1] === '\\') continue;
    if (mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark)) continue;
    if (mark[0] === '_' && wordish(text[at + mark.length])) continue;
    return at;
  }
  return -1;
}

/** The end of `[text](address)` whose bracket opens at `at`: the text and the address, or null. */
function bracket(text, at) {
  let depth = 0;
  const limit = Math.min(text.length, at + MAX_LABEL);
  for (let i = at; i < limit; i += 1) {
    if (text[i] === '\\') i += 1;
    else if (text[i] === '[') depth += 1;
    else if (text[i] === ']' && (depth -= 1) === 0) {
      if (text[i + 1] !== '(') return null;
      const end = text.slice(i + 2, i + 2 + MAX_URL).search(/\)/);
      if (end < 0) return null;
      const address = text.slice(i + 2, i + 2 + end).trim().replace(/^<(.*)>$/, '$1').split(/\s+["']/)[0];
      return { label: text.slice(at + 1, i), address, end: i + 3 + end };
    }
  }
  return null;
}

/**
 * The formula that begins at `at`, or null. A dollar begins one before something that is no space and ends it after such and
 * before no digit, so that prices stay prices.
 */
function tex(text, at, hopeless) {
  const [open, close, display] = text[at] === '\\' ? (text[at + 1] === '(' ? ['\\(', '\\)', false] : ['\\[', '\\]', true]) : text[at + 1] === '$' ? ['$$', '$$', true] : ['$', '$', false];
  if (hopeless.has(open)) return null;
  const from = at + open.length;
  if (open === '$' && /[\s\d]/.test(text[from] ?? ' ') && !/^\d+[^\d\s.,$]/.test(text.slice(from, from + 12))) return null;
  for (let end = text.indexOf(close, from); end >= 0; end = text.indexOf(close, end + 1)) {
    if (text[end - 1] === '\\' && close[0] === '$') continue;
    if (open === '$' && (/\s/.test(text[end - 1]) || /\d/.test(text[end + 1] ?? ''))) return null;
    return end === from ? null : { tex: text.slice(from, end).trim(), display, end: end + close.length };
  }
  hopeless.add(open);
  return null;
}

/** One line of text, or several, as nodes. */
export function inline(text, depth = 0) {
  if (depth > MAX_DEPTH) return [document.createTextNode(text)];
  const out = [];
  let plain = '';
  // A mark that has no end after here has none further on either: each is searched for in vain once.
  const hopeless = new Set();
  const flush = () => {
    if (plain) out.push(document.createTextNode(plain));
    plain = '';
  };
  const put = (node, to) => {
    flush();
    out.push(node);
    return to;
  };
  let i = 0;
  scan: while (i < text.length) {
    const c = text[i];
    if (c === '$' || (c === '\\' && (text[i + 1] === '(' || text[i + 1] === '['))) {
      const found = tex(text, i, hopeless);
      if (found) {
        i = put(formula(found.tex, found.display, text.slice(i, found.end)), found.end);
        continue;
      }
    }
    if (c === '\\' && /[\\`*_{}[\]()#+\-.!~|<>]/.test(text[i + 1] ?? '')) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    if (c === '\n') {
      plain = plain.trimEnd();
      i = put(h('br'), i + 1);
      continue;
    }
    if (c === '`') {
      let run = 1;
      while (text[i + run] === '`') run += 1;
      const fence = '`'.repeat(run);
      let end = hopeless.has(fence) ? -1 : text.indexOf(fence, i + run);
      while (end >= 0 && text[end + run] === '`') {
        while (text[end] === '`') end += 1;
        end = text.indexOf(fence, end);
      }
      if (end >= 0) {
        i = put(h('code', null, text.slice(i + run, end).replace(/^ (.*[^ ].*) $/s, '$1')), end + run);
      } else {
        hopeless.add(fence);
        plain += fence;
        i += run;
      }
      continue;
    }
    if (c === '[' || (c === '!' && text[i + 1] === '[')) {
      const image = c === '!';
      const found = bracket(text, image ? i + 1 : i);
      const href = found && safeUrl(found.address);
      if (href) {
        const label = image ? [t('text.image', { name: found.label || t('text.untitled') })] : inline(found.label, depth + 1);
        i = put(link(href, label), found.end);
        continue;
      }
    }
    if (c === '<' || (c === 'h' && !wordish(text[i - 1]))) {
      const found = /^<?(https?:\/\/[^\s<>"'`]{1,2040})(>)?/i.exec(text.slice(i, i + MAX_URL));
      if (found && (c === 'h' || found[2])) {
        const shown = c === 'h' ? found[1].replace(/[.,;:!?)\]*_]+$/, '') : found[1];
        const href = safeUrl(shown);
        if (href) {
          i = put(link(href, [shown]), i + (c === 'h' ? shown.length : found[0].length));
          continue;
        }
      }
    }
    if (c === '*' || c === '_' || c === '~') {
      for (const [mark, tag] of MARKS) {
        if (!text.startsWith(mark, i) || hopeless.has(mark) || /\s/.test(text[i + mark.length] ?? ' ')) continue;
        if (c === '_' && wordish(text[i - 1])) continue;
        const end = closing(text, mark, i + mark.length);
        if (end < 0) {
          hopeless.add(mark);
          continue;
        }
        i = put(h(tag, null, inline(text.slice(i + mark.length, end), depth + 1)), end + mark.length);
        continue scan;
      }
    }
    plain += c;
    i += 1;
  }
  flush();
  return out;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}(?:(?:-\s*){3,}|(?:\*\s*){3,}|(?:_\s*){3,})$/;
const ITEM = /^(\s{0,40})([-*+]|\d{1,9}[.)])(?:\s+(.*)|)$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

const cells = (line) =>
  line
    .trim()
    .replace(/^\||\|$/g, '')
    .split('|', MAX_COLUMNS)
    .map((cell) => cell.trim());

/** The text of a heading without the marks that may close it. */
function withoutHashes(text) {
  let end = text.trimEnd().length;
  const full = end;
  while (end > 0 && text[end - 1] === '#') end -= 1;
  return (end < full && end > 0 && text[end - 1] !== ' ' ? text.slice(0, full) : text.slice(0, end)).trimEnd();
}

/** Code with its language and a button that copies it; colored when it is whole. */
function code(language, lines, whole) {
  const text = lines.join('\n');
  const copy = h('button', { type: 'button', class: 'quiet', click: () => navigator.clipboard?.writeText(text) }, t('copy'));
  const head = h('div', { class: 'code-head' }, h('span', null, language.split(/\s/)[0].slice(0, 24) || t('text.plain')), copy);
  const shown = h('code', null, text);
  if (whole) color(shown, language.split(/\s/)[0], text);
  return h('figure', { class: 'code' }, head, h('pre', { tabindex: 0 }, shown));
}

function table(lines) {
  const [head, , ...body] = lines.map(cells);
  const row = (tag, values) => h('tr', null, head.map((_, i) => h(tag, tag === 'th' ? { scope: 'col' } : null, inline(values[i] ?? ''))));
  return h(
    'div',
    { class: 'wide', tabindex: 0, role: 'region', 'aria-label': t('text.table') },
    h('table', null, h('thead', null, row('th', head)), h('tbody', null, body.map((values) => row('td', values)))),
  );
}

/** The items of a list that starts at line `at`: the element and the first line after it. */
function listAt(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const indent = first[1].length;
  const node = h(ordered ? 'ol' : 'ul', ordered && parseInt(first[2], 10) !== 1 ? { start: parseInt(first[2], 10) } : null);
  let i = at;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (!item || item[1].length > indent + 1 || item[1].length < indent || /\d/.test(item[2]) !== ordered || RULE.test(lines[i])) break;
    const inner = [item[3] ?? ''];
    i += 1;
    while (i < lines.length) {
      const next = ITEM.exec(lines[i]);
      const lead = lines[i].search(/\S/);
      if (lead < 0) {
        // A blank line belongs to the item only when something indented follows.
        if (i + 1 >= lines.length || lines[i + 1].search(/\S/) <= indent + 1) break;
      } else if (next ? lead <= indent + 1 : lead <= indent && (HEADING.test(lines[i]) || FENCE.test(lines[i]) || lines[i - 1].trim() === '')) break;
      inner.push(lines[i].slice(Math.min(Math.max(lead, 0), indent + item[2].length + 1)));
      i += 1;
    }
    const blocks = parse(inner, depth + 1).map((block) => block.node);
    node.append(h('li', null, blocks.length === 1 && blocks[0].tagName === 'P' ? [...blocks[0].childNodes] : blocks));
    let skip = i;
    while (skip < lines.length && lines[skip].trim() === '') skip += 1;
    if (skip > i && skip < lines.length && ITEM.test(lines[skip])) i = skip;
  }
  return { node, end: i };
}

/** A formula that has lines of its own and begins at line `at`: `{ tex, typed, end }`, or null. */
function formulaAt(lines, at) {
  const open = /^ {0,3}(\$\$|\\\[)/.exec(lines[at])?.[1];
  if (!open) return null;
  const close = open === '$$' ? '$$' : '\\]';
  for (let end = at; end < Math.min(lines.length, at + MAX_FORMULA_LINES); end += 1) {
    const typed = lines.slice(at, end + 1).join('\n').trim();
    if (!lines[end].trimEnd().endsWith(close) || typed.length < open.length + close.length + 1) continue;
    const tex = typed.slice(open.length, -close.length);
    return tex.includes(close) ? null : { tex: tex.trim(), typed, end: end + 1 };
  }
  return null;
}

/** Blocks in order, each with its element and the line it starts at. */
function parse(lines, depth = 0) {
  const blocks = [];
  const add = (start, node) => blocks.push({ start, node });
  if (depth > MAX_DEPTH) {
    add(0, h('p', null, lines.join('\n')));
    return blocks;
  }
  let i = 0;
  while (i < lines.length) {
    const line = lines[i];
    const start = i;
    let found;
    if (line.trim() === '') {
      i += 1;
    } else if ((found = FENCE.exec(line))) {
      const inner = [];
      const closes = new RegExp(`^ {0,3}${found[1][0]}{${found[1].length},}\\s*$`);
      for (i += 1; i < lines.length && !closes.test(lines[i]); i += 1) inner.push(lines[i]);
      const whole = i < lines.length;
      i += 1;
      add(start, code(found[2].trim(), inner, whole));
    } else if ((found = formulaAt(lines, i))) {
      add(start, h('p', null, formula(found.tex, true, found.typed)));
      i = found.end;
    } else if ((found = HEADING.exec(line))) {
      add(start, h(`h${Math.min(6, found[1].length + 2)}`, null, inline(withoutHashes(found[2]))));
      i += 1;
    } else if (RULE.test(line)) {
      add(start, h('hr'));
      i += 1;
    } else if (QUOTE.test(line)) {
      const inner = [];
      for (; i < lines.length && (found = QUOTE.exec(lines[i])); i += 1) inner.push(found[1]);
      add(start, h('blockquote', null, parse(inner, depth + 1).map((block) => block.node)));
    } else if (ITEM.test(line)) {
      const { node, end } = listAt(lines, i, depth);
      add(start, node);
      i = end;
    } else if (line.includes('|') && DIVIDER.test(lines[i + 1] ?? '') && (lines[i + 1] ?? '').includes('-')) {
      const rows = [];
      for (; i < lines.length && lines[i].includes('|'); i += 1) rows.push(lines[i]);
      add(start, table(rows));
    } else {
      const inner = [];
      do {
        inner.push(lines[i].replace(/^\s+/, ''));
        i += 1;
      } while (i < lines.length && lines[i].trim() !== '' && ![FENCE, HEADING, RULE, QUOTE].some((rule) => rule.test(lines[i])) && !/^\s{0,3}(?:[-*+]|1[.)])\s/.test(lines[i]));
      add(start, h('p', null, inline(inner.join('\n').trimEnd())));
    }
  }
  return blocks;
}

/**
 * Renders text that grows at its end into `host`. Blocks that can no longer change stay as they are (a reader may have
 * selected text in them); only the last one is drawn again.
 */
export class Growing {
  constructor(host) {
    this.host = host;
    this.done = 0;
    this.tail = [];
  }

  /** `text` is everything so far; it must extend what the last call had. */
  update(text) {
    for (const node of this.tail) node.remove();
    const lines = text.slice(this.done).split('\n');
    const blocks = parse(lines);
    this.host.append(...blocks.map((block) => block.node));
    this.tail = blocks.slice(-1).map((block) => block.node);
    const last = blocks.at(-1);
    if (last && last.start > 0) this.done += lines.slice(0, last.start).join('\n').length + 1;
  }
}
