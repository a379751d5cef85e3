//! A model's file that may have holes, and the record of which groups are sound.
//!
//! ```text
//! FOLDER/model.gguf      as long as the whole file; groups that are not here are holes and take no disk
//! FOLDER/model.obao      the outboard
//! FOLDER/model.have      "SHOALHV1", id, length u64, one bit per group, BLAKE3 of all before
//! FOLDER/lock            held while a process writes
//! ```
//!
//! A group counts only when its data have been flushed to the disk and the record after them, so after a crash or a
//! power cut the record never promises too much. What was written since the last [`Checkpoint`] is *unsure*:
//! [`SparseFile::recheck`] hashes what lies in the file and adopts the groups that are sound, so a killed pull loses
//! nothing that reached the file. A record that is damaged, or a file whose length is off, makes everything unsure.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use scheduler::ModelId;

use super::{Error, GROUP_BYTES, GroupSet, Outboard, file_at::FileAt};

const MAGIC: &[u8; 8] = b"SHOALHV1";
/// Bytes of the record besides the bits.
const RECORD_BYTES: usize = 8 + 32 + 8 + 32;
/// Both ends of a group that are looked at before it is read: a hole is zeros.
const PEEK: usize = 4096;

/// The file in `folder`.
pub fn model_path(folder: &Path) -> PathBuf {
    folder.join("model.gguf")
}

/// Its outboard in `folder`.
pub fn outboard_path(folder: &Path) -> PathBuf {
    folder.join("model.obao")
}

fn record_path(folder: &Path) -> PathBuf {
    folder.join("model.have")
}

/// Bytes of disk that `groups` of a file of `bytes` take with everything that is kept beside them, without what the
/// file system adds.
pub fn disk_bytes(bytes: u64, groups: &GroupSet) -> u64 {
    let record = RECORD_BYTES as u64 + u64::from(groups.groups()).div_ceil(8);
    groups.bytes(bytes).saturating_add(super::outboard::encoded_len(bytes)).saturating_add(record)
}

/// Replaces the file at `path` so that after a crash it is the old one or the new one. What is left of a crash, or lies
/// there as a link, is removed first. One writer at a time.
pub fn replace(path: &Path, data: &[&[u8]]) -> Result<(), Error> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    // The parent of a bare name is empty: the working folder.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fresh = path.with_file_name(name);
    let write = || {
        match fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::create_new(&fresh)?;
        data.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        sync_folder(folder)
    };
    write().map_err(|e| Error::io(path, e))
}

/// Has the disk know which files a folder has. Windows has no such call, and its file systems keep a journal of names.
///
/// # Errors
/// Those of the system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(windows) {
        return Ok(());
    }
    File::open(folder)?.sync_all()
}

/// Whether the model's file at `path` has all groups: it was not fetched in groups, or all are on the record.
pub fn is_whole(path: &Path, id: ModelId) -> bool {
    let folder = path.parent().unwrap_or(Path::new(""));
    let bytes = fs::metadata(path).map_or(0, |about| about.len());
    !outboard_path(folder).is_file()
        || recorded(folder, id, bytes).is_ok_and(|have| have.len() == super::group_count(bytes))
}

/// The groups of the model in `folder` that are on disk for certain; none if there is no sound record.
pub fn recorded(folder: &Path, id: ModelId, bytes: u64) -> Result<GroupSet, Error> {
    let groups = super::group_count(bytes);
    let none = GroupSet::empty(groups);
    let whole = fs::metadata(model_path(folder)).is_ok_and(|meta| meta.len() == bytes);
    let path = record_path(folder);
    let mut record = Vec::new();
    // The length is known: a record that is longer is no record.
    let most = RECORD_BYTES as u64 + u64::from(groups).div_ceil(8) + 1;
    match File::open(&path).and_then(|file| file.take(most).read_to_end(&mut record)) {
        Ok(_) if whole => {}
        Ok(_) => return Ok(none),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(none),
        Err(e) => return Err(Error::io(path, e)),
    }
    let Some((signed, digest)) = record.split_last_chunk::<32>() else { return Ok(none) };
    let Some((head, bits)) = signed.split_at_checked(RECORD_BYTES - 32) else { return Ok(none) };
    let sound = blake3::hash(signed) == *digest && head == record_head(id, bytes);
    Ok(sound.then(|| GroupSet::from_bytes(groups, bits)).flatten().unwrap_or(none))
}

