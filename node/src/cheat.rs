//! Ways to lie, for tests of how lies are found. Not part of a release build.
//!
//! `SHOAL_CHEAT` names one: `ulp:N` changes the lowest bit of a value of every row from position N on, `zero:N` gives
//! zeros from there on, `garble:N` bytes that no encoder writes, `withhold` signs nothing.

use std::sync::OnceLock;

use p2p::codec::Wire;

enum Cheat {
    Ulp(u32),
    Zero(u32),
    Garble(u32),
    Withhold,
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
            Some(Cheat::Zero(first)) if position >= *first => row.fill(0),
            Some(Cheat::Garble(first)) if position >= *first => row.fill(0xff),
            _ => {}
        }
    }
    bytes
}

/// Whether to sign nothing.
pub fn withholds() -> bool {
    matches!(chosen(), Some(Cheat::Withhold))
}
