//! The machine's models for the owner's page: what is here, what catalogs name, fetched and removed.
//!
//! Lists and catalogs are read here. Fetching and removing are the commands `shoal model pull` and `rm`, run as processes of
//! this program: through the running node where there is one, with every byte checked, and a pull that is stopped goes on
//! where it was. Only a name from a catalog is fetched and only one from the list removed, so no text of a request becomes
//! an option or an address.
//!
//! Bounds: one pull at a time; [`LINES`] unread lines of it, after which it waits.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use api::{
    inference::Failure,
    library::{Library, LibraryModel, PullEvent, PullLine},
};
use futures::{StreamExt, stream, stream::BoxStream};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    Result,
    catalog::{
        self,
        fit::{Machine, Peer},
    },
    confine::child::lock,
    content,
    control::{self, Question},
    library::{self, DEFAULT_MODEL, Entry},
    platform,
    reports::View,
};

/// Lines of a pull on their way to the page.
const LINES: usize = 64;
/// Longest line and longest complaint of a command.
const MAX_LINE: u64 = 64 << 10;
/// A node that does not answer so soon is busy with something else: then its peers are not told of.
const SOON: Duration = Duration::from_secs(2);
/// Pause between two looks whether a command that says nothing more has ended.
const LOOK: Duration = Duration::from_millis(20);

/// The models of one data folder.
#[derive(Debug)]
pub struct ModelShelf {
    home: PathBuf,
    /// What this machine can do, measured once.
    machine: OnceLock<Option<Machine>>,
    pulling: Arc<AtomicBool>,
}

fn broken(error: &crate::Error) -> Failure {
    tracing::warn!(%error, "the list of models cannot be read");
    Failure::Internal { why: "the list of models cannot be read; `shoal model list` says why".into() }
}

