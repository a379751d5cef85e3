// The Vercel AI SDK: generateText, streamText, a tool and generateObject, by its providers for OpenAI (chat and responses) and for what is
// compatible.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { assert, expect, main, model, seed, story, token, url } from "./common.mjs";

// Warnings tell of words that a provider leaves out.
globalThis.AI_SDK_LOG_WARNINGS = false;
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: token });
const compatible = createOpenAICompatible({ name: "shoal", baseURL: `${url}/v1`, apiKey: token, includeUsage: true, supportsStructuredOutputs: true });
const asked = (which, maxOutputTokens) => ({ model: which, prompt: story, maxOutputTokens, temperature: 0, maxRetries: 0 });

async function* stream(prompt, tokens) {
  const { fullStream } = streamText({ ...asked(compatible(model), tokens), prompt, seed, onError: () => {} });
  for await (const part of fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") yield part.text;
  }
}

async function agree(which) {
  const whole = await generateText(asked(which, 16));
  assert(whole.text && whole.usage.outputTokens === 16 && whole.finishReason === "length", [whole.text, whole.usage, whole.finishReason]);
  const streamed = streamText(asked(which, 16));
  let text = "";
  for await (const piece of streamed.textStream) text += piece;
  assert(text === whole.text, [text, whole.text]);
  assert((await streamed.usage).outputTokens === 16, await streamed.usage);
  const weather = tool({
    description: "The weather of a city",
    inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
    execute: async ({ city }) => `rain in ${city}`,
  });
  const choices = { tools: { weather }, toolChoice: "required", stopWhen: stepCountIs(2) };
  const { steps } = await generateText({ ...asked(which, 60), ...choices });
  const [call] = steps[0].toolCalls;
  assert(call.toolName === "weather" && steps[0].toolResults[0].output === `rain in ${call.input.city}`, call);
  assert(steps.length === 2, "the result was not sent");
  const { object } = await generateObject({ ...asked(which, 60), schema: z.object({ color: z.enum(["red", "green"]) }) });
  assert(["red", "green"].includes(object.color), object);
}

async function openaiChat() {
  await agree(openai.chat(model));
}

async function openaiResponses() {
  await agree(openai.responses(model));
}

async function openaiCompatible() {
  await agree(compatible(model));
}

async function embeddings() {
  const { embeddings } = await embedMany({ model: openai.embeddingModel(model), values: ["a fish", "the moon"] });
  assert(embeddings.length === 2, embeddings.length);
}

async function errors() {
  const notFound = (error) => APICallError.isInstance(error) && error.statusCode === 404;
  await expect(notFound, () => generateText(asked(openai.chat("no-such-model"), 4)));
  await expect(notFound, () => generateText(asked(compatible("no-such-model"), 4)));
}

await main("ai-sdk", [openaiChat, openaiResponses, openaiCompatible, embeddings, errors], stream);
