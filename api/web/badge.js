// The account of an answer: who computed it, who checked it, how fast it was and which faults it survived, as the node
// reports them, in a line and behind it as a table.

import { strip } from './chart.js';
import { clean, count, duration, h, list, number, rate, s } from './dom.js';
import { kindOf, stageMs } from './view.js';

/** What figures mean, said where one clicks them. */
const WHY = {
  Way: 'Layers on each machine, and how long a token stays there and on the way.',
  'Checked by': 'Nodes that computed it again and compared.',
  Speed: 'From the first token to the last.',
  Drafts: 'Guessed tokens, confirmed several at a time.',
  'First token': 'The prompt is computed before it.',
};

function explain({ currentTarget: button }) {
  const told = button.nextSibling;
  if (told) told.remove();
  else button.after(h('p', null, WHY[button.textContent]));
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
  const facts = [peers.length ? count(peers.length, 'peer') : known ? 'this machine alone' : `mode ${outcome.mode}`];
  if (judged) facts.push(checked(verdict));
  if (speed) facts.push(`${rate(speed)} tok/s`);
  if (faults) facts.push(`${count(faults, 'fault')} survived`);
  if (outcome.finish === 'stopped') facts.push('stopped by you');
  if (outcome.finish === 'length') facts.push('cut at the token limit');
  const line = s('svg', { class: 'strip', 'aria-hidden': 'true' });
  strip(line, planned, Math.max(layers, ...planned.map((stage) => stage.end)));
  const row = (name, value) => value && h('div', null, h('dt', null, WHY[name] ? h('button', { type: 'button', 'aria-expanded': 'false', click: explain }, name) : name), h('dd', null, value));
  return h('details', { class: 'badge' },
    h('summary', null, line, h('span', { class: 'facts' }, facts.map((fact, i) => h('span', { class: /survived|unchecked|cheat/.test(fact) ? 'fact marked' : 'fact' }, i > 0 && ' · ', fact)))),
    h('dl', null,
      row('Mode', outcome.mode),
      row('Way', stages.length ? stages.map((stage) => `${stage.kind === 'home' ? 'this machine' : swarm.called(stage.node)} ${stage.start}–${stage.end} (${duration(stageMs(stage))})`).join(' → ') : clean(outcome.route, 400)),
      row('Computed by', peers.length ? peers.join(', ') : known ? 'this machine' : ''),
      row('Checked by', judged ? account(verdict) : ''),
      row('Caught', verdict.convicted.length ? `${verdict.convicted.join(', ')} computed something else. ${verdict.wrongFrom === null ? 'Nothing of that is in the answer.' : `What you read from token ${verdict.wrongFrom + 1} on follows from it and is not to be relied on: ask again.`}` : ''),
      row('Speed', `${rate(speed)} tokens per second${outcome.predicted ? `, ${rate(outcome.predicted)} predicted` : ''}`),
      row('Drafts', drafted(report.drafts)),
      row('First token', Number.isFinite(outcome.firstMs) ? `after ${duration(outcome.firstMs)}` : ''),
      row('Wire', outcome.wire && outcome.wire !== 'raw' ? `${outcome.wire}, rounded before layers ${outcome.cuts}` : ''),
      row('Seed', `${outcome.seed}: with it, the same tokens come again`),
      row('Faults', outcome.told.join(' '))));
}

/** What is known of an answer's checks, in a few words. */
export function checked({ checking, checkedBy, convicted, wrongFrom }) {
  if (convicted.length) return `cheat found: ${convicted[0]}${wrongFrom === null ? ', and undone' : ', not to be relied on'}`;
  if (checking || !checkedBy.length) return checking ? 'being checked' : 'unchecked';
  return `checked by ${named(checkedBy).slice(0, 2).join(', ')}${checkedBy.length > 2 ? ` and ${checkedBy.length - 2} more` : ''}`;
}

/** The same as a sentence. */
function account({ checking, checkedBy, checkedTokens }) {
  if (!checkedBy.length) return checking ? 'no node yet: it is being computed again' : 'no node';
  const equal = checkedTokens ? `: ${count(checkedTokens, 'token')} recomputed and equal` : '';
  return `${named(checkedBy).join(', ')}${equal}${checking ? '; the rest is being computed again' : ''}`;
}

/** What came of drafted tokens, as a sentence. */
function drafted(drafts) {
  if (!drafts || !number(drafts.proposed)) return '';
  const by = list(drafts.by, 4).map((name) => clean(name, 24)).join(' and ');
  return `${number(drafts.tokens_per_pass).toFixed(1)} tokens a pass; ${number(drafts.right)} of ${number(drafts.proposed)} drafted by ${by} were right`;
}

const named = (nodes) => nodes.map((name) => (name === 'me' ? 'this machine' : name));

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
