// The models of this machine and those that can be fetched: size, fit, progress, removal.

import { $, announce, bytes, clean, h, list, number, write } from './dom.js';
import { events, json, request } from './http.js';
import { t } from './language.js';

const SEARCH_MS = 250;

const read = (value) => ({
  name: String(value?.name ?? '').slice(0, 128),
  title: clean(value?.title, 80),
  bytes: number(value?.bytes),
  here: number(value?.here_bytes),
  license: clean(value?.license, 60),
  fit: clean(value?.fit, 120),
  removable: value?.removable === true,
});

export class Models {
  constructor() {
    const words = $('library-words');
    words.addEventListener('input', () => {
      clearTimeout(this.later);
      this.later = setTimeout(() => this.search(), SEARCH_MS);
    });
    words.form.addEventListener('submit', (event) => event.preventDefault());
  }

  /** Reads both lists; called when the page is turned to. */
  async refresh() {
    if (!$('library-here').children.length) write($('library-room'), t('library.looking'));
    try {
      const here = list((await json('/library')).models, 500).map(read);
      write($('library-room'), t('library.room', { models: t('count.models', { n: here.length }), used: bytes(here.reduce((sum, one) => sum + one.here, 0)) }));
      $('library-here').replaceChildren(...here.map((one) => this.item(one, one.removable && this.remover(one))));
      await this.search();
    } catch (error) {
      write($('library-room'), '');
      if (error.status !== 401) this.fault(error);
    }
  }

  async search() {
    const words = $('library-words').value.trim();
    try {
      const found = list((await json('/library/search', { body: { words } })).models, 200).map(read);
      if (words !== $('library-words').value.trim() || this.pulling) return;
      $('library-found').replaceChildren(...found.map((one) => this.item(one, one.here >= one.bytes ? h('span', { class: 'small' }, t('library.present')) : this.puller(one))));
      write($('library-none'), found.length ? '' : t('library.none'));
    } catch (error) {
      this.fault(error);
    }
  }

  fault(error) {
    write($('library-fault'), error?.message ?? '');
    $('library-fault').hidden = !error;
  }

  item(one, act) {
    const part = one.here > 0 && one.here < one.bytes ? t('library.part', { have: bytes(one.here), all: bytes(one.bytes) }) : bytes(one.bytes);
    return h('li', null,
      h('div', null, h('span', { class: 'model-name' }, clean(one.name, 60)), h('span', { class: 'small' }, [one.title, part, one.license].filter(Boolean).join(', ')), h('span', { class: 'small' }, one.fit)), act);
  }

  /** The first click asks, the second removes. */
  remover(one) {
    return h('button', {
      type: 'button', class: 'outline', 'aria-label': t('library.remove', { name: clean(one.name, 60) }), click: async (event) => {
        const button = event.currentTarget;
        if (button.dataset.sure !== 'yes') {
          button.dataset.sure = 'yes';
          button.textContent = t('library.sure');
          button.setAttribute('aria-label', t('library.sure.name', { name: clean(one.name, 60) }));
          return;
        }
        try {
          await request(`/library/${encodeURIComponent(one.name)}`, { method: 'DELETE' });
          announce(t('library.removed'));
          this.fault();
        } catch (error) {
          this.fault(error);
        }
        await this.refresh();
      },
    }, t('remove'));
  }

  puller(one) {
    const act = h('div', { class: 'pull' });
    const said = one.here ? t('library.rest') : t('library.fetch', { size: bytes(one.bytes) });
    const begin = h('button', { type: 'button', class: 'outline', 'aria-label': t('library.fetch.name', { fetch: said, name: clean(one.name, 60) }), click: () => this.pull(one, act, begin) }, said);
    act.append(begin);
    return act;
  }

  /** Fetches a model; the list stays as it is meanwhile. */
  async pull(one, act, begin) {
    if (this.pulling) return;
    const stop = new AbortController();
    this.pulling = stop;
    this.fault();
    const bar = h('progress', { max: one.bytes, value: one.here, 'aria-label': t('library.fetching', { name: clean(one.name, 60) }) });
    const told = h('span', { class: 'small' }, t('library.sources'));
    act.replaceChildren(bar, told, h('button', { type: 'button', class: 'quiet', click: () => stop.abort() }, t('stop')));
    try {
      const response = await request('/library/pull', { body: { model: one.name }, signal: stop.signal, accept: 'text/event-stream' });
      for await (const event of events(response)) {
        const line = JSON.parse(event.data);
        if (line.event === 'failed') throw new Error(clean(line.why, 300));
        if (line.event === 'plan' || line.event === 'started') bar.max = number(line.total_bytes, one.bytes) || 1;
        if (line.event === 'moved') {
          bar.value = number(line.done_bytes);
          write(told, t('part', { have: bytes(bar.value), all: bytes(bar.max) }));
        }
        if (line.event === 'done') announce(t('library.arrived', { name: clean(one.name, 60) }));
      }
    } catch (error) {
      if (error.name !== 'AbortError') this.fault(error);
      act.replaceChildren(begin);
    }
    this.pulling = null;
    await this.refresh();
  }
}
