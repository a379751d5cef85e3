//! The conversations of the owner's page, encrypted in the data folder.
//!
//! ```text
//! conversations/0f1e2d..  (32 hex digits, mode 0600)      conversations/presets
//! = 9c1b..                a salt, in hex                  the same, with the presets
//! Xk3v0m..                what a list says of it
//! 9bQv2x..                the conversation
//! ```
//!
//! Both lines are sealed with a key of the node's identity (`sealed.rs`). Every change writes the file whole under another
//! salt and puts it in the place of the old one, so that after a crash it is the old one or the new one. A file is overwritten
//! with zeros before it is deleted and when it is replaced, so that its bytes are gone where the file system writes in place;
//! where it never does (copy on write, flash memory), and after a crash in that moment, what is left is encrypted, and
//! unreadable without `identity.key`. A file that a crash left half written goes the same way before the next change.
//!
//! The process that speaks HTTP does this; the confined one that computes has no paths and no key. Several processes of one
//! data folder take turns by a lock. Nothing leaves the machine.
//!
//! Bounds: [`MOST`] conversations and [`MOST_BYTES`] on the disk, beyond which a change is refused; none is deleted for
//! another one.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use api::conversations::{
    Change, Conversation, Conversations, Found, MAX_BYTES, Preset, Refusal, Room, Summary, is_id,
};
use data_encoding::HEXLOWER;

use crate::{
    clock,
    platform::files::{OwnerOnly, stamp, stamp_at},
    sealed::{self, SALT, Seal},
};

/// Most conversations.
pub const MOST: usize = 2_000;
/// Most bytes of all of them on the disk.
pub const MOST_BYTES: u64 = 256 << 20;
/// Longest file: a conversation in Base64, and its summary.
const MAX_FILE: u64 = (MAX_BYTES as u64) * 4 / 3 + (16 << 10);
/// A reader of a file that is replaced under it reads the next one, so many times.
const READS: usize = 8;
/// Conversations that a search answers with.
const MOST_FOUND: usize = 100;
/// What the identity's secret for conversations is called.
const PURPOSE: &str = "shoal 2026 conversations of the page";
/// The file of the presets.
const PRESETS: &str = "presets";

/// The conversations of one data folder.
#[derive(Debug)]
pub struct Shelf {
    home: PathBuf,
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
        Self { home: home.to_owned(), searching: Mutex::default() }
    }

    fn folder(&self) -> PathBuf {
        self.home.join("conversations")
    }

    fn secret(&self) -> Held<[u8; 32]> {
        sealed::secret(&self.home, PURPOSE).map_err(broken)
    }

    /// Holds other writers off until the result is dropped, and removes what one that was killed left.
    fn lock(&self) -> Held<File> {
        fs::DirBuilder::new().recursive(true).owner_only().create(self.folder()).map_err(broken)?;
        let mut options = OpenOptions::new();
        let file = options.create(true).truncate(false).write(true).owner_only();
        let file = file.open(self.home.join("conversations.lock")).map_err(broken)?;
        file.lock().map_err(broken)?;
        for entry in fs::read_dir(self.folder()).map_err(broken)? {
            let path = entry.map_err(broken)?.path();
            if path.extension().is_some_and(|end| end == "new") {
                scrub(&path).map_err(broken)?;
            }
        }
        Ok(file)
    }

    /// The names of the files of conversations, with their lengths.
    fn files(&self) -> Vec<(String, u64)> {
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let named = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok().filter(|name| is_id(name))?;
            Some((name, entry.metadata().ok()?.len()))
        });
        named.collect()
    }

    /// The payload of line `wanted` of a file: 1 is the first after the salt.
    fn line(&self, secret: &[u8; 32], name: &str, wanted: u64) -> Held<Vec<u8>> {
        let path = self.folder().join(name);
        let missing = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => Refusal::Unknown,
            _ => broken(error),
        };
        let mut reads = 1;
        loop {
            let file = File::open(&path).map_err(missing)?;
            let opened = stamp(&file).map_err(broken)?.place;
            let read = line_of(&file, secret, name, wanted);
            // One that was replaced after it was opened is zeros. It is held open: no other file has its number.
            let replaced = || stamp_at(&path).map_or(true, |about| about.place != opened);
            if reads == READS || !matches!(read, Err(Refusal::Broken(_))) || !replaced() {
                return read;
            }
            reads += 1;
        }
    }

    fn summary(&self, secret: &[u8; 32], name: &str) -> Option<Summary> {
        let found = self.line(secret, name, 1).and_then(|line| serde_json::from_slice(&line).map_err(broken));
        found.inspect_err(|error| tracing::warn!(?error, "a conversation is left out")).ok()
    }

    fn conversation(&self, secret: &[u8; 32], name: &str) -> Held<Conversation> {
        serde_json::from_slice(&self.line(secret, name, 2)?).map_err(broken)
    }

    /// Writes a file of sealed lines in the place of the one that is there.
    fn write(&self, name: &str, lines: &[String]) -> Held<()> {
        let (path, fresh) = (self.folder().join(name), self.folder().join(format!("{name}.new")));
        let salt = sealed::salt().map_err(broken)?;
        let seal = Seal::of(&self.secret()?, name, &salt);
        let mut text = format!("{SALT}{}\n", HEXLOWER.encode(&salt));
        for (at, line) in lines.iter().enumerate() {
            text.push_str(&seal.close(at as u64 + 1, line).map_err(broken)?);
            text.push('\n');
        }
        let old = OpenOptions::new().write(true).open(&path).ok();
        let replace = || {
            let mut file = OpenOptions::new().create_new(true).write(true).owner_only().open(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            fs::rename(&fresh, &path)?;
            p2p::blob::sparse::sync_folder(&self.folder())?;
            old.map_or(Ok(()), |mut old| erase(&mut old))
        };
        replace().inspect_err(|_| drop(scrub(&fresh))).map_err(broken)
    }
}

