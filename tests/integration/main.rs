//! One binary for all cross-crate tests: the heavy crates are linked once.
#![forbid(unsafe_code)]

mod again;
mod browser;
mod candle;
mod cli;
mod clients;
mod completions;
mod confined;
mod consent;
mod content;
mod convert;
mod delay;
mod disasters;
mod drafts;
mod examples;
mod failover;
mod guides;
mod hostile;
mod joining;
mod kmod;
mod lab;
mod models;
mod operate;
mod packaging;
mod prefix;
mod privacy;
mod pull;
mod recurrent;
mod repo;
mod routes;
mod soak;
mod structure;
mod swarm;
mod tolerance;
mod verify;
mod wire;
