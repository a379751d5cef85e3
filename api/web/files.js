// Texts attached to a question: read in this tab, shown as chips, and sent as fenced text before the question's words.

import { $, announce, bytes, clean, h } from './dom.js';
import { t } from './language.js';

/** Texts of one question. */
const MAX_FILES = 8;
/** Characters of one text; more would fill the memory of most models many times over. */
const MAX_CHARS = 256 * 1024;

export class Files {
  constructor() {
    /** `{ name, text }` */
    this.held = [];
    $('attach').addEventListener('click', () => $('file').click());
    $('file').addEventListener('change', async (event) => {
      await this.take([...event.target.files]);
      event.target.value = '';
    });
    const composer = $('composer');
    composer.addEventListener('dragover', (event) => event.preventDefault());
    composer.addEventListener('drop', (event) => {
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
  }

  async take(files) {
    let fault = '';
    for (const file of files) {
      const name = clean(file.name, 80) || t('unnamed');
      if (this.held.length >= MAX_FILES) fault = t('attached.most', { n: MAX_FILES });
      else if (file.size > 4 * MAX_CHARS) fault = t('attached.size', { name, size: bytes(file.size), most: MAX_CHARS });
      else {
        try {
          const text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
          if (text.includes('\0')) throw new TypeError('binary');
          if (text.length > MAX_CHARS) fault = t('attached.long', { name, n: text.length, most: MAX_CHARS });
          else this.held.push({ name, text });
        } catch {
          fault = t('attached.binary', { name });
        }
      }
    }
    this.render(fault);
    $('prompt').focus();
  }

  /** The texts, which are no longer held. */
  release() {
    const files = this.held;
    this.held = [];
    this.render();
    return files;
  }

  render(fault = '') {
    $('chips').replaceChildren(...this.held.map((file, at) => h('li', { class: 'chip' }, h('span', null, file.name), h('span', { class: 'small' }, bytes(file.text.length)),
      h('button', { type: 'button', 'aria-label': t('attached.remove', { name: file.name }), click: () => {
        this.held.splice(at, 1);
        this.render();
        $('attach').focus();
      } }, '×'))), ...(fault ? [h('li', { class: 'fault', role: 'alert' }, fault)] : []));
    if (this.held.length) announce(t('attached.count', { n: this.held.length }));
  }
}

/** A question as the model reads it: each text in a fence that none of its lines can close. */
export function withFiles({ content, files }) {
  const fenced = (files ?? []).map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = '`'.repeat(longest + 1);
    return `${name}\n${fence}\n${text}\n${fence}\n\n`;
  });
  return fenced.join('') + content;
}
