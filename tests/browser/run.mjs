// The page in a real browser: Debian's Chromium without a screen, driven by playwright-core against the node of `fake.mjs`.
//
//   npm ci && node run.mjs           skips, and says so, where Chromium or the two packages are missing
//   SHOAL_BROWSER=required           makes that a failure (.ci/run installs what is needed)
//   SHOAL_URL=http://...#token=...   adds the checks that hold against any real node
//   SHOAL_SHOTS=folder               keeps pictures of what the checks looked at
//
// The browser resolves no name and reaches no address but loopback. Nothing waits for a time to pass: every wait is for
// something that must appear.

import assert from 'node:assert/strict';
import { readFileSync, readdirSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { axe, browser, check, open, PATIENCE_MS, ready, shot, until } from './driver.mjs';
import { failedOver, pipeline, swarm } from './fake.mjs';

const HERE = dirname(fileURLToPath(import.meta.url));
const WEB = join(HERE, '../../api/web');
const ATTACKS = JSON.parse(readFileSync(join(HERE, 'xss.json'), 'utf8'));
/** Through formulas and code, which only answers have. */
const IN_ANSWERS = [...ATTACKS, ...JSON.parse(readFileSync(join(HERE, 'xss-answers.json'), 'utf8'))];
/** Of all files that are fetched in one language; half are the libraries for formulas and code, fetched when they are needed. */
const MAX_PAGE_BYTES = 475_000;
/** Of the files that every first look fetches. */
const MAX_FIRST_BYTES = 222_000;
/** What a page in English has no need of. */
const OTHERS = ['messages-de.json', 'messages-zh.json'];
/** What a page may shift in all while it loads and streams; browsers call anything under 0.1 good. */
const MAX_SHIFT = 0.01;

/** Sends a prompt and waits for the fake node's side of it. */
async function ask({ fake, page }, text) {
  const begun = new Promise((resolve) => (fake.begun = resolve));
  await page.fill('#prompt', text);
  await page.keyboard.press('Enter');
  return begun;
}
const shown = (page, text, where = '.turn.answer:last-child .text') => until(page, ([place, wanted]) => document.querySelector(place)?.innerText.includes(wanted), [where, text]);
/** Element names and attributes under `root` that model output may become. */
const INERT = 'P H3 H4 H5 H6 UL OL LI BLOCKQUOTE PRE CODE EM STRONG DEL A BR HR TABLE THEAD TBODY TR TH TD DIV SPAN FIGURE BUTTON math mfrac mi mn mo mover mpadded mphantom mroot mrow mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover'.split(' ');
function foreign([root, allowed]) {
  return [...document.querySelectorAll(`${root} *`)].flatMap((node) => {
    const found = [];
    if (!allowed.includes(node.tagName)) found.push(`<${node.tagName}>`);
    for (const { name, value } of node.attributes) {
      if (/^on|^src|^style$|^action$|^formaction$/i.test(name)) found.push(`${node.tagName} ${name}`);
      if (name === 'href' && !/^(?:https?|mailto):/.test(value)) found.push(`href ${value}`);
    }
    if (node.tagName === 'A' && node.rel !== 'noopener noreferrer') found.push('a link without rel');
    return found;
  });
}

check('the token leaves the address, is sent with every request of data and never with a file', async () => {
  const view = await open();
  await ready(view.page);
  assert.equal(view.page.url(), `${view.origin}/`);
  assert.equal(await view.page.evaluate(() => history.length), 2, 'the address with the token is replaced, not followed by another');
  const files = new Set(readdirSync(WEB).map((file) => `/${file}`).concat('/'));
  for (const { path, headers } of view.fake.requests) {
    assert.equal(headers.authorization, files.has(path) ? undefined : 'Bearer secret-token', path);
    assert.ok(!headers.referer, `${path} carries a referrer`);
  }
  await view.close();
});

check('a ticket opens the page once', async () => {
  const view = await open({ ticket: 'once', expect: /401/ });
  const { page, fake } = view;
  await ready(page);
  assert.equal(page.url(), `${view.origin}/`);
  assert.deepEqual(fake.tickets, []);
  await page.reload();
  await ready(page);
  const other = await view.context.browser().newContext();
  const late = await other.newPage();
  await late.goto(`${view.origin}/#t=once`);
  await late.waitForSelector('#lock[open]');
  await other.close();
  await view.close();
});

check('without a token the page asks for one, and opens with it', async () => {
  const view = await open({ token: 'wrong', expect: /401/ });
  await view.page.waitForSelector('#lock[open]');
  await view.page.fill('#token', 'secret-token');
  await view.page.keyboard.press('Enter');
  await ready(view.page);
  await view.close();
});

check('a prompt streams, token by token, into markdown; the answer says who computed it', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  const stream = await ask(view, 'Tell me **a story**');
  assert.equal(stream.body.stream, true);
  assert.equal(stream.body.mode, 'local');
  assert.deepEqual(stream.body.messages, [{ role: 'user', content: 'Tell me **a story**' }]);
  fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
  stream.token('Once **upon');
  await shown(page, 'Once **upon');
  await until(page, () => document.querySelector('#course-text').textContent.includes('through 3f2a91c0, heron'));
  stream.token(' a time**\n\n- fox\n- lantern\n\n');
  await page.waitForSelector('.answer strong:text("upon a time")');
  const kept = await page.evaluateHandle(() => document.querySelector('.answer p'));
  stream.token('```js\nlight()\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n');
  await page.waitForSelector('.answer pre code:text("light()")');
  await page.waitForSelector('.answer td:text("2")');
  assert.ok(await kept.evaluate((node) => node.isConnected), 'finished blocks are left alone');
  assert.equal(await page.locator('.asked strong').count(), 0, 'a question is shown as it was typed');
  await shot(page, 'stream');
  stream.end({ faults_survived: 2 });
  await page.waitForSelector('.badge');
  assert.match(await page.innerText('.badge summary'), /2 peers · checked by d90b7e11 · 9\.6 tok\/s · 2 faults survived/);
  await page.click('.badge summary');
  assert.match(await page.innerText('.badge dl'), /this machine 0–4 .* → 3f2a91c0 4–18/);
  await page.click('.badge dt button:text("Speed")');
  assert.match(await page.innerText('.badge dt:has([aria-expanded=true])'), /first token to the last/);
  for (const [checking, said] of [[true, /2 peers · being checked ·/], [false, /2 peers · unchecked ·/]]) {
    const next = await ask(view, 'And then?');
    next.token('The end.');
    next.end({ checked_by: [], checked_tokens: 0, checking });
    await page.waitForSelector('.turn.answer:last-child .badge');
    assert.match(await page.innerText('.turn.answer:last-child .badge summary'), said);
  }
  await view.close();
});

