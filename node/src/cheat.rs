//! Ways to lie, for tests of how lies are found. Not part of a release build.
//!
//! `SHOAL_CHEAT` names one: `ulp:N` changes the lowest bit of a value of every row from position N on, `zero:N` gives
//! zeros from there on, `withhold` signs nothing.

use std::sync::OnceLock;

use p2p::codec::Wire;

enum Cheat {
    Ulp(u32),
    Zero(u32),
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
                let at = if wire == Wire::Raw { 0 } else { row.len() - 1 };
                row[at] ^= 1;
            }
            Some(Cheat::Zero(first)) if position >= *first => row.fill(0),
            _ => {}
        }
    }
    bytes
}

/// Whether to sign nothing.
pub fn withholds() -> bool {
    matches!(chosen(), Some(Cheat::Withhold))
}
