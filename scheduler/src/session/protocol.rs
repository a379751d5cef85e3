//! What the session machine is told, and what it asks its caller to do.

use crate::recover::{Failure, GiveUp};
use crate::standby::Cover;
use crate::{NodeId, Pipeline, Segment};

/// Who stands by for the segments of a pipeline.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Standbys {
    /// By segment, who follows it.
    pub shadows: Vec<Option<NodeId>>,
    /// Whether they only keep what they are sent: then they are given no work before they take over, like any cover, but
    /// need not be sent it again.
    pub lazy: bool,
    /// Who would run a segment after a replay.
    pub covers: Vec<Cover>,
}

/// What happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Time passed; due when [`Session::wake`](super::Session::wake) says so.
    Tick,
    /// A stage promised to serve and said how much of the session it holds.
    Opened {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Its KV length, at most the position it was opened at.
        have: u32,
    },
    /// A stage cannot go on: its KV is shorter than the frame's first position.
    NeedReplay {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Its KV length.
        have: u32,
    },
    /// A stage's output reached the requester's log.
    Boundary {
        /// Index of the stage.
        stage: usize,
        /// Whose: the stage's node, or its shadow when hedging.
        node: NodeId,
        /// Under which epoch.
        epoch: u32,
        /// Under which attempt of the epoch.
        attempt: u16,
        /// Positions below this are logged now.
        to: u32,
    },
    /// The last stage's answer for a step: the tokens from `position` on. Without a draft it is one; with a draft it is the
    /// beginning of the draft that the draws agree with, and one more.
    Tokens {
        /// Under which epoch.
        epoch: u32,
        /// Under which attempt of the epoch.
        attempt: u16,
        /// Position of the first, the prompt included.
        position: u32,
        /// The tokens, at least one and at most one more than the step drafted.
        tokens: Vec<u32>,
        /// Whether the last of them ends the text.
        stop: bool,
        /// Tokens that the caller has drafted to follow them. [`Session::drafted`](super::Session::drafted) says how many of
        /// them the next step carries.
        draft: u32,
    },
    /// A node answered [`Action::Ping`]: its process runs and the way there and back is open.
    Pong {
        /// Which.
        node: NodeId,
    },
    /// A node that did not answer is reached another way now: what was under way to it, and what it said, may be lost.
    Detoured {
        /// Which.
        node: NodeId,
    },
    /// A stage's own node, not its shadow, says that it is computing.
    Beacon {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
    },
    /// A stage's own node says that it is there, computes nothing, and how far its inputs have come: an acknowledgement that
    /// travels another way than what it acknowledges.
    Waits {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Inputs below this position have come.
        have: u32,
        /// Whether the requester itself gives it its inputs, and no stage before it.
        given_here: bool,
    },
    /// A node failed, as far as the transport can tell.
    Failed {
        /// Which.
        node: NodeId,
        /// How.
        failure: Failure,
    },
    /// A node does not follow any stage, for want of room or time: it stands by for none, and what it runs it goes on running.
    Unfollowed {
        /// Which.
        node: NodeId,
    },
    /// A node was proven wrong: what it gave to `layer` from position `from` on is worthless, and so is all that was
    /// computed from it, in other stages too. The tokens below `known` stay (those the user has read cannot be taken
    /// back), the others are generated again.
    Convicted {
        /// Which.
        node: NodeId,
        /// The layer after its last.
        layer: u32,
        /// First position of it that was wrong.
        from: u32,
        /// Prompt and answer that stay.
        known: u32,
    },
    /// The router's answer to [`Action::FindRoute`].
    Rerouted(Option<(Pipeline, Standbys)>),
    /// The user does not want it any more.
    Cancel,
}

/// What the caller must do.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Ask a node to serve a segment; it truncates its KV of this session to `at` and answers `Opened`.
    Open {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Who runs what.
        segment: Segment,
        /// Where its output goes, besides the requester; `None` for the last stage.
        next: Option<NodeId>,
        /// Positions below this may be kept.
        at: u32,
    },
    /// As `Open`, to the shadow of a stage: feed it the log of that stage whenever it is idle; it answers nothing
    /// until a frame is sent to it. A lazy one only keeps what it is fed ([`Standbys::lazy`]).
    Follow {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Who follows what.
        segment: Segment,
        /// Where its output would go.
        next: Option<NodeId>,
        /// Positions below this may be kept.
        at: u32,
    },
    /// Send inputs `[from, to)` of a stage, from the tokens and the draft (stage 0) or the log.
    Send {
        /// Index of the stage.
        stage: usize,
        /// Under which epoch.
        epoch: u32,
        /// Under which attempt of the epoch.
        attempt: u16,
        /// To whom: the stage's node, or its shadow when hedging.
        node: NodeId,
        /// First position.
        from: u32,
        /// One past the last position.
        to: u32,
    },
    /// Ask a node whether it is there; answer with `Pong` when it is.
    Ping {
        /// Whom.
        node: NodeId,
    },
    /// Give the user the token at this position.
    Emit {
        /// Its position, the prompt included.
        position: u32,
        /// The token.
        token: u32,
    },
    /// Route the request again without these nodes; answer with `Rerouted`.
    FindRoute {
        /// Nodes that failed this request.
        deny: Vec<NodeId>,
    },
    /// Tell a node that this session needs it no more (leases, KV).
    Close {
        /// Whom.
        node: NodeId,
        /// Everything of this session opened under this epoch or a lower one.
        epoch: u32,
    },
    /// Two answers for one position differ: keep both for the verdict.
    Evidence {
        /// The position.
        position: u32,
    },
    /// It is over; nothing follows.
    Done(End),
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The model said so.
    Stop,
    /// As many tokens as asked for.
    Length,
    /// The user said so.
    Cancelled,
    /// Recovery ran out.
    GaveUp(GiveUp),
}