check('what a model thinks can be opened and is no part of the conversation', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  const stream = await ask(view, 'Hi');
  stream.thought('They <b>greet</b> me.');
  await page.waitForSelector('.thinking summary');
  assert.equal(await page.locator('.thinking').getAttribute('open'), null, 'it is closed');
  await page.click('.thinking summary');
  await shown(page, 'They <b>greet</b> me.', '.thought');
  stream.token('Hello!');
  stream.end();
  await page.waitForSelector('.badge');
  assert.equal(await page.locator('.thought b').count(), 0, 'it is text');
  await shot(page, 'thinking');
  (await ask(view, 'And you?')).end();
  assert.deepEqual(fake.streams.at(-1).body.messages.map(({ content }) => content), ['Hi', 'Hello!', 'And you?']);
  await view.close();
});

check('an answer that was being checked says what came of it, in its place', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  const badges = page.locator('.turn.answer .badge summary');
  const streams = [];
  for (let i = 0; i < 3; i += 1) {
    const stream = await ask(view, `question ${i}`);
    fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
    stream.token('An answer.');
    stream.end({ checked_by: [], checked_tokens: 0, checking: true });
    await until(page, (n) => document.querySelectorAll('.badge').length === n, i + 1);
    assert.match(await badges.nth(i).innerText(), /2 peers · being checked ·/);
    streams.push(stream);
  }
  const verdict = (stream, more) => ({ session: stream.id, request: stream.id, checking: false, checked_by: [], checked_tokens: 0, convicted: [], wrong_from: null, ...more });
  const told = (i, wanted) => until(page, ([at, text]) => document.querySelectorAll('.badge summary')[at]?.innerText.includes(text), [i, wanted]);
  await badges.nth(1).click();
  const shifts = await page.evaluate(() => window.shifts.length);
  fake.tell({ type: 'checked', verdict: verdict(streams[1], { checked_by: ['me'], checked_tokens: 3 }) });
  await told(1, 'checked by this machine');
  assert.match(await page.locator('.badge').nth(1).locator('dl').innerText(), /this machine: 3 tokens recomputed and equal/, 'it is still open');
  assert.match(await page.textContent('#status'), /checked by this machine/, 'it is said aloud');
  assert.equal(await page.evaluate(() => document.activeElement.closest('.turn') === document.querySelectorAll('.turn.answer')[1]), true, 'the focus stays');
  fake.tell({ type: 'checked', verdict: verdict(streams[0], { convicted: ['3f2a91c0'], wrong_from: 4 }) });
  await told(0, 'cheat found: 3f2a91c0');
  await page.evaluate(() => (document.querySelectorAll('.badge')[0].open = true));
  assert.match(await page.locator('.badge').nth(0).locator('dl').innerText(), /from token 5 on .* not to be relied on/);
  await shot(page, 'checked');
  assert.equal(await page.evaluate(() => window.shifts.length), shifts, 'nothing moved');
  // What came while no reader listened is in the snapshot.
  fake.state.verdicts = [verdict(streams[2], { checked_by: ['d90b7e11'], checked_tokens: 2 })];
  fake.tell({ type: 'snapshot', snapshot: fake.state });
  await told(2, 'checked by d90b7e11');
  const last = await ask(view, 'the last one');
  last.token('An answer.');
  last.end({ checked_by: [], checked_tokens: 0, checking: true });
  await told(3, 'being checked');
  // Another process that knows nothing of it will not say any more.
  fake.tell({ type: 'snapshot', snapshot: { ...fake.state, verdicts: [] } });
  await told(3, 'unchecked');
  await view.close();
});

