// Conversations and presets as the node keeps them: on its machine, encrypted, for the holder of the token.
//
// Changes are sent one after the other, so that a message never arrives before the one it follows. What could not be kept is
// said once, and the conversation goes on in this tab.

import { list, number } from './dom.js';
import { json } from './http.js';

/** Conversations shown in the list. */
const MAX_LISTED = 2000;
/** After a change the list and its room are read again: other tabs change them too. */
const REFRESH_MS = 1500;

const read = (value) => ({
  id: String(value?.id ?? ''),
  title: String(value?.title ?? '').slice(0, 200),
  changedMs: number(value?.changed_ms),
  messages: number(value?.messages),
  excerpt: String(value?.excerpt ?? '').slice(0, 200),
});

export class Keeper extends EventTarget {
  constructor() {
    super();
    this.conversations = [];
    this.presets = [];
    this.room = { bytes: 0, mostBytes: 0 };
    /** Why nothing is kept; empty while things are. */
    this.fault = '';
    this.known = false;
    this.last = Promise.resolve();
    /** Conversations of which the node does not have everything. */
    this.behind = new Set();
  }

  say(fault) {
    this.fault = fault;
    this.dispatchEvent(new Event('change'));
  }

  /** Reads what there is. */
  async refresh() {
    try {
      const { conversations, room } = await json('/conversations');
      this.conversations = list(conversations, MAX_LISTED).map(read);
      this.room = { bytes: number(room?.bytes), mostBytes: number(room?.most_bytes) };
      this.known = true;
      this.say('');
    } catch (error) {
      if (error.status !== 401) this.say(error.message);
    }
  }

  async readPresets() {
    try {
      this.presets = list((await json('/presets')).presets, 64);
    } catch {
      this.presets = [];
    }
    this.dispatchEvent(new Event('presets'));
  }

  async keepPresets(presets) {
    await json('/presets', { body: { presets } });
    this.presets = presets;
    this.dispatchEvent(new Event('presets'));
  }

  read(id) {
    return json(`/conversations/${id}`);
  }

  async search(words) {
    return list((await json('/conversations/search', { body: { words } })).conversations, MAX_LISTED).map(read);
  }

  /** Keeps a change of a conversation, after all earlier ones; after one that could not be kept, `whole` of it. */
  change(id, change, whole = () => change) {
    this.last = this.last.then(async () => {
      if (!this.known) await this.refresh();
      if (!this.known) return this.behind.add(id);
      try {
        const summary = read(await json(`/conversations/${id}`, { body: this.behind.has(id) ? whole() : change }));
        this.behind.delete(id);
        this.conversations = [summary, ...this.conversations.filter((one) => one.id !== id)];
        clearTimeout(this.later);
        this.later = setTimeout(() => this.refresh(), REFRESH_MS);
        this.say('');
      } catch (error) {
        // What is refused is not sent again with the rest: the conversation may have been deleted elsewhere.
        if (error.status !== 400) this.behind.add(id);
        this.say(`The last change is in this tab only: ${error.message}`);
      }
    });
    return this.last;
  }

  /** Deletes a conversation; its bytes go from the disk. */
  remove(id) {
    this.last = this.last.then(async () => {
      try {
        await json(`/conversations/${id}`, { method: 'DELETE' });
        this.conversations = this.conversations.filter((one) => one.id !== id);
        this.say('');
      } catch (error) {
        this.say(error.message);
      }
    });
    return this.last;
  }
}
