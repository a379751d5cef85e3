//! Decides who runs which layers of what. Pure: no clock, no I/O, no async, no serde.
//!
//! A model is a stack of layers; each node of the swarm holds some. A prompt must visit nodes that together hold all
//! of them, in order. Two questions follow, a slow and a fast one:
//!
//! * [`place`]: which layers should each node hold, so that the swarm as a whole answers fastest?
//! * [`route`](mod@route): given who holds what right now, which nodes should *this* prompt visit?
//!
//! and what keeps the answers honest while machines come, go, slow down and lie:
//!
//! ```text
//!  announcements ──▶ view ──▶ snapshot ──▶ route ──▶ pipeline ──▶ session ──▶ actions
//!  measurements ──▶ latency ───┘   cost ────┘   standby ──┘      recover ──┘
//!  outcomes ──▶ trust ─────────┘                  lease ──┘         admit: the serving side's door
//!                                                                              governor: what others may hold
//! ```
//!
//! Everything is a function of its arguments: time is [`Millis`], randomness is a seed ([`rng`]). Nodes with the same
//! view therefore decide alike, and a simulation runs the very code that a node runs. Iteration is always over sorted
//! containers; `.clippy.toml` bans clocks and hash maps in this crate.
//!
//! ```
//! use scheduler::snapshot::{Host, Links};
//! use scheduler::{LayerRange, ModelId, NodeId, Request, Shape, Snapshot, route};
//!
//! let layers = |start, end| LayerRange::new(start, end).expect("not empty").into();
//! let (me, near, far) = (NodeId::numbered(1), NodeId::numbered(2), NodeId::numbered(3));
//! let hosts = vec![
//!     Host::new(me, layers(0, 2), 4.0),
//!     Host::new(near, layers(2, 6), 2.0),
//!     Host::new(far, layers(2, 8), 1.0),
//! ];
//! let ms = vec![0.0, 5.0, 40.0, 5.0, 0.0, 40.0, 40.0, 40.0, 0.0];
//! let snapshot = Snapshot::new(ModelId::default(), 8, None, hosts, &Links::Matrix(ms))?;
//! let found = route::route(&snapshot, &Request::new(me, Shape::ONE_TOKEN))?;
//! // Two layers here, the rest far away: 8 + 40 + 6 + 40. Stopping by at `near` would not save a hop.
//! assert_eq!(found.pipeline.segments().len(), 2);
//! assert_eq!(found.cost.total_ms(), 94.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod attention;
pub mod experts;
mod id;
pub mod layer_cost;
mod layers;
mod no_route;
mod pipeline;
mod policy;
mod time;

pub mod capability;
pub mod cluster;
pub mod coordinate;
pub mod correction;
pub mod forecast;
pub mod latency;
pub mod trust;
pub mod view;

pub mod cost;
pub mod decide;
pub mod route;
pub mod snapshot;
pub mod standby;
pub mod sticky;

pub mod holders;
pub mod place;

pub mod account;
pub mod admit;
pub mod backlog;
pub mod depth;
pub mod door;
pub mod governor;
pub mod keep;
pub mod lease;
pub mod reach;
pub mod recover;
pub mod session;
pub mod session_kind;

pub mod rng;

pub use attention::AttentionKind;
pub use capability::{BadClaim, Capability, Claim, Holding};
pub use experts::ExpertRange;
pub use id::{ModelId, NodeId, OperatorId, SessionId};
pub use layers::{LayerRange, LayerSet};
pub use pipeline::{Gap, Pipeline, Segment};
pub use policy::{Boomerang, Request, RoutePolicy, Shape};
pub use session_kind::{CacheType, SessionKind};
pub use snapshot::Snapshot;
pub use time::Millis;
pub use view::SwarmView;