/// Reads the groups that are on the record of the model in `folder` from `file`, its file there, and holds each against the
/// model's tree. `None` where there is no outboard beside the file, which then is none that was fetched in groups. Blocks.
///
/// # Errors
/// [`Error::Mismatch`] for a group that changed since it was fetched; [`Error::Damaged`], [`Error::Io`].
pub fn check(folder: &Path, file: &File, id: ModelId) -> Result<Option<u32>, Error> {
    let path = outboard_path(folder);
    if !path.is_file() {
        return Ok(None);
    }
    let tree = Outboard::open(&path, Some(id))?;
    let mut data = vec![0; GROUP_BYTES as usize];
    let mut checked = 0;
    for group in recorded(folder, id, tree.bytes())?.runs().flatten() {
        let data = &mut data[..tree.group_len(group)];
        let read = file.read_exact_at(data, u64::from(group) * GROUP_BYTES);
        read.map_err(|e| Error::io(model_path(folder), e))?;
        if !tree.check(group, data) {
            return Err(Error::mismatch(format!("group {group}")));
        }
        checked += 1;
    }
    Ok(Some(checked))
}

fn record_head(id: ModelId, bytes: u64) -> Vec<u8> {
    [&MAGIC[..], id.as_bytes(), &bytes.to_le_bytes()].concat()
}

/// Moves the complete and flushed file at `path`, from which `tree` and its bytes `encoded` have just been made, into
/// `folder`, where all of it is on the record.
///
/// # Errors
/// [`Error::Locked`], [`Error::Io`]; the file stays where it is then.
pub fn adopt(folder: &Path, path: &Path, tree: Arc<Outboard>, encoded: &[u8]) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
    let _lock = lock(folder)?;
    replace(&outboard_path(folder), &[encoded])?;
    fs::rename(path, model_path(folder)).map_err(|e| Error::io(path, e))?;
    let kept = model_path(folder);
    let file = Arc::new(File::open(&kept).map_err(|e| Error::io(kept, e))?);
    let have = GroupSet::all(tree.groups());
    Checkpoint { folder: folder.to_owned(), file, id: tree.id(), bytes: tree.bytes(), have }.commit()
}

/// A model's file that is being filled. One process at a time.
#[derive(Debug)]
pub struct SparseFile {
    folder: PathBuf,
    file: Arc<File>,
    tree: Arc<Outboard>,
    /// Groups in the file, flushed or not.
    have: GroupSet,
    _lock: File,
}

