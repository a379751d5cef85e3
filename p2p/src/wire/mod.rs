//! What strangers' bytes mean: fixed little-endian layouts, written and read by hand.
//!
//! | message | file | plane | signed |
//! |---|---|---|---|
//! | activations and what is said beside them | [`frame`] | data, one stream per (session, neighbor) | no |
//! | asking a node for something, its answer | [`control`] | control, one call each | no |
//! | a prompt that another node drives | [`delegate`] | delegate, one stream per prompt | no |
//! | rows that experts elsewhere compute, their outputs | [`experts`] | experts, one stream per leader and holder | no |
//! | a state, from the node that computed it | [`pages`] | pages, one stream per state | by the requester and the holder |
//! | what a node offers | [`announce`] | gossip | by the node |
//! | that it still does | [`renewal`] | gossip | by the node |
//! | what a stage computed, receipts, proofs | [`receipt`] | data, control | by the stage, the requester or both |
//!
//! Decoding is where bytes of strangers enter. Every `decode` here
//! * reads through [`cursor::Reader`], which cannot read past the end, and allocates at most a small multiple of the
//!   bytes present, whatever lengths they claim;
//! * refuses trailing bytes, unknown tags and flags, and values beyond their bounds;
//! * accepts one encoding per value, so bytes can be compared and hashed in place of values;
//! * gives a checked type, so no later code checks again.
//!
//! Encoding cannot fail, except for what is signed: a value beyond its bound becomes bytes that `decode` refuses.
//! The layouts are frozen by the golden bytes of the tests; a change needs a new protocol name.

pub mod announce;
pub mod control;
pub mod cursor;
pub mod delegate;
pub mod experts;
mod fields;
pub mod frame;
pub mod pages;
pub mod prefix;
pub mod receipt;
pub mod renewal;

pub use crate::malformed::Malformed;

#[cfg(test)]
mod tests;
