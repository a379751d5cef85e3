//! Responses of the API that may be continued by their names, encrypted in the data folder like a running answer's journal.
//!
//! ```text
//! responses/resp_0f1e2d..  (24 hex digits, mode 0600): a salt, and one turn (`sealed/folder.rs`)
//! ```
//!
//! A turn is deleted [`KEPT_FOR`] after it was stored or last read, by the next one that is stored and by
//! [`expire`](ResponseStore::expire). Bounds: [`MOST`] turns and [`MOST_BYTES`] on the disk, beyond which the ones that were
//! used longest ago go first.

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
/// A turn is deleted so long after it was last used: it holds what the user wrote.
pub const KEPT_FOR: Duration = journal::KEPT_FOR;
/// Longest file: a turn in Base64, and its salt.
const MAX_FILE: u64 = (MAX_BYTES as u64) * 4 / 3 + (4 << 10);
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

/// The names that go so that none is too old and `fresh_bytes` more fit: of `files` with their lengths and when they were last
/// used.
fn surplus(mut files: Vec<(String, u64, SystemTime)>, fresh_bytes: u64, now: SystemTime) -> Vec<String> {
    files.sort_by_key(|(_, _, used)| *used);
    let mut bytes = fresh_bytes + files.iter().map(|file| file.1).sum::<u64>();
    let mut left = files.len() + usize::from(fresh_bytes > 0);
    let mut gone = Vec::new();
    for (name, length, used) in files {
        let old = now.duration_since(used).is_ok_and(|age| age >= KEPT_FOR);
        if !old && bytes <= MOST_BYTES && left <= MOST {
            break;
        }
        bytes -= length;
        left -= 1;
        gone.push(name);
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
        self.make_room(0, now)
    }

    fn make_room(&self, fresh_bytes: u64, now: SystemTime) -> Result<()> {
        let about = self.folder.files(is_id).into_iter();
        let files = about.map(|(name, about)| {
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            (name, about.len(), used)
        });
        for name in surplus(files.collect(), fresh_bytes, now) {
            self.folder.remove(&name)?;
        }
        Ok(())
    }

    fn keep(&self, id: &str, stored: &StoredResponse, now: SystemTime) -> Result<bool> {
        let text = serde_json::to_string(stored).map_err(|error| crate::Error::Failed(error.to_string()))?;
        if !is_id(id) || text.len() > MAX_BYTES {
            return Ok(false);
        }
        let _lock = self.folder.lock()?;
        self.make_room(text.len() as u64 * 4 / 3, now)?;
        self.folder.write(id, &[text])?;
        Ok(true)
    }

    fn find(&self, id: &str, now: SystemTime) -> Result<Option<StoredResponse>> {
        if !is_id(id) {
            return Ok(None);
        }
        let path = self.folder.path().join(id);
        let used = path.metadata().and_then(|about| about.modified());
        let old = used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age >= KEPT_FOR));
        if old {
            return Ok(None);
        }
        let Some(line) = self.folder.line(&self.folder.secret()?, id, 1)? else { return Ok(None) };
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

    fn read(&self, id: &str) -> std::result::Result<Option<StoredResponse>, Broken> {
        self.find(id, SystemTime::now()).map_err(broken)
    }

    fn remove(&self, id: &str) -> std::result::Result<bool, Broken> {
        if !is_id(id) {
            return Ok(false);
        }
        let removed = self.folder.lock().and_then(|_lock| self.folder.remove(id));
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
        assert_eq!((store.read(ID), store.remove("../identity.key")), (Ok(None), Ok(false)));
        let turn = turn("the otter asks for a lantern");
        assert_eq!(store.store(ID, &turn), Ok(true));
        assert_eq!(ResponseStore::of(home.path()).read(ID), Ok(Some(turn)));
        let path = store.folder.path().join(ID);
        assert!(!String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("otter"));
        assert_eq!((store.remove(ID), store.remove(ID), store.read(ID)), (Ok(true), Ok(false), Ok(None)));
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
        assert!(store.find(ID, half).unwrap().is_some());
        assert!(store.find(&other, whole).unwrap().is_none(), "one that is too old is not read");
        store.expire(whole).unwrap();
        let left: Vec<_> = store.folder.files(is_id).into_iter().map(|file| file.0).collect();
        assert_eq!(left, [ID], "what was read is kept on");
        store.expire(half + KEPT_FOR).unwrap();
        assert!(store.folder.files(is_id).is_empty());
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let at = |s: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        let file = |name: &str, mib: u64, used: u64| (name.to_owned(), mib << 20, at(used));
        let files = vec![file("b", 100, 2), file("a", 100, 1), file("c", 50, 3)];
        assert!(surplus(files.clone(), 6 << 20, at(4)).is_empty());
        assert_eq!(surplus(files.clone(), 7 << 20, at(4)), ["a"]);
        assert_eq!(surplus(files.clone(), 150 << 20, at(4)), ["a", "b"]);
        assert_eq!(surplus(files, 0, at(2) + KEPT_FOR), ["a", "b"], "and what is too old goes");
        let many = (0..MOST as u64).map(|n| file(&format!("{n:05}"), 0, n)).collect();
        assert_eq!(surplus(many, 1, at(MOST as u64)), ["00000"]);
    }
}
