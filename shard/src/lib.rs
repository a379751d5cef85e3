//! Computes: bytes of a model file become text, the same bits on every machine.
//!
//! In the order bytes become text: [`gguf`] reads the file, [`tokenizer`] turns text into ids and back, [`models`] says what
//! the model is, [`quant`] what its weights look like, [`kernels`] multiply them, [`state`] keeps what a session remembers,
//! [`executor`] runs the layers, [`mod@round`]ing between some of them as a wire would, [`sample`] chooses a token and [`stop`]
//! knows when to end.
//!
//! ```text
//! ids -> embedding -> [ norm, attention, norm, feed-forward ] x layers -> norm, head -> logits -> next id
//! ```
//!
//! Around them: [`convert`] makes GGUF files from what publishers ship, [`synthetic`] makes random ones, [`golden`] holds
//! the hashes every machine must reproduce, [`probe`] measures the machine.

pub mod convert;
pub mod draft;
pub mod error;
pub mod executor;
mod fma;
pub mod gguf;
pub mod golden;
pub mod kernels;
pub mod models;
pub mod probe;
pub mod quant;
pub mod round;
pub mod sample;
pub mod state;
pub mod stop;
pub mod synthetic;
pub mod tokenizer;
pub mod tolerance;

pub use error::{Error, Result};
