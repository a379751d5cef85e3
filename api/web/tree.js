// A conversation as a tree of messages: an edited question and another answer are branches beside the first ones, and what is
// shown is the path from the root to the leaf.

/** Bytes of chance in a name. */
const hex = (bytes) => Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (byte) => byte.toString(16).padStart(2, '0')).join('');

export class Tree {
  constructor(id = hex(16)) {
    this.id = id;
    this.title = '';
    this.system = '';
    this.sampling = {};
    /** `{ id, parent, role, content, files, about, node }` by id, each after its parent. */
    this.messages = new Map();
    this.leaf = null;
  }

  /** A kept conversation. What follows no message, or itself, is left out. */
  static of(kept) {
    const tree = new Tree(String(kept.id));
    Object.assign(tree, { title: String(kept.title ?? ''), system: String(kept.system ?? ''), sampling: kept.sampling ?? {} });
    for (const message of kept.messages ?? []) {
      if (message.parent !== null && !tree.messages.has(message.parent)) continue;
      tree.messages.set(message.id, { files: [], about: {}, ...message, content: String(message.content ?? '') });
    }
    tree.leaf = tree.messages.has(kept.leaf) ? kept.leaf : [...tree.messages.keys()].at(-1) ?? null;
    return tree;
  }

  /** Adds a message after `parent` and shows it. */
  add(role, content, parent, files = []) {
    const message = { id: hex(8), parent, role, content, files, about: {} };
    this.messages.set(message.id, message);
    this.leaf = message.id;
    return message;
  }

  /** What is shown, in order. */
  path(leaf = this.leaf) {
    const path = [];
    for (let message = this.messages.get(leaf); message; message = this.messages.get(message.parent)) path.push(message);
    return path.reverse();
  }

  /** The messages that stand in the same place, in the order in which they came. */
  siblings({ parent }) {
    return [...this.messages.values()].filter((message) => message.parent === parent);
  }

  /** Shows the branch of `message`: its newest message. */
  turnTo(message) {
    let leaf = message;
    for (let next = message; next; next = [...this.messages.values()].findLast(({ parent }) => parent === leaf.id)) leaf = next;
    this.leaf = leaf.id;
  }
}
