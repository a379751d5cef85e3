//! Ended answers on disk, for prompts that begin like them when the memory has forgotten them or the process was another one.
//!
//! ```text
//! name 0 = blake3 keyed ("shoal beginning 1" | tag of the state, kind of the session)
//! name p = blake3 keyed (name p-1 | the next [`EVERY`] tokens)
//! ```
//!
//! A state lies under its last name, and the note beside it holds all of its names, the first 16 bytes of each: what begins
//! alike is found without a token being on disk. What ended is written [`COLD`] later, since a conversation's next turn begins
//! with it and holds it whole.
//!
//! Limits: of a model with windows a state on disk begins what goes on at its end, not what begins like it and is shorter.
//!
//! Bounds: what waits to be written ([`Waiting`]) takes a quarter of the memory of kept ones at most.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use scheduler::SessionKind;
use shard::state::SessionState;

use crate::{
    model::Model,
    state_store::{COLD, StateStore, Waiting, file::Label, file::MAX_NOTE, file::Name},
};

/// Positions between names: fewer are computed sooner than they are read.
const EVERY: usize = 64;
/// Bytes of a name in a note.
const SHORT: usize = 16;

type Beginning = [u8; SHORT];

/// Stands in a note for the name of a beginning to which the state does not go back once it is read.
const NOT_REACHED: Name = [0; 32];

/// See the module's page.
pub(super) struct ColdPrefixes {
    store: StateStore,
    /// Which state has a beginning, and how many positions it is.
    beginnings: HashMap<Beginning, (Name, usize)>,
    /// Answers that ended and are not on disk, by their names.
    waiting: Waiting<Vec<Name>>,
}

fn short(name: &Name) -> Beginning {
    std::array::from_fn(|at| name[at])
}

/// The names of the beginnings of `tokens` under a `tag` and a `kind`, as many as a note holds.
fn names(tag: u64, kind: SessionKind, tokens: &[u32]) -> Vec<Name> {
    let key = format!("shoal beginning 1 {tag:016x} {kind}");
    let key = *blake3::hash(key.as_bytes()).as_bytes();
    let mut head = [0; 32];
    let next = |piece: &[u32]| {
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(&head);
        piece.iter().for_each(|token| {
            hasher.update(&token.to_le_bytes());
        });
        head = *hasher.finalize().as_bytes();
        head
    };
    tokens.chunks_exact(EVERY).take(MAX_NOTE / SHORT).map(next).collect()
}

impl ColdPrefixes {
    /// What is in `store`; what waits to be written takes `limit_bytes` at most.
    pub(super) fn new(store: StateStore, limit_bytes: usize) -> Self {
        let mut beginnings = HashMap::new();
        for (name, note) in store.notes() {
            index(&mut beginnings, name, note.as_chunks().0.iter().copied());
        }
        Self { store, beginnings, waiting: Waiting::new(limit_bytes) }
    }

    /// A state of a beginning of `tokens` that is on disk and holds at least [`EVERY`] positions more than `have`, but never all
    /// of `tokens`.
    pub(super) fn take(
        &mut self,
        model: &Model,
        kind: SessionKind,
        tokens: &[u32],
        have: usize,
    ) -> Option<SessionState> {
        let range = model.executor.range();
        let most = tokens.len().saturating_sub(1);
        let names = names(model.executor.state_tag(range), kind, &tokens[..most]);
        let known = names.iter().rev().find_map(|name| self.beginnings.get(&short(name)));
        let (name, positions) = *known.filter(|(_, positions)| *positions >= have + EVERY)?;
        let mut state = model.executor.new_state_with(range, kind).ok()?;
        if !self.store.load(&name, &mut state) {
            self.forget(&name);
            return None;
        }
        state.rewind(positions);
        (state.len() > have).then_some(state)
    }

    /// An answer ended of which `tokens` say what its `state` has computed.
    pub(super) fn put(&mut self, tokens: &[u32], state: &SessionState, now: Instant) {
        if state.len() < EVERY || tokens.len() < state.len() {
            return;
        }
        let Some(state) = StateStore::part(state) else { return };
        let names = names(state.tag(), state.kind(), &tokens[..state.len()]);
        if names.last().is_none_or(|last| self.beginnings.contains_key(&short(last))) {
            return;
        }
        // It is taken up to a name at most, and behind windows it goes back to few positions once it is read: it ends there.
        let named = names.len() * EVERY;
        let state = match state.share(named).filter(|ends| ends.len() == named) {
            Some(ends) => ends,
            None if state.forgets(state.len(), named) => return,
            None => state,
        };
        let reached = |(number, name): (usize, Name)| match state.forgets(state.len(), number * EVERY) {
            true => NOT_REACHED,
            false => name,
        };
        let names: Vec<Name> = (1..).zip(names).map(reached).collect();
        // What began this one is held by it.
        self.waiting.retain(|other| !other.last().is_some_and(|last| names.contains(last)));
        self.waiting.push(names, state, now);
    }

    /// Hands on what is due to be written, one state at a time; how long until it is worth a look again, if anything waits.
    pub(super) fn write(&mut self, now: Instant) -> Option<Duration> {
        let named =
            |names: &Vec<Name>| Some(Label::own(*names.last()?, names.iter().flat_map(short).collect()));
        if let Some(names) = self.waiting.write(&self.store, now, named) {
            self.replace(&names);
        }
        // What it takes is told when it is there.
        self.waiting.due(now).or_else(|| self.store.is_writing().then_some(COLD))
    }

    /// A state with these names is written: those that it holds whole go.
    fn replace(&mut self, names: &[Name]) {
        let Some(name) = names.last().copied() else { return };
        let known = names.iter().filter_map(|name| self.beginnings.get(&short(name)));
        let older: Vec<Name> = known.map(|(name, _)| *name).collect();
        index(&mut self.beginnings, name, names.iter().map(short));
        // One that began like this one and went on otherwise still has names of its own.
        for old in older {
            if old != name && self.beginnings.values().all(|(other, _)| *other != old) {
                self.store.remove(&old);
            }
        }
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    fn forget(&mut self, name: &Name) {
        self.store.remove(name);
        self.beginnings.retain(|_, (other, _)| other != name);
    }
}

fn index(
    to: &mut HashMap<Beginning, (Name, usize)>,
    name: Name,
    beginnings: impl Iterator<Item = Beginning>,
) {
    let reached = (1..).zip(beginnings).filter(|(_, beginning)| *beginning != short(&NOT_REACHED));
    for (number, beginning) in reached {
        to.insert(beginning, (name, number * EVERY));
    }
}
