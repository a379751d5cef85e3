//! A node's identity as its owner keeps and moves it: which files of the data folder belong to it, how they leave the folder and
//! come into another one, and who may use them.
//!
//! | goes along | stays |
//! |---|---|
//! | the key, keys of private swarms, peers met, what is known of others, receipts, proofs, names of nodes, history | models and their list, caches of `--keep-state` |
//! | agreements, the API's token and keys, authors of catalogs | settings (`config.toml`), the log of answers, locks and sockets |
//! | conversations and interrupted answers, where the owner says so | stored responses, which a day ends |
//!
//! One identity is one node: of two machines that run it at once others close the connections of one for those of the other, so that
//! both are cut off, and signatures that contradict are the proof of a lie. On one machine the second one is refused ([`hold`]), and a folder whose identity has moved does not start
//! ([`refuse_retired`]) until its owner takes that back.
//!
//! An import writes all of its files beside the folder's own before the first takes its place, and the key takes its place last; what
//! was there is kept in a folder of its own.

pub mod archive;

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    path::{Component, Path, PathBuf},
};

use p2p::Identity;
use serde::{Deserialize, Serialize};

use self::archive::{Backup, Item, MAX_BYTES, MAX_FILES};
use crate::{Error, Result, clock, platform::files::OwnerOnly, sealed};

/// The node's key.
pub const KEY: &str = sealed::IDENTITY;
/// What says that the identity of this folder has moved.
const RETIRED: &str = "retired.json";
/// Files that always go along.
const FILES: [&str; 11] = [
    KEY,
    "agreed-boomerang",
    "agreed-open",
    "api-keys.json",
    "api-keys.used.json",
    "api-token",
    "node-names.json",
    "peers",
    "receipts",
    "swarm-history",
    "trust.json",
];
/// Folders whose files always go along.
const FOLDERS: [&str; 2] = ["catalogs", "proofs"];
/// Folders of what was said, which go along where the owner says so.
const SAID: [&str; 2] = ["conversations", "journal"];

/// Whether a path below the data folder belongs to an identity, and to what was said with it.
fn belongs(path: &str) -> Option<bool> {
    let mut parts = Path::new(path).components();
    let mut next = || match parts.next() {
        Some(Component::Normal(part)) => part.to_str(),
        _ => None,
    };
    let (first, second, third) = (next()?, next(), next());
    // A path is written in one way only.
    let written = second.map_or_else(|| first.to_owned(), |second| format!("{first}/{second}"));
    if third.is_some() || written != path || path.contains('\0') {
        return None;
    }
    match second {
        None if FILES.contains(&first) => Some(false),
        None if first.starts_with("swarm-") && first.ends_with(".key") => Some(false),
        Some(_) if FOLDERS.contains(&first) => Some(false),
        Some(_) if SAID.contains(&first) => Some(true),
        _ => None,
    }
}

