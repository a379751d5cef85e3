//! One subprocess per model: the daemon's side of it here, the child's in [`process`].
//!
//! The daemon never parses a model file and never decodes an activation. A worker does: a child process (`shoal worker`)
//! that holds weights, tokenizer and caches of one model, and whose standard input is one end of a socket pair. What a
//! stranger's file or frame can break is then a process without network, which the daemon outlives and starts again;
//! and when a model is unloaded the process is killed, so that all its memory is free at once.
//!
//! ```text
//! daemon: Worker::run(Job) ─┐bounded              ┌─ reader thread ─┐bounded
//!                           └─ writer task ══ pair ┤                 └─ compute thread: folds waiting jobs, Shard::run
//! Receiver<Output> ───────── reader task ══ pair ══─ writer thread ──────┘bounded
//! ```
//!
//! A session may hold several ranges of layers in one worker (head and tail of a boomerang), a cache for each. What a
//! job promises is what `scheduler::session` asks of a stage: a lower epoch is dropped, a higher one adopted; a job that
//! starts beyond the cache is answered with [`Body::NeedReplay`], one that starts inside it truncates first.
//! The session's *conductor* samples in the worker too, so text and ids of other people's prompts never reach a
//! daemon that only relays.
//!
//! A worker with all layers may draft for sessions of another model of the same vocabulary (`drafts.rs`).
//!
//! Bounds: [`MAX_JOBS`] jobs and [`MAX_QUEUED_BYTES`] under way (more is [`Fault::Busy`]); [`OUTPUTS`] outputs unread (then
//! the worker waits); [`MAX_REPLIES`] questions unanswered; caches within [`Spec::kv_bytes`] (an opening beyond it is refused with what
//! is missing); [`MAX_SESSIONS`] ranges, each closed after [`IDLE`] without a frame; what is kept of ended sessions has what these leave (`kept.rs`).
//!
//! A worker is confined ([`crate::confine`]) before it looks at its file, which the daemon opens for it.
//!
//! Limits: memory beyond caches is bounded by three times the file's size, not by a promise of the model. Unix only.

mod assigned;
mod batcher;
mod drafts;
mod echo;
mod expert_share;
mod experts;
mod fastest;
#[cfg(debug_assertions)]
mod fault;
mod filed;
mod handle;
mod identity;
pub mod ipc;
mod kept;
mod load;
mod poison;
mod pooling;
mod probe;
pub mod process;
mod prompt_rows;
mod ready;
mod recent;
mod rehearse;
mod room;
mod sample_loop;
mod session;
mod shared;
mod transit;

use std::{fmt, path::PathBuf, time::Duration};

use api::inference::Format;
use bincode::{Decode, Encode};
use p2p::{
    codec::{self, Wire},
    wire::announce::Class,
};
use scheduler::{LayerRange, ModelId, SessionId, SessionKind};
use shard::{
    executor::DeviceName,
    round::{Rounding, Rule},
    sample::SamplingParams,
};

pub use assigned::{Assigned, Uses, WorkerSource};
pub use drafts::{DraftSeat, DraftTo, MAX_DRAFTS};
pub use expert_share::{ExpertAsks, ExpertQuestion, ExpertShare, ExpertTimes};
pub use fastest::{failed, spawn_fastest};
pub use handle::{Worker, spawn};
pub use ipc::{DraftIds, Fault, Foreseen, PromptToken, Sampled, TextKind, Top, Trouble, Want};
pub use poison::PoisonGuard;
pub use ready::{Abilities, ExpertShape, Memory, Ready, Times, Vocabulary};
pub use rehearse::{Rehearsed, rehearse, spawn_rehearsed};
pub use room::Room;

/// Jobs that may be under way in one worker. A prompt of 32k tokens in chunks of 256 rows is 128.
pub const MAX_JOBS: usize = 256;
/// Bytes of input that may be under way in one worker: eight frames of the largest size.
pub const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Outputs that may lie unread. More than [`MAX_JOBS`], so that a worker waits only for a reader that is far behind.
pub const OUTPUTS: usize = 1024;
/// Questions ([`Worker::encode`], [`Worker::open`], ..) that may be unanswered.
pub const MAX_REPLIES: usize = 1024;
/// Ranges of sessions that may be open in one worker.
pub const MAX_SESSIONS: usize = 256;
/// A range without a frame for this long is closed: its requester has gone.
pub const IDLE: Duration = Duration::from_secs(60);

/// Where the weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the binary.
    Embedded,
    /// In a GGUF file, which may have holes where other layers would be.
    File(PathBuf),
}

fn refused(why: impl ToString) -> Fault {
    Fault::Refused(why.to_string())
}

