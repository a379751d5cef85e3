//! Conducts: commands, configuration, the life of a prompt.
#![forbid(unsafe_code)]
