//! What daemon and worker say to each other.
//!
//! Plain numbers and text; what they mean is checked where they are used. Ids are echoed, so that answers may come in
//! any order.

use bincode::{Decode, Encode};
use shard::sample::SamplingParams;

use crate::{
    confine::Confinement,
    state_store::file::Whose,
    worker::{
        Measure, PoolingTask,
        ready::{Abilities, CostRun, Memory, Times, Vocabulary},
    },
};

/// What the daemon says.
#[derive(Clone, Debug, Encode, Decode)]
pub enum Ask {
    /// The first frame: which model, how.
    Load(Load),
    /// Answered by [`Tell::Pong`].
    Ping {
        /// Echoed.
        id: u64,
    },
    /// Whether answers can have a form; the payload is it, as JSON of [`api::inference::Format`]. Answered by
    /// [`Tell::Checked`].
    Check {
        /// Echoed.
        id: u64,
    },
    /// Text to ids; the payload is the text. Answered by [`Tell::Encoded`].
    Encode {
        /// Echoed.
        id: u64,
        /// What the text is.
        kind: TextKind,
    },
    /// Answered by [`Tell::Opened`]; the payload is the history of a conducting session, u32 ids.
    Open {
        /// Echoed.
        id: u64,
        /// For what.
        open: Open,
    },
    /// A job; the payload is its input. Answered by [`Tell::Output`] or [`Tell::Dropped`].
    Run(Run),
    /// Forget positions from `to` on, in every range of the session.
    Truncate {
        /// Whose.
        session: [u8; 16],
        /// Positions to keep.
        to: u32,
    },
    /// The text that is still held back, since nothing follows. Answered by [`Tell::Finished`].
    Finish {
        /// Echoed.
        id: u64,
        /// Whose.
        session: [u8; 16],
    },
    /// Close the session, and forget all of it that is not to be kept.
    Close {
        /// Which.
        session: [u8; 16],
        /// First layers of the ranges whose caches stay for sessions that begin alike, and how many positions of each.
        keep: Vec<(u32, u32)>,
        /// Whether on disk as well, and of whose prompt it is.
        file: Option<Whose>,
    },
    /// Whether an open session's range and what is kept of another, ended one hold the same of the first positions, bit for bit.
    /// Answered by [`Tell::Opened`], with 1 or 0.
    Agree {
        /// Echoed.
        id: u64,
        /// The open one.
        session: [u8; 16],
        /// The first layer of the range.
        first: u32,
        /// The ended one.
        kept: [u8; 16],
        /// How many positions.
        positions: u32,
    },
    /// A piece of what was kept of a range of an ended session, packed. Answered by [`Tell::Exported`].
    Export {
        /// Echoed.
        id: u64,
        /// Which.
        session: [u8; 16],
        /// The first layer of the range.
        first: u32,
        /// How many positions of it.
        positions: u32,
        /// The byte of the state that the piece starts with.
        start: u32,
    },
    /// Keep a state as that of an ended session; the payload is the next packed piece of it. Answered by [`Tell::Opened`], with its positions
    /// when it was the last piece and 0 before.
    Import {
        /// Echoed.
        id: u64,
        /// Of what it is, as if it were to be opened.
        open: Open,
        /// The byte of the state that the piece starts with.
        start: u32,
        /// Bytes of the whole state.
        raw_bytes: u32,
    },
    /// Draft for a session from now on. Answered by [`Tell::Opened`].
    OpenDraft {
        /// Echoed.
        id: u64,
        /// Whose.
        session: [u8; 16],
        /// How its tokens are chosen.
        sampling: Sampling,
        /// The seed of every draw.
        seed: u64,
        /// Tokens of the model that is drafted for.
        vocab: u32,
    },
    /// What follows a text; the payload is its u32 ids. Answered by [`Tell::Drafted`].
    Draft {
        /// Echoed.
        id: u64,
        /// For which session.
        session: [u8; 16],
    },
    /// Rows for experts that are here; the payload is a [`p2p::wire::experts::Work`]. Answered by [`Tell::ExpertsRan`].
    RunExperts {
        /// Echoed.
        id: u64,
    },
    /// To [`Tell::WantExperts`]; the payload is the outputs, f32, or why there are none.
    ExpertOutputs {
        /// As asked.
        id: u64,
        /// Whether there are none.
        failed: bool,
    },
    /// Forget what was kept of an ended session.
    Forget {
        /// Which.
        session: [u8; 16],
    },
    /// What is kept of ended sessions may take no more than this now.
    Keep {
        /// Bytes.
        most_bytes: u64,
    },
}

