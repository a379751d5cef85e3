// Where the page begins: the ticket leaves the address, then the two views are wired to one picture of the swarm.
//
//   http.js      requests with the token, event streams        swarm.js  what is known of the swarm, bounded and checked
//   dom.js       elements out of text, never out of HTML       view.js   which of it is drawn, and in which order
//   markdown.js  a model's text as allow-listed elements       chart.js  the drawing
//   chat.js      the conversation                              panel.js  the page about the swarm
//   tree.js      messages and their branches                   keeper.js what the node keeps of them
//   answer.js    one answer as it comes                        badge.js  the account of it
//   modes.js     who may read what is sent                     history.js the list of conversations
//   code.js      colors in code (lib-highlight.js)              formula.js TeX as MathML (lib-formula.js)
//   models.js    models here and to be fetched                records.js what stands below the drawing: nodes.js, past.js,
//                                                            replay.js, invite.js; fetched with the page about the swarm
//   settings.js  instructions, sampling, presets, language      files.js  attached texts
//   language.js  the messages of the page (messages-*.json)

import { Chat } from './chat.js';
import { $, clean, list } from './dom.js';
import { History } from './history.js';
import { json, keepToken, takeToken } from './http.js';
import { Keeper } from './keeper.js';
import { t } from './language.js';
import { Models } from './models.js';
import { Panel } from './panel.js';
import { Settings } from './settings.js';
import { Swarm } from './swarm.js';

const THEMES = ['auto', 'light', 'dark'];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const name = t(`theme.${theme}`);
  $('theme-name').textContent = name;
  $('theme').setAttribute('aria-label', t('theme', { name }));
}

function themes() {
  const kept = localStorage.getItem('shoal.theme');
  setTheme(THEMES.includes(kept) ? kept : 'auto');
  $('theme').addEventListener('click', () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem('shoal.theme', next);
    setTheme(next);
  });
}

/** Shows the page that the address names, and the conversation. */
function turn(panel, chat) {
  const page = { '#swarm': 'swarm', '#models': 'models' }[location.hash] ?? 'chat';
  for (const [name, place] of [['chat', 'chat'], ['swarm', 'swarm'], ['models', 'models-page']]) {
    $(place).hidden = name !== page;
    if (name === page) $(`to-${name}`).setAttribute('aria-current', 'page');
    else $(`to-${name}`).removeAttribute('aria-current');
  }
  document.title = page === 'chat' ? 'Shoal' : `${t(page === 'swarm' ? 'swarm' : 'models')} · Shoal`;
  panel.render(true);
  if (page === 'models') library.refresh();
  if (page === 'swarm') keepRecords(panel);
  reopen(chat);
}

/** Shows what the node keeps of the swarm; its scripts come when they are wanted. */
async function keepRecords(panel) {
  records ??= import('./records.js').then(({ Records }) => new Records(swarm, panel));
  (await records).show();
}

/** Shows the conversation that the address names. */
function reopen(chat) {
  const kept = /^#chat\/([0-9a-f]{32})$/.exec(location.hash);
  if (kept) chat.openKept(kept[1]);
}

/** Reads the models that can be asked, until there are some. */
async function models(chat, swarm) {
  let asked = '';
  const read = async () => {
    // Asked again only when what is known of the models or the node has changed.
    const now = `${swarm.connected} ${swarm.state} ${swarm.models.map((model) => model.id + model.complete).join()}`;
    if (!swarm.connected || now === asked) return;
    asked = now;
    try {
      const answer = await json('/v1/models');
      chat.setModels(list(answer.data, 200).map((model) => ({ id: String(model?.id ?? '').slice(0, 128), shown: clean(model?.id, 48) || t('unnamed') })));
    } catch {
      asked = '';
    }
  };
  swarm.addEventListener('change', read);
}

function locks(swarm) {
  const dialog = $('lock');
  swarm.addEventListener('locked', () => {
    if (!dialog.open) dialog.showModal();
  });
  $('unlock').addEventListener('submit', (event) => {
    event.preventDefault();
    keepToken($('token').value);
    $('token').value = '';
    dialog.close();
    swarm.wake?.();
  });
}

/** Reads what is kept when the node answers, and again when it answers again. */
function keep(keeper, swarm, chat) {
  let asked = false;
  swarm.addEventListener('change', () => {
    if (swarm.connected && !asked) {
      keeper.refresh();
      // Without presets the page works; one that is kept later reads them first.
      keeper.readPresets().catch(() => {});
      reopen(chat);
    }
    asked = swarm.connected;
  });
  keeper.addEventListener('change', () => ($('kept-note').textContent = t(keeper.known ? 'welcome.kept' : 'welcome.unkept')));
}

await takeToken();
themes();
const swarm = new Swarm();
const keeper = new Keeper();
const chat = new Chat(swarm, keeper, new Settings(keeper));
const panel = new Panel(swarm);
const library = new Models();
let records;
new History(keeper, chat);
locks(swarm);
models(chat, swarm);
keep(keeper, swarm, chat);
addEventListener('hashchange', async () => {
  await takeToken();
  turn(panel, chat);
});
turn(panel, chat);
swarm.follow();
if (matchMedia('(pointer: fine)').matches && document.activeElement === document.body) $('prompt').focus();
