//! Carries: what travels between nodes, and how.
#![forbid(unsafe_code)]

mod error;
pub mod identity;

pub mod config;
pub mod invite;
pub mod network;
pub mod path;

pub mod codec;
pub mod wire;

pub mod blob;

mod control;
pub mod link;

mod behaviour;
mod event_loop;
mod gate;
mod gossip;
mod peers;
mod transport;

pub use config::{Config, SwarmId};
pub use control::ReplyTo;
pub use error::{Error, HopError, Result};
pub use identity::Identity;
pub use invite::Invite;
pub use link::{Plane, Stream};
pub use network::{Event, Events, Network, PeerInfo, Reachability, spawn};
pub use path::Path;