/// What a worker measures at load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Measure {
    /// Nothing.
    Nothing,
    /// How fast it computes.
    Speed,
    /// The same, of a device that is tried for `--device auto`, which takes no software device.
    Trial,
}

/// How its threads share the machine with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manners {
    /// How many there are; `None` for one per physical core.
    pub threads: Option<usize>,
    /// Whether they stay on their processors.
    pub pin: bool,
    /// Whether they give way to other programs.
    pub nice: bool,
}

/// What a worker is started for.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Where the weights are.
    pub source: Source,
    /// The model's hash, where it is known. Without it the worker hashes the file, which takes a second per gigabyte
    /// and is meaningless for a file with holes.
    pub model: Option<ModelId>,
    /// What [`Ready::class`] of an earlier worker with this instruction set was; `None` to find out, which takes the
    /// time of `shoal selftest`.
    pub class: Option<Class>,
    /// What to load; none for all layers. Embedding and head come with the first and the last layer.
    pub layers: Vec<LayerRange>,
    /// Most positions a session may hold, cut to what the model was made for.
    pub context: usize,
    /// Which experts of them, if not all.
    pub experts: Option<ExpertShare>,
    /// Instruction set by name; `None` for the fastest here.
    pub isa: Option<String>,
    /// What computes.
    pub device: DeviceName,
    /// Room for caches, bytes.
    pub kv_bytes: u64,
    /// Of which these workers together take no more than there is.
    pub room: Room,
    /// How its threads share the machine.
    pub manners: Manners,
    /// The file of the model's draft head ([`shard::draft::DraftHead`]), if it has one.
    pub draft_head: Option<PathBuf>,
    /// Whether it measures its speed at load. One that is not announced need not: it is most of what starting one
    /// with few layers takes.
    pub measure: Measure,
    /// The program to start as `PROGRAM worker`; `None` for this one.
    pub program: Option<PathBuf>,
    /// Who remembers which sessions were being computed when a worker died; shared by all workers of a daemon.
    pub guard: PoisonGuard,
}

impl Spec {
    /// Whether what computes has a driver that may fail.
    pub fn is_on_gpu(&self) -> bool {
        self.device.has_driver()
    }

    /// All of the model in `source`: sessions of 4096 positions, 1 GiB of caches, all cores.
    pub fn new(source: Source) -> Self {
        Self {
            source,
            model: None,
            class: None,
            layers: Vec::new(),
            context: 4096,
            experts: None,
            isa: None,
            device: DeviceName::Auto,
            kv_bytes: 1 << 30,
            room: Room::default(),
            manners: Manners { threads: None, pin: true, nice: false },
            draft_head: None,
            measure: Measure::Speed,
            program: None,
            guard: PoisonGuard::default(),
        }
    }
}

/// Text to turn into token ids.
#[derive(Clone, PartialEq, Eq)]
pub struct Prompt {
    /// A JSON array of messages for [`TextKind::Chat`], else the text.
    pub text: String,
    /// Which.
    pub kind: TextKind,
}

impl Prompt {
    /// Messages (a JSON array) through the model's chat template.
    pub fn chat(messages: String) -> Self {
        Self { text: messages, kind: TextKind::Chat { tools: None, extra: None } }
    }

    /// Text as it is, BOS in front where the model wants one, special tokens by name.
    pub fn raw(text: String) -> Self {
        Self { text, kind: TextKind::Raw { bos: true, special: true } }
    }
}

/// A range of layers for one session.
#[derive(Clone, Debug)]
pub struct OpenSession {
    /// Which.
    pub session: SessionId,
    /// Under which epoch; one below the range's own is refused.
    pub epoch: u32,
    /// Which layers. Older ranges of the session that overlap them are forgotten.
    pub layers: LayerRange,
    /// Positions to make room for.
    pub positions: u32,
    /// Positions from here on are forgotten.
    pub at: u32,
    /// Where the session rounds, and so the form in which activations leave; boundaries outside `layers` do not matter.
    pub rounding: codec::Rounding,
    /// Which earlier positions the rows of the session see, and how keys and values are kept.
    pub kind: SessionKind,
    /// Ended sessions whose caches were kept here and that begin like this one, and how many positions they have in common.
    pub kept: Vec<(SessionId, u32)>,
    /// For a range that ends with the last layer: choose tokens here.
    pub conduct: Option<Conduct>,
}

/// What an executor does for a session that travels so.
pub(crate) fn rounding(session: &codec::Rounding) -> Rounding {
    let rule = match session.wire() {
        Wire::Raw => return Rounding::NONE,
        Wire::Q8 => Rule::Q8,
        Wire::C8 => Rule::C8,
        Wire::C10 => Rule::C10,
        Wire::C7 => Rule::C7,
        Wire::Bf16 => Rule::Bf16,
        Wire::F16 => Rule::F16,
    };
    Rounding { rule, boundaries: session.boundaries().to_vec() }
}

