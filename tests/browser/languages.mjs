// The languages of the page: every file of messages has the keys, placeholders and plural forms it must have, no sentence of
// the page stands outside of them, and every view is whole in each language. How it is run: run.mjs.

import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { check, open, ready, serious, shot, until } from './driver.mjs';
import { failedOver, pipeline } from './fake.mjs';

const WEB = join(dirname(fileURLToPath(import.meta.url)), '../../api/web');
const LANGUAGES = readdirSync(WEB).flatMap((file) => /^messages-(\w+)\.json$/.exec(file)?.[1] ?? []);
const messages = Object.fromEntries(LANGUAGES.map((name) => [name, JSON.parse(readFileSync(join(WEB, `messages-${name}.json`), 'utf8'))]));
const CODE = readdirSync(WEB).filter((file) => file.endsWith('.js') && !file.startsWith('lib-'));
const code = Object.fromEntries(CODE.map((file) => [file, readFileSync(join(WEB, file), 'utf8')]));
const HTML = readFileSync(join(WEB, 'index.html'), 'utf8');

const placeholders = (text) => [...new Set([...text.matchAll(/\{(\w+)\}/g)].map(([, name]) => name))].sort();

check('every language has the keys, placeholders and plural forms', () => {
  assert.deepEqual(LANGUAGES.sort(), ['de', 'en', 'zh']);
  for (const name of LANGUAGES) {
    assert.deepEqual(Object.keys(messages[name]), Object.keys(messages.en), `${name}: the keys, in the order of English`);
    const forms = new Intl.PluralRules(name).resolvedOptions().pluralCategories;
    for (const [key, message] of Object.entries(messages[name])) {
      const source = messages.en[key];
      assert.equal(typeof message, typeof source, `${name}: ${key}`);
      const wanted = placeholders(typeof source === 'string' ? source : source.other);
      if (typeof message === 'string') {
        assert.ok(message.trim(), `${name}: ${key} is empty`);
        assert.deepEqual(placeholders(message), wanted, `${name}: ${key}`);
        continue;
      }
      assert.deepEqual(Object.keys(message).filter((form) => form !== '0').sort(), [...forms].sort(), `${name}: ${key}`);
      assert.equal('0' in message, '0' in source, `${name}: ${key}`);
      for (const [form, text] of Object.entries(message)) {
        const free = form === '0' ? wanted.filter((one) => one !== 'n') : wanted;
        assert.deepEqual(placeholders(text).filter((one) => form !== '0' || one !== 'n'), free, `${name}: ${key}, ${form}`);
      }
    }
  }
});

