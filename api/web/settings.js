// What is said to the model before the conversation, how tokens are drawn, and both under a name: presets. And the language
// of the page, which begins again when another one is chosen: what was typed and not sent stays.

import { $, announce, clean, h } from './dom.js';
import { choose, chosen, languages, t } from './language.js';

/** What was typed when another language was chosen. */
const DRAFT = 'shoal.draft';

const FIELDS = () => [...document.querySelectorAll('#sampling input[type=number]')];

export class Settings extends EventTarget {
  constructor(keeper) {
    super();
    this.keeper = keeper;
    const rounding = $('rounding');
    rounding.checked = localStorage.getItem('shoal.rounding') === 'allowed';
    rounding.addEventListener('change', () => localStorage.setItem('shoal.rounding', rounding.checked ? 'allowed' : 'never'));
    for (const field of [$('system'), ...FIELDS()]) field.addEventListener('change', () => this.changed());
    $('sampling').addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return;
      event.stopPropagation();
      $('sampling').open = false;
      $('sampling').querySelector('summary').focus();
    });
    $('preset').addEventListener('change', (event) => this.apply(keeper.presets[Number(event.target.value)]));
    $('preset-keep').addEventListener('click', () => this.keep());
    $('preset-drop').addEventListener('click', () => this.drop());
    keeper.addEventListener('presets', () => this.list());
    this.list();
    this.offerLanguages();
  }

  offerLanguages() {
    const names = languages();
    const browser = names.find(([name]) => navigator.languages.some((tag) => tag.split('-')[0] === name))?.[1] ?? names[0][1];
    $('language').replaceChildren(h('option', { value: 'auto' }, t('language.auto', { name: browser })), ...names.map(([value, name]) => h('option', { value, lang: value }, name)));
    $('language').value = chosen();
    $('language').addEventListener('change', (event) => {
      choose(event.target.value);
      sessionStorage.setItem(DRAFT, JSON.stringify({ text: $('prompt').value, system: this.system, sampling: this.sampling }));
      location.reload();
    });
    const draft = JSON.parse(sessionStorage.getItem(DRAFT) ?? 'null');
    sessionStorage.removeItem(DRAFT);
    if (!draft) return;
    this.fill(draft);
    $('prompt').value = draft.text;
    $('sampling').open = true;
    $('language').focus();
  }

  get system() {
    return $('system').value.trim();
  }

  /** The settings that are filled in, as fields of a request. */
  get sampling() {
    const set = {};
    for (const field of FIELDS()) {
      const value = field.value.trim();
      if (value !== '' && Number.isFinite(Number(value))) set[field.name] = Number(value);
    }
    return set;
  }

  /** Fills in what a conversation or a preset says. */
  fill({ system = '', sampling = {} } = {}) {
    $('system').value = String(system);
    for (const field of FIELDS()) field.value = typeof sampling?.[field.name] === 'number' ? sampling[field.name] : '';
    this.mark();
  }

  mark() {
    $('sampling').classList.toggle('set', this.system !== '');
    const now = JSON.stringify([this.system, this.sampling]);
    const at = this.keeper.presets.findIndex((one) => JSON.stringify([one.system, one.sampling]) === now);
    $('preset').value = at < 0 ? '' : String(at);
    $('preset-drop').disabled = at < 0;
  }

  changed() {
    this.mark();
    this.dispatchEvent(new Event('change'));
  }

  list() {
    $('preset').replaceChildren(h('option', { value: '' }, t('none')), ...this.keeper.presets.map((one, at) => h('option', { value: at }, clean(one.name, 40) || t('unnamed'))));
    this.mark();
  }

  apply(preset) {
    this.fill(preset);
    this.changed();
  }

  async keep() {
    const name = $('preset-name').value.trim().slice(0, 120);
    if (!name) return $('preset-name').focus();
    const preset = { name, system: this.system, sampling: this.sampling };
    if (await this.send((all) => [...all.filter((one) => one.name !== name), preset], t('preset.kept', { name: clean(name) }))) $('preset-name').value = '';
  }

  drop() {
    const dropped = this.keeper.presets[Number($('preset').value)];
    return dropped && this.send((all) => all.filter((one) => one.name !== dropped.name), t('preset.deleted'));
  }

  /** Whether the change of the presets is kept. */
  async send(change, done) {
    try {
      await this.keeper.changePresets(change);
      announce(done);
      return true;
    } catch (error) {
      this.keeper.say(error.message);
      return false;
    }
  }
}
