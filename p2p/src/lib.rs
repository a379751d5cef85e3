//! Carries: what travels between nodes, and how.
//!
//! A node has one [`Identity`]; with a [`Config`] it is [`spawn`]ed into a [`Network`], a handle for what it wants, and
//! [`Events`], the stream of what happens. Three planes share the connections of the swarm:
//!
//! | plane | carries | over | lasts |
//! |---|---|---|---|
//! | gossip | what nodes offer ([`wire::announce`]) | gossipsub, published on change | until its ttl |
//! | control | an ask and its answer ([`wire::control`]) | one substream per ask | one round trip |
//! | data | activation frames ([`wire::frame`]) | one [`Stream`] per (session, neighbor) | the session |
//!
//! ```no_run
//! # async fn example() -> p2p::Result<()> {
//! use p2p::{Config, Event, Identity, Plane};
//!
//! let identity = Identity::load_or_create("identity.key".as_ref())?;
//! let (network, mut events) = p2p::spawn(Config::new(identity)).await?;
//! while let Some(event) = events.next().await {
//!     if let Event::Connected { node, path } = event {
//!         println!("{node} is connected ({path})");
//!         let stream = network.open(node, Plane::Data).await;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What a stranger sends is bounded before it is allocated, checked before it is believed, and never queued without a
//! named limit. Transports authenticate: the [`NodeId`](scheduler::NodeId) of an event is proved, not claimed. Private
//! swarms prove a shared key on every connection before anything else.
#![forbid(unsafe_code)]

mod error;
pub mod identity;

pub mod config;
pub mod invite;
pub mod network;
pub mod path;

pub mod codec;
pub mod wire;

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
