//! What a running answer needs to be continued after a crash of the node that asked.
//!
//! The requester holds the truth of a session, so its death would lose the answer. While one runs, a file in the data
//! folder (`journal/NAME`, readable by its owner only) holds the question with its parameters and seed, and every token
//! before it is shown. When the answer is whole, or the user stopped it, the file is deleted. After a crash `shoal resume`
//! computes the prompt and the tokens again as prefill and goes on: chance depends on seed and position, so the text is
//! the one that nothing would have interrupted.
//!
//! ```text
//! = 0f1e2d3c4b5a69788796a5b4c3d2e1f0        a salt, in hex
//! Xk3v0mS1q8bKZ3..                          the question, encrypted, in Base64
//! 9bQv2xJm..                                a token and the text it made certain
//! ```
//!
//! What was asked and said is encrypted with a key of the node's identity (`sealed.rs`); a continuation begins with another
//! salt.
//!
//! A file is read as far as it is whole: cut or damaged anywhere, it gives a beginning of what was written. A token is one
//! write; the system is asked to put it on the disk every [`SYNC_TOKENS`] tokens or [`SYNC_AFTER`]. So a killed process loses
//! nothing, a power cut the last moment. A running answer holds its file's lock: a file that is not locked is one that was
//! interrupted.
//!
//! Limits: [`MAX_BYTES`] a file, beyond which the answer is kept no longer; [`MOST`] files, the oldest go first; none older
//! than [`KEPT_FOR`]. A disk that is full costs the continuation, never the answer. An answer that was interrupted between
//! its last token and its end, both written by one process within microseconds, may not be continued when a stop string
//! ended it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    events::PromptRequest,
    platform::files::OwnerOnly,
    sealed::{self, SALT, SALT_BYTES, Seal},
};

/// Longest file: a prompt of 4 MiB, and a million tokens.
pub const MAX_BYTES: u64 = 32 << 20;
/// Most interrupted answers kept; one more and the oldest is deleted.
pub const MOST: usize = 32;
/// An interrupted answer is deleted after this: it holds what the user wrote.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 3_600);
/// Tokens after which the disk is told to have them.
const SYNC_TOKENS: u32 = 16;
/// Time after which the disk is told to have what there is.
const SYNC_AFTER: Duration = Duration::from_millis(250);
const VERSION: u32 = 2;
/// What the identity's secret for journals is called.
const PURPOSE: &str = "shoal 2026 answers that were interrupted";
/// Another process that looks whether a file is locked holds it this long at most.
const GLANCE: Duration = Duration::from_millis(20);
/// Times a lock is tried before its holder is believed to be a running answer.
const TRIES: u32 = 5;

/// The question of an answer, as it must be asked again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Begun {
    version: u32,
    /// What was asked.
    pub ask: PromptRequest,
    /// The model, by content in hex; by name when another node conducts.
    pub model: String,
    /// Boundaries at which activations are rounded; `None` when the session's cuts decide.
    pub rounding: Option<Vec<u32>>,
    /// When, seconds since 1970.
    pub at_s: u64,
}

impl Begun {
    /// A question asked now.
    pub fn now(ask: PromptRequest, model: String, rounding: Option<Vec<u32>>) -> Self {
        let at_s = crate::clock::unix_s();
        Self { version: VERSION, ask, model, rounding, at_s }
    }
}

/// An interrupted answer.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its name: the session it began as.
    pub name: String,
    /// The question.
    pub begun: Begun,
    /// Tokens said.
    pub ids: Vec<u32>,
    /// Text said.
    pub text: String,
    /// The part of the text that each token made certain.
    pub pieces: Vec<String>,
    /// Bytes of the file that are whole, and their lines.
    whole: (u64, u64),
}

/// The secret of the node whose data folder this is.
fn secret(home: &Path) -> Result<[u8; 32]> {
    sealed::secret(home, PURPOSE)
}

/// The file of a running answer. Dropping it keeps the file, unlocked.
pub struct Journal {
    file: File,
    path: PathBuf,
    seal: Seal,
    lines: u64,
    bytes: u64,
    unsynced: u32,
    synced: Instant,
    broken: bool,
}

/// Where a node with this data folder keeps running answers.
fn folder(home: &Path) -> PathBuf {
    home.join("journal")
}

