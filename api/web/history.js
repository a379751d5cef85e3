// The conversations at the side: listed by day, searched in their words, renamed, exported and deleted.

import { $, announce, bytes, clean, h, write } from './dom.js';
import { locale, t } from './language.js';

/** Pause after a letter before the words are searched. */
const SEARCH_MS = 180;
const DAY_MS = 86_400_000;

export class History {
  constructor(keeper, chat) {
    Object.assign(this, { keeper, chat, found: null });
    const words = $('history-words');
    words.addEventListener('input', () => {
      clearTimeout(this.later);
      this.later = setTimeout(() => this.search(words.value.trim()), SEARCH_MS);
    });
    words.form.addEventListener('submit', (event) => event.preventDefault());
    $('history-fresh').addEventListener('click', () => {
      this.close();
      chat.clear();
    });
    $('history-toggle').addEventListener('click', () => this.toggle());
    $('history-close').addEventListener('click', () => this.close(true));
    $('history').addEventListener('keydown', (event) => {
      if (event.key === 'Escape' && this.covers()) {
        event.stopPropagation();
        this.close(true);
      }
    });
    keeper.addEventListener('change', () => this.render());
    chat.addEventListener('turn', () => this.render());
    this.show(localStorage.getItem('shoal.history') !== 'closed' && !this.covers());
  }

  /** Whether the list lies over the conversation, as it does where there is little room. */
  covers() {
    return matchMedia('(max-width: 64rem)').matches;
  }

  /** On its own the list is open where there is room and closed where there is none; the style sheet does the same. */
  show(open) {
    document.body.classList.toggle('listing', open && this.covers());
    document.body.classList.toggle('unlisted', !open && !this.covers());
    $('history-toggle').setAttribute('aria-expanded', String(open));
  }

  toggle() {
    const open = $('history-toggle').getAttribute('aria-expanded') === 'false';
    this.show(open);
    if (!this.covers()) localStorage.setItem('shoal.history', open ? 'open' : 'closed');
    if (open) $('history-words').focus();
  }

  close(back = false) {
    if (!this.covers()) return;
    this.show(false);
    if (back) $('history-toggle').focus();
  }

  /** Searches for the last words: one search at a time, each reads all conversations. */
  async search(words) {
    this.wanted = words;
    if (this.searching) return;
    this.searching = true;
    let asked;
    while (this.wanted !== asked) {
      asked = this.wanted;
      try {
        const found = asked ? await this.keeper.search(asked) : null;
        // An answer to words that are no longer there comes too late.
        if (this.wanted !== asked) continue;
        this.found = found;
        if (found) announce(t('history.found', { n: found.length }));
      } catch (error) {
        this.keeper.say(error.message);
      }
    }
    this.searching = false;
    this.render();
  }

  render() {
    const { keeper, chat } = this;
    const known = new Map(keeper.conversations.map((one) => [one.id, one]));
    const shown = this.found ? this.found.filter((one) => known.has(one.id)) : keeper.conversations;
    write($('history-note'), keeper.fault || (keeper.known && !shown.length ? t(this.found ? 'history.nothing' : 'history.empty') : ''));
    $('history-note').classList.toggle('fault', keeper.fault !== '');
    write($('history-room'), keeper.conversations.length ? t('history.room', { conversations: t('count.conversations', { n: keeper.conversations.length }), used: bytes(keeper.room.bytes), most: bytes(keeper.room.mostBytes) }) : '');
    // Names and places decide what is drawn; a list that is the same stays, with the focus in it.
    const state = JSON.stringify([shown, chat.tree.id, this.renaming]);
    if (state === this.state) return;
    this.state = state;
    // One that differs gets the focus and the open menu back: the news of an answer comes when it comes.
    const of = (place) => place?.closest?.('#history-list li')?.dataset.id;
    const held = of(document.activeElement);
    const part = document.activeElement.matches('.title') ? '.title' : 'summary';
    const open = of($('history-list').querySelector('details[open]'));
    const again = (id) => id && [...$('history-list').children].find((item) => item.dataset.id === id);
    let day = '';
    $('history-list').replaceChildren(...shown.flatMap((one) => {
      const age = dayOf(one.changedMs);
      const head = age === day ? [] : [h('li', { class: 'day' }, age)];
      day = age;
      return [...head, this.item(one)];
    }));
    again(open)?.querySelector('details')?.setAttribute('open', '');
    if (document.activeElement === document.body) again(held)?.querySelector(part)?.focus();
  }

