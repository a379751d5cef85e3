//! Responses of the API that may be continued by their names, encrypted in the data folder like a running answer's journal.
//!
//! ```text
//! responses/resp_0f1e2d..         (24 hex digits, mode 0600): a salt, and one turn (`sealed/folder.rs`)
//! responses/resp_0f1e2d..-9c1b..  the same, asked for with a key, of whose name these are 16 digits of a hash
//! ```
//!
//! A turn is deleted [`KEPT_FOR`] after it was stored or last read, by the next one that is stored and by
//! [`expire`](ResponseStore::expire). Bounds: [`MOST`] turns and [`MOST_BYTES`] on the disk, of which those of one key have
//! [`KEY_BYTES`]. Beyond them the ones that were used longest ago go first, a key's own for its share, and the owner's last.

use std::{
    fs::OpenOptions,
    path::Path,
    time::{Duration, SystemTime},
};

use api::stored_responses::{Broken, MAX_BYTES, StoredResponse, StoredResponses, is_id};

use crate::{Result, journal, sealed::folder::SealedFolder};

/// Most turns.
pub const MOST: usize = 4_096;
/// Most bytes of all of them on the disk.
pub const MOST_BYTES: u64 = 256 << 20;
/// Most bytes of those that were asked for with one key.
pub const KEY_BYTES: u64 = 32 << 20;
/// A turn is deleted so long after it was last used: it holds what the user wrote.
pub const KEPT_FOR: Duration = journal::KEPT_FOR;
/// Longest file: a turn in Base64, and its salt.
const MAX_FILE: u64 = (MAX_BYTES as u64) * 4 / 3 + (4 << 10);
/// Digits of a key's name.
const KEY_DIGITS: usize = 16;
/// What the identity's secret for responses is called.
const PURPOSE: &str = "shoal 2026 responses that may be continued";

/// The responses of one data folder.
#[derive(Debug)]
pub struct ResponseStore {
    folder: SealedFolder,
}

fn broken(error: impl Into<crate::Error>) -> Broken {
    let why = match error.into() {
        crate::Error::Io(error) => error.kind().to_string(),
        _ => "its key or its file is damaged".to_owned(),
    };
    Broken(format!("a response cannot be read or written on this machine: {why}"))
}

/// A turn on the disk.
#[derive(Clone, Debug)]
struct Turn {
    name: String,
    bytes: u64,
    used: SystemTime,
}

impl Turn {
    /// Of which key it is; `None` for the owner's.
    fn key(&self) -> Option<&str> {
        self.name.split_once('-').map(|(_, key)| key)
    }
}

/// What a turn is called on the disk.
fn name_of(holder: Option<&str>, id: &str) -> String {
    match holder {
        None => id.to_owned(),
        Some(holder) => format!("{id}-{}", &blake3::hash(holder.as_bytes()).to_hex()[..KEY_DIGITS]),
    }
}

fn is_name(name: &str) -> bool {
    let (id, key) = name.split_once('-').map_or((name, None), |(id, key)| (id, Some(key)));
    let is_key = |key: &str| key.len() == KEY_DIGITS && key.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id(id) && key.is_none_or(is_key)
}

/// The names of the turns that go so that none is too old and `fresh` fits.
fn surplus(mut turns: Vec<Turn>, fresh: Option<&Turn>, now: SystemTime) -> Vec<String> {
    // Keys' before the owner's, the ones used longest ago first.
    turns.sort_by_key(|turn| (turn.key().is_none(), turn.used));
    let key = fresh.and_then(Turn::key);
    let room = fresh.map_or(0, |fresh| fresh.bytes);
    let own = turns.iter().filter(|turn| key.is_some() && turn.key() == key).map(|turn| turn.bytes);
    let mut share = room + own.sum::<u64>();
    let mut bytes = room + turns.iter().map(|turn| turn.bytes).sum::<u64>();
    let mut left = turns.len() + usize::from(fresh.is_some());
    let mut gone = Vec::new();
    // What is too old and what a key has beyond its share go first: they may be all that must.
    let old = |turn: &Turn| now.duration_since(turn.used).is_ok_and(|age| age >= KEPT_FOR);
    turns.retain(|turn| {
        let own = key.is_some() && turn.key() == key;
        let goes = old(turn) || (own && share > KEY_BYTES);
        if goes {
            share -= if own { turn.bytes } else { 0 };
            bytes -= turn.bytes;
            left -= 1;
            gone.push(turn.name.clone());
        }
        !goes
    });
    for turn in turns {
        if bytes <= MOST_BYTES && left <= MOST {
            break;
        }
        bytes -= turn.bytes;
        left -= 1;
        gone.push(turn.name);
    }
    gone
}