/// What the worker says.
#[derive(Clone, Debug, Encode, Decode)]
pub enum Tell {
    /// The model is loaded and measured.
    Ready(Box<Ready>),
    /// The model cannot be loaded; the worker ends.
    Failed {
        /// Why.
        why: String,
    },
    /// To [`Ask::Ping`].
    Pong {
        /// As asked.
        id: u64,
    },
    /// To [`Ask::Check`]: yes.
    Checked {
        /// As asked.
        id: u64,
    },
    /// To [`Ask::Encode`]; the payload is u32 ids.
    Encoded {
        /// As asked.
        id: u64,
        /// Whether they end inside a block of reasoning.
        reasoning: bool,
    },
    /// To [`Ask::Open`].
    Opened {
        /// As asked.
        id: u64,
        /// Positions still computed.
        have: u32,
    },
    /// To [`Ask::Export`]; the payload is the packed state.
    Exported {
        /// As asked.
        id: u64,
        /// Bytes of it as it is.
        raw_bytes: u32,
    },
    /// To [`Ask::Draft`]; the payload is the token and how likely it seems, 0 to 1, u32 and f32; nothing where the context is
    /// full.
    Drafted {
        /// As asked.
        id: u64,
        /// Tokens that were new.
        read: u32,
    },
    /// Rows that need experts of another node; the payload is a [`p2p::wire::experts::Work`]. Answered by [`Ask::ExpertOutputs`].
    WantExperts {
        /// Echoed.
        id: u64,
    },
    /// To [`Ask::RunExperts`]; the payload is the outputs, f32.
    ExpertsRan {
        /// As asked.
        id: u64,
    },
    /// To [`Ask::Finish`]; the payload is text.
    Finished {
        /// As asked.
        id: u64,
    },
    /// Instead of an answer to what had this id.
    Refused {
        /// As asked.
        id: u64,
        /// Why.
        fault: Fault,
    },
    /// To [`Ask::Run`]; the payload is activations, if any.
    Output(Output),
    /// To [`Ask::Run`] of an epoch that is over.
    Dropped {
        /// As asked.
        job: u64,
    },
    /// What is kept of ended sessions takes so much now, pages that open sessions share not counted.
    Kept {
        /// Bytes.
        bytes: u64,
    },
    /// What computes failed for good, or gave other bits than it should; the worker ends.
    Unfit {
        /// Which of both.
        trouble: Trouble,
    },
    /// The session's range was idle for too long and is gone.
    Closed {
        /// Whose.
        session: [u8; 16],
        /// The first layer of the range.
        first: u32,
    },
}

/// What is wrong with a device.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Trouble {
    /// It is lost or hangs, and why: nothing is computed on it any more.
    Lost(String),
    /// A hash of profile `d1` came out otherwise once, and what the whole self-test gave then: it is of class `approx`.
    Inexact(String),
}

/// See [`crate::worker::Spec`].
#[derive(Clone, Debug, Encode, Decode)]
pub struct Load {
    /// The file's path in the system's own bytes, its length, and whether it has a file of panels; `None` for the embedded model.
    /// Their descriptors follow the frame, one after the other.
    pub file: Option<(Vec<u8>, u64, bool)>,
    /// The model's hash, if it is known; the worker computes it otherwise.
    pub model: Option<[u8; 32]>,
    /// Whether the worker holds the file against the hash.
    pub verify: bool,
    /// Whether this machine computes the bits of profile `d1`, if it is known.
    pub exact: Option<bool>,
    /// Start and end of the layers to load; none for all.
    pub layers: Vec<(u32, u32)>,
    /// Most positions of a session.
    pub context: u64,
    /// The first and one past the last expert of each layer to load, and whether others can be asked for; `None` for all.
    pub experts: Option<((u32, u32), bool)>,
    /// How it computes beside other programs.
    pub threads: Threads,
    /// Instruction set.
    pub isa: Option<String>,
    /// What computes, by name, and the path of the folder in which a GPU's compiled kernels are kept, in the system's own bytes.
    pub device: (String, Option<Vec<u8>>),
    /// Room for caches.
    pub kv_bytes: u64,
    /// What to measure before saying [`Ready`].
    pub measure: Measure,
    /// The draft head's path in the system's own bytes and its length, where there is one; its descriptor follows the model's.
    pub draft_head: Option<(Vec<u8>, u64)>,
    /// What the file for states of ended sessions is encrypted with, whose descriptor comes last; `None` for no such file.
    pub state_secret: Option<[u8; 32]>,
}

