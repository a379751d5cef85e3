// What this page knows of the swarm: `GET /swarm/events` begins with a snapshot and goes on with changes.
//
// Everything that arrives is checked and bounded here, once: names are cleaned, numbers finite, layer ranges inside sane
// limits, lists cut. What is drawn later relies on it. The connection is held while the tab is visible and opened again
// with growing pauses when it breaks; each time the snapshot comes first, which makes good what was missed.

import { clean, duration, list, number } from './dom.js';
import { events, json, request } from './http.js';
import { t } from './language.js';

/** Nodes kept; a swarm that names more is shown in part. */
const MAX_NODES = 512;
/** Failovers kept for the log; older ones fall off its end. */
const MAX_LOG = 60;
/** Pipelines kept, the newest; a finished one is still worth looking at. */
const MAX_PIPELINES = 32;
/** Verdicts kept, the newest; the node keeps as many. */
const MAX_VERDICTS = 64;
/** How long a failover stays in the drawing. */
const SCAR_MS = 14_000;
/** A pipeline that computed something this recently is running. */
const MOVING_MS = 2500;
/** Throughput samples: two minutes, one a second. */
const SAMPLES = 120;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 15_000;

const PATHS = ['self', 'loopback', 'lan', 'direct', 'relayed', 'none'];
const COLORS = ['red', 'orange', 'yellow', 'green', 'teal', 'blue', 'purple', 'brown'];
/** Letters of a name that the owner gave a node. */
const MAX_NAME = 32;
const STATES = ['up', 'suspect', 'paused', 'gone'];
const id = (value) => String(value ?? '').slice(0, 128);

const range = (value) => {
  const start = Math.max(0, Math.floor(number(value?.start)));
  const end = Math.min(4096, Math.floor(number(value?.end)));
  return end > start ? { start, end } : null;
};

/** What the owner of this node calls another one. */
const readName = (value) => [id(value?.node), { name: clean(value?.name, MAX_NAME), color: COLORS.includes(value?.color) ? value.color : 'none' }];

function readNode(value, names) {
  const own = names.get(id(value.id));
  return {
    id: id(value.id),
    short: own?.name || clean(value.name, 24) || id(value.id).slice(0, 8) || t('unnamed'),
    own: Boolean(own?.name),
    color: own?.color ?? 'none',
    self: value.me === true,
    trusted: value.trusted === true,
    state: STATES.includes(value.state) ? value.state : 'up',
    exact: value.class === 'd1',
    device: clean(value.device, 80),
    path: PATHS.includes(value.path) ? value.path : 'unknown',
    rttMs: number(value.rtt_ms, null),
    layers: list(value.holdings, 64).flatMap((holding) => {
      const held = range(holding);
      return held ? [{ model: id(holding.model), ...held }] : [];
    }),
    layerMs: number(value.layer_ms, null),
    bytesIn: number(value.bytes_in),
    bytesOut: number(value.bytes_out),
    passed: number(value.checks_passed),
    failed: number(value.checks_failed),
  };
}

const readStages = (value) =>
  list(value, 128).flatMap((stage) => {
    const layers = range(stage);
    return layers ? [{ node: id(stage.node), ...layers, computeMs: number(stage.compute_ms, null), hopMs: number(stage.hop_ms, null) }] : [];
  });

function readPipeline(value) {
  return {
    session: id(value.session),
    request: id(value.request),
    model: clean(value.model, 96),
    mode: clean(value.mode, 16),
    epoch: number(value.epoch),
    position: number(value.position),
    tokS: Math.max(0, number(value.tok_s)),
    stages: readStages(value.stages),
    standbys: readStages(value.standbys),
    faults: number(value.faults_survived),
    movedAt: performance.now(),
    ended: false,
  };
}

const names = (value) => list(value, 16).map((name) => clean(name, 24)).filter(Boolean);

/** What became of checking an answer that was complete before. */
export const readVerdict = (value) => ({
  request: id(value.request),
  checking: value.checking === true,
  checkedBy: names(value.checked_by),
  checkedTokens: Math.max(0, number(value.checked_tokens)),
  convicted: names(value.convicted),
  wrongFrom: number(value.wrong_from, null),
});

function readModel(value) {
  const layers = Math.min(4096, Math.max(1, Math.floor(number(value.num_layers, 1))));
  return {
    id: id(value.id),
    name: clean(value.name, 96) || t('unnamed'),
    layers,
    fileBytes: number(value.file_bytes),
    holders: list(value.holders, layers).map((holders) => Math.max(0, Math.floor(number(holders)))),
    complete: value.complete === true,
    download: list(value.download, 2).length === 2 ? value.download.map((part) => number(part)) : null,
  };
}

const readContribution = (value) => ({
  paused: value?.paused === true,
  layers: list(value?.layers, 64).flatMap((held) => range(held) ?? []),
  memoryBytes: number(value?.memory_bytes, null),
  threads: number(value?.threads, null),
  uploadBytesPerS: number(value?.upload_bytes_per_s, null),
  layerTokens: number(value?.served_layer_tokens),
  sessions: number(value?.served_sessions),
  bytesIn: number(value?.bytes_in),
  bytesOut: number(value?.bytes_out),
});

