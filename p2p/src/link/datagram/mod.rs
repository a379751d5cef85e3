//! Datagrams between neighbors of one local network.
//!
//! What is on the wire is the same whether a process or a kernel module speaks it. [`session`] decides, with the time as an
//! argument; what touches a socket stands apart. A datagram without the key of its session changes nothing and costs nothing
//! but its check; what a peer with the key can make this node hold is bounded in [`receive`] and by the governor.

pub(crate) mod header;
mod keyring;
#[cfg(test)]
mod outside_tests;
pub(crate) mod receive;
pub(crate) mod seal;
pub(crate) mod send;
pub(crate) mod session;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

/// Time since some beginning that both sides of a call agree on.
pub(crate) type Time = std::time::Duration;
