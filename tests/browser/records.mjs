// What the node keeps of the swarm, on the page: names and colors, other days, answers step by step, invites. How it is run:
// run.mjs.

import assert from 'node:assert/strict';

import { check, open, ready, serious, shot, until } from './driver.mjs';

const attic = 'b'.repeat(64);
const status = (page, text) => until(page, (text) => document.querySelector('#status').textContent.includes(text), text);

/** The page about the swarm, with all that is fetched for it. */
async function look(options) {
  const view = await open(options);
  await ready(view.page);
  await view.page.click('#to-swarm');
  await view.page.waitForSelector('#nodes button');
  await until(view.page, () => document.querySelector('#past-note').textContent && (document.querySelector('#replay-none').textContent || document.querySelector('#replay-steps li')));
  return view;
}

check('a node gets a name and a color by keyboard, everywhere on the page, and loses them again', async () => {
  const view = await look();
  const { page, fake } = view;
  const button = page.locator(`#nodes button[data-node="${attic}"]`);
  await button.focus();
  await page.keyboard.press('Enter');
  await page.waitForSelector('#naming[open]');
  assert.equal(await page.innerText('#naming-node'), attic);
  await page.keyboard.type('Großmutters 机器');
  await page.keyboard.press('Tab');
  for (let i = 0; i < 5; i += 1) await page.keyboard.press('ArrowRight');
  await shot(page, 'naming');
  await page.keyboard.press('Enter');
  await status(page, 'kept');
  assert.deepEqual(fake.state.names, [{ node: attic, name: 'Großmutters 机器', color: 'teal' }]);
  await until(page, (attic) => document.querySelector(`#nodes button[data-node="${attic}"]`)?.innerText.includes('Großmutters'), attic);
  await until(page, (attic) => document.activeElement.dataset.node === attic, attic);
  assert.ok(await page.locator('#nodes .ring.teal').count());
  assert.match(await page.textContent('#chart .label:has(.teal) .name'), /^Großmutters/);
  await page.reload();
  await page.waitForSelector(`#nodes button[data-node="${attic}"]:has(.teal)`);
  await button.click();
  assert.equal(await page.inputValue('#naming-name'), 'Großmutters 机器');
  assert.ok(await page.isChecked('#naming-colors input[value=teal]'));
  fake.refusals.push({ status: 400, message: '512 nodes have a name already' });
  await page.fill('#naming-name', 'x');
  view.wrong.length = 0;
  await page.keyboard.press('Enter');
  await until(page, () => document.querySelector('#naming-fault').textContent.startsWith('512'));
  view.wrong.splice(0, view.wrong.length, ...view.wrong.filter((one) => !/400/.test(one)));
  await page.click('#naming-forget');
  await until(page, (attic) => document.querySelector(`#nodes button[data-node="${attic}"]`).innerText.trim() === 'attic', attic);
  assert.deepEqual(fake.state.names, []);
  await view.close();
});

