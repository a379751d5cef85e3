//! Carries: what travels between nodes, and how.
#![forbid(unsafe_code)]

mod error;
pub mod identity;

#[cfg(feature = "net")]
pub mod config;
#[cfg(feature = "net")]
pub mod invite;
#[cfg(feature = "net")]
pub mod network;
#[cfg(feature = "net")]
pub mod path;

pub mod codec;
pub mod wire;

#[cfg(feature = "net")]
pub mod blob;

#[cfg(feature = "net")]
mod control;
#[cfg(feature = "net")]
pub mod link;

#[cfg(feature = "net")]
mod behaviour;
#[cfg(feature = "net")]
mod event_loop;
#[cfg(feature = "net")]
mod gate;
#[cfg(feature = "net")]
mod gossip;
#[cfg(feature = "net")]
mod peers;
#[cfg(feature = "net")]
mod transport;

#[cfg(feature = "net")]
pub use config::{Config, SwarmId};
#[cfg(feature = "net")]
pub use control::ReplyTo;
pub use error::{Error, HopError, Result};
pub use identity::Identity;
#[cfg(feature = "net")]
pub use invite::Invite;
#[cfg(feature = "net")]
pub use link::{Plane, Stream};
#[cfg(feature = "net")]
pub use network::{Event, Events, Network, PeerInfo, Reachability, spawn};
#[cfg(feature = "net")]
pub use path::Path;
