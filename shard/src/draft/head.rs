//! A draft head: a small network that goes on from the hidden state of the model itself.
//!
//! The state in front of the model's head holds more than the next token. From it and the embedding of the token that was chosen the
//! network makes a guess of the state behind that token, from that one and the guessed token the next, and so on; the model's own
//! head reads tokens out of each. It needs no cache and no text: what it guesses follows from one row and one token.
//!
//! ```text
//! s0 = (state - mean) / size              per column, as measured
//! s' = s + down(silu(gate(s, e)) * up(s, e))      e: the embedding of the last token, made even in the same way
//! logits = head(s' * size + mean)          of the tokens that answers are made of most
//! ```
//!
//! A file (GGUF, architecture `shoal-draft-head`) has the matrices as `gate_up.weight` and `down.weight`, the vectors as F32 and the
//! tokens as `draft_head.tokens`; embedding and head are read from the model's own file.
//!
//! Limits: processors only; a model whose head has a bias or caps its logits is drafted for as if it had none, which costs
//! guesses and nothing else.

use std::sync::Arc;

use super::{DraftToken, StateDraft, StateDrafter, chance};
use crate::fma::Fma;
use crate::{
    Error, Result,
    gguf::{Gguf, Tensor, Writer},
    kernels::{Activations, Cpu, Matrix, Target},
    quant::{F32, Format, Q8_0},
    sample::{Sampler, SamplingParams},
};

/// `general.architecture` of its files.
pub const ARCHITECTURE: &str = "shoal-draft-head";
const VOCABULARY: &str = "draft_head.vocabulary";
const TOKENS: &str = "draft_head.tokens";
/// Its matrices, and what columns are made even by: of states, then of embeddings.
const MATRICES: [&str; 2] = ["gate_up.weight", "down.weight"];
const EVEN: [&str; 4] = ["state.mean", "state.size", "token.mean", "token.size"];

/// Mean and size of each column of some rows.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Columns {
    pub mean: Vec<f32>,
    pub size: Vec<f32>,
}

impl Columns {
    /// Makes a row even.
    pub fn even(&self, row: &mut [f32]) {
        let columns = self.mean.iter().zip(&self.size);
        row.iter_mut().zip(columns).for_each(|(x, (mean, size))| *x = (*x - mean) / size);
    }

    /// Makes an even row one of the model's again.
    pub fn uneven(&self, row: &mut [f32]) {
        let columns = self.mean.iter().zip(&self.size);
        row.iter_mut().zip(columns).for_each(|(x, (mean, size))| *x = x.fma(*size, *mean));
    }
}

/// A draft head as numbers.
pub struct HeadParts {
    /// Columns of states and of embeddings.
    pub(super) columns: [Columns; 2],
    /// The tokens that it may guess, ascending.
    pub(super) tokens: Vec<u32>,
    /// `[2 inner][2 hidden]`: gates, then what they open.
    pub(super) gate_up: Vec<f32>,
    /// `[hidden][inner]`.
    pub(super) down: Vec<f32>,
}

impl HeadParts {
    /// Writes a file that drafts for models whose tokenizer has the digest `vocabulary`; matrices as Q8_0.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, out: impl std::io::Write, name: &str, vocabulary: blake3::Hash) -> Result<()> {
        let hidden = self.columns[0].mean.len();
        let inner = self.down.len() / hidden;
        let mut writer = Writer::new();
        writer
            .add_str("general.architecture", ARCHITECTURE)
            .add_str("general.name", name)
            .add_str(VOCABULARY, &vocabulary.to_hex())
            .add_u32s(TOKENS, &self.tokens);
        let [wide, tall] = [[2 * hidden, 2 * inner], [inner, hidden]].map(|dims| dims.map(|dim| dim as u64));
        writer.add_tensor_info(MATRICES[0], &wide, &Q8_0).add_tensor_info(MATRICES[1], &tall, &Q8_0);
        EVEN.iter().for_each(|name| {
            writer.add_tensor_info(name, &[hidden as u64], &F32);
        });
        let mut out = writer.start(out)?;
        for matrix in [&self.gate_up, &self.down] {
            out.tensor(&blocks(&Q8_0, matrix)?)?;
        }
        for Columns { mean, size } in &self.columns {
            out.tensor(&blocks(&F32, mean)?)?;
            out.tensor(&blocks(&F32, size)?)?;
        }
        out.finish().map(|_| ())
    }
}