check('stop cancels the request at once, by button and by key', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  for (const stop of [() => page.click('#send'), () => page.keyboard.press('Escape')]) {
    const stream = await ask(view, 'go on');
    fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
    stream.token('forever and');
    await shown(page, 'forever and');
    await until(page, () => document.querySelector('#course-text').textContent.includes('through 3f2a91c0'));
    const gone = new Promise((resolve) => (fake.gone = resolve));
    await stop();
    await gone;
    await page.waitForSelector('.turn.answer:last-child .badge');
    assert.match(await page.innerText('.turn.answer:last-child .badge'), /^2 peers · .*stopped by you/);
    assert.doesNotMatch(await page.innerText('.turn.answer:last-child .badge'), /checked/, 'no check was reported');
    assert.equal(await page.innerText('#send'), 'Send');
  }
  await view.close();
});

check('regenerate asks the same again; edit asks again and forgets what came after', async () => {
  const view = await open();
  const { page } = view;
  await ready(page);
  const answer = async (stream, text) => {
    stream.token(text);
    stream.end();
    await page.waitForSelector('.turn.answer:last-child .badge');
  };
  await answer(await ask(view, 'one'), 'first');
  await answer(await ask(view, 'two'), 'second');
  let begun = new Promise((resolve) => (view.fake.begun = resolve));
  await page.click('.turn.answer:last-child button:text("Regenerate")');
  let stream = await begun;
  assert.deepEqual(stream.body.messages.map((message) => message.content), ['one', 'first', 'two']);
  await answer(stream, 'second again');
  begun = new Promise((resolve) => (view.fake.begun = resolve));
  await page.click('.turn.asked:first-child button:text("Edit")');
  await page.fill('.edit textarea', 'uno');
  await page.keyboard.press('Control+Enter');
  stream = await begun;
  assert.deepEqual(stream.body.messages, [{ role: 'user', content: 'uno' }]);
  await answer(stream, 'fine');
  assert.equal(await page.locator('.turn').count(), 2);
  await view.close();
});

check('a broken connection is taken up after the last token seen, with the same seed', async () => {
  const view = await open({ expect: /ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION|net::ERR/ });
  const { page } = view;
  await ready(page);
  const first = await ask(view, 'count');
  first.token('one ');
  first.token('two ');
  await shown(page, 'one two');
  const begun = new Promise((resolve) => (view.fake.begun = resolve));
  first.cut();
  const second = await begun;
  assert.equal(second.body.seed, first.body.seed);
  assert.equal(view.fake.requests.at(-1).headers['last-event-id'], '2');
  second.token('three');
  second.end();
  await page.waitForSelector('.badge');
  assert.equal(await page.innerText('.turn.answer .text'), 'one two three');
  await view.close();
});

