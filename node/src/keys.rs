//! Keys of other people to this node's API: named, counted, taken back; and the log of what was answered, without a word of it.
//!
//! ```text
//! HOME/api-keys.json         [{"name", "hash", "tokens_per_day", "created_s", "revoked"}], hash = BLAKE3 of the key, in hex
//! HOME/api-keys.used.json    {"day": days since 1970, "tokens": {NAME: N}}
//! HOME/audit.jsonl           one line per answer: time, key, model, tokens, outcome; at MAX_AUDIT it becomes audit.1.jsonl
//! ```
//!
//! A key has 256 bits of chance, so that its plain hash tells nothing of it; it is shown once. The list is read again when its
//! file changes: a key that is taken back opens nothing from the next request on. Days begin at midnight UTC.
//!
//! Several servers of one folder count together: what was taken is added to the file under `api-keys.lock`, and a server reads the
//! file again when another has changed it. A thread of its own writes, so that an answer never waits for a disk. The files belong to
//! the owner of the folder, so that a service can read the key that root made for it; links that lie there are not followed.
//!
//! Limits: [`MAX_KEYS`] keys; [`MAX_LINES`] lines wait for the disk, those beyond are left out of the log and counted there.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use api::keys::Taken;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    Error, Result,
    platform::{
        Stamp,
        files::{self, NoLinks, OwnerOnly},
    },
};

/// Most keys of a node, those taken back included.
pub const MAX_KEYS: usize = 1_024;
/// A log of answers that is longer is put aside.
const MAX_AUDIT: u64 = 16 << 20;
/// What could not be written is tried again after this, or when more is taken.
const AGAIN: Duration = Duration::from_secs(5);
/// Lines of the log that wait for the disk.
const MAX_LINES: usize = 4_096;
/// How a key begins, so that people and scanners of secrets know it.
const PREFIX: &str = "shoal-";
/// Seconds of a day.
const DAY_S: u64 = 86_400;

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Whose it is.
    pub name: String,
    /// BLAKE3 of the secret, in hex.
    pub hash: String,
    /// Most tokens a day, of prompts and answers; `None` for no bound.
    pub tokens_per_day: Option<u64>,
    /// When it was made, in seconds of Unix time.
    pub created_s: u64,
    /// Whether it opens nothing any more.
    pub revoked: bool,
}

/// What the keys took today.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Used {
    day: u64,
    tokens: BTreeMap<String, u64>,
}

fn list_file(home: &Path) -> PathBuf {
    home.join("api-keys.json")
}

fn used_file(home: &Path) -> PathBuf {
    home.join("api-keys.used.json")
}

/// Seconds of Unix time.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn read<T: for<'a> Deserialize<'a> + Default>(file: &Path) -> Result<T> {
    match fs::read(file) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|_| {
            Error::usage(format!("{} is damaged; move it away and make the keys again", file.display()))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(shard::Error::io(file, error).into()),
    }
}

/// All keys below `home`, in the order in which they were made.
///
/// # Errors
/// [`Error::Usage`] for a damaged list; those of reading.
pub fn list(home: &Path) -> Result<Vec<Key>> {
    read(&list_file(home))
}

/// Does `work` while no other process changes the files of keys below `home`.
fn locked<T>(home: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    fs::create_dir_all(home).map_err(|error| shard::Error::io(home, error))?;
    let path = home.join("api-keys.lock");
    let lock = writable(fs::OpenOptions::new().write(true), &path);
    let lock = lock.map_err(|error| shard::Error::io(&path, error))?;
    give_to_owner(home, &path);
    lock.lock().map_err(|error| shard::Error::io(&path, error))?;
    work()
}

/// Opens a file of the folder, or makes it. A link is refused: the owner of the folder may have less rights than this process.
fn writable(options: &mut fs::OpenOptions, path: &Path) -> io::Result<File> {
    options.create(true).truncate(false).owner_only().no_links().open(path)
}

/// A file that root wrote for a service is the service's ([`files::give_to_owner`]).
fn give_to_owner(home: &Path, file: &Path) {
    if let Err(error) = files::give_to_owner(home, file) {
        tracing::warn!(%error, "the owner of the folder cannot read {}", file.display());
    }
}

/// Replaces a file below `home`.
fn save(home: &Path, file: &Path, bytes: &[u8]) -> Result<()> {
    p2p::blob::sparse::replace(file, &[bytes])?;
    give_to_owner(home, file);
    Ok(())
}