impl ResponseStore {
    /// The responses below `home`, in a folder that is made with the first of them.
    pub fn of(home: &Path) -> Self {
        let (home, purpose) = (home.to_owned(), PURPOSE);
        Self { folder: SealedFolder { home, name: "responses", purpose, max_file_bytes: MAX_FILE } }
    }

    /// Deletes those that are too old at `now`.
    ///
    /// # Errors
    /// When one cannot be deleted.
    pub fn expire(&self, now: SystemTime) -> Result<()> {
        if !self.folder.path().exists() {
            return Ok(());
        }
        let _lock = self.folder.lock()?;
        self.make_room(None, now)
    }

    fn make_room(&self, fresh: Option<&Turn>, now: SystemTime) -> Result<()> {
        let turns = self.folder.files(is_name).into_iter().map(|(name, about)| {
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            Turn { name, bytes: about.len(), used }
        });
        for name in surplus(turns.collect(), fresh, now) {
            self.folder.remove(&name)?;
        }
        Ok(())
    }

    fn keep(&self, id: &str, stored: &StoredResponse, now: SystemTime) -> Result<bool> {
        let text = serde_json::to_string(stored).map_err(|error| crate::Error::Failed(error.to_string()))?;
        if !is_id(id) || text.len() > MAX_BYTES {
            return Ok(false);
        }
        let name = name_of(stored.holder.as_deref(), id);
        let _lock = self.folder.lock()?;
        self.make_room(Some(&Turn { name: name.clone(), bytes: text.len() as u64 * 4 / 3, used: now }), now)?;
        self.folder.write(&name, &[text])?;
        Ok(true)
    }

    fn find(&self, holder: Option<&str>, id: &str, now: SystemTime) -> Result<Option<StoredResponse>> {
        if !is_id(id) {
            return Ok(None);
        }
        let name = name_of(holder, id);
        let path = self.folder.path().join(&name);
        let used = path.metadata().and_then(|about| about.modified());
        let old = used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age >= KEPT_FOR));
        if old {
            return Ok(None);
        }
        let Some(line) = self.folder.line(&self.folder.secret()?, &name, 1)? else { return Ok(None) };
        // One that was deleted meanwhile has no time.
        let _ = OpenOptions::new().write(true).open(path).and_then(|file| file.set_modified(now));
        let damaged = |_| crate::Error::Failed("a stored response is damaged".into());
        serde_json::from_slice(&line).map(Some).map_err(damaged)
    }
}

impl StoredResponses for ResponseStore {
    fn store(&self, id: &str, stored: &StoredResponse) -> std::result::Result<bool, Broken> {
        self.keep(id, stored, SystemTime::now()).map_err(broken)
    }

    fn read(&self, holder: Option<&str>, id: &str) -> std::result::Result<Option<StoredResponse>, Broken> {
        self.find(holder, id, SystemTime::now()).map_err(broken)
    }

