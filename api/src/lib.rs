//! Speaks HTTP.
#![forbid(unsafe_code)]
