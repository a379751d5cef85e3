//! Files on their way to a process of this program: their names, which it opens again.
//!
//! ```text
//! 'F' | files u8 | of each: write u8 | length u16 | name, UTF-8
//! ```
//!
//! Numbers are little endian. Both sides know when: the bytes follow the message that announces the files.
//!
//! Limits: what another program put in a file's place meanwhile is opened; a model's hash tells.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
};

use super::{files::path_from_bytes, streams::BlockingStream};
use crate::platform::Handed;

/// Most files of one message: a model, and where its parts are.
pub const MAX_FILES: usize = 16;
/// What begins a message.
const MARK: u8 = b'F';

/// Sends `files`, at most [`MAX_FILES`].
///
/// # Errors
/// Those of the system; more files than may be sent; a name that is too long or no text.
pub fn send(mut to: &BlockingStream, files: &[Handed<'_>]) -> io::Result<()> {
    let odd = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    if files.len() > MAX_FILES {
        return Err(odd("too many files for one message"));
    }
    let mut message = vec![MARK, files.len() as u8];
    for handed in files {
        let path = std::path::absolute(handed.path)?;
        let name = path.to_str().ok_or_else(|| odd("a file whose name is no text"))?;
        let length = u16::try_from(name.len()).map_err(|_| odd("a file whose name is too long"))?;
        message.push(handed.write.into());
        message.extend(length.to_le_bytes());
        message.extend(name.as_bytes());
    }
    to.write_all(&message)
}

/// Receives what [`send`] sent.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when something else comes; a file that cannot be opened.
pub fn receive(mut from: &BlockingStream) -> io::Result<Vec<File>> {
    let mut head = [0; 2];
    from.read_exact(&mut head)?;
    let [MARK, count] = head else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "files were announced and did not come"));
    };
    let open = |_| {
        let mut about = [0; 3];
        from.read_exact(&mut about)?;
        let mut name = vec![0; u16::from_le_bytes([about[1], about[2]]).into()];
        from.read_exact(&mut name)?;
        OpenOptions::new().read(true).write(about[0] != 0).open(path_from_bytes(&name))
    };
    (0..count).map(open).collect()
}