/// The payload of line `wanted` of the file called `name`.
fn line_of(file: &File, secret: &[u8; 32], name: &str, wanted: u64) -> Held<Vec<u8>> {
    let mut lines = BufReader::new(file.take(MAX_FILE)).split(b'\n');
    let mut next = || lines.next().transpose().map_err(broken);
    let damaged = || broken(crate::Error::Failed(String::new()));
    let salt = next()?.ok_or_else(damaged)?;
    let salt = salt.strip_prefix(SALT.as_bytes()).and_then(|salt| HEXLOWER.decode(salt).ok());
    let seal = Seal::of(secret, name, &salt.ok_or_else(damaged)?);
    for _ in 1..wanted {
        next()?;
    }
    seal.open(wanted, &next()?.ok_or_else(damaged)?).ok_or_else(damaged)
}

/// Overwrites and deletes a file; whether there was one.
fn scrub(path: &Path) -> io::Result<bool> {
    match OpenOptions::new().write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => erase(&mut file?)?,
    }
    fs::remove_file(path)?;
    Ok(true)
}

/// Overwrites what is in a file.
fn erase(file: &mut File) -> io::Result<()> {
    let bytes = file.metadata()?.len();
    file.rewind()?;
    io::copy(&mut io::repeat(0).take(bytes), file)?;
    file.sync_data()
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
        let _lock = self.lock()?;
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
        self.write(id, &[serde_json::to_string(&summary).map_err(broken)?, body])?;
        Ok(summary)
    }

    fn remove(&self, id: &str) -> Held<()> {
        if !is_id(id) {
            return Err(Refusal::Unknown);
        }
        let _lock = self.lock()?;
        if !scrub(&self.folder().join(id)).map_err(broken)? {
            return Err(Refusal::Unknown);
        }
        p2p::blob::sparse::sync_folder(&self.folder()).map_err(broken)
    }

    fn presets(&self) -> Held<Vec<Preset>> {
        if !self.folder().join(PRESETS).exists() {
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
        let _lock = self.lock()?;
        self.write(PRESETS, &[text])
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
        let path = shelf.folder().join(ID);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&shelf.folder()), mode(&path)), (0o700, 0o600));
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
        let left: Vec<_> = fs::read_dir(again.folder()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn no_other_key_and_no_other_name_opens_one() {
        let home = TempDir::new().unwrap();
        let shelf = Shelf::of(home.path());
        shelf.change(ID, says("mine")).unwrap();
        let other = ID.replace('0', "1");
        fs::copy(shelf.folder().join(ID), shelf.folder().join(&other)).unwrap();
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
        let fresh = shelf.folder().join(format!("{ID}.new"));
        fs::copy(shelf.folder().join(ID), &fresh).unwrap();
        let mut held = File::open(&fresh).unwrap();
        shelf.remove(ID).unwrap();
        let mut left = Vec::new();
        held.read_to_end(&mut left).unwrap();
        assert!(!left.is_empty() && left.iter().all(|byte| *byte == 0), "its bytes are overwritten");
        assert_eq!(fs::read_dir(shelf.folder()).unwrap().count(), 0);
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
        let full = shelf.folder().join(ID.replace('0', "2"));
        File::create(full).unwrap().set_len(MOST_BYTES).unwrap();
        assert!(matches!(shelf.change(ID, says("one more")), Err(Refusal::Full(_))));
    }
}
