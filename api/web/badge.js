// The account of an answer: who computed it, who checked it, how fast it was and which faults it survived, as the node
// reports them, in a line and behind it as a table.

import { strip } from './chart.js';
import { clean, duration, h, list, number, rate, s } from './dom.js';
import { figure, t } from './language.js';
import { kindOf, stageMs } from './view.js';

const MODES = ['local', 'trusted', 'boomerang', 'open'];
/** Figures whose meaning is said where one clicks them. */
const EXPLAINED = ['way', 'checked', 'speed', 'drafts', 'first'];

function explain(button, name) {
  const told = button.nextSibling;
  if (told) told.remove();
  else button.after(h('p', null, t(`badge.${name}.why`)));
  button.setAttribute('aria-expanded', String(!told));
}

/** The line under an answer, and behind it the whole account. */
export function badge(swarm, outcome) {
  const layers = swarm.model(outcome.pipeline?.model)?.layers ?? 1;
  const stages = (outcome.pipeline?.stages ?? []).map((stage) => ({ ...stage, kind: kindOf(swarm.nodes.get(stage.node)) }));
  const planned = stages.length ? stages : readRoute(outcome.route);
  const report = outcome.report ?? {};
  // An answer that was cut has no report: then the plan says who took part, and nothing says who checked.
  const took = outcome.report ? list(report.computed_by, 64) : planned.map((stage) => (stage.kind === 'home' ? 'me' : stages.length ? swarm.called(stage.node) : stage.node));
  const peers = [...new Set(took.map((name) => clean(name, 24)))].filter((name) => name && name !== 'me');
  const known = took.length > 0 || outcome.mode === 'local';
  const { verdict } = outcome;
  const judged = outcome.report && (peers.length || verdict.convicted.length);
  const speed = number(report.tok_s) || (outcome.seconds > 0 ? outcome.tokens / outcome.seconds : 0);
  const faults = Math.max(number(report.faults_survived), outcome.told.length);
  const facts = [[peers.length ? t('count.peers', { n: peers.length }) : known ? t('badge.alone') : t('badge.in', { mode: modeName(outcome.mode) })]];
  if (judged) facts.push([checked(verdict), verdict.convicted.length > 0 || !(verdict.checking || verdict.checkedBy.length)]);
  if (speed) facts.push([t('unit.rate', { rate: rate(speed) })]);
  if (faults) facts.push([t('count.survived', { n: faults }), true]);
  if (outcome.finish === 'stopped') facts.push([t('badge.stopped')]);
  if (outcome.finish === 'length') facts.push([t('badge.length')]);
  const line = s('svg', { class: 'strip', 'aria-hidden': 'true' });
  strip(line, planned, Math.max(layers, ...planned.map((stage) => stage.end)));
  const row = (name, value) => value && h('div', null, h('dt', null, EXPLAINED.includes(name) ? h('button', { type: 'button', 'aria-expanded': 'false', click: (event) => explain(event.currentTarget, name) }, t(`badge.${name}`)) : t(`badge.${name}`)), h('dd', null, value));
  return h('details', { class: 'badge' },
    h('summary', { 'data-more': t('badge.more'), 'data-less': t('badge.less') }, line, h('span', { class: 'facts' }, facts.map(([fact, marked], i) => h('span', { class: marked ? 'fact marked' : 'fact' }, i > 0 && ' · ', fact)))),
    h('dl', null,
      row('mode', modeName(outcome.mode)),
      row('way', stages.length ? stages.map((stage) => `${stage.kind === 'home' ? t('me') : swarm.called(stage.node)} ${stage.start}–${stage.end} (${duration(stageMs(stage))})`).join(' → ') : clean(outcome.route, 400)),
      row('computed', peers.length ? peers.join(', ') : known ? t('me') : ''),
      row('checked', judged ? account(verdict) : ''),
      row('caught', verdict.convicted.length ? t(verdict.wrongFrom === null ? 'badge.caught.none' : 'badge.caught.from', { names: verdict.convicted.join(', '), token: String(verdict.wrongFrom + 1) }) : ''),
      row('speed', t(outcome.predicted ? 'badge.speed.both' : 'badge.speed.is', { rate: rate(speed), predicted: rate(outcome.predicted) })),
      row('drafts', drafted(report.drafts)),
      row('first', Number.isFinite(outcome.firstMs) ? t('badge.first.after', { time: duration(outcome.firstMs) }) : ''),
      row('wire', outcome.wire && outcome.wire !== 'raw' ? t('badge.wire.is', outcome) : ''),
      row('seed', t('badge.seed.is', { seed: String(outcome.seed) })),
      row('faults', outcome.told.join(' '))));
}

