// A node that is not one: serves api/web with the headers of the real server and a swarm that a test, or a developer,
// conducts. `node fake.mjs` alone runs it with a life of its own and prints its address.
//
// It speaks the JSON of api/src/swarm.rs and of OpenAI's chat chunks. Nothing is timed: a stream waits until it is told to
// go on, unless `pace` says how many milliseconds lie between tokens.

import { readFileSync, readdirSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const WEB = join(dirname(fileURLToPath(import.meta.url)), '../../api/web');
const KINDS = { html: 'text/html; charset=utf-8', js: 'text/javascript; charset=utf-8', css: 'text/css; charset=utf-8', json: 'application/json' };

/** The headers of TRUST.md F3; the real server sends the same. */
export const HEADERS = {
  'content-security-policy':
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
  'x-content-type-options': 'nosniff',
  'referrer-policy': 'no-referrer',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'no-store',
};

const MODEL = 'b7'.repeat(32);
const key = (letter) => letter.repeat(64);
const node = (letter, name, path, rtt, start, end, more = {}) => ({
  id: key(letter), name, me: false, trusted: false, state: 'up', class: 'd1', path, rtt_ms: rtt,
  holdings: [{ model: MODEL, start, end }], layer_ms: 0.9, memory_bytes: 8e9, kv_free_bytes: 2e9, load: 0.2, bytes_in: 4e6, bytes_out: 5e6,
  checks_passed: 214, checks_failed: 0, ...more,
});

/** Eight machines around one model of 32 layers. */
export function swarm() {
  const nodes = [
    node('a', 'a41f09c2', 'self', null, 0, 4, { me: true, layer_ms: 1.4, holdings: [{ model: MODEL, start: 0, end: 4 }, { model: MODEL, start: 28, end: 32 }] }),
    node('b', 'attic', 'lan', 0.6, 0, 12, { trusted: true }),
    node('c', '3f2a91c0', 'direct', 11.2, 4, 18),
    node('d', 'd90b7e11', 'direct', 18.4, 4, 18),
    node('e', 'heron', 'direct', 24.1, 18, 28),
    node('f', '77c1d0aa', 'direct', 31.7, 16, 32),
    node('9', '9be04412', 'relayed', 84.0, 10, 24),
    node('8', '8a02cc5f', 'relayed', 120.5, 20, 32, { state: 'paused' }),
  ];
  const holders = (layers) => Array.from({ length: layers }, (_, layer) => nodes.filter((one) => one.holdings.some((held) => held.start <= layer && layer < held.end)).length);
  return {
    at_ms: Date.now(), version: '0.1.0', me: key('a'), swarm: 'harbor', state: 'ready', reason: null,
    reachability: { class: 'direct', why: 'peers dialed this node' },
    nodes,
    models: [
      { id: MODEL, name: 'qwen3-4b-q4_0', num_layers: 32, file_bytes: 2.4e9, holders: holders(32), complete: true, download: null },
      { id: '51'.repeat(32), name: 'minnow', num_layers: 4, file_bytes: 5.1e6, holders: [1, 1, 1, 1], complete: true, download: null },
    ],
    pipelines: [],
    contribution: { paused: false, memory_bytes: 8e9, threads: 4, upload_bytes_per_s: null, served_layer_tokens: 481_220, served_sessions: 37, bytes_in: 212e6, bytes_out: 208e6 },
    default_mode: 'local',
    verdicts: [],
    names: [],
    modes: [
      { mode: 'local', sentence: 'Computed on this machine alone. No one else can read it.', available: true, reason: null },
      { mode: 'trusted', sentence: 'Computed only on machines you named. Their owners can read it.', available: true, reason: null },
      { mode: 'boomerang', sentence: 'Strangers never receive your text, but a determined one can reconstruct most of it from what it computes on.', available: true, reason: null, agreed: false },
      { mode: 'open', sentence: 'Any machine of the swarm may read your text and the answer.', available: true, reason: null, agreed: false },
    ],
  };
}

/** Models as `/library` lists them. */
const LIBRARY = [
  { name: 'minnow', title: '', bytes: 5.1e6, here_bytes: 5.1e6, license: '', fit: 'runs here alone at about 900 tok/s', removable: false },
  { name: 'heron-3b', title: '', bytes: 2.1e9, here_bytes: 6e8, license: '', fit: 'needs about 2.6 GB of memory and 1.9 GB are free here: with a swarm', removable: true },
  { name: 'smollm2', title: 'SmolLM2 135M Instruct', bytes: 98_362_432, here_bytes: 0, license: 'Apache-2.0', fit: 'runs here alone at about 90 tok/s', removable: false },
];

/** Two days of samples, the last five minutes at the end: busy in the evening, idle at night, switched off at noon. */
export function history(days, now = Math.floor(Date.now() / 1000)) {
  const span = 300 * days;
  const samples = [];
  for (let at = Math.floor((now - Math.min(days, 2) * 86_400) / span) * span; at < now; at += span) {
    const hour = (at / 3600) % 24;
    if (hour >= 11 && hour < 13) continue;
    const busy = hour > 14 ? 1 + Math.floor((at / span) % 3) : 0;
    samples.push({
      at_s: at, seconds: span, answers: busy, tokens: 90 * busy, tok_s: busy ? 8 + 2 * Math.sin(at / 7000) : null, faults: busy === 3 && (at / span) % 4 === 0 ? 1 : 0,
      peers: 7, rtt_ms: hour < 6 ? null : 18 + 6 * Math.sin(at / 9000), given: Math.floor(4000 * (1 + Math.sin(at / 20_000))), balance: Math.floor(90_000 * Math.sin(at / 40_000)),
    });
  }
  return { now_s: now, days, span_s: span, samples };
}

/** Answers as `/swarm/answers` lists them, the newest first: one that lost a stage, and one that did not. */
export function answers() {
  const span = (letter, start, end) => ({ node: key(letter), start, end });
  const route = (second) => [span('a', 0, 4), span(second, 4, 18), span('e', 18, 28), span('a', 28, 32)];
  const begun = [{ at_ms: 42, token: 0, step: 'leased', epoch: 1, stages: route('c') }, { at_ms: 212, token: 1, step: 'first_token' }];
  const about = { model: 'qwen3-4b-q4_0', mode: 'boomerang', finish: 'stop', tok_s: 9.6 };
  return [
    { ...about, session: '11'.repeat(16), tokens: 30, faults: 0, timeline: { began_ms: 1_700_000_090_000, left_out: 0, steps: [...begun, { at_ms: 3300, token: 30, step: 'ended' }] } },
    {
      ...about, session: '22'.repeat(16), tokens: 96, faults: 1,
      timeline: {
        began_ms: 1_700_000_000_000, left_out: 2,
        steps: [
          ...begun,
          { at_ms: 4180, token: 40, step: 'lost', node: key('c'), why: 'timeout' },
          { at_ms: 4181, token: 40, step: 'took_over', ...span('d', 4, 18), from: key('c') },
          { at_ms: 4240, token: 40, step: 'leased', epoch: 2, stages: route('d') },
          { at_ms: 4241, token: 40, step: 'replayed', node: key('d'), first: 0, end: 52 },
          { at_ms: 4492, token: 40, step: 'went_on', stall_ms: 312 },
          { at_ms: 10_300, token: 96, step: 'ended' },
        ],
      },
    },
  ];
}

/** A code and its QR code, which is none that a reader would take. */
const INVITE = { code: `shoal1${'abcdefgh'.repeat(30)}`, swarm: 'harbor', qr: Array.from({ length: 57 }, (_, y) => Array.from({ length: 57 }, (_, x) => ((x * 7 + y * 13 + x * y) % 3 ? '0' : '1')).join('')) };

/** The session of a request. */
const session = (request) => `5e55${request.split('-')[1]}`;

/** The way of a prompt through that swarm. */
export function pipeline(request, more = {}) {
  return {
    session: session(request), request, model: 'qwen3-4b-q4_0', mode: 'boomerang', epoch: 0, position: 12, tok_s: 9.7,
    stages: [
      { node: key('a'), start: 0, end: 4, compute_ms: 5.6, hop_ms: null },
      { node: key('c'), start: 4, end: 18, compute_ms: 12.7, hop_ms: 5.8 },
      { node: key('e'), start: 18, end: 28, compute_ms: 9.1, hop_ms: 17.6 },
      { node: key('a'), start: 28, end: 32, compute_ms: 6.9, hop_ms: 12.4 },
    ],
    standbys: [{ node: key('d'), start: 4, end: 18, compute_ms: null, hop_ms: null }],
    faults_survived: 0, ...more,
  };
}

/** The same after the second stage was lost and its shadow took over. */
export function failedOver(request) {
  const after = pipeline(request, { epoch: 1, position: 40, faults_survived: 1 });
  after.stages[1] = { node: key('d'), start: 4, end: 18, compute_ms: 13.1, hop_ms: 9.3 };
  after.standbys = [];
  const failover = { type: 'failover', at_ms: Date.now(), session: session(request), epoch: 1, lost: key('c'), replacement: key('d'), layers: [4, 18], position: 40, stall_ms: 312, why: 'timeout' };
  return { failover, after };
}

export class Fake {
  constructor({ state = swarm(), token = 'secret-token', pace = null } = {}) {
    Object.assign(this, { state, token, pace, requests: [], tickets: ['once'], watchers: new Set(), streams: [], models: ['qwen3-4b-q4_0', 'minnow'], refusals: [], kept: new Map(), history, answers: answers(), invite: INVITE, presets: [], library: LIBRARY.map((one) => ({ ...one })), pulls: [] });
  }

  /** Listens on a port of its choice; resolves to the address without the token. */
  async listen(port = 0) {
    this.server = createServer((request, response) => this.handle(request, response).catch((error) => response.destroy(error)));
    await new Promise((resolve) => this.server.listen(port, '127.0.0.1', resolve));
    return `http://127.0.0.1:${this.server.address().port}/`;
  }

  close() {
    this.server.closeAllConnections();
    this.server.close();
  }

  /** Sends one change to every page that watches. */
  tell(event) {
    for (const watcher of this.watchers) watcher.write(`data: ${JSON.stringify(event)}\n\n`);
  }

  async handle(request, response) {
    const { pathname, searchParams } = new URL(request.url, 'http://x');
    this.requests.push({ method: request.method, path: pathname, headers: request.headers });
    const file = pathname === '/' ? 'index.html' : pathname.slice(1);
    if (request.method === 'GET' && readdirSync(WEB).includes(file)) {
      response.writeHead(200, { ...HEADERS, 'content-type': KINDS[file.split('.').pop()] });
      return void response.end(readFileSync(join(WEB, file)));
    }
    const json = (status, value, headers = {}) => {
      response.writeHead(status, { ...HEADERS, 'content-type': 'application/json', ...headers });
      response.end(JSON.stringify(value));
    };
    if (pathname === '/session') {
      let sent = '';
      for await (const part of request) sent += part;
      const at = this.tickets.indexOf(JSON.parse(sent).ticket);
      if (at < 0) return json(401, { error: { message: 'This address was used already.' } });
      this.tickets.splice(at, 1);
      return json(200, { token: this.token });
    }
    if (request.headers.authorization !== `Bearer ${this.token}`) return json(401, { error: { message: 'The token is missing or wrong.' } });
    if (pathname === '/v1/models') return json(200, { object: 'list', data: this.models.map((id) => ({ id, object: 'model' })) });
    if (pathname === '/swarm') return json(200, this.state);
    if (pathname === '/swarm/events') {
      response.writeHead(200, { ...HEADERS, 'content-type': 'text/event-stream' });
      response.write(`data: ${JSON.stringify({ type: 'snapshot', snapshot: this.state })}\n\n`);
      this.watchers.add(response);
      return void response.on('close', () => this.watchers.delete(response));
    }
    let text = '';
    for await (const part of request) text += part;
    const body = JSON.parse(text || 'null');
    if (pathname === '/swarm/contribution') {
      Object.assign(this.state.contribution, body);
      this.tell({ type: 'contribution', contribution: this.state.contribution });
      return json(200, this.state.contribution);
    }
    if (pathname === '/swarm/consent') {
      const refusal = this.refusals.shift();
      if (refusal) return json(refusal.status, { error: { message: refusal.message } }, refusal.headers);
      Object.assign(this.state.modes.find(({ mode }) => mode === body.mode), body);
      this.tell({ type: 'snapshot', snapshot: this.state });
      return json(200, body);
    }
    if (pathname === '/swarm/names') {
      const refusal = this.refusals.shift();
      if (refusal) return json(refusal.status, { error: { message: refusal.message } }, refusal.headers);
      const others = this.state.names.filter(({ node }) => node !== body.node);
      this.state.names = body.name || body.color !== 'none' ? [...others, body] : others;
      this.tell({ type: 'snapshot', snapshot: this.state });
      return json(200, body);
    }
    if (pathname === '/swarm/history') return json(200, this.history(Number(searchParams.get('days'))));
    if (pathname === '/swarm/answers') return json(200, { answers: this.answers });
    if (pathname === '/swarm/invite') return json(200, this.invite);
    if (/^\/(?:conversations|presets)/.test(pathname)) return this.keep(request.method, pathname, body, json);
    if (pathname.startsWith('/library')) return this.shelve(request.method, pathname, body, json, response);
    if (pathname !== '/v1/chat/completions') return json(404, { error: { message: 'No such route.' } });
    const refusal = this.refusals.shift();
    if (refusal) return json(refusal.status, { error: { message: refusal.message } }, refusal.headers);
    this.begin(body, request, response);
  }

  /** Conversations and presets, as api/src/conversations.rs keeps them. */
  keep(method, pathname, body, json) {
    if (this.keepsNot) return json(404, { error: { message: 'this API keeps no conversations' } });
    if (this.breaks === method) return json(500, { error: { message: 'the disk is full' } });
    if (pathname === '/presets') return json(200, { presets: method === 'POST' ? (this.presets = body.presets) : this.presets });
    const summary = ({ id, title, created_ms, changed_ms, messages }) => ({ id, title, created_ms, changed_ms, messages: messages.length });
    const all = [...this.kept.values()].sort((a, b) => b.changed_ms - a.changed_ms);
    if (pathname === '/conversations') return json(200, { conversations: all.map(summary), room: { bytes: JSON.stringify(all).length, most_bytes: 268_435_456, most: 2000 } });
    if (pathname === '/conversations/search') {
      const texts = (one) => one.messages.map((message) => message.content);
      const found = all.filter((one) => body.words.toLowerCase().split(/\s+/).every((word) => [one.title, ...texts(one)].some((text) => text.toLowerCase().includes(word))));
      return json(200, { conversations: found.map((one) => ({ ...summary(one), excerpt: texts(one).find((text) => text.toLowerCase().includes(body.words.toLowerCase().split(/\s+/)[0])) ?? '' })) });
    }
    const id = pathname.split('/')[2];
    const known = this.kept.get(id);
    if (method !== 'POST' && !known) return json(404, { error: { message: 'there is no such conversation' } });
    if (method === 'GET') return json(200, known);
    if (method === 'DELETE') return json(200, { deleted: this.kept.delete(id) });
    if (!known && !body.messages?.length) return json(404, { error: { message: 'there is no such conversation' } });
    const { messages = [], title, ...more } = body;
    const one = { id, named: false, created_ms: Date.now(), title: '', system: '', sampling: {}, leaf: null, messages: [], ...known, ...more, changed_ms: Date.now() };
    for (const message of messages) {
      const at = one.messages.findIndex((old) => old.id === message.id);
      if (at < 0 && message.parent && !one.messages.some((old) => old.id === message.parent)) return json(400, { error: { message: 'the message follows one that is not here' } });
      if (at < 0) one.messages.push(message);
      else one.messages[at] = message;
    }
    if (title !== undefined) Object.assign(one, { title, named: title !== '' });
    if (!one.named) one.title = (one.messages[0]?.content ?? '').replace(/\s+/g, ' ').slice(0, 56);
    this.kept.set(id, one);
    json(200, summary(one));
  }

  /** Models here and to be fetched, as api/src/library.rs says. */
  shelve(method, pathname, body, json, response) {
    const one = this.library.find(({ name }) => name === (body?.model ?? decodeURIComponent(pathname.split('/')[2] ?? '')));
    if (pathname === '/library') return json(200, { models: this.library.filter((model) => model.here_bytes) });
    if (pathname === '/library/search') return json(200, { models: this.library.filter(({ license, name, title }) => license && `${name} ${title}`.toLowerCase().includes(body.words.toLowerCase())) });
    if (!one) return json(404, { error: { message: `the model is not known here` } });
    if (method === 'DELETE') {
      this.library = this.library.filter((model) => model !== one);
      return json(200, { deleted: true });
    }
    response.writeHead(200, { ...HEADERS, 'content-type': 'text/event-stream' });
    const pull = { name: one.name, closed: false, tell: (line) => response.write(`data: ${JSON.stringify(line)}\n\n`), end: () => response.end() };
    response.on('close', () => {
      pull.closed = true;
      this.stopped?.(pull);
    });
    pull.tell({ event: 'started', total_bytes: one.bytes, have_bytes: 0 });
    this.pulls.push(pull);
    this.pulled?.(pull);
  }

  begin(body, request, response) {
    const id = `chatcmpl-${this.streams.length + 1}`;
    response.writeHead(200, {
      ...HEADERS, 'content-type': 'text/event-stream', 'x-request-id': id, 'x-shoal-mode': body.mode ?? 'local',
      'x-shoal-route': 'me:0-4 3f2a91c0:4-18 heron:18-28 me:28-32', 'x-shoal-predicted-tok-s': '10.2', 'x-shoal-seed': String(body.seed ?? 41),
    });
    let sent = Number(request.headers['last-event-id'] ?? 0);
    const chunk = (delta, finish = null, more = {}) => ({ id, object: 'chat.completion.chunk', model: body.model, choices: [{ index: 0, delta, finish_reason: finish }], ...more });
    const stream = {
      id, body, closed: false,
      token: (content) => response.write(`id: ${(sent += 1)}\ndata: ${JSON.stringify(chunk({ content }))}\n\n`),
      thought: (reasoning) => response.write(`id: ${(sent += 1)}\ndata: ${JSON.stringify(chunk({ reasoning_content: reasoning }))}\n\n`),
      end: (report = {}, finish = 'stop') => {
        response.write(`data: ${JSON.stringify(chunk({}, finish, { shoal: { computed_by: ['me', '3f2a91c0', 'heron'], checked_by: ['d90b7e11'], checked_tokens: 48, faults_survived: 0, ttft_ms: 180, prefill_ms: 160, tok_s: 9.6, ...report } }))}\n\n`);
        response.end('data: [DONE]\n\n');
      },
      cut: () => response.destroy(),
    };
    response.on('close', () => {
      stream.closed = true;
      this.gone?.(stream);
    });
    response.write(`data: ${JSON.stringify(chunk({ role: 'assistant' }))}\n\n`);
    this.streams.push(stream);
    this.begun?.(stream);
  }
}

const ANSWER = `At the edge of the harbor lived a **fox** who owned one lantern and no fear of the dark.

Every evening she carried it along the wall, and every evening the boats counted its light: *one, two, three* steps, then a pause where the stones were loose.

### What she carried

| thing | weight | why |
|---|---|---|
| lantern | 1.2 kg | boats |
| wick | 20 g | tomorrow |
| \`matches\` | none left | she asked the baker |

1. She lit it at dusk.
2. She put it down where the wall breaks.
3. She waited until the last mast had passed.

\`\`\`python
def pause(steps):
    return [step for step in steps if step.loose]
\`\`\`

> A light that is carried is a light that is believed.

One night the wind took the flame, and the boats did not notice, because the baker had lit his.`;

/** A life of its own, for looking at: answers what is asked and loses a node on the way. */
async function live(port) {
  const fake = new Fake({ token: 'demo' });
  const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  fake.begun = async (stream) => {
    fake.tell({ type: 'pipeline', pipeline: pipeline(stream.id) });
    const pieces = ANSWER.match(/\S+\s*/g);
    for (const [i, piece] of pieces.entries()) {
      if (stream.closed) break;
      await wait(90);
      stream.token(piece);
      const stages_ms = [[null, 5.6], [5.8 + Math.random(), 12.7], [17.6 + Math.random(), 9.1], [12.4, 6.9]];
      if (i % 3 === 0) fake.tell({ type: 'progress', session: session(stream.id), position: 12 + i, tok_s: 9.2 + Math.random(), stages_ms });
      if (i === 40) {
        const { failover, after } = failedOver(stream.id);
        fake.tell({ type: 'node', node: { ...fake.state.nodes[2], state: 'suspect' } });
        await wait(400);
        fake.tell(failover);
        fake.tell({ type: 'node_gone', node: failover.lost, why: 'silent' });
        fake.tell({ type: 'pipeline', pipeline: after });
      }
    }
    fake.tell({ type: 'pipeline_ended', session: session(stream.id), why: 'stop' });
    stream.end({ computed_by: ['me', '3f2a91c0', 'd90b7e11', 'heron'], faults_survived: 1 });
  };
  console.log(`${await fake.listen(port)}#token=demo`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await live(Number(process.argv[2] ?? 8088));
