//! How commands talk: JSON lines on standard output, progress on standard error, drawn where a person watches.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::{Error, Result};

/// Whether commands of this process say nothing.
static SILENT: AtomicBool = AtomicBool::new(false);

/// From now on commands of this process print nothing but errors: its standard output is for something else.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

fn is_silent() -> bool {
    SILENT.load(Ordering::Relaxed)
}

/// One JSON value on one line, flushed: a reader sees it at once.
pub fn json_line(value: &impl Serialize) -> Result<()> {
    if is_silent() {
        return Ok(());
    }
    // Through a value: numbers are written as everywhere else, whatever their type.
    let value = serde_json::to_value(value)?;
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &value)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}

/// Text as it is, flushed.
pub fn text(text: &str) -> Result<()> {
    if is_silent() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// A bar on standard error that appears where a person watches and the work has taken a moment; elsewhere, as in the log of
/// a job, a line every half minute.
pub fn progress(total: u64, what: &'static str, bytes: bool) -> ProgressBar {
    let bar = ProgressBar::new(total).with_message(what);
    if is_silent() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        return bar;
    }
    if !io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let watched = bar.downgrade();
        // Without the thread nothing is said, and all is done.
        let _ = thread::Builder::new().name("progress".into()).spawn(move || {
            loop {
                thread::sleep(QUIET);
                match watched.upgrade() {
                    Some(bar) if !bar.is_finished() => eprintln!("{}", line(&bar, bytes)),
                    _ => return,
                }
            }
        });
        return bar;
    }
    let counts = if bytes { "{bytes}/{total_bytes} {bytes_per_sec}" } else { "{pos}/{len} {per_sec}" };
    if let Ok(style) = ProgressStyle::with_template(&format!("{{msg}} [{{bar:30}}] {counts} eta {{eta}}")) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// How often a log hears of long work.
const QUIET: Duration = Duration::from_secs(30);

/// Estimates beyond it are of a clock that stood still.
const FORESEEN: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Where the work of a bar is.
fn line(bar: &ProgressBar, bytes: bool) -> String {
    let count = |n: u64| if bytes { human_bytes(n) } else { HumanCount(n).to_string() };
    let (done, all) = (count(bar.position()), bar.length().filter(|all| *all > 0).map(count));
    // Behind a pause of the whole machine an estimate says nothing until work has gone on for a while.
    let left = Some(bar.eta()).filter(|left| *left < FORESEEN);
    let left = left.map_or_else(String::new, |left| format!(", {} left", HumanDuration(left)));
    let of = all.map_or_else(String::new, |all| format!(" of {all}{left}"));
    format!("{}: {done}{of}", bar.message())
}

/// Work shorter than this is over before a person wonders.
const MOMENT: Duration = Duration::from_millis(600);

/// A word and the time it has taken, on standard error, once that is more than a moment; gone when it is dropped. For work
/// whose end cannot be foreseen: [`progress`] is for the other kind.
#[must_use = "it ends when it is dropped"]
pub struct Waiting(Option<(mpsc::SyncSender<()>, thread::JoinHandle<()>)>);

impl Waiting {
    /// Shown only where a person watches.
    pub fn start(what: &'static str) -> Self {
        if is_silent() || !io::stderr().is_terminal() {
            return Self(None);
        }
        let (over, wait) = mpsc::sync_channel::<()>(0);
        let show = move || {
            if wait.recv_timeout(MOMENT) == Err(mpsc::RecvTimeoutError::Timeout) {
                let bar = ProgressBar::new_spinner();
                if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                    bar.set_style(style);
                }
                bar.set_message(what);
                bar.enable_steady_tick(Duration::from_millis(200));
                // Nothing is ever sent: this ends when the other side is dropped.
                let _ = wait.recv();
                bar.finish_and_clear();
            }
        };
        Self(thread::Builder::new().spawn(show).ok().map(|shown| (over, shown)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some((over, shown)) = self.0.take() {
            drop(over);
            let _ = shown.join();
        }
    }
}

/// Prints a line like `println!`, but ends the function with an error when standard output is closed or full.
macro_rules! say {
    ($($words:tt)*) => { $crate::output::text(&(format!($($words)*) + "\n"))? };
}
pub(crate) use say;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C only raises a flag, so that the work at hand can end cleanly; the second one exits.
pub fn catch_interrupt() -> Result<()> {
    static CAUGHT: AtomicBool = AtomicBool::new(false);
    if CAUGHT.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    })
    .map_err(|e| Error::Io(io::Error::other(e)))
}

/// Whether Ctrl-C was pressed since the flag was last taken.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Takes the flag back, for commands that go on after an interruption.
pub fn clear_interrupt() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// A code as a QR code; `None` for one that is too long. Capitals take less room, and invites are read in either.
pub fn qr(code: &str) -> Option<qrcode::QrCode> {
    qrcode::QrCode::with_error_correction_level(code.to_uppercase(), qrcode::EcLevel::L).ok()
}

/// Bytes as a person reads them.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_hears_where_long_work_is() {
        let bar = ProgressBar::hidden();
        bar.set_message("converting");
        bar.inc(3 << 20);
        assert_eq!(line(&bar, true), "converting: 3.00 MiB");
        bar.set_length(4 << 20);
        let said = line(&bar, true);
        assert!(said.starts_with("converting: 3.00 MiB of 4.00 MiB, ") && said.ends_with(" left"), "{said}");
        bar.set_position(1_200);
        bar.set_length(4_000);
        assert!(line(&bar, false).starts_with("converting: 1,200 of 4,000, "));
    }
}
