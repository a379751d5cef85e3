//! States of beginnings between stages: what a stage lacks it gets from a node that computed it.
//!
//! The requester says where, and permits it ([`p2p::wire::pages`]). What comes is held against what the requester knows: inputs and
//! outputs have its names, or nothing of it is taken. The state goes to the worker, which alone parses it, and becomes an ended session
//! of this requester like any other ([`super::prefixes`]). The last [`EVERY`] positions are not taken over: their rows come as
//! in every session and are computed on what was fetched, and unless they give the outputs that were signed for, all of it is
//! thrown away before anything is signed or sent on (`CommitmentChain`).
//!
//! What these rows do not see of a state, a random check does ([`is_checked`]): of the share of fetches that the owner gave, nothing is taken over.
//! The stage says that it lacks the beginning, gets its rows from the requester as ever, computes all of it, and then has its worker compare the two
//! states bit for bit. Either way, who gave a wrong one is struck. What is computed on a state that was not checked rests on its
//! holder: it is kept under that name, serves only where the requester names the holder again, and is lent to no third node ([`super::prefixes`]);
//! the requester convicts neither of the two for what follows from it (`request/verify.rs`).
//!
//! Deadlines: [`ASK`] until the holder begins to answer, [`NEXT`] until its worker has packed the next piece, [`STALL`] between two reads, and for all of it
//! what the requester says that it is worth; then the rows are computed as if the holder did not exist.
//!
//! A state travels in pieces ([`p2p::wire::pages::PIECE`]): while a worker takes or gives one, the next is on the line, and a node has no more of it in
//! memory.
//!
//! Limits: the memory that the governor allows ([`Resource::Pages`]); [`MAX_STATE`](p2p::wire::pages::MAX_STATE) bytes of a state.

use std::{io, time::Duration, time::Instant as Clock};

use p2p::{
    Governor, Identity, Plane, Stream,
    wire::{
        announce::Class,
        control::{Lease, Source},
        pages::{
            HEAD_LEN, Head, MAX_PACKED, MAX_WORTH_MS, PIECE_HEAD_LEN, Permit, PieceHead, REQUEST_LEN,
            STEP_LEN, read_steps, write_steps,
        },
        prefix::{EVERY, names},
        receipt::Row,
    },
};
use scheduler::{ModelId, NodeId, SessionId, governor::Resource};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use super::{
    Stage, commitment_chain,
    prefixes::{Found, Origin, Prefixes},
    step::Step,
};
use crate::{
    clock,
    worker::{OpenSession, Worker},
};

/// A holder that is there answers within three round trips, the handshake included.
const ASK: Duration = Duration::from_millis(800);
/// A line that carries nothing for so long carries it too late.
const STALL: Duration = Duration::from_millis(500);
/// A worker packs a piece between two passes, the longest of which is a part of a long prompt.
const NEXT: Duration = Duration::from_secs(3);
/// Bytes that are read at once.
const READ: usize = 64 << 10;
/// Memory of a transfer, bytes: two pieces.
const TRANSFER_BYTES: u64 = 2 * MAX_PACKED as u64;

/// Gets the beginning that `source` names, if the holder gives it soon enough and it is that.
pub(super) async fn fetch(stage: &Stage, lease: &Lease, source: &Source) -> Option<Found> {
    let place = SessionId::new(random()?);
    let began = Clock::now();
    let worth = Duration::from_millis(u64::from(source.worth_ms));
    let fetched = timeout(worth, fetch_to(place, stage, lease, source)).await;
    let fetched = fetched.unwrap_or_else(|_| Err("it took longer than it is worth".to_owned()));
    let (holder, ms) = (source.permit.holder, began.elapsed().as_millis());
    match fetched {
        Ok((found, bytes)) => {
            let positions = found.positions;
            tracing::info!(%holder, positions, bytes, ms, "fetched the state of a beginning");
            Some(found)
        }
        Err(why) => {
            tracing::info!(%holder, why, ms, "a state is not fetched and computed instead");
            stage.worker.get().forget(place);
            None
        }
    }
}