export class Swarm extends EventTarget {
  constructor() {
    super();
    this.connected = false;
    this.known = false;
    this.state = 'starting';
    this.reason = '';
    this.me = '';
    this.name = '';
    this.reachability = { class: 'unknown', why: '' };
    this.modes = [];
    this.defaultMode = 'local';
    this.models = [];
    this.nodes = new Map();
    /** What the owner calls nodes, whether they are here or not. */
    this.names = new Map();
    this.pipelines = new Map();
    /** By request: what became of checking answers that were complete before. */
    this.verdicts = new Map();
    /** How often a full snapshot came: what is not known after that, the node does not know either. */
    this.snapshots = 0;
    this.contribution = readContribution(null);
    this.log = [];
    this.scars = [];
    this.rates = [];
    this.waiting = false;
  }

  /** Keeps the state fresh until the page is closed. */
  async follow() {
    setInterval(() => this.sample(), 1000);
    document.addEventListener('visibilitychange', () => (document.hidden ? this.stop?.abort() : this.wake?.()));
    let pause = FIRST_PAUSE_MS;
    for (;;) {
      if (document.hidden) await new Promise((resolve) => (this.wake = resolve));
      this.stop = new AbortController();
      try {
        const response = await request('/swarm/events', { signal: this.stop.signal, accept: 'text/event-stream' });
        pause = FIRST_PAUSE_MS;
        for await (const event of events(response)) this.readEvent(event.data);
      } catch (error) {
        if (error.status === 401 || error.status === 403) {
          this.dispatchEvent(new CustomEvent('locked', { detail: error }));
          await new Promise((resolve) => (this.wake = resolve));
          continue;
        }
        // Anything else is the connection, or the node starting: wait and ask again.
      }
      this.connected = false;
      this.changed();
      await new Promise((resolve) => {
        this.wake = resolve;
        setTimeout(resolve, pause);
      });
      pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
    }
  }

  /** Changes what this node gives: `{ paused, memory_bytes, threads, upload_bytes_per_s }`, each optional. */
  async contribute(change) {
    this.contribution = readContribution(await json('/swarm/contribution', { body: change }));
    this.changed();
  }

  /** Tells the node whether prompts may go to strangers in `mode`: it keeps that, for every client. */
  async agree(mode, agreed = true) {
    await json('/swarm/consent', { body: { mode, agreed } });
    for (const info of this.modes) if (info.mode === mode) info.agreed = agreed;
    this.changed();
  }

  readEvent(data) {
    let value;
    try {
      value = JSON.parse(data);
    } catch {
      return;
    }
    const read = READERS[value?.type];
    if (!read) return;
    read(this, value);
    this.changed();
  }

  readSnapshot(value) {
    this.connected = true;
    this.known = true;
    this.me = id(value.me);
    this.name = clean(value.swarm, 40);
    this.readState(value);
    this.reachability = { class: clean(value.reachability?.class, 20) || 'unknown', why: clean(value.reachability?.why, 300) };
    this.models = list(value.models, 128).map(readModel);
    this.names = new Map(list(value.names, MAX_NODES).map(readName));
    this.nodes = new Map(list(value.nodes, MAX_NODES).map((node) => [id(node?.id), readNode(node ?? {}, this.names)]));
    this.defaultMode = clean(value.default_mode, 16);
    this.modes = list(value.modes, 8).map((mode) => ({
      mode: clean(mode?.mode, 16),
      sentence: clean(mode?.sentence, 300),
      available: mode?.available !== false,
      reason: clean(mode?.reason, 200),
      agreed: mode?.agreed !== false,
    }));
    // Sessions that ended while no reader listened are over; those still there go on.
    for (const pipeline of this.pipelines.values()) pipeline.ended = true;
    for (const pipeline of list(value.pipelines, MAX_PIPELINES)) this.putPipeline(pipeline ?? {});
    this.verdicts.clear();
    for (const verdict of list(value.verdicts, MAX_VERDICTS)) this.putVerdict(verdict ?? {});
    this.snapshots += 1;
    this.contribution = readContribution(value.contribution);
  }

  putVerdict(value) {
    const verdict = readVerdict(value);
    this.verdicts.delete(verdict.request);
    this.verdicts.set(verdict.request, verdict);
    while (this.verdicts.size > MAX_VERDICTS) this.verdicts.delete(this.verdicts.keys().next().value);
  }

  readState(value) {
    this.state = ['starting', 'ready', 'unable'].includes(value.state) ? value.state : 'unable';
    this.reason = clean(value.reason, 300);
  }

  putNode(value) {
    const node = readNode(value, this.names);
    if (this.nodes.size < MAX_NODES || this.nodes.has(node.id)) this.nodes.set(node.id, node);
  }

