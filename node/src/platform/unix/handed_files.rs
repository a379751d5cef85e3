//! Open files on their way to a process that may not open any.
//!
//! One byte and the descriptors with it, over a connected Unix socket. Both sides know when: the byte follows the message
//! that announces the files, and the receiver reads that message without a buffer that could swallow the byte.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::streams::BlockingStream;
use crate::platform::Handed;

/// Most files of one message: a model, and where its parts are.
pub const MAX_FILES: usize = 16;
/// What carries the descriptors.
const MARK: u8 = b'F';

/// Sends `files`, at most [`MAX_FILES`].
///
/// # Errors
/// Those of the system; more files than may be sent.
pub fn send(socket: &BlockingStream, files: &[Handed<'_>]) -> io::Result<()> {
    let files: Vec<BorrowedFd<'_>> = files.iter().map(|handed| handed.file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if files.len() > MAX_FILES || !control.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many files for one message"));
    }
    sendmsg(socket, &[IoSlice::new(&[MARK])], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives what [`send`] sent.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] when something else comes.
pub fn receive(socket: &BlockingStream) -> io::Result<Vec<File>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut mark = [0];
    // Systems without the flag: the receiver starts no program.
    #[cfg(not(target_vendor = "apple"))]
    let flags = RecvFlags::CMSG_CLOEXEC;
    #[cfg(target_vendor = "apple")]
    let flags = RecvFlags::empty();
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut mark)], &mut control, flags)?;
    if received.bytes != 1 || mark != [MARK] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "files were announced and did not come"));
    }
    Ok(control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .map(File::from)
        .collect())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        path::Path,
    };

    use super::*;

    #[test]
    fn files_arrive_open_between_other_bytes() {
        let (mut ours, mut theirs) = BlockingStream::pair().unwrap();
        let mut written = tempfile::tempfile().unwrap();
        written.write_all(b"weights").unwrap();
        ours.write_all(b"before").unwrap();
        let handed = Handed::read(&written, Path::new("weights"));
        send(&ours, &[handed, handed]).unwrap();
        ours.write_all(b"after").unwrap();
        let mut before = [0; 6];
        theirs.read_exact(&mut before).unwrap();
        let files = receive(&theirs).unwrap();
        assert_eq!((files.len(), &before), (2, b"before"));
        let mut file = files.into_iter().next().unwrap();
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "weights");
        assert!(receive(&theirs).is_err(), "a byte without files");
    }

    #[test]
    fn too_many_files_are_refused() {
        let (ours, _theirs) = BlockingStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let handed = Handed::read(&file, Path::new("weights"));
        assert!(send(&ours, &[handed; MAX_FILES + 1]).is_err());
    }
}