check('a node that is not ready says why and is asked again; a refusal is shown', async () => {
  const view = await open({ expect: /503|400/ });
  const { page, fake } = view;
  await ready(page);
  fake.refusals.push({ status: 503, message: 'Weights are loading.', headers: { 'retry-after': '1' } });
  const stream = await ask(view, 'hello');
  stream.token('hi');
  stream.end();
  await page.waitForSelector('.badge');
  fake.refusals.push({ status: 400, message: 'temperature must be at most 2' });
  await page.fill('#prompt', 'again');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.fault:text("temperature must be at most 2")');
  await view.close();
});

check('strangers come in only after the sentence was agreed to, once', async () => {
  const view = await open({ expect: /500/ });
  const { page, fake } = view;
  await ready(page);
  await page.check('#modes input[value=boomerang]', { force: true });
  await page.waitForSelector('#consent[open]');
  assert.match(await page.innerText('#consent'), /a determined one can reconstruct most of it/);
  await page.keyboard.press('Escape');
  // The page hears of the closed dialog a moment later.
  await until(page, () => document.querySelector('#modes input[value=local]').checked);
  await page.check('#modes input[value=boomerang]', { force: true });
  fake.refusals.push({ status: 500, message: 'The disk is full.' });
  await page.click('#consent button[value=yes]');
  await page.waitForSelector('#consent-fault:text("The disk is full.")');
  await shot(page, 'consent');
  await page.click('#consent button[value=yes]');
  await until(page, () => document.querySelector('#sentence').textContent.includes('reconstruct most of it'));
  assert.deepEqual(fake.state.modes.map(({ agreed }) => agreed), [undefined, undefined, true, false], 'the node keeps it');
  await page.check('#modes input[value=local]', { force: true });
  await page.check('#modes input[value=boomerang]', { force: true });
  assert.equal(await page.locator('#consent[open]').count(), 0);
  assert.equal((await ask(view, 'hello')).body.mode, 'boomerang');
  // The word is taken back where it was given.
  await page.click('#revoke');
  await until(page, () => document.querySelector('#modes input[value=local]').checked);
  assert.equal(fake.state.modes[2].agreed, false, 'the node forgot it');
  await until(page, () => document.querySelector('#revoke').hidden);
  await page.check('#modes input[value=boomerang]', { force: true });
  await page.waitForSelector('#consent[open]');
  await view.close();
});

check('the swarm is drawn, and a failover as it happens', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  const stream = await ask(view, 'hello');
  stream.token('one');
  fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
  await page.click('#to-swarm');
  await until(page, () => document.querySelectorAll('#chart .stage').length === 4);
  await until(page, () => document.querySelectorAll('#chart .label').length === 8);
  await until(page, () => document.querySelectorAll('#nodes tr').length === 8);
  assert.equal(await page.locator('#chart .shadow').count(), 1);
  assert.match(await page.innerText('#chart-title'), /answering through 2 peers/);
  assert.match(await page.textContent('#chart .lap-text'), /one lap/);
  const { failover, after } = failedOver(stream.id);
  fake.tell(failover);
  fake.tell({ type: 'node_gone', node: failover.lost, why: 'silent' });
  fake.tell({ type: 'pipeline', pipeline: after });
  await page.waitForSelector('#chart .scar-way', { state: 'attached' });
  await until(page, () => document.querySelector('#chart .label.gone'));
  assert.match(await page.innerText('#failovers li'), /3f2a91c0 went silent at token 40; d90b7e11 took over layers 4–18 after 312 ms/);
  await shot(page, 'failover');
  assert.equal(await page.innerText('#now-faults'), '1');
  await page.click('.why summary:text("faults survived")');
  assert.match(await page.innerText('.why[open]'), /the same tokens/, 'a figure is explained where one clicks it');
  stream.token(' two');
  stream.end({ faults_survived: 1 });
  await page.click('#to-chat');
  await shown(page, 'one two');
  await page.waitForSelector('.badge');
  assert.match(await page.innerText('.badge summary'), /1 fault survived/);
  await view.close();
});

