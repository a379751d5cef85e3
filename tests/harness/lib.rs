//! What the integration tests share.
#![forbid(unsafe_code)]
