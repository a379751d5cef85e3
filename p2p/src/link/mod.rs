//! Links: how bytes cross from one node to the next.
//!
//! A [`Stream`] is a long-lived, ordered, authenticated and encrypted two-way pipe to one peer: a substream of a
//! libp2p connection, opened once per (session, neighbor) and used until the session ends, so that no frame waits for
//! a negotiation. What it is for is its [`Plane`](crate::plane::Plane), one protocol name each.
//!
//! Streams are opened on the best connection the peer has: a direct one before a relayed one, TCP before QUIC on the
//! same path (fewer copies and the host's own congestion control), the older before the newer. A link never retries
//! and never times out by itself: recovery is the requester's, deadlines are the caller's.
//!
//! Limits: [`Limits::streams_per_peer`](crate::config::Limits) streams to one peer, the next waits for a while; streams
//! from others are under the [governor](crate::governor), the next is refused; a reader that stops reading stops its peer (the muxer's window), nothing is queued for it beyond that.

mod attached;
pub(crate) mod behaviour;
mod carriers;
mod choice;
mod datagram;
mod info;
#[cfg(target_os = "linux")]
mod kmod;
#[cfg(not(target_os = "linux"))]
#[path = "kmod_absent.rs"]
mod kmod;
mod lane;
mod linked;
pub(crate) mod links;
mod neighbor;
mod stream;
#[cfg(test)]
mod tests;
mod timer;

pub use carriers::module_state;
pub use choice::Figures;
pub use info::LinkInfo;
pub(crate) use stream::{Guard, Seat, Traffic};
pub use stream::{MAX_SEND, Reader, Stream, Writer};
