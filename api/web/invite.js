// A code for a friend, as text, as a command and as a QR code. In a private swarm it is the key: it is asked for when it is
// wanted, and leaves the page again.

import { $, announce, h, list, s, write } from './dom.js';
import { json } from './http.js';
import { t } from './language.js';

/** Modules of the quiet zone that readers need around the code. */
const QUIET = 4;
const MAX_MODULES = 177;

/** The rows of a code as one path, a run of dark modules each a rectangle. */
export function path(rows) {
  return rows.map((row, y) => [...row.matchAll(/1+/g)].map(({ index, 0: run }) => `M${index + QUIET} ${y + QUIET}h${run.length}v1h-${run.length}z`).join('')).join('');
}

export class Invite {
  constructor() {
    $('invite-show').addEventListener('click', () => ($('invite-show').getAttribute('aria-expanded') === 'true' ? this.hide() : this.show()));
    for (const [button, text] of [['invite-copy', () => this.command], ['invite-copy-link', () => this.link]]) $(button).addEventListener('click', () => this.copy(text()));
  }

  hide() {
    this.command = this.link = '';
    $('invite-view').hidden = true;
    $('invite-qr').replaceChildren();
    for (const place of ['invite-command', 'invite-link']) write($(place), '');
    $('invite-show').setAttribute('aria-expanded', 'false');
    write($('invite-show'), t('invite.show'));
  }

  async show() {
    $('invite-fault').hidden = true;
    try {
      const told = await json('/swarm/invite');
      const code = String(told.code ?? '').slice(0, 4096);
      if (!/^shoal1[a-z0-9]+$/.test(code)) throw new Error(t('fault.event'));
      this.command = `shoal join ${code}`;
      this.link = `shoal:${code}`;
      write($('invite-command'), this.command);
      write($('invite-link'), this.link);
      const rows = list(told.qr, MAX_MODULES).map((row) => String(row).slice(0, MAX_MODULES));
      const size = rows.length + 2 * QUIET;
      $('invite-qr').replaceChildren(...(rows.length ? [s('svg', { class: 'qr', viewBox: `0 0 ${size} ${size}`, role: 'img', 'aria-label': t('invite.qr') }, s('rect', { class: 'qr-paper', width: size, height: size }), s('path', { class: 'qr-ink', d: path(rows) }))] : [h('p', { class: 'small' }, t('invite.long'))]));
      $('invite-view').hidden = false;
      $('invite-show').setAttribute('aria-expanded', 'true');
      write($('invite-show'), t('invite.hide'));
    } catch (error) {
      write($('invite-fault'), error.message);
      $('invite-fault').hidden = false;
    }
  }

  async copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      announce(t('invite.copied'));
    } catch {
      announce(t('invite.uncopied'));
    }
  }
}
