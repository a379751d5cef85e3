// Asks the node for an answer and yields its chunks as they come, through broken connections and a node that is not ready.

import { clean, number } from './dom.js';
import { Failure, events, request } from './http.js';
import { t } from './language.js';

/** How often a node that is not ready is asked again before the user has to. */
const MAX_RETRIES = 20;
/** How often in a row a broken connection is taken up again. */
const MAX_RESUMES = 5;

/**
 * The chunks of one answer. When the connection breaks, the same request, seed included, is sent again with
 * the number of the last token seen: the node computes the same tokens and leaves those out.
 */
export async function* chunks(body, signal, answering, outcome, waiting) {
  let seen;
  for (let attempt = 0; ; attempt += 1) {
    try {
      const response = await open(body, signal, answering, seen, waiting);
      readHeaders(outcome, response.headers);
      answering.request = clean(response.headers.get('x-request-id'), 128);
      for await (const event of events(response)) {
        if (event.data === '[DONE]') return;
        seen = event.id ?? seen;
        const chunk = JSON.parse(event.data);
        answering.request ||= clean(chunk.id, 128);
        yield chunk;
        attempt = 0;
      }
      if (outcome.finish !== 'stopped') return;
      throw new Failure(0, t('fault.broke'));
    } catch (error) {
      if (error.status !== 0 || !seen || attempt >= MAX_RESUMES) throw error;
      await pause(1, t('course.resumes'), signal, waiting);
    }
  }
}

/** Opens the stream; a node that says when to try again (503, 429) is tried again then. */
async function open(body, signal, answering, seen, waiting) {
  const headers = seen === undefined ? {} : { 'last-event-id': seen };
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await request('/v1/chat/completions', { body, signal, accept: 'text/event-stream', headers });
    } catch (error) {
      if (![429, 503].includes(error.status) || !error.retryAfter || attempt >= MAX_RETRIES) throw error;
      await pause(Math.min(60, error.retryAfter), error.message.replace(/\.$/, ''), signal, waiting);
    }
  }
}

/** Waits, saying why; ends early with AbortError. */
async function pause(seconds, why, signal, waiting) {
  waiting(t('course.again', { why, n: seconds }));
  await new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, 1000 * seconds);
    signal.addEventListener('abort', () => {
      clearTimeout(timer);
      reject(new DOMException('stopped', 'AbortError'));
    }, { once: true });
  });
  waiting('');
}

/** What the response's headers say about the plan. */
export function readHeaders(outcome, headers) {
  outcome.mode = clean(headers.get('x-shoal-mode'), 16) || outcome.mode;
  outcome.route = clean(headers.get('x-shoal-route'), 400);
  outcome.wire = clean(headers.get('x-shoal-wire'), 16);
  outcome.cuts = clean(headers.get('x-shoal-cuts'), 400);
  outcome.predicted = Number(headers.get('x-shoal-predicted-tok-s')) || 0;
}

/** What a chunk says beside its text: the last one has the report on the whole answer. */
export function readChunk(outcome, chunk) {
  if (Array.isArray(chunk.shoal?.computed_by)) outcome.report = chunk.shoal;
  outcome.tokens = number(chunk.usage?.completion_tokens) || outcome.tokens;
}
