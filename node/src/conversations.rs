//! The conversations of the owner's page, encrypted in the data folder.
//!
//! ```text
//! conversations/0f1e2d..  (32 hex digits, mode 0600)      conversations/presets
//! = 9c1b..                a salt, in hex                  the same, with the presets
//! Xk3v0m..                what a list says of it
//! 9bQv2x..                the conversation
//! ```
//!
//! Both lines are sealed with a key of the node's identity, and their bytes go when the file is replaced or deleted
//! (`sealed/folder.rs`).
//!
//! The process that speaks HTTP does this; the confined one that computes has no paths and no key. Nothing leaves the machine.
//!
//! Bounds: [`MOST`] conversations and [`MOST_BYTES`] on the disk, beyond which a change is refused; none is deleted for
//! another one.

use std::{
    path::Path,
    sync::{Mutex, PoisonError},
};

use api::conversations::{
    Change, Conversation, Conversations, Found, MAX_BYTES, Preset, Refusal, Room, Summary, is_id,
};

use crate::{
    clock,
    sealed::folder::{SealedFolder, Secret},
};

/// Most conversations.
pub const MOST: usize = 2_000;
/// Most bytes of all of them on the disk.
pub const MOST_BYTES: u64 = 256 << 20;
/// Longest file: a conversation in Base64, and its summary.
const MAX_FILE: u64 = (MAX_BYTES as u64) * 4 / 3 + (16 << 10);
/// Conversations that a search answers with.
const MOST_FOUND: usize = 100;
/// What the identity's secret for conversations is called.
const PURPOSE: &str = "shoal 2026 conversations of the page";
/// The file of the presets.
const PRESETS: &str = "presets";

/// The conversations of one data folder.
#[derive(Debug)]
pub struct Shelf {
    folder: SealedFolder,
    /// Held by a search: each reads everything.
    searching: Mutex<()>,
}

type Held<T> = std::result::Result<T, Refusal>;

/// What went wrong with a disk, without a path.
fn broken(error: impl Into<crate::Error>) -> Refusal {
    let why = match error.into() {
        crate::Error::Io(error) => error.kind().to_string(),
        _ => "its key or its file is damaged".to_owned(),
    };
    Refusal::Broken(format!("a conversation cannot be read or written on this machine: {why}"))
}

impl Shelf {
    /// The conversations below `home`, which is made with the first of them.
    pub fn of(home: &Path) -> Self {
        let (home, purpose) = (home.to_owned(), PURPOSE);
        let folder = SealedFolder { home, name: "conversations", purpose, max_file_bytes: MAX_FILE };
        Self { folder, searching: Mutex::default() }
    }

    fn secret(&self) -> Held<Secret> {
        self.folder.secret().map_err(broken)
    }

    /// The names of the files of conversations, with their lengths.
    fn files(&self) -> Vec<(String, u64)> {
        self.folder.files(is_id).into_iter().map(|(name, about)| (name, about.len())).collect()
    }

    fn line(&self, secret: &Secret, name: &str, wanted: u64) -> Held<Vec<u8>> {
        self.folder.line(secret, name, wanted).map_err(broken)?.ok_or(Refusal::Unknown)
    }

    fn summary(&self, secret: &Secret, name: &str) -> Option<Summary> {
        let found = self.line(secret, name, 1).and_then(|line| serde_json::from_slice(&line).map_err(broken));
        found.inspect_err(|error| tracing::warn!(?error, "a conversation is left out")).ok()
    }

    fn conversation(&self, secret: &Secret, name: &str) -> Held<Conversation> {
        serde_json::from_slice(&self.line(secret, name, 2)?).map_err(broken)
    }
}

impl Conversations for Shelf {
    fn list(&self) -> Held<(Vec<Summary>, Room)> {
        let files = self.files();
        let room = Room { bytes: files.iter().map(|file| file.1).sum(), most_bytes: MOST_BYTES, most: MOST };
        if files.is_empty() {
            return Ok((Vec::new(), room));
        }
        let secret = self.secret()?;
        let mut all: Vec<_> = files.iter().filter_map(|(name, _)| self.summary(&secret, name)).collect();
        all.sort_by(|a, b| b.changed_ms.cmp(&a.changed_ms).then_with(|| a.id.cmp(&b.id)));
        Ok((all, room))
    }

