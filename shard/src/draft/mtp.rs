//! The layer that a model was trained with to predict one token further (multi-token prediction: Gloeckle and others, arXiv
//! 2404.19737; as it is used here DeepSeek-V3, arXiv 2412.19437, section 2.2, and Qwen 3 Next).
//!
//! From the hidden state behind position `i` and the embedding of the token at `i + 1` it makes the state that the token at `i + 2` is
//! chosen from, by the model's own head; from that state and the chosen token the next one, and so on:
//!
//! ```text
//! x = eh_proj(norm_e(embedding of i + 1) | norm_h(state of i))
//! state' = norm(layer(x)), logits = head(state')
//! ```
//!
//! The layer looks back at the rows that it computed before, those of the prompt among them, so it has keys and values of its own.
//! Guessed rows leave them again; where rows were not seen it begins again behind the gap, which costs guesses and nothing else.
//! States are those in front of the head, behind its norm, as Qwen's models are trained.
//!
//! Limits: processors; models whose layer [`crate::models`] knows; one layer, which is used again for every further token.

use std::sync::Arc;

use scheduler::CacheType;

use super::{DraftToken, StateDraft, StateDrafter, said};
use crate::{
    Error, Result,
    executor::{Capacity, Executor, Input, Item, Output, Workspace},
    gguf::Gguf,
    kernels::{Activations, Cpu, Matrix, Target},
    models::layer_name,
    sample::{Sampler, SamplingParams},
    state::SessionState,
};

/// Bytes at the ends of a tensor that are looked at: two blocks of the widest format and more.
const EDGE: usize = 512;
/// Rows of one pass over what was seen.
const ROWS: usize = 64;
/// Positions over which what a state costs anyway is spread.
const POSITIONS: usize = 256;

/// The layer ready to guess: weights alone, so that all sessions of a model share it.
pub struct MtpHead {
    cpu: Arc<Cpu>,
    model: Arc<Gguf>,
    layer: Box<dyn Executor>,
    /// Of embeddings, and of states.
    norms: [Vec<f32>; 2],
    eh_proj: Matrix,
}

impl MtpHead {
    /// That of the model in `gguf`, of which `executor` computes the last layers on `cpu`; `None` for a model without one, for one whose
    /// layer is of a kind that is not run here, and for a file that was not fetched so far: what is missing of it reads as zeros.
    ///
    /// # Errors
    /// Those of a damaged file.
    pub fn load(executor: &dyn Executor, gguf: &Arc<Gguf>, cpu: &Arc<Cpu>) -> Result<Option<Self>> {
        if !is_held(gguf, executor.blueprint().layers.len()) {
            return Ok(None);
        }
        let Some(layer) = executor.next_token_layer(gguf)? else { return Ok(None) };
        let index = layer.range().start() as usize;
        let tensor = |name: &str| gguf.require(&layer_name(index, name));
        let eh_proj = tensor("nextn.eh_proj.weight")?;
        let (rows, cols) = (eh_proj.rows(), eh_proj.cols());
        Ok(Some(Self {
            norms: [tensor("nextn.enorm.weight")?.to_f32(), tensor("nextn.hnorm.weight")?.to_f32()],
            eh_proj: Matrix::pack(cpu, eh_proj.format, rows, cols, eh_proj.bytes)?,
            cpu: cpu.clone(),
            model: gguf.clone(),
            layer,
        }))
    }

    /// The rows that the layer takes: of `states`, `[n][hidden]`, and the tokens behind them.
    fn enter(&self, states: &[f32], tokens: &[u32], scratch: &mut Scratch) -> Result<()> {
        let (hidden, eps) = (self.layer.blueprint().hidden, self.layer.blueprint().norm.eps);
        let table = self.model.require("token_embd.weight")?;
        let Scratch { activations, pairs, rows } = scratch;
        pairs.resize(2 * states.len(), 0.0);
        for ((pair, state), token) in
            pairs.chunks_exact_mut(2 * hidden).zip(states.chunks_exact(hidden)).zip(tokens)
        {
            if *token as usize >= table.rows() {
                return Err(Error::invalid("a token beyond the vocabulary"));
            }
            let (embedding, normed) = pair.split_at_mut(hidden);
            (table.format.dequantize)(table.row(*token as usize), embedding);
            self.cpu.rms_norm_in_place(embedding, hidden, Some(&self.norms[0]), eps);
            self.cpu.rms_norm(state, hidden, Some(&self.norms[1]), eps, normed);
        }
        rows.resize(states.len(), 0.0);
        let mut target = [Target { matrix: &self.eh_proj, out: rows }];
        self.cpu.matmul(pairs, tokens.len(), activations, &mut target);
        Ok(())
    }
}

/// Whether no tensor of layer `index` begins or ends with nothing but zeros.
fn is_held(gguf: &Gguf, index: usize) -> bool {
    let prefix = layer_name(index, "");
    let tensors = gguf.tensors().iter().filter(|info| info.name.starts_with(&prefix));
    let held = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    tensors.filter_map(|info| gguf.tensor(&info.name)).all(|tensor| {
        let edge = tensor.bytes.len().min(EDGE);
        held(&tensor.bytes[..edge]) && held(&tensor.bytes[tensor.bytes.len() - edge..])
    })
}

