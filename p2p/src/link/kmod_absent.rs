//! Systems without the kernel module: it cannot be opened, so that nothing is ever asked of it.

use std::io;
use std::net::SocketAddr;

use super::attached::{Carrier, Known, Ready, Whole};
use super::datagram::session::Served;
use super::datagram::socket::Socket;
use crate::link_kind::LinkKind;

/// The device file elsewhere.
pub(crate) const DEVICE: &str = "/dev/shoal_lan";

/// There is none.
#[derive(Debug)]
pub(crate) enum Module {}

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
}

impl Carrier for Module {
    fn kind(&self) -> LinkKind {
        match *self {}
    }

    fn enter(&self, _: &Served, _: SocketAddr) -> io::Result<()> {
        match *self {}
    }

    fn leave(&self, _: u64) -> io::Result<()> {
        match *self {}
    }

    fn rekey(&self, _: u64, _: bool, _: (u32, [u8; 16])) -> io::Result<()> {
        match *self {}
    }

    fn send(&self, _: u64, _: (u32, u32), _: &[u8], _: &[u8]) -> io::Result<()> {
        match *self {}
    }

    fn known(&self, _: u64, _: u32, _: u16) -> io::Result<Known> {
        match *self {}
    }

    fn ready(&self) -> Ready<'_> {
        match *self {}
    }

    fn take(&self, _: &mut dyn FnMut(&Whole, &[u8])) -> io::Result<usize> {
        match *self {}
    }
}
