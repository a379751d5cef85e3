// Colors in code: the highlighter says where the parts of a program are, and this builds them as elements, text inside text.
//
// The library is fetched with the first block that is shown. It gives a tree; its HTML is not used.

import { h } from './dom.js';

/** Longest block that is colored, in characters; a longer one is shown plain. */
const MAX_CODE = 20_000;
/** Letters without a break, or breaks without a letter, on which grammars take a time that grows with its square. */
const ENDLESS = /[^\s]{500}|\s{500}/;
/** Most colored parts of a block. */
const MAX_PARTS = 8_000;
/** What people call languages that the highlighter knows under another name. */
const ALIASES = { cpp: 'c', 'c++': 'c', h: 'c', ts: 'javascript', typescript: 'javascript', tsx: 'javascript', jsonc: 'json', shell: 'bash', console: 'bash', toml: 'ini', svg: 'xml', java: 'c', kotlin: 'javascript', swift: 'javascript' };

let library;
let loading;

/** The highlighter, now or later. */
function load(then) {
  if (library) return then();
  loading ??= import('./lib-highlight.js').then((found) => (library = found.default));
  loading.then(then, () => {});
}

/** Colors `code`, which holds `text`, when the highlighter knows the language. */
export function color(code, language, text) {
  const name = language.toLowerCase();
  if (!name || text.length > MAX_CODE || ENDLESS.test(text)) return;
  load(() => {
    const known = [name, ALIASES[name]].find((one) => one && library.getLanguage(one));
    if (!known) return;
    let parts = 0;
    const build = (part) => {
      if (typeof part === 'string') return part;
      parts += 1;
      // Names of scopes come from the grammars; what is no plain name is none.
      const scope = /^[a-z]+/.exec(part.scope ?? '')?.[0];
      const inside = part.children.map(build);
      return scope && parts < MAX_PARTS ? h('span', { class: `c-${scope}` }, inside) : inside;
    };
    try {
      const tree = library.highlight(text, { language: known, ignoreIllegals: true })._emitter.rootNode;
      const colored = build(tree);
      // A part that is lost would be worse than no color.
      const box = h('code', null, colored);
      if (box.textContent === text) code.replaceChildren(...box.childNodes);
    } catch {
      // A grammar that fails leaves the text as it is.
    }
  });
}