check('other days are plotted with axes, gaps and words; nothing is drawn before there is anything', async () => {
  const view = await look();
  const { page, fake } = view;
  await page.waitForSelector('#past-plots .plot path');
  assert.equal(await page.locator('#past-plots figure').count(), 5);
  const plots = await page.evaluate(() => [...document.querySelectorAll('#past-plots figure')].map((figure) => ({ all: figure.querySelector('.plot-all').innerText, told: figure.querySelector('svg').getAttribute('aria-label'), lines: figure.querySelectorAll('.plot-line').length, bars: figure.querySelectorAll('.plot-bar').length, axis: [...figure.querySelectorAll('.plot-text')].map((text) => text.textContent) })));
  assert.ok(plots.every(({ axis }) => axis.includes('0') || axis.includes('0.0') || axis.some((text) => /^0/.test(text))), JSON.stringify(plots));
  assert.ok(plots[0].lines >= 1 && plots[1].lines >= 1 && plots[2].bars > 0 && plots[3].bars > 0, JSON.stringify(plots));
  assert.match(plots[0].told, /tokens per second: .*, at most 10/);
  assert.match(await page.innerText('#past-note'), /The node ran \d+ hours/);
  const [why] = await page.locator('#past-plots summary').all();
  await why.click();
  await page.waitForSelector('#past-plots details[open] span');
  await why.click();
  for (const days of ['7', '30']) {
    await page.click(`#past-days label:has([value="${days}"])`);
    await until(page, (days) => performance.getEntriesByType('resource').some(({ name }) => name.endsWith(`days=${days}`)), days);
    await until(page, () => document.querySelector('#past-plots .plot-bar'));
    await shot(page, `past-${days}`);
  }
  // Nothing at all, and a node that only stood by.
  fake.history = (days) => ({ now_s: 1_700_000_000, days, span_s: 300 * days, samples: [] });
  await page.click('#past-days label:has([value="1"])');
  await until(page, () => document.querySelector('#past-note').textContent.startsWith('Nothing yet'));
  assert.ok(await page.isHidden('#past-plots'));
  const idle = { seconds: 300, answers: 0, tokens: 0, tok_s: null, faults: 0, peers: 0, rtt_ms: null, given: 0, balance: 0 };
  fake.history = (days) => ({ now_s: 1_700_000_000, days, span_s: 300 * days, samples: [{ at_s: 1_699_999_200, ...idle }, { at_s: 1_699_999_500, ...idle }] });
  await page.focus('#past-days input:checked');
  await page.keyboard.press('ArrowRight');
  await until(page, () => document.querySelector('#past-plots .plot-all')?.innerText === 'idle' && !document.querySelector('#past-plots').hidden);
  assert.deepEqual(await page.locator('#past-plots .plot-none').allTextContents(), ['idle', 'no peers']);
  assert.equal(await page.locator('#past-plots .plot-bar').count(), 0);
  await view.close();
});

check('a failover is stepped through by buttons and by keys', async () => {
  const view = await look();
  const { page } = view;
  const told = () => page.innerText('#replay-told');
  assert.match(await page.locator('#replay-answer option:checked').innerText(), /96 tokens, 1 fault survived/, 'the last one that lost a machine is shown first');
  assert.match(await told(), /^All promised to compute: this machine 0–4, 3f2a91c0 4–18/);
  assert.ok(await page.isDisabled('#replay-back'));
  const seen = [];
  for (let i = 0; i < 7; i += 1) {
    await page.click('#replay-next');
    seen.push(await told());
    await shot(page, `replay-${i + 1}`);
  }
  assert.deepEqual(seen.map((text) => /first token|went silent after 40|takes over layers 4–18 from 3f2a91c0|new way|52 positions again|goes on|complete/.exec(text)?.[0]), ['first token', 'went silent after 40', 'takes over layers 4–18 from 3f2a91c0', 'new way', '52 positions again', 'goes on', 'complete']);
  assert.ok(await page.isDisabled('#replay-next'));
  await until(page, () => document.activeElement.id === 'replay-view');
  await page.keyboard.press('Home');
  assert.match(await page.innerText('#replay-where'), /^Step 1 of 8, after 42 ms, 0 tokens/);
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('ArrowRight');
  assert.match(await told(), /went silent/);
  assert.equal(await page.locator('#replay-chart .scar-bar').count(), 1, 'the lost machine is hatched');
  assert.equal(await page.locator('#replay-steps [aria-current=step]').count(), 1);
  await page.keyboard.press('ArrowRight');
  assert.equal(await page.locator('#replay-chart .scar-bar').count(), 0);
  assert.equal(await page.locator('#replay-chart .replay-named').count(), 1, 'the one that takes over is marked');
  await page.keyboard.press('ArrowLeft');
  assert.match(await told(), /went silent/);
  await page.keyboard.press('End');
  assert.match(await told(), /complete/);
  assert.match(await page.innerText('#replay-left'), /2 further steps/);
  // A node that is called otherwise, and one that is not known any more.
  view.fake.state.names = [{ node: 'd'.repeat(64), name: 'cellar', color: 'none' }];
  view.fake.state.nodes = view.fake.state.nodes.filter(({ id }) => id !== 'c'.repeat(64));
  view.fake.tell({ type: 'snapshot', snapshot: view.fake.state });
  await until(page, () => document.querySelector('#replay-steps .took_over').innerText.includes('cellar takes over layers 4–18 from cccccccc.'));
  await page.click('#replay-steps button.went_on');
  assert.match(await told(), /312 ms/);
  await page.selectOption('#replay-answer', { index: 0 });
  assert.match(await page.innerText('#replay-where'), /^Step 1 of 3/);
  await view.close();
});

