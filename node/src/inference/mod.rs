//! The two implementations of [`api::Inference`]: this machine alone ([`local`]) and the running node's swarm ([`swarm`]).

pub mod local;
pub mod swarm;
