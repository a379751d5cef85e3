//! What this node computed in sessions that have ended, by the names of the rows that it received.
//!
//! The state itself stays in the worker ([`crate::worker::Worker::close_but`]) and goes when memory is short or its time is over; here is
//! what it takes to go on from it: names at every [`prefix::EVERY`] positions, and the digests of inputs and outputs, so that the stage
//! signs for the whole session as if it had computed all of it now. It did.
//!
//! Only who asked for a session finds it again: names are keyed by the requester, and an entry is given to that one alone. A time
//! to the first token tells no node what another has asked.
//!
//! Bounds: positions for a requester, for an address and for all in the governor ([`Resource::Kept`]); who has used its share, or
//! meets a full table, displaces its own oldest entries. [`TTL`] after the last use an entry is forgotten.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use p2p::{
    Governor, Permit,
    wire::{
        prefix::{self, Beginning, Name, names},
        receipt::{Row, Terms},
    },
};
use scheduler::{ModelId, NodeId, SessionId, governor::Resource};

/// As long as the worker keeps a state that is not used.
const TTL: Duration = Duration::from_secs(600);

/// What a stage did at one position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) input: Row,
    pub(super) output: Row,
}

/// The sessions that may be gone on from, shared by all sessions of a node.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    table: Arc<Mutex<Table>>,
    /// Whether what is not here may be fetched, and the share of it that is computed all the same.
    fetches: Option<f64>,
}

#[derive(Debug, Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    by_name: HashMap<Name, u64>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    requester: NodeId,
    model: ModelId,
    /// The first layer of its range.
    first: u32,
    /// What the session is called at the worker.
    place: SessionId,
    names: Vec<Beginning>,
    steps: Arc<[Step]>,
    origin: Option<Origin>,
    used: Instant,
    /// Counts its positions.
    _permit: Permit,
}

/// A beginning that is here.
pub(super) struct Found {
    /// Which entry; see [`Prefixes::forget`].
    pub(super) number: u64,
    /// What its session is called at the worker.
    pub(super) place: SessionId,
    /// Positions that both sessions have in common.
    pub(super) positions: u32,
    /// What was done at them, and maybe beyond.
    pub(super) steps: Arc<[Step]>,
    /// Where that was, if not here.
    pub(super) origin: Option<Origin>,
}

/// A beginning that another node may have.
pub(super) struct Lent {
    pub(super) model: ModelId,
    /// What its session is called at the worker, and the first layer of the range.
    pub(super) place: SessionId,
    pub(super) first: u32,
    /// What was done at its positions.
    pub(super) steps: Vec<Step>,
}

/// Where an entry came from that was not, or not all, computed here: it serves only where the requester names this node as its source,
/// and no third node gets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Origin {
    /// Who gave the state of the beginning.
    pub(super) holder: NodeId,
    /// Whether rows were computed here on it and came out as they had there; until then the last [`prefix::EVERY`] positions are not taken
    /// over, but show that.
    pub(super) shown: bool,
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        for name in entry.names.iter().map(|beginning| beginning.name) {
            // A later session that begins alike has taken the name over.
            if self.by_name.get(&name) == Some(&number) {
                self.by_name.remove(&name);
            }
        }
        Some(entry)
    }
}

impl Prefixes {
    /// None yet; where what is not here may be fetched from other nodes, the share of it that is computed all the same.
    pub fn fetching(fetches: Option<f64>) -> Self {
        Self { fetches, ..Self::default() }
    }