/// Names are sessions in hex: nothing else is opened.
fn named(home: &Path, name: &str) -> Result<PathBuf> {
    let hex = !name.is_empty() && name.len() <= 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    if hex {
        Ok(folder(home).join(name))
    } else {
        Err(Error::usage(format!("\"{name}\" is no answer's name; `shoal resume --list` shows them")))
    }
}

fn lock(file: &File) -> Result<bool> {
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => thread::sleep(GLANCE),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Ok(false)
}

impl Journal {
    /// Begins the file of an answer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(home: &Path, name: &str, begun: &Begun) -> Result<Self> {
        let path = named(home, name)?;
        fs::DirBuilder::new().recursive(true).owner_only().create(folder(home))?;
        tidy(home)?;
        let file = OpenOptions::new().append(true).create_new(true).owner_only().open(&path)?;
        if !lock(&file)? {
            return Err(Error::Failed("the file of the answer is in use".into()));
        }
        let mut journal = Self::on(file, path, home, name, (0, 0))?;
        journal.line(&serde_json::to_string(begun)?)?;
        journal.sync();
        p2p::blob::sparse::sync_folder(&folder(home))?;
        Ok(journal)
    }

    /// Goes on in the file of an interrupted answer: the one that was interrupted last when no name, or a beginning of
    /// one, says which.
    ///
    /// # Errors
    /// When there is none, or it is still running.
    pub fn resume(home: &Path, name: Option<&str>) -> Result<(Self, Kept)> {
        let kept = unfinished(home);
        // What was asked over HTTP is continued by asking the same again.
        let here = |kept: &Kept| !kept.begun.ask.api.over_http;
        let wanted =
            kept.into_iter().find(|kept| name.map_or_else(|| here(kept), |name| kept.name.starts_with(name)));
        let Some(kept) = wanted else {
            let running = name.map(|name| named(home, name)).transpose()?.is_some_and(|path| path.exists());
            return Err(Error::usage(if running {
                "this answer is still running, or its file is damaged from the beginning"
            } else {
                "there is no interrupted answer to continue; `shoal resume --list` shows those there are"
            }));
        };
        let path = named(home, &kept.name)?;
        let file = OpenOptions::new().append(true).open(&path)?;
        if !lock(&file)? {
            return Err(Error::usage("this answer is being continued already"));
        }
        // What follows the whole part was never finished.
        file.set_len(kept.whole.0)?;
        Ok((Self::on(file, path, home, &kept.name, kept.whole)?, kept))
    }

    /// A file that goes on after so many bytes and lines, under a salt of its own.
    fn on(file: File, path: PathBuf, home: &Path, name: &str, (bytes, lines): (u64, u64)) -> Result<Self> {
        let salt = sealed::salt()?;
        let seal = Seal::of(&secret(home)?, name, &salt);
        let synced = Instant::now();
        let mut journal = Self { file, path, seal, lines, bytes, unsynced: 0, synced, broken: false };
        journal.write(&format!("{SALT}{}", HEXLOWER.encode(&salt)))?;
        Ok(journal)
    }

    /// Goes on in the file of an interrupted answer to the same question, the latest if there are several.
    pub fn again(home: &Path, same: impl Fn(&Begun) -> bool) -> Option<(Self, Kept)> {
        let kept = unfinished(home).into_iter().find(|kept| same(&kept.begun))?;
        Self::resume(home, Some(&kept.name)).ok()
    }

    /// Writes a token and the text it made certain, before anybody sees it.
    pub fn token(&mut self, id: u32, text: &str) {
        if self.broken {
            return;
        }
        let written =
            serde_json::to_string(&(id, text)).map_err(Error::from).and_then(|line| self.line(&line));
        if let Err(error) = written {
            tracing::warn!(%error, "the answer goes on, but could not be continued after a crash");
            self.broken = true;
            let _ = fs::remove_file(&self.path);
        }
        self.unsynced += 1;
        if self.unsynced >= SYNC_TOKENS || self.synced.elapsed() >= SYNC_AFTER {
            self.sync();
        }
    }

    fn line(&mut self, payload: &str) -> Result<()> {
        let sealed = self.seal.close(self.lines, payload)?;
        self.write(&sealed)
    }

    fn write(&mut self, line: &str) -> Result<()> {
        let line = format!("{line}\n");
        if self.bytes + line.len() as u64 > MAX_BYTES {
            return Err(Error::Failed("the answer is too long to be kept".into()));
        }
        self.file.write_all(line.as_bytes())?;
        (self.lines, self.bytes) = (self.lines + 1, self.bytes + line.len() as u64);
        Ok(())
    }

    /// Has the disk write it, in the background: an answer does not wait for a disk.
    fn sync(&mut self) {
        (self.unsynced, self.synced) = (0, Instant::now());
        let Ok(file) = self.file.try_clone() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || file.sync_data())),
            Err(_) => drop(file.sync_data()),
        }
    }

    /// The answer is whole, or not wanted any more.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Answers that were interrupted, the latest first.
