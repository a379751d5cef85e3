#![doc = include_str!("../ARCHITECTURE.md")]
#![forbid(unsafe_code)]

pub mod batch;
pub mod cli;
pub mod commands;
pub mod constrain;
pub mod error;
pub mod generate;
pub mod library;
pub mod model;
pub mod npy;
pub mod output;
pub mod serve;

pub use error::{Error, Result};
