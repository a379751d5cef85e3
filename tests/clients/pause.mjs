// The official JavaScript client of OpenAI against a server that pauses in the middle of an answer.
//
//     pause.mjs URL TOKEN SAID CONTINUED
//
// SAID is what the server answers to messages, CONTINUED how it continues a text.
//
// Prints one line per check; exits 0 when all pass, 77 when the client is missing.

let OpenAI;
try {
  ({ default: OpenAI } = await import("openai"));
} catch {
  console.log("skipped: the package openai is missing; npm ci in tests/clients");
  process.exit(77);
}

const [url, apiKey, said, continued] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "?" }];

async function chat() {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model: "fake-7b", messages, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return text;
}

async function completions() {
  let text = "";
  for await (const chunk of await client.completions.create({ model: "fake-7b", prompt: "?", stream: true, max_tokens: 99 })) {
    text += chunk.choices[0]?.text ?? "";
  }
  return text;
}

async function responses() {
  let text = "";
  for await (const event of await client.responses.create({ model: "fake-7b", input: "?", stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  return text;
}

let failed = 0;
await Promise.all(
  [chat, completions, responses].map(async (work) => {
    try {
      const text = await work();
      if (text !== (work === completions ? continued : said)) throw new Error(`got ${JSON.stringify(text)}`);
      console.log(`ok      ${work.name}`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED  ${work.name}: ${error}`);
    }
  }),
);
process.exit(failed ? 1 : 0);
