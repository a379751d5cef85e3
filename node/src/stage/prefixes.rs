//! What this node computed in sessions that have ended, by the names of the rows that it received.
//!
//! The state itself stays in the worker ([`crate::worker::Worker::close_but`]) and goes when memory is short or its time is over; here is
//! what it takes to go on from it: names at every [`prefix::EVERY`] positions, and the digests of inputs and outputs, so that the stage
//! signs for the whole session as if it had computed all of it now. It did.
//!
//! Only who asked for a session finds it again: names are keyed by the requester, and an entry is given to that one alone. A time
//! to the first token tells no node what another has asked.
//!
//! Where the requester permits it and this node runs with `--keep-state`, worker and daemon keep both on disk too ([`super::filed_prefixes`]): such an
//! entry outlasts the memory of the worker, and the process.
//!
//! Bounds: positions for a requester, for an address and for all in the governor ([`Resource::Kept`]); who has used its share, or
//! meets a full table, displaces its own oldest entries, then those of anybody that are on disk alone. [`TTL`] after the last use an entry is
//! forgotten, or [`KEPT_FOR`] after it was written.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use p2p::{
    Governor, Permit,
    wire::{
        prefix::{self, Beginning, Name, names},
        receipt::Terms,
    },
};
use scheduler::{ModelId, NodeId, SessionId, governor::Resource};

use super::{
    filed_prefixes::{Filed, FiledPrefixes},
    step::Step,
};
use crate::state_store::file::{KEPT_FOR, StateFile};

/// As long as the worker keeps a state that is not used.
const TTL: Duration = Duration::from_secs(600);

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
    file: Option<FiledPrefixes>,
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
    /// Until when it is on disk, if it is.
    filed: Option<Instant>,
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

impl Entry {
    /// Whether the worker may have it in memory.
    fn is_warm(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) <= TTL
    }

    /// Whether it is worth a look.
    fn is_fresh(&self, now: Instant) -> bool {
        self.is_warm(now) || self.filed.is_some_and(|until| now < until)
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        if let Some(file) = self.file.as_ref().filter(|_| entry.filed.is_some()) {
            file.remove(entry.place, entry.first);
        }
        for name in entry.names.iter().map(|beginning| beginning.name) {
            // A later session that begins alike has taken the name over.
            if self.by_name.get(&name) == Some(&number) {
                self.by_name.remove(&name);
            }
        }
        Some(entry)
    }

    fn add(&mut self, entry: Entry) {
        self.next += 1;
        let number = self.next;
        self.by_name.extend(entry.names.iter().map(|beginning| (beginning.name, number)));
        self.entries.insert(number, entry);
    }

    /// Who makes room for `requester` when there is none: its own oldest entry, else the oldest that is on disk alone.
    fn yielding(&self, requester: NodeId, now: Instant) -> Option<u64> {
        let oldest = |gives: &dyn Fn(&Entry) -> bool| {
            let giving = self.entries.iter().filter(|(_, entry)| gives(entry));
            giving.min_by_key(|(_, entry)| entry.used).map(|(number, _)| *number)
        };
        oldest(&|entry| entry.requester == requester).or_else(|| oldest(&|entry| !entry.is_warm(now)))
    }
}

impl Prefixes {
    /// None yet; where what is not here may be fetched from other nodes, the share of it that is computed all the same.
    pub fn fetching(fetches: Option<f64>) -> Self {
        Self { fetches, ..Self::default() }
    }

    /// With those in `file` of `model`, to which is added what may be kept there.
    pub fn on_disk(self, file: Arc<StateFile>, model: ModelId, governor: &Governor, now: Instant) -> Self {
        let (file, all) = FiledPrefixes::open(file, model);
        let mut table = self.lock();
        for (it, left) in all {
            let Filed { requester, place, first, names, steps } = it;
            let Ok(permit) = governor.take_for(requester, Resource::Kept, steps.len() as u64) else {
                file.remove(place, first);
                continue;
            };
            // Not in memory.
            let used = now.checked_sub(2 * TTL).unwrap_or(now);
            let filed = Some(now + left);
            let origin = None;
            table.add(Entry {
                requester,
                model,
                first,
                place,
                names,
                steps,
                origin,
                used,
                filed,
                _permit: permit,
            });
        }
        table.file = Some(file);
        drop(table);
        self
    }