  item(one) {
    const open = one.id === this.chat.tree.id;
    if (this.renaming === one.id) return this.renamer(one);
    const button = (name, act) => h('button', { type: 'button', class: 'quiet', click: act }, name);
    const title = clean(one.title, 80) || t('history.untitled');
    return h('li', { class: open ? 'kept open' : 'kept', 'data-id': one.id },
      h('button', { type: 'button', class: 'title', 'aria-current': open && 'true', click: () => this.open(one.id) }, h('span', null, title), one.excerpt && h('span', { class: 'excerpt' }, clean(one.excerpt, 120))),
      h('details', { class: 'more', name: 'kept' }, h('summary', { 'aria-label': t('history.more', { title }) }, '⋯'),
        h('div', { class: 'menu' },
          button(t('history.rename'), () => this.rename(one.id)),
          button(t('history.markdown'), () => this.export(one.id, 'md')),
          button(t('history.json'), () => this.export(one.id, 'json')),
          button(t('history.delete'), (event) => this.remove(one, event.currentTarget)))));
  }

  async open(id) {
    this.close();
    await this.chat.openKept(id);
  }

  rename(id) {
    this.renaming = id;
    this.render();
    $('history-list').querySelector('input')?.select();
  }

  renamer(one) {
    const field = h('input', { 'aria-label': t('history.name'), maxlength: 120, value: one.title });
    let over = false;
    const end = (kept) => {
      if (over) return;
      over = true;
      this.renaming = undefined;
      if (kept && field.value !== one.title) {
        this.keeper.change(one.id, { title: field.value });
      }
      this.render();
    };
    return h('li', { class: 'kept' }, h('form', {
      submit: (event) => {
        event.preventDefault();
        end(true);
      },
      focusout: () => end(true),
      keydown: (event) => {
        if (event.key !== 'Escape') return;
        event.stopPropagation();
        end(false);
      },
    }, field));
  }

  /** The first click asks, the second deletes. */
  async remove(one, button) {
    if (button.dataset.sure !== 'yes') {
      button.dataset.sure = 'yes';
      button.classList.add('fault');
      button.textContent = t('history.sure');
      return;
    }
    this.chat.forget(one.id);
    if (!(await this.keeper.remove(one.id))) {
      this.chat.forget(one.id, false);
      return announce(t('history.undeleted'));
    }
    announce(t('history.deleted'));
    if (this.chat.tree.id === one.id) this.chat.clear();
    await this.keeper.refresh();
  }

  async export(id, form) {
    try {
      const kept = await this.keeper.read(id);
      const text = form === 'json' ? JSON.stringify(kept, null, 2) : markdown(kept);
      const address = URL.createObjectURL(new Blob([text], { type: form === 'json' ? 'application/json' : 'text/markdown' }));
      const name = (kept.title || t('history.file')).toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60) || t('history.file');
      h('a', { href: address, download: `${name}.${form}` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10_000);
    } catch (error) {
      this.keeper.say(error.message);
    }
  }
}

function dayOf(ms) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (ms >= midnight) return t('history.today');
  if (ms >= midnight - DAY_MS) return t('history.yesterday');
  if (ms >= midnight - 6 * DAY_MS) return t('history.week');
  return new Date(ms).toLocaleDateString(locale, { month: 'long', year: 'numeric' });
}

/** The branch that is shown, as Markdown. */
export function markdown(kept) {
  const messages = new Map(kept.messages.map((message) => [message.id, message]));
  const path = [];
  for (let message = messages.get(kept.leaf); message; message = messages.get(message.parent)) path.unshift(message);
  const system = kept.system ? [`> ${kept.system.replaceAll('\n', '\n> ')}`] : [];
  const told = path.map(({ role, content, files }) => `## ${t(role === 'user' ? 'you' : 'answer')}\n\n${(files ?? []).map(({ name }) => `*${t('history.attached', { name })}*\n\n`).join('')}${content}`);
  return `${[`# ${kept.title || t('history.untold')}`, ...system, ...told].join('\n\n')}\n`;
}
