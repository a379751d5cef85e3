//! What this node's ended prompts leave behind, for prompts that begin like them.
//!
//! The caches stay where they were computed: in the own worker, and at the stages under the names of the rows they received
//! ([`p2p::wire::prefix`]). Here stay the tokens, and the rows that crossed every cut. They are what the next session begins with:
//!
//! ```text
//!   same tokens up to c ──▶ log of every cut filled below c ──▶ names offered with the leases ──▶ a stage says what it has
//!                                     │                                                              │
//!                                     └── a stage that has less gets the rows from the log, as after a failure
//! ```
//!
//! So nothing is weaker than in a session that computed all of it: stages sign for the whole chain, the log holds every row to compare
//! with, to audit and to replay. A stage that says to have what it has not signs for other rows than the log's.
//!
//! Only this node's own prompts are remembered and recalled, not those that it conducts for others: who waits less would learn what another
//! has asked. With `--verify strict` nothing is recalled: such an answer rests on nothing that was computed before it was asked.
//! A session in which two answers differed or a node was convicted leaves nothing behind.
//!
//! With `--keep-state` they are on disk as well ([`super::remembered`]), and so are the states of the own worker. With `--let-keep` stages that
//! run with `--keep-state` may keep theirs on disk.
//!
//! Bounds: [`MOST_BYTES`] of rows and [`MOST`] sessions, the longest unused out first, each for [`TTL`], or as long as files keep them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use p2p::{
    Identity,
    codec::{Rounding, Wire},
    wire::{
        control::Source,
        pages::{MAX_STATE, MAX_WORTH_MS, Permit},
        prefix::{self, Beginning, MAX_BEGINNINGS},
        receipt::{Row, Terms},
    },
};
use scheduler::{
    LayerRange, ModelId, NodeId, Segment, SessionId, SessionKind,
    sticky::{Former, Packing},
};

use super::{
    remembered::{RecallFile, Remembered},
    replay_log::Logs,
};
use crate::{
    Result, clock,
    control::Lenders,
    sessions::PlannedSource,
    state_store::{
        DiskUse, Place,
        file::{KEPT_FOR, StateFile},
    },
};

/// Rows remembered, bytes.
const MOST_BYTES: usize = 256 << 20;
/// A transfer has twice the time that computing should take, since both are estimates, and so long at least, ms.
const LEAST_MS: u32 = 1_000;
/// A permit to fetch a state holds so long, seconds: clocks of two nodes differ.
const PERMITTED_S: u32 = 300;
/// Nodes that are left out of lending; when there are more, no node lends.
const MOST_BARRED: usize = 4_096;
/// Sessions remembered.
const MOST: usize = 64;
/// As long as workers and stages keep a state that is not used.
const TTL: Duration = Duration::from_secs(600);

/// The ended prompts of this node. Clones share them.
#[derive(Clone, Default)]
pub struct Recollections {
    all: Arc<Mutex<Vec<Remembered>>>,
    file: Option<RecallFile>,
    lenders: Lenders,
    /// Whether stages may keep on disk what they computed.
    lets_keep: bool,
    packing: Packing,
    /// Nodes of which one gave what is wrong, and it may have been the state that it had or gave.
    barred: Arc<Mutex<BTreeSet<NodeId>>>,
}

/// The beginning of a prompt that was computed before.
#[derive(Clone, Default)]
pub struct Recalled {
    /// How many positions.
    positions: u32,
    rounding: Option<Rounding>,
    logs: Option<Logs>,
    /// The sessions that may have it in the own worker, and up to where.
    homes: Vec<(SessionId, u32)>,
    /// Who ran what, and who computed along.
    segments: Vec<Segment>,
    followers: Vec<Segment>,
    rests: Vec<(Segment, NodeId)>,
    lenders: Lenders,
    packing: Packing,
    barred: BTreeSet<NodeId>,
    names: BTreeMap<LayerRange, Vec<Beginning>>,
    /// What stages said to have before the first token: the least of it.
    least: Option<u32>,
}

/// Tokens that two begin with.
fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

