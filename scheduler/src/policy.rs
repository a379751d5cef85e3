//! What the requester insists on, and the shape of what it asks.

use std::collections::BTreeSet;

use crate::NodeId;

/// Boomerang: the ends of the model stay at the requester, so that no other node ever sees token ids, text or logits.
///
/// Nothing else in the search changes: at the first `head` and the last `tail` layers the requester is the only host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boomerang {
    /// First layers at home, at least one.
    pub head: u32,
    /// Last layers at home, at least one.
    pub tail: u32,
}

/// What the requester insists on.
#[derive(Clone, PartialEq, Debug)]
pub struct RoutePolicy {
    /// Keep the ends at the requester.
    pub boomerang: Option<Boomerang>,
    /// Price the hop from the requester to the first segment and from the last one back.
    /// True for every real request; false prices an open chain, as the published cases do.
    pub closing_hop: bool,
    /// Only these nodes may serve (the requester always may). `None` admits every node.
    pub allow: Option<BTreeSet<NodeId>>,
    /// These may not, the requester included: dead, banned, or under suspicion.
    pub deny: BTreeSet<NodeId>,
    /// Nodes trusted less than this do not serve; in `[0, 1]`.
    pub trust_floor: f64,
    /// Among routes within this fraction of the best one a request picks by its seed, so that requesters who
    /// route on the same stale view do not all run to the same node. Zero always takes the best. At the default of
    /// 0.02 leases do most of the spreading (see [`crate::lease`]). In the simulations (seeds 200 to 229) it makes no
    /// difference to zero at the p99 per token, neither between two continents nor in a flash crowd; where nodes are alike it
    /// decides which of them serves.
    pub near_equal: f64,
    /// Refuse a route predicted to take longer than this, in ms.
    pub deadline_ms: Option<f64>,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        Self {
            boomerang: None,
            closing_hop: true,
            allow: None,
            deny: BTreeSet::new(),
            trust_floor: 0.0,
            near_equal: 0.02,
            deadline_ms: None,
        }
    }
}

/// How much work a request is: what prefill and decode are multiplied by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// Tokens of the prompt, computed in chunks. Zero prices decode alone.
    pub prompt_tokens: u32,
    /// Tokens expected in the answer (a running mean of the class of request, not the limit it came with).
    pub output_tokens: u32,
    /// Prompt tokens sent through the pipeline at once.
    pub prefill_chunk: u32,
    /// Bytes of one token's activation on the wire.
    pub activation_bytes: u32,
}

impl Shape {
    /// One decoded token, nothing else: the unit the published cases are priced in.
    pub const ONE_TOKEN: Self =
        Self { prompt_tokens: 0, output_tokens: 1, prefill_chunk: 64, activation_bytes: 0 };

    /// Parts in which the prompt is sent.
    pub fn chunks(self) -> u32 {
        self.prompt_tokens.div_ceil(self.prefill_chunk.max(1))
    }

    /// Frames that a stage computes. The last chunk of the prompt already yields the first token.
    pub fn passes(self) -> u32 {
        self.chunks() + self.decode_steps()
    }

    /// Ways around the pipeline that follow each other: chunks follow without waiting for one another, so that all of a
    /// prompt is one.
    pub fn turns(self) -> u32 {
        u32::from(self.prompt_tokens > 0) + self.decode_steps()
    }

    /// Decode steps, each one token wide.
    pub fn decode_steps(self) -> u32 {
        if self.prompt_tokens == 0 { self.output_tokens } else { self.output_tokens.saturating_sub(1) }
    }

    /// Positions whose keys and values every segment must keep.
    pub fn positions(self) -> u32 {
        self.prompt_tokens.saturating_add(self.output_tokens)
    }

    /// Tokens that cross every hop.
    pub fn tokens_carried(self) -> u32 {
        self.prompt_tokens.saturating_add(self.decode_steps())
    }
}

/// One question to the router.
#[derive(Clone, PartialEq, Debug)]
pub struct Request {
    /// Whose user asks. `None` prices an open chain with no home.
    pub requester: Option<NodeId>,
    /// How much work it is.
    pub shape: Shape,
    /// What the requester insists on.
    pub policy: RoutePolicy,
    /// Requests this requester already has running, by node: what the gossiped load does not show yet.
    pub in_flight: Vec<(NodeId, u32)>,
    /// Picks among near-equal routes; the session's own number.
    pub seed: u64,
}

impl Request {
    /// A request by `requester` of the given shape under the default policy.
    pub fn new(requester: NodeId, shape: Shape) -> Self {
        Self {
            requester: Some(requester),
            shape,
            policy: RoutePolicy::default(),
            in_flight: Vec::new(),
            seed: 0,
        }
    }

    /// Whether every route costs this one what it costs `other`: they may differ in seed, spread and deadline.
    pub fn prices_like(&self, other: &Self) -> bool {
        let (mine, its) = (&self.policy, &other.policy);
        (self.requester, self.shape, &self.in_flight) == (other.requester, other.shape, &other.in_flight)
            && (mine.boomerang, mine.closing_hop) == (its.boomerang, its.closing_hop)
            && mine.trust_floor == its.trust_floor
            && (&mine.allow, &mine.deny) == (&its.allow, &its.deny)
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn the_last_prefill_chunk_yields_the_first_token() {
        let shape = Shape { prompt_tokens: 130, output_tokens: 10, prefill_chunk: 64, activation_bytes: 1 };
        assert_eq!((shape.passes(), shape.decode_steps(), shape.positions()), (12, 9, 140));
        assert_eq!((shape.chunks(), shape.turns()), (3, 10));
        assert_eq!((Shape::ONE_TOKEN.passes(), Shape::ONE_TOKEN.turns()), (1, 1));
        assert_eq!(Shape::ONE_TOKEN.tokens_carried(), 1);
    }
}
