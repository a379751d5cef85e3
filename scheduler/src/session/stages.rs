//! The stages of a request: who runs what, what each holds, who stands by, and what is logged of their inputs.

use std::collections::{BTreeMap, BTreeSet};

use super::Standbys;
use crate::recover::Options;
use crate::{Millis, NodeId, Pipeline, Segment};

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    pub(super) segment: Segment,
    /// KV length once opened.
    pub(super) have: Option<u32>,
    /// Outputs seen below this.
    pub(super) done: u32,
    /// When it last had something to say about its work, or was given some.
    pub(super) heard: Millis,
    /// When its node last answered a ping, or said that it waits.
    pub(super) alive: Millis,
    /// When it was last given inputs, and whether it said since that they have not come.
    pub(super) given: Millis,
    pub(super) lacks: bool,
    pub(super) shadow: Option<NodeId>,
    cover: Vec<Segment>,
    /// What it says it has, it may still have to compute: it kept the log.
    pub(super) kept: bool,
}

impl Stage {
    fn fresh(segment: Segment) -> Self {
        Self {
            segment,
            have: None,
            done: 0,
            heard: Millis(0),
            alive: Millis(0),
            given: Millis(0),
            lacks: false,
            shadow: None,
            cover: Vec::new(),
            kept: false,
        }
    }

    /// It is given inputs; until it can say something of them it is not silent.
    pub(super) fn give(&mut self, now: Millis) {
        (self.heard, self.given, self.lacks) = (now, now, false);
    }

    /// How long its node has said nothing of its work.
    pub(super) fn unheard_ms(&self, now: Millis) -> u64 {
        now.since(self.heard)
    }

    /// How long its node has said nothing, not even that it is there.
    pub(super) fn quiet_ms(&self, now: Millis) -> u64 {
        now.since(self.heard.max(self.alive))
    }

    /// Whether no node stands by for it.
    pub(super) fn is_irreplaceable(&self) -> bool {
        self.shadow.is_none() && self.cover.is_empty()
    }
}

/// All of them, first layer first.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    pub(super) list: Vec<Stage>,
    /// Whether shadows keep what they are sent and compute nothing.
    pub(super) lazy: bool,
    /// Inputs logged, by first layer of the segment they enter.
    log: BTreeMap<u32, u32>,
    /// Caches computed from a lie: from here on no stage keeps its own.
    tainted: u32,
    /// Who does not get what whom gives it: the requester gives it that as well.
    bypassed: BTreeSet<(NodeId, NodeId)>,
}

impl Stages {
    /// None yet.
    pub(super) fn new() -> Self {
        let (list, log, bypassed) = Default::default();
        Self { list, lazy: false, log, tainted: u32::MAX, bypassed }
    }

    /// Those of another route; what is logged stays.
    pub(super) fn adopt(&mut self, pipeline: &Pipeline, standbys: &Standbys) {
        let stages = pipeline.segments().iter().enumerate().map(|(index, segment)| Stage {
            shadow: standbys.shadows.get(index).copied().flatten(),
            cover: standbys
                .covers
                .iter()
                .find(|cover| cover.index == index)
                .map_or_else(Vec::new, |cover| cover.segments.clone()),
            ..Stage::fresh(*segment)
        });
        self.list = stages.collect();
        self.lazy = standbys.lazy;
    }

    /// Who runs a stage.
    pub(super) fn node(&self, stage: usize) -> NodeId {
        self.list[stage].segment.node
    }

    /// From the node before a stage to its own.
    fn hop(&self, stage: usize) -> Option<(NodeId, NodeId)> {
        Some((self.node(stage.checked_sub(1)?), self.node(stage)))
    }

    /// The stage before this one does not reach it; as long as the two nodes follow each other it is given its inputs from here too.
    pub(super) fn bypass(&mut self, stage: usize) {
        let hop = self.hop(stage);
        self.bypassed.extend(hop);
    }

    /// Whether a stage is given its inputs from here as well.
    pub(super) fn is_bypassed(&self, stage: usize) -> bool {
        self.hop(stage).is_some_and(|hop| self.bypassed.contains(&hop))
    }

    /// The first stage that a node runs.
    pub(super) fn run_by(&self, node: NodeId) -> Option<usize> {
        self.all_run_by(node).next()
    }