/// The peers of the node that runs with the data folder `home`, none where none runs; not within a runtime.
pub fn peers(home: &Path) -> Vec<Peer> {
    let ask = || async { timeout(SOON, control::one::<View>(home, &Question::View)).await.ok()?.ok() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let view = runtime.ok().and_then(|runtime| runtime.block_on(ask()));
    view.map(|view| view.peers).unwrap_or_default()
}

impl ModelShelf {
    /// The models below `home`.
    pub fn of(home: &Path) -> Self {
        Self { home: home.to_owned(), machine: OnceLock::new(), pulling: Arc::default() }
    }

    fn fit(&self, bytes: u64, peers: &[Peer]) -> String {
        let machine = self.machine.get_or_init(|| Machine::measure().ok());
        machine.map_or_else(String::new, |machine| machine.fit(bytes, peers).to_string())
    }

    fn entries(&self) -> Result<Vec<Entry>> {
        Ok(library::Library::load(&self.home)?.entries().to_vec())
    }

    /// Bytes of a model that are on this machine.
    fn here_bytes(&self, entry: &Entry) -> u64 {
        if !entry.path.is_file() {
            return 0;
        }
        let present = content::present(&self.home, entry).ok().flatten();
        present.map_or(entry.bytes, |groups| groups.bytes(entry.bytes))
    }

    fn command(&self, args: &[&str]) -> std::io::Result<Command> {
        let mut command = Command::new(platform::program()?);
        command.args(args).env("SHOAL_HOME", &self.home).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// What a command that failed says, as a sentence.
fn complaint(text: &str) -> String {
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it ended");
    last.trim_start_matches("error: ").to_owned()
}

impl Library for ModelShelf {
    fn here(&self) -> std::result::Result<Vec<LibraryModel>, Failure> {
        let ((_, embedded), peers) = (library::embedded(), peers(&self.home));
        let row = |name: &str, bytes: u64, here_bytes: u64, removable: bool| LibraryModel {
            name: name.to_owned(),
            title: String::new(),
            bytes,
            here_bytes,
            license: String::new(),
            fit: self.fit(bytes, &peers),
            removable,
        };
        let entries = self.entries().map_err(|error| broken(&error))?;
        let listed = entries.iter().map(|entry| row(&entry.name, entry.bytes, self.here_bytes(entry), true));
        Ok(std::iter::once(row(DEFAULT_MODEL, embedded, embedded, false)).chain(listed).collect())
    }

    fn search(&self, words: &str) -> std::result::Result<Vec<LibraryModel>, Failure> {
        let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let known = catalog::known(&self.home).map_err(|error| broken(&error))?;
        let entries = self.entries().map_err(|error| broken(&error))?;
        let peers = peers(&self.home);
        let found = catalog::search(&known, &words).into_iter().map(|model| {
            let entry = entries.iter().find(|entry| entry.id == model.id);
            LibraryModel {
                name: model.name.clone(),
                title: model.title.clone(),
                bytes: model.bytes,
                here_bytes: entry.map_or(0, |entry| self.here_bytes(entry)),
                license: model.license.clone(),
                fit: self.fit(model.bytes, &peers),
                removable: entry.is_some(),
            }
        });
        Ok(found.collect())
    }

    fn remove(&self, name: &str) -> std::result::Result<(), Failure> {
        let entries = self.entries().map_err(|error| broken(&error))?;
        if !entries.iter().any(|entry| entry.name == name) {
            return Err(Failure::NoModel { name: name.to_owned() });
        }
        let ran =
            self.command(&["model", "rm", "--json", "--", name]).and_then(|mut command| command.output());
        match ran {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(Failure::Internal { why: complaint(&String::from_utf8_lossy(&output.stderr)) }),
            Err(error) => Err(Failure::Internal { why: format!("the model cannot be removed: {error}") }),
        }
    }

    fn pull(&self, name: &str) -> std::result::Result<BoxStream<'static, PullLine>, Failure> {
        let known = catalog::known(&self.home).map_err(|error| broken(&error))?;
        if catalog::find(&known, name).is_none() {
            return Err(Failure::NoModel { name: name.to_owned() });
        }
        let turn = Turn::take(&self.pulling).ok_or_else(|| Failure::Busy {
            why: "another model is being fetched; wait for it or stop it".into(),
            retry_after_s: 10,
        })?;
        let command = self.command(&["model", "pull", "--yes", "--json", "--", name]);
        let child = command.and_then(|mut command| command.spawn());
        let child =
            child.map_err(|error| Failure::Internal { why: format!("it cannot be fetched: {error}") })?;
        Ok(follow(child, turn))
    }
}

/// The lines of a command, which ends with their reader.
fn follow(child: Child, turn: Turn) -> BoxStream<'static, PullLine> {
    let (sender, lines) = mpsc::channel(LINES);
    let child = Arc::new(Mutex::new(child));
    let stop = Stop(child.clone());
    thread::spawn(move || tell(&child, &sender, turn));
    let lines = stream::unfold((lines, stop), |(mut lines, stop)| async move {
        Some((lines.recv().await?, (lines, stop)))
    });
    lines.boxed()
}

/// The right to fetch, given back when it is dropped.
struct Turn(Arc<AtomicBool>);

impl Turn {
    fn take(pulling: &Arc<AtomicBool>) -> Option<Self> {
        (!pulling.swap(true, Ordering::AcqRel)).then(|| Self(pulling.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Stops a command with its reader: what it has fetched is on the disk.
struct Stop(Arc<Mutex<Child>>);

impl Drop for Stop {
    fn drop(&mut self) {
        // One that has ended needs no end.
        let _ = lock(&self.0).kill();
    }
}

/// Passes a command's lines on until it ends or the reader is gone.
fn tell(child: &Mutex<Child>, lines: &mpsc::Sender<PullLine>, _turn: Turn) {
    let (out, errors) = {
        let mut child = lock(child);
        (child.stdout.take(), child.stderr.take())
    };
    // Read beside the lines: a command that complains at length must not wait for a reader of it.
    let said = errors.map(|errors| thread::spawn(move || tail(errors)));
    let mut done = false;
    let mut out = out.map(BufReader::new);
    while let Some(out) = &mut out {
        let mut line = String::new();
        match out.by_ref().take(MAX_LINE).read_line(&mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let Ok(line) = serde_json::from_str::<PullLine>(&line) else { continue };
        done |= line.event == PullEvent::Done;
        if lines.blocking_send(line).is_err() {
            break;
        }
    }
    // Its reader may go while it ends: the lock is free between two looks.
    let is_over = || !matches!(lock(child).try_wait(), Ok(None));
    while !is_over() {
        if lines.is_closed() {
            let _ = lock(child).kill();
        }
        thread::sleep(LOOK);
    }
    if !done && !lines.is_closed() {
        let said = said.and_then(|said| said.join().ok()).unwrap_or_default();
        let _ = lines.blocking_send(PullLine::failed(complaint(&said)));
    }
}

/// The end of a text, at most [`MAX_LINE`] bytes of it.
fn tail(mut from: impl Read) -> String {
    let (mut end, mut part) = (VecDeque::new(), [0; 4096]);
    while let Ok(read @ 1..) = from.read(&mut part) {
        end.extend(&part[..read]);
        end.drain(..end.len().saturating_sub(MAX_LINE as usize));
    }
    String::from_utf8_lossy(end.make_contiguous()).into_owned()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn only_names_from_lists_reach_a_command() {
        let home = TempDir::new().unwrap();
        let shelf = ModelShelf::of(home.path());
        let here = shelf.here().unwrap();
        assert_eq!(
            here.iter().map(|model| (model.name.as_str(), model.removable)).collect::<Vec<_>>(),
            [(DEFAULT_MODEL, false)]
        );
        assert!(here[0].here_bytes == here[0].bytes && here[0].bytes > 0 && !here[0].fit.is_empty());
        let found = shelf.search("smollm2").unwrap();
        assert!(
            found.iter().all(|model| model.here_bytes == 0 && !model.license.is_empty()) && !found.is_empty()
        );
        assert!(shelf.search("no such model").unwrap().is_empty());
        for name in ["nosuch", "--help", "https://example.org/x.gguf", DEFAULT_MODEL] {
            assert!(matches!(shelf.remove(name), Err(Failure::NoModel { .. })), "{name}");
            assert!(matches!(shelf.pull(name), Err(Failure::NoModel { .. })), "{name}");
        }
        let turn = Turn::take(&shelf.pulling).unwrap();
        assert!(matches!(shelf.pull(&found[0].name), Err(Failure::Busy { .. })), "one at a time");
        drop(turn);
        assert!(Turn::take(&shelf.pulling).is_some());
    }

    fn command(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    #[test]
    fn a_command_ends_with_its_reader() {
        let pulling = Arc::<AtomicBool>::default();
        let wait = "echo '{\"event\": \"moved\"}'; exec sleep 3600";
        // One that goes on, and one that has closed its output and goes on.
        for script in [wait.to_owned(), wait.replace("exec sleep", "exec >&- 2>&-; exec sleep")] {
            let mut lines = follow(command(&script), Turn::take(&pulling).unwrap());
            let first = futures::executor::block_on(lines.next()).unwrap();
            assert_eq!(first.event, PullEvent::Moved);
            drop(lines);
            while pulling.load(Ordering::Acquire) {
                thread::sleep(LOOK);
            }
        }
    }

    #[test]
    fn lines_of_a_pull_are_passed_on_as_they_are() {
        use crate::reports;
        let source = || "a".to_owned();
        for line in [
            reports::PullLine::Started { total_bytes: 9, have_bytes: 1 },
            reports::PullLine::Joined { source: source() },
            reports::PullLine::Moved { source: source(), done_bytes: 2 },
            reports::PullLine::Retrying { source: source(), why: "slow".into() },
            reports::PullLine::Dropped { source: source(), why: "late".into(), lied: true },
            reports::PullLine::Plan {
                plan: reports::PullPlan::default(),
                peers: Some(2),
                license: None,
                end: false,
            },
        ] {
            let written = serde_json::to_value(&line).unwrap();
            let read: PullLine = serde_json::from_value(written.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), written);
        }
    }

    #[test]
    fn the_end_of_a_long_complaint_is_told() {
        let script = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2; echo 'error: no room' >&2; exit 1";
        let turn = Turn::take(&Arc::default()).unwrap();
        let lines: Vec<_> = futures::executor::block_on(follow(command(script), turn).collect());
        assert_eq!(lines, [PullLine::failed("no room".into())]);
        let written = serde_json::to_value(&lines[0]).unwrap();
        assert_eq!(written, serde_json::json!({"event": "failed", "why": "no room"}));
    }
}