/// The threads of a worker.
#[derive(Clone, Debug, Default, Encode, Decode)]
pub struct Threads {
    /// How many; `None` for one per physical core.
    pub count: Option<u32>,
    /// The processor of each, claimed by the daemon; none to let the system place them.
    pub processors: Vec<u32>,
    /// Whether others go first.
    pub nice: bool,
}

/// See [`crate::worker::Ready`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Ready {
    pub model: [u8; 32],
    pub name: String,
    pub num_layers: u32,
    pub layers: Vec<(u32, u32)>,
    pub hidden: u32,
    pub vocabulary: Vocabulary,
    pub context: u32,
    pub memory: Memory,
    pub times: Times,
    pub load_ms: f64,
    /// Runs of layers that cost the same.
    pub costs: Vec<CostRun>,
    pub exact: bool,
    /// What computes, in words.
    pub device: String,
    pub abilities: Abilities,
    pub confinement: Confinement,
}

/// What a text to encode is.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
pub enum TextKind {
    /// A JSON array of messages for the chat template.
    Chat {
        /// A JSON array of tool descriptions.
        tools: Option<String>,
        /// A JSON object of further variables for the template.
        extra: Option<String>,
    },
    /// Text as it is.
    Raw {
        /// Whether BOS goes in front, where the model wants one.
        bos: bool,
        /// Whether names of special tokens become those tokens.
        special: bool,
    },
    /// A document, to be scored by how well it answers a query.
    Document {
        /// The query.
        query: String,
        /// Whether only its beginning counts where the rest has no room.
        truncate: bool,
    },
}

/// See [`crate::worker::OpenSession`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Open {
    pub session: [u8; 16],
    pub epoch: u32,
    pub layers: (u32, u32),
    pub positions: u32,
    pub at: u32,
    pub wire: u8,
    pub rounding: Vec<u32>,
    /// A [`scheduler::SessionKind`] as it is written.
    pub kind: String,
    pub kept: Vec<([u8; 16], u32)>,
    pub conduct: Option<Conduct>,
}

/// See [`crate::worker::Conduct`]; the history is the payload.
#[derive(Clone, Encode, Decode)]
#[allow(missing_docs)]
pub struct Conduct {
    pub sampling: Sampling,
    pub seed: u64,
    pub stop: Vec<String>,
    pub prompt_tokens: u32,
    /// How many ids in front of the history were forgotten.
    pub forgotten: u32,
    pub skipped: u64,
    /// JSON of [`api::inference::Format`]; `None` for text of no form.
    pub format: Option<String>,
    pub show_special: bool,
    /// Whether the tokens of the prompt are told, and then whether it came as text.
    pub echo: Option<bool>,
    /// What is made of the prompt's hidden states instead of an answer.
    pub pooling: Option<PoolingTask>,
}

/// [`SamplingParams`], field by field.
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Sampling {
    pub temperature: f32,
    pub top_k: u64,
    pub top_p: f32,
    pub min_p: f32,
    pub typical_p: f32,
    pub repetition_penalty: f32,
    pub presence_penalty: f32,
    pub frequency_penalty: f32,
    pub penalty_window: u64,
    pub logit_bias: Vec<(u32, f32)>,
    pub top_logprobs: u64,
    pub logprobs: bool,
}

/// See [`crate::worker::Job`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Run {
    pub job: u64,
    pub session: [u8; 16],
    pub epoch: u32,
    pub attempt: u16,
    pub layer: u32,
    pub from: u32,
    pub rows: u32,
    /// `None` for token ids, else the form of the activations.
    pub wire: Option<u8>,
    pub want: Want,
    pub draft: DraftIds,
    pub foresee: u8,
}

/// What the draft head guesses behind the last token of a step, with how likely it finds each. Its `Debug` tells how many there
/// are.
#[derive(Clone, Default, PartialEq, Encode, Decode)]
pub struct Foreseen {
    /// Ids and chances, 0 to 1.
    pub guesses: Vec<(u32, f32)>,
    /// What they took together, microseconds.
    pub us: u32,
}

/// Drafted tokens, whose rows are the last ones of a job. Their `Debug` tells how many there are.
#[derive(Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct DraftIds(pub Vec<u32>);

/// What a job is to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Want {
    /// Nothing: caches are filled.
    Nothing,
    /// The rows after the last layer of the range.
    Activations,
    /// The token after the last row; with a draft, the tokens after its rows that the draws agree with, and one more.
    Sample,
}

