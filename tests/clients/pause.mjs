// The official JavaScript client of OpenAI against a server that pauses in the middle of an answer.
//
//     pause.mjs URL TOKEN MODEL [SAID CONTINUED]
//
// As pause.py, which tells what the words mean and how it begins.

import { createInterface } from "node:readline";

let OpenAI;
try {
  ({ default: OpenAI } = await import("openai"));
} catch {
  console.log("skipped: the package openai is missing; npm ci in tests/clients");
  process.exit(77);
}

const [url, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "Tell me a story" }];
const asked = { messages: { model, messages, max_tokens: 64, temperature: 0 }, text: { model, prompt: "?", max_tokens: 64, temperature: 0 } };

async function* chat() {
  for await (const chunk of await client.chat.completions.create({ ...asked.messages, stream: true })) {
    yield chunk.choices[0]?.delta?.content;
  }
}

async function* completions() {
  for await (const chunk of await client.completions.create({ ...asked.text, stream: true })) {
    yield chunk.choices[0]?.text;
  }
}

async function* responses() {
  const { messages: input, max_tokens, ...rest } = asked.messages;
  for await (const event of await client.responses.create({ input, max_output_tokens: max_tokens, ...rest, stream: true })) {
    if (event.type === "response.output_text.delta") yield event.delta;
  }
}

const works = [chat, completions, responses];
let begun = 0;

// The whole text, and the longest time between two pieces, s.
async function read(work) {
  let [said, last, longest] = ["", undefined, 0];
  for await (const piece of work()) {
    if (!piece) continue;
    const now = performance.now() / 1e3;
    if (last === undefined && ++begun === works.length) console.log("begun");
    longest = Math.max(longest, now - (last ?? now));
    last = now;
    said += piece;
  }
  return [said, longest];
}

let [said, continued] = process.argv.slice(5);
if (said === undefined) {
  said = (await client.chat.completions.create(asked.messages)).choices[0].message.content;
  continued = (await client.completions.create(asked.text)).choices[0].text;
}
console.log("ready");
await new Promise((go) => createInterface({ input: process.stdin }).once("line", go));
let failed = 0;
await Promise.all(
  works.map(async (work) => {
    try {
      const [text, longest] = await read(work);
      if (text !== (work === completions ? continued : said)) throw new Error(`got ${JSON.stringify(text)}`);
      if (longest < 10) throw new Error(`the longest pause was ${longest.toFixed(1)} s`);
      console.log(`ok      ${work.name}: ${longest.toFixed(1)} s`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${work.name}: ${error}`);
    }
  }),
);
process.exit(failed ? 1 : 0);
