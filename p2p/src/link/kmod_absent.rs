//! Systems without the kernel module: it cannot be opened, so that nothing is ever asked of it.

use std::io;
use std::net::SocketAddr;

use super::datagram::session::Served;
use super::datagram::socket::Socket;

/// The device file elsewhere.
pub(crate) const DEVICE: &str = "/dev/shoal_lan";

/// There is none.
#[derive(Debug)]
pub(crate) enum Module {}

/// A message that is whole.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) session: u64,
    pub(crate) message: u32,
    pub(crate) epoch: u32,
}

/// What the module knows of a message that lacks chunks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    Unknown,
    Half(Vec<u8>),
    Whole,
}

/// It may not.
pub(crate) fn may_be_opened() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// It is not.
pub(crate) fn is_loaded() -> bool {
    false
}

impl Module {
    pub(crate) fn open(_: &Socket) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn enter(&self, _: &Served, _: SocketAddr) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn leave(&self, _: u64) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn rekey(&self, _: u64, _: bool, _: (u32, [u8; 16])) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn send(&self, _: u64, _: (u32, u32), _: &[u8], _: &[u8]) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn known(&self, _: u64, _: u32, _: u16) -> io::Result<Known> {
        match *self {}
    }

    pub(crate) async fn ready(&self) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn take(&self, _: impl FnMut(&Event, &[u8])) -> io::Result<usize> {
        match *self {}
    }
}
