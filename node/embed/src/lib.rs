//! A model inside another program, without a process of its own and without a network.
//!
//! [`Model`] loads what `shoal run --model` loads and computes what `shoal run` computes, by the same code: the same prompt,
//! seed and temperature give the same text. The same three verbs (load, generate, cancel) are there for C, in
//! `include/shoal.h`, and for Python, in the package of the folder `python`.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! let model = shoal::Model::load("minnow", 0)?;
//! model.generate("Tell me a story", &shoal::Options::default(), &|| false, &mut |piece| {
//!     print!("{piece}");
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), shoal::Error>(())
//! ```
//!
//! To be part of a swarm, a program embeds `shoal-node` itself: its example `join`.
//!
//! Limits: answers of one model take turns, each with a session of its own; a file of a stranger is parsed in the process
//! that loads it, with all its rights, where `shoal serve` gives them up first.
#![deny(unsafe_code)]

mod c;
mod model;
mod turn;

pub use model::{Error, Finish, Model, Options};
