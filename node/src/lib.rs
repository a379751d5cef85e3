#![doc = include_str!("../ARCHITECTURE.md")]
#![forbid(unsafe_code)]

pub mod audit;
pub mod batch;
#[cfg(debug_assertions)]
mod cheat;
pub mod cli;
mod clock;
pub mod commands;
pub mod config;
pub mod consent;
pub mod constrain;
pub mod content;
pub mod control;
pub mod daemon;
pub mod error;
pub mod generate;
pub mod journal;
pub mod lessons;
pub mod library;
pub mod local;
mod memory;
pub mod model;
pub mod npy;
pub mod outbox;
pub mod output;
pub mod privacy;
pub mod receipts;
mod redact;
pub mod score;
pub mod serve;
pub mod stage;
pub mod swarmed;
pub mod table;
pub mod telemetry;
pub mod trust;
pub mod worker;

pub use error::{Error, Result};
