//! Carries: what travels between nodes, and how.
#![forbid(unsafe_code)]

pub mod codec;
pub mod config;
mod error;
mod gate;
pub mod identity;
pub mod link;
pub mod path;
mod transport;
pub mod wire;

pub use config::{Config, SwarmId};
pub use error::{Error, HopError, Result};
pub use identity::Identity;
pub use link::{Plane, Stream};
pub use path::Path;
