//! The sessions of a worker: caches, epochs, room.
//!
//! A session has one cache per range of layers it opened here. Room is reserved when a range is opened, for all the
//! positions it asked for, so that a session that was let in never runs out halfway. What ended sessions leave behind
//! ([`super::kept`]) has what is not reserved, and gives way.

use std::{collections::HashMap, time::Instant};

use p2p::codec::{self, Wire, encoded_len};
use scheduler::{LayerRange, SessionId, SessionKind, session::MAX_DRAFT};
use shard::{round::Rounding, state::SessionState};

use super::{
    IDLE, MAX_SESSIONS,
    ipc::{self, Open, Run, Want},
    kept::{Ended, Kept, Key},
    load::Loaded,
    recent::Recent,
    refused,
    sample_loop::SampleLoop,
    transit::{self, Arriving, Transit},
};
use crate::{state_store::file::Whose, worker::Fault};

/// Rows of one pass, and so of one job: what a frame of the data plane may carry.
pub(super) const MAX_ROWS: u32 = 256;
/// Jobs of one pass.
pub(super) const MAX_ITEMS: usize = 16;
/// Rows of logits of one pass, half a megabyte each for a large vocabulary: one for every job that samples, and one for
/// every drafted token.
pub(super) const LOGIT_ROWS: usize = MAX_ITEMS + MAX_DRAFT as usize;

/// Rows of logits that a job takes.
pub(super) fn logit_rows(run: &Run) -> usize {
    if run.want == Want::Sample { 1 + run.draft.0.len() } else { 0 }
}

/// One range of one session.
pub(super) struct Held {
    /// Index of the stage.
    pub(super) stage: usize,
    pub(super) layers: LayerRange,
    pub(super) state: SessionState,
    /// The form of rows that enter and that leave; raw is taken as well.
    pub(super) wires: (Wire, Wire),
    /// Where the range rounds, ends included.
    pub(super) rounding: Rounding,
    /// The inputs of its last pass, where the state does not go back into it.
    pub(super) recent: Recent,
    epoch: u32,
    positions: u32,
    reserved_bytes: u64,
    touched: Instant,
}

/// What to do with a job.
#[derive(Debug, PartialEq)]
pub(super) enum Admission {
    /// Compute it: the cache ends where it starts, or so many rows before it, which are computed again from what is kept.
    Go {
        /// Those rows.
        again: u32,
    },
    /// Its epoch is over.
    Drop,
    /// The cache is too short.
    NeedReplay(u32),
    /// It cannot be computed.
    Fail(String),
}

/// All sessions of a worker.
pub(super) struct Sessions<'m> {
    model: &'m Loaded,
    held: HashMap<Key, Held>,
    conductors: HashMap<SessionId, SampleLoop<'m>>,
    kept: Kept,
    transit: Transit,
    limit_bytes: u64,
}

impl<'m> Sessions<'m> {
    /// None yet; caches may take `limit_bytes`.
    pub(super) fn new(model: &'m Loaded, limit_bytes: u64) -> Self {
        let (held, conductors, transit) = Default::default();
        Self { model, held, conductors, kept: Kept::new(), transit, limit_bytes }
    }

