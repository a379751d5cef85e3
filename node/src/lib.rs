#![doc = include_str!("../ARCHITECTURE.md")]
#![forbid(unsafe_code)]

pub mod audit;
mod byte_planes;
pub mod catalog;
#[cfg(debug_assertions)]
mod cheat;
pub mod cli;
mod clock;
pub mod commands;
pub mod config;
pub mod confine;
pub mod consent;
pub mod constrain;
pub mod content;
pub mod context_shift;
pub mod control;
pub mod conversations;
pub mod daemon;
pub mod distill;
mod doors;
pub mod drafting;
pub mod encode;
pub mod error;
pub mod events;
pub mod feedback;
pub mod header;
pub mod identity;
pub mod inference;
pub mod journal;
pub mod keys;
pub mod library;
mod memory;
pub mod model;
pub mod model_shelf;
pub mod node_names;
pub mod npy;
pub mod output;
pub mod panel_cache;
pub mod privacy;
mod private_folder;
pub mod receipts;
mod redact;
pub mod reports;
pub mod request;
pub mod rounding;
pub mod score;
mod sealed;
pub mod sessions;
pub mod stage;
pub mod state_store;
pub mod swarm_history;
pub mod telemetry;
pub mod trust;
pub mod upgrade;
pub mod worker;

pub use error::{Error, Result};
