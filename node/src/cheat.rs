//! Ways to lie, for tests of how lies are found. Not part of a release build.
//!
//! `SHOAL_CHEAT` names one: `ulp:N` changes the lowest bit of a value of every row from position N on, `zero:N` gives
//! zeros from there on, `garble:N` bytes that no encoder writes, `withhold` signs nothing, `pages:N` changes bit N of every state that it hands out, counted around, `mute` hands out none and says nothing, `drip` hands them out a KiB at a time, `eager` takes states to be packed in no time, `claim` goes on from state that it has not. `approx` is no lie: it announces
//! a machine that computes other bits and gives rows a little off; `approx-zero:N` is one that cheats.

use std::sync::OnceLock;

use p2p::{codec::Wire, wire::pages::PIECE};

use crate::byte_planes;

enum Cheat {
    Ulp(u32),
    Zero(u32),
    Garble(u32),
    Withhold,
    Claim,
    Pages(u32),
    Mute,
    Drip,
    Eager,
    Approx,
    ApproxZero(u32),
}

fn chosen() -> Option<&'static Cheat> {
    static CHOSEN: OnceLock<Option<Cheat>> = OnceLock::new();
    let read = || {
        let text = std::env::var("SHOAL_CHEAT").ok()?;
        let (kind, from) = text.split_once(':').unwrap_or((&text, "0"));
        let from = from.parse().ok()?;
        match kind {
            "ulp" => Some(Cheat::Ulp(from)),
            "zero" => Some(Cheat::Zero(from)),
            "garble" => Some(Cheat::Garble(from)),
            "withhold" => Some(Cheat::Withhold),
            "claim" => Some(Cheat::Claim),
            "pages" => Some(Cheat::Pages(from)),
            "mute" => Some(Cheat::Mute),
            "drip" => Some(Cheat::Drip),
            "eager" => Some(Cheat::Eager),
            "approx" => Some(Cheat::Approx),
            "approx-zero" => Some(Cheat::ApproxZero(from)),
            _ => None,
        }
    };
    CHOSEN.get_or_init(read).as_ref()
}

/// Outputs, changed as told.
pub fn corrupted(from: u32, rows: u32, wire: Wire, mut bytes: Vec<u8>) -> Vec<u8> {
    let row = bytes.len() / rows.max(1) as usize;
    for (position, row) in (from..).zip(bytes.chunks_exact_mut(row.max(1))) {
        match chosen() {
            Some(Cheat::Ulp(first)) if position >= *first => {
                // Not the largest value of its block, which tells a block of Q8 that an encoder writes.
                let small = |at: &usize| row[*at].cast_signed().unsigned_abs() < 100;
                let at = if wire == Wire::Raw { 0 } else { (2..34).find(small).unwrap_or(2) };
                row[at] ^= 1;
            }
            Some(Cheat::Zero(first) | Cheat::ApproxZero(first)) if position >= *first => row.fill(0),
            Some(Cheat::Approx) if wire == Wire::Raw => near(row),
            Some(Cheat::Garble(first)) if position >= *first => row.fill(0xff),
            _ => {}
        }
    }
    bytes
}

/// A row as another machine might compute it: every other value larger by a part in five hundred.
fn near(row: &mut [u8]) {
    for value in row.chunks_exact_mut(8).filter_map(|pair| pair.first_chunk_mut::<4>()) {
        *value = (f32::from_le_bytes(*value) * 1.002).to_le_bytes();
    }
}

/// Whether to announce that this machine computes other bits.
pub fn is_approx() -> bool {
    matches!(chosen(), Some(Cheat::Approx | Cheat::ApproxZero(_)))
}

/// Whether to sign nothing.
pub fn withholds() -> bool {
    matches!(chosen(), Some(Cheat::Withhold))
}

/// Whether to go on from state that is not here.
pub fn claims() -> bool {
    matches!(chosen(), Some(Cheat::Claim))
}

/// Whether to take requests for states and answer none.
pub fn is_mute() -> bool {
    matches!(chosen(), Some(Cheat::Mute))
}

/// Whether to hand states out so slowly that they come too late, but never pausing for long.
pub fn drips() -> bool {
    matches!(chosen(), Some(Cheat::Drip))
}

/// Whether to price packing at nothing: what that takes in a build for tests would decide what a test does.
pub fn is_eager() -> bool {
    matches!(chosen(), Some(Cheat::Eager))
}

/// A packed piece of a state of `bytes` bytes that starts at byte `start`, changed as told: one bit behind the head of the snapshot, if it
/// is in this piece.
pub fn spoil(packed: &mut Vec<u8>, start: u32, bytes: u32) {
    const HEAD: usize = 32;
    let Some(Cheat::Pages(bit)) = chosen() else { return };
    let (start, bytes) = (start as usize, bytes as usize);
    let Some(mut raw) = byte_planes::unpack(packed, PIECE.min(bytes - start)) else { return };
    let bit = *bit as usize % (bytes.saturating_sub(HEAD) * 8).max(1);
    let Some(byte) = (HEAD + bit / 8).checked_sub(start).and_then(|at| raw.get_mut(at)) else { return };
    *byte ^= 1 << (bit % 8);
    if let Ok(spoilt) = byte_planes::pack(&raw) {
        *packed = spoilt;
    }
}