impl Recollections {
    /// Those in `place`, which are kept there too from now on.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn on_disk(place: &Place) -> Result<Self> {
        let (file, mut all) = RecallFile::open(place)?;
        all.truncate(MOST);
        Ok(Self { all: Arc::new(Mutex::new(all)), file: Some(file), ..Self::default() })
    }

    /// The same where stages may get states of these nodes, at this price.
    pub fn lent_by(self, lenders: Lenders, packing: Packing) -> Self {
        Self { lenders, packing, ..self }
    }

    /// The same where `lets_keep` says whether stages may keep on disk what they computed, if it says anything. Those that do have it for longer, so
    /// that it is remembered for longer.
    pub fn kept_by_stages(self, lets_keep: Option<bool>) -> Self {
        Self { lets_keep: lets_keep.unwrap_or(self.lets_keep), ..self }
    }

    /// Whether stages may keep on disk what they computed.
    pub fn lets_keep(&self) -> bool {
        self.lets_keep
    }

    /// The file that they lie in, if there is one.
    pub fn file(&self) -> Option<Arc<StateFile>> {
        self.file.as_ref().map(RecallFile::file)
    }

    /// These nodes neither lend nor are lent a state any more.
    pub(super) fn bar(&self, nodes: [NodeId; 2]) {
        let mut barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        if barred.len() < MOST_BARRED {
            barred.extend(nodes);
        }
    }

    /// Share of the fetched states that this node, as a stage, computes again.
    pub fn checked(&self) -> f64 {
        self.packing.checked
    }

    /// Of whom stages may get states.
    pub fn lenders(&self) -> Lenders {
        self.lenders
    }

    /// Whether they outlast this process.
    pub(super) fn are_on_disk(&self) -> bool {
        self.file.is_some()
    }

    /// What their file takes of the disk, if there is one.
    pub fn disk_use(&self) -> Option<DiskUse> {
        self.file.as_ref().map(RecallFile::disk_use)
    }

    fn ttl(&self) -> Duration {
        if self.are_on_disk() || self.lets_keep { KEPT_FOR } else { TTL }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Remembered>> {
        // Each of them is whole whatever happened to another.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The longest beginning of `prompt` that was computed for `wire`, rounded at `boundaries` where these are fixed already. The last
    /// token is always computed: its answer is the next one.
    pub fn recall(
        &self,
        model: ModelId,
        prompt: &[u32],
        kind: SessionKind,
        (wire, boundaries): (Wire, Option<&[u32]>),
    ) -> Recalled {
        let (mut all, now) = (self.lock(), Instant::now());
        let ttl = self.ttl();
        all.retain(|it| now.saturating_duration_since(it.used) <= ttl);
        let most = prompt.len().saturating_sub(1);
        let fits = |it: &Remembered| {
            let rounding = &it.rounding;
            (it.model, it.kind) == (model, kind)
                && rounding.wire() == wire
                && (wire == Wire::Raw || boundaries.is_none_or(|fixed| fixed == rounding.boundaries()))
        };
        let begins = |it: &Remembered| if fits(it) { common(&it.tokens, prompt).min(most) } else { 0 };
        let lengths: Vec<usize> = all.iter().map(begins).collect();
        let Some(best) = (0..all.len()).max_by_key(|at| (lengths[*at], all[*at].used)) else {
            return Recalled::default();
        };
        // Stages have names for these lengths alone; what they compute beyond is then first in the log, and theirs to answer for.
        let positions = lengths[best] as u32 / prefix::EVERY * prefix::EVERY;
        if positions < prefix::EVERY {
            return Recalled::default();
        }
        let homes = all.iter().zip(&lengths).filter(|(_, length)| **length > 0);
        let homes = homes.map(|(it, length)| (it.place, *length as u32)).collect();
        let it = &mut all[best];
        it.used = now;
        Recalled {
            positions,
            rounding: Some(it.rounding.clone()),
            logs: Some(it.logs.beginning(positions)),
            homes,
            segments: it.segments.clone(),
            followers: it.followers.clone(),
            rests: it.rests.clone(),
            lenders: self.lenders,
            packing: self.packing,
            barred: self.barred.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..Recalled::default()
        }
    }

    /// Remembers a session; those that the own worker need not keep any longer: this one begins with all of them, or there is no more room.
    pub(super) fn keep(&self, new: Remembered) -> Vec<SessionId> {
        let mut all = self.lock();
        let covered = |it: &Remembered| {
            (it.model, &it.rounding, it.kind) == (new.model, &new.rounding, new.kind)
                && new.tokens.starts_with(&it.tokens)
        };
        let mut gone: Vec<SessionId> = all.extract_if(.., |it| covered(it)).map(|it| it.place).collect();
        self.file.iter().for_each(|file| file.put(&new));
        all.push(new);
        while all.len() > MOST || all.iter().map(|it| it.logs.bytes()).sum::<usize>() > MOST_BYTES {
            let Some(oldest) = (0..all.len()).min_by_key(|at| all[*at].used) else { break };
            gone.push(all.remove(oldest).place);
        }
        if let Some(file) = &self.file {
            gone.iter().for_each(|place| file.remove(*place));
        }
        gone
    }

    /// What a session left behind is not to be used.
    pub(super) fn forget(&self, place: SessionId) {
        self.lock().retain(|it| it.place != place);
        self.file.iter().for_each(|file| file.remove(place));
    }
}

impl Recalled {
    /// Who ran what then, for the price of a route. `shares` says how much of the work of nodes is checked.
    pub fn former(&self, shares: &BTreeMap<NodeId, f64>) -> Former {
        let (segments, followers) = (self.segments.clone(), self.followers.clone());
        let lends = |node: &NodeId| match self.lenders {
            _ if self.barred.len() >= MOST_BARRED || self.barred.contains(node) => false,
            Lenders::Off => false,
            Lenders::Known => shares.get(node).is_some_and(|share| *share < 1.0),
            Lenders::Any => true,
        };
        let nodes = segments.iter().chain(&followers).map(|segment| segment.node);
        let lenders = nodes.chain(self.rests.iter().map(|(_, lender)| *lender)).filter(lends).collect();
        let (rests, barred) = (self.rests.clone(), self.barred.clone());
        let former = Former {
            segments,
            followers,
            positions: self.positions,
            lenders,
            rests,
            barred,
            packing: self.packing,
        };
        former.lent_by(|_| true)
    }

    /// Where a node that computes under `terms` may get the longest of these beginnings that travels, of which a position takes so many bytes.
    pub(super) fn source(
        beginnings: &[Beginning],
        terms: &Terms,
        logs: &Logs,
        planned: &PlannedSource,
        identity: &Identity,
    ) -> Option<Box<Source>> {
        let fits = |beginning: &&Beginning| {
            planned.state_bytes.saturating_mul(beginning.positions.into()) <= MAX_STATE as u64 * 15 / 16
        };
        let beginning = *beginnings.iter().find(fits)?;
        let end = terms.layers.end();
        if beginning.positions <= prefix::EVERY || logs.settled(end) < beginning.positions {
            return None;
        }
        let rows = (0..beginning.positions).map_while(|position| logs.row(end, position));
        let rows: Vec<Row> = rows.map(|(wire, bytes)| Row::of(wire, bytes)).collect();
        let outputs = prefix::names(terms, &rows).pop()?;
        let (holder, reader) = (planned.contact.node, planned.segment.node);
        let until_s = clock::receipt_s().saturating_add(PERMITTED_S);
        let permit = Permit::sign(identity, holder, reader, beginning, until_s);
        let worth_ms = (2.0 * planned.worth_ms) as u32;
        let worth_ms = worth_ms.clamp(LEAST_MS, MAX_WORTH_MS);
        Some(Box::new(Source { contact: planned.contact.clone(), permit, outputs: outputs.name, worth_ms }))
    }

    /// Where the session rounded: its own conversation goes on under the same rules whatever route it takes.
    pub fn boundaries(&self) -> Option<Vec<u32>> {
        let rounding = self.rounding.as_ref().filter(|rounding| rounding.wire() != Wire::Raw)?;
        Some(rounding.boundaries().to_vec())
    }

    /// The sessions that may have it in the own worker.
    pub(super) fn homes(&self) -> Vec<(SessionId, u32)> {
        self.homes.clone()
    }

    /// Who computed on a state that another node gave.
    pub(super) fn rests(&self) -> Vec<(Segment, NodeId)> {
        self.rests.clone()
    }

    /// The log to begin with.
    pub(super) fn take_logs(&mut self, rounding: &Rounding, hidden: usize) -> Logs {
        if self.rounding.as_ref().is_some_and(|before| before != rounding) {
            *self = Self::default();
        }
        self.logs.take().unwrap_or_else(|| Logs::new(hidden))
    }

    /// The names of its beginnings at a node that computes under `terms`, by the rows that are logged.
    pub(super) fn beginnings(&mut self, terms: &Terms, logs: &Logs) -> Vec<Beginning> {
        if self.positions == 0 {
            return Vec::new();
        }
        let layers = terms.layers;
        let names = self.names.entry(layers).or_insert_with(|| {
            let start = layers.start();
            let reached = self.positions.min(logs.settled(start));
            let rows = (0..reached).map_while(|position| logs.row(start, position));
            let rows: Vec<Row> = rows.map(|(wire, bytes)| Row::of(wire, bytes)).collect();
            let names = prefix::names(terms, &rows);
            let step = names.len().div_ceil(MAX_BEGINNINGS).max(1);
            names.into_iter().rev().step_by(step).collect()
        });
        names.clone()
    }

    /// A stage said that it has so many positions.
    pub(super) fn has(&mut self, have: u32) {
        self.least = Some(self.least.map_or(have, |least| least.min(have)));
    }

    /// Positions that no stage computed for the first token.
    pub(super) fn cached(&self) -> u32 {
        self.least.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use p2p::codec::Wire;

    use super::*;

    fn session(number: u64, tokens: std::ops::Range<u32>, bytes: usize) -> Remembered {
        let mut logs = Logs::new(1);
        let rows = (bytes / 4).max(tokens.len());
        logs.add(3, 0, rows as u32, Wire::Raw, &vec![0; 4 * rows], NodeId::numbered(9)).unwrap();
        Remembered {
            place: SessionId::numbered(number),
            model: ModelId::numbered(1),
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            tokens: tokens.collect(),
            logs,
            segments: vec![Segment { node: NodeId::numbered(9), layers: LayerRange::new(3, 5).unwrap() }],
            followers: Vec::new(),
            rests: Vec::new(),
            used: Instant::now(),
        }
    }

    fn recalled(memory: &Recollections, prompt: std::ops::Range<u32>, wire: Wire) -> Recalled {
        memory.recall(ModelId::numbered(1), &prompt.collect::<Vec<_>>(), SessionKind::DEFAULT, (wire, None))
    }

    #[test]
    fn the_longest_beginning_is_recalled_and_never_the_last_token() {
        let memory = Recollections::default();
        assert_eq!(recalled(&memory, 0..100, Wire::Raw).positions, 0);
        memory.keep(session(1, 0..40, 0));
        memory.keep(Remembered { tokens: (0..30).chain(90..190).collect(), ..session(2, 0..130, 0) });
        let mut found = recalled(&memory, 0..100, Wire::Raw);
        assert_eq!((found.positions, found.boundaries()), (32, None));
        assert_eq!(found.homes, [(SessionId::numbered(1), 40), (SessionId::numbered(2), 30)]);
        assert_eq!(found.take_logs(&Rounding::NONE, 1).reached(3), 32, "rows beyond are another session's");
        assert_eq!(recalled(&memory, 0..32, Wire::Raw).positions, 16, "never the last token");
        assert_eq!(recalled(&memory, 0..16, Wire::Raw).positions, 0, "not worth a name");
        assert_eq!(recalled(&memory, 0..100, Wire::Q8).positions, 0, "other bits");
        let of = |model, kind: &str| {
            let kind = kind.parse().unwrap();
            memory.recall(model, &(0..100).collect::<Vec<_>>(), kind, (Wire::Raw, None)).positions
        };
        assert_eq!(of(ModelId::numbered(2), "dense"), 0);
        assert_eq!(of(ModelId::numbered(1), "window:64"), 0, "rows that saw less");
        assert_eq!(of(ModelId::numbered(1), "dense/q8"), 0, "rows that were rounded");
        memory.forget(SessionId::numbered(1));
        assert_eq!(recalled(&memory, 0..100, Wire::Raw).positions, 16);
    }

    /// Nodes on probation, and those that were never met, are asked for nothing unless the owner said so.
    #[test]
    fn a_state_is_fetched_of_known_nodes_alone() {
        let lenders = |lenders: Lenders, shares: &[(u64, f64)]| {
            let memory = Recollections::default().lent_by(lenders, Packing::default());
            memory.keep(session(1, 0..100, 0));
            let shares = shares.iter().map(|(node, share)| (NodeId::numbered(*node), *share)).collect();
            let former = recalled(&memory, 0..100, Wire::Raw).former(&shares);
            former.lenders.len()
        };
        let known = Lenders::Known;
        assert_eq!([&[][..], &[(9, 1.0)], &[(9, 0.2)]].map(|shares| lenders(known, shares)), [0, 0, 1]);
        assert_eq!((lenders(Lenders::Off, &[(9, 0.2)]), lenders(Lenders::Any, &[])), (0, 1));
    }

    /// A node that had its state from another one has it only as long as that one is believed, and neither takes part again after
    /// one of them gave what is wrong.
    #[test]
    fn what_was_fetched_is_as_good_as_who_gave_it() {
        let memory = Recollections::default().lent_by(Lenders::Any, Packing::default());
        let it = session(1, 0..100, 0);
        let (rested, lender) = (it.segments[0], NodeId::numbered(7));
        memory.keep(Remembered { rests: vec![(rested, lender)], ..it });
        let former = || recalled(&memory, 0..100, Wire::Raw).former(&BTreeMap::new());
        assert!(former().has(&rested) && former().rests(&rested) == Some(lender));
        assert!(!former().lent_by(|node| node != lender).has(&rested), "it lends no more");
        memory.bar([rested.node, lender]);
        assert!(!former().has(&rested) && former().lenders.is_empty(), "{:?}", former());
        assert!(former().barred.contains(&rested.node));
    }

    #[test]
    fn a_conversation_replaces_its_beginning_and_keeps_its_boundaries() {
        let memory = Recollections::default();
        let q8 = Rounding::new(Wire::Q8, vec![3, 5]);
        let turn = |number, tokens| Remembered { rounding: q8.clone(), ..session(number, tokens, 0) };
        assert_eq!(memory.keep(turn(1, 0..40)), []);
        assert_eq!(memory.keep(turn(2, 0..90)), [SessionId::numbered(1)]);
        let found = recalled(&memory, 0..200, Wire::Q8);
        assert_eq!((found.positions, found.boundaries()), (80, Some(vec![3, 5])));
        let tokens: Vec<u32> = (0..200).collect();
        let fixed = |at: &[u32]| {
            memory.recall(ModelId::numbered(1), &tokens, SessionKind::DEFAULT, (Wire::Q8, Some(at))).positions
        };
        assert_eq!((fixed(&[3, 5]), fixed(&[4])), (80, 0));
        let mut other = found.clone();
        assert_eq!(other.take_logs(&Rounding::new(Wire::Q8, vec![4]), 1).reached(3), 0);
        assert_eq!((other.positions, other.homes.len()), (0, 0), "nothing of it fits");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let memory = Recollections::default();
        let mut gone = 0;
        for number in 0..MOST as u64 + 10 {
            let from = number as u32 * 1_000;
            gone += memory.keep(session(number, from..from + 20, 0)).len();
        }
        assert_eq!((gone, memory.lock().len()), (10, MOST));
        let big = |number| session(number, 500_000..500_020, MOST_BYTES / 3 * 2);
        assert_eq!(memory.keep(big(1_000)).len(), 1);
        memory.keep(Remembered { tokens: (600_000..600_020).collect(), ..big(1_001) });
        assert_eq!(memory.lock().len(), 1, "two of them have no room");
    }

    #[test]
    fn what_is_cached_is_what_the_least_of_all_stages_has() {
        let mut recalled = Recalled::default();
        assert_eq!(recalled.cached(), 0);
        [1_024, 1_035, 1_024].into_iter().for_each(|have| recalled.has(have));
        assert_eq!(recalled.cached(), 1_024);
        recalled.has(0);
        assert_eq!(recalled.cached(), 0);
    }
}
