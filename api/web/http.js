// Talks to the node that served this page, and to nothing else. The address brings a ticket (`#t=...`), good once, which
// the node takes for the token of this tab; or a token itself (`#token=...`). Either leaves the address before anything
// else runs, and the token is kept for this tab only.

import { t } from './language.js';

const KEY = 'shoal.token';

/** Longest line and longest event accepted from an event stream, in characters; a longer one ends the stream. */
const MAX_EVENT = 1 << 20;

/** Takes the ticket or the token out of the address, if one is there. */
export async function takeToken() {
  const found = /^#(t|token)=([\w.~+/=-]{1,512})$/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, '', location.pathname + location.search);
  const [, kind, secret] = found;
  if (kind === 'token') return keepToken(secret);
  try {
    const { token } = await json('/session', { body: { ticket: secret } });
    if (typeof token === 'string') keepToken(token);
  } catch {
    // A ticket that was used before: the tab may have its token already, and is asked for one if not.
  }
}

/** Keeps a token the user typed. */
export const keepToken = (token) => sessionStorage.setItem(KEY, token.trim());

/** What a request came back with when it was not an answer: `status` 0 means that the node could not be reached. */
export class Failure extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Sends one request. `body` is sent as JSON, with POST unless a method is said. Returns the Response, or throws Failure. */
export async function request(path, { body, method = body === undefined ? 'GET' : 'POST', signal, accept = 'application/json', headers: more } = {}) {
  const headers = { accept, ...more };
  const token = sessionStorage.getItem(KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      // A text that was cut within a character is no text in JSON.
      body: body === undefined ? undefined : JSON.stringify(body, (_, value) => (typeof value === 'string' ? value.toWellFormed() : value)),
      signal,
      cache: 'no-store',
      credentials: 'omit',
      redirect: 'error',
      referrerPolicy: 'no-referrer',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Failure(0, t('fault.unreachable'));
  }
  if (response.ok) return response;
  let message = t('fault.status', { status: String(response.status) });
  try {
    const told = (await response.json())?.error;
    const text = typeof told === 'string' ? told : told?.message;
    if (typeof text === 'string' && text) message = text.slice(0, 500);
  } catch {
    // An error without a readable body keeps the sentence above.
  }
  const after = Number(response.headers.get('retry-after'));
  throw new Failure(response.status, message, Number.isFinite(after) && after > 0 ? after : undefined);
}

/** The JSON of a GET, or of a POST when there is a body. */
export const json = async (path, options) => (await request(path, options)).json();

/**
 * The events of a `text/event-stream` response, as `{ event, id, data }`. Ends with the stream; throws Failure when the
 * connection breaks and AbortError when the caller's signal says stop.
 */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let event = { event: 'message', id: undefined, data: [] };
  let size = 0;
  try {
    for (;;) {
      let chunk;
      try {
        chunk = await reader.read();
      } catch (error) {
        if (error.name === 'AbortError') throw error;
        throw new Failure(0, t('fault.broke'));
      }
      if (chunk.done) return;
      rest += chunk.value;
      let end;
      let from = 0;
      while ((end = rest.indexOf('\n', from)) >= 0) {
        const line = rest.slice(from, rest[end - 1] === '\r' ? end - 1 : end);
        from = end + 1;
        if (line === '') {
          if (event.data.length) yield { ...event, data: event.data.join('\n') };
          event = { event: 'message', id: undefined, data: [] };
          size = 0;
          continue;
        }
        const colon = line.indexOf(':');
        if (colon === 0) continue;
        const name = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
        size += line.length;
        if (name === 'data') event.data.push(value);
        else if (name === 'event') event.event = value;
        else if (name === 'id') event.id = value;
      }
      rest = rest.slice(from);
      if (rest.length + size > MAX_EVENT) throw new Failure(0, t('fault.event'));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