/// Reads the list, changes it and saves it while no other process does.
fn change<T>(home: &Path, work: impl FnOnce(&mut Vec<Key>) -> Result<T>) -> Result<T> {
    locked(home, || {
        let mut keys = list(home)?;
        let done = work(&mut keys)?;
        let text = serde_json::to_vec_pretty(&keys).map_err(|error| Error::Failed(error.to_string()))?;
        save(home, &list_file(home), &text)?;
        Ok(done)
    })
}

/// Makes a key called `name`, at `now_s`; the secret, which is kept nowhere.
///
/// # Errors
/// [`Error::Usage`] for a name that is taken or cannot be one, and when there are too many keys.
pub fn add(home: &Path, name: &str, tokens_per_day: Option<u64>, now_s: u64) -> Result<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    if !(1..=64).contains(&name.len()) || !name.chars().all(plain) {
        return Err(Error::usage(format!(
            "\"{name}\" cannot be a key's name: 1 to 64 letters, digits, dots, dashes, underscores and @"
        )));
    }
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Error::Io(io::Error::other(error)))?;
    let secret = format!("{PREFIX}{}", data_encoding::HEXLOWER.encode(&bytes));
    let hash = blake3::hash(secret.as_bytes()).to_hex().to_string();
    change(home, |keys| {
        if keys.iter().any(|key| key.name == name && !key.revoked) {
            return Err(Error::usage(format!(
                "there is a key called \"{name}\" already: choose another name, or `shoal key revoke {name}` first"
            )));
        }
        // A name that is given again is another key.
        keys.retain(|key| key.name != name);
        if keys.len() >= MAX_KEYS {
            return Err(Error::usage(format!("there are {MAX_KEYS} keys already, which is the most")));
        }
        keys.push(Key { name: name.to_owned(), hash, tokens_per_day, created_s: now_s, revoked: false });
        Ok(())
    })?;
    Ok(secret)
}

/// Takes a key back.
///
/// # Errors
/// [`Error::Usage`] when there is none of that name.
pub fn revoke(home: &Path, name: &str) -> Result<()> {
    change(home, |keys| {
        let key = keys.iter_mut().find(|key| key.name == name && !key.revoked);
        key.map(|key| key.revoked = true).ok_or_else(|| {
            Error::usage(format!("no key is called \"{name}\", or it was taken back; see `shoal key list`"))
        })
    })
}

/// Tokens that each key took on the day of `now_s`.
///
/// # Errors
/// As for [`list`].
pub fn used_today(home: &Path, now_s: u64) -> Result<BTreeMap<String, u64>> {
    let used: Used = read(&used_file(home))?;
    Ok(if used.day == now_s / DAY_S { used.tokens } else { BTreeMap::new() })
}

/// The keys of a folder, for a server.
#[derive(Debug)]
pub struct KeyRing {
    ring: Arc<Ring>,
    writer: Option<thread::JoinHandle<()>>,
}

/// What the server and the thread that writes share.
#[derive(Debug)]
struct Ring {
    home: PathBuf,
    state: Mutex<State>,
    /// Something is to be written, was written, or the ring is dropped.
    changed: Condvar,
}

/// Which file it is, when it was written, and its length.
type Seen = Option<Stamp>;

fn seen(file: &Path) -> Seen {
    files::stamp_at(file).ok()
}

#[derive(Debug, Default)]
struct State {
    keys: Vec<Key>,
    /// Of the list that was read.
    keys_seen: Seen,
    /// What the file says.
    used: Used,
    used_seen: Seen,
    /// What was taken and is not in the file yet.
    fresh: Used,
    /// Lines of the log that are not in the file yet, and how many more there were.
    lines: Vec<String>,
    left_out: u64,
    writing: bool,
    over: bool,
}

impl State {
    fn is_written(&self) -> bool {
        !self.writing && self.fresh.tokens.is_empty() && self.lines.is_empty() && self.left_out == 0
    }

    /// Tokens of `name` on `day`.
    fn taken(&self, name: &str, day: u64) -> u64 {
        let of = |used: &Used| if used.day == day { used.tokens.get(name).copied().unwrap_or(0) } else { 0 };
        of(&self.used).saturating_add(of(&self.fresh))
    }
}

impl Used {
    /// Adds what was taken; only the later of two days counts.
    fn add(&mut self, more: &Self) {
        if more.day > self.day {
            *self = Self { day: more.day, tokens: BTreeMap::new() };
        }
        if more.day == self.day {
            for (name, tokens) in &more.tokens {
                let all = self.tokens.entry(name.clone()).or_default();
                *all = all.saturating_add(*tokens);
            }
        }
    }
}

