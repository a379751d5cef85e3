//! The one word for bytes that are not what they should be.

use std::fmt;

/// Why bytes were refused. Nothing was changed by them; the sender speaks another protocol, or lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed(pub(crate) &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed bytes ({}): drop the message", self.0)
    }
}

impl std::error::Error for Malformed {}
