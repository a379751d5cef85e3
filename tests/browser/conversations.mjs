// What the node keeps of conversations, in a real browser: reload, list, search, names, export, branches, presets, attached
// texts and very long conversations. How it is run: run.mjs.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

import { check, open, ready, serious, shot, until } from './driver.mjs';
import { pipeline } from './fake.mjs';
import { stale } from './libraries.mjs';

const next = (view) => new Promise((resolve) => (view.fake.begun = resolve));

/** Asks, and waits for the fake node's side of it. */
async function ask(view, text) {
  const begun = next(view);
  await view.page.fill('#prompt', text);
  await view.page.keyboard.press('Enter');
  return begun;
}

/** Ends an answer and waits until the node has it. */
async function answer({ fake, page }, stream, text) {
  stream.token(text);
  stream.end();
  await until(page, () => document.querySelector('.turn.answer:last-child .badge') && !document.body.classList.contains('answering'));
  const until_ = Date.now() + 60_000;
  while (![...fake.kept.values()].some((one) => one.messages.some((message) => message.content === text && message.about.outcome))) {
    assert.ok(Date.now() < until_, 'the answer is kept');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
const texts = (page) => page.locator('.question, .answer .text').allInnerTexts();
const listed = (page) => page.locator('.kept .title span:first-child').allInnerTexts();

check('a conversation is kept, found, named, exported and deleted', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  await answer(view, await ask(view, 'Why do lighthouses blink?'), 'So that **boats** know which one it is.');
  assert.match(page.url(), /#chat\/[0-9a-f]{32}$/);
  await page.reload();
  await ready(page);
  await page.waitForSelector('.badge');
  assert.deepEqual(await texts(page), ['Why do lighthouses blink?', 'So that boats know which one it is.']);
  assert.match(await page.innerText('.badge summary'), /2 peers · checked by d90b7e11 · 9\.6 tok\/s/, 'its account is kept too');
  await page.click('#fresh');
  await answer(view, await ask(view, 'Name an otter'), 'Lutra.');
  assert.deepEqual(await listed(page), ['Name an otter', 'Why do lighthouses blink?']);
  await shot(page, 'conversations');
  await page.fill('#history-words', 'BOATS which');
  await until(page, () => document.querySelectorAll('.kept').length === 1);
  assert.match(await page.innerText('.kept .excerpt'), /boats/);
  await page.click('.kept .title');
  await page.waitForSelector('.answer strong:text("boats")');
  await page.fill('#history-words', '');
  await until(page, () => document.querySelectorAll('.kept').length === 2);
  await page.click('.kept.open .more summary');
  await page.click('.kept.open button:text("Rename")');
  await page.keyboard.type('Lights');
  await page.keyboard.press('Enter');
  await until(page, () => [...document.querySelectorAll('.kept .title')].some((one) => one.innerText === 'Lights'));
  await page.click('.kept.open .more summary');
  const download = page.waitForEvent('download');
  await page.click('.kept.open button:text("Markdown")');
  const file = await download;
  assert.equal(file.suggestedFilename(), 'lights.md');
  assert.equal(readFileSync(await file.path(), 'utf8'), '# Lights\n\n## You\n\nWhy do lighthouses blink?\n\n## Answer\n\nSo that **boats** know which one it is.\n');
  await page.click('.kept.open button:text("Delete")');
  assert.equal(fake.kept.size, 2, 'one click deletes nothing');
  await page.click('.kept.open button:text("Delete for good")');
  await until(page, () => document.querySelectorAll('.kept').length === 1 && document.querySelectorAll('.turn').length === 0);
  assert.deepEqual([...fake.kept.values()].map(({ title }) => title), ['Name an otter']);
  await view.close();
});

check('an answer under way goes on after a reload, with the same seed', async () => {
  const view = await open({ expect: /ERR_|net::/ });
  const { page } = view;
  await ready(page);
  const first = await ask(view, 'Count');
  first.token('one two');
  await page.waitForSelector('.answer p:text("one two")');
  const begun = next(view);
  await page.reload();
  const again = await begun;
  const { seed, mode, model, messages } = first.body;
  assert.deepEqual([again.body.seed, again.body.mode, again.body.model, again.body.messages], [seed, mode, model, messages]);
  await ready(page);
  await answer(view, again, 'one two three');
  assert.deepEqual(await texts(page), ['Count', 'one two three']);
  // A tab that is opened later asks for nothing by itself.
  await ask(view, 'More').then((stream) => stream.token('four'));
  await page.waitForSelector('.answer p:text("four")');
  const other = await view.context.newPage().catch(() => null);
  view.wrong.length = 0;
  const asked = view.fake.streams.length;
  await other.goto(`${view.origin}/#token=secret-token`);
  await ready(other);
  await other.click('.kept .title');
  await other.waitForSelector('.note:text("interrupted")');
  assert.equal(view.fake.streams.length, asked);
  await other.close();
  await view.close();
});

check('an edited question and another answer are branches that stay', async () => {
  const view = await open();
  const { page } = view;
  await ready(page);
  await answer(view, await ask(view, 'one'), 'first');
  await answer(view, await ask(view, 'two'), 'second');
  let begun = next(view);
  await page.click('.turn.asked:first-child button:text("Edit")');
  await page.fill('.edit textarea', 'uno');
  await page.keyboard.press('Control+Enter');
  await answer(view, await begun, 'primo');
  begun = next(view);
  await page.click('.turn.answer:last-child button:text("Regenerate")');
  await answer(view, await begun, 'primissimo');
  assert.deepEqual(await texts(page), ['uno', 'primissimo']);
  assert.deepEqual(await page.locator('.branches').allInnerTexts().then((all) => all.map((text) => text.replace(/\s/g, ''))), ['‹2/2›', '‹2/2›']);
  await shot(page, 'branches');
  await page.click('.turn.answer [aria-label="Earlier branch"]');
  await until(page, () => document.querySelector('.answer .text').innerText === 'primo');
  await page.focus('.turn.asked [aria-label="Earlier branch"]');
  await page.keyboard.press('Enter');
  await until(page, () => document.querySelectorAll('.turn').length === 4);
  assert.deepEqual(await texts(page), ['one', 'first', 'two', 'second']);
  await until(page, () => document.activeElement.getAttribute('aria-label') === 'Later branch');
  await page.reload();
  await ready(page);
  await until(page, () => document.querySelectorAll('.turn').length === 4);
  const stream = await ask(view, 'three');
  assert.deepEqual(stream.body.messages.map(({ content }) => content), ['one', 'first', 'two', 'second', 'three']);
  await answer(view, stream, 'third');
  await view.close();
});

check('instructions, presets and attached texts are sent and kept', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  await page.click('#sampling summary');
  await page.fill('#system', 'Answer like a sailor.');
  await page.fill('#sampling [name=temperature]', '0.5');
  await page.fill('#preset-name', 'Sailor');
  await page.click('#preset-keep');
  await until(page, () => document.querySelector('#preset').selectedOptions[0].text === 'Sailor');
  assert.deepEqual(fake.presets, [{ name: 'Sailor', system: 'Answer like a sailor.', sampling: { temperature: 0.5 } }]);
  await shot(page, 'settings');
  await page.keyboard.press('Escape');
  const text = '# Log\n```\nfog\n```\n';
  await page.setInputFiles('#file', [{ name: 'log.md', mimeType: 'text/markdown', buffer: Buffer.from(text) }, { name: 'noise.bin', mimeType: 'x/y', buffer: Buffer.from([255, 0, 254]) }]);
  await page.waitForSelector('#chips .fault:text("noise.bin is no text")');
  assert.match(await page.innerText('#chips .chip'), /log\.md/);
  const stream = await ask(view, 'What was the weather?');
  assert.deepEqual(stream.body.messages, [
    { role: 'system', content: 'Answer like a sailor.' },
    { role: 'user', content: `log.md\n\`\`\`\`\n${text}\n\`\`\`\`\n\nWhat was the weather?` },
  ]);
  assert.equal(stream.body.temperature, 0.5);
  await answer(view, stream, 'Fog.');
  assert.match(await page.innerText('.asked .chip'), /log\.md/);
  await page.reload();
  await ready(page);
  await page.waitForSelector('.asked .chip');
  await until(page, () => document.querySelector('#system').value === 'Answer like a sailor.' && document.querySelector('#preset').selectedOptions[0].text === 'Sailor');
  await page.click('#sampling summary');
  await page.click('#preset-drop');
  await until(page, () => document.querySelector('#preset').options.length === 1);
  assert.deepEqual(fake.presets, []);
  await view.close();
});

check('code is colored, formulas are drawn, and both stay text where they are neither', async () => {
  const view = await open();
  const { page } = view;
  await ready(page);
  const stream = await ask(view, 'Show me');
  const code = 'fn main() {\n    let x = "<b>"; // note\n}';
  stream.token(`\`\`\`rust\n${code}`);
  await page.waitForSelector('pre code');
  assert.equal(await page.locator('.c-keyword').count(), 0, 'what is not whole is not colored');
  stream.token('\n```\n\nIt costs $5 and $6, and $E = mc^2$ or \\(\\frac{a}{b}\\) holds; $\\nosuch{x}$ does not.\n\n$$\n\\sum_{i=1}^n i\n= \\frac{n(n+1)}{2}\n$$\n\n```nosuch\nplain\n```\n');
  stream.end();
  await page.waitForSelector('.badge');
  await page.waitForSelector('.c-keyword:text("let")');
  assert.equal(await page.innerText('pre code'), code);
  await until(page, () => document.querySelectorAll('.formula math').length === 3);
  assert.equal(await page.locator('.formula.wide math[display=block]').count(), 1);
  assert.match(await page.innerText('.text > p'), /It costs \$5 and \$6, and .* holds; \$\\nosuch\{x\}\$ does not\./s);
  assert.equal(await page.locator('.formula [style], .formula [href], .formula [class]').count(), 0);
  await page.click('#fresh');
  const far = await ask(view, 'Far');
  far.token('$a\\raisebox{-90em}{b}$ $\\hspace{-80em}c$ $\\kern{-70em}d$ $x\\quad y$');
  far.end();
  await page.waitForSelector('.badge');
  await until(page, () => document.querySelectorAll('.formula math').length === 4);
  const drawn = await page.evaluate(() => [...document.querySelectorAll('.formula')].map((one) => one.innerHTML.replace(/alttext="[^"]*"/, '')));
  assert.ok(!drawn.some((one) => /[789]0em/.test(one)), drawn.join());
  assert.match(drawn[3], /="1em"/, 'a space of usual length stays');
  await shot(page, 'formulas');
  await view.close();
});

check('the libraries of the page are what their packages hold', () => {
  assert.deepEqual(stale(), [], 'run node libraries.mjs');
});

/** A conversation of so many messages, as the node keeps it. */
function long(messages) {
  const all = Array.from({ length: messages }, (_, i) => ({ id: `m${i}`, parent: i ? `m${i - 1}` : null, role: i % 2 ? 'assistant' : 'user', content: i % 2 ? `Answer **${i}**\n\n- one\n- two` : `Question ${i}`, files: [], about: {} }));
  return { id: 'ab'.repeat(16), title: 'A long one', named: false, created_ms: 1, changed_ms: 2, system: '', sampling: {}, leaf: `m${messages - 1}`, messages: all };
}

/** Scrolls from the top to the end in 120 frames; the times between them, in ms. Runs in the page. */
function scrolled() {
  return new Promise((done) => {
    const box = document.querySelector('#scroll');
    const step = (box.scrollHeight - box.clientHeight) / 120;
    const times = [];
    const frame = (now) => {
      times.push(now);
      box.scrollTop = step * times.length;
      if (times.length <= 120) requestAnimationFrame(frame);
      else done(times.slice(1).map((time, i) => time - times[i]));
    };
    requestAnimationFrame(frame);
  });
}

check('a conversation of 1,000 messages opens at its end and is built as one scrolls', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  fake.kept.set('ab'.repeat(16), long(1000));
  await page.goto(`${view.origin}/#chat/${'ab'.repeat(16)}`);
  await page.waitForSelector('.turn:last-child strong:text("999")');
  assert.ok((await page.locator('.turn').count()) < 200, 'most of it is not built');
  assert.ok(await page.evaluate(() => { const box = document.querySelector('#scroll'); return box.scrollHeight - box.scrollTop - box.clientHeight < 4; }), 'its end is shown');
  // What is read stays in its place while what comes before it is built.
  const first = await page.evaluate(() => document.querySelector('.turn').textContent);
  await page.evaluate(() => (document.querySelector('#scroll').scrollTop = 0));
  await until(page, (text) => document.querySelector('.turn').textContent !== text, first);
  for (let i = 0; i < 60 && (await page.locator('.turn').count()) < 1000; i += 1) {
    const before = await page.locator('.turn').count();
    await page.evaluate(() => (document.querySelector('#scroll').scrollTop = 0));
    await until(page, (n) => document.querySelectorAll('.turn').length > n, before);
  }
  assert.equal(await page.textContent('.turn:first-child .question'), 'Question 0');
  const intervals = await page.evaluate(scrolled);
  assert.ok(intervals.length >= 100 && (await page.evaluate(() => document.querySelector('#scroll').scrollTop)) > 0);
  const by = intervals.sort((a, b) => a - b);
  const at = (share) => by[Math.floor(share * (by.length - 1))].toFixed(1);
  console.log(`scrolling 1,000 messages: a frame every ${at(0.5)} ms, one in twenty over ${at(0.95)}, the longest ${at(1)}`);
  const stream = await ask(view, 'and now?');
  assert.equal(stream.body.messages.length, 1001);
  stream.end();
  await view.close();
});

check('a node that keeps nothing says so, and the conversation goes on in the tab', async () => {
  const view = await open({ expect: /404/ });
  const { page, fake } = view;
  fake.keepsNot = true;
  await page.reload();
  await ready(page);
  await page.waitForSelector('#kept-note:text("gone when you close it")');
  const stream = await ask(view, 'hello');
  stream.token('hi');
  stream.end();
  await page.waitForSelector('.badge');
  await page.waitForSelector('#history-note.fault:text("keeps no conversations")');
  fake.keepsNot = false;
  await answer(view, await ask(view, 'and again?'), 'yes');
  const [kept] = fake.kept.values();
  assert.deepEqual(kept.messages.map(({ content }) => content), ['hello', 'hi', 'and again?', 'yes'], 'what it missed comes with the next change');
  await view.close();
});

check('what the node missed is sent with the next message, whatever was kept in between', async () => {
  const view = await open({ expect: /404/ });
  const { page, fake } = view;
  await ready(page);
  await page.click('#sampling summary');
  await page.fill('#system', 'Be brief.');
  await page.keyboard.press('Escape');
  await answer(view, await ask(view, 'one'), 'first');
  fake.keepsNot = true;
  const stream = await ask(view, 'two');
  stream.token('second');
  stream.end();
  await page.waitForSelector('.turn.answer:last-child .badge');
  await page.waitForSelector('#history-note.fault:text("in this tab only")');
  fake.keepsNot = false;
  await page.click('.kept.open .more summary');
  await page.click('.kept.open button:text("Rename")');
  await page.keyboard.type('Lights');
  await page.keyboard.press('Enter');
  await until(page, () => document.querySelector('.kept .title').innerText === 'Lights');
  await page.waitForSelector('#history-note.fault:text("not kept whole")');
  // Another conversation has other settings, which are not this one's.
  fake.kept.set('ab'.repeat(16), long(2));
  const third = await ask(view, 'three');
  await page.reload({ waitUntil: 'commit' }).catch(() => {});
  await ready(page);
  third.end();
  const [kept] = [...fake.kept.values()].filter(({ title }) => title === 'Lights');
  assert.deepEqual(kept.messages.filter(({ role }) => role === 'user').map(({ content }) => content), ['one', 'two', 'three']);
  assert.equal(kept.messages[3].content, 'second');
  assert.equal(kept.system, 'Be brief.');
  assert.equal(kept.messages.at(-1).about.asked.system, undefined, 'instructions are kept once');
  await view.close();
});

check('a deletion that fails is said, and the conversation goes on being kept', async () => {
  const view = await open({ expect: /500/ });
  const { page, fake } = view;
  await ready(page);
  const stream = await ask(view, 'one');
  // A long thought whose cut falls within a character is text all the same.
  stream.thought(`${'x'.repeat(5_999)}\u{1f98a}`);
  await answer(view, stream, 'first');
  const [kept] = fake.kept.values();
  assert.ok(kept.messages[1].about.thought.isWellFormed());
  fake.breaks = 'DELETE';
  await page.click('.kept.open .more summary');
  await page.click('.kept.open button:text("Delete")');
  await page.click('.kept.open button:text("Delete for good")');
  await page.waitForSelector('#history-note.fault:text("is not deleted: the disk is full")');
  assert.equal(await page.locator('.turn').count(), 2, 'it is still shown');
  fake.breaks = undefined;
  await answer(view, await ask(view, 'two'), 'second');
  assert.deepEqual(fake.kept.get(kept.id).messages.map(({ content }) => content), ['one', 'first', 'two', 'second']);
  await view.close();
});

check('presets of other tabs stay, and none is lost when they cannot be read', async () => {
  const view = await open({ expect: /500/ });
  const { page, fake } = view;
  await ready(page);
  const other = { name: 'Other', system: 'Rhyme.', sampling: {} };
  fake.presets = [other];
  const keep = async (name) => {
    await page.fill('#system', name);
    await page.fill('#preset-name', name);
    await page.click('#preset-keep');
  };
  await page.click('#sampling summary');
  await keep('Sailor');
  await until(page, () => document.querySelector('#preset').selectedOptions[0].text === 'Sailor');
  assert.deepEqual(fake.presets.map(({ name }) => name), ['Other', 'Sailor']);
  fake.breaks = 'GET';
  await keep('Cook');
  await page.waitForSelector('#history-note.fault:text("the disk is full")', { state: 'attached' });
  assert.deepEqual(fake.presets.map(({ name }) => name), ['Other', 'Sailor']);
  assert.equal(await page.inputValue('#preset-name'), 'Cook', 'what was typed stays');
  fake.breaks = undefined;
  fake.presets = [fake.presets[1], other];
  await page.selectOption('#preset', { label: 'Sailor' });
  await page.click('#preset-drop');
  await until(page, () => document.querySelector('#preset').options.length === 2);
  assert.deepEqual(fake.presets, [other], 'the one of that name, wherever it stands');
  await view.close();
});

check('models are listed with size and fit, found, fetched, stopped and removed', async () => {
  const view = await open();
  const { page, fake } = view;
  await ready(page);
  await page.click('#to-models');
  await page.waitForSelector('#library-here li:nth-child(2)');
  assert.match(await page.innerText('#library-here'), /heron-3b\s+600 MB of 2\.1 GB here\s+needs about 2\.6 GB/);
  await page.fill('#library-words', 'nothing');
  await page.waitForSelector('#library-none:text("No catalog")');
  await page.fill('#library-words', 'smol');
  await page.waitForSelector('#library-found li');
  assert.match(await page.innerText('#library-found'), /SmolLM2 135M Instruct, 98\.4 MB, Apache-2\.0/, 'size and license are said first');
  for (const whole of [false, true]) {
    const begun = new Promise((resolve) => (fake.pulled = resolve));
    await page.click('[aria-label="Fetch 98.4 MB of smollm2"]');
    const pull = await begun;
    pull.tell({ event: 'moved', source: 'mirror', done_bytes: 41_000_000 });
    await page.waitForSelector('.pull :text("41.0 MB of 98.4 MB")');
    assert.equal(await page.evaluate(() => document.querySelector('.pull progress').value), 41_000_000);
    await shot(page, 'models');
    if (whole) {
      fake.library[2].here_bytes = fake.library[2].bytes;
      fake.library[2].removable = true;
      pull.tell({ event: 'done', name: 'smollm2' });
      pull.end();
    } else {
      const stopped = new Promise((resolve) => (fake.stopped = resolve));
      await page.click('.pull button:text("Stop")');
      await stopped;
      await page.waitForSelector('[aria-label="Fetch 98.4 MB of smollm2"]');
    }
  }
  await page.waitForSelector('#library-found :text("on this machine")');
  await page.click('[aria-label="Remove smollm2"]');
  assert.equal(fake.library.length, 3, 'one click removes nothing');
  await page.click('[aria-label="Remove for good: smollm2"]');
  await until(page, () => document.querySelectorAll('#library-here li').length === 2);
  await view.close();
});

for (const scheme of ['light', 'dark']) {
  check(`nothing serious to say about the list, branches and settings, ${scheme}`, async () => {
    for (const size of [{ width: 1300, height: 860 }, { width: 390, height: 780 }]) {
      const view = await open({ context: { colorScheme: scheme, viewport: size, bypassCSP: true } });
      const { page, fake } = view;
      await ready(page);
      const look = async (place) => {
        await shot(page, `kept-${place}-${scheme}-${size.width}`);
        assert.deepEqual(await serious(page), [], `${place}, ${size.width} pixels`);
        assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${place}: nothing is wider than ${size.width} pixels`);
      };
      fake.kept.set('ab'.repeat(16), long(6));
      await answer(view, await ask(view, 'What is a shoal?'), 'Many fish that swim as one.');
      const begun = next(view);
      await page.click('.turn.answer:last-child button:text("Regenerate")');
      const stream = await begun;
      fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
      await answer(view, stream, 'Fish, together. Or sand under shallow water: `the chart` says which.');
      await look('branches');
      if (size.width < 800) {
        await page.click('#history-toggle');
        const small = await page.evaluate(() => [...document.querySelectorAll('.kept .title, .more summary, #history-close')].map((one) => one.getBoundingClientRect().height).filter((height) => height < 36));
        assert.deepEqual(small, [], 'a thumb can hit them');
      }
      await page.click('.kept.open .more summary');
      await look('list');
      await page.keyboard.press('Escape');
      if (size.width < 800) assert.ok(await page.isHidden('#history'), 'Escape closes what lies over the conversation');
      await page.click('#sampling summary');
      await look('settings');
      await page.keyboard.press('Escape');
      await page.click('#to-models');
      await page.waitForSelector('#library-found li');
      await look('models');
      await view.close();
    }
  });
}
