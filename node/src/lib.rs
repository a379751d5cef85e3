#![doc = include_str!("../ARCHITECTURE.md")]
#![forbid(unsafe_code)]

pub mod cli;
pub mod commands;
pub mod content;
pub mod error;
pub mod generate;
pub mod library;
pub mod model;
pub mod npy;
pub mod output;

pub use error::{Error, Result};