    fn remove(&self, holder: Option<&str>, id: &str) -> std::result::Result<bool, Broken> {
        if !is_id(id) {
            return Ok(false);
        }
        let removed = self.folder.lock().and_then(|_lock| self.folder.remove(&name_of(holder, id)));
        removed.map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    const ID: &str = "resp_0123456789abcdef01234567";

    fn turn(words: &str) -> StoredResponse {
        StoredResponse {
            holder: None,
            previous: None,
            input: vec![json!({"role": "user", "content": words})],
            response: json!({"id": ID, "output": []}),
        }
    }

    #[test]
    fn a_turn_is_stored_sealed_read_and_gone() {
        let home = TempDir::new().unwrap();
        let store = ResponseStore::of(home.path());
        assert_eq!((store.read(None, ID), store.remove(None, "../identity.key")), (Ok(None), Ok(false)));
        let turn = turn("the otter asks for a lantern");
        assert_eq!(store.store(ID, &turn), Ok(true));
        assert_eq!(ResponseStore::of(home.path()).read(None, ID), Ok(Some(turn)));
        let path = store.folder.path().join(ID);
        assert!(!String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("otter"));
        assert_eq!((store.read(Some("ann"), ID), store.remove(Some("ann"), ID)), (Ok(None), Ok(false)));
        assert_eq!((store.remove(None, ID), store.remove(None, ID)), (Ok(true), Ok(false)));
        assert_eq!(store.read(None, ID), Ok(None));
        assert!(!path.exists());
        assert_eq!(store.store("../identity.key", &self::turn("x")), Ok(false));
    }

    #[test]
    fn a_turn_goes_a_day_after_it_was_last_used() {
        let home = TempDir::new().unwrap();
        let store = ResponseStore::of(home.path());
        let (now, other) = (SystemTime::now(), ID.replace('0', "1"));
        store.store(ID, &turn("one")).unwrap();
        store.store(&other, &turn("two")).unwrap();
        let (half, whole) = (now + KEPT_FOR / 2, now + KEPT_FOR + Duration::from_secs(60));
        assert!(store.find(None, ID, half).unwrap().is_some());
        assert!(store.find(None, &other, whole).unwrap().is_none(), "one that is too old is not read");
        store.expire(whole).unwrap();
        let left: Vec<_> = store.folder.files(is_name).into_iter().map(|file| file.0).collect();
        assert_eq!(left, [ID], "what was read is kept on");
        store.expire(half + KEPT_FOR).unwrap();
        assert!(store.folder.files(is_name).is_empty());
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let at = |s: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        let file =
            |name: &str, mib: u64, used: u64| Turn { name: name.into(), bytes: mib << 20, used: at(used) };
        let files = vec![file("b", 100, 2), file("a", 100, 1), file("c", 50, 3)];
        let go = |files: &[Turn], fresh: Turn, now| surplus(files.to_vec(), Some(&fresh), now);
        assert!(go(&files, file("d", 6, 4), at(4)).is_empty());
        assert_eq!(go(&files, file("d", 7, 4), at(4)), ["a"]);
        assert_eq!(go(&files, file("d", 150, 4), at(4)), ["a", "b"]);
        assert_eq!(surplus(files.clone(), None, at(2) + KEPT_FOR), ["a", "b"], "and what is too old goes");
        let many: Vec<Turn> = (0..MOST as u64).map(|n| file(&format!("{n:05}"), 0, n)).collect();
        assert_eq!(go(&many, file("d", 0, 9), at(MOST as u64)), ["00000"]);
        // A key has its share, and makes room before the owner does.
        let shared = [file("a", 200, 1), file("d-1", 20, 4), file("e-1", 6, 5), file("f-2", 20, 6)];
        assert_eq!(go(&shared, file("g-1", 10, 7), at(7)), ["d-1"]);
        assert_eq!(go(&shared, file("g", 56, 7), at(7)), ["d-1", "e-1", "f-2"]);
    }

    #[test]
    fn what_was_asked_with_a_key_is_kept_under_its_name() {
        let home = TempDir::new().unwrap();
        let store = ResponseStore::of(home.path());
        let anns = StoredResponse { holder: Some("ann".into()), ..turn("mine") };
        store.store(ID, &anns).unwrap();
        assert_eq!((store.read(None, ID), store.read(Some("bob"), ID)), (Ok(None), Ok(None)));
        assert_eq!(store.read(Some("ann"), ID), Ok(Some(anns)));
        let names: Vec<_> = store.folder.files(is_name).into_iter().map(|file| file.0).collect();
        assert!(names.len() == 1 && names[0].starts_with(ID) && !names[0].contains("ann"), "{names:?}");
        assert!(!is_name("resp_0123456789abcdef01234567-x") && !is_name("conversations"));
    }
}
