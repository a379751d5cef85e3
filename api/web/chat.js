// The conversation: what was asked, what comes back, and who computed it.
//
// A conversation is a tree (tree.js) that the node keeps (keeper.js); what is shown is its path to one leaf. One answer
// streams at a time; it can be stopped and asked again, and any question can be edited: each makes a branch beside the
// first. An answer under way is noted with its seed, so that a reload of the tab asks for the same tokens again.

import { chunks, readChunk } from './answer.js';
import { badge, checked, few, keep, revive } from './badge.js';
import { strip } from './chart.js';
import { $, announce, bytes, clean, h, list, rate, write } from './dom.js';
import { Files, withFiles } from './files.js';
import { t } from './language.js';
import { Growing } from './markdown.js';
import { Modes } from './modes.js';
import { readVerdict, tell } from './swarm.js';
import { Tree } from './tree.js';
import { kindOf } from './view.js';

/** Longest answer kept, in characters; a longer one is stopped. */
const MAX_ANSWER = 2_000_000;
/** Distance from the end, in pixels, within which the page keeps following a growing answer. */
const FOLLOW_PX = 80;
/** Messages built at once; earlier ones are built when they come near. */
const WINDOW = 40;
/** Characters of a model's thoughts that are kept with its answer. */
const MAX_THOUGHT = 6_000;
/** Where a tab notes the answer it waits for, so that its reload goes on. */
const WAITING = 'shoal.answering';

/** Messages of a conversation as the node keeps them. */
const plain = (tree, messages) => ({ leaf: tree.leaf, messages: [...messages].map(({ node, ...message }) => message) });

export class Chat extends EventTarget {
  constructor(swarm, keeper, settings) {
    super();
    Object.assign(this, { swarm, keeper, settings });
    this.tree = new Tree();
    this.models = [];
    this.answering = null;
    /** Answers that are complete and not yet checked: `{ turn, outcome }`. */
    this.pending = new Set();
    this.modes = new Modes(swarm);
    this.files = new Files();
    this.log = $('log');
    this.build();
    swarm.addEventListener('change', () => this.refresh());
    swarm.addEventListener('failover', ({ detail }) => this.onFailover(detail));
    settings.addEventListener('change', () => {
      if (this.tree.messages.size) this.keep(this.tree, this.about(this.tree));
    });
  }

