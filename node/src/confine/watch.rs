//! Ends a process whose driver hangs.
//!
//! The thread that called the driver cannot be interrupted, so another one looks whether a call lasts longer than it may
//! ([`executor::overdue`]): while devices are looked for and opened, while the model is loaded and checked, in every pass, and
//! where states are copied. It says so, and some seconds later ends the process, unless the daemon has done so by then.

use std::{io, thread, time::Duration};

use shard::executor;

/// How often it looks.
const LOOK: Duration = Duration::from_millis(200);
/// The daemon has this long to read the last words.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Watches over this process, which computes on `device`, for as long as it lives; `say` says why it ends. Processors do not hang.
///
/// # Errors
/// Those of the system, which starts a thread.
pub fn start(device: &str, say: impl FnOnce(String) + Send + 'static) -> io::Result<()> {
    if super::computes_on_processors(device) {
        return Ok(());
    }
    thread::Builder::new().name("watch".into()).spawn(move || {
        let waited = loop {
            match executor::overdue() {
                Some(waited) => break waited,
                None => thread::sleep(LOOK),
            }
        };
        say(format!("its driver did not come back from a call within {} s", waited.as_secs()));
        thread::sleep(LAST_WORDS);
        // Not by `exit`: what a driver does at the end of a process may wait for the thread that hangs in it.
        die();
    })?;
    Ok(())
}

#[cfg(unix)]
fn die() {
    use rustix::process::{Signal, getpid, kill_process};
    let _ = kill_process(getpid(), Signal::KILL);
}

#[cfg(not(unix))]
fn die() {
    std::process::abort();
}
