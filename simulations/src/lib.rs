//! Imagines swarms: reads routing and allocation cases and drives the scheduler's own code over them.
#![forbid(unsafe_code)]

pub mod cases;
pub mod scale;
