// How it went on other days: five plots of what the node wrote down every few minutes.
//
// A span in which the node did not run has no sample, and one in which nothing was asked no rate: lines break there, and
// nothing is drawn between. What is not known is not drawn as zero.

import { $, duration, h, list, number, rate, s, write } from './dom.js';
import { json } from './http.js';
import { figure, locale, t } from './language.js';

const DAYS = [1, 7, 30];
const DAY_S = 86_400;
const HEIGHT = 132;
/** Room for the figures beside a plot and for the times below it. */
const LEFT = 62;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 8;

const read = (value) => ({
  at: number(value?.at_s),
  seconds: number(value?.seconds),
  answers: number(value?.answers),
  tokens: number(value?.tokens),
  rate: number(value?.tok_s, null),
  faults: number(value?.faults),
  rtt: number(value?.rtt_ms, null),
  given: number(value?.given),
  balance: number(value?.balance),
});

const sum = (samples, of) => samples.reduce((all, one) => all + of(one), 0);
const middle = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
const whole = (value) => figure(Math.round(value));
const signed = (value) => (value > 0 ? `+${whole(value)}` : whole(value));

/** Tokens over the time they took, of all spans together. */
function speed(samples) {
  const told = samples.filter((one) => one.rate > 0);
  const seconds = sum(told, (one) => one.tokens / one.rate);
  return seconds > 0 ? rate(sum(told, (one) => one.tokens) / seconds) : t('now.idle');
}

function trip(samples) {
  const known = samples.flatMap((one) => one.rtt ?? []);
  return known.length ? duration(middle(known)) : '–';
}

/** What is plotted: what a span says, how a figure is written, whether spans add up, and what is said of all of them. */
const PLOTS = [
  { name: 'rate', of: (one) => one.rate, write: rate, all: speed },
  { name: 'rtt', of: (one) => one.rtt, write: duration, all: trip },
  { name: 'faults', of: (one) => one.faults, write: whole, bars: true, all: (samples) => whole(sum(samples, (one) => one.faults)) },
  { name: 'given', of: (one) => one.given, write: whole, bars: true, all: (samples) => whole(sum(samples, (one) => one.given)) },
  { name: 'balance', of: (one) => one.balance, write: signed, all: (samples) => signed(samples.at(-1).balance) },
];

/** The smallest of 1, 2 and 5 times a power of ten that is no less. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((times) => times * power).find((limit) => limit >= value * 0.999) ?? 10 * power;
}

/** From where to where a plot reaches. Counts have steps of one at least. */
function limits(plot, values) {
  const most = Math.max(0, ...values);
  const least = Math.min(0, ...values);
  const step = plot.bars || plot.name === 'balance' ? 1 : 0.001;
  return [least < 0 ? -nice(Math.max(step, -least)) : 0, most > 0 || least === 0 ? nice(Math.max(step, most)) : 0];
}

/** Times at which something is written below a plot: full hours or days of this machine's clock. */
function times(days, now, width) {
  const step = days === 1 ? 6 : 24 * Math.max(1, Math.ceil((days * 46) / width));
  const at = new Date(now * 1000);
  at.setMinutes(0, 0, 0);
  if (days > 1) at.setHours(0);
  else at.setHours(Math.floor(at.getHours() / step) * step);
  const found = [];
  const form = days === 1 ? { hour: '2-digit', minute: '2-digit' } : days === 7 && step === 24 ? { weekday: 'short' } : { day: 'numeric', month: 'numeric' };
  for (; at.getTime() / 1000 > now - days * DAY_S; at.setHours(at.getHours() - step)) found.push([at.getTime() / 1000, days === 1 ? at.toLocaleTimeString(locale, form) : at.toLocaleDateString(locale, form)]);
  return found;
}

function lines(plot, { samples, span }, x, y) {
  const paths = [];
  let last;
  for (const one of samples) {
    const value = plot.of(one);
    // A point stands in the middle of its span.
    const at = value === null ? null : `${x(one.at + span / 2).toFixed(1)} ${y(value).toFixed(1)}`;
    if (at && last !== undefined && one.at - last <= span) paths.at(-1).push(at);
    else if (at) paths.push([at]);
    last = at ? one.at : undefined;
  }
  return paths.map((points) => (points.length > 1 ? s('path', { class: 'plot-line', d: `M${points.join(' L')}` }) : s('circle', { class: 'plot-point', cx: points[0].split(' ')[0], cy: points[0].split(' ')[1], r: 2 })));
}

