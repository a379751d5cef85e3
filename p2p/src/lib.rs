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
#![deny(unsafe_code)]

mod error;
pub mod identity;
mod malformed;

#[cfg(feature = "net")]
pub mod config;
#[cfg(feature = "net")]
pub mod governor;
#[cfg(feature = "net")]
pub mod invite;
#[cfg(feature = "net")]
mod link_kind;
#[cfg(feature = "net")]
pub mod network;
#[cfg(feature = "net")]
pub mod path;
#[cfg(feature = "net")]
mod plane;

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
mod disclosure;
#[cfg(feature = "net")]
mod doors;
#[cfg(feature = "net")]
mod event;
#[cfg(feature = "net")]
mod event_loop;
#[cfg(feature = "net")]
mod gate;
#[cfg(feature = "net")]
mod gossip;
#[cfg(feature = "net")]
pub mod home;
#[cfg(feature = "net")]
mod introduction;
#[cfg(feature = "net")]
mod kademlia;
#[cfg(feature = "net")]
pub mod members;
#[cfg(feature = "net")]
mod named;
#[cfg(feature = "net")]
mod own_port;
#[cfg(feature = "net")]
mod peers;
#[cfg(feature = "net")]
mod pulse;
#[cfg(feature = "net")]
mod relay;
#[cfg(feature = "net")]
mod transport;
#[cfg(feature = "net")]
mod waiting_room;
#[cfg(feature = "net")]
mod watch;
#[cfg(feature = "net")]
mod woken;

#[cfg(feature = "net")]
pub use config::{Admission, Config, LinkConfig, Reach, SwarmId, VERSION};
#[cfg(feature = "net")]
pub use control::ReplyTo;
pub use error::{Error, HopError, Result};
#[cfg(feature = "net")]
pub use event::{Event, PeerInfo, Reachability, RefusedPeer};
#[cfg(feature = "net")]
pub use governor::{Governor, Permit};
pub use identity::Identity;
#[cfg(feature = "net")]
pub use invite::Invite;
#[cfg(feature = "net")]
pub use link::{Figures, LinkInfo, Stream, module_state};
#[cfg(feature = "net")]
pub use link_kind::{LinkKind, LinkMode};
#[cfg(feature = "net")]
pub use network::{Events, Network, spawn, spawn_under};
#[cfg(feature = "net")]
pub use path::Path;
#[cfg(feature = "net")]
pub use plane::Plane;
