//! The `shoal` binary.
#![forbid(unsafe_code)]

fn main() {}
