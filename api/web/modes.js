// Who may read what is sent: the four modes, the sentence of each, and the owner's word before strangers compute.

import { $, write } from './dom.js';
import { english, t } from './language.js';

const MODES = ['local', 'trusted', 'boomerang', 'open'];
/** Those in which strangers compute: they need the owner's word. */
const STRANGERS = ['boomerang', 'open'];

export class Modes {
  constructor(swarm) {
    this.swarm = swarm;
    this.mode = 'local';
    this.chosen = false;
    $('modes').addEventListener('change', (event) => this.choose(event.target.value));
    $('revoke').addEventListener('click', () => this.revoke());
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

  /** Takes the owner's word on the mode back: the next prompt stays where no stranger computes. */
  async revoke() {
    try {
      await this.swarm.agree(this.mode, false);
    } catch (error) {
      write($('sentence'), error.message);
      return;
    }
    this.mode = 'local';
    this.chosen = true;
    const local = document.querySelector('#modes input[value="local"]');
    local.checked = true;
    local.focus();
    this.say();
  }

  info(mode) {
    return this.swarm.modes.find((one) => one.mode === mode);
  }

  sentence(mode) {
    // The node says it in English.
    return (english && this.info(mode)?.sentence) || t(`sentence.${mode}`);
  }

  /** The sentence under the modes: who can read what is about to be sent. */
  say() {
    const info = this.info(this.mode);
    const sentence = this.sentence(this.mode);
    write($('sentence'), info?.available === false ? t('sentence.missing', { sentence, why: info.reason || t('sentence.absent') }) : sentence);
    $('sentence').className = `sentence ${this.mode}`;
    $('revoke').hidden = !STRANGERS.includes(this.mode) || info?.agreed !== true;
  }

  /** What the swarm tells: the mode of the node, until another one is chosen, and which work. */
  refresh() {
    const { swarm } = this;
    if (!this.chosen && swarm.known && this.mode !== swarm.defaultMode && MODES.includes(swarm.defaultMode)) {
      if (this.agreed(swarm.defaultMode)) {
        this.mode = swarm.defaultMode;
        document.querySelector(`#modes input[value="${this.mode}"]`).checked = true;
      }
    }
    this.say();
  }
}