check('pause and caps reach the node', async () => {
  const view = await open();
  const { page, fake } = view;
  await page.click('#to-swarm');
  await page.click('#pause:enabled');
  await page.waitForSelector('#pause:text("Resume")');
  assert.equal(fake.state.contribution.paused, true);
  await page.fill('#caps [name=threads]', '2');
  await page.keyboard.press('Enter');
  await until(page, () => document.querySelector('#status').textContent.includes('contribution is set') || document.querySelector('#status').textContent.includes('paused'));
  await until(page, () => document.querySelector('#caps [name=threads]').value === '2');
  assert.equal(fake.state.contribution.threads, 2);
  await view.close();
});

check(`${IN_ANSWERS.length} attacks through answers are text`, async () => {
  const view = await open();
  const { page } = view;
  await ready(page);
  const stream = await ask(view, IN_ANSWERS.join('\n'));
  for (const attack of IN_ANSWERS) {
    for (const piece of [attack, `\n\n**${attack}** [${attack}](https://example.org/) # ${attack}\n\n# ${attack}\n\n`]) stream.token(piece);
  }
  stream.end();
  await page.waitForSelector('.badge');
  assert.deepEqual(await page.evaluate(foreign, ['.answer .text', INERT]), []);
  const text = await page.textContent('.answer .text');
  assert.ok(text.includes('<script>alert(1)</script>') && text.includes('<img src=x onerror=alert(1)>'), 'tags stay visible as text');
  await view.close();
});

check(`${ATTACKS.length} attacks through names of models and peers, reasons and errors are text`, async () => {
  const state = swarm();
  const model = state.models[0].id;
  state.nodes = ATTACKS.map((name, i) => ({ ...state.nodes[i % 8], id: `${i}`.padStart(64, '0'), me: i === 0, name, path: name, state: name, class: name, holdings: [{ model, start: 0, end: 32 }] }));
  Object.assign(state, { me: state.nodes[0].id, swarm: ATTACKS[0], reachability: { class: ATTACKS[1], why: ATTACKS[2] } });
  state.modes = state.modes.map((mode, i) => ({ ...mode, sentence: ATTACKS[i], available: false, reason: ATTACKS[i + 4] }));
  state.names = state.nodes.map((node, i) => ({ node: node.id, name: i % 2 ? ATTACKS[i] : '', color: ATTACKS[i] }));
  const view = await open({ fake: { state }, expect: /418/ });
  const { page, fake } = view;
  fake.models = ATTACKS;
  const steps = ATTACKS.flatMap((attack) => ['leased', 'lost', 'took_over', 'replayed', attack].map((step) => ({ at_ms: attack, token: attack, step, node: attack, from: attack, why: attack, start: attack, end: 32, stages: [{ node: attack, start: 0, end: 32 }] })));
  fake.answers = ATTACKS.map((attack) => ({ session: attack, model: attack, mode: attack, finish: attack, tokens: attack, faults: 1, timeline: { began_ms: attack, left_out: attack, steps } }));
  fake.history = () => ({ now_s: 1_700_000_000, days: ATTACKS[0], span_s: ATTACKS[1], samples: ATTACKS.map((attack) => ({ at_s: attack, seconds: attack, answers: attack, tokens: attack, tok_s: attack, rtt_ms: attack, given: attack, balance: attack })) });
  await ready(page);
  const stream = await ask(view, 'hello');
  await page.click('#to-swarm');
  for (const [i, attack] of ATTACKS.entries()) {
    fake.tell({ type: 'model', model: { id: attack, name: attack, num_layers: 32, file_bytes: 1, holders: [1], complete: false, download: [1, 2] } });
    const stages = [{ node: state.nodes[i].id, start: 0, end: 32, compute_ms: 1, hop_ms: 1 }];
    fake.tell({ type: 'pipeline', pipeline: { ...pipeline(stream.id), session: attack, model: model, mode: attack, stages, standbys: stages } });
    fake.tell({ type: 'failover', at_ms: attack, session: attack, epoch: 1, lost: attack, replacement: state.nodes[i].id, layers: [0, 32], position: 1, stall_ms: 1, why: attack });
  }
  await until(page, (n) => document.querySelectorAll('#failovers li').length >= n, ATTACKS.length);
  await until(page, (n) => document.querySelectorAll('#models li').length >= n, ATTACKS.length);
  await page.waitForSelector('#replay-steps li');
  for (let i = 0; i < 6; i += 1) await page.click('#replay-next');
  await page.click('#nodes button >> nth=0');
  await page.waitForSelector('#naming[open]');
  await page.keyboard.press('Escape');
  await page.click('#to-chat');
  stream.end({ computed_by: ATTACKS, checked_by: ATTACKS });
  fake.refusals.push(...ATTACKS.slice(0, 3).map((message) => ({ status: 418, message })));
  for (let i = 0; i < 3; i += 1) {
    await page.fill('#prompt', 'again');
    await page.keyboard.press('Enter');
    await until(page, (n) => document.querySelectorAll('.fault[role=alert]:not([hidden])').length > n, i);
  }
  assert.equal(await page.locator('script, iframe, img, object, embed, link, base, form[action], meta[http-equiv], style').count(), 4, 'the two scripts, the style sheet and the icon of the page itself');
  assert.deepEqual(await page.evaluate(() => [...document.querySelectorAll('*')].flatMap((node) => [...node.attributes].map((attribute) => attribute.name).filter((name) => name.startsWith('on')))), []);
  await view.close();
});