    /// All stages that a node runs.
    pub(super) fn all_run_by(&self, node: NodeId) -> impl Iterator<Item = usize> + '_ {
        let stages = self.list.iter().enumerate();
        stages.filter(move |(_, stage)| stage.segment.node == node).map(|(at, _)| at)
    }

    /// Everybody who promised something, each once.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.list.iter().map(|stage| stage.segment.node).collect();
        nodes.extend(self.list.iter().filter_map(|stage| stage.shadow));
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The stages that have not promised.
    pub(super) fn owing(&self) -> Vec<usize> {
        (0..self.list.len()).filter(|stage| self.list[*stage].have.is_none()).collect()
    }

    /// The first stage whose output a step up to `reach` still needs.
    pub(super) fn unfinished(&self, reach: u32) -> Option<usize> {
        self.list.iter().position(|stage| stage.done < reach)
    }

    /// Rows up to `right` were computed everywhere from tokens that are known now.
    pub(super) fn settle(&mut self, right: u32) {
        for stage in &mut self.list {
            stage.have = Some(right);
            stage.done = right;
            stage.kept = false;
        }
    }

    /// From which position on each stage must compute, for a step of `known` tokens and drafts up to `reach`: what it lacks, and
    /// what one behind it lacks and the log does not have.
    pub(super) fn missing(&self, known: u32, reach: u32) -> Vec<u32> {
        let mut from: Vec<u32> = self.list.iter().map(|stage| stage.have.unwrap_or(0).min(known)).collect();
        // A step always runs the last position: its answer is the token.
        if let Some(last) = from.last_mut() {
            *last = (*last).min(known - 1);
        }
        for stage in (1..self.list.len()).rev() {
            let missing = from[stage].max(self.logged(stage, reach));
            if missing < reach {
                from[stage - 1] = from[stage - 1].min(missing);
            }
        }
        from
    }

    /// Inputs of a stage available at the requester, in a step up to `reach`.
    pub(super) fn logged(&self, stage: usize, reach: u32) -> u32 {
        match self.list[stage].segment.layers.start() {
            0 => reach,
            layer => self.log.get(&layer).copied().unwrap_or(0),
        }
    }

    /// Inputs of `layer` below `to` are logged, if not more.
    pub(super) fn note_logged(&mut self, layer: u32, to: u32) {
        let logged = self.log.entry(layer).or_insert(0);
        *logged = (*logged).max(to);
    }

    /// Exactly the inputs of `layer` below `to` are logged.
    pub(super) fn set_logged(&mut self, layer: u32, to: u32) {
        self.log.insert(layer, to);
    }

    /// Nothing at position `below` and beyond is logged.
    pub(super) fn cut_log(&mut self, below: u32) {
        self.log.values_mut().for_each(|logged| *logged = (*logged).min(below));
    }

    /// What entered `layer` and later ones from position `from` on was computed from a lie; of the others the log stays below
    /// `known`.
    pub(super) fn taint(&mut self, layer: u32, from: u32, known: u32) {
        for (entered, logged) in &mut self.log {
            *logged = (*logged).min(if *entered >= layer { from } else { known });
        }
        self.tainted = self.tainted.min(from);
    }

    /// Positions of its cache that a stage may keep, of `known` tokens.
    pub(super) fn keep(&self, known: u32) -> u32 {
        (known - 1).min(self.tainted)
    }

    /// A node stands by for no stage any more.
    pub(super) fn drop_standby(&mut self, node: NodeId) {
        for stage in &mut self.list {
            if stage.shadow == Some(node) {
                stage.shadow = None;
            }
            if stage.cover.iter().any(|segment| segment.node == node) {
                stage.cover.clear();
            }
        }
    }

    /// Who could take over a stage.
    pub(super) fn options(&self, at: usize) -> Options {
        let stage = &self.list[at];
        let shadow = stage.shadow.map(|node| Segment { node, layers: stage.segment.layers });
        match shadow.filter(|_| self.lazy) {
            Some(shadow) => Options { shadow: None, cover: vec![shadow] },
            None => Options { shadow, cover: stage.cover.clone() },
        }
    }

    /// Gives the place of a stage to others; its node, if it runs no other one.
    pub(super) fn replace(&mut self, at: usize, segments: Vec<Segment>) -> Option<NodeId> {
        let node = self.node(at);
        let kept = self.lazy;
        let stages = segments.into_iter().map(|segment| Stage { kept, ..Stage::fresh(segment) });
        self.list.splice(at..=at, stages);
        self.run_by(node).is_none().then_some(node)
    }
}