    fn search(&self, words: &str) -> Held<Vec<Found>> {
        let _turn = self.searching.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, _) = self.list()?;
        let secret = self.secret()?;
        // One that is deleted meanwhile is not found.
        let read = all.iter().filter_map(|summary| self.conversation(&secret, &summary.id).ok());
        Ok(read.filter_map(|conversation| conversation.finds(words)).take(MOST_FOUND).collect())
    }

    fn read(&self, id: &str) -> Held<Conversation> {
        if !is_id(id) {
            return Err(Refusal::Unknown);
        }
        self.conversation(&self.secret()?, id)
    }

    fn change(&self, id: &str, change: Change) -> Held<Summary> {
        if !is_id(id) {
            return Err(Refusal::Unknown);
        }
        let _lock = self.folder.lock().map_err(broken)?;
        let now_ms = clock::unix_ms();
        let files = self.files();
        let before = match self.read(id) {
            // It was deleted: what is said of it does not bring it back.
            Err(Refusal::Unknown) if change.messages.is_empty() => return Err(Refusal::Unknown),
            Err(Refusal::Unknown) if files.len() >= MOST => {
                let why = format!("{MOST} conversations are kept here, which is the most; delete some");
                return Err(Refusal::Full(why));
            }
            Err(Refusal::Unknown) => Conversation::begin(id, now_ms),
            read => read?,
        };
        let after = before.changed(change, now_ms)?;
        let body = serde_json::to_string(&after).map_err(broken)?;
        if body.len() > MAX_BYTES {
            let why = format!("a conversation has at most {} MiB; begin another one", MAX_BYTES >> 20);
            return Err(Refusal::Full(why));
        }
        let others: u64 = files.iter().filter(|file| file.0 != id).map(|file| file.1).sum();
        if others + body.len() as u64 * 4 / 3 > MOST_BYTES {
            let mib = MOST_BYTES >> 20;
            let why = format!("the conversations here have {mib} MiB, which is the most; delete some");
            return Err(Refusal::Full(why));
        }
        let summary = after.summary();
        self.folder.write(id, &[serde_json::to_string(&summary).map_err(broken)?, body]).map_err(broken)?;
        Ok(summary)
    }

    fn remove(&self, id: &str) -> Held<()> {
        if !is_id(id) {
            return Err(Refusal::Unknown);
        }
        let _lock = self.folder.lock().map_err(broken)?;
        if self.folder.remove(id).map_err(broken)? { Ok(()) } else { Err(Refusal::Unknown) }
    }

    fn presets(&self) -> Held<Vec<Preset>> {
        if !self.folder.path().join(PRESETS).exists() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&self.line(&self.secret()?, PRESETS, 1)?).map_err(broken)
    }

    fn keep_presets(&self, presets: Vec<Preset>) -> Held<()> {
        let text = serde_json::to_string(&presets).map_err(broken)?;
        if text.len() > MAX_BYTES {
            let why =
                format!("presets have at most {} MiB together; shorten or delete some", MAX_BYTES >> 20);
            return Err(Refusal::Full(why));
        }
        let _lock = self.folder.lock().map_err(broken)?;
        self.folder.write(PRESETS, &[text]).map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Read,
        os::unix::fs::PermissionsExt,
    };

    use api::conversations::Message;
    use serde_json::Map;
    use tempfile::TempDir;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn says(content: &str) -> Change {
        let message = Message {
            id: content.len().to_string(),
            parent: None,
            role: "user".into(),
            content: content.into(),
            files: Vec::new(),
            about: Map::new(),
        };
        Change { messages: vec![message], ..Change::default() }
    }

    #[test]
    fn a_conversation_is_kept_sealed_found_and_gone() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        assert_eq!(shelf.read(ID), Err(Refusal::Unknown));
        assert!(shelf.list().unwrap().0.is_empty());
        shelf.change(ID, says("the otter asks for a lantern")).unwrap();
        let path = shelf.folder.path().join(ID);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&shelf.folder.path()), mode(&path)), (0o700, 0o600));
        // The bytes of every writing, which a reader of the disk could find again.
        let first = fs::read(&path).unwrap();
        let mut held = File::open(&path).unwrap();
        assert!(!String::from_utf8_lossy(&first).contains("otter"), "{}", String::from_utf8_lossy(&first));
        shelf.change(ID, says("and for oil")).unwrap();
        let mut replaced = Vec::new();
        held.read_to_end(&mut replaced).unwrap();
        assert_eq!(replaced, vec![0; first.len()], "what was replaced is overwritten");
        let again = Shelf::of(home.path());
        assert_eq!(again.read(ID).unwrap().messages.len(), 2);
        let (all, room) = again.list().unwrap();
        assert_eq!((all[0].title.as_str(), all[0].messages), ("the otter asks for a lantern", 2));
        assert_eq!(room.bytes, fs::metadata(&path).unwrap().len());
        assert_eq!(again.search("OIL otter").unwrap()[0].summary, all[0]);
        assert!(again.search("oil fox").unwrap().is_empty());
        let (last, mut held) = (fs::read(&path).unwrap(), File::open(&path).unwrap());
        again.remove(ID).unwrap();
        let mut deleted = Vec::new();
        held.read_to_end(&mut deleted).unwrap();
        assert_eq!(deleted, vec![0; last.len()], "what was deleted is overwritten");
        assert_eq!((again.read(ID), again.remove(ID)), (Err(Refusal::Unknown), Err(Refusal::Unknown)));
        let left: Vec<_> = fs::read_dir(again.folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn no_other_key_and_no_other_name_opens_one() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        shelf.change(ID, says("mine")).unwrap();
        let other = ID.replace('0', "1");
        fs::copy(shelf.folder.path().join(ID), shelf.folder.path().join(&other)).unwrap();
        assert!(matches!(shelf.read(&other), Err(Refusal::Broken(_))));
        assert_eq!(shelf.list().unwrap().0.len(), 1, "one that is damaged hides no other");
        fs::remove_file(home.path().join("identity.key")).unwrap();
        assert!(matches!(shelf.read(ID), Err(Refusal::Broken(_))));
        assert_eq!(shelf.read("../identity.key"), Err(Refusal::Unknown));
    }

    #[test]
    fn presets_are_kept_and_their_file_is_no_conversation() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        let presets =
            vec![Preset { name: "short".into(), system: "Answer in a word.".into(), sampling: Map::new() }];
        shelf.keep_presets(presets.clone()).unwrap();
        assert_eq!(shelf.presets().unwrap(), presets);
        let long = Preset { system: "x".repeat(MAX_BYTES), ..presets[0].clone() };
        assert!(matches!(shelf.keep_presets(vec![long]), Err(Refusal::Full(_))));
        assert_eq!(shelf.presets().unwrap(), presets, "those before stay");
        assert!(shelf.list().unwrap().0.is_empty());
    }

    #[test]
    fn what_a_killed_writer_left_goes_with_the_next_change() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        shelf.change(ID, says("the otter asks for a lantern")).unwrap();
        let fresh = shelf.folder.path().join(format!("{ID}.new"));
        fs::copy(shelf.folder.path().join(ID), &fresh).unwrap();
        let mut held = File::open(&fresh).unwrap();
        shelf.remove(ID).unwrap();
        let mut left = Vec::new();
        held.read_to_end(&mut left).unwrap();
        assert!(!left.is_empty() && left.iter().all(|byte| *byte == 0), "its bytes are overwritten");
        assert_eq!(fs::read_dir(shelf.folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_reader_of_a_file_that_is_replaced_reads_the_next_one() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        shelf.change(ID, says("one")).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (0..60).for_each(|_| drop(shelf.change(ID, says("one")).unwrap())));
            while !writer.is_finished() {
                assert_eq!(shelf.read(ID).unwrap().messages.len(), 1);
            }
        });
    }

    #[test]
    fn only_messages_begin_a_conversation() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        let named = Change { title: Some("Lights".into()), ..Change::default() };
        assert_eq!(shelf.change(ID, named.clone()), Err(Refusal::Unknown));
        shelf.change(ID, says("one")).unwrap();
        assert_eq!(shelf.change(ID, named).unwrap().title, "Lights");
    }

    #[test]
    fn what_is_too_much_is_refused_and_the_rest_stays() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        shelf.change(ID, says("short")).unwrap();
        let long = says(&"x".repeat(MAX_BYTES));
        assert!(matches!(shelf.change(ID, long), Err(Refusal::Full(_))));
        assert_eq!(shelf.read(ID).unwrap().messages.len(), 1);
        let full = shelf.folder.path().join(ID.replace('0', "2"));
        File::create(full).unwrap().set_len(MOST_BYTES).unwrap();
        assert!(matches!(shelf.change(ID, says("one more")), Err(Refusal::Full(_))));
    }
}
