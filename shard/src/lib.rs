//! Computes: bytes of a model file become text, the same bits on every machine.

pub mod convert;
pub mod engine;
pub mod error;
pub mod gguf;
pub mod kernels;
pub mod kv;
pub mod models;
pub mod quant;
pub mod reference;
pub mod sample;
pub mod synthetic;
pub mod tokenizer;

pub use error::{Error, Result};
