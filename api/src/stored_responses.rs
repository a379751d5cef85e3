//! Responses that a node stores, so that a client names the last one instead of sending a conversation again.
//!
//! What is stored is one turn: the items that the request brought, the response, and the name of the response it went on
//! from. The turns before it are found by that name, so what is deleted is gone from every later conversation too.
//!
//! ```text
//! resp_a  "Why do lighthouses blink?"   <- resp_b  "In one sentence."   <- resp_c ...
//! ```
//!
//! This crate knows no file. The server is handed a [`StoredResponses`]; without one nothing is stored, and every answer says
//! so. A response is read by who asked for it: the owner, or the holder of the same key.
//!
//! Bounds: [`MAX_BYTES`] of a turn, beyond which it is not stored; [`MAX_TURNS`] and [`MAX_CONVERSATION_BYTES`] of a conversation that
//! is read back, whose bytes count among those of bodies meanwhile.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes of a stored turn as JSON.
pub const MAX_BYTES: usize = 8 << 20;
/// Turns that a conversation is read back through.
pub const MAX_TURNS: usize = 1_024;
/// Bytes of a conversation that is read back, as JSON.
pub const MAX_CONVERSATION_BYTES: usize = 16 << 20;
/// What the name of a response begins with.
pub(crate) const PREFIX: &str = "resp_";
/// Hex digits behind it.
const DIGITS: usize = 24;

/// One turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredResponse {
    /// The key that it was asked with; `None` for the owner.
    pub holder: Option<String>,
    /// The response that it went on from.
    pub previous: Option<String>,
    /// The items of the request.
    pub input: Vec<Value>,
    /// The response, as it was answered.
    pub response: Value,
}

/// Why a response is not there or not stored; says why, without a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

/// Who stores responses. Methods may wait for a disk.
pub trait StoredResponses: std::fmt::Debug + Send + Sync + 'static {
    /// Stores one; whether there was room for it.
    ///
    /// # Errors
    /// When it cannot be written.
    fn store(&self, id: &str, stored: &StoredResponse) -> Result<bool, Broken>;

    /// One that `holder` asked for, which from now on is kept as long as a new one.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read(&self, holder: Option<&str>, id: &str) -> Result<Option<StoredResponse>, Broken>;

    /// Deletes one that `holder` asked for, its bytes on the disk included; whether there was one.
    ///
    /// # Errors
    /// When it cannot be deleted.
    fn remove(&self, holder: Option<&str>, id: &str) -> Result<bool, Broken>;
}

/// Whether this is a response's name.
pub fn is_id(id: &str) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    id.strip_prefix(PREFIX).is_some_and(|rest| rest.len() == DIGITS && rest.bytes().all(hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_name_is_one_and_a_path_is_none() {
        assert!(is_id(&crate::names::fresh(PREFIX)));
        for name in [
            "resp_",
            "resp_../../identity.key....",
            "0123456789abcdef01234567",
            "resp_0123456789ABCDEF01234567",
        ] {
            assert!(!is_id(name), "{name}");
        }
    }
}