/// See [`crate::worker::Output`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub struct Output {
    pub job: u64,
    pub session: [u8; 16],
    pub epoch: u32,
    pub attempt: u16,
    pub layers: (u32, u32),
    pub from: u32,
    pub rows: u32,
    pub body: Body,
    pub compute_us: u64,
    pub batched: u32,
}

/// See [`crate::worker::Body`].
#[derive(Clone, Debug, Encode, Decode)]
#[allow(missing_docs)]
pub enum Body {
    Nothing,
    Activations(u8),
    Sampled(Vec<Sampled>),
    NeedReplay { have: u32 },
    Failed(String),
}

/// The token after a position, as the session that conducts sees it.
#[derive(Clone, Default, PartialEq, Encode, Decode)]
pub struct Sampled {
    /// Where it stands, the prompt included.
    pub position: u32,
    /// Its id.
    pub id: u32,
    /// Text that became certain with it, possibly empty.
    pub text: String,
    /// Whether it ends the text.
    pub stop: bool,
    /// The stop string that ended it, where one did.
    pub met: Option<String>,
    /// Whether it is one of the model's own ends: then it is no part of the answer.
    pub ends_turn: bool,
    /// Its own bytes, when log-probabilities are asked for.
    pub bytes: Vec<u8>,
    /// Its log-probability, when asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens here, best first, when asked for.
    pub top: Vec<Top>,
    /// Of the last one of a step: tokens that the form of the answer goes on with, as far as it leaves no choice.
    pub forced: DraftIds,
    /// Of the last one of a step, where it was asked for: what the draft head guesses to follow.
    pub foreseen: Foreseen,
    /// Of the first one of an answer that is to tell them: the tokens of the prompt. They travel as the payload.
    pub prompt: Vec<PromptToken>,
    /// Of the only one of a prompt that is pooled: its vector, or its score.
    pub pooled: Vec<f32>,
}

/// A token of the prompt.
#[derive(Clone, PartialEq, Encode, Decode)]
pub struct PromptToken {
    /// Its id.
    pub id: u32,
    /// Its bytes, not always whole characters.
    pub bytes: Vec<u8>,
    /// Its log-probability, when asked for; `None` where nothing is before it.
    pub logprob: Option<f32>,
    /// The likeliest tokens here, best first, when asked for.
    pub top: Vec<Top>,
}

/// One of the likeliest tokens.
#[derive(Clone, PartialEq, Encode, Decode)]
pub struct Top {
    /// Its id.
    pub id: u32,
    /// Its bytes, not always whole characters.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Why a worker did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Fault {
    /// It cannot be done as asked; another request may work.
    Refused(String),
    /// The caches of open sessions leave too little room: close some, or ask another node.
    NoRoom {
        /// Bytes the session would need.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// More is queued than the worker is allowed to have waiting: read outputs, then ask again.
    Busy,
    /// The session was being computed when two workers died: it fails instead of killing a third.
    Poison,
    /// The device failed while the model was loaded: start a worker on another.
    Lost(String),
    /// The worker is gone, and everything it held: start another.
    Dead(String),
}

impl From<&SamplingParams> for Sampling {
    fn from(p: &SamplingParams) -> Self {
        Self {
            temperature: p.temperature,
            top_k: p.top_k as u64,
            top_p: p.top_p,
            min_p: p.min_p,
            typical_p: p.typical_p,
            repetition_penalty: p.repetition_penalty,
            presence_penalty: p.presence_penalty,
            frequency_penalty: p.frequency_penalty,
            penalty_window: p.penalty_window as u64,
            logit_bias: p.logit_bias.clone(),
            top_logprobs: p.top_logprobs as u64,
            logprobs: p.logprobs,
        }
    }
}

impl From<Sampling> for SamplingParams {
    /// Counts that do not fit become too large to pass validation.
    fn from(s: Sampling) -> Self {
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            temperature: s.temperature,
            top_k: count(s.top_k),
            top_p: s.top_p,
            min_p: s.min_p,
            typical_p: s.typical_p,
            repetition_penalty: s.repetition_penalty,
            presence_penalty: s.presence_penalty,
            frequency_penalty: s.frequency_penalty,
            penalty_window: count(s.penalty_window),
            logit_bias: s.logit_bias,
            top_logprobs: count(s.top_logprobs),
            logprobs: s.logprobs,
        }
    }
}
