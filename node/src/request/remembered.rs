//! What an ended prompt leaves behind, in memory and with `--keep-state` on disk beside the states that the own worker keeps there.
//!
//! One record of a [`StateFile`] holds one session: tokens, the rows that crossed its cuts, and who ran what. What is too
//! large for it is remembered in memory alone.

use std::{sync::Arc, time::Instant};

use bincode::{Decode, Encode, config};
use p2p::codec::{Rounding, Wire};
use scheduler::{LayerRange, ModelId, NodeId, Segment, SessionId, SessionKind};

use super::replay_log::{LoggedRows, Logs};
use crate::{
    Result,
    clock::unix_s,
    state_store::{
        DiskUse, Place, behind,
        file::{GUESTS_NOTE, Label, Name, StateFile},
    },
};

/// An ended prompt. Its tokens are a user's words: it has no `Debug`.
pub(super) struct Remembered {
    /// What it is called at the own worker.
    pub(super) place: SessionId,
    pub(super) model: ModelId,
    pub(super) rounding: Rounding,
    pub(super) kind: SessionKind,
    /// Those whose rows were computed.
    pub(super) tokens: Vec<u32>,
    pub(super) logs: Logs,
    /// Who ran what, and who computed along.
    pub(super) segments: Vec<Segment>,
    pub(super) followers: Vec<Segment>,
    /// Who had the state of the beginning from another node, and from which. Not on disk, and neither is it there that these ran.
    pub(super) rests: Vec<(Segment, NodeId)>,
    pub(super) used: Instant,
}

#[derive(Encode, Decode)]
struct Written {
    place: [u8; 16],
    model: [u8; 32],
    wire: u8,
    boundaries: Vec<u32>,
    kind: String,
    tokens: Vec<u32>,
    hidden: u64,
    logs: Vec<Rows>,
    segments: Vec<Ran>,
    followers: Vec<Ran>,
}

#[derive(Encode, Decode)]
struct Rows {
    layer: u32,
    wire: u8,
    bytes: Vec<u8>,
    authors: Vec<(u32, [u8; 32])>,
}

#[derive(Encode, Decode)]
struct Ran {
    node: [u8; 32],
    layers: (u32, u32),
}

/// The file; clones share it.
#[derive(Clone)]
pub(super) struct RecallFile(Arc<StateFile>);

fn name(place: SessionId) -> Name {
    *blake3::hash(place.as_bytes()).as_bytes()
}

fn ran(segment: &Segment) -> Ran {
    Ran { node: *segment.node.as_bytes(), layers: (segment.layers.start(), segment.layers.end()) }
}

fn segment(ran: &Ran) -> Option<Segment> {
    let layers = LayerRange::new(ran.layers.0, ran.layers.1)?;
    Some(Segment { node: NodeId::new(ran.node), layers })
}

fn written(it: &Remembered) -> Written {
    let rows = |rows: LoggedRows<'_>| Rows {
        layer: rows.layer,
        wire: rows.wire as u8,
        bytes: rows.bytes.to_vec(),
        authors: rows.authors.iter().map(|(at, author)| (*at, *author.as_bytes())).collect(),
    };
    Written {
        place: *it.place.as_bytes(),
        model: *it.model.as_bytes(),
        wire: it.rounding.wire() as u8,
        boundaries: it.rounding.boundaries().to_vec(),
        kind: it.kind.to_string(),
        tokens: it.tokens.clone(),
        hidden: it.logs.hidden() as u64,
        logs: it.logs.all().map(rows).collect(),
        segments: it
            .segments
            .iter()
            .filter(|segment| it.rests.iter().all(|(rests, _)| rests != *segment))
            .map(ran)
            .collect(),
        followers: it.followers.iter().map(ran).collect(),
    }
}

fn read(bytes: &[u8]) -> Option<Remembered> {
    let (it, _) = bincode::decode_from_slice::<Written, _>(bytes, config::standard()).ok()?;
    let mut logs = Logs::new(it.hidden as usize);
    for rows in &it.logs {
        let authors = rows.authors.iter().map(|(at, author)| (*at, NodeId::new(*author))).collect();
        logs.restore(rows.layer, Wire::from_u8(rows.wire)?, &rows.bytes, authors)?;
    }
    Some(Remembered {
        place: SessionId::new(it.place),
        model: ModelId::new(it.model),
        rounding: Rounding::new(Wire::from_u8(it.wire)?, it.boundaries),
        kind: it.kind.parse().ok()?,
        tokens: it.tokens,
        logs,
        segments: it.segments.iter().map(segment).collect::<Option<_>>()?,
        followers: it.followers.iter().map(segment).collect::<Option<_>>()?,
        rests: Vec::new(),
        used: Instant::now(),
    })
}

impl RecallFile {
    /// The file in `place` and what is in it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn open(place: &Place) -> Result<(Self, Vec<Remembered>)> {
        let ticket = place.ticket()?;
        let file = StateFile::open(ticket.file, ticket.secret, unix_s())?;
        // What sessions of other nodes left behind lies there too.
        let own = file.notes().into_iter().filter(|(_, note)| note != GUESTS_NOTE);
        let names: Vec<Name> = own.map(|(name, _)| name).collect();
        let all = names.iter().filter_map(|name| read(&file.get(name, unix_s())?)).collect();
        Ok((Self(Arc::new(file)), all))
    }

    /// The file itself.
    pub(super) fn file(&self) -> Arc<StateFile> {
        self.0.clone()
    }

    /// What it takes of the disk.
    pub(super) fn disk_use(&self) -> DiskUse {
        self.0.disk_use()
    }

    /// Writes a session behind the caller's back: an answer does not wait for a disk.
    pub(super) fn put(&self, it: &Remembered) {
        let (name, written) = (name(it.place), written(it));
        behind(&self.0, move |file| {
            let bytes = bincode::encode_to_vec(written, config::standard());
            let bytes = bytes.map_err(|error| crate::Error::Failed(error.to_string()));
            let put = bytes.and_then(|bytes| file.put(Label::own(name, Vec::new()), &bytes, unix_s()));
            if let Err(error) = put {
                tracing::debug!(%error, "what a prompt leaves behind stays in memory alone");
            }
        });
    }

    /// Forgets a session.
    pub(super) fn remove(&self, place: SessionId) {
        let name = name(place);
        behind(&self.0, move |file| file.remove(&name));
    }
}