/// Weights as blocks of a format.
fn blocks(format: &'static Format, weights: &[f32]) -> Result<Vec<u8>> {
    let bytes = format.row_bytes(weights.len());
    let mut blocks = vec![0; bytes.ok_or_else(|| Error::invalid("rows of a width that has no blocks"))?];
    format.quantize(weights, None, &mut blocks)?;
    Ok(blocks)
}

/// The matrix of the model's head.
pub(super) fn head_of(model: &Gguf) -> Result<Tensor<'_>> {
    model.tensor("output.weight").map_or_else(|| model.require("token_embd.weight"), Ok)
}

/// A draft head ready to guess: weights alone, so that all sessions of a model share it.
pub struct DraftHead {
    cpu: Arc<Cpu>,
    model: Arc<Gguf>,
    hidden: usize,
    columns: [Columns; 2],
    tokens: Vec<u32>,
    gate_up: Matrix,
    down: Matrix,
    /// The rows of the model's head for `tokens`.
    out: Matrix,
}

/// Rows of one guess.
#[derive(Default)]
struct Scratch {
    activations: Activations,
    /// The state, and behind it the embedding.
    input: Vec<f32>,
    gate_up: Vec<f32>,
    made: Vec<f32>,
    logits: Vec<f32>,
    text: Vec<u32>,
}

impl DraftHead {
    /// The one in `file`, for `model`, whose tokenizer has the digest `vocabulary` and which computes on `cpu`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file that is no draft head or one of another model; those of a damaged file.
    pub fn load(file: &Gguf, model: &Arc<Gguf>, vocabulary: blake3::Hash, cpu: &Arc<Cpu>) -> Result<Self> {
        let metadata = file.metadata();
        if metadata.str("general.architecture") != Some(ARCHITECTURE) {
            return Err(Error::invalid("the file is no draft head; `shoal distill` makes one"));
        }
        let (table, head) = (model.require("token_embd.weight")?, head_of(model)?);
        let hidden = head.cols();
        let fits = metadata.str(VOCABULARY) == Some(vocabulary.to_hex().as_str()) && table.cols() == hidden;
        let [gate_up, down] = [file.require(MATRICES[0])?, file.require(MATRICES[1])?];
        if !fits || gate_up.cols() != 2 * hidden || down.rows() != hidden {
            return Err(Error::invalid(
                "the draft head was made for another model; `shoal distill` makes one for this",
            ));
        }
        if gate_up.rows() != 2 * down.cols() || gate_up.info.dims.len() != 2 || down.info.dims.len() != 2 {
            return Err(Error::malformed("draft head", "its matrices do not fit together"));
        }
        let [state_mean, state_size, token_mean, token_size] = {
            let mut vectors = [const { Vec::new() }; 4];
            for (vector, name) in vectors.iter_mut().zip(EVEN) {
                *vector = file.require(name)?.to_f32();
                let sound = vector.len() == hidden && vector.iter().all(|x| x.is_finite());
                if !sound || name.ends_with("size") && vector.iter().any(|x| *x <= 0.0) {
                    return Err(Error::malformed(name, "it has other columns or no numbers"));
                }
            }
            vectors
        };
        let tokens: Vec<u32> = metadata
            .u64s(TOKENS)
            .unwrap_or_default()
            .into_iter()
            .map(|id| u32::try_from(id).unwrap_or(u32::MAX))
            .collect();
        let vocab = head.rows().min(table.rows());
        if tokens.is_empty()
            || !tokens.is_sorted_by(|a, b| a < b)
            || tokens.last().is_some_and(|id| *id as usize >= vocab)
        {
            return Err(Error::malformed(TOKENS, "they are none, unordered or beyond the vocabulary"));
        }
        let rows: Vec<u8> = tokens.iter().flat_map(|id| head.row(*id as usize)).copied().collect();
        let out = Matrix::pack(cpu, head.format, tokens.len(), hidden, &rows)?;
        let pack =
            |tensor: Tensor<'_>| Matrix::pack(cpu, tensor.format, tensor.rows(), tensor.cols(), tensor.bytes);
        Ok(Self {
            gate_up: pack(gate_up)?,
            down: pack(down)?,
            out,
            cpu: cpu.clone(),
            model: model.clone(),
            hidden,
            columns: [
                Columns { mean: state_mean, size: state_size },
                Columns { mean: token_mean, size: token_size },
            ],
            tokens,
        })
    }
}

impl StateDrafter for DraftHead {
    fn bytes(&self) -> usize {
        [&self.gate_up, &self.down, &self.out].iter().map(|matrix| matrix.resident_bytes()).sum()
    }

    fn position_bytes(&self) -> usize {
        0
    }

