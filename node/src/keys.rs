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

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use api::keys::Taken;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{Error, Result};

/// Most keys of a node, those taken back included.
pub const MAX_KEYS: usize = 1_024;
/// A log of answers that is longer is put aside.
const MAX_AUDIT: u64 = 16 << 20;
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

/// Reads the list, changes it and saves it while no other process does.
fn change<T>(home: &Path, work: impl FnOnce(&mut Vec<Key>) -> Result<T>) -> Result<T> {
    fs::create_dir_all(home).map_err(|error| shard::Error::io(home, error))?;
    let path = home.join("api-keys.lock");
    let lock = fs::File::create(&path).map_err(|error| shard::Error::io(&path, error))?;
    lock.lock().map_err(|error| shard::Error::io(&path, error))?;
    let mut keys = list(home)?;
    let done = work(&mut keys)?;
    let text = serde_json::to_vec_pretty(&keys).map_err(|error| Error::Failed(error.to_string()))?;
    p2p::blob::sparse::replace(&list_file(home), &[&text])?;
    Ok(done)
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
    home: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: Vec<Key>,
    /// When the list that was read was written, and its length.
    seen: Option<(SystemTime, u64)>,
    used: Used,
}

impl KeyRing {
    /// The keys below `home`.
    ///
    /// # Errors
    /// As for [`list`].
    pub fn open(home: &Path) -> Result<Self> {
        let used = read(&used_file(home))?;
        list(home)?;
        Ok(Self { home: home.to_owned(), state: Mutex::new(State { used, ..State::default() }) })
    }

    /// The state, with the list as it is now.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let about = fs::metadata(list_file(&self.home)).ok();
        let seen = about.and_then(|about| Some((about.modified().ok()?, about.len())));
        if seen != state.seen || seen.is_none() {
            match list(&self.home) {
                Ok(keys) => (state.keys, state.seen) = (keys, seen),
                Err(error) => {
                    // What cannot be read opens nothing.
                    tracing::warn!(%error, "the list of keys cannot be read");
                    (state.keys, state.seen) = (Vec::new(), None);
                }
            }
        }
        state
    }

    fn admit_at(&self, name: &str, now_s: u64) -> Result<(), u32> {
        let state = self.state();
        let key = state.keys.iter().find(|key| key.name == name);
        let taken = match state.used.day == now_s / DAY_S {
            true => state.used.tokens.get(name).copied().unwrap_or(0),
            false => 0,
        };
        let left = key.and_then(|key| key.tokens_per_day).is_none_or(|most| taken < most);
        if left { Ok(()) } else { Err((DAY_S - now_s % DAY_S) as u32) }
    }

    fn took_at(&self, name: Option<&str>, taken: &Taken, now_s: u64) {
        let kept = name.map_or(Ok(()), |name| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let day = now_s / DAY_S;
            if state.used.day != day {
                state.used = Used { day, tokens: BTreeMap::new() };
            }
            *state.used.tokens.entry(name.to_owned()).or_default() +=
                (taken.prompt_tokens + taken.tokens) as u64;
            let text = serde_json::to_vec(&state.used).map_err(io::Error::other)?;
            p2p::blob::sparse::replace(&used_file(&self.home), &[&text]).map_err(io::Error::other)
        });
        if let Err(error) = kept.and_then(|()| self.log(name, taken, now_s)) {
            tracing::warn!(%error, "what an answer took is not written down");
        }
    }

    fn log(&self, name: Option<&str>, taken: &Taken, now_s: u64) -> io::Result<()> {
        let file = self.home.join("audit.jsonl");
        if fs::metadata(&file).is_ok_and(|about| about.len() > MAX_AUDIT) {
            fs::rename(&file, self.home.join("audit.1.jsonl"))?;
        }
        let line = json!({
            "time_s": now_s, "key": name, "model": taken.model, "prompt_tokens": taken.prompt_tokens,
            "tokens": taken.tokens, "outcome": taken.outcome, "took_ms": taken.took.as_millis() as u64,
        });
        use std::os::unix::fs::OpenOptionsExt;
        let mut out = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(file)?;
        out.write_all(format!("{line}\n").as_bytes())
    }
}

impl api::keys::Keys for KeyRing {
    fn holder(&self, secret: &str) -> Option<String> {
        // The hash of a secret of 256 bits says nothing of it, so that comparing hashes byte by byte tells nothing either.
        let hash = blake3::hash(secret.as_bytes()).to_hex();
        let state = self.state();
        let key = state.keys.iter().find(|key| key.hash == hash.as_str() && !key.revoked)?;
        Some(key.name.clone())
    }

    fn admit(&self, name: &str) -> Result<(), u32> {
        self.admit_at(name, now_s())
    }

    fn took(&self, name: Option<&str>, taken: &Taken) {
        self.took_at(name, taken, now_s());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert_eq!(ring.admit_at("ann", noon), Ok(()));
        ring.took_at(Some("ann"), &taken(6), noon);
        assert_eq!(ring.admit_at("ann", noon), Ok(()));
        ring.took_at(Some("ann"), &taken(6), noon);
        assert_eq!(ring.admit_at("ann", noon), Err(DAY_S as u32 / 2));
        // Another process counts on from there.
        let next = KeyRing::open(home.path()).unwrap();
        assert!(next.admit_at("ann", noon).is_err());
        assert_eq!(used_today(home.path(), noon).unwrap().get("ann"), Some(&18));
        assert_eq!(next.admit_at("ann", noon + DAY_S), Ok(()));
        assert!(used_today(home.path(), noon + DAY_S).unwrap().is_empty());
    }

    #[test]
    fn the_log_of_answers_has_numbers_and_names_only() {
        let home = tempfile::tempdir().unwrap();
        let ring = KeyRing::open(home.path()).unwrap();
        ring.took_at(Some("ann"), &taken(4), 9);
        ring.took_at(None, &taken(5), 10);
        let text = fs::read_to_string(home.path().join("audit.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["key"], &lines[0]["tokens"]), (&json!("ann"), &json!(4)));
        assert_eq!((&lines[1]["key"], &lines[1]["outcome"]), (&json!(null), &json!("done")));
        assert_eq!(lines[0].as_object().unwrap().len(), 7);
    }
}