impl KeyRing {
    /// The keys below `home`.
    ///
    /// # Errors
    /// As for [`list`].
    pub fn open(home: &Path) -> Result<Self> {
        read::<Used>(&used_file(home))?;
        list(home)?;
        let (home, state, changed) = (home.to_owned(), Mutex::default(), Condvar::new());
        let ring = Arc::new(Ring { home, state, changed });
        let shared = ring.clone();
        let writer = thread::Builder::new().name("keys".to_owned()).spawn(move || shared.write());
        Ok(Self { ring, writer: Some(writer?) })
    }

    /// Waits until all that was taken is on the disk.
    #[cfg(test)]
    fn settle(&self) {
        let state = self.ring.lock();
        drop(self.ring.changed.wait_while(state, |state| !state.is_written()));
    }
}

impl Drop for KeyRing {
    fn drop(&mut self) {
        self.ring.lock().over = true;
        self.ring.changed.notify_all();
        // It writes what is left first.
        let _ = self.writer.take().map(thread::JoinHandle::join);
    }
}

impl Ring {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state, with both files as they are now.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let now = seen(&list_file(&self.home));
        if now != state.keys_seen || now.is_none() {
            match list(&self.home) {
                Ok(keys) => (state.keys, state.keys_seen) = (keys, now),
                Err(error) => {
                    // What cannot be read opens nothing.
                    tracing::warn!(%error, "the list of keys cannot be read");
                    (state.keys, state.keys_seen) = (Vec::new(), None);
                }
            }
        }
        let now = seen(&used_file(&self.home));
        // While this server writes, the file may have what still counts as fresh.
        if now != state.used_seen && !state.writing {
            match read(&used_file(&self.home)) {
                Ok(used) => (state.used, state.used_seen) = (used, now),
                Err(error) => tracing::warn!(%error, "what the keys took cannot be read"),
            }
        }
        state
    }

    fn admit_at(&self, name: &str, now_s: u64) -> Result<(), u32> {
        let state = self.state();
        let key = state.keys.iter().find(|key| key.name == name);
        let taken = state.taken(name, now_s / DAY_S);
        let left = key.and_then(|key| key.tokens_per_day).is_none_or(|most| taken < most);
        if left { Ok(()) } else { Err((DAY_S - now_s % DAY_S) as u32) }
    }

    fn took_at(&self, name: Option<&str>, taken: &Taken, now_s: u64) {
        let line = json!({
            "time_s": now_s, "key": name, "model": taken.model, "prompt_tokens": taken.prompt_tokens,
            "tokens": taken.tokens, "outcome": taken.outcome, "took_ms": taken.took.as_millis() as u64,
        });
        let mut state = self.lock();
        if let Some(name) = name {
            let tokens = (taken.prompt_tokens + taken.tokens) as u64;
            state.fresh.add(&Used { day: now_s / DAY_S, tokens: [(name.to_owned(), tokens)].into() });
        }
        if state.lines.len() < MAX_LINES {
            state.lines.push(line.to_string());
        } else {
            state.left_out += 1;
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Writes what was taken, until the ring is dropped.
    fn write(&self) {
        let mut state = self.lock();
        loop {
            if !state.is_written() {
                let (fresh, mut lines) = (state.fresh.clone(), std::mem::take(&mut state.lines));
                let left_out = std::mem::take(&mut state.left_out);
                // Lines that are lost with this writing.
                let lost = left_out + lines.len() as u64;
                if left_out > 0 {
                    lines.push(json!({ "time_s": now_s(), "left_out": left_out }).to_string());
                }
                state.writing = true;
                drop(state);
                let (mut counted, home) = (None, &self.home);
                let logged = locked(home, || {
                    // While the lock is held, what is seen of the file is what was read.
                    counted = Some((self.count(&fresh)?, seen(&used_file(home))));
                    self.log(&lines)
                });
                state = self.lock();
                state.writing = false;
                if let Some(counted) = counted {
                    (state.used, state.used_seen) = counted;
                    // What came meanwhile is still to be written.
                    if state.fresh.day == fresh.day {
                        for (name, rest) in &mut state.fresh.tokens {
                            *rest -= fresh.tokens.get(name).copied().unwrap_or(0);
                        }
                        state.fresh.tokens.retain(|_, tokens| *tokens > 0);
                    }
                }
                if let Err(error) = logged {
                    tracing::warn!(%error, "what answers took is not written down");
                    // What was taken counts all the same, and is written later; of the lines their number is.
                    state.left_out += lost;
                    if state.over {
                        break;
                    }
                    let waited = self.changed.wait_timeout(state, AGAIN);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                self.changed.notify_all();
                continue;
            }
            if state.over {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds to the file what was taken; what it says then. The lock is held.
    fn count(&self, fresh: &Used) -> Result<Used> {
        let file = used_file(&self.home);
        let mut used: Used = read(&file)?;
        if !fresh.tokens.is_empty() {
            used.add(fresh);
            let text = serde_json::to_vec(&used).map_err(|error| Error::Failed(error.to_string()))?;
            save(&self.home, &file, &text)?;
        }
        Ok(used)
    }

    /// Adds lines to the log. The lock is held.
    fn log(&self, lines: &[String]) -> Result<()> {
        let file = self.home.join("audit.jsonl");
        if fs::symlink_metadata(&file).is_ok_and(|about| about.len() > MAX_AUDIT) {
            fs::rename(&file, self.home.join("audit.1.jsonl"))?;
        }
        let mut out = writable(fs::OpenOptions::new().append(true), &file)?;
        out.write_all(lines.iter().map(|line| format!("{line}\n")).collect::<String>().as_bytes())?;
        give_to_owner(&self.home, &file);
        Ok(())
    }
}

impl api::keys::Keys for KeyRing {
    fn holder(&self, secret: &str) -> Option<String> {
        // The hash of a secret of 256 bits says nothing of it, so that comparing hashes byte by byte tells nothing either.
        let hash = blake3::hash(secret.as_bytes()).to_hex();
        let state = self.ring.state();
        let key = state.keys.iter().find(|key| key.hash == hash.as_str() && !key.revoked)?;
        Some(key.name.clone())
    }

    fn admit(&self, name: &str) -> Result<(), u32> {
        self.ring.admit_at(name, now_s())
    }

    fn took(&self, name: Option<&str>, taken: &Taken) {
        self.ring.took_at(name, taken, now_s());
    }
}

#[cfg(test)]
mod tests {
    use api::keys::Keys;

    use super::*;

    fn taken(tokens: usize) -> Taken {
        let model = "minnow".into();
        Taken { model, prompt_tokens: 3, tokens, outcome: "done", took: Duration::from_millis(5) }
    }

    #[test]
    fn a_key_opens_until_it_is_taken_back_and_is_kept_as_a_hash() {
        let home = tempfile::tempdir().unwrap();
        let secret = add(home.path(), "ann", None, 7).unwrap();
        assert!(!fs::read_to_string(list_file(home.path())).unwrap().contains(&secret));
        let ring = KeyRing::open(home.path()).unwrap();
        assert_eq!(ring.holder(&secret).as_deref(), Some("ann"));
        assert_eq!(ring.holder(&secret[1..]), None);
        assert_eq!(ring.holder(""), None);
        assert!(add(home.path(), "ann", None, 7).is_err());
        revoke(home.path(), "ann").unwrap();
        assert_eq!(ring.holder(&secret), None);
        assert!(revoke(home.path(), "ann").is_err());
        let again = add(home.path(), "ann", None, 8).unwrap();
        assert_eq!((ring.holder(&secret), ring.holder(&again).as_deref()), (None, Some("ann")));
        for name in ["", "a b", "a/b", &"x".repeat(65)] {
            assert!(add(home.path(), name, None, 7).is_err(), "{name}");
        }
    }

    #[test]
    fn a_quota_ends_and_begins_again_with_the_day() {
        let home = tempfile::tempdir().unwrap();
        add(home.path(), "ann", Some(10), 0).unwrap();
        let ring = KeyRing::open(home.path()).unwrap();
        let noon = 20_000 * DAY_S + DAY_S / 2;
        assert_eq!(ring.ring.admit_at("ann", noon), Ok(()));
        ring.ring.took_at(Some("ann"), &taken(6), noon);
        assert_eq!(ring.ring.admit_at("ann", noon), Ok(()));
        ring.ring.took_at(Some("ann"), &taken(6), noon);
        assert_eq!(ring.ring.admit_at("ann", noon), Err(DAY_S as u32 / 2));
        // Another process counts on from there.
        ring.settle();
        let next = KeyRing::open(home.path()).unwrap();
        assert!(next.ring.admit_at("ann", noon).is_err());
        assert_eq!(used_today(home.path(), noon).unwrap().get("ann"), Some(&18));
        assert_eq!(next.ring.admit_at("ann", noon + DAY_S), Ok(()));
        assert!(used_today(home.path(), noon + DAY_S).unwrap().is_empty());
    }

    #[test]
    fn the_log_of_answers_has_numbers_and_names_only() {
        let home = tempfile::tempdir().unwrap();
        let ring = KeyRing::open(home.path()).unwrap();
        ring.ring.took_at(Some("ann"), &taken(4), 9);
        ring.ring.took_at(None, &taken(5), 10);
        ring.settle();
        let text = fs::read_to_string(home.path().join("audit.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["key"], &lines[0]["tokens"]), (&json!("ann"), &json!(4)));
        assert_eq!((&lines[1]["key"], &lines[1]["outcome"]), (&json!(null), &json!("done")));
        assert_eq!(lines[0].as_object().unwrap().len(), 7);
    }

    #[test]
    fn two_servers_of_one_folder_count_together() {
        let home = tempfile::tempdir().unwrap();
        add(home.path(), "ann", Some(60), 0).unwrap();
        let servers = [0, 1].map(|_| KeyRing::open(home.path()).unwrap());
        let noon = 20_000 * DAY_S + DAY_S / 2;
        for _ in 0..4 {
            servers.iter().for_each(|server| server.ring.took_at(Some("ann"), &taken(4), noon));
        }
        servers.iter().for_each(KeyRing::settle);
        assert_eq!(
            used_today(home.path(), noon).unwrap().get("ann"),
            Some(&56),
            "eight answers of seven tokens"
        );
        assert!(servers.iter().all(|server| server.ring.admit_at("ann", noon).is_ok()));
        servers[0].ring.took_at(Some("ann"), &taken(4), noon);
        assert!(servers[0].ring.admit_at("ann", noon).is_err(), "at once, written or not");
        servers[0].settle();
        assert!(servers[1].ring.admit_at("ann", noon).is_err(), "the other one reads it");
        let text = fs::read_to_string(home.path().join("audit.jsonl")).unwrap();
        assert_eq!(text.lines().count(), 9, "no line is lost between two");
    }

    #[test]
    fn links_that_lie_in_the_folder_are_not_followed() {
        use std::os::unix::fs::symlink;
        let (home, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [victim, missing] = ["victim", "missing"].map(|name| outside.path().join(name));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, home.path().join("api-keys.json.new")).unwrap();
        add(home.path(), "ann", None, 7).unwrap();
        assert_eq!(list(home.path()).unwrap().len(), 1);
        let log = home.path().join("audit.jsonl");
        symlink(&victim, &log).unwrap();
        let ring = KeyRing::open(home.path()).unwrap();
        ring.ring.took_at(Some("ann"), &taken(4), DAY_S);
        // It tries until the ring is dropped, and counts what was taken all the same.
        drop(ring);
        assert_eq!(used_today(home.path(), DAY_S).unwrap().get("ann"), Some(&7));
        fs::remove_file(home.path().join("api-keys.lock")).unwrap();
        symlink(&missing, home.path().join("api-keys.lock")).unwrap();
        assert!(add(home.path(), "ben", None, 7).is_err());
        assert_eq!((fs::read_to_string(&victim).unwrap().as_str(), missing.exists()), ("precious", false));
    }

    #[test]
    fn lines_that_could_not_be_written_are_counted_in_the_log() {
        let home = tempfile::tempdir().unwrap();
        let log = home.path().join("audit.jsonl");
        fs::create_dir(&log).unwrap();
        let ring = KeyRing::open(home.path()).unwrap();
        ring.ring.took_at(Some("ann"), &taken(4), DAY_S);
        let mut state = ring.ring.lock();
        while state.left_out == 0 || state.writing {
            state = ring.ring.changed.wait_timeout(state, Duration::from_millis(10)).unwrap().0;
        }
        assert_eq!(state.taken("ann", 1), 7, "once, though it was written");
        drop(state);
        fs::remove_dir(&log).unwrap();
        drop(ring);
        let text = fs::read_to_string(&log).unwrap();
        let line: serde_json::Value = serde_json::from_str(text.trim()).unwrap();
        assert_eq!(line["left_out"], 1, "{text}");
        assert_eq!(used_today(home.path(), DAY_S).unwrap().get("ann"), Some(&7));
    }

    #[test]
    fn a_ring_that_is_dropped_has_written_what_was_taken() {
        let home = tempfile::tempdir().unwrap();
        let ring = KeyRing::open(home.path()).unwrap();
        (0..100).for_each(|_| ring.ring.took_at(Some("ann"), &taken(2), DAY_S));
        drop(ring);
        assert_eq!(used_today(home.path(), DAY_S).unwrap().get("ann"), Some(&500));
        assert_eq!(fs::read_to_string(home.path().join("audit.jsonl")).unwrap().lines().count(), 100);
    }
}