/// How the tokens of a session are chosen and become text.
#[derive(Clone, Default)]
pub struct Conduct {
    /// How.
    pub sampling: SamplingParams,
    /// The seed of every draw.
    pub seed: u64,
    /// The text ends before any of these.
    pub stop: Vec<String>,
    /// The prompt's ids and those emitted since.
    pub history: Vec<u32>,
    /// How many of them are the prompt.
    pub prompt_tokens: u32,
    /// Where an answer goes on beyond the context, tokens of it that were forgotten: their text was told.
    pub forgotten: Vec<u32>,
    /// All tokens that were forgotten, those of the prompt too: draws count them.
    pub skipped: u64,
    /// What the answer must look like.
    pub format: Format,
    /// Whether control tokens print their names.
    pub show_special: bool,
    /// Whether the tokens of the prompt are told with the first token, and then whether it came as text.
    pub echo: Option<bool>,
    /// What is made of the prompt's hidden states instead of an answer.
    pub pooling: Option<PoolingTask>,
}

/// What is made of the hidden states of a prompt instead of an answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub enum PoolingTask {
    /// A vector of length 1.
    Embed,
    /// A score: how well a document answers a query, as a logit.
    Score,
}

impl PoolingTask {
    /// Why the model called `name` does not do it, and what to do.
    pub fn refusal(self, name: &str) -> String {
        match self {
            Self::Embed => format!("{name} ranks texts and has no vectors: send its texts to /v1/rerank"),
            Self::Score => format!(
                "{name} ranks no texts: take a cross-encoder or Qwen 3 Reranker, whose file says `pooling_type` 4, or compare \
                 vectors of /v1/embeddings"
            ),
        }
    }
}

/// Rows to take through a range of a session.
#[derive(Clone, Debug)]
pub struct Job {
    /// Whose.
    pub session: SessionId,
    /// Under which epoch.
    pub epoch: u32,
    /// First layer of the range.
    pub layer: u32,
    /// Position of the first row.
    pub from: u32,
    /// Number of rows, 1 to 256.
    pub rows: u32,
    /// The rows.
    pub input: JobInput,
    /// What to give.
    pub want: Want,
    /// Under which attempt of the epoch; the output says it again.
    pub attempt: u16,
    /// For [`Want::Sample`]: the drafted tokens whose rows follow the first one. Then the job has one row more than these.
    pub draft: DraftIds,
    /// For [`Want::Sample`]: how many tokens the draft head is to guess behind those drawn, where there is one.
    pub foresee: u8,
}

/// The rows of a job.
#[derive(Clone)]
pub enum JobInput {
    /// Token ids, for a range that starts at layer 0.
    Tokens(Vec<u32>),
    /// Activations as [`p2p::codec`] writes them.
    Wire(Wire, Vec<u8>),
}

/// The answer to a [`Job`].
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// As in the job.
    pub session: SessionId,
    /// As in the job.
    pub epoch: u32,
    /// As in the job.
    pub attempt: u16,
    /// The layers the rows went through.
    pub layers: LayerRange,
    /// As in the job.
    pub from: u32,
    /// As in the job.
    pub rows: u32,
    /// What came of it.
    pub body: Body,
    /// Time of the pass, microseconds, all jobs in it together.
    pub compute_us: u64,
    /// Jobs in the pass.
    pub batched: u32,
}

/// What came of a job.
#[derive(Clone, PartialEq)]
pub enum Body {
    /// The rows after the last layer of the range.
    Activations(Wire, Vec<u8>),
    /// The token after the last row, or those after the rows of a draft, one after the other; at least one.
    Sampled(Vec<Sampled>),
    /// The cache holds only this many positions; nothing was computed.
    NeedReplay {
        /// Positions held.
        have: u32,
    },
    /// It cannot be computed, and why; none of its rows is in the cache.
    Failed(String),
    /// Nothing was wanted; the cache is filled.
    Nothing,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) => f.write_str(why),
            Self::NoRoom { needed_bytes, free_bytes } => write!(
                f,
                "the session needs {needed_bytes} bytes of cache and {free_bytes} are free: close a session or ask for fewer positions"
            ),
            Self::Busy => {
                f.write_str("the worker has as many jobs as it may: read its outputs, then ask again")
            }
            Self::Poison => f.write_str(
                "two workers died while they computed this session: it is given up, change the prompt",
            ),
            Self::Lost(why) => {
                write!(f, "the device failed ({why}): `--device cpu` computes the same without it")
            }
            Self::Dead(why) => write!(f, "the worker is gone ({why}): start another"),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for crate::Error {
    fn from(fault: Fault) -> Self {
        Self::Failed(fault.to_string())
    }
}
