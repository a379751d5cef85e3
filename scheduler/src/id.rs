//! Names of nodes, operators, models and sessions.
//!
//! Fixed-width byte strings, ordered bytewise, so that every node sorts them alike. They are opaque here: the
//! network crate knows that a [`NodeId`] is a public key, the shard crate that a [`ModelId`] is a hash.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $bytes:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Wraps the raw bytes.
            pub const fn new(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// A name whose first eight bytes are `number` in big-endian order, so names sort as their numbers do.
            /// For tests, simulations and cases that number their nodes.
            pub const fn numbered(number: u64) -> Self {
                let mut bytes = [0; $bytes];
                let head = number.to_be_bytes();
                let mut i = 0;
                while i < 8 {
                    bytes[i] = head[i];
                    i += 1;
                }
                Self(bytes)
            }

            /// The raw bytes.
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            /// The first four bytes in hex: enough to tell the peers of one swarm apart on a screen.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    };
}

id!(
    /// One running peer: its 32-byte public key.
    NodeId,
    32
);
id!(
    /// Who answers for a node. Two nodes of one operator fail, lie and leave together, so they do not cover each
    /// other when another choice exists.
    OperatorId,
    32
);
id!(
    /// One model: the 32-byte hash of its manifest.
    ModelId,
    32
);
id!(
    /// One prompt in flight.
    SessionId,
    16
);

#[cfg(test)]
mod tests {
    use super::NodeId;

    #[test]
    fn numbered_names_sort_as_numbers_and_print_short() {
        assert!(NodeId::numbered(255) < NodeId::numbered(256));
        let id = NodeId::numbered(0x0102_0304_0506_0708);
        assert_eq!(id.to_string(), "01020304");
        assert_eq!(format!("{id:?}").len(), 64);
    }
}
