//! A session whose data the kernel module carries: what it sends, what lacks, and its keys.
//!
//! The module is on this end only and the other one does not see it. Where a request fails the datagrams of it are lost, as they may
//! be on the way: what the session does about that brings them once more, and from the socket once the module is gone.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::datagram::Time;
use super::datagram::session::{Chunks, Session};
use super::kmod::{Known, Module};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Attached {
    module: Arc<Module>,
    session: u64,
    /// The newest epochs that the module has keys of, for what comes and for what leaves.
    epochs: [u32; 2],
}

impl Attached {
    /// Has `module` carry the data of `session`, which goes to `to`.
    pub(crate) fn new(module: Arc<Module>, session: &mut Session, to: SocketAddr) -> io::Result<Self> {
        let served = session.served();
        module.enter(&served, to)?;
        let epochs = [served.inward.0, served.outward.0];
        let mut attached = Self { module, session: served.names[0], epochs };
        attached.keep_keys(session)?;
        session.serve_outside(true);
        Ok(attached)
    }

    /// Gives the module the keys that the session has and it has not.
    pub(crate) fn keep_keys(&mut self, session: &Session) -> io::Result<()> {
        for (at, (epoch, key)) in session.newest_keys().into_iter().enumerate() {
            if self.epochs[at] < epoch {
                self.module.rekey(self.session, at == 1, (epoch, key))?;
                self.epochs[at] = epoch;
            }
        }
        Ok(())
    }

    /// Sends what may be sent now.
    pub(crate) fn send(&mut self, session: &mut Session, now: Time) {
        while let Some(Chunks { message, epoch, sealed, bits }) = session.next_chunks(now) {
            if let Err(error) = self.module.send(self.session, (message, epoch), sealed, &bits) {
                tracing::debug!(%error, "the kernel module sends nothing");
            }
        }
    }

    /// Tells the other end which of the chunks of a message lack.
    pub(crate) fn tell(&self, session: &mut Session, message: u32, chunks: u16) {
        match self.module.known(self.session, message, chunks) {
            Ok(Known::Half(bits)) => session.say_lacking(message, chunks, Some(&bits)),
            // It is about to be handed out, and acknowledged.
            Ok(Known::Whole) => {}
            Ok(Known::Unknown) | Err(_) => session.say_lacking(message, chunks, None),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // A module that is gone has forgotten it already.
        let _ = self.module.leave(self.session);
    }
}
