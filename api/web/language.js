// The language of the page: its messages, its plural forms, and how it writes numbers and dates.
//
// English is the source. Every language is one file with the same keys, `messages-*.json`, and only the one that is shown is
// fetched. A message with plural forms has one text for each that the language has, and may have one for the number 0.
// What the node says itself, such as why it refuses, and what people and models wrote is shown as it is.
//
// The page names this script before the others: it is shown as soon as its messages are there, while they are fetched.

/** The languages, by their files, and what `lang` says of each. */
const TAGS = { en: 'en', de: 'de', zh: 'zh-Hans' };
const KEY = 'shoal.language';
const known = (name) => Object.hasOwn(TAGS, name);
const primary = (tag) => tag.split('-')[0].toLowerCase();

/** What was chosen: the name of a language, or `auto`. */
export function chosen() {
  const kept = localStorage.getItem(KEY) ?? 'auto';
  return known(kept) ? kept : 'auto';
}

/** Keeps the choice; the page shows it when it is loaded again. */
export const choose = (name) => localStorage.setItem(KEY, name);

/** Every language by its name and by what its speakers call it. */
export const languages = () => Object.keys(TAGS).map((name) => [name, new Intl.DisplayNames([name], { type: 'language' }).of(name)]);

async function load(name) {
  const response = await fetch(`messages-${name}.json`, { credentials: 'omit', referrerPolicy: 'no-referrer' });
  if (!response.ok) throw new Error(`messages-${name}.json: ${response.status}`);
  return { name, messages: await response.json() };
}

const wanted = chosen() === 'auto' ? navigator.languages.map(primary).find(known) ?? 'en' : chosen();
const { name: language, messages } = await load(wanted).catch(() => load('en'));

/** For dates and numbers: the form of the language that the browser asks for, such as that of one country. */
export const locale = navigator.languages.find((tag) => primary(tag) === language) ?? TAGS[language];
const plural = new Intl.PluralRules(TAGS[language]);
const formats = new Map();

/** Whether the page is in the language in which the node speaks. */
export const english = language === 'en';

/** A number with so many decimals. */
export function figure(value, digits = 0) {
  if (!formats.has(digits)) formats.set(digits, new Intl.NumberFormat(locale, { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  return formats.get(digits).format(value);
}

/** The message of this key, with the values in their places; `n` chooses the plural form. */
export function t(key, values = {}) {
  const message = messages[key];
  const form = typeof message === 'object' ? message[values.n] ?? message[plural.select(values.n)] ?? message.other : message;
  return (form ?? key).replace(/\{(\w+)\}/g, (_, name) => (typeof values[name] === 'number' ? figure(values[name]) : String(values[name])));
}

/** Text with what stands between backticks as code. */
const withCode = (text) => text.split('`').map((part, i) => {
  if (i % 2 === 0) return part;
  const code = document.createElement('code');
  code.textContent = part;
  return code;
});

/** Puts the messages into the page: `data-t` names that of an element's text, `data-t-NAME` that of an attribute. */
function translate() {
  document.documentElement.lang = TAGS[language];
  for (const node of document.querySelectorAll('*')) {
    for (const { name, value } of [...node.attributes]) {
      if (name === 'data-t') node.replaceChildren(...withCode(t(value)));
      else if (name.startsWith('data-t-')) node.setAttribute(name.slice(7), t(value));
    }
  }
  document.body.classList.remove('untold');
}

translate();