  build() {
    const prompt = $('prompt');
    $('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      if (this.answering) this.answering.abort();
      else this.send(prompt.value);
    });
    prompt.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.answering) this.send(prompt.value);
    });
    prompt.addEventListener('input', () => this.grow());
    document.addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.answering && !document.querySelector('dialog[open]')) this.answering.abort();
      const typing = /^(?:INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? '');
      if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey && !$('chat').hidden) {
        event.preventDefault();
        prompt.focus();
      }
    });
    $('fresh').addEventListener('click', () => this.clear());
    for (const button of document.querySelectorAll('#welcome .ideas button')) button.addEventListener('click', () => this.send(button.textContent));
    $('scroll').addEventListener('scroll', () => {
      const box = $('scroll');
      this.following = box.scrollHeight - box.scrollTop - box.clientHeight < FOLLOW_PX;
    }, { passive: true });
    this.following = true;
    addEventListener('pagehide', () => (this.leaving = true));
    addEventListener('pageshow', () => (this.leaving = false));
    this.observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.earlier(), { root: $('scroll'), rootMargin: '1200px 0px 0px 0px' });
  }

  /** The field is as high as its text; the style sheet says where that ends. */
  grow() {
    const prompt = $('prompt');
    prompt.style.height = 'auto';
    prompt.style.height = `${prompt.scrollHeight}px`;
  }

  /** What the swarm tells: the modes that work, the line above the prompt, the models. */
  refresh() {
    this.modes.refresh();
    this.settle();
    this.course();
  }

  /** Answers that were being checked say what came of it; a node that knows nothing of it will not say any more. */
  settle() {
    for (const entry of this.pending) {
      const { tree, turn, outcome } = entry;
      const verdict = this.swarm.verdicts.get(outcome.request);
      const silent = !verdict && this.swarm.snapshots > outcome.snapshots;
      if ((verdict && !verdict.checking) || silent) this.pending.delete(entry);
      if (!silent && (!verdict || verdict.checking === outcome.verdict.checking)) continue;
      outcome.verdict = verdict ?? { ...outcome.verdict, checking: false };
      this.note(tree, turn, outcome);
      const old = turn.node?.querySelector('.badge');
      if (!old) continue;
      const fresh = badge(this.swarm, outcome);
      fresh.open = old.open;
      const held = old.contains(document.activeElement);
      old.replaceWith(fresh);
      if (held) fresh.querySelector('summary').focus();
      if (verdict && !verdict.checking) announce(t('answer.checked', { checked: checked(outcome.verdict) }));
    }
  }

  /** The models that can be asked; fetched again when the node becomes ready. */
  setModels(models) {
    this.models = models;
    const picker = $('model');
    const chosen = picker.value;
    picker.replaceChildren(...models.map((model) => h('option', { value: model.id }, model.shown)));
    picker.disabled = models.length === 0;
    if (models.some((model) => model.id === chosen)) picker.value = chosen;
  }

  /** The line above the prompt: the way of the running answer, or what would happen next. */
  course() {
    const running = this.answering && [...this.swarm.pipelines.values()].findLast((one) => one.request && one.request === this.answering.request);
    const pipeline = running || undefined;
    const layers = this.swarm.model(pipeline?.model)?.layers ?? 1;
    const stages = (pipeline?.stages ?? []).map((stage) => ({ ...stage, kind: kindOf(this.swarm.nodes.get(stage.node)) }));
    strip($('course-strip'), stages, layers);
    if (this.answering && performance.now() < (this.answering.alarmUntil ?? 0)) return;
    $('course').classList.remove('alarm');
    write($('course-text'), this.courseText(pipeline, stages));
  }

  courseText(pipeline, stages) {
    const { swarm } = this;
    if (!swarm.connected) return t(swarm.known ? 'course.unreachable' : 'course.connecting');
    if (this.answering?.waiting) return this.answering.waiting;
    if (!this.answering) {
      if (swarm.state !== 'ready') return swarm.reason || t(swarm.state === 'starting' ? 'course.starting' : 'course.unable');
      return t('course.idle', { n: [...swarm.nodes.values()].filter((node) => !node.self && node.state !== 'gone').length });
    }
    const names = [...new Set(stages.filter((stage) => stage.kind !== 'home').map((stage) => swarm.called(stage.node)))];
    const { tokens, firstAt, mode } = this.answering;
    // Where it is computed is said only when it is known.
    const where = names.length ? t('course.through', { names: few(names, 3) }) : pipeline || mode === 'local' ? t('course.here') : '';
    if (tokens === 0) return pipeline ? t('course.reading', { where }) : t('course.waiting');
    const seconds = (performance.now() - firstAt) / 1000;
    return t('course.tokens', { n: tokens, where, speed: seconds > 0.5 ? t('course.speed', { rate: rate(tokens / seconds) }) : '' });
  }

  onFailover(failover) {
    const { answering } = this;
    if (!answering || (failover.request && answering.request && failover.request !== answering.request)) return;
    const sentence = tell(this.swarm, failover);
    answering.alarmUntil = performance.now() + 6000;
    answering.faults.push(sentence);
    $('course').classList.add('alarm');
    write($('course-text'), sentence);
    announce(sentence);
  }

  /** Says which conversation is shown: in the address, so that a reload finds it, and to the list. */
  turned() {
    const kept = this.tree.messages.size > 0;
    $('welcome').hidden = kept;
    $('fresh').hidden = !kept;
    $('to-chat').href = kept ? `#chat/${this.tree.id}` : '#chat';
    if (!$('chat').hidden) history.replaceState(null, '', kept ? `#chat/${this.tree.id}` : location.pathname + location.search);
    this.dispatchEvent(new Event('turn'));
  }

  /** Begins another conversation; an answer under way goes on in its own. */
  clear() {
    this.opening = '';
    this.tree = new Tree();
    this.show();
    $('prompt').focus();
  }

  /** A conversation is deleted: its answer stops and nothing of it is kept again. Or it is not deleted after all. */
  forget(id, gone = true) {
    const trees = new Set([this.tree, this.answering?.tree, ...[...this.pending].map(({ tree }) => tree)].filter((tree) => tree?.id === id));
    for (const tree of trees) {
      tree.gone = gone;
      if (!gone && tree.missed) this.record(tree, ...tree.messages.values());
      tree.missed = false;
    }
    if (this.answering?.tree.gone) this.answering.abort();
  }

  /** Shows a kept conversation. */
  async openKept(id) {
    if (this.tree.id === id || this.opening === id) return;
    this.opening = id;
    let read;
    if (this.answering?.tree.id === id) {
      read = this.answering.tree;
    } else {
      try {
        read = Tree.of(await this.keeper.read(id));
      } catch (error) {
        if (error.status !== 401) this.keeper.say(error.message);
        if (this.opening === id) this.opening = '';
        return;
      }
      // Another one was chosen meanwhile.
      if (this.opening !== id) return;
    }
    this.opening = '';
    this.tree = read;
    this.settings.fill(this.tree);
    this.following = true;
    this.show();
    this.resume();
  }

  /** Goes on with an answer that a reload of this tab interrupted: the same seed gives the same tokens. */
  resume() {
    const [tree, id] = JSON.parse(sessionStorage.getItem(WAITING) ?? '[]');
    const message = this.tree.messages.get(id);
    if (this.answering || tree !== this.tree.id || !message?.about.asked) return;
    this.stream(message, this.told(message.about.asked));
  }

  /** Shows the branch of the leaf, its end first: earlier messages are built when one comes near them. */
  show() {
    const path = this.tree.path();
    this.first = Math.max(0, path.length - WINDOW);
    this.log.replaceChildren(...path.slice(this.first).map((message) => this.nodeOf(message)));
    this.turned();
    this.follow();
    this.watch();
  }

  /** Builds earlier messages above those that are shown, which stay where they are. */
  earlier() {
    if (!this.first) return;
    const box = $('scroll');
    const below = box.scrollHeight - box.scrollTop;
    const from = Math.max(0, this.first - WINDOW);
    this.log.prepend(...this.tree.path().slice(from, this.first).map((message) => this.nodeOf(message)));
    this.first = from;
    box.scrollTop = box.scrollHeight - below;
    this.watch();
  }

  /** Has the place above the messages watched: it may still be near. */
  watch() {
    this.observer.unobserve($('earlier'));
    if (this.first) this.observer.observe($('earlier'));
  }

  nodeOf(message) {
    if (!message.node) {
      message.node = h('article', { class: `turn ${message.role === 'user' ? 'asked' : 'answer'}`, 'aria-label': t(message.role === 'user' ? 'you' : 'answer') });
      if (message.role === 'user') this.showQuestion(message);
      else this.showAnswer(message);
    }
    this.branches(message);
    return message.node;
  }

  /** Which of several branches this is, and buttons to the others. */
  branches(message) {
    const tools = message.node.querySelector('.tools');
    tools?.querySelector('.branches')?.remove();
    const all = this.tree.siblings(message);
    if (!tools || all.length < 2) return;
    const at = all.indexOf(message);
    const step = (by, sign, name) => h('button', { type: 'button', class: 'quiet', 'aria-label': name, disabled: !all[at + by], click: () => this.turnTo(all[at + by], name) }, sign);
    tools.append(h('span', { class: 'branches', role: 'group', 'aria-label': t('branches') }, step(-1, '‹', t('branches.earlier')), h('span', null, `${at + 1} / ${all.length}`), step(1, '›', t('branches.later'))));
  }

  turnTo(message, name) {
    if (this.answering) return;
    this.tree.turnTo(message);
    this.following = false;
    this.show();
    message.node.querySelector(`[aria-label="${name}"]:enabled, .branches button:enabled`)?.focus();
    message.node.scrollIntoView({ block: 'nearest' });
    this.keep(this.tree, { leaf: this.tree.leaf });
  }

  /** What a conversation is asked with. The settings that are shown are those of the conversation that is shown. */
  about(tree) {
    if (tree === this.tree) Object.assign(tree, { system: this.settings.system, sampling: this.settings.sampling });
    return { system: tree.system, sampling: tree.sampling };
  }

  /** Has the node keep a change, or all of a conversation of which it missed something. */
  keep(tree, change) {
    // What happens while it is being deleted is kept after all when that fails.
    if (tree.gone) tree.missed = true;
    else this.keeper.change(tree.id, change, () => ({ ...this.about(tree), ...plain(tree, tree.messages.values()) }));
  }

  /** Has the node keep messages, and with the first ones what they were asked with. */
  record(tree, ...messages) {
    const about = this.about(tree);
    // As it is now: it goes on changing before it is sent.
    const change = structuredClone(plain(tree, messages));
    this.keep(tree, tree.messages.size <= messages.length ? { ...about, ...change } : change);
  }

  /** Adds a question and its answer. */
  async send(text) {
    const content = text.trim();
    if ((!content && !this.files.held.length) || this.answering) return;
    // The word may have been taken back meanwhile.
    const { mode } = this.modes;
    if (!this.modes.agreed(mode) && !(await this.modes.agree(mode))) return;
    $('prompt').value = '';
    this.grow();
    this.following = true;
    this.ask(content, this.tree.leaf, this.files.release());
  }

  ask(content, parent, files) {
    this.opening = '';
    const branch = this.tree.leaf !== parent;
    const message = this.tree.add('user', content, parent, files);
    this.record(this.tree, message);
    if (branch) this.show();
    else this.put(message);
    this.answer(message);
  }

  put(message) {
    this.log.append(this.nodeOf(message));
    this.turned();
    this.follow();
  }

  showQuestion(message) {
    const edit = h('button', { type: 'button', class: 'quiet', click: () => this.edit(message) }, t('edit'));
    const files = message.files.length > 0 && h('ul', { class: 'chips' }, message.files.map((file) => h('li', { class: 'chip' }, h('span', null, clean(file.name, 80)), h('span', { class: 'small' }, bytes(String(file.text).length)))));
    message.node.replaceChildren(...[files, h('p', { class: 'question' }, message.content), h('div', { class: 'tools' }, edit)].filter(Boolean));
  }

  /** Turns a question into a field; what is sent is a branch beside it. */
  edit(message) {
    if (this.answering) return;
    const field = h('textarea', { rows: Math.min(12, message.content.split('\n').length + 1), 'aria-label': t('question.edit') });
    field.value = message.content;
    const back = () => {
      this.showQuestion(message);
      this.branches(message);
    };
    const form = h('form', {
      class: 'edit',
      submit: (event) => {
        event.preventDefault();
        const content = field.value.trim();
        if (!content || this.answering) return;
        back();
        this.ask(content, message.parent, message.files);
      },
      keydown: (event) => {
        if (event.key === 'Escape') {
          back();
          message.node.querySelector('button').focus();
        }
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
      },
    }, field, h('div', { class: 'tools' }, h('button', { type: 'submit', class: 'solid small' }, t('question.again')), h('button', { type: 'button', class: 'quiet', click: back }, t('cancel'))));
    message.node.replaceChildren(form);
    field.focus();
  }

  /** An answer as it was kept. */
  showAnswer(message) {
    const text = h('div', { class: 'text' });
    const { outcome, asked, thought } = message.about;
    if (thought) message.node.append(h('details', { class: 'thinking' }, h('summary', {}, t('answer.thinking')), h('div', { class: 'thought' }, String(thought))));
    message.node.append(text);
    new Growing(text).update(message.content);
    if (outcome) return this.close(message, revive(outcome));
    const again = asked && this.answering?.message !== message && h('button', { type: 'button', class: 'quiet', click: () => this.stream(message, this.told(asked)) }, t('answer.finish'));
    if (again) message.node.append(h('p', { class: 'note' }, t('answer.interrupted')));
    message.node.append(h('div', { class: 'tools' }, again));
  }

  /** Asks for another answer to the same question, beside this one; one without a word is no branch. */
  regenerate(message) {
    if (this.answering) return;
    if (message.content) this.answer(this.tree.messages.get(message.parent));
    else this.stream(message, this.asked());
  }

  /** What is asked beside the messages. */
  asked() {
    const asked = {
      model: $('model').value || undefined,
      stream: true,
      stream_options: { include_usage: true },
      mode: this.modes.mode,
      // Drawn here and not by the node, so that it is known when the connection breaks.
      seed: crypto.getRandomValues(new Uint32Array(1))[0],
      ...this.settings.sampling,
      ...($('rounding').checked && { allow_rounding: true }),
    };
    return this.told(asked);
  }

  /** The same with the instructions, which are kept once and not with every answer. */
  told(asked) {
    return this.settings.system ? { ...asked, system: this.settings.system } : asked;
  }

  /** Streams an answer to the question. */
  answer(question) {
    const branch = this.tree.leaf !== question.id;
    const message = this.tree.add('assistant', '', question.id);
    if (branch) this.first = this.tree.path().length;
    this.stream(message, this.asked(), branch);
  }

  /** Streams an answer into its message. */
  async stream(message, asked, branch = false) {
    const { tree } = this;
    const controller = new AbortController();
    const answering = { tree, message, abort: () => controller.abort(), tokens: 0, firstAt: 0, startedAt: performance.now(), mode: asked.mode, request: '', faults: [], waiting: '' };
    this.answering = answering;
    const { system, ...fields } = asked;
    const told = tree.path(message.parent).map((one) => ({ role: one.role, content: withFiles(one) }));
    const body = { ...fields, messages: system ? [{ role: 'system', content: system }, ...told] : told };
    Object.assign(message, { content: '', about: { asked: fields } });
    this.record(tree, message);
    sessionStorage.setItem(WAITING, JSON.stringify([tree.id, message.id]));
    const text = h('div', { class: 'text', 'aria-busy': 'true' });
    // What the model thinks before it answers: there to be opened, and no part of the conversation.
    const thought = h('div', { class: 'thought' });
    const thinking = h('details', { class: 'thinking', hidden: '' }, h('summary', {}, t('answer.thinking')), thought);
    message.node ??= h('article', { class: 'turn answer', 'aria-label': t('answer') });
    message.node.replaceChildren(thinking, text);
    if (branch) this.show();
    else if (!message.node.isConnected) this.put(message);
    this.setBusy(true);
    const growing = new Growing(text);
    let drawn = true;
    let thoughtLength = 0;
    const show = () => {
      drawn = true;
      growing.update(message.content);
      this.follow();
      this.course();
    };
    const outcome = { finish: 'stopped', mode: body.mode, seed: body.seed };
    const waiting = (sentence) => {
      answering.waiting = sentence;
      this.course();
    };
    try {
      for await (const chunk of chunks(body, controller.signal, answering, outcome, waiting)) {
        if (chunk.error) throw new Error(clean(chunk.error.message, 300) || t('fault.report'));
        readChunk(outcome, chunk);
        const choice = list(chunk.choices, 1)[0];
        const piece = choice?.delta?.content;
        const reasoning = choice?.delta?.reasoning_content;
        if (choice?.finish_reason) outcome.finish = clean(choice.finish_reason, 20);
        if (typeof reasoning === 'string' && reasoning !== '') {
          answering.tokens += 1;
          answering.firstAt ||= performance.now();
          thinking.hidden = false;
          thought.append(reasoning);
          thoughtLength += reasoning.length;
          this.follow();
          this.course();
          if (thoughtLength > MAX_ANSWER) controller.abort();
        }
        if (typeof piece !== 'string' || piece === '') continue;
        answering.tokens += 1;
        answering.firstAt ||= performance.now();
        message.content += piece;
        if (drawn) requestAnimationFrame(show);
        drawn = false;
        if (message.content.length > MAX_ANSWER) controller.abort();
      }
    } catch (error) {
      if (error.name !== 'AbortError') outcome.error = error.message;
    }
    // A tab that is being left goes on after its reload.
    if (this.leaving) return;
    sessionStorage.removeItem(WAITING);
    show();
    text.removeAttribute('aria-busy');
    outcome.tokens ||= answering.tokens;
    outcome.seconds = answering.firstAt ? (performance.now() - answering.firstAt) / 1000 : 0;
    outcome.firstMs = answering.firstAt ? answering.firstAt - answering.startedAt : NaN;
    outcome.told = answering.faults;
    outcome.request = answering.request;
    outcome.verdict = readVerdict(outcome.report ?? {});
    outcome.snapshots = this.swarm.snapshots;
    outcome.pipeline = [...this.swarm.pipelines.values()].findLast((one) => answering.request && one.request === answering.request);
    this.answering = null;
    this.setBusy(false);
    if (thoughtLength) message.about.thought = thought.textContent.slice(0, MAX_THOUGHT).toWellFormed();
    this.note(tree, message, outcome);
    if (outcome.verdict.checking && message.content) this.pending.add({ tree, turn: message, outcome });
    this.close(message, outcome);
    if (tree === this.tree) this.branches(message);
    this.settle();
    this.follow();
    announce(outcome.error ? '' : t('answer.complete', { n: outcome.tokens }));
  }

  /** Keeps what is known of an answer. */
  note(tree, message, outcome) {
    const { thought } = message.about;
    message.about = { outcome: keep(outcome), ...(thought && { thought }) };
    this.record(tree, message);
  }

  /** What stands under an answer that is over. */
  close(message, outcome) {
    if (outcome.error) {
      message.node.append(h('p', { class: 'fault', role: 'alert' }, message.content ? t('answer.broken', { why: outcome.error }) : outcome.error));
    } else if (!message.content) {
      message.node.append(h('p', { class: 'note' }, t(outcome.finish === 'stopped' ? 'answer.stopped' : 'answer.empty')));
    }
    if (message.content) message.node.append(badge(this.swarm, outcome));
    const copy = h('button', { type: 'button', class: 'quiet', click: () => navigator.clipboard?.writeText(message.content).then(() => announce(t('copied')), () => {}) }, t('copy'));
    message.node.append(h('div', { class: 'tools' },
      message.content && copy,
      h('button', { type: 'button', class: 'quiet', click: () => this.regenerate(message) }, t(outcome.error ? 'answer.again' : 'answer.regenerate'))));
  }

  setBusy(busy) {
    const button = $('send');
    write(button, t(busy ? 'stop' : 'send'));
    button.classList.toggle('stop', busy);
    $('composer').classList.toggle('busy', busy);
    document.body.classList.toggle('answering', busy);
    if (busy) announce(t('answering'));
    this.course();
  }

  follow() {
    if (this.following) $('scroll').scrollTop = $('scroll').scrollHeight;
  }
}