/** The literals of a script with what stands before each; comments and patterns are passed over. */
function literals(text) {
  const found = [];
  for (const [whole, , quoted] of text.matchAll(/\/\/[^\n]*|\/\*[^]*?\*\/|(?<=[(,=:[!&|?{};\s])(\/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\[\n])+\/[a-z]*)|('(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)/g)) {
    if (quoted) found.push(quoted.slice(1, -1));
  }
  return found;
}
/** A capital word and another one, three words in a row, or the end of a sentence; what is put in is no word. */
const isSentence = (literal) => /(?:^|\s)[A-Z][a-z]+ [a-z]+|[a-z]{2,} [a-z]{2,} [a-z]{2,}|[a-z][.!?] [A-Z]|[a-z]\.$/.test(literal.replace(/\$\{[^}]*\}/g, '1').replace(/^Bearer /, ''));

check('no sentence stands in the code outside of the messages, and every key is there and used', () => {
  assert.ok(['The node is starting.', 'Reading the ${x} now', 'no such machine is here'].every(isSentence), 'a sentence is seen');
  assert.deepEqual(literals("// It's a note\nt('a', /'/, `b c`)"), ['a', 'b c'], 'literals are seen');
  const sentences = Object.entries(code).flatMap(([file, text]) => literals(text).filter(isSentence).map((literal) => `${file}: ${literal}`));
  assert.deepEqual(sentences, []);
  const body = HTML.slice(HTML.indexOf('<body')).replace(/<noscript>.*<\/noscript>|<h1[^]*?<\/h1>/g, '');
  const words = [...body.matchAll(/>([^<]*[A-Za-z]{3}[^<]*)</g), ...body.matchAll(/ (?:placeholder|title|aria-label|alt)="([^"]*)"/g)].map(([, text]) => text.trim());
  assert.deepEqual(words, [], 'in index.html');
  const used = new Set([...HTML.matchAll(/data-t(?:-[\w-]+)?="([^"]+)"/g)].map(([, key]) => key));
  const prefixes = ['badge.'];
  for (const text of Object.values(code)) {
    for (const [, key] of text.matchAll(/'([\w.]+)'/g)) if (key in messages.en) used.add(key);
    for (const [, prefix] of text.matchAll(/\bt\(`([\w.]+\.)\$\{/g)) prefixes.push(prefix);
    for (const [, one, other] of text.matchAll(/\bt\((?:[^'`]*\? )?'([\w.]+)'(?: : '([\w.]+)')?/g)) used.add(one).add(other ?? one);
  }
  for (const key of used) assert.ok(key in messages.en, `the message ${key} is missing`);
  assert.deepEqual(Object.keys(messages.en).filter((key) => !used.has(key) && !prefixes.some((prefix) => key.startsWith(prefix))), [], 'messages without a use');
});

/** What is shown in a view that is no message of a language: by marks around every message. */
const FOREIGN = () => {
  const found = [];
  const seen = (node) => node.checkVisibility?.({ visibilityProperty: true }) ?? true;
  const look = (text, where) => {
    let rest = text.replace(/\u2060/g, '');
    for (let before; before !== rest; ) {
      before = rest;
      rest = rest.replace(/⟦[^⟦⟧]*⟧/g, ' ');
    }
    if (/\p{L}{2}/u.test(rest)) found.push(`${where}: ${rest.trim()}`);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!seen(parent) || parent.closest('noscript, h1, .text, .question, code, option[lang], title')) continue;
    look(node.data, parent.className?.baseVal ?? (parent.className || parent.tagName));
  }
  for (const node of document.querySelectorAll('[placeholder], [aria-label], [title]')) {
    for (const name of ['placeholder', 'aria-label', 'title']) if (node.hasAttribute(name) && seen(node)) look(node.getAttribute(name), name);
  }
  return found;
};
/** Names, units and times that are the same in every language. */
const DATA = /\b(?:qwen3-4b-q4_0|minnow|heron(?:-3b)?|attic|harbor|[0-9a-f]{8,64}|smollm2|SmolLM2 135M Instruct|Apache-2\.0|ms|MB|GB|kB|TB|PM|AM|raw)\b/g;

/** Walks through the views; `look` is called in each. */
async function walk(view, look) {
  const { page, fake } = view;
  await look('empty');
  await page.check('#modes input[value=boomerang]', { force: true });
  await page.waitForSelector('#consent[open]');
  await look('consent');
  await page.keyboard.press('Escape');
  await until(page, () => document.querySelector('#modes input[value=local]').checked);
  await page.evaluate(() => (document.querySelector('#sampling').open = true));
  await look('settings');
  await page.evaluate(() => (document.querySelector('#sampling').open = false));
  const begun = new Promise((resolve) => (fake.begun = resolve));
  await page.fill('#prompt', 'X');
  await page.keyboard.press('Enter');
  const stream = await begun;
  fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
  stream.thought('x');
  stream.token('# X\n\nX\n\n```\nx\n```\n\n| x |\n|---|\n| x |\n');
  await until(page, () => /heron/.test(document.querySelector('#course-text').textContent) && document.querySelector('.answer pre'));
  await look('streaming');
  const { failover, after } = failedOver(stream.id);
  fake.tell(failover);
  fake.tell({ type: 'pipeline', pipeline: after });
  await page.waitForSelector('#course.alarm');
  await look('failover');
  stream.end({ faults_survived: 1, checked_by: ['d90b7e11', 'me', '9be04412'] });
  await page.waitForSelector('.badge');
  await page.click('.badge summary');
  for (const button of await page.locator('.badge dt button').all()) await button.click();
  await page.evaluate(() => document.querySelector('.badge').scrollIntoView());
  await look('answer');
  if (await page.isHidden('#history')) await page.click('#history-toggle');
  await page.waitForSelector('.kept.open .more summary');
  await page.click('.kept.open .more summary');
  await look('conversations');
  await page.keyboard.press('Escape');
  await page.click('#to-swarm');
  await page.waitForSelector('#chart .label');
  await until(page, () => document.querySelectorAll('#nodes tr').length === 8);
  await look('swarm');
  for (const place of ['past', 'replay', 'nodes', 'invite']) {
    if (place === 'replay') await page.waitForSelector('#replay-steps li');
    if (place === 'invite') await page.click('#invite-show').then(() => page.waitForSelector('.qr'));
    await page.evaluate((place) => document.querySelector(`#${place}-title`).scrollIntoView(), place);
    await look(place);
  }
  await page.click('#nodes button >> nth=1');
  await look('naming');
  await page.keyboard.press('Escape');
  await page.click('#to-models');
  await page.waitForSelector('#library-found li');
  await look('library');
  await page.click('#to-chat');
}

check('every view shows messages and data, and nothing else', async () => {
  const marked = (value) => (typeof value === 'string' ? value.split('`').map((part, i) => (i % 2 ? part : `⟦${part}⟧`)).join('`') : Object.fromEntries(Object.entries(value).map(([form, text]) => [form, marked(text)])));
  const view = await open({ context: { locale: 'de-DE' } });
  const { page } = view;
  const all = Object.fromEntries(Object.entries(messages.en).map(([key, value]) => [key, marked(value)]));
  await page.route('**/messages-de.json', (route) => route.fulfill({ contentType: 'application/json', body: JSON.stringify(all) }));
  // What the node itself says of a model's fit stays as it is.
  for (const one of view.fake.library) one.fit = '';
  await page.reload();
  await ready(page);
  const wrong = [];
  await walk(view, async (place) => wrong.push(...(await page.evaluate(FOREIGN)).map((found) => `${place}, ${found}`)));
  assert.deepEqual([...new Set(wrong.filter((found) => /\p{L}{2}/u.test(found.slice(found.indexOf(': ')).replace(DATA, ''))))], []);
  await view.close();
});

for (const [name, locale] of [['de', 'de-DE'], ['zh', 'zh-CN'], ['en', 'en-US']]) {
  check(`the page in ${name}: nothing is cut off, nothing serious for the accessibility check`, async () => {
    for (const [scheme, size] of [['light', { width: 1300, height: 860 }], ['dark', { width: 1300, height: 860 }], ['light', { width: 390, height: 780 }]]) {
      const view = await open({ context: { locale, colorScheme: scheme, viewport: size, bypassCSP: true } });
      const { page, fake } = view;
      await ready(page);
      assert.ok(await page.evaluate((name) => document.documentElement.lang.startsWith(name), name));
      assert.deepEqual(fake.requests.map(({ path }) => path).filter((path) => path.startsWith('/messages-')), [`/messages-${name}.json`], 'no other language is fetched');
      await walk(view, async (place) => {
        await shot(page, `language-${name}-${place}-${scheme}-${size.width}`);
        if (scheme === 'light') assert.deepEqual(await serious(page), [], `${place}, ${size.width} pixels`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${place}: nothing is wider than ${size.width} pixels`);
        const cut = await page.evaluate(() => [...document.querySelectorAll('button, .mode span, h2, nav a, summary')].filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.matches('.hidden') && node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline').map((node) => node.textContent.slice(0, 60)));
        assert.deepEqual(cut, [], `${place}, ${size.width} pixels: cut off`);
      });
      await view.close();
    }
  });
}

check('another language is chosen in the settings; what was typed stays, numbers and plurals follow', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  assert.equal(await page.getAttribute('html', 'lang'), 'en');
  await page.fill('#prompt', 'half a question');
  await page.click('#sampling summary');
  await page.fill('#system', 'Be brief.');
  assert.deepEqual(await page.locator('#language option').allInnerTexts(), ['as in the browser (English)', 'English', 'Deutsch', '中文']);
  await Promise.all([page.waitForEvent('load'), page.selectOption('#language', 'de')]);
  await page.waitForSelector('html[lang=de]');
  await ready(page);
  assert.equal(await page.inputValue('#prompt'), 'half a question');
  assert.equal(await page.inputValue('#system'), 'Be brief.');
  assert.equal(await page.innerText('#send'), 'Senden');
  await until(page, () => document.activeElement.id === 'language');
  await page.click('#to-swarm');
  await until(page, () => document.querySelector('#give-served').textContent !== '–' && /ms/.test(document.querySelector('#nodes').innerText));
  assert.equal(await page.innerText('#give-served'), '481.220 Schichtdurchläufe');
  assert.match(await page.innerText('#nodes'), /0,60 ms|0,6 ms/);
  fake.tell({ type: 'contribution', contribution: { ...fake.state.contribution, served_sessions: 1 } });
  await until(page, () => document.querySelector('#give-sessions').textContent === '1 Prompt');
  await page.reload();
  await ready(page);
  assert.equal(await page.getAttribute('html', 'lang'), 'de', 'the choice is kept');
  await view.close();
});