    /// Whether what is kept of `model` may be on disk.
    pub(super) fn are_on_disk(&self, model: ModelId) -> bool {
        self.lock().file.as_ref().is_some_and(|file| file.model == model)
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
            let fresh = entry.is_fresh(now);
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
    /// begins with all that they computed, or others took their share; `None` when there is no room for it. With `on_disk` it is written, too.
    pub(super) fn keep(
        &self,
        (place, terms): (SessionId, &Terms),
        (steps, origin, on_disk): (Vec<Step>, Option<Origin>, bool),
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
        let late = |entry: &Entry| !entry.is_fresh(now);
        // A session that was called the same is another one, and its state goes.
        let same = |entry: &Entry| (entry.place, entry.first) == (place, terms.layers.start());
        let gone: Vec<u64> = table
            .entries
            .iter()
            .filter(|(_, entry)| whole(entry) || late(entry) || same(entry))
            .map(|(number, _)| *number)
            .collect();
        let mut freed: Vec<SessionId> =
            gone.into_iter().filter_map(|number| table.remove(number)).map(|entry| entry.place).collect();
        let permit = loop {
            match governor.take_for(requester, Resource::Kept, steps.len() as u64) {
                Ok(permit) => break permit,
                Err(_) => {
                    let entry = table.yielding(requester, now).and_then(|number| table.remove(number))?;
                    freed.push(entry.place);
                }
            }
        };
        let (model, first) = (terms.model, terms.layers.start());
        let steps: Arc<[Step]> = steps.into();
        let file = table.file.as_ref().filter(|file| on_disk && file.model == model);
        if let Some(file) = file {
            let (names, steps) = (names.clone(), steps.clone());
            file.put(Filed { requester, place, first, names, steps });
        }
        let filed = file.map(|_| now + KEPT_FOR);
        table.add(Entry {
            requester,
            model,
            first,
            place,
            names,
            steps,
            origin,
            used: now,
            filed,
            _permit: permit,
        });
        // A session has an entry for each range: what one of them needs is not forgotten for another.
        freed.retain(|place| table.entries.values().all(|entry| entry.place != *place));
        Some(freed)
    }
}

#[cfg(test)]
mod tests {
    use p2p::{
        codec::{Rounding, Wire},
        wire::{announce::Class, receipt::Row},
    };
    use scheduler::{LayerRange, SessionKind, governor::Limits};

    use super::*;
    use crate::{clock::unix_s, state_store::file::BLOCK};

    fn terms(requester: NodeId) -> Terms {
        Terms {
            session: SessionId::numbered(3),
            requester,
            model: ModelId::numbered(4),
            layers: LayerRange::new(1, 3).unwrap(),
            hidden: 1,
            class: Class::D1,
            rounding: Rounding::NONE,
            kind: SessionKind::DEFAULT,
            inner: false,
        }
    }

    /// 48 positions.
    fn steps(first: u32) -> Vec<Step> {
        let row = |at: u32| Row::of(Wire::Raw, &(at as f32).to_le_bytes());
        (first..first + 48).map(|at| Step { input: row(at), output: row(at + 1) }).collect()
    }

    fn last(requester: NodeId, first: u32) -> Beginning {
        let steps = steps(first);
        *names(&terms(requester), steps.iter().map(|step| &step.input)).last().unwrap()
    }

    fn file(blocks: usize) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len((blocks * BLOCK) as u64).unwrap();
        file
    }

    /// As a node does that starts now.
    fn started(file: &std::fs::File, governor: &Governor) -> Prefixes {
        let states = StateFile::open(file.try_clone().unwrap(), [7; 32], unix_s()).unwrap();
        Prefixes::default().on_disk(Arc::new(states), ModelId::numbered(4), governor, Instant::now())
    }