impl StateDrafter for MtpHead {
    fn bytes(&self) -> usize {
        self.layer.bytes_per_token(0) + self.eh_proj.resident_bytes()
    }

    fn position_bytes(&self) -> usize {
        self.layer.state_bytes(self.layer.range(), POSITIONS, CacheType::F16).div_ceil(POSITIONS)
    }

    fn looks_back(&self) -> bool {
        true
    }

    fn session(self: Arc<Self>, params: &SamplingParams, seed: u64) -> Result<Box<dyn StateDraft>> {
        let params = SamplingParams { logprobs: true, top_logprobs: 0, ..params.clone() };
        let vocab = self.layer.blueprint().vocab;
        Ok(Box::new(MtpDraft {
            sampler: Sampler::new(params, seed, vocab)?,
            logits: Vec::new(),
            state: self.layer.new_state(),
            workspace: None,
            first: 0,
            waiting: Vec::new(),
            scratch: Scratch::default(),
            text: Vec::new(),
            said: Vec::new(),
            head: self,
        }))
    }
}

/// Rows on their way into the layer.
#[derive(Default)]
struct Scratch {
    activations: Activations,
    /// Embedding and state, `[n][2 hidden]`.
    pairs: Vec<f32>,
    rows: Vec<f32>,
}

/// What the layer remembers of one answer.
struct MtpDraft {
    head: Arc<MtpHead>,
    sampler: Sampler,
    logits: Vec<f32>,
    /// Of the rows of the positions from `first` on.
    state: SessionState,
    /// From the first rows on: most sessions of a busy server never draft.
    workspace: Option<Workspace>,
    first: usize,
    /// States of the positions behind those, `[n][hidden]`.
    waiting: Vec<f32>,
    scratch: Scratch,
    /// The text, and what was guessed behind it.
    text: Vec<u32>,
    said: Vec<DraftToken>,
}

impl MtpDraft {
    fn hidden(&self) -> usize {
        self.head.layer.blueprint().hidden
    }

    /// Positions from the first on that were seen.
    fn seen(&self) -> usize {
        self.state.len() + self.waiting.len() / self.hidden()
    }

    /// Forgets everything: the next row is that of position `first`.
    fn begin(&mut self, first: usize) {
        self.state.rewind(0);
        self.waiting.clear();
        self.first = first;
    }

    /// Computes the first `count` waiting rows, which are followed by `tokens`.
    fn read(&mut self, count: usize, tokens: &[u32], output: Output) -> Result<()> {
        let states = &self.waiting[..count * self.hidden()];
        self.head.enter(states, tokens, &mut self.scratch)?;
        let workspace = match &mut self.workspace {
            Some(workspace) => workspace,
            none => {
                let capacity = Capacity { rows: ROWS, items: 1, logit_rows: 1 };
                none.insert(Workspace::new(&*self.head.layer, capacity)?)
            }
        };
        let input = Input::Activations(&self.scratch.rows);
        self.head.layer.forward(workspace, &mut [Item { state: &mut self.state, input, output }])?;
        self.waiting.drain(..count * self.hidden());
        Ok(())
    }
}

impl StateDraft for MtpDraft {
    fn bytes(&self) -> usize {
        self.state.bytes()
    }

    fn see(&mut self, from: usize, states: &[f32], text: &[u32]) -> Result<()> {
        let hidden = self.hidden();
        match from.checked_sub(self.first) {
            Some(at) if at < self.state.len() => match self.state.rewind(at) == at {
                true => self.waiting.clear(),
                false => self.begin(from),
            },
            Some(at) if at <= self.seen() => self.waiting.truncate((at - self.state.len()) * hidden),
            _ => self.begin(from),
        }
        self.waiting.extend_from_slice(states);
        if self.seen() > self.state.limit() {
            self.begin(from);
            return Ok(());
        }
        // The token behind the last row may not be known, and its guess is wanted later.
        while self.waiting.len() > ROWS * hidden {
            let at = self.first + self.state.len() + 1;
            let tokens = text.get(at..at + ROWS).ok_or_else(|| Error::invalid("states beyond the text"))?;
            self.read(ROWS, tokens, Output::None)?;
        }
        Ok(())
    }

    fn guess(&mut self, text: &[u32], most: usize) -> Result<&[DraftToken]> {
        self.said.clear();
        let waiting = self.waiting.len() / self.hidden();
        if most == 0 || waiting == 0 || self.first + self.seen() + 1 != text.len() {
            return Ok(&self.said);
        }
        self.text.clear();
        self.text.extend_from_slice(text);
        self.read(waiting, &text[text.len() - waiting..], Output::Last)?;
        let known = self.state.len();
        while let Some(workspace) = &self.workspace {
            self.logits.clear();
            self.logits.extend_from_slice(workspace.logits(0));
            let guess = said(&mut self.sampler, &mut self.logits, &self.text)?;
            self.text.push(guess.token);
            self.said.push(guess);
            if self.said.len() == most || self.state.len() == self.state.limit() {
                break;
            }
            self.waiting.extend_from_slice(workspace.states(0));
            self.read(1, &[guess.token], Output::Last)?;
        }
        self.state.rewind(known);
        Ok(&self.said)
    }
}