    /// Bytes reserved.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.held.values().map(|held| held.reserved_bytes).sum::<u64>() + self.transit.reserved_bytes()
    }

    /// Opens a range, or opens it again; returns how many positions are still computed.
    ///
    /// # Errors
    /// [`Fault::Refused`] or [`Fault::NoRoom`]; nothing changes then.
    pub(super) fn open(&mut self, open: Open, history: Vec<u32>, now: Instant) -> Result<u32, Fault> {
        let session = ipc::session(open.session);
        let layers = ipc::range(open.layers).map_err(refused)?;
        let (stage, wires, rounding) = self.check(&open, layers)?;
        let overlaps = |key: &Key, held: &Held| key.0 == session && held.layers.intersect(layers).is_some();
        let replaced: Vec<Key> = self
            .held
            .iter()
            .filter(|&(key, held)| overlaps(key, held))
            .map(|(&key, held)| match held.epoch > open.epoch {
                true => Err(refused(format!("epoch {} is over, {} runs here", open.epoch, held.epoch))),
                false => Ok(key),
            })
            .collect::<Result<_, _>>()?;
        if self.held.len() - replaced.len() >= MAX_SESSIONS {
            return Err(refused(format!("{MAX_SESSIONS} sessions are open: close one")));
        }
        let kind: SessionKind = open.kind.parse().map_err(refused)?;
        let needed_bytes = self.model.state_bytes(stage, layers, open.positions, kind);
        let freed: u64 = replaced.iter().map(|key| self.held[key].reserved_bytes).sum();
        let free_bytes = self.limit_bytes.saturating_sub(self.reserved_bytes() - freed);
        if needed_bytes > free_bytes {
            return Err(Fault::NoRoom { needed_bytes, free_bytes });
        }
        let conductor = match open.conduct {
            None => None,
            Some(conduct) => {
                let (model, vocab) = (self.model, self.model.blueprint().vocab);
                let tokenizer = model.tokenizer().map_err(refused)?;
                Some(SampleLoop::new(model, tokenizer, vocab, conduct, history).map_err(refused)?)
            }
        };
        let mut fresh = self.model.stages[stage].new_state_with(layers, kind).map_err(refused)?;
        let mut old: Vec<Held> = replaced.iter().filter_map(|key| self.held.remove(key)).collect();
        let fits = |held: &Held| held.layers == layers && held.state.kind() == kind;
        let same = old.iter().position(fits);
        let named: Vec<_> = open.kept.iter().map(|(name, upto)| (ipc::session(*name), *upto)).collect();
        let at = open.at.min(open.positions) as usize;
        let mut state = match same {
            Some(at) => old.swap_remove(at).state,
            None => {
                let what = (layers, &rounding, kind);
                let shared = self.kept.share(&named, what, at, now);
                let have = shared.as_ref().map_or(0, SessionState::len);
                let filed = self.kept.filed();
                match filed.is_some_and(|filed| filed.read(&named, what, (have, at), &mut fresh)) {
                    true => fresh,
                    false => shared.unwrap_or(fresh),
                }
            }
        };
        let have = state.rewind(at) as u32;
        if let Some(mut conductor) = conductor {
            if let Some(before) = self.conductors.remove(&session) {
                conductor.adopt(before);
            }
            self.conductors.insert(session, conductor);
        }
        let held = Held {
            stage,
            layers,
            state,
            wires,
            rounding,
            recent: Recent::default(),
            epoch: open.epoch,
            positions: open.positions,
            reserved_bytes: needed_bytes,
            touched: now,
        };
        self.held.insert((session, layers.start()), held);
        Ok(have)
    }

    /// Whether the range can be served as asked: by which stage, in which forms, rounding where.
    fn check(&self, open: &Open, layers: LayerRange) -> Result<(usize, (Wire, Wire), Rounding), Fault> {
        let model = self.model;
        let stage = model
            .stage_of(layers)
            .ok_or_else(|| refused(format!("layers {layers} are not loaded here as one range")))?;
        let (context, positions) = (model.context, open.positions);
        if positions == 0 || positions as usize > context {
            return Err(refused(format!("room for {positions} positions: this worker gives 1 to {context}")));
        }
        let wire = Wire::from_u8(open.wire).ok_or_else(|| refused("activations of no known form"))?;
        let touches = |&boundary: &u32| layers.start() <= boundary && boundary <= layers.end();
        let boundaries = open.rounding.iter().copied().filter(touches).collect();
        let rounding = codec::Rounding::new(wire, boundaries);
        let last = layers.end() == model.num_layers();
        let hidden = model.blueprint().hidden;
        if encoded_len(wire, 1, hidden).is_none() {
            return Err(refused(format!("rows of {hidden} values cannot travel as {wire}")));
        }
        if open.conduct.is_some() && !last {
            return Err(refused(format!("layers {layers} do not end with the head, so no token comes out")));
        }
        let wires = (rounding.form_at(layers.start()), rounding.form_at(layers.end()));
        Ok((stage, wires, super::rounding(&rounding)))
    }

    /// Layers and rounding of the range a job is for: jobs that agree on both may share a pass.
    pub(super) fn lane(&self, run: &Run) -> Option<(LayerRange, &Rounding)> {
        let held = self.held.get(&(ipc::session(run.session), run.layer))?;
        Some((held.layers, &held.rounding))
    }

    /// Decides about a job; makes the cache end where it starts if it can be computed.
    pub(super) fn admit(&mut self, run: &Run, now: Instant) -> Admission {
        let key = (ipc::session(run.session), run.layer);
        let Some(held) = self.held.get_mut(&key) else {
            return Admission::Fail(format!(
                "no range of the session starts at layer {}: open it",
                run.layer
            ));
        };
        if run.epoch < held.epoch {
            return Admission::Drop;
        }
        held.epoch = run.epoch;
        held.touched = now;
        // An encoder reads a text in one pass.
        let most = if self.model.encodes() { held.positions.max(MAX_ROWS) } else { MAX_ROWS };
        if run.rows == 0 || run.rows > most {
            return Admission::Fail(format!("{} rows: a job has 1 to {most}", run.rows));
        }
        let end = u64::from(run.from) + u64::from(run.rows);
        if end > u64::from(held.positions) {
            let room = held.positions;
            return Admission::Fail(format!(
                "position {end} in a session opened for {room}: open it for more"
            ));
        }
        // A state that cannot go back to where the job starts keeps what it can, and the rest is computed again or comes again.
        let have = held.state.rewind(run.from as usize) as u32;
        let again = run.from.saturating_sub(have);
        let fits = again + run.rows <= MAX_ROWS && again as usize + logit_rows(run) <= LOGIT_ROWS;
        match again {
            0 => Admission::Go { again: 0 },
            _ if fits && held.recent.has(have, run.from) => Admission::Go { again },
            _ => Admission::NeedReplay(have),
        }
    }

    /// Lends a range out for a pass.
    pub(super) fn take(&mut self, key: Key) -> Option<Held> {
        self.held.remove(&key)
    }

    /// Takes it back.
    pub(super) fn give(&mut self, key: Key, held: Held) {
        self.held.insert(key, held);
    }

    /// Who chooses the tokens of a session.
    pub(super) fn conductor(&mut self, session: SessionId) -> Option<&mut SampleLoop<'m>> {
        self.conductors.get_mut(&session)
    }

    /// Forgets positions from `to` on in all ranges of `session`, and what was chosen for them.
    pub(super) fn truncate(&mut self, session: SessionId, to: u32, now: Instant) -> crate::Result<()> {
        for (_, held) in self.held.iter_mut().filter(|(key, _)| key.0 == session) {
            held.state.rewind(to as usize);
            held.touched = now;
        }
        self.conductors.get_mut(&session).map_or(Ok(()), |conductor| conductor.truncate(to as usize))
    }

    /// Forgets `session`, but for the positions of its ranges that are to be kept, by first layer; on disk as well where `file` says of
    /// whose prompt it is.
    pub(super) fn close(
        &mut self,
        session: SessionId,
        keep: &[(u32, u32)],
        file: Option<Whose>,
        now: Instant,
    ) {
        for (key, held) in self.held.extract_if(|key, _| key.0 == session) {
            let Some((_, upto)) = keep.iter().find(|(first, _)| *first == key.1) else { continue };
            let Held { layers, mut state, rounding, .. } = held;
            let len = state.rewind(*upto as usize) as u32;
            let cost = self.model.costs.weight(layers, len / 2);
            if let Some(filed) = self.kept.filed() {
                filed.put((session, layers), file, &rounding, &state, now);
            }
            self.kept.put(key, Ended { layers, rounding, state }, cost, now);
        }
        self.conductors.remove(&session);
    }

    /// A piece of the first positions of what is kept of an ended session's range, from byte `start` on: how many bytes all of them
    /// have, and the piece packed.
    ///
    /// # Errors
    /// [`Fault::Refused`] when it is not kept, or too large to travel.
    pub(super) fn export(
        &mut self,
        key: Key,
        positions: usize,
        start: usize,
        now: Instant,
    ) -> Result<(u32, Vec<u8>), Fault> {
        let Self { kept, transit, .. } = self;
        transit.leave((key, positions), start, || kept.lend(key, positions, now), now)
    }

    /// Whether the first positions of an open range are bit for bit those that are kept of an ended session.
    ///
    /// # Errors
    /// [`Fault::Refused`] when one of the two does not hold them.
    pub(super) fn agree(
        &mut self,
        key: Key,
        ended: SessionId,
        positions: usize,
        now: Instant,
    ) -> Result<bool, Fault> {
        let gone = || refused("it is not here any more");
        let open = self.held.get(&key).and_then(|held| held.state.share(positions));
        let open = open.filter(|open| open.len() == positions).ok_or_else(gone)?;
        let kept = self.kept.lend((ended, key.1), positions, now).ok_or_else(gone)?;
        transit::are_same(open, kept)
    }

    /// Takes a packed piece of another node's state, from byte `start` of `raw_bytes` on. The last one makes it that of an ended session, if
    /// there is room and it is what `open` says; returns its positions then, before that 0.
    ///
    /// # Errors
    /// [`Fault::Refused`] or [`Fault::NoRoom`]; nothing of it is kept then.
    pub(super) fn import(
        &mut self,
        open: Open,
        packed: &[u8],
        (start, raw_bytes): (usize, usize),
        now: Instant,
    ) -> Result<u32, Fault> {
        let session = ipc::session(open.session);
        let layers = ipc::range(open.layers).map_err(refused)?;
        let key = (session, layers.start());
        if start == 0 {
            self.transit.forget(session);
            let (stage, _, rounding) = self.check(&open, layers)?;
            let kind: SessionKind = open.kind.parse().map_err(refused)?;
            let needed_bytes = self.model.state_bytes(stage, layers, open.positions, kind);
            let free_bytes = self.limit_bytes.saturating_sub(self.reserved_bytes());
            if needed_bytes > free_bytes {
                return Err(Fault::NoRoom { needed_bytes, free_bytes });
            }
            let state = self.model.stages[stage].new_state_with(layers, kind).map_err(refused)?;
            let into = (state, open.positions as usize);
            let arriving = Arriving::new((layers, rounding), needed_bytes, into, now);
            self.transit.arrive(key, raw_bytes, arriving)?;
        }
        let Some(ended) = self.transit.take(key, start, packed, now)? else { return Ok(0) };
        let cost = self.model.costs.weight(layers, open.positions / 2);
        self.kept.put(key, ended, cost, now);
        Ok(open.positions)
    }

    /// Forgets what is kept of an ended session, and what is on its way of it.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.transit.forget(session);
        self.kept.forget(session);
    }

    /// What is kept of ended sessions.
    pub(super) fn kept(&mut self) -> &mut Kept {
        &mut self.kept
    }

    /// Lets what is kept give way to what is reserved; the bytes that are left of it.
    pub(super) fn fit_kept(&mut self, now: Instant) -> u64 {
        let free_bytes = self.limit_bytes.saturating_sub(self.reserved_bytes());
        self.kept.fit(free_bytes, self.held.values().map(|held| &held.state), now)
    }

    /// A frame for a range waits, so its requester has not given it up.
    pub(super) fn touch(&mut self, key: Key, now: Instant) {
        if let Some(held) = self.held.get_mut(&key) {
            held.touched = now;
        }
    }

    /// Closes ranges that were idle for [`IDLE`]; returns them.
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<Key> {
        self.transit.sweep(now);
        let late = |held: &Held| now.saturating_duration_since(held.touched) > IDLE;
        let gone: Vec<Key> = self.held.iter().filter(|(_, held)| late(held)).map(|(key, _)| *key).collect();
        gone.iter().for_each(|key| {
            self.held.remove(key);
        });
        let Self { held, conductors, .. } = self;
        conductors.retain(|session, _| held.keys().any(|key| key.0 == *session));
        gone
    }
}
