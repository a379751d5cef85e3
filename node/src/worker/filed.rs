//! What the child keeps of ended sessions on disk, beside what it keeps in memory ([`super::kept`]): of this node's own, and of those of
//! others that permit it. Which these are is the daemon's to know, and who may go on from which.
//!
//! The daemon's descriptor and key come with the first frame ([`crate::state_store`]). What lies there is called by session and
//! first layer, as in memory; the note beside it says of what layers, rounding and kind it is.
//!
//! Bounds: those of [`Waiting`].

use std::{collections::HashMap, time::Instant};

use bincode::{Decode, Encode, config};
use scheduler::{LayerRange, SessionId, SessionKind};
use shard::{round::Rounding, state::SessionState};

use crate::state_store::{
    StateStore, Waiting,
    file::{Label, Name, Whose},
};

/// Positions that are worth reading: fewer are computed sooner.
const WORTH: usize = 64;

/// Of what a state is.
#[derive(Clone, Encode, Decode)]
struct Note {
    session: [u8; 16],
    layers: (u32, u32),
    /// Rule and boundaries, in words.
    rounding: String,
    kind: String,
    positions: u64,
}

impl Note {
    fn of(session: SessionId, layers: LayerRange, rounding: &Rounding, state: &SessionState) -> Self {
        Self {
            session: *session.as_bytes(),
            layers: (layers.start(), layers.end()),
            rounding: words(rounding),
            kind: state.kind().to_string(),
            positions: state.len() as u64,
        }
    }

    fn name(&self) -> Name {
        *blake3::Hasher::new()
            .update(&self.session)
            .update(&self.layers.0.to_le_bytes())
            .finalize()
            .as_bytes()
    }
}

fn words(rounding: &Rounding) -> String {
    format!("{:?} {:?}", rounding.rule, rounding.boundaries)
}

/// See the module's page.
pub(super) struct Filed {
    store: StateStore,
    notes: HashMap<(SessionId, u32), Note>,
    waiting: Waiting<(Note, Whose)>,
}

impl Filed {
    /// What is in `store`.
    pub(super) fn new(store: StateStore) -> Self {
        let notes = store.notes().into_iter().filter_map(|(_, note)| {
            let (note, _) = bincode::decode_from_slice::<Note, _>(&note, config::standard()).ok()?;
            Some(((SessionId::new(note.session), note.layers.0), note))
        });
        let notes = notes.collect();
        Self { store, notes, waiting: Waiting::new(usize::MAX) }
    }

    /// A range of a session ended, and is kept: here too where `whose` says of whose prompt it is.
    pub(super) fn put(
        &mut self,
        (session, layers): (SessionId, LayerRange),
        whose: Option<Whose>,
        rounding: &Rounding,
        state: &SessionState,
        now: Instant,
    ) {
        // What had this name is another state, and is not found under it any more.
        let key = (session, layers.start());
        self.waiting.retain(|(note, _)| (SessionId::new(note.session), note.layers.0) != key);
        if let Some(old) = self.notes.remove(&key) {
            self.store.remove(&old.name());
        }
        let Some(whose) = whose.filter(|_| state.len() >= WORTH) else { return };
        let Some(state) = StateStore::part(state) else { return };
        self.waiting.push((Note::of(session, layers, rounding, &state), whose), state, now);
    }

    /// Fills `empty` with the longest state of those named that is longer than `have` by what is worth it, up to `at`; whether
    /// there was one.
    pub(super) fn read(
        &mut self,
        named: &[(SessionId, u32)],
        (layers, rounding, kind): (LayerRange, &Rounding, SessionKind),
        (have, at): (usize, usize),
        empty: &mut SessionState,
    ) -> bool {
        let (rounding, kind) = (words(rounding), kind.to_string());
        let range = (layers.start(), layers.end());
        let filed = named.iter().filter_map(|(session, upto)| {
            let key = (*session, layers.start());
            let note = self.notes.get(&key)?;
            let positions = (*upto as usize).min(at).min(note.positions as usize);
            let fits = note.layers == range && note.rounding == rounding && note.kind == kind;
            (fits && !empty.forgets(note.positions as usize, positions)).then_some((positions, key))
        });
        let best = filed.max_by_key(|(positions, _)| *positions);
        let Some((positions, key)) = best.filter(|(positions, _)| *positions >= have + WORTH) else {
            return false;
        };
        let Some(name) = self.notes.get(&key).map(Note::name) else { return false };
        if !self.store.load(&name, empty) {
            self.notes.remove(&key);
            return false;
        }
        if empty.rewind(positions) <= have {
            empty.rewind(0);
        }
        !empty.is_empty()
    }