async fn fetch_to(
    place: SessionId,
    stage: &Stage,
    lease: &Lease,
    source: &Source,
) -> Result<(Found, usize), String> {
    let Source { contact, permit, outputs, .. } = source;
    let beginning = permit.beginning;
    let me = stage.identity.node();
    let meant = permit.requester == stage.requester && permit.reader == me && permit.holder != me;
    // Only of this class are equal names equal states.
    let meant = meant && stage.class == Class::D1;
    if !meant || beginning.positions <= EVERY || beginning.positions > lease.at {
        return Err("the source is for another lease".into());
    }
    let governor = stage.network.governor();
    let taken = governor.take_for(permit.holder, Resource::Pages, TRANSFER_BYTES);
    let _permit = taken.map_err(|refused| refused.to_string())?;
    let asked = async {
        let reached = stage.network.reach_named(contact, stage.requester, ASK).await;
        reached.map_err(|error| error.to_string())?;
        let opened = stage.network.open(contact.node, Plane::Pages).await;
        let mut stream = opened.map_err(|error| error.to_string())?;
        stream.write_all(&permit.request()).await.map_err(text)?;
        stream.flush().await.map_err(text)?;
        let mut head = [0; HEAD_LEN];
        stream.read_exact(&mut head).await.map_err(text)?;
        Ok::<_, String>((stream, Head::read(&head).map_err(|malformed| malformed.to_string())?))
    };
    let asked = timeout(ASK, asked).await.unwrap_or_else(|_| Err("it does not answer".into()));
    let (mut stream, head) = asked?;
    let said = read(&mut stream, beginning.positions as usize * STEP_LEN).await.map_err(text)?;
    if !head.is_of(permit, &said) {
        return Err("it is not signed by its holder".into());
    }
    let rows = read_steps(&said, beginning.positions).map_err(|malformed| malformed.to_string())?;
    let terms = commitment_chain::terms(lease, stage.requester, (stage.hidden, stage.class));
    let last = |at: usize| names(&terms, rows.iter().map(|step: &[Row; 2]| &step[at])).last().copied();
    if last(0) != Some(beginning) || last(1).map(|last| last.name) != Some(*outputs) {
        return Err("it is of other rows than the requester's".into());
    }
    let open = OpenSession {
        session: place,
        epoch: 0,
        layers: lease.layers,
        positions: beginning.positions,
        at: beginning.positions,
        rounding: lease.rounding.clone(),
        kind: lease.kind,
        kept: Vec::new(),
        conduct: None,
    };
    let bytes = take_pieces(&mut stream, stage, (permit, &head), &open).await?;
    let steps = rows.into_iter().map(|[input, output]| Step { input, output }).collect();
    let now = Clock::now();
    let origin = Origin { holder: permit.holder, shown: false };
    let freed = stage.prefixes.keep((place, &terms), (steps, Some(origin), false), governor, now);
    stage.worker.forget(&freed.ok_or("no more room for beginnings of this requester")?);
    let found = stage.prefixes.find(stage.requester, &[beginning], Some(permit.holder), now);
    Ok((found.ok_or("it is gone again")?, bytes))
}

/// Reads the pieces of a state and gives them to the worker, each while the next one comes; the bytes that came.
async fn take_pieces(
    stream: &mut Stream,
    stage: &Stage,
    (permit, head): (&Permit, &Head),
    open: &OpenSession,
) -> Result<usize, String> {
    let worker = stage.worker.get();
    let (mut bytes, mut came) = (0, None);
    for (start, _) in head.pieces() {
        let next = read_piece(stream, (permit, head), start);
        let given = async {
            match came.take() {
                Some((start, packed)) => worker.import(open, packed, (start, head.raw_bytes)).await.map(drop),
                None => Ok(()),
            }
        };
        let (next, given) = tokio::join!(next, given);
        given.map_err(|fault| fault.to_string())?;
        let next = next?;
        bytes += next.len();
        came = Some((start, next));
    }
    let (start, packed) = came.ok_or("a state without bytes")?;
    match worker.import(open, packed, (start, head.raw_bytes)).await {
        Ok(true) => Ok(bytes),
        Ok(false) => Err("it is not whole".into()),
        Err(fault) => Err(fault.to_string()),
    }
}

async fn read_piece(
    stream: &mut Stream,
    (permit, head): (&Permit, &Head),
    start: u32,
) -> Result<Vec<u8>, String> {
    let mut piece = [0; PIECE_HEAD_LEN];
    let came = timeout(NEXT, stream.read_exact(&mut piece)).await;
    came.map_err(|_| "the next piece does not come")?.map_err(text)?;
    let piece = PieceHead::read(&piece).map_err(|malformed| malformed.to_string())?;
    let packed = read(stream, piece.packed_bytes as usize).await.map_err(text)?;
    match piece.is_of(permit, head, start, &packed) {
        true => Ok(packed),
        false => Err("a piece is not signed by its holder".into()),
    }
}

fn text(error: io::Error) -> String {
    error.to_string()
}

/// Bytes that no other node knows.
pub(super) fn random() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok().map(|()| bytes)
}

/// Whether a state that was fetched is computed here all the same, as drawn with `random`: so many are as `share` says.
pub(super) fn is_checked(share: f64, random: [u8; 16]) -> bool {
    let [a, b, c, d, ..] = random;
    f64::from(u32::from_le_bytes([a, b, c, d])) < share * 2f64.powi(32)
}

async fn read(stream: &mut Stream, bytes: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < bytes {
        let start = all.len();
        all.resize((start + READ).min(bytes), 0);
        timeout(STALL, stream.read_exact(&mut all[start..])).await??;
    }
    Ok(all)
}

