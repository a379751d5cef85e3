// What both scripts of this folder share: Debian's Chromium without a screen, driven by playwright-core, on a page that is
// watched for everything it must not do. Without Chromium or the two packages the script ends here and says so.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import test from 'node:test';

import { Fake } from './fake.mjs';

/** How long anything that must appear may take before the check fails; only a broken page ever waits this long. */
export const PATIENCE_MS = Number(process.env.SHOAL_PATIENCE_MS ?? 60_000);

const chromium = ['SHOAL_CHROMIUM' in process.env && process.env.SHOAL_CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find((path) => path && existsSync(path));
const require = createRequire(import.meta.url);
let driver;
export let axe;
try {
  driver = require('playwright-core').chromium;
  axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
} catch {
  driver = undefined;
}
if (!chromium || !driver) {
  const missing = [!chromium && 'chromium (apt install chromium)', !driver && 'playwright-core and axe-core (npm ci in tests/browser)'].filter(Boolean).join('; ');
  console.log(`skipped: the page is not tested in a browser, missing: ${missing}`);
  process.exit(process.env.SHOAL_BROWSER === 'required' ? 1 : 0);
}

export const browser = await driver.launch({
  handleSIGTERM: false,
  executablePath: chromium,
  args: [...(process.getuid?.() === 0 ? ['--no-sandbox'] : []), ...(process.env.SHOAL_BROWSER_ARGS?.split(' ') ?? []), '--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1', '--disable-background-networking', '--no-first-run'],
});
const fakes = new Set();
// A check that failed left its node open, which would keep this process alive for ever.
test.after(async () => {
  for (const fake of fakes) fake.close();
  await browser.close();
});
/** A check that waits for something that never comes fails instead of hanging. */
export const check = (name, body, options = {}) => test(name, { timeout: 300_000, ...options }, body);

/** A page on a node, and everything it did that it must not do. */
export async function open(options = {}) {
  const fake = options.url ? null : new Fake({ token: 'secret-token', ...options.fake });
  if (fake) fakes.add(fake);
  const address = options.url ?? `${await fake.listen()}${options.ticket ? `#t=${options.ticket}` : `#token=${options.token ?? 'secret-token'}`}`;
  const context = await browser.newContext({ viewport: { width: 1300, height: 860 }, ...options.context });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const wrong = [];
  const origin = new URL(address).origin;
  page.on('console', (message) => ['error', 'warning'].includes(message.type()) && !options.expect?.test(message.text()) && wrong.push(`console: ${message.text()}`));
  page.on('pageerror', (error) => wrong.push(`error: ${error.message}`));
  page.on('dialog', (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  context.on('request', (request) => new URL(request.url()).origin !== origin && !request.url().startsWith('data:') && wrong.push(`request: ${request.url()}`));
  context.on('page', (other) => other !== page && wrong.push('another page opened'));
  await page.addInitScript(() => {
    window.shifts = [];
    new PerformanceObserver((entries) => window.shifts.push(...entries.getEntries().filter((entry) => !entry.hadRecentInput).map((entry) => ({ value: entry.value, of: entry.sources.map((source) => source.node?.id || source.node?.className || source.node?.nodeName).join(' ') })))).observe({ type: 'layout-shift', buffered: true });
  });
  await page.goto(address);
  await page.waitForSelector('#where', { state: 'attached' });
  const close = async () => {
    await context.close();
    fake?.close();
    assert.deepEqual(wrong, []);
  };
  return { fake, page, context, wrong, close, origin };
}

/**
 * Waits until `check` holds in the page. playwright's own waitForFunction builds its check from text, which the policy of
 * the page rightly forbids.
 */
export async function until(page, check, argument) {
  const end = Date.now() + PATIENCE_MS;
  while (!(await page.evaluate(check, argument))) {
    if (Date.now() > end) throw new Error(`did not come true: ${check}`);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}
/** The page knows the node and its models. */
export const ready = (page) => until(page, () => !document.querySelector('#where').classList.contains('down') && !document.querySelector('#model').disabled);

/** Keeps a picture where SHOAL_SHOTS says. */
export async function shot(page, name) {
  if (!process.env.SHOAL_SHOTS) return;
  mkdirSync(process.env.SHOAL_SHOTS, { recursive: true });
  await page.screenshot({ path: join(process.env.SHOAL_SHOTS, `${name}.png`) });
}

/** What axe-core finds that is serious or worse, as the page stands; it needs a context with `bypassCSP`. */
export async function serious(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return violations.filter((found) => ['serious', 'critical'].includes(found.impact)).map((found) => `${found.id}: ${found.nodes[0]?.html}`);
}
