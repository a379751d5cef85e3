//! The other end of what this process writes.

use std::{io, os::fd::AsRawFd};

use mio::{Events, Interest, Poll, Token, unix::SourceFd};

/// Ends the process when its output has no reader any more, from a thread of its own: a terminal that is gone may keep the
/// one that reads keys busy for good.
///
/// # Errors
/// Those of the system.
pub fn end_with_reader() -> io::Result<()> {
    let mut poll = Poll::new()?;
    let output = io::stdout().as_raw_fd();
    // A file has no other end: it cannot be waited for, and needs not be.
    if poll.registry().register(&mut SourceFd(&output), Token(0), Interest::WRITABLE).is_err() {
        return Ok(());
    }
    let wait = move || {
        let mut events = Events::with_capacity(1);
        loop {
            match poll.poll(&mut events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
                Ok(()) => {}
            }
            if events.iter().any(|event| event.is_write_closed() || event.is_error()) {
                std::process::exit(0);
            }
        }
    };
    std::thread::Builder::new().name("output".into()).spawn(wait)?;
    Ok(())
}
