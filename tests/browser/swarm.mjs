// The page on a real swarm: a prompt streams, the node that computes it is killed, the answer goes on, the page tells.
//
//   SHOAL_URL=http://...#token=...      a node of the swarm that asks
//   SHOAL_PIDS={"<node>": pid, ...}     the nodes that compute, by their full names
//
// Run by tests/integration/browser.rs, which starts the processes. `run.mjs` says what is needed.

import assert from 'node:assert/strict';

import { check, open, ready, serious, shot, until } from './driver.mjs';

const PIDS = JSON.parse(process.env.SHOAL_PIDS);
const QUESTION = 'Tell me a long story about a fox who finds a lantern in the snow.';
/** Text as it is read: the page breaks lines where markdown does. */
const words = (text) => text.split(/\s+/).filter(Boolean).join(' ');

check('a node dies in the middle of an answer: the text goes on as it would have, and the page shows it', async () => {
  const view = await open({ url: process.env.SHOAL_URL, context: { bypassCSP: true } });
  const { page } = view;
  await ready(page);
  await until(page, () => document.querySelector('#where').textContent.includes('2 peers'));
  let asked;
  page.on('request', (request) => request.url().endsWith('/v1/chat/completions') && (asked ??= request));
  await page.click('#modes label.boomerang');
  // The node was started with the consent of its owner.
  assert.equal(await page.locator('#consent[open]').count(), 0);
  await page.fill('#prompt', QUESTION);
  await page.keyboard.press('Enter');
  await until(page, () => /through [0-9a-f]{8}/.test(document.querySelector('#course-text').textContent) && document.querySelector('.turn.answer .text')?.innerText.length > 0);
  const short = (await page.innerText('#course-text')).match(/through ([0-9a-f]{8})/)[1];
  const victim = Object.keys(PIDS).find((node) => node.startsWith(short));
  assert.ok(victim, `${short} is one of ${Object.keys(PIDS)}`);
  process.kill(PIDS[victim], 'SIGKILL');
  const before = (await page.innerText('.turn.answer .text')).length;
  await until(page, (before) => document.querySelector('.turn.answer .text').innerText.length > before, before);
  await shot(page, 'swarm-chat');
  await page.waitForSelector('.turn.answer .badge', { timeout: 120_000 });
  const badge = await page.innerText('.turn.answer .badge summary');
  assert.match(badge, /2 peers/, badge);
  assert.match(badge, /1 fault survived/, badge);
  const text = await page.innerText('.turn.answer .text');
  await page.click('.turn.answer .badge summary');
  assert.match(await page.innerText('.turn.answer .badge dl'), new RegExp(`${short} closed its connection at token \\d+; [0-9a-f]{8} took over layers 1–7`));
  await shot(page, 'swarm-badge');

  // The same request again, through the node that is left: the very same text.
  const body = { ...asked.postDataJSON(), stream: false };
  const again = await page.evaluate(async ([body, headers]) => {
    const response = await fetch('/v1/chat/completions', { method: 'POST', headers, body });
    return { status: response.status, body: await response.json() };
  }, [JSON.stringify(body), Object.fromEntries(Object.entries(asked.headers()).filter(([name]) => ['authorization', 'content-type'].includes(name)))]);
  assert.equal(again.status, 200, JSON.stringify(again.body));
  assert.equal(words(text), words(again.body.choices[0].message.content));

  await page.click('#to-swarm');
  await page.waitForSelector('#chart .label');
  assert.match(await page.innerText('#failovers'), new RegExp(`${short} closed its connection`));
  await until(page, (short) => [...document.querySelectorAll('#nodes tr')].some((row) => row.innerText.includes(short) && /gone/.test(row.innerText)), short);
  assert.equal(await page.innerText('#now-faults'), '1');
  await shot(page, 'swarm-page');

  // The same, step by step, and by the name that its owner gives the node that is left.
  const left = Object.keys(PIDS).find((node) => node !== victim);
  await page.click(`#nodes button[data-node="${left}"]`);
  await page.fill('#naming-name', 'attic');
  await page.keyboard.press('Enter');
  await until(page, (left) => document.querySelector(`#nodes button[data-node="${left}"]`)?.innerText.includes('attic'), left);
  await until(page, () => document.querySelectorAll('#replay-steps li').length > 3);
  const steps = await page.locator('#replay-steps li').allInnerTexts();
  const at = (wanted) => steps.findIndex((step) => wanted.test(step));
  const order = [at(/All promised/), at(/first token is there/), at(new RegExp(`${short} closed its connection`)), at(/takes over layers 1–7/), at(/goes on with the same tokens/), at(/complete/)];
  assert.ok(order[0] === 0 && order.every((place, i) => i === 0 || place > order[i - 1]), JSON.stringify([order, steps]));
  await page.focus('#replay-view');
  for (let i = 0; i < order[3]; i += 1) await page.keyboard.press('ArrowRight');
  await until(page, () => document.querySelector('#replay-told').textContent.startsWith('attic takes over'));
  await page.click('#invite-show');
  await page.waitForSelector('.qr-ink');
  await shot(page, 'swarm-records');
  for (const theme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme: theme });
    assert.deepEqual(await serious(page), [], theme);
  }
  await page.click('#to-chat');
  assert.deepEqual(await serious(page), []);
  await view.close();
});

check('pausing stops serving, and the page says so', async () => {
  const view = await open({ url: process.env.SHOAL_URL });
  const { page } = view;
  await ready(page);
  await page.click('#to-swarm');
  await until(page, () => !document.querySelector('#pause').disabled);
  await page.click('#pause');
  await until(page, () => document.querySelector('#give-state').textContent.startsWith('Paused'));
  await page.click('#pause');
  await until(page, () => !document.querySelector('#give-state').textContent.startsWith('Paused'));
  await view.close();
});