    /// Hands on one state that is due to be written.
    pub(super) fn write(&mut self, now: Instant) {
        let named = |(note, whose): &(Note, Whose)| {
            let (name, whose) = (note.name(), *whose);
            Some(Label { name, note: bincode::encode_to_vec(note, config::standard()).ok()?, whose })
        };
        if let Some((note, _)) = self.waiting.write(&self.store, now, named) {
            self.notes.insert((SessionId::new(note.session), note.layers.0), note);
        }
    }

    /// Forgets a session.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.waiting.retain(|(note, _)| note.session != *session.as_bytes());
        let gone: Vec<Note> =
            self.notes.extract_if(|key, _| key.0 == session).map(|(_, note)| note).collect();
        gone.iter().for_each(|note| self.store.remove(&note.name()));
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::PathBuf, thread, time::Duration};

    use shard::{
        kernels::KvShape,
        state::{Back, Kind, Paged},
    };

    use super::*;
    use crate::state_store::{COLD, Ticket, file::BLOCK};

    fn state(len: usize) -> SessionState {
        let mut state = SessionState::new(7, vec![Kind::Paged(KvShape::new(1, 2)).empty(4096)], 4096);
        state.reserve(len).unwrap();
        state.advance(len);
        state
    }

    fn opened(file: &File) -> Filed {
        let file = file.try_clone().unwrap();
        Filed::new(StateStore::open(Ticket { file, path: PathBuf::new(), secret: [7; 32] }).unwrap())
    }

    /// A state that a session of the same name leaves behind is not the one before: that one is not read for it, whether it is kept on
    /// disk as well or not.
    #[test]
    fn a_state_goes_when_another_one_has_its_name() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * BLOCK as u64).unwrap();
        let (session, layers) = (SessionId::numbered(1), LayerRange::new(2, 3).unwrap());
        let (now, named) = (Instant::now(), [(session, 300)]);
        let what = (layers, &Rounding::NONE, SessionKind::DEFAULT);
        let read = |filed: &mut Filed| {
            let mut empty = state(0);
            filed.read(&named, what, (0, 300), &mut empty).then(|| empty.len())
        };
        let mut filed = opened(&file);
        filed.put((session, layers), Some(Whose::Guest), &Rounding::NONE, &state(200), now);
        // Who writes may not be there yet, and takes its time.
        while filed.notes.is_empty() || filed.store.is_writing() {
            filed.write(now + COLD);
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((read(&mut filed), read(&mut opened(&file))), (Some(200), Some(200)));
        filed.put((session, layers), None, &Rounding::NONE, &state(250), now);
        filed.write(now + COLD);
        assert_eq!((read(&mut filed), read(&mut opened(&file))), (None, None));
    }

    /// What a state behind a window has forgotten is not read: the session begins again.
    #[test]
    fn a_state_behind_a_window_is_read_to_its_end_or_not_at_all() {
        let empty = || {
            let paged = Paged::new(KvShape::new(1, 2), 4096).looking(Back::new(Some(100), None));
            SessionState::new(7, vec![Box::new(paged)], 4096)
        };
        let mut state = empty();
        while state.len() < 3_000 {
            state.prepare(100).unwrap();
            state.advance(100);
        }
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * BLOCK as u64).unwrap();
        let (session, layers) = (SessionId::numbered(1), LayerRange::new(2, 3).unwrap());
        let mut filed = opened(&file);
        filed.put((session, layers), Some(Whose::Guest), &Rounding::NONE, &state, Instant::now());
        while filed.notes.is_empty() || filed.store.is_writing() {
            filed.write(Instant::now() + COLD);
            thread::sleep(Duration::from_millis(1));
        }
        let what = (layers, &Rounding::NONE, SessionKind::DEFAULT);
        for (upto, read) in [(3_000, Some(3_000)), (3_100, Some(3_000)), (2_000, None)] {
            let mut state = empty();
            let found = filed.read(&[(session, upto)], what, (0, 4_000), &mut state).then(|| state.len());
            assert_eq!(found, read, "up to {upto}");
            assert!(found.is_some() || state.is_empty());
        }
    }
}
