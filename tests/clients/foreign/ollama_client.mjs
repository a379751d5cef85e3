// ollama in JavaScript: chat, generate, a form, vectors, the list, errors.

import { Ollama } from "ollama";
import { assert, expect, main, model, seed, story, token, url } from "./common.mjs";

const client = new Ollama({ host: url, headers: { Authorization: `Bearer ${token}` } });
const messages = [{ role: "user", content: story }];
const options = (num_predict) => ({ num_predict, temperature: 0, seed });
const city = { type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"] };

async function* stream(prompt, tokens) {
  const parts = await client.chat({ model, messages: [{ role: "user", content: prompt }], options: options(tokens), stream: true });
  for await (const part of parts) yield part.message.content;
}

async function chat() {
  const whole = await client.chat({ model, messages, options: options(16) });
  let [text, last] = ["", undefined];
  for await (const part of await client.chat({ model, messages, options: options(16), stream: true })) {
    text += part.message.content;
    last = part;
  }
  assert(text && text === whole.message.content, { text, whole });
  assert(last.done && last.eval_count === 16 && whole.eval_count === 16, last);
}

async function generate() {
  assert((await client.generate({ model, prompt: story, options: options(16) })).response, "nothing came");
}

async function form() {
  const reply = await client.chat({ model, messages, format: city, options: options(60) });
  assert(["Paris", "Rome"].includes(JSON.parse(reply.message.content).city), reply);
}

async function vectors() {
  const { embeddings } = await client.embed({ model, input: ["a fish", "the moon"] });
  assert(embeddings.length === 2 && embeddings[0].length === embeddings[1].length, embeddings.length);
}

async function models() {
  assert((await client.list()).models.some(({ name }) => name === `${model}:latest`), "it is not listed");
  assert((await client.show({ model })).details.family, "no family");
}

async function errors() {
  await expect(({ name, status_code }) => name === "ResponseError" && status_code === 404, () => client.chat({ model: "no-such-model", messages }));
  await expect(({ status_code }) => status_code === 401, () => new Ollama({ host: url }).list());
}

await main("ollama-js", [chat, generate, form, vectors, models, errors], stream);
