// What the scripts in JavaScript share: as common.py, which tells what the arguments mean and what is printed.

import { existsSync, statSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

export const [url, token, model, way, folder] = process.argv.slice(2);
export const story = "Tell me a story about a fox";
const prompts = [story, "Why is the sky blue?", "Name three animals", "What does an owl do at night?"];
export const patience = 300_000;
export const seed = 7;
const [streamCount, short, long] = [64, 12, 160];
// Of a pause of 12 s, at least.
const silence = 10_000;

export function assert(holds, what) {
  if (!holds) throw new Error(typeof what === "string" ? what : JSON.stringify(what) ?? "it does not hold");
}

// The error that a user of the client would catch.
export async function expect(is, work) {
  let error;
  try {
    await work();
  } catch (e) {
    error = e;
  }
  assert(error && is(error), `another error: ${error}`);
  return error;
}

async function whole(stream, ...asked) {
  let text = "";
  for await (const piece of stream(...asked)) text += piece ?? "";
  return text;
}

const why = (error) => `${error.name}: ${error.message.replace(/\s+/g, " ").slice(0, 600)}`;

async function checks(works) {
  const failed = [];
  for (const work of works) await work().catch((error) => failed.push(`${work.name}: ${why(error)}`));
  assert(!failed.length, failed.join("; "));
  return works.map((work) => work.name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`)).join(", ");
}

async function streams(stream) {
  const alone = [];
  for (const prompt of prompts) alone.push(await whole(stream, prompt, short));
  assert(alone.every(Boolean), alone);
  const all = Array.from({ length: streamCount }, (_, n) => whole(stream, prompts[n % prompts.length], short));
  const answers = await Promise.allSettled(all);
  const failed = answers.flatMap(({ value, reason }, n) => {
    if (reason) return [why(reason)];
    const said = alone[n % prompts.length];
    return value === said ? [] : [`${JSON.stringify(value)} is not ${JSON.stringify(said)}`];
  });
  assert(!failed.length, `${failed.length} of ${streamCount}: ${failed[0]}`);
  return `${streamCount} streams at once, each as alone`;
}

async function disturbed(name, stream) {
  const alone = await whole(stream, story, long);
  assert(alone, "nothing came");
  writeFileSync(`${folder}/${name}.ready`, "");
  for (let waited = 0; !existsSync(`${folder}/go`); waited += 20) {
    assert(waited < patience, "no go");
    await sleep(20);
  }
  let said = "";
  const came = [];
  for await (const piece of stream(story, long)) {
    if (!piece) continue;
    came.push(Date.now());
    said += piece;
    if (came.length === 2) writeFileSync(`${folder}/${name}.begun`, "");
  }
  came.push(Date.now());
  const [first, last] = [came[0], came.at(-1)];
  assert(said === alone, `${JSON.stringify(said)} is not ${JSON.stringify(alone)}`);
  const struck = existsSync(`${folder}/${way}`) ? statSync(`${folder}/${way}`).mtimeMs : last;
  assert(first < struck && struck < last, `no node was ${way} in the middle of the answer`);
  const longest = Math.max(...came.slice(1).map((after, n) => after - came[n]));
  const seconds = (ms) => (ms / 1e3).toFixed(1);
  assert(way === "killed" || longest > silence, `no silence: at most ${seconds(longest)} s between two pieces`);
  const when = `a node was ${way} ${seconds(struck - first)} s after the first and ${seconds(last - struck)} s before the last`;
  return `the same ${alone.length} characters, ${when}, at most ${seconds(longest)} s between two`;
}

export async function main(name, works, stream) {
  try {
    const said = way === "checks" ? await checks(works) : way === "streams" ? await streams(stream) : await disturbed(name, stream);
    console.log(`ok ${name}: ${said}`);
  } catch (error) {
    if (process.env.SHOAL_FOREIGN_TRACE) console.error(error);
    // Who waits for its first piece need not.
    for (const state of ["killed", "paused"].includes(way) ? ["ready", "begun"] : []) writeFileSync(`${folder}/${name}.${state}`, "");
    console.log(`FAILED ${name}: ${why(error)}`);
    process.exitCode = 1;
  }
}
