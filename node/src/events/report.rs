//! What a plan predicts and what an answer that is over reports: the records behind `plan`, `why` and the last event.

use api::{
    choice::{Mode, Wire},
    swarm_records::Timeline,
};
use scheduler::{SessionKind, cost::Cost};
use serde::{Deserialize, Serialize};

use super::StageRange;

/// What answering a prompt is expected to take, part by part.
#[derive(Clone, Serialize, Deserialize)]
pub struct Prediction {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens the answer is expected to have.
    pub expected_tokens: u32,
    /// The stages in order.
    pub stages: Vec<PlannedStage>,
    /// Head, sampling and text here, a token.
    pub home_ms: f64,
    /// Who stands by for each stage.
    pub shadows: Vec<Option<String>>,
    /// The sums.
    pub predicted: Predicted,
    /// The route as it was asked for.
    pub as_asked: Way,
    /// The route if the ends need not stay home.
    pub ends_abroad: Way,
    /// This machine alone.
    pub local: Way,
    /// Whether this machine alone is faster.
    pub local_wins: bool,
    /// From where to where it may come, by how predictions of this model came true; absent in plans of older nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<PredictedRange>,
    /// What `--allow-rounding` would save of all of it, ms; only where activations travel exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding_saves_ms: Option<f64>,
}

/// The answer to `plan`.
#[derive(Clone, Serialize, Deserialize)]
pub struct PlanReport {
    /// What it would take.
    #[serde(flatten)]
    pub plan: Prediction,
    /// This node.
    pub me: String,
    /// No line follows: always `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub end: bool,
}

/// A stage of a plan.
#[derive(Clone, Serialize, Deserialize)]
pub struct PlannedStage {
    /// The node.
    pub node: String,
    /// First layer.
    pub start: u32,
    /// Layer after the last.
    pub end: u32,
    /// All of an answer.
    pub ms: f64,
    /// A token; the measured form of it is [`StageReport::ms`].
    pub step_ms: Option<f64>,
    /// What `ms` is the sum of.
    pub terms: CostTerms,
}

impl PlannedStage {
    /// Who and what.
    pub fn range(&self) -> StageRange {
        StageRange { node: self.node.clone(), start: self.start, end: self.end }
    }
}

/// The parts of a stage's time, ms; see [`Cost`]. What takes no time is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct CostTerms {
    #[serde(skip_serializing_if = "takes_none")]
    pub decode: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub prefill: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub crowding: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub doubt: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub visit: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub queue: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub load: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub hop: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub transfer: f64,
    #[serde(skip_serializing_if = "takes_none")]
    pub closing: f64,
}

fn takes_none(ms: &f64) -> bool {
    *ms <= 0.0
}

impl CostTerms {
    /// Those that take time, by name, in the scheduler's order.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("decode", self.decode),
            ("prefill", self.prefill),
            ("crowding", self.crowding),
            ("doubt", self.doubt),
            ("visit", self.visit),
            ("queue", self.queue),
            ("load", self.load),
            ("hop", self.hop),
            ("transfer", self.transfer),
            ("closing", self.closing),
        ];
        all.into_iter().filter(|(_, ms)| !takes_none(ms))
    }
}

impl From<&Cost> for CostTerms {
    fn from(cost: &Cost) -> Self {
        Self {
            decode: cost.decode_ms,
            prefill: cost.prefill_ms,
            crowding: cost.crowding_ms,
            doubt: cost.doubt_ms,
            visit: cost.visit_ms,
            queue: cost.queue_ms,
            load: cost.load_ms,
            hop: cost.hop_ms,
            transfer: cost.transfer_ms,
            closing: cost.closing_ms,
        }
    }
}

/// The sums of a prediction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// All of the answer.
    pub total_ms: f64,
    /// Until the first token.
    pub ttft_ms: f64,
    /// Until every stage has promised to serve.
    pub opened_ms: f64,
    /// Computing the prompt.
    pub prefill_ms: f64,
    /// A token.
    pub step_ms: f64,
    /// Tokens per second.
    pub tok_s: f64,
}

/// How far a prediction may be off, and how good those before it were.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedRange {
    /// Until the first token, from and to.
    pub ttft_ms: (f64, f64),
    /// A token, from and to.
    pub step_ms: (f64, f64),
    /// How first tokens came true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_score: Option<PredictedScore>,
    /// How further tokens did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_score: Option<PredictedScore>,
}

/// How good predictions have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictedScore {
    /// Answers that were compared.
    pub answers: usize,
    /// The median of their relative errors.
    pub median_error: f64,
    /// The share of them that lay within the range.
    pub within: f64,
}

/// One way of answering, beside others.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Way {
    /// It can be gone.
    Possible {
        /// All of the answer.
        total_ms: f64,
        /// Tokens per second.
        tok_s: Option<f64>,
    },
    /// It cannot.
    Impossible {
        /// Why not.
        impossible: String,
    },
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// The model ended its turn, or a stop string was met.
    #[default]
    Stop,
    /// The limit of tokens, or the context, is used up.
    Length,
    /// The caller did not want it any more.
    Cancelled,
    /// It was given up.
    Failed,
}