    fn looks_back(&self) -> bool {
        false
    }

    fn session(self: Arc<Self>, params: &SamplingParams, seed: u64) -> Result<Box<dyn StateDraft>> {
        let mut params = SamplingParams { logprobs: true, top_logprobs: 0, ..params.clone() };
        params.logit_bias.retain_mut(|(id, _)| match self.tokens.binary_search(id) {
            Ok(place) => {
                *id = place as u32;
                true
            }
            Err(_) => false,
        });
        let sampler = Sampler::new(params, seed, self.tokens.len())?;
        Ok(Box::new(HeadDraft {
            sampler,
            seen: Vec::new(),
            state: Vec::new(),
            behind: 0,
            scratch: Scratch::default(),
            said: Vec::new(),
            head: self,
        }))
    }
}

/// What a draft head knows of one answer: the newest hidden state. It chooses as its model will, with the same parameters, seed and
/// position, among the tokens that it knows.
struct HeadDraft {
    head: Arc<DraftHead>,
    sampler: Sampler,
    /// The tokens of the text that count for penalties, by their place among those of the head.
    seen: Vec<u32>,
    /// The newest state, and the position behind its row.
    state: Vec<f32>,
    behind: usize,
    scratch: Scratch,
    said: Vec<DraftToken>,
}

impl StateDraft for HeadDraft {
    fn bytes(&self) -> usize {
        self.state.len() * size_of::<f32>()
    }

    fn see(&mut self, from: usize, states: &[f32], _text: &[u32]) -> Result<()> {
        let hidden = self.head.hidden;
        let last = states.len().checked_sub(hidden).filter(|_| states.len().is_multiple_of(hidden));
        let last = last.ok_or_else(|| Error::invalid("states of another width"))?;
        self.state.clear();
        self.state.extend_from_slice(&states[last..]);
        self.behind = from + states.len() / hidden;
        Ok(())
    }

    fn guess(&mut self, text: &[u32], most: usize) -> Result<&[DraftToken]> {
        self.said.clear();
        if self.state.is_empty() || self.behind + 1 != text.len() {
            return Ok(&self.said);
        }
        let head = self.head.clone();
        let DraftHead { cpu, columns: [states, tokens], hidden, .. } = &*head;
        let table = head.model.require("token_embd.weight")?;
        let mut scratch = std::mem::take(&mut self.scratch);
        let Scratch { activations, input, gate_up, made, logits, text: known } = &mut scratch;
        known.clear();
        known.extend_from_slice(text);
        input.resize(2 * hidden, 0.0);
        input[..*hidden].copy_from_slice(&self.state);
        states.even(&mut input[..*hidden]);
        for _ in 0..most {
            let last = known.last().map_or(usize::MAX, |id| *id as usize);
            if last >= table.rows() {
                return Err(Error::invalid("a token beyond the vocabulary"));
            }
            let (state, embedding) = input.split_at_mut(*hidden);
            (table.format.dequantize)(table.row(last), embedding);
            tokens.even(embedding);
            gate_up.resize(head.gate_up.rows(), 0.0);
            let mut target = |x: &[f32], matrix: &Matrix, out: &mut Vec<f32>| {
                out.resize(matrix.rows(), 0.0);
                cpu.matmul(x, 1, activations, &mut [Target { matrix, out }]);
            };
            let row = [&*state, &*embedding].concat();
            target(&row, &head.gate_up, gate_up);
            let (gate, up) = gate_up.split_at_mut(head.down.cols());
            cpu.silu_mul(gate, up);
            target(gate, &head.down, made);
            cpu.add(state, made);
            made.copy_from_slice(state);
            states.uneven(made);
            target(made, &head.out, logits);
            let guess = self.choose(logits, known)?;
            known.push(guess.token);
            self.said.push(guess);
        }
        self.scratch = scratch;
        Ok(&self.said)
    }
}

impl HeadDraft {
    /// What follows `known`, as these `logits` of the head's tokens say.
    fn choose(&mut self, logits: &mut [f32], known: &[u32]) -> Result<DraftToken> {
        let tokens = &self.head.tokens;
        let window = self.sampler.params().penalty_window;
        self.seen.clear();
        let places =
            known[known.len().saturating_sub(window)..].iter().filter_map(|id| tokens.binary_search(id).ok());
        self.seen.extend(places.map(|place| place as u32));
        let choice = self.sampler.sample(logits, &self.seen, known.len() as u64)?;
        let chance = chance(choice.logprob);
        Ok(DraftToken { token: tokens[choice.id as usize], chance })
    }
}
