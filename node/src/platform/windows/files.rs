//! Files and folders of one owner, and what tells one file from another.
//!
//! Folders of a user are not open to others, and what is made in them takes that over: nothing here changes rights.

use std::{
    fs::{DirBuilder, File, Metadata, OpenOptions, Permissions},
    io,
    os::windows::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use winapi_util::file::information;

pub use p2p::blob::FileAt;

use crate::platform::Stamp;

/// `FILE_FLAG_OPEN_REPARSE_POINT` of the system: a link itself is opened, not what it leads to.
const OPEN_LINK: u32 = 0x20_0000;

/// What is made is its owner's alone.
pub trait OwnerOnly {
    /// Makes it so.
    fn owner_only(&mut self) -> &mut Self;
}

impl OwnerOnly for OpenOptions {
    fn owner_only(&mut self) -> &mut Self {
        self
    }
}

impl OwnerOnly for DirBuilder {
    fn owner_only(&mut self) -> &mut Self {
        self
    }
}

/// What is opened is no link.
pub trait NoLinks {
    /// Does not follow a link.
    fn no_links(&mut self) -> &mut Self;
}

impl NoLinks for OpenOptions {
    fn no_links(&mut self) -> &mut Self {
        self.custom_flags(OPEN_LINK)
    }
}

/// Whether only the owner has rights to it, which is not looked at.
pub fn is_owners_only(_: &Metadata) -> bool {
    true
}

/// Takes the rights of others away, of which there are none.
///
/// # Errors
/// None.
pub fn take_from_others(_: &Path, _: &Metadata) -> io::Result<()> {
    Ok(())
}

/// Lets everybody read a file who may read its folder.
///
/// # Errors
/// None.
pub fn let_all_read(_: &Path) -> io::Result<()> {
    Ok(())
}

/// What a program may be.
///
/// # Errors
/// Those of the system.
pub fn of_a_program() -> io::Result<Permissions> {
    Ok(std::env::current_exe()?.metadata()?.permissions())
}

/// Nothing: what this process makes has the rights of its folder.
pub fn be_private() {}

/// Nothing: files have the owner of their folder.
///
/// # Errors
/// None.
pub fn give_to_owner(_: &Path, _: &Path) -> io::Result<()> {
    Ok(())
}

/// What the system says of an open file.
///
/// # Errors
/// Those of the system.
pub fn stamp(file: &File) -> io::Result<Stamp> {
    let about = information(file)?;
    let time = |time: Option<u64>| (time.unwrap_or(0).cast_signed(), 0);
    Ok(Stamp {
        place: (about.volume_serial_number(), about.file_index()),
        bytes: about.file_size(),
        written: time(about.last_write_time()),
        changed: time(about.creation_time()),
    })
}

/// As [`stamp`], of the file at `path`.
///
/// # Errors
/// Those of the system.
pub fn stamp_at(path: &Path) -> io::Result<Stamp> {
    stamp(&File::open(path)?)
}

/// Bytes of disk that a file takes: its length.
pub fn disk_bytes(about: &Metadata) -> u64 {
    about.len()
}

/// Whether parts of a file may not be there, which its length does not tell.
pub fn may_have_holes(_: &Metadata) -> bool {
    true
}

/// Bytes that are free where `path` is, for this user.
///
/// # Errors
/// Those of the system.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    fs4::available_space(path)
}

/// A path as it travels to a process of this program.
pub fn path_to_bytes(path: &Path) -> Vec<u8> {
    path.to_string_lossy().into_owned().into_bytes()
}

/// A path that traveled.
pub fn path_from_bytes(bytes: &[u8]) -> PathBuf {
    String::from_utf8_lossy(bytes).into_owned().into()
}