for (const scheme of ['light', 'dark']) {
  check(`nothing serious to say for the accessibility check, ${scheme}`, async () => {
    for (const size of [{ width: 1300, height: 860 }, { width: 360, height: 740 }]) {
      const view = await open({ context: { colorScheme: scheme, viewport: size, bypassCSP: true } });
      const { page, fake } = view;
      await ready(page);
      const look = async (place) => {
        const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
        const grave = violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(' ')).slice(0, 5).join(', ')}`);
        assert.deepEqual(grave, [], `${place}, ${size.width} pixels`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${place}: nothing is wider than ${size.width} pixels`);
      };
      await page.evaluate(axe);
      await look('chat, empty');
      await page.check('#modes input[value=open]', { force: true });
      await page.waitForSelector('#consent[open]');
      await look('the question before strangers compute');
      await page.keyboard.press('Escape');
      await until(page, () => document.querySelector('#modes input[value=local]').checked);
      const stream = await ask(view, 'hello');
      fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
      stream.token('# One\n\nTwo [three](https://example.org/)\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```\ncode\n```\n');
      await page.waitForSelector('.answer pre');
      await look('chat, streaming');
      const { failover, after } = failedOver(stream.id);
      fake.tell(failover);
      fake.tell({ type: 'pipeline', pipeline: after });
      await page.waitForSelector('#course.alarm');
      await look('chat, failover');
      stream.end({ faults_survived: 1, checked_by: [], checked_tokens: 0, checking: true });
      await page.click('.badge summary');
      fake.tell({ type: 'checked', verdict: { session: 's', request: stream.id, checking: false, checked_by: [], checked_tokens: 0, convicted: ['3f2a91c0'], wrong_from: 2 } });
      await until(page, () => document.querySelector('.badge summary').innerText.includes('cheat found'));
      await look('chat, done');
      await page.click('#to-swarm');
      await page.waitForSelector('#chart .scar', { state: 'attached' });
      await look('swarm');
      await shot(page, `swarm-${scheme}-${size.width}`);
      await view.close();
    }
  });
}

check('by keyboard alone: skip, choose, ask, stop, turn to the swarm', async () => {
  const view = await open();
  const { page } = view;
  await ready(page);
  assert.equal(await page.evaluate(() => document.querySelector('a, button, input, select, textarea, [tabindex]').className), 'skip');
  await page.focus('.skip');
  await page.keyboard.press('Enter');
  await until(page, () => document.activeElement.id === 'prompt');
  await page.keyboard.type('first line');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('second line');
  const begun = new Promise((resolve) => (view.fake.begun = resolve));
  await page.keyboard.press('Enter');
  const stream = await begun;
  assert.equal(stream.body.messages[0].content, 'first line\nsecond line');
  stream.token('x');
  await shown(page, 'x');
  await page.keyboard.press('Escape');
  await page.waitForSelector('.badge');
  for (let i = 0; i < 3; i += 1) await page.keyboard.press('Tab');
  await page.focus('#modes input:checked');
  await page.keyboard.press('ArrowRight');
  assert.ok(await page.isChecked('#modes input[value=trusted]'));
  await page.focus('#to-swarm');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#swarm:not([hidden])');
  await view.close();
});