pub fn unfinished(home: &Path) -> Vec<Kept> {
    let mut entries = fs::read_dir(folder(home)).into_iter().flatten().flatten().peekable();
    if entries.peek().is_none() {
        return Vec::new();
    }
    let Ok(secret) = secret(home) else { return Vec::new() };
    let mut kept: Vec<(SystemTime, Kept)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let mut file = File::open(named(home, &name).ok()?).ok()?;
            // A running answer holds the lock.
            file.try_lock_shared().ok()?;
            let touched = file.metadata().and_then(|meta| meta.modified()).ok()?;
            Some((touched, read(&mut file, name, &secret).ok()??))
        })
        .collect();
    kept.sort_by_key(|entry| std::cmp::Reverse(entry.0));
    kept.into_iter().map(|entry| entry.1).collect()
}

/// Deletes interrupted answers: those whose names begin so, all when `name` is `None`. How many.
pub fn forget(home: &Path, name: Option<&str>) -> usize {
    let matching =
        unfinished(home).into_iter().filter(|kept| name.is_none_or(|name| kept.name.starts_with(name)));
    matching.filter(|kept| named(home, &kept.name).is_ok_and(|path| fs::remove_file(path).is_ok())).count()
}

/// Deletes what is too old, unreadable or too much.
pub fn tidy(home: &Path) -> Result<()> {
    let mut idle = Vec::new();
    for entry in fs::read_dir(folder(home)).into_iter().flatten().flatten() {
        let file = File::open(entry.path())?;
        if file.try_lock_shared().is_ok() {
            idle.push((file.metadata()?.modified()?, entry.path()));
        }
    }
    idle.sort_by_key(|entry| std::cmp::Reverse(entry.0));
    let old = |at: &SystemTime| at.elapsed().is_ok_and(|age| age > KEPT_FOR);
    for (rank, (at, path)) in idle.into_iter().enumerate() {
        if rank + 1 >= MOST || old(&at) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Reads a file as far as it is whole; `None` when not even its question is.
fn read(file: &mut File, name: String, secret: &[u8; 32]) -> io::Result<Option<Kept>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(parse(&bytes, name, secret))
}

fn parse(bytes: &[u8], name: String, secret: &[u8; 32]) -> Option<Kept> {
    let (mut seal, mut lines, mut at) = (None, 0, 0);
    let called = name.clone();
    let mut next = || {
        loop {
            let line = &bytes[at..];
            let line = &line[..line.iter().position(|byte| *byte == b'\n')?];
            let number = lines;
            (lines, at) = (lines + 1, at + line.len() + 1);
            if let Some(salt) = line.strip_prefix(SALT.as_bytes()) {
                let salt = HEXLOWER.decode(salt).ok().filter(|salt| salt.len() == SALT_BYTES)?;
                seal = Some(Seal::of(secret, &called, &salt));
                continue;
            }
            let payload = seal.as_ref()?.open(number, line)?;
            return Some((payload, (at as u64, lines)));
        }
    };
    let (first, whole) = next()?;
    let begun: Begun =
        serde_json::from_slice(&first).ok().filter(|begun: &Begun| begun.version == VERSION)?;
    let mut kept = Kept { name, begun, ids: Vec::new(), text: String::new(), pieces: Vec::new(), whole };
    while let Some((payload, whole)) = next() {
        let Ok((id, text)) = serde_json::from_slice::<(u32, String)>(&payload) else { break };
        kept.ids.push(id);
        kept.text.push_str(&text);
        kept.pieces.push(text);
        kept.whole = whole;
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use serde_json::json;
    use tempfile::TempDir;

    use super::{Begun, Journal, MOST, folder, forget, parse, secret, unfinished};
    use crate::events::PromptRequest;

    fn begun() -> Begun {
        let ask: PromptRequest = serde_json::from_value(json!({
            "prompt": "a fox", "mode": "boomerang", "wire": "q8", "head": 1, "tail": 1, "sampling": {}, "seed": 7,
            "max_tokens": 9,
        }))
        .unwrap();
        Begun::now(ask, "00ff".into(), Some(vec![2, 5]))
    }

    fn written(home: &Path, name: &str) -> Journal {
        let mut journal = Journal::create(home, name, &begun()).unwrap();
        [(5, "One"), (6, " é"), (7, ""), (8, "\n\"two\"")]
            .iter()
            .for_each(|(id, text)| journal.token(*id, text));
        journal
    }

    #[test]
    fn what_was_written_is_read_and_only_when_no_process_runs_it() {
        let home = TempDir::new().unwrap();
        let journal = written(home.path(), "ab12");
        assert!(unfinished(home.path()).is_empty(), "a running answer is not an interrupted one");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder(home.path())), mode(&folder(home.path()).join("ab12"))), (0o700, 0o600));
        drop(journal);
        let (mut journal, kept) = Journal::resume(home.path(), Some("ab")).unwrap();
        assert_eq!((kept.ids, kept.text.as_str()), (vec![5, 6, 7, 8], "One é\n\"two\""));
        assert_eq!((kept.begun.ask.seed, kept.begun.rounding), (7, Some(vec![2, 5])));
        journal.token(9, "!");
        assert!(Journal::resume(home.path(), None).is_err());
        drop(journal);
        let (journal, kept) = Journal::resume(home.path(), None).unwrap();
        assert_eq!(kept.ids, [5, 6, 7, 8, 9]);
        journal.remove();
        assert!(Journal::resume(home.path(), None).is_err() && unfinished(home.path()).is_empty());
        assert!(Journal::resume(home.path(), Some("../ab12")).is_err());
    }

    /// Cut or damaged anywhere, it gives a beginning of what was written, and goes on from there.
    #[test]
    fn a_damaged_file_gives_a_beginning() {
        let home = TempDir::new().unwrap();
        drop(written(home.path(), "ab12"));
        let path = folder(home.path()).join("ab12");
        let whole = fs::read(&path).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        assert!(!text.contains("fox") && !text.contains("One"), "{text}");
        let (ids, secret) = ([5, 6, 7, 8], secret(home.path()).unwrap());
        assert!(parse(&whole, "ab13".into(), &secret).is_none(), "under another name");
        assert!(parse(&whole, "ab12".into(), &[1; 32]).is_none(), "with another key");
        let mut lengths = std::collections::BTreeSet::new();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            for bytes in [&whole[..at], &damaged] {
                let Some(kept) = parse(bytes, "ab12".into(), &secret) else { continue };
                assert!(ids.starts_with(&kept.ids), "byte {at}: {:?}", kept.ids);
                assert!(kept.ids.len() < 4, "byte {at} does not matter");
                lengths.insert(kept.ids.len());
            }
        }
        assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        fs::write(&path, &whole[..whole.len() - 4]).unwrap();
        let (mut journal, kept) = Journal::resume(home.path(), None).unwrap();
        assert_eq!(kept.ids, [5, 6, 7]);
        journal.token(8, "again");
        drop(journal);
        assert_eq!(unfinished(home.path())[0].ids, ids);
    }

    #[test]
    fn there_are_never_more_than_so_many() {
        let home = TempDir::new().unwrap();
        (0..MOST + 5).for_each(|n| drop(written(home.path(), &format!("{n:04x}"))));
        assert_eq!(unfinished(home.path()).len(), MOST);
        assert_eq!(forget(home.path(), Some("002")), 5);
        assert_eq!(forget(home.path(), None), MOST - 5);
        assert!(unfinished(home.path()).is_empty());
    }
}