  putPipeline(value) {
    const pipeline = readPipeline(value);
    this.pipelines.delete(pipeline.session);
    this.pipelines.set(pipeline.session, pipeline);
    while (this.pipelines.size > MAX_PIPELINES) this.pipelines.delete(this.pipelines.keys().next().value);
  }

  putProgress(value) {
    const pipeline = this.pipelines.get(id(value.session));
    if (!pipeline) return;
    pipeline.position = number(value.position);
    pipeline.tokS = Math.max(0, number(value.tok_s));
    pipeline.movedAt = performance.now();
    list(value.stages_ms, 128).forEach((pair, i) => {
      if (!pipeline.stages[i]) return;
      pipeline.stages[i].hopMs = number(pair?.[0], null) ?? pipeline.stages[i].hopMs;
      pipeline.stages[i].computeMs = number(pair?.[1], null) ?? pipeline.stages[i].computeMs;
    });
  }

  putFailover(value) {
    const pipeline = this.pipelines.get(id(value.session));
    const failover = {
      session: id(value.session),
      request: pipeline?.request ?? '',
      model: pipeline?.model ?? '',
      from: id(value.lost),
      to: id(value.replacement),
      ...(range({ start: value.layers?.[0], end: value.layers?.[1] }) ?? { start: 0, end: 0 }),
      position: number(value.position),
      stallMs: Math.max(0, number(value.stall_ms)),
      why: clean(value.why, 20),
      at: new Date(number(value.at_ms, Date.now())),
      drawnUntil: performance.now() + SCAR_MS,
    };
    this.log = [failover, ...this.log].slice(0, MAX_LOG);
    this.scars = [...this.scars, failover].slice(-6);
    this.dispatchEvent(new CustomEvent('failover', { detail: failover }));
  }

  /** The short name of a node, known or not. */
  called(node) {
    return this.names.get(node)?.name || this.nodes.get(node)?.short || clean(String(node).slice(0, 8), 8) || t('nodes.unknown');
  }

  /** The model of this id or name. */
  model(model) {
    return this.models.find((one) => one.id === model || one.name === model);
  }

  /** Whether this pipeline computes something now. */
  moves(pipeline) {
    return Boolean(pipeline) && !pipeline.ended && pipeline.movedAt > performance.now() - MOVING_MS;
  }

  /** The pipeline that moves now, of this model if one is given, else the last one seen. */
  current(model) {
    const all = [...this.pipelines.values()].filter((pipeline) => pipeline.stages.length && (!model || this.model(pipeline.model) === model));
    return all.findLast((pipeline) => this.moves(pipeline)) ?? all.at(-1);
  }

  sample() {
    const now = performance.now();
    const moving = [...this.pipelines.values()].filter((pipeline) => this.moves(pipeline));
    this.rates = [...this.rates, moving.reduce((sum, pipeline) => sum + pipeline.tokS, 0)].slice(-SAMPLES);
    const before = this.scars.length;
    this.scars = this.scars.filter((scar) => scar.drawnUntil > now);
    if (moving.length || this.wasMoving || before !== this.scars.length) this.changed();
    this.wasMoving = moving.length > 0;
  }

  /** Tells listeners at most once a frame, however many events arrive. */
  changed() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.dispatchEvent(new Event('change'));
    });
  }
}

/** The kinds of change; a kind this page does not know is passed over. */
const READERS = {
  snapshot: (swarm, value) => swarm.readSnapshot(value.snapshot ?? {}),
  node: (swarm, value) => swarm.putNode(value.node ?? {}),
  node_gone: (swarm, value) => {
    const node = swarm.nodes.get(id(value.node));
    if (node) node.state = 'gone';
  },
  model: (swarm, value) => {
    const model = readModel(value.model ?? {});
    swarm.models = [...swarm.models.filter((one) => one.id !== model.id), model].slice(0, 128);
  },
  pipeline: (swarm, value) => swarm.putPipeline(value.pipeline ?? {}),
  progress: (swarm, value) => swarm.putProgress(value),
  failover: (swarm, value) => swarm.putFailover(value),
  pipeline_ended: (swarm, value) => {
    const pipeline = swarm.pipelines.get(id(value.session));
    if (pipeline) pipeline.ended = true;
    swarm.dispatchEvent(new Event('ended'));
  },
  checked: (swarm, value) => swarm.putVerdict(value.verdict ?? {}),
  contribution: (swarm, value) => {
    swarm.contribution = readContribution(value.contribution);
  },
  state: (swarm, value) => swarm.readState(value),
};

const REASONS = ['closed', 'timeout', 'refused', 'wrong'];

/** A failover as a sentence. */
export function tell(swarm, failover) {
  return t('failover', {
    from: swarm.called(failover.from),
    why: t(`failover.${REASONS.includes(failover.why) ? failover.why : 'stopped'}`),
    token: String(failover.position),
    to: swarm.called(failover.to),
    layers: failover.end > failover.start ? t('layers', { range: `${failover.start}–${failover.end}` }) : t('failover.layers'),
    stall: duration(failover.stallMs),
  });
}