check('light, small and still: page weight and layout shift', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  const files = readdirSync(WEB).filter((file) => !OTHERS.includes(file));
  const weigh = (some) => some.reduce((sum, file) => sum + statSync(join(WEB, file)).size, 0);
  const weight = weigh(files);
  assert.ok(weight < MAX_PAGE_BYTES, `${weight} bytes`);
  const paint = await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime);
  assert.ok(paint > 0, 'the browser tells when it painted first');
  console.log(`first paint after ${paint.toFixed(0)} ms, the page of ${weight} bytes`);
  const used = () => new Set(fake.requests.map((request) => request.path).filter((path) => !/^\/(?:swarm$|swarm\/|v1\/|conversations|presets|library)/.test(path)));
  const stream = await ask(view, 'hello');
  fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
  for (let i = 0; i < 60; i += 1) stream.token('word '.repeat(12) + (i % 5 ? '' : '\n\n'));
  assert.ok(![...fake.requests].some(({ path }) => path.startsWith('/lib-')), 'libraries come when they are needed');
  const first = weigh([...used()].map((path) => path.slice(1) || 'index.html'));
  assert.ok(first < MAX_FIRST_BYTES, `${first} bytes at first`);
  stream.token('\n\n```js\nlet a = 1;\n```\n\n$a^2$\n');
  stream.end();
  await page.waitForSelector('.badge');
  await page.waitForSelector('.c-keyword');
  await page.waitForSelector('.formula math', { state: 'attached' });
  assert.ok(!fake.requests.some(({ path }) => path === '/records.js'), 'records come with the page that shows them');
  await page.click('#to-swarm');
  await page.waitForSelector('#nodes button');
  assert.deepEqual([...used()].sort(), ['/', ...files.filter((file) => file !== 'index.html').map((file) => `/${file}`)].sort(), 'every file is used, and no other');
  const shifts = await page.evaluate(() => window.shifts);
  await page.goto(`${view.origin}/#swarm`);
  await page.reload();
  await page.waitForSelector('#swarm.known #chart .label', { state: 'attached' });
  await ready(page);
  shifts.push(...(await page.evaluate(() => window.shifts)));
  const shift = shifts.reduce((sum, { value }) => sum + value, 0);
  console.log(`page weight ${weight} bytes, ${first} of them at first, layout shift ${shift.toFixed(4)}`);
  assert.ok(shift <= MAX_SHIFT, `layout shift ${JSON.stringify(shifts)}`);
  await view.close();
});

check('a large hostile answer neither stalls nor swells the page', async () => {
  const view = await open();
  const { page } = view;
  await ready(page);
  const fence = await ask(view, 'code');
  fence.token(`\`\`\`ini\n${'a'.repeat(40_000)}\n\`\`\`\n\n\`\`\`ini\n${'a'.repeat(15_000)}\n\`\`\`\n\n\`\`\`ini\nname = "fox"\n\`\`\`\n`);
  fence.end();
  await page.waitForSelector('pre [class^=c-]');
  assert.deepEqual(await page.evaluate(() => [...document.querySelectorAll('pre')].map((one) => one.querySelector('[class^=c-]') !== null)), [false, false, true], 'what would take long is shown plain');
  await page.click('#fresh');
  for (const piece of ['$', '$a', '$x$ ', '\\(', '$$', '[', '*a ', '`', '> ', '- '.repeat(40), '<', '![', '_a_', '|-', '#'.repeat(6) + ' ']) {
    const stream = await ask(view, 'go');
    stream.token(piece.repeat(60_000 / piece.length));
    stream.end();
    await page.waitForSelector('.turn.answer:last-child .badge');
    await page.click('#fresh');
  }
  await view.close();
});

check('a real node: the page opens, a prompt is answered, the swarm is drawn', async () => {
  const view = await open({ url: process.env.SHOAL_URL });
  const { page } = view;
  await ready(page);
  await page.fill('#prompt', 'Tell me a story about a fox and a lantern');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.turn.answer .text:not(:empty)');
  await shot(page, 'real-chat');
  await page.waitForSelector('.badge', { timeout: 120_000 });
  assert.match(await page.innerText('.badge summary'), /tok\/s/);
  await page.click('#to-swarm');
  await page.waitForSelector('#chart .label');
  await shot(page, 'real-swarm');
  await view.close();
}, { skip: !process.env.SHOAL_URL && 'SHOAL_URL is not set' });
