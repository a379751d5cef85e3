//! Carries: what travels between nodes, and how.
#![forbid(unsafe_code)]

pub mod identity;

pub mod blob;
pub mod codec;
pub mod wire;