impl SparseFile {
    /// Opens or starts the file of `tree`'s model in `folder`, which is created; `encoded` are the bytes of the
    /// outboard. Groups on the record are had; others that may be there are found by [`SparseFile::recheck`].
    ///
    /// # Errors
    /// [`Error::Locked`] while another process has it; [`Error::Io`].
    pub fn open(folder: &Path, tree: Arc<Outboard>, encoded: &[u8]) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        let lock = lock(folder)?;
        let kept = outboard_path(folder);
        if !fs::metadata(&kept).is_ok_and(|meta| meta.len() == encoded.len() as u64) {
            replace(&kept, &[encoded])?;
        }
        let path = model_path(folder);
        let io = |e| Error::io(&path, e);
        let have = recorded(folder, tree.id(), tree.bytes())?;
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        if file.metadata().map_err(io)?.len() != tree.bytes() {
            file.set_len(tree.bytes()).map_err(io)?;
        }
        Ok(Self { folder: folder.to_owned(), file: Arc::new(file), tree, have, _lock: lock })
    }

    /// The file itself.
    pub fn path(&self) -> PathBuf {
        model_path(&self.folder)
    }

    /// What judges it.
    pub fn tree(&self) -> &Arc<Outboard> {
        &self.tree
    }

    /// The groups in it, flushed or not.
    pub fn have(&self) -> &GroupSet {
        &self.have
    }

    /// Writes group `group` if it is sound and missing; whether it was missing.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for data that are not the group's: nothing is written then. [`Error::Io`].
    pub fn write(&mut self, group: u32, data: &[u8]) -> Result<bool, Error> {
        if !self.tree.check(group, data) {
            return Err(Error::mismatch(format!("group {group}")));
        }
        if self.have.contains(group) {
            return Ok(false);
        }
        let at = u64::from(group) * GROUP_BYTES;
        self.file.write_all_at(data, at).map_err(|e| Error::io(self.path(), e))?;
        self.have.insert(group);
        Ok(true)
    }

    /// Looks in the file for groups of `wanted` that are not on the record, and adopts the sound ones. `progress`
    /// receives the groups looked at and returns whether to go on. Returns how many were adopted.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn recheck(
        &mut self,
        wanted: &GroupSet,
        progress: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u32, Error> {
        let unsure = wanted.minus(&self.have);
        let (mut adopted, mut seen) = (0, 0);
        let mut data = vec![0; GROUP_BYTES as usize];
        for group in unsure.runs().flatten() {
            let data = &mut data[..self.tree.group_len(group)];
            if self.is_written(group, data).map_err(|e| Error::io(self.path(), e))?
                && self.tree.check(group, data)
            {
                self.have.insert(group);
                adopted += 1;
            }
            seen += 1;
            if !progress(seen) {
                break;
            }
        }
        Ok(adopted)
    }

    /// Reads a group unless both its ends are zeros, as those of a hole are; a sound group that begins and ends with
    /// zeros is fetched again, which is harmless.
    fn is_written(&self, group: u32, data: &mut [u8]) -> io::Result<bool> {
        let at = u64::from(group) * GROUP_BYTES;
        let peek = PEEK.min(data.len());
        let tail = data.len() - peek;
        self.file.read_exact_at(&mut data[..peek], at)?;
        self.file.read_exact_at(&mut data[tail..], at + tail as u64)?;
        if data[..peek].iter().chain(&data[tail..]).all(|&byte| byte == 0) {
            return Ok(false);
        }
        self.file.read_exact_at(data, at)?;
        Ok(true)
    }

    /// Reads every group on the record again and forgets those that have gone bad; returns them. The record on disk
    /// changes with the next checkpoint.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn verify(&mut self, progress: &mut dyn FnMut(u32) -> bool) -> Result<GroupSet, Error> {
        let mut bad = GroupSet::empty(self.tree.groups());
        let mut data = vec![0; GROUP_BYTES as usize];
        for (seen, group) in self.have.clone().runs().flatten().enumerate() {
            let data = &mut data[..self.tree.group_len(group)];
            let read = self.file.read_exact_at(data, u64::from(group) * GROUP_BYTES);
            read.map_err(|e| Error::io(self.path(), e))?;
            if !self.tree.check(group, data) {
                bad.insert(group);
                self.have.remove(group);
            }
            if !progress(seen as u32 + 1) {
                break;
            }
        }
        Ok(bad)
    }

    /// What there is now, to be recorded.
    pub fn checkpoint(&self) -> Checkpoint {
        let (folder, id, bytes) = (self.folder.clone(), self.tree.id(), self.tree.bytes());
        Checkpoint { folder, file: self.file.clone(), id, bytes, have: self.have.clone() }
    }
}

/// A state of a file that is to survive a crash.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    file: Arc<File>,
    id: ModelId,
    bytes: u64,
    have: GroupSet,
}

impl Checkpoint {
    /// Flushes the data, then the record. Blocks.
    ///
    /// # Errors
    /// [`Error::Io`]: the record is the one before.
    pub fn commit(&self) -> Result<(), Error> {
        self.file.sync_data().map_err(|e| Error::io(model_path(&self.folder), e))?;
        let (head, bits) = (record_head(self.id, self.bytes), self.have.to_bytes());
        let digest = blake3::Hasher::new().update(&head).update(&bits).finalize();
        replace(&record_path(&self.folder), &[&head, &bits, digest.as_bytes()])
    }
}