/// The paths below `home` that belong to its identity, sorted; those of what was said where `said`.
fn paths(home: &Path, said: bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for folder in [""].into_iter().chain(FOLDERS).chain(SAID) {
        let entries = match fs::read_dir(home.join(folder)) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(shard::Error::io(home.join(folder), error).into()),
        };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if is_file && belongs(&path).is_some_and(|of_said| said || !of_said) && !path.ends_with(".new") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The identity of the folder; one that has none gets none.
///
/// # Errors
/// [`Error::Usage`] when there is none; what is wrong with its file.
pub fn of(home: &Path) -> Result<Identity> {
    let path = home.join(KEY);
    if !path.exists() {
        return Err(Error::usage(format!(
            "{} holds no identity yet: `shoal join` makes one, `shoal identity import FILE` brings one",
            home.display()
        )));
    }
    Identity::load_or_create(&path).map_err(|error| Error::Failed(error.to_string()))
}

/// The files below `home` that belong to its identity, and their lengths.
///
/// # Errors
/// Those of reading the folder.
pub fn files(home: &Path) -> Result<Vec<(String, u64)>> {
    let len = |path: &str| fs::metadata(home.join(path)).map_or(0, |about| about.len());
    Ok(paths(home, true)?.into_iter().map(|path| (path.clone(), len(&path))).collect())
}

/// What belongs to the identity of the folder `home`.
///
/// # Errors
/// When there is none, it cannot be read, or it is more than a backup may hold.
pub fn collect(home: &Path, said: bool) -> Result<Backup> {
    of(home)?;
    let mut items = Vec::new();
    let mut room = MAX_BYTES as u64;
    for path in paths(home, said)? {
        let mut bytes = Vec::new();
        let read = File::open(home.join(&path)).and_then(|file| file.take(room + 1).read_to_end(&mut bytes));
        match read {
            // The running node tidies up.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => read.map_err(|error| shard::Error::io(home.join(&path), error))?,
        };
        let left = room.checked_sub(bytes.len() as u64).filter(|_| items.len() < MAX_FILES);
        room = left.ok_or_else(|| {
            Error::usage(
                "this is more than a backup may hold; leave --conversations away and export them on the page",
            )
        })?;
        items.push(Item { path, bytes });
    }
    Ok(Backup { made_s: clock::unix_s(), items })
}

/// What an import did.
#[derive(Debug)]
pub struct Placed {
    /// Files that are here now.
    pub files: usize,
    /// Where what was here before is kept.
    pub replaced: Option<PathBuf>,
}

/// Makes the identity in `backup` the one of the folder `home`; what was there is kept beside it where `force` says so.
///
/// # Errors
/// [`Error::Usage`] when there is an identity and no `force`; [`Error::Failed`] for names that belong to no identity; those of writing.
pub fn place(home: &Path, backup: &Backup, force: bool) -> Result<Placed> {
    backup.identity()?;
    let mut names: Vec<&str> = backup.items.iter().map(|item| item.path.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() != backup.items.len() || names.iter().any(|name| belongs(name).is_none()) {
        return Err(Error::Failed(
            "this backup has files that belong to no identity: it was made by another program; nothing was changed".into(),
        ));
    }
    let mut before = paths(home, true)?;
    if home.join(RETIRED).exists() {
        before.push(RETIRED.to_owned());
    }
    if before.iter().any(|path| path == KEY || names.contains(&path.as_str())) && !force {
        let what =
            if home.join(KEY).exists() { "an identity already" } else { "files of an identity already" };
        return Err(Error::usage(format!(
            "{} has {what}: --force keeps that beside and takes the one of the file, --home names another folder",
            home.display()
        )));
    }
    let fresh = tempfile::Builder::new().prefix(".importing-").tempdir_in(home)?;
    for item in &backup.items {
        write(&fresh.path().join(&item.path), &item.bytes)?;
    }
    let replaced = if before.is_empty() { None } else { Some(beside(home, &before)?) };
    // The key is the last: until then the folder is what it was, or has no key that fits nothing else.
    let (keys, others): (Vec<_>, Vec<_>) = backup.items.iter().partition(|item| item.path == KEY);
    for item in others.into_iter().chain(keys) {
        let to = home.join(&item.path);
        make_folder(to.parent().unwrap_or(home))?;
        fs::rename(fresh.path().join(&item.path), &to).map_err(|error| shard::Error::io(&to, error))?;
    }
    p2p::blob::sparse::sync_folder(home)?;
    Ok(Placed { files: backup.items.len(), replaced })
}

fn make_folder(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .owner_only()
        .create(path)
        .map_err(|error| shard::Error::io(path, error).into())
}

/// Makes a file that is its owner's alone.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    make_folder(path.parent().unwrap_or(Path::new(".")))?;
    let file = OpenOptions::new().write(true).create_new(true).owner_only().open(path);
    let written = file.and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|error| shard::Error::io(path, error).into())
}

/// Moves what was here into a folder of its own. The key stays until another takes its place, and has a second name there.
fn beside(home: &Path, before: &[String]) -> Result<PathBuf> {
    let folder = (0..).map(|n| home.join(format!("replaced-{}-{n}", clock::unix_s())));
    let folder = folder.into_iter().find(|folder| !folder.exists()).unwrap_or_else(|| home.join("replaced"));
    make_folder(&folder)?;
    for path in before {
        let (from, to) = (home.join(path), folder.join(path));
        make_folder(to.parent().unwrap_or(&folder))?;
        let moved = match path == KEY {
            true => fs::copy(&from, &to).map(drop),
            false => fs::rename(&from, &to),
        };
        moved.map_err(|error| shard::Error::io(&from, error))?;
    }
    Ok(folder)
}

/// Makes the file of a backup, which must not exist yet, whole or not at all.
///
/// # Errors
/// [`Error::Usage`] when there is a file; those of writing.
pub fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let broken = |error| shard::Error::io(path, error);
    // It is made with mode 0600.
    let mut file = tempfile::Builder::new().prefix(".shoal-").tempfile_in(folder).map_err(broken)?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(broken)?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            Err(Error::usage(format!("{} exists: name a file that does not", path.display())))
        }
        Err(error) => Err(broken(error.error).into()),
    }
}

