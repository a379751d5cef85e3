//! One binary for all cross-crate tests: the heavy crates are linked once.
#![forbid(unsafe_code)]

mod candle;
mod cli;
mod convert;
mod privacy;
mod repo;
mod wire;
