//! Decides who runs which layers of what. Pure: no clock, no I/O, no async, no serde.
#![forbid(unsafe_code)]

pub mod admit;
pub mod capability;
pub mod chance;
pub mod cost;
mod id;
pub mod latency;
mod layers;
mod pipeline;
pub mod place;
mod policy;
pub mod recover;
pub mod route;
pub mod session;
pub mod snapshot;
pub mod standby;
mod time;
pub mod trust;
pub mod view;

pub use capability::{BadClaim, Capability, Claim, Holding};
pub use id::{ModelId, NodeId, OperatorId, SessionId};
pub use layers::{LayerRange, LayerSet};
pub use pipeline::{Gap, Pipeline, Segment};
pub use policy::{Boomerang, Request, RoutePolicy, Shape};
pub use snapshot::Snapshot;
pub use time::Millis;
pub use view::SwarmView;