/// What a folder says whose identity has moved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Retired {
    /// Whose.
    pub node: String,
    /// When, seconds since 1970.
    pub at_s: u64,
}

/// Whether the identity of the folder has moved. A file that cannot be read says so, too.
pub fn retired(home: &Path) -> Option<Retired> {
    let text = match fs::read(home.join(RETIRED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        text => text.unwrap_or_default(),
    };
    Some(serde_json::from_slice(&text).unwrap_or(Retired { node: String::new(), at_s: 0 }))
}

/// From now on the identity of the folder starts no node, until [`reactivate`].
///
/// # Errors
/// Those of writing.
pub fn retire(home: &Path) -> Result<()> {
    let said = Retired { node: format!("{:?}", of(home)?.node()), at_s: clock::unix_s() };
    p2p::blob::sparse::replace(&home.join(RETIRED), &[&serde_json::to_vec(&said)?])?;
    Ok(())
}

/// The identity of the folder starts a node again; whether it did not before.
///
/// # Errors
/// When that cannot be written.
pub fn reactivate(home: &Path) -> Result<bool> {
    match fs::remove_file(home.join(RETIRED)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(shard::Error::io(home.join(RETIRED), error).into()),
    }
}

/// Refuses to start a node with an identity that has moved.
///
/// # Errors
/// [`Error::Usage`] with the ways out.
pub fn refuse_retired(home: &Path) -> Result<()> {
    if retired(home).is_none() {
        return Ok(());
    }
    Err(Error::usage(format!(
        "the identity in {} moved to another machine (`shoal identity export --retire`), and two nodes of one identity would \
         contradict each other. If that machine does not run it any more: `shoal identity reactivate`. For a node of its \
         own here: --home with another folder",
        home.display()
    )))
}

/// Held by the node that runs an identity on this machine.
#[derive(Debug)]
pub struct Held {
    /// A name that one process can have.
    #[cfg(target_os = "linux")]
    _name: std::os::unix::net::UnixListener,
    /// A file that one process can lock.
    #[cfg(not(target_os = "linux"))]
    _file: File,
}

/// Takes the identity for this process: another one with a copy of it, in whatever folder, is refused until the end of this
/// one. Its name is a secret of the identity, so that no other program can take it beforehand.
///
/// # Errors
/// [`Error::Usage`] when another process has it.
pub fn hold(identity: &Identity) -> Result<Held> {
    let name = format!("shoal/{}", data_encoding::HEXLOWER.encode(&identity.secret("shoal 2026 runs here")));
    // A node that has said good-bye takes a moment to end.
    for _ in 0..TRIES {
        if let Some(held) = try_hold(&name)? {
            return Ok(held);
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::usage(format!(
        "the identity {} runs on this machine already, from another data folder: two nodes of one identity would contradict \
         each other. Stop the other one (`shoal leave --home FOLDER`), or move this folder's {KEY} away for an identity of \
         its own",
        identity.node()
    )))
}

/// `None` when another process has the name.
#[cfg(target_os = "linux")]
fn try_hold(name: &str) -> Result<Option<Held>> {
    use std::os::{linux::net::SocketAddrExt, unix::net};
    match net::UnixListener::bind_addr(&net::SocketAddr::from_abstract_name(name)?) {
        Ok(name) => Ok(Some(Held { _name: name })),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Systems without such names have a file in the user's folder of temporary files.
#[cfg(not(target_os = "linux"))]
fn try_hold(name: &str) -> Result<Option<Held>> {
    use crate::platform::files::NoLinks;
    let path = std::env::temp_dir().join(name.replace('/', "-"));
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).owner_only().no_links().open(path)?;
    Ok(file.try_lock().is_ok().then_some(Held { _file: file }))
}

/// How often a name is tried that is taken.
const TRIES: u32 = 60;
/// How long between two tries.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn folder() -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        Identity::load_or_create(&home.path().join(KEY)).unwrap();
        for path in [
            "trust.json",
            "swarm-of friends.key",
            "proofs/1.proof",
            "journal/ab12",
            "config.toml",
            "models/a",
            "trust.json.new",
        ] {
            let path = home.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        symlink(home.path().join("config.toml"), home.path().join("receipts")).unwrap();
        home
    }

    fn names(backup: &Backup) -> Vec<&str> {
        backup.items.iter().map(|item| item.path.as_str()).collect()
    }

    #[test]
    fn what_belongs_to_an_identity_moves_and_nothing_else() {
        let home = folder();
        let always = [KEY, "proofs/1.proof", "swarm-of friends.key", "trust.json"];
        assert_eq!(names(&collect(home.path(), false).unwrap()), always);
        let all = collect(home.path(), true).unwrap();
        assert_eq!(names(&all).len(), 5);
        let other = tempfile::tempdir().unwrap();
        let placed = place(other.path(), &all, false).unwrap();
        assert!(placed.replaced.is_none() && placed.files == 5);
        assert_eq!(of(other.path()).unwrap().node(), of(home.path()).unwrap().node());
        assert_eq!(fs::read(other.path().join("journal/ab12")).unwrap(), b"ab12");
        let mode = |path: &str| fs::metadata(other.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(KEY), mode("proofs/1.proof"), mode("proofs")], [0o600, 0o600, 0o700]);
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 5, "nothing is left behind");
    }

    #[test]
    fn an_identity_is_replaced_on_request_only_and_kept_beside() {
        let (from, to) = (folder(), folder());
        fs::write(to.path().join("trust.json"), "of the old one").unwrap();
        let old = of(to.path()).unwrap().node();
        let backup = collect(from.path(), false).unwrap();
        assert!(place(to.path(), &backup, false).unwrap_err().to_string().contains("--force"));
        assert_eq!(of(to.path()).unwrap().node(), old);
        retire(to.path()).unwrap();
        let beside = place(to.path(), &backup, true).unwrap().replaced.unwrap();
        assert_eq!(of(to.path()).unwrap().node(), of(from.path()).unwrap().node());
        assert_eq!(of(&beside).unwrap().node(), old);
        assert_eq!(fs::read_to_string(beside.join("trust.json")).unwrap(), "of the old one");
        // What was said under the old key cannot be read with the new one.
        assert!(beside.join("journal/ab12").exists() && !to.path().join("journal/ab12").exists());
        assert!(retired(to.path()).is_none() && to.path().join("config.toml").exists());
    }

    #[test]
    fn names_of_a_backup_lead_nowhere_else() {
        let hostile = [
            "../x",
            "/etc/x",
            "proofs/../x",
            "./peers",
            "proofs//x",
            "config.toml",
            "models/a",
            "proofs/a/b",
            "",
            "x.key",
        ];
        for path in hostile {
            assert_eq!(belongs(path), None, "{path}");
            let home = tempfile::tempdir().unwrap();
            let item = |path: &str| Item { path: path.into(), bytes: vec![1; 32] };
            let backup = Backup { made_s: 0, items: vec![item(KEY), item(path)] };
            assert!(place(home.path(), &backup, true).is_err(), "{path}");
            assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        }
        let item = || Item { path: KEY.into(), bytes: vec![1; 32] };
        let home = tempfile::tempdir().unwrap();
        assert!(
            place(home.path(), &Backup { made_s: 0, items: vec![item(), item()] }, true).is_err(),
            "twice"
        );
        assert!(place(home.path(), &Backup { made_s: 0, items: Vec::new() }, true).is_err(), "no key");
    }

    #[test]
    fn a_folder_whose_identity_moved_starts_nothing_until_that_is_taken_back() {
        let home = folder();
        refuse_retired(home.path()).unwrap();
        retire(home.path()).unwrap();
        assert!(refuse_retired(home.path()).unwrap_err().to_string().contains("reactivate"));
        assert_eq!(retired(home.path()).unwrap().node, format!("{:?}", of(home.path()).unwrap().node()));
        fs::write(home.path().join(RETIRED), "torn").unwrap();
        assert!(refuse_retired(home.path()).is_err());
        assert!(reactivate(home.path()).unwrap() && !reactivate(home.path()).unwrap());
        refuse_retired(home.path()).unwrap();
    }

    #[test]
    fn a_backup_never_overwrites_a_file_and_is_its_owners() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node.backup");
        save(&path, b"one").unwrap();
        assert!(save(&path, b"two").unwrap_err().to_string().contains("exists"));
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn one_process_runs_an_identity() {
        let identity = Identity::generate().unwrap();
        let held = hold(&identity).unwrap();
        assert!(hold(&identity).unwrap_err().to_string().contains("already"));
        hold(&Identity::generate().unwrap()).unwrap();
        drop(held);
        hold(&identity).unwrap();
    }
}
