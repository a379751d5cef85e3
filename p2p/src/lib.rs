//! Carries: what travels between nodes, and how.
#![forbid(unsafe_code)]

pub mod blob;
