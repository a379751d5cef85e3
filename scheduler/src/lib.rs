//! Decides who runs which layers of what. Pure: no clock, no I/O, no async, no serde.
#![forbid(unsafe_code)]

pub mod chance;
pub mod cost;
mod id;
mod layers;
mod pipeline;
pub mod place;
mod policy;
pub mod route;
pub mod snapshot;
pub mod standby;
mod time;

pub use id::{ModelId, NodeId, OperatorId, SessionId};
pub use layers::{LayerRange, LayerSet};
pub use pipeline::{Gap, Pipeline, Segment};
pub use policy::{Boomerang, Request, RoutePolicy, Shape};
pub use snapshot::Snapshot;
pub use time::Millis;
