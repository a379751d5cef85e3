//! What the system is asked for beyond a plain socket, where it is not to be had: no datagrams are carried there.

use std::io;
use std::net::IpAddr;

use super::super::header::CHUNK_BYTES;

/// A system without the check carries no datagrams: what is on the same network could not be told.
pub(super) fn require_hops(_: &std::net::UdpSocket, _: bool) -> io::Result<()> {
    filter(&(), None)
}

/// As there: nothing comes.
pub(super) fn filter<T>(_: &T, _: Option<&[u64]>) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "datagrams need Linux"))
}

/// There are no datagrams.
pub(super) fn longest_chunk(_: IpAddr) -> usize {
    CHUNK_BYTES
}