    /// The share of fetched states that is computed all the same; `None` where nothing may be fetched.
    pub(super) fn checked_share(&self) -> Option<f64> {
        self.fetches
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A name that leads nowhere is found to.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The longest of these beginnings that `requester` had computed here, or at `source`.
    pub(super) fn find(
        &self,
        requester: NodeId,
        offered: &[Beginning],
        source: Option<NodeId>,
        now: Instant,
    ) -> Option<Found> {
        let mut table = self.lock();
        let its = |beginning: &Beginning| {
            let number = *table.by_name.get(&beginning.name)?;
            let entry = table.entries.get(&number)?;
            let fresh = now.saturating_duration_since(entry.used) <= TTL;
            let fits = beginning.positions as usize <= entry.steps.len();
            let unproven = if entry.origin.is_some_and(|origin| !origin.shown) { prefix::EVERY } else { 0 };
            let positions = beginning.positions.min((entry.steps.len() as u32).saturating_sub(unproven));
            let its = entry.requester == requester && fresh && fits && positions > 0;
            let meant = entry.origin.is_none_or(|origin| Some(origin.holder) == source);
            (its && meant).then_some((number, positions))
        };
        let (number, positions) = offered.iter().find_map(its)?;
        let entry = table.entries.get_mut(&number)?;
        entry.used = now;
        Some(Found {
            number,
            place: entry.place,
            positions,
            steps: entry.steps.clone(),
            origin: entry.origin,
        })
    }

    /// A beginning that `requester` had computed here, for a node that it named.
    pub(super) fn lend(&self, requester: NodeId, beginning: Beginning, now: Instant) -> Option<Lent> {
        let found = self.find(requester, &[beginning], None, now)?;
        let table = self.lock();
        let entry = table.entries.get(&found.number)?;
        let steps = found.steps.get(..found.positions as usize)?.to_vec();
        Some(Lent { model: entry.model, place: found.place, first: entry.first, steps })
    }

    /// The worker has it no more.
    pub(super) fn forget(&self, number: u64) {
        self.lock().remove(number);
    }

    /// Remembers what the session in `place` did under `terms`, or what was fetched from another node under that name; returns the sessions that need not be kept any longer, because this one
    /// begins with all that they computed, or others took their share; `None` when there is no room for it.
    pub(super) fn keep(
        &self,
        (place, terms): (SessionId, &Terms),
        (steps, origin): (Vec<Step>, Option<Origin>),
        governor: &Governor,
        now: Instant,
    ) -> Option<Vec<SessionId>> {
        let requester = terms.requester;
        let names = names(terms, steps.iter().map(|step| &step.input));
        names.last()?;
        let mut table = self.lock();
        let whole = |entry: &Entry| {
            entry.requester == requester && entry.names.last().is_some_and(|end| names.contains(end))
        };
        let late = |entry: &Entry| now.saturating_duration_since(entry.used) > TTL;
        let gone: Vec<u64> = table
            .entries
            .iter()
            .filter(|(_, entry)| whole(entry) || late(entry))
            .map(|(number, _)| *number)
            .collect();
        let mut freed: Vec<SessionId> =
            gone.into_iter().filter_map(|number| table.remove(number)).map(|entry| entry.place).collect();
        let permit = loop {
            match governor.take_for(requester, Resource::Kept, steps.len() as u64) {
                Ok(permit) => break permit,
                Err(_) => {
                    let its = table.entries.iter().filter(|(_, entry)| entry.requester == requester);
                    let oldest = its.min_by_key(|(_, entry)| entry.used).map(|(number, _)| *number);
                    let entry = oldest.and_then(|number| table.remove(number))?;
                    freed.push(entry.place);
                }
            }
        };
        table.next += 1;
        let number = table.next;
        table.by_name.extend(names.iter().map(|beginning| (beginning.name, number)));
        let (model, first) = (terms.model, terms.layers.start());
        let entry = Entry {
            requester,
            model,
            first,
            place,
            names,
            steps: steps.into(),
            origin,
            used: now,
            _permit: permit,
        };
        table.entries.insert(number, entry);
        // A session has an entry for each range: what one of them needs is not forgotten for another.
        freed.retain(|place| table.entries.values().all(|entry| entry.place != *place));
        Some(freed)
    }
}

#[cfg(test)]
mod tests {
    use p2p::{
        codec::{Rounding, Wire},
        wire::announce::Class,
    };
    use scheduler::{LayerRange, SessionKind};

    use super::*;

    /// What rests on another node's word serves where the requester named that node, and goes to no third one under this one's name.
    #[test]
    fn a_state_of_another_node_serves_where_that_is_named_and_is_not_lent() {
        let (prefixes, governor, now) = (Prefixes::default(), Governor::default(), Instant::now());
        let (requester, holder) = (NodeId::numbered(1), NodeId::numbered(2));
        let terms = Terms {
            session: SessionId::numbered(3),
            requester,
            model: ModelId::numbered(4),
            layers: LayerRange::new(1, 3).unwrap(),
            hidden: 1,
            class: Class::D1,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            inner: false,
        };
        let row = |at: u32| Row::of(Wire::Raw, &(at as f32).to_le_bytes());
        let steps: Vec<Step> = (0..48).map(|at| Step { input: row(at), output: row(at) }).collect();
        let all = names(&terms, steps.iter().map(|step| &step.input));
        let last = *all.last().unwrap();
        let keep =
            |origin| prefixes.keep((SessionId::numbered(5), &terms), (steps.clone(), origin), &governor, now);
        let found = |source| prefixes.find(requester, &[last], source, now).map(|found| found.positions);
        let lends = || prefixes.lend(requester, last, now).is_some();
        keep(Some(Origin { holder, shown: false })).unwrap();
        assert_eq!(
            [found(None), found(Some(NodeId::numbered(9))), found(Some(holder))],
            [None, None, Some(32)]
        );
        assert!(!lends());
        keep(Some(Origin { holder, shown: true })).unwrap();
        assert_eq!([found(None), found(Some(holder))], [None, Some(48)]);
        assert!(!lends());
        keep(None).unwrap();
        assert_eq!([found(None), found(Some(holder))], [Some(48), Some(48)]);
        assert!(lends());
    }
}