/** A mode as the page calls it. */
const modeName = (mode) => (MODES.includes(mode) ? t(`mode.${mode}`) : mode);

/** What is known of an answer's checks, in a few words. */
export function checked({ checking, checkedBy, convicted, wrongFrom }) {
  if (convicted.length) return t(wrongFrom === null ? 'check.undone' : 'check.unreliable', { name: convicted[0] });
  if (checking || !checkedBy.length) return t(checking ? 'check.running' : 'check.no');
  return t('check.by', { names: few(named(checkedBy), 2) });
}

/** The same as a sentence. */
function account({ checking, checkedBy, checkedTokens }) {
  if (!checkedBy.length) return t(checking ? 'check.soon' : 'check.none');
  const names = named(checkedBy).join(', ');
  const said = checkedTokens ? t('check.equal', { names, n: checkedTokens }) : names;
  return checking ? t('check.rest', { said }) : said;
}

/** What came of drafted tokens, as a sentence. */
function drafted(drafts) {
  if (!drafts || !number(drafts.proposed)) return '';
  const by = list(drafts.by, 4).map((name) => clean(name, 24)).join(t('badge.and'));
  return t('badge.drafts.are', { pass: figure(number(drafts.tokens_per_pass), 1), right: number(drafts.right), proposed: number(drafts.proposed), names: by });
}

/** The first names, and how many more there are. */
export const few = (names, most) => (names.length > most ? t('and.more', { names: names.slice(0, most).join(', '), n: names.length - most }) : names.join(', '));

const named = (nodes) => nodes.map((name) => (name === 'me' ? t('me') : name));

/** The stages in a route such as `me:0-2 3f2a91c0:2-16`. */
const readRoute = (route) =>
  [...(route ?? '').matchAll(/(\w{1,16}):(\d{1,4})-(\d{1,4})/g)].map(([, node, start, end]) => ({ node, kind: node === 'me' ? 'home' : 'stranger', start: Number(start), end: Number(end) }));

/** What of an outcome is kept with a conversation: what a reader of it may want to know on another day. */
export function keep(outcome) {
  const { pipeline, snapshots, ...kept } = outcome;
  return JSON.stringify(kept).length < 24_000 ? kept : { ...kept, report: undefined, told: [] };
}

/** The same as it was kept, checked: the file may be older than this page. */
export function revive(kept) {
  const verdict = kept.verdict ?? {};
  const names = (value) => list(value, 64).map((name) => clean(name, 24));
  return {
    ...kept,
    mode: clean(kept.mode, 16),
    finish: clean(kept.finish, 20),
    told: list(kept.told, 64).map((sentence) => clean(sentence, 400)),
    tokens: number(kept.tokens),
    seconds: number(kept.seconds),
    firstMs: number(kept.firstMs, NaN),
    seed: number(kept.seed),
    predicted: number(kept.predicted),
    verdict: { checking: false, checkedBy: names(verdict.checkedBy), checkedTokens: number(verdict.checkedTokens), convicted: names(verdict.convicted), wrongFrom: typeof verdict.wrongFrom === 'number' ? verdict.wrongFrom : null },
  };
}