    /// What a requester permits outlasts memory and process, for that requester, until the worker has it no more; nothing else does.
    #[test]
    fn what_may_be_on_disk_is_found_after_a_restart_by_who_asked_for_it() {
        let (file, governor, now) = (file(64), Governor::default(), Instant::now());
        let requester = NodeId::numbered(1);
        let prefixes = started(&file, &governor);
        for (session, on_disk) in [(5, true), (6, false)] {
            let what = (steps(100 * session as u32), None, on_disk);
            let place = SessionId::numbered(session);
            prefixes.keep((place, &terms(requester)), what, &governor, now).unwrap();
        }
        let there = |prefixes: &Prefixes, later| {
            let found = |first| prefixes.find(requester, &[last(requester, first)], None, now + later);
            [500, 600].map(|first| found(first).map(|found| (found.place, found.positions)))
        };
        let both = [5, 6].map(|session| Some((SessionId::numbered(session), 48)));
        assert_eq!(there(&prefixes, Duration::ZERO), both);
        assert_eq!(there(&prefixes, TTL * 2), [both[0], None], "memory's time is over");
        drop(prefixes);
        let prefixes = started(&file, &Governor::default());
        assert_eq!(there(&prefixes, Duration::ZERO), [both[0], None]);
        assert_eq!(there(&prefixes, KEPT_FOR + TTL), [None, None], "and so is the disk's");
        let other = NodeId::numbered(2);
        assert!(prefixes.find(other, &[last(requester, 500)], None, now).is_none());
        let found = prefixes.find(requester, &[last(requester, 500)], None, now).unwrap();
        assert_eq!(found.steps[..], steps(500)[..]);
        prefixes.forget(found.number);
        assert_eq!(there(&started(&file, &Governor::default()), Duration::ZERO), [None, None]);
    }

    #[test]
    fn a_session_of_the_same_name_replaces_the_one_before() {
        let (file, governor, now) = (file(64), Governor::default(), Instant::now());
        let (requester, place) = (NodeId::numbered(1), SessionId::numbered(5));
        let prefixes = started(&file, &governor);
        for (first, on_disk) in [(0, true), (100, false)] {
            let freed =
                prefixes.keep((place, &terms(requester)), (steps(first), None, on_disk), &governor, now);
            assert_eq!(freed, Some(Vec::new()), "the worker has the later one there");
        }
        let found = |prefixes: &Prefixes, first| {
            prefixes.find(requester, &[last(requester, first)], None, now).is_some()
        };
        assert_eq!([0, 100].map(|first| found(&prefixes, first)), [false, true]);
        assert!(!found(&started(&file, &Governor::default()), 0), "its record went with it");
    }

    /// What is on disk alone takes no place from who was here lately.
    #[test]
    fn what_is_on_disk_alone_makes_room() {
        let limits = Limits::default().set(Resource::Kept, [96, 96, 96]);
        let (file, now) = (file(64), Instant::now());
        let governor = Governor::new(limits);
        let prefixes = started(&file, &governor);
        let keep = |node, at| {
            let (requester, place) = (NodeId::numbered(node), SessionId::numbered(node));
            prefixes.keep((place, &terms(requester)), (steps(0), None, true), &governor, at)
        };
        assert!(keep(1, now).is_some() && keep(2, now).is_some());
        assert_eq!(keep(3, now), None, "both may still be in memory");
        assert_eq!(keep(3, now + TTL * 2), Some(vec![SessionId::numbered(1)]));
    }

    /// What rests on another node's word serves where the requester named that node, and goes to no third one under this one's name.
    #[test]
    fn a_state_of_another_node_serves_where_that_is_named_and_is_not_lent() {
        let (prefixes, governor, now) = (Prefixes::default(), Governor::default(), Instant::now());
        let (requester, holder) = (NodeId::numbered(1), NodeId::numbered(2));
        let terms = terms(requester);
        let steps = steps(0);
        let all = names(&terms, steps.iter().map(|step| &step.input));
        let last = *all.last().unwrap();
        let keep = |origin| {
            prefixes.keep((SessionId::numbered(5), &terms), (steps.clone(), origin, false), &governor, now)
        };
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
