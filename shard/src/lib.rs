//! Computes: bytes of a model file become text, the same bits on every machine.

pub mod error;
pub mod gguf;
pub mod quant;
pub mod kernels;
pub mod models;
pub mod kv;
pub mod engine;
pub mod sample;
pub mod tokenizer;
pub mod convert;

pub use error::{Error, Result};
