//! Files and folders of one owner, and what tells one file from another.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown},
    },
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

pub use p2p::blob::FileAt;

use crate::platform::Stamp;

/// The rights of group and others.
const OTHERS: u32 = 0o077;
/// 512 is the unit of `st_blocks`, whatever the file system's blocks are.
const BLOCK_BYTES: u64 = 512;

/// What is made is its owner's alone.
pub trait OwnerOnly {
    /// Makes it so.
    fn owner_only(&mut self) -> &mut Self;
}

impl OwnerOnly for OpenOptions {
    fn owner_only(&mut self) -> &mut Self {
        self.mode(0o600)
    }
}

impl OwnerOnly for DirBuilder {
    fn owner_only(&mut self) -> &mut Self {
        self.mode(0o700)
    }
}

/// What is opened is no link.
pub trait NoLinks {
    /// Refuses a link.
    fn no_links(&mut self) -> &mut Self;
}

impl NoLinks for OpenOptions {
    fn no_links(&mut self) -> &mut Self {
        self.custom_flags(OFlags::NOFOLLOW.bits() as i32)
    }
}

/// Whether only the owner has rights to it.
pub fn is_owners_only(about: &Metadata) -> bool {
    about.permissions().mode() & OTHERS == 0
}

/// Takes the rights of others away.
///
/// # Errors
/// Those of the system.
pub fn take_from_others(path: &Path, about: &Metadata) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(about.permissions().mode() & !OTHERS))
}

/// Lets everybody read a file.
///
/// # Errors
/// Those of the system.
pub fn let_all_read(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

/// What a program may be: read and started by everybody.
///
/// # Errors
/// None.
pub fn of_a_program() -> io::Result<Permissions> {
    Ok(Permissions::from_mode(0o755))
}

/// From now on this process makes nothing that others may read.
pub fn be_private() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}

/// A file that another user than the owner of `folder` wrote, such as root for a service, is handed to the owner. What has a
/// second name, or is no file, stays as it is.
///
/// # Errors
/// Those of the system.
pub fn give_to_owner(folder: &Path, file: &Path) -> io::Result<()> {
    let (Ok(folder), Ok(about)) = (fs::metadata(folder), fs::symlink_metadata(file)) else { return Ok(()) };
    if folder.uid() != about.uid() && about.is_file() && about.nlink() == 1 {
        lchown(file, Some(folder.uid()), Some(folder.gid()))?;
    }
    Ok(())
}

/// What the system says of an open file.
///
/// # Errors
/// Those of the system.
pub fn stamp(file: &File) -> io::Result<Stamp> {
    Ok(stamped(&file.metadata()?))
}

/// As [`stamp`], of the file at `path`.
///
/// # Errors
/// Those of the system.
pub fn stamp_at(path: &Path) -> io::Result<Stamp> {
    Ok(stamped(&fs::metadata(path)?))
}

fn stamped(about: &Metadata) -> Stamp {
    Stamp {
        place: (about.dev(), about.ino()),
        bytes: about.len(),
        written: (about.mtime(), about.mtime_nsec()),
        changed: (about.ctime(), about.ctime_nsec()),
    }
}

/// Bytes of disk that a file takes.
pub fn disk_bytes(about: &Metadata) -> u64 {
    about.blocks() * BLOCK_BYTES
}

/// Whether a file may be shorter on the disk than it says: it has holes, or its file system packs.
pub fn may_have_holes(about: &Metadata) -> bool {
    disk_bytes(about) < about.len()
}

/// Bytes that are free where `path` is, for this user.
///
/// # Errors
/// Those of the system.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// A path as it travels to a process of this program.
pub fn path_to_bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// A path that traveled.
pub fn path_from_bytes(bytes: &[u8]) -> PathBuf {
    OsStr::from_bytes(bytes).into()
}