/// What it takes to hand states out.
pub struct Lender {
    /// What was computed here.
    pub prefixes: Prefixes,
    /// Who signs.
    pub identity: Identity,
    /// What others may take.
    pub governor: Governor,
    /// Who has the states, by model.
    pub workers: Vec<(ModelId, Worker)>,
}

impl Lender {
    /// Answers one request for a state, from a node that its requester has named; another one finds the stream closed.
    pub async fn answer(self, from: NodeId, stream: Stream) {
        // A reader that is slower has given up.
        let limit = Duration::from_millis(u64::from(MAX_WORTH_MS));
        match timeout(limit, self.give(from, stream)).await {
            Ok(Ok(bytes)) => tracing::debug!(%from, bytes, "a state was handed out"),
            Ok(Err(why)) => tracing::debug!(%from, why, "a state was not handed out"),
            Err(_) => tracing::debug!(%from, "a state was not taken in time"),
        }
    }

    async fn give(self, from: NodeId, mut stream: Stream) -> Result<usize, String> {
        let taken = self.governor.take_for(from, Resource::Pages, TRANSFER_BYTES);
        let _permit = taken.map_err(|refused| refused.to_string())?;
        let mut request = [0; REQUEST_LEN];
        timeout(ASK, stream.read_exact(&mut request)).await.map_err(|_| "it asks nothing")?.map_err(text)?;
        let permit = Permit::requested(&request).map_err(|malformed| malformed.to_string())?;
        let meant = permit.reader == from && permit.holder == self.identity.node();
        if !meant || !permit.holds(clock::receipt_s()) {
            return Err("its requester does not permit it".into());
        }
        let positions = permit.beginning.positions;
        let lent = self.prefixes.lend(permit.requester, permit.beginning, Clock::now());
        let lent = lent.ok_or("it is not here")?;
        let worker = self.workers.iter().find(|(model, _)| *model == lent.model);
        let (_, worker) = worker.ok_or("its model is not here")?;
        #[cfg(debug_assertions)]
        if crate::cheat::is_mute() {
            std::future::pending::<()>().await;
        }
        let export = |start| worker.export((lent.place, lent.first), (positions, start));
        let first = export(0).await.map_err(|fault| fault.to_string())?;
        let raw_bytes = first.0;
        let steps = write_steps(lent.steps.iter().map(|step| [&step.input, &step.output]));
        let head = Head::sign(&self.identity, &permit, raw_bytes, &steps);
        stream.write_all(&head.write()).await.map_err(text)?;
        stream.write_all(&steps).await.map_err(text)?;
        let (mut bytes, mut ready) = (0, Some(first));
        let starts: Vec<u32> = head.pieces().map(|(start, _)| start).collect();
        for (at, start) in starts.iter().enumerate() {
            #[cfg_attr(not(debug_assertions), allow(unused_mut))]
            let (whole, mut packed) = ready.take().ok_or("a piece is missing")?;
            if whole != raw_bytes {
                return Err("it is another state now".into());
            }
            #[cfg(debug_assertions)]
            crate::cheat::spoil(&mut packed, *start, raw_bytes);
            bytes += packed.len();
            let next = async {
                match starts.get(at + 1) {
                    Some(start) => export(*start).await.map(Some),
                    None => Ok(None),
                }
            };
            let sent = self.send_piece(&mut stream, &head, (*start, packed));
            let (next, sent) = tokio::join!(next, sent);
            sent?;
            ready = next.map_err(|fault| fault.to_string())?;
        }
        stream.finish().await.map_err(|error| error.to_string())?;
        Ok(bytes)
    }

    async fn send_piece(
        &self,
        stream: &mut Stream,
        head: &Head,
        (start, packed): (u32, Vec<u8>),
    ) -> Result<(), String> {
        let piece = PieceHead::sign(&self.identity, head, start, &packed);
        stream.write_all(&piece.write()).await.map_err(text)?;
        #[cfg(debug_assertions)]
        if crate::cheat::drips() {
            for drop in packed.chunks(1 << 10) {
                stream.write_all(drop).await.map_err(text)?;
                stream.flush().await.map_err(text)?;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        stream.write_all(&packed).await.map_err(text)?;
        stream.flush().await.map_err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_states_are_checked_as_the_owner_said() {
        let checked = |share: f64| {
            let draws = (0..10_000u32).map(|draw| *blake3::hash(&draw.to_le_bytes()).as_bytes());
            draws.filter(|bytes| is_checked(share, bytes[..16].try_into().unwrap())).count()
        };
        assert_eq!((checked(0.0), checked(1.0)), (0, 10_000));
        // Four standard deviations of 10,000 draws.
        assert!(checked(0.2).abs_diff(2_000) < 160, "{}", checked(0.2));
    }
}
