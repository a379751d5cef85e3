//! What a session remembers between passes.
//!
//! [`paged`] holds keys and values in pages of positions, [`prefix`] keeps finished sessions for prompts that begin alike.

pub mod paged;
pub mod prefix;

pub use paged::KvCache;
pub use prefix::PrefixCache;
