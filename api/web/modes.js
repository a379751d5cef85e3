// Who may read what is sent: the four modes, the sentence of each, and the owner's word before strangers compute.

import { $, write } from './dom.js';

const MODES = [
  { mode: 'local', sentence: 'Computed on this machine alone. No one else can read it.' },
  { mode: 'trusted', sentence: 'Computed only on machines you named. Their owners can read it.' },
  { mode: 'boomerang', sentence: 'Strangers never receive your text, but a determined one can reconstruct most of it from what it computes on.' },
  { mode: 'open', sentence: 'Any machine of the swarm may read your text and the answer.' },
];

export class Modes {
  constructor(swarm) {
    this.swarm = swarm;
    this.mode = 'local';
    this.chosen = false;
    $('modes').addEventListener('change', (event) => this.choose(event.target.value));
    this.say();
  }

  /** A mode was picked: where strangers come in and the owner has not agreed yet, the sentence is agreed to first. */
  async choose(mode) {
    if (!this.agreed(mode) && !(await this.agree(mode))) {
      document.querySelector(`#modes input[value="${this.mode}"]`).checked = true;
    } else {
      this.mode = mode;
      this.chosen = true;
    }
    this.say();
  }

  /** Whether prompts may go out in this mode: the node keeps its owner's word. */
  agreed(mode) {
    return this.info(mode)?.agreed ?? true;
  }

  /** Shows the sentence of a mode; whether it was agreed to, and the node took note. */
  async agree(mode) {
    const dialog = $('consent');
    write($('consent-sentence'), this.sentence(mode));
    $('consent-fault').hidden = true;
    for (;;) {
      dialog.returnValue = '';
      dialog.showModal();
      await new Promise((resolve) => dialog.addEventListener('close', resolve, { once: true }));
      if (dialog.returnValue !== 'yes') return false;
      try {
        await this.swarm.agree(mode);
        return true;
      } catch (error) {
        write($('consent-fault'), error.message);
        $('consent-fault').hidden = false;
      }
    }
  }

  info(mode) {
    return this.swarm.modes.find((one) => one.mode === mode);
  }

  sentence(mode) {
    return this.info(mode)?.sentence || MODES.find((one) => one.mode === mode).sentence;
  }

  /** The sentence under the modes: who can read what is about to be sent. */
  say() {
    const info = this.info(this.mode);
    const missing = info && !info.available ? ` Not possible now: ${info.reason || 'no such machine is connected'}.` : '';
    write($('sentence'), this.sentence(this.mode) + missing);
    $('sentence').className = `sentence ${this.mode}`;
  }

  /** What the swarm tells: the mode of the node, until another one is chosen, and which work. */
  refresh() {
    const { swarm } = this;
    if (!this.chosen && swarm.known && this.mode !== swarm.defaultMode && MODES.some(({ mode }) => mode === swarm.defaultMode)) {
      if (this.agreed(swarm.defaultMode)) {
        this.mode = swarm.defaultMode;
        document.querySelector(`#modes input[value="${this.mode}"]`).checked = true;
      }
    }
    this.say();
  }
}
