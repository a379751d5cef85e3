//! Carries: what travels between nodes, and how.
#![forbid(unsafe_code)]

mod error;
pub mod identity;

pub use error::{Error, HopError, Result};
pub use identity::Identity;
