//! Decides who runs which layers of what. Pure: no clock, no I/O, no async, no serde.
#![forbid(unsafe_code)]

mod layers;

pub use layers::LayerRange;
