//! A process and its child, joined by a socket pair.

use std::{
    io::{self, IsTerminal},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command},
};

pub use std::os::unix::net::UnixStream as BlockingStream;
pub use tokio::net::{
    UnixStream as Stream,
    unix::{OwnedReadHalf as ReadHalf, OwnedWriteHalf as WriteHalf},
};

/// Starts `command`, whose standard input is the other end of the stream. Ctrl-C at a terminal is not for it. A child gives way to
/// other programs by itself ([`crate::confine::give_way`]).
///
/// # Errors
/// Those of the system.
pub fn spawn(mut command: Command, _gives_way: bool) -> io::Result<(Child, BlockingStream)> {
    let (ours, theirs) = BlockingStream::pair()?;
    // The command's copy of the child's end, which would hide the child's death, ends with it.
    let child = command.stdin(OwnedFd::from(theirs)).process_group(0).spawn()?;
    Ok((child, ours))
}

/// The child's end; `None` when standard input is none.
///
/// # Errors
/// Those of the system.
pub fn to_parent() -> io::Result<Option<BlockingStream>> {
    let input = io::stdin();
    if input.is_terminal() {
        return Ok(None);
    }
    let stream = BlockingStream::from(input.as_fd().try_clone_to_owned()?);
    Ok(stream.peer_addr().is_ok().then_some(stream))
}
