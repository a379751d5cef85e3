// Conversations and presets as the node keeps them: on its machine, encrypted, for the holder of the token.
//
// Changes are sent one after the other, so that a message never arrives before the one it follows. What could not be kept is
// said until it is, and the conversation goes on in this tab: its next change brings all of it.

import { list, number } from './dom.js';
import { json } from './http.js';
import { t } from './language.js';

/** Conversations shown in the list. */
const MAX_LISTED = 2000;
/** Presets that the node keeps. */
const MAX_PRESETS = 64;
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
    /** Why the last deletion failed; empty when it did not. */
    this.undeleted = '';
  }

  say(fault) {
    this.fault = fault;
    this.dispatchEvent(new Event('change'));
  }

  /** Something was read or kept; what is missing at the node is still said. */
  settle() {
    this.say(this.behind.size ? t('history.behind', { n: this.behind.size }) : this.undeleted);
  }

  /** Reads what there is. */
  async refresh() {
    try {
      const { conversations, room } = await json('/conversations');
      this.conversations = list(conversations, MAX_LISTED).map(read);
      this.room = { bytes: number(room?.bytes), mostBytes: number(room?.most_bytes) };
      this.known = true;
      this.settle();
    } catch (error) {
      if (error.status !== 401) this.say(error.message);
    }
  }

  /** Reads the presets; throws when they cannot be read, and what is known of them stays. */
  async readPresets() {
    this.presets = list((await json('/presets')).presets, MAX_PRESETS);
    this.dispatchEvent(new Event('presets'));
    return this.presets;
  }

  /** Keeps what `change` makes of the presets as they are now: other tabs change them too. */
  async changePresets(change) {
    const presets = change(await this.readPresets());
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

  /**
   * Keeps a change of a conversation, after all earlier ones; after one that could not be kept, what `whole` says. Without
   * it the change is sent alone, and what is missing is still to be sent.
   */
  change(id, change, whole) {
    this.last = this.last.then(async () => {
      if (!this.known) await this.refresh();
      if (!this.known) return this.behind.add(id);
      try {
        const all = this.behind.has(id) && whole;
        const summary = read(await json(`/conversations/${id}`, { body: all ? whole() : change }));
        if (all) this.behind.delete(id);
        this.conversations = [summary, ...this.conversations.filter((one) => one.id !== id)];
        clearTimeout(this.later);
        this.later = setTimeout(() => this.refresh(), REFRESH_MS);
        this.settle();
      } catch (error) {
        // What is refused is not sent again with the rest: the conversation may have been deleted elsewhere.
        if (error.status !== 400 && !(error.status === 404 && !change.messages)) this.behind.add(id);
        this.say(t('history.tab', { why: error.message }));
      }
    });
    return this.last;
  }

  /** Deletes a conversation; its bytes go from the disk. Whether it is gone. */
  remove(id) {
    const removed = this.last.then(async () => {
      try {
        await json(`/conversations/${id}`, { method: 'DELETE' });
      } catch (error) {
        // One that was deleted elsewhere is gone too.
        if (error.status !== 404) {
          this.undeleted = t('history.undeleted.why', { why: error.message });
          this.say(this.undeleted);
          return false;
        }
      }
      this.undeleted = '';
      this.behind.delete(id);
      this.conversations = this.conversations.filter((one) => one.id !== id);
      this.settle();
      return true;
    });
    this.last = removed;
    return removed;
  }
}