impl FinishReason {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// An answer that is over: the last line of it, and what `why` remembers.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct PromptReport {
    /// Its session, where this node conducted it or continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Who could read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The node that conducted it, where it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conductor: Option<String>,
    /// How it ended.
    pub finish_reason: FinishReason,
    /// All of the text.
    pub text: String,
    /// The part of it that no token carried: held back until the end.
    pub rest: String,
    /// The answer's tokens.
    pub ids: Vec<u32>,
    /// How many those are.
    pub completion_tokens: usize,
    /// How many times the context was full and the answer went on.
    #[serde(default, skip_serializing_if = "is_none")]
    pub context_shifts: u32,
    /// How long it took; unknown where only its end was missing.
    #[serde(flatten)]
    pub timing: Option<Timing>,
    /// What only the node knows that conducted it.
    #[serde(flatten)]
    pub conducted: Option<Box<Conducted>>,
    /// The answer is complete, and still being checked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub checking: bool,
    /// It was given up; under this name it can be continued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
    /// Tokens that an earlier process had computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_tokens: Option<usize>,
    /// No line of the answer follows for the command line: always `true`.
    pub end: bool,
}

fn is_untold(timeline: &Timeline) -> bool {
    timeline.steps.is_empty()
}

fn is_none(tokens: &u32) -> bool {
    *tokens == 0
}

/// How long an answer took.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Timing {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that were computed before and not for it.
    #[serde(default, skip_serializing_if = "is_none")]
    pub cached_tokens: u32,
    /// Until the first token.
    pub ttft_ms: f64,
    /// Tokens per second after the first.
    pub decode_tok_s: f64,
    /// The stages at the end.
    #[serde(default)]
    pub stages: Vec<StageReport>,
    /// Nodes lost and replaced on the way.
    pub faults: Vec<Stall>,
}

/// What the node that conducts knows of an answer.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Conducted {
    /// The model that answered, by its name.
    pub model: String,
    /// This node.
    pub me: String,
    /// How activations travelled.
    pub wire: Wire,
    /// Layers before which they were rounded: none where the form is exact.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<u32>,
    /// Which earlier positions each row saw, and how keys and values were kept.
    #[serde(flatten, with = "super::session_kind")]
    pub kind: SessionKind,
    /// What ended it.
    #[serde(flatten)]
    pub ending: Ending,
    /// Until every stage had promised to serve.
    pub opened_ms: Option<f64>,
    /// What was expected.
    pub predicted: Predicted,
    /// What checking others' work found.
    #[serde(flatten)]
    pub checks: CheckReport,
    /// Work that was signed for.
    pub receipts: usize,
    /// Nodes so late that their shadow answered first.
    pub hedged: Vec<Stall>,
    /// Tokens that were drafted, where any were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafts: Option<DraftReport>,
    /// Bytes of activations sent.
    pub bytes_out: u64,
    /// And received.
    pub bytes_in: u64,
    /// What happened, step by step.
    #[serde(default, skip_serializing_if = "is_untold")]
    pub timeline: Timeline,
}

/// What ended an answer, beside its [`FinishReason`].
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Ending {
    /// Why it was given up, where it was.
    pub gave_up: Option<String>,
    /// The stop string that ended it, where one did.
    pub stop: Option<String>,
    /// Whether the model ended its turn, by a token that is not among the ids.
    pub ended_turn: bool,
}

/// What came of checking the work of other nodes for an answer.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct CheckReport {
    /// Share of what others computed that was checked bit for bit; 1 when no other node computed.
    pub verified: f64,
    /// Disputes that a third holder settled.
    pub settled_by_thirds: u32,
    /// Nodes that computed the same.
    pub checked_by: Vec<String>,
    /// Nodes proven wrong.
    pub convicted: Vec<String>,
    /// The first token that was shown and followed from a lie.
    pub integrity: Option<u32>,
    /// Two answers for one position differed this often.
    pub differing_answers: u32,
}

/// What became of the drafts of an answer.
#[derive(Clone, Serialize, Deserialize)]
pub struct DraftReport {
    /// Tokens drafted.
    pub proposed: u32,
    /// Those of them that the draws agreed with.
    pub right: u32,
    /// Passes over all layers, the prompt's not counted.
    #[serde(default)]
    pub passes: u32,
    /// Tokens that came of them.
    #[serde(default)]
    pub tokens: u32,
    /// By what drafted: its name, tokens drafted, those of them that were right.
    #[serde(default)]
    pub by: Vec<(String, u32, u32)>,
}

impl DraftReport {
    /// Tokens for each pass.
    pub fn tokens_per_pass(&self) -> f64 {
        f64::from(self.tokens) / f64::from(self.passes.max(1))
    }
}

/// A stage of an answer that is over.
#[derive(Clone, Serialize, Deserialize)]
pub struct StageReport {
    /// Who and what.
    #[serde(flatten)]
    pub range: StageRange,
    /// A token, its hop included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    /// The same as it was expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
    /// Nodes that computed the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_by: Option<Vec<String>>,
    /// Up to which position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_positions: Option<u32>,
    /// It computes other bits that are near enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near: Option<Near>,
}

/// How near the work of a node of class `approx` is.
#[derive(Clone, Serialize, Deserialize)]
pub struct Near {
    /// Rows compared.
    pub positions: u32,
    /// The median of their distances ([`shard::tolerance`]).
    pub distance: f64,
}

/// A node for which an answer stood still.
#[derive(Clone, Serialize, Deserialize)]
pub struct Stall {
    /// The node.
    pub node: String,
    /// From the last token before it to the first after it.
    pub stall_ms: f64,
}
