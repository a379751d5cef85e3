//! Answers of a model to train a draft head with: prompts made of forms and subjects, or the user's own, answered many at a time.
//!
//! A third of the answers is greedy, the others are drawn. What is kept of each is the hidden state in front of every token of it.
//!
//! Limits: [`TOGETHER`] answers at a time, each no longer than [`LONGEST`] tokens; states are kept in memory, two bytes a value.

use serde_json::json;
use shard::{
    draft::Samples,
    executor::{Capacity, Input, Item, Output, Workspace},
    sample::{Sampler, SamplingParams},
    state::SessionState,
    synthetic::Random,
};

use crate::{Error, Result, encode, model::Model};

/// Answers that are computed at a time.
const TOGETHER: usize = 32;
/// Tokens of an answer.
const LONGEST: usize = 320;
/// How answers are drawn that are not greedy.
const DRAWN: (f32, usize) = (0.8, 64);
const FORMS: &str = include_str!("distill/forms.txt");
const SUBJECTS: &str = include_str!("distill/subjects.txt");

/// The prompts of this program, in an order drawn from `seed`.
pub fn prompts(seed: u64) -> Vec<String> {
    let mut prompts: Vec<String> = FORMS
        .lines()
        .flat_map(|form| SUBJECTS.lines().map(move |subject| form.replace("{}", subject)))
        .collect();
    Random(seed).shuffle(&mut prompts);
    prompts
}

/// An answer that is being written.
struct Answer {
    state: SessionState,
    prompt: usize,
    ids: Vec<u32>,
    states: Vec<f32>,
    sampler: Sampler,
}

impl Answer {
    /// Chooses the next token from `logits`, which follow from `state`; whether the answer goes on.
    fn choose(&mut self, model: &Model, logits: &[f32], state: &[f32], row: &mut Vec<f32>) -> Result<bool> {
        row.clear();
        row.extend_from_slice(logits);
        let id = self.sampler.sample(row, &self.ids, self.ids.len() as u64)?.id;
        self.ids.push(id);
        self.states.extend_from_slice(state);
        let full = self.ids.len() - self.prompt >= LONGEST || self.ids.len() >= model.ctx;
        Ok(!full && !model.tokenizer.stop_ids().contains(&id))
    }
}

/// Has `model` answer `prompts`, the first ones again where they do not suffice, until there are `tokens` tokens. `progress` gets
/// how many more there are and says whether to go on.
///
/// # Errors
/// Those of the engine; a usage error where there is no prompt, or the model keeps no hidden states.
pub fn collect(
    model: &Model,
    prompts: &[String],
    tokens: usize,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<Samples> {
    let executor = &*model.executor;
    let hidden = executor.blueprint().hidden;
    let rows = crate::model::CHUNK_ROWS.min(model.ctx).max(TOGETHER);
    let mut ws = Workspace::new(executor, Capacity { rows, items: TOGETHER, logit_rows: TOGETHER })?;
    let (mut samples, mut row) = (Samples::new(hidden), Vec::new());
    let mut coming = prompts.iter().cycle().enumerate();
    let mut answers: Vec<Answer> = Vec::new();
    // Prompts in a row that gave no answer.
    let mut vain = 0;
    while samples.len() < tokens {
        while answers.len() < TOGETHER {
            let Some((index, prompt)) = coming.next().filter(|_| vain < prompts.len()) else {
                return Err(Error::usage(format!(
                    "there is no prompt to answer: one leaves room for {LONGEST} tokens in the context of {}",
                    model.ctx
                )));
            };
            match begin(model, &mut ws, (index, prompt), &mut row)? {
                Some(answer) => {
                    answers.push(answer);
                    vain = 0;
                }
                None => vain += 1,
            }
        }
        let mut items: Vec<Item<'_>> = answers
            .iter_mut()
            .map(|Answer { state, ids, .. }| {
                let input = Input::Tokens(ids.last_chunk::<1>().map_or(&[], |last| last));
                Item { state, input, output: Output::Last }
            })
            .collect();
        executor.forward(&mut ws, &mut items)?;
        drop(items);
        let mut at = 0;
        let mut failed = Ok(());
        answers.retain_mut(|answer| {
            let chosen = answer.choose(model, ws.logits(at), ws.states(at), &mut row);
            at += 1;
            let goes_on = chosen.unwrap_or_else(|error| {
                failed = Err(error);
                false
            });
            if !goes_on && failed.is_ok() {
                failed = samples.add(&answer.states, &answer.ids[answer.prompt..]).map_err(Error::from);
            }
            goes_on
        });
        failed?;
        if !progress(at) {
            break;
        }
    }
    Ok(samples)
}

/// Reads the prompt and chooses the first token; `None` where that is the last one already, or the prompt is too long.
fn begin(
    model: &Model,
    ws: &mut Workspace,
    (index, prompt): (usize, &str),
    row: &mut Vec<f32>,
) -> Result<Option<Answer>> {
    let ids = encode::encode_chat(model, &json!([{ "role": "user", "content": prompt }]))?;
    if ids.is_empty() || ids.len() + LONGEST > model.ctx {
        return Ok(None);
    }
    let (temperature, top_k) = if index.is_multiple_of(3) { (0.0, 0) } else { DRAWN };
    let params = SamplingParams { temperature, top_k, ..SamplingParams::default() };
    let executor = &*model.executor;
    let sampler = Sampler::new(params, index as u64, executor.blueprint().vocab)?;
    let mut answer =
        Answer { state: executor.new_state(), prompt: ids.len(), ids, states: Vec::new(), sampler };
    executor.prefill(ws, &mut answer.state, &answer.ids)?;
    let state = ws.states(0);
    if state.is_empty() {
        return Err(Error::usage("this device keeps no hidden states; --device cpu does"));
    }
    let goes_on = answer.choose(model, ws.logits(0), state, row)?;
    Ok(goes_on.then_some(answer))
}