/// Takes the folder for this process until the file is dropped.
pub(super) fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join("lock");
    let io = |e| Error::io(&path, e);
    let lock = File::options().write(true).create(true).truncate(false).open(&path).map_err(io)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Locked { path: folder.to_owned() }),
        Err(fs::TryLockError::Error(e)) => Err(io(e)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::blob::testing::{model, outboard_of};

    const G: usize = GROUP_BYTES as usize;

    fn group(data: &[u8], group: usize) -> &[u8] {
        &data[group * G..data.len().min((group + 1) * G)]
    }

    fn members(set: &GroupSet) -> Vec<u32> {
        set.runs().flatten().collect()
    }

    #[test]
    fn a_group_is_recorded_only_after_a_commit_and_found_again_without_one() {
        let (data, file) = model(9 * G + 100, 1);
        let (tree, encoded) = outboard_of(file.path());
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("x");
        let mut sparse = SparseFile::open(&folder, tree.clone(), &encoded).unwrap();
        assert!(matches!(SparseFile::open(&folder, tree.clone(), &encoded), Err(Error::Locked { .. })));
        assert!(sparse.write(2, group(&data, 2)).unwrap() && !sparse.write(2, group(&data, 2)).unwrap());
        sparse.checkpoint().commit().unwrap();
        assert!(sparse.write(9, group(&data, 9)).unwrap());
        assert!(matches!(sparse.write(4, group(&data, 3)), Err(Error::Mismatch { .. })));
        drop(sparse);
        let mut again = SparseFile::open(&folder, tree.clone(), &encoded).unwrap();
        assert_eq!(members(again.have()), [2], "group 9 was not committed");
        assert_eq!(again.recheck(&GroupSet::all(10), &mut |_| true).unwrap(), 1);
        assert_eq!(members(again.have()), [2, 9]);
        let on_disk = fs::metadata(again.path()).unwrap();
        assert_eq!(on_disk.len(), data.len() as u64);
        assert!(on_disk.blocks() * 512 <= 2 * GROUP_BYTES, "{} blocks", on_disk.blocks());
    }

    #[test]
    fn half_a_group_in_the_file_is_not_adopted() {
        let (data, file) = model(3 * G, 1);
        let (tree, encoded) = outboard_of(file.path());
        let home = tempfile::tempdir().unwrap();
        let mut sparse = SparseFile::open(home.path(), tree.clone(), &encoded).unwrap();
        sparse.file.write_all_at(&data[G..G + G / 2], G as u64).unwrap();
        sparse.file.write_all_at(&data[..G], 0).unwrap();
        assert_eq!(sparse.recheck(&GroupSet::all(3), &mut |_| true).unwrap(), 1);
        assert_eq!(members(sparse.have()), [0]);
    }

    #[test]
    fn a_record_that_cannot_be_trusted_makes_everything_unsure() {
        let (data, file) = model(5 * G, 1);
        let (tree, encoded) = outboard_of(file.path());
        let home = tempfile::tempdir().unwrap();
        let folder = home.path();
        let mut sparse = SparseFile::open(folder, tree.clone(), &encoded).unwrap();
        (0..4).for_each(|i| assert!(sparse.write(i as u32, group(&data, i)).unwrap()));
        sparse.checkpoint().commit().unwrap();
        drop(sparse);
        let record = fs::read(record_path(folder)).unwrap();
        let had = || recorded(folder, tree.id(), tree.bytes()).unwrap();
        assert_eq!(members(&had()), [0, 1, 2, 3]);
        for at in 0..record.len() {
            let mut bad = record.clone();
            bad[at] ^= 1;
            fs::write(record_path(folder), &bad).unwrap();
            assert!(had().is_empty(), "byte {at}");
            fs::write(record_path(folder), &record[..at]).unwrap();
            assert!(had().is_empty(), "cut at {at}");
        }
        fs::write(record_path(folder), [&record[..], &[0]].concat()).unwrap();
        assert!(had().is_empty());
        fs::write(record_path(folder), &record).unwrap();
        assert!(recorded(folder, ModelId::numbered(1), tree.bytes()).unwrap().is_empty(), "another model's");
        File::options().write(true).open(model_path(folder)).unwrap().set_len(2 * GROUP_BYTES).unwrap();
        assert!(had().is_empty(), "the file was cut");
        let mut again = SparseFile::open(folder, tree.clone(), &encoded).unwrap();
        assert_eq!(again.recheck(&GroupSet::all(5), &mut |_| true).unwrap(), 2);
        assert_eq!(members(again.have()), [0, 1]);
    }

    #[test]
    fn groups_that_rot_on_disk_are_found_and_forgotten() {
        let (data, file) = model(4 * G, 1);
        let (tree, encoded) = outboard_of(file.path());
        let home = tempfile::tempdir().unwrap();
        let mut sparse = SparseFile::open(home.path(), tree.clone(), &encoded).unwrap();
        (0..4).for_each(|i| assert!(sparse.write(i as u32, group(&data, i)).unwrap()));
        sparse.file.write_all_at(&[!data[2 * G + 7]], 2 * GROUP_BYTES + 7).unwrap();
        assert_eq!(members(&sparse.verify(&mut |_| true).unwrap()), [2]);
        assert_eq!(members(sparse.have()), [0, 1, 3]);
    }
}
