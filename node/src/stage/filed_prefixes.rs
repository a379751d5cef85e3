//! What [`super::prefixes`] needs on disk to find again, after a restart, the states that the worker keeps there.
//!
//! One record of the [`StateFile`] that holds what own prompts leave behind is one entry: whose it is, its names and the digests of its
//! inputs and outputs. Only what a requester permits is ever given to it ([`p2p::wire::control::Reuse::on_disk`]).
//!
//! Bounds: those of the file, half of which is for guests at most; a record is forgotten [`KEPT_FOR`] after it was written.

use std::{sync::Arc, time::Duration};

use bincode::{Decode, Encode, config};
use p2p::wire::{
    pages::{STEP_LEN, read_steps, write_steps},
    prefix::{Beginning, EVERY, Name},
};
use scheduler::{ModelId, NodeId, SessionId};

use super::step::Step;
use crate::{
    clock::unix_s,
    state_store::{
        behind,
        file::{self, GUESTS_NOTE, KEPT_FOR, Label, StateFile, Whose},
    },
};

/// What is told of an entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filed {
    pub(super) requester: NodeId,
    /// What the session is called at the worker, and the first layer of the range.
    pub(super) place: SessionId,
    pub(super) first: u32,
    /// Ascending, one for every [`EVERY`] positions.
    pub(super) names: Vec<Beginning>,
    pub(super) steps: Arc<[Step]>,
}

#[derive(Encode, Decode)]
struct Written {
    requester: [u8; 32],
    place: [u8; 16],
    first: u32,
    written_s: u64,
    names: Vec<[u8; 32]>,
    steps: Vec<u8>,
}

/// The file, for entries of one model.
#[derive(Debug)]
pub(super) struct FiledPrefixes {
    file: Arc<StateFile>,
    pub(super) model: ModelId,
}

fn name(place: SessionId, first: u32) -> file::Name {
    let mut hasher = blake3::Hasher::new_derive_key("shoal filed prefix 1");
    *hasher.update(place.as_bytes()).update(&first.to_le_bytes()).finalize().as_bytes()
}

fn read(bytes: &[u8], now_s: u64) -> Option<(Filed, Duration)> {
    let (it, _) = bincode::decode_from_slice::<Written, _>(bytes, config::standard()).ok()?;
    let positions = u32::try_from(it.steps.len() / STEP_LEN).ok()?;
    let steps = read_steps(&it.steps, positions).ok()?;
    let left = KEPT_FOR.checked_sub(Duration::from_secs(now_s.saturating_sub(it.written_s)))?;
    let names = (1..).zip(it.names).map(|(at, name)| Beginning { positions: at * EVERY, name: Name(name) });
    let filed = Filed {
        requester: NodeId::new(it.requester),
        place: SessionId::new(it.place),
        first: it.first,
        names: names.take_while(|beginning| beginning.positions <= positions).collect(),
        steps: steps.into_iter().map(|[input, output]| Step { input, output }).collect(),
    };
    Some((filed, left))
}

impl FiledPrefixes {
    /// The entries of `model` in `file`, and how long each is kept.
    pub(super) fn open(file: Arc<StateFile>, model: ModelId) -> (Self, Vec<(Filed, Duration)>) {
        let now_s = unix_s();
        let guests = file.notes().into_iter().filter(|(_, note)| note == GUESTS_NOTE);
        let all = guests.filter_map(|(name, _)| read(&file.get(&name, now_s)?, now_s)).collect();
        (Self { file, model }, all)
    }

    /// Writes an entry, behind the caller's back.
    pub(super) fn put(&self, it: Filed) {
        behind(&self.file, move |file| {
            let now_s = unix_s();
            let written = Written {
                requester: *it.requester.as_bytes(),
                place: *it.place.as_bytes(),
                first: it.first,
                written_s: now_s,
                names: it.names.iter().map(|beginning| beginning.name.0).collect(),
                steps: write_steps(it.steps.iter().map(|step| [&step.input, &step.output])),
            };
            let name = name(it.place, it.first);
            let label = Label { name, note: GUESTS_NOTE.to_vec(), whose: Whose::Guest };
            let bytes = bincode::encode_to_vec(written, config::standard());
            let bytes = bytes.map_err(|error| crate::Error::Failed(error.to_string()));
            if let Err(error) = bytes.and_then(|bytes| file.put(label, &bytes, now_s)) {
                tracing::debug!(%error, "what a session of another node left behind stays in memory alone");
            }
        });
    }

    /// Forgets an entry.
    pub(super) fn remove(&self, place: SessionId, first: u32) {
        let name = name(place, first);
        behind(&self.file, move |file| file.remove(&name));
    }
}
