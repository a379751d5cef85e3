//! Ways a device fails, for tests of what happens then. Not part of a release build.
//!
//! `SHOAL_GPU_FAULT` names one as `WHAT:WHEN`, where WHEN is the position of a session from which on a pass meets it, or `load`:
//! `lost` takes the device away, as a driver that resets it does; `hang` calls a driver that does not come back; `crash` ends the
//! process without a word. `wrong:N` gives spot check N of the self-test and all after it another hash. `measure` has `--device
//! auto` try a software device, too. Only workers on GPUs meet any of them.

use std::{process, sync::OnceLock};

use shard::{executor::Device, golden::Check};

struct Fault {
    what: String,
    when: String,
}

fn chosen() -> Option<&'static Fault> {
    static CHOSEN: OnceLock<Option<Fault>> = OnceLock::new();
    let read = || {
        let text = std::env::var("SHOAL_GPU_FAULT").ok()?;
        let (what, when) = text.split_once(':')?;
        Some(Fault { what: what.to_owned(), when: when.to_owned() })
    };
    CHOSEN.get_or_init(read).as_ref()
}

/// Whether spot checks come sooner, because one of them is to fail.
pub(super) fn is_hasty() -> bool {
    chosen().is_some_and(|fault| fault.what == "wrong")
}

/// Whether `--device auto` tries software devices.
pub(super) fn tries_software() -> bool {
    std::env::var("SHOAL_GPU_FAULT").is_ok_and(|fault| fault == "measure")
}

/// The device is open and the model is about to be loaded (`None`), or a pass of a session at this position begins.
pub(super) fn meet(device: &Device, position: Option<u32>) {
    let Some(Fault { what, when }) = chosen().filter(|_| device.cpu().is_none()) else { return };
    let is_due = match position {
        None => when == "load",
        Some(position) => when.parse().is_ok_and(|from: u32| position >= from),
    };
    match what.as_str() {
        "lost" if is_due => device.destroy(),
        "hang" if is_due => {
            #[cfg(feature = "gpu")]
            let _call = shard::executor::gpu::Call::begin(std::time::Duration::ZERO);
            loop {
                std::thread::park();
            }
        }
        "crash" if is_due => process::abort(),
        _ => {}
    }
}

/// What spot check `number` found, as the fault has it.
pub(super) fn spoil(number: u64, check: &mut Check) {
    if chosen().is_some_and(|fault| {
        fault.what == "wrong" && fault.when.parse().is_ok_and(|from: u64| number >= from)
    }) {
        check.hash.insert(0, 'x');
    }
}
