// What the node keeps of the swarm, on the page about the swarm: names, other days, answers step by step, invites. Fetched
// when that page is looked at for the first time.

import { $ } from './dom.js';
import { Invite } from './invite.js';
import { Nodes } from './nodes.js';
import { Past } from './past.js';
import { Replay } from './replay.js';

/** What was written down is read again this often while the page is looked at: the node writes every five minutes. */
const PAST_MS = 60_000;

export class Records {
  constructor(swarm, panel) {
    this.nodes = new Nodes(swarm);
    this.past = new Past();
    this.replay = new Replay(swarm);
    new Invite();
    panel.tables = () => this.nodes.render();
    swarm.addEventListener('ended', () => $('swarm').hidden || this.replay.refresh());
    setInterval(() => $('swarm').hidden || document.hidden || this.past.refresh(), PAST_MS);
  }

  /** The page is turned to. */
  show() {
    this.nodes.render();
    this.past.refresh();
    this.replay.refresh();
  }
}