check('an answer that ends is there to be stepped through', async () => {
  const view = await look();
  const { page, fake } = view;
  const [, failed] = fake.answers;
  fake.answers = [];
  await page.reload();
  await until(page, () => document.querySelector('#replay-none').textContent.startsWith('None yet'));
  assert.ok(await page.isHidden('#replay-view'));
  fake.answers = [failed];
  fake.tell({ type: 'pipeline', pipeline: { session: failed.session, request: 'x', stages: [] } });
  fake.tell({ type: 'pipeline_ended', session: failed.session, why: 'stop' });
  await page.waitForSelector('#replay-steps li');
  await view.close();
});

check('an invite is shown when it is asked for, as command, link and QR code, and hidden again', async () => {
  const view = await look({ context: { permissions: ['clipboard-read', 'clipboard-write'] } });
  const { page, fake } = view;
  assert.ok(!fake.requests.some(({ path }) => path === '/swarm/invite'), 'asked without a click');
  await page.focus('#invite-show');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#invite-qr svg');
  assert.equal(await page.innerText('#invite-command'), `shoal join ${fake.invite.code}`);
  assert.equal(await page.innerText('#invite-link'), `shoal:${fake.invite.code}`);
  // The modules that are drawn are those that were sent.
  const drawn = await page.evaluate(() => {
    const path = document.querySelector('.qr-ink').getAttribute('d');
    const size = Number(document.querySelector('.qr').getAttribute('viewBox').split(' ')[2]);
    const rows = Array.from({ length: size }, () => Array(size).fill('0'));
    for (const [, x, y, run] of path.matchAll(/M(\d+) (\d+)h(\d+)v1h-\d+z/g)) for (let i = 0; i < Number(run); i += 1) rows[y][Number(x) + i] = '1';
    return rows.map((row) => row.join(''));
  });
  assert.deepEqual(drawn.slice(4, -4).map((row) => row.slice(4, -4)), fake.invite.qr);
  assert.ok(drawn.slice(0, 4).every((row) => !row.includes('1')), 'there is a quiet zone');
  await page.click('#invite-copy');
  await status(page, 'Copied');
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), `shoal join ${fake.invite.code}`);
  await page.evaluate(() => document.querySelector('#invite-view').scrollIntoView());
  await shot(page, 'invite');
  await page.click('#invite-show');
  assert.ok(await page.isHidden('#invite-view'));
  assert.equal(await page.textContent('#invite-command'), '', 'the key has left the page');
  fake.invite = { code: '<img src=x onerror=alert(1)>', qr: [] };
  await page.click('#invite-show');
  await until(page, () => !document.querySelector('#invite-fault').hidden);
  await view.close();
});

for (const scheme of ['light', 'dark']) {
  for (const width of [1300, 390]) {
    check(`records at ${width} pixels, ${scheme}: nothing serious for the accessibility check, nothing is cut`, async () => {
      const view = await look({ context: { colorScheme: scheme, viewport: { width, height: 860 }, bypassCSP: true } });
      const { page, fake } = view;
      fake.state.names = [{ node: attic, name: 'Grandmother’s old laptop', color: 'purple' }, { node: 'c'.repeat(64), name: '', color: 'orange' }];
      fake.tell({ type: 'snapshot', snapshot: fake.state });
      await page.click('#invite-show');
      await page.waitForSelector('#invite-qr svg');
      await page.click('#replay-next');
      await page.click('#replay-next');
      await page.waitForSelector('#nodes .purple');
      assert.deepEqual(await serious(page), []);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), 'nothing is wider than the page');
      for (const place of ['chart-title', 'past-title', 'replay-title', 'nodes-title', 'invite-title']) {
        await page.evaluate((place) => document.getElementById(place).scrollIntoView(), place);
        await shot(page, `records-${place}-${scheme}-${width}`);
      }
      await page.click('#nodes button >> nth=1');
      await page.waitForSelector('#naming[open]');
      assert.deepEqual(await serious(page), []);
      await shot(page, `records-naming-${scheme}-${width}`);
      await view.close();
    });
  }
}
