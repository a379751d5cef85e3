// Writes the two libraries of the page, `api/web/lib-*.js`, out of the packages that package-lock.json pins by their hashes:
//
//   npm ci && node libraries.mjs            writes them
//   npm ci && node libraries.mjs --check    fails when what is committed is something else
//
// Nothing in them is changed: the grammars are put behind the highlighter, and the last line makes each a module.

import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const WEB = join(dirname(fileURLToPath(import.meta.url)), '../../api/web');
const LICENSES = join(WEB, '../licenses');
/** The languages that people ask models for most; their aliases (`py`, `ts`, `sh`, `html`) come with the page. */
const LANGUAGES = ['bash', 'c', 'diff', 'dockerfile', 'go', 'ini', 'javascript', 'json', 'python', 'rust', 'xml', 'yaml'];

const require = createRequire(import.meta.url);
const text = (path) => readFileSync(require.resolve(path), 'utf8').trimEnd();
/** Name, version and license: the file is part of a program that is passed on. */
const notice = (name) => `/*! ${name} ${JSON.parse(text(`${name}/package.json`)).version}\n\n${text(`${name}/LICENSE`)}\n*/`;

/** What each file holds. */
export function libraries() {
  const grammars = LANGUAGES.map((name) => text(`@highlightjs/cdn-assets/es/languages/${name}.min.js`)
    .replace(/export default hljsGrammar;$/, `hljs.registerLanguage("${name}",hljsGrammar);`));
  const core = text('@highlightjs/cdn-assets/es/core.min.js').replace(/export\{te as default\};$/, 'const hljs=te;');
  return {
    [join(WEB, 'lib-highlight.js')]: [notice('@highlightjs/cdn-assets'), core, ...grammars.map((grammar) => `{${grammar}}`), 'export default hljs;', ''].join('\n'),
    [join(WEB, 'lib-formula.js')]: [notice('temml'), text('temml/dist/temml.min.js'), 'export default temml;', ''].join('\n'),
    [join(LICENSES, 'highlight.js.txt')]: `${text('@highlightjs/cdn-assets/LICENSE')}\n`,
    [join(LICENSES, 'temml.txt')]: `${text('temml/LICENSE')}\n`,
  };
}

/** Whether the packages are installed and what is committed is what they give. */
export function stale() {
  return Object.entries(libraries()).filter(([path, whole]) => readFileSync(path, 'utf8') !== whole).map(([path]) => path);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv.includes('--check')) {
    if (stale().length) throw new Error(`not what the packages give: ${stale().join(', ')}`);
  } else {
    for (const [path, whole] of Object.entries(libraries())) writeFileSync(path, whole);
  }
}
