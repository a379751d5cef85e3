//! A session whose data a [`Carrier`] carries in place of the socket: what it sends, what lacks, and its keys.
//!
//! A carrier is on this end only and the other one does not see it. Where a request fails the datagrams of it are lost, as they may
//! be on the way: what the session does about that brings them once more, and from the socket once the carrier is gone.

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use super::datagram::Time;
use super::datagram::session::{Chunks, Served, Session};
use crate::link_kind::LinkKind;

/// A message that is whole.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Whole {
    /// What this end calls the session.
    pub(crate) session: u64,
    /// The message's number.
    pub(crate) message: u32,
    /// The epoch of the keys that it is sealed with.
    pub(crate) epoch: u32,
}

/// What a carrier knows of a message that lacks chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only the kernel module is a carrier"))]
pub(crate) enum Known {
    /// Nothing.
    Unknown,
    /// A set bit is a lacking chunk.
    Half(Vec<u8>),
    /// It is complete.
    Whole,
}

/// What [`Carrier::ready`] gives.
pub(crate) type Ready<'a> = Pin<Box<dyn Future<Output = io::Result<()>> + Send + 'a>>;

/// What takes the data of sessions from the socket and to it, at this end: it sends chunks, puts messages together, and never has
/// the key of their content.
pub(crate) trait Carrier: Debug + Send + Sync {
    /// Which link it makes of datagrams.
    fn kind(&self) -> LinkKind;

    /// Takes the data of a session with the neighbor at `to` from now on.
    fn enter(&self, served: &Served, to: SocketAddr) -> io::Result<()>;

    /// Leaves the data of a session to the socket again.
    fn leave(&self, session: u64) -> io::Result<()>;

    /// The key of a direction's next epoch.
    fn rekey(&self, session: u64, outward: bool, key: (u32, [u8; 16])) -> io::Result<()>;

    /// Sends the chunks of a message, its number and epoch, whose bits are set.
    fn send(&self, session: u64, message: (u32, u32), sealed: &[u8], chunks: &[u8]) -> io::Result<()>;

    /// What lacks of a message of so many chunks.
    fn known(&self, session: u64, message: u32, chunks: u16) -> io::Result<Known>;

    /// Waits until a message is whole, or the carrier goes.
    fn ready(&self) -> Ready<'_>;

    /// Hands out some of the messages that are whole. How many there were; an error when it carries nothing any more.
    fn take(&self, hear: &mut dyn FnMut(&Whole, &[u8])) -> io::Result<usize>;
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Attached {
    carrier: Arc<dyn Carrier>,
    session: u64,
    /// The newest epochs that the carrier has keys of, for what comes and for what leaves.
    epochs: [u32; 2],
}

impl Attached {
    /// Has `carrier` carry the data of `session`, which goes to `to`.
    pub(crate) fn new(carrier: Arc<dyn Carrier>, session: &mut Session, to: SocketAddr) -> io::Result<Self> {
        let served = session.served();
        carrier.enter(&served, to)?;
        let epochs = [served.inward.0, served.outward.0];
        let mut attached = Self { carrier, session: served.names[0], epochs };
        attached.keep_keys(session)?;
        session.serve_outside(true);
        Ok(attached)
    }

    /// Which link that is.
    pub(crate) fn kind(&self) -> LinkKind {
        self.carrier.kind()
    }

    /// Gives the carrier the keys that the session has and it has not.
    pub(crate) fn keep_keys(&mut self, session: &Session) -> io::Result<()> {
        for (at, (epoch, key)) in session.newest_keys().into_iter().enumerate() {
            if self.epochs[at] < epoch {
                self.carrier.rekey(self.session, at == 1, (epoch, key))?;
                self.epochs[at] = epoch;
            }
        }
        Ok(())
    }

    /// Sends what may be sent now.
    pub(crate) fn send(&mut self, session: &mut Session, now: Time) {
        while let Some(Chunks { message, epoch, sealed, bits }) = session.next_chunks(now) {
            if let Err(error) = self.carrier.send(self.session, (message, epoch), sealed, &bits) {
                tracing::debug!(%error, link = %self.kind(), "nothing is sent");
            }
        }
    }

    /// Tells the other end which of the chunks of a message lack.
    pub(crate) fn tell(&self, session: &mut Session, message: u32, chunks: u16) {
        match self.carrier.known(self.session, message, chunks) {
            Ok(Known::Half(bits)) => session.say_lacking(message, chunks, Some(&bits)),
            // It is about to be handed out, and acknowledged.
            Ok(Known::Whole) => {}
            Ok(Known::Unknown) | Err(_) => session.say_lacking(message, chunks, None),
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // A carrier that is gone has forgotten it already.
        let _ = self.carrier.leave(self.session);
    }
}