function draw(host, plot, history, width) {
  const { samples, days, now, span } = history;
  const values = samples.flatMap((one) => plot.of(one) ?? []);
  const [least, most] = limits(plot, values);
  const right = width - RIGHT;
  const x = (at) => LEFT + ((at - (now - days * DAY_S)) / (days * DAY_S)) * (right - LEFT);
  const y = (value) => TOP + ((most - value) / (most - least)) * (HEIGHT - TOP - BOTTOM);
  const levels = [...new Set([least, ...(least < 0 && most > 0 ? [] : [(least + most) / 2]), 0, most])].filter((level) => !(plot.bars && !Number.isInteger(level)));
  const told = t('past.told', { name: t(`past.${plot.name}`), all: samples.length ? plot.all(samples) : '–', most: values.length ? plot.write(Math.max(...values)) : '–' });
  host.setAttribute('aria-label', told);
  host.setAttribute('width', width);
  host.setAttribute('height', HEIGHT);
  host.replaceChildren(
    ...levels.flatMap((level) => [
      s('line', { class: level === 0 ? 'plot-axis' : 'plot-grid', x1: LEFT, x2: right, y1: y(level), y2: y(level) }),
      s('text', { class: 'plot-text', x: LEFT - 6, y: y(level) + 4, 'text-anchor': 'end' }, level === 0 ? '0' : plot.write(level)),
    ]),
    ...times(days, now, right - LEFT).filter(([at]) => x(at) > LEFT + 12 && x(at) < right - 6).flatMap(([at, text]) => [
      s('line', { class: 'plot-grid', x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }),
      s('text', { class: 'plot-text', x: x(at), y: HEIGHT - 3, 'text-anchor': x(at) > right - 18 ? 'end' : 'middle' }, text),
    ]),
    ...(plot.bars
      ? samples.filter((one) => plot.of(one) > 0).map((one) => s('rect', { class: `plot-bar ${plot.name}`, x: x(one.at), y: y(plot.of(one)), width: Math.max(1.5, x(one.at + span) - x(one.at) - (x(span) - x(0) > 4 ? 1 : 0)), height: Math.max(1, y(0) - y(plot.of(one))) }))
      : lines(plot, history, x, y)),
    ...(values.length ? [] : [s('text', { class: 'plot-none', x: (LEFT + right) / 2, y: HEIGHT / 2, 'text-anchor': 'middle' }, t(`past.none.${plot.name === 'rtt' ? 'rtt' : 'rate'}`))]),
  );
}

export class Past {
  constructor() {
    this.days = 1;
    $('past-days').append(...DAYS.map((days) => h('label', null, h('input', { type: 'radio', name: 'days', value: days, checked: days === 1, class: 'hidden', change: () => this.choose(days) }), h('span', null, t('past.days', { n: days })))));
    this.plots = PLOTS.map((plot) => {
      const host = s('svg', { class: 'plot', role: 'img' });
      const all = h('span', { class: 'plot-all' });
      const place = h('figure', null, h('figcaption', null, h('details', { class: 'why' }, h('summary', null, t(`past.${plot.name}`)), h('span', null, t(`past.${plot.name}.why`))), all), host);
      return { plot, host, all, place };
    });
    $('past-plots').append(...this.plots.map(({ place }) => place));
    new ResizeObserver(() => this.render()).observe($('past-plots'));
  }

  choose(days) {
    this.days = days;
    this.refresh();
  }

  /** Reads what there is; called when the page is turned to. */
  async refresh() {
    const { days } = this;
    try {
      const told = await json(`/swarm/history?days=${days}`);
      if (days !== this.days) return;
      this.history = { days, now: number(told.now_s), span: Math.max(1, number(told.span_s, 300)), samples: list(told.samples, 600).map(read) };
      write($('past-note'), this.history.samples.length ? t('past.ran', { time: this.ran() }) : t('past.empty'));
    } catch (error) {
      this.history = undefined;
      write($('past-note'), error.status === 404 ? t('past.alone') : error.message);
    }
    this.render();
  }

  /** How long the node ran, in hours or minutes. */
  ran() {
    const minutes = sum(this.history.samples, (one) => one.seconds) / 60;
    return minutes < 90 ? t('past.minutes', { n: Math.round(minutes) }) : t('past.hours', { n: Math.round(minutes / 60) });
  }

  render() {
    const some = Boolean(this.history?.samples.length);
    $('past-plots').hidden = !some;
    if (!some) return;
    for (const { plot, host, all, place } of this.plots) {
      write(all, plot.all(this.history.samples));
      const width = Math.floor(place.clientWidth);
      if (width > 120) draw(host, plot, this.history, width);
    }
  }
}
