//! Ways a device fails, for tests of what happens then. Not part of a release build.
//!
//! `SHOAL_GPU_FAULT` names one, with the position of a session from which on a pass meets it: `lost:N` takes the device away, as
//! a driver that resets it does, `hang:N` gives passes no time. `wrong:N` makes repeated
//! checks of the self-test fail from number N on.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use super::Gpu;

enum Fault {
    Lost,
    Hang,
    Wrong,
}

fn chosen() -> Option<&'static (Fault, usize)> {
    static CHOSEN: OnceLock<Option<(Fault, usize)>> = OnceLock::new();
    let read = || {
        let text = std::env::var("SHOAL_GPU_FAULT").ok()?;
        let (kind, from) = text.split_once(':')?;
        let fault = match kind {
            "lost" => Fault::Lost,
            "hang" => Fault::Hang,
            "wrong" => Fault::Wrong,
            _ => return None,
        };
        Some((fault, from.parse().ok()?))
    };
    CHOSEN.get_or_init(read).as_ref()
}

/// A pass whose last session is at `position` begins.
pub(super) fn meet(gpu: &Gpu, position: Option<usize>) {
    let Some((fault, from)) = chosen() else { return };
    if TESTING.load(Relaxed) || position.is_none_or(|position| position < *from) {
        return;
    }
    match fault {
        Fault::Lost => gpu.lose(),
        Fault::Hang => gpu.hurry(),
        Fault::Wrong => {}
    }
}

/// Whether passes are those of the self-test, which meet nothing.
static TESTING: AtomicBool = AtomicBool::new(false);

/// Runs the self-test.
pub(crate) fn without_faults<T>(test: impl FnOnce() -> T) -> T {
    TESTING.store(true, Relaxed);
    let outcome = test();
    TESTING.store(false, Relaxed);
    outcome
}

/// Whether check `number` fails.
pub(crate) fn is_wrong(number: u64) -> bool {
    matches!(chosen(), Some((Fault::Wrong, from)) if number >= *from as u64)
}
