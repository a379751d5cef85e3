//! Who a node is: one ed25519 key. The public half is its [`NodeId`]; the secret half signs what the node says.
//!
//! A signature covers `blake3(domain | 0 | message)`, where `domain` names the kind of message. So a signature given
//! for an announcement is worth nothing under a receipt, and signing costs the same for any length. Verification is
//! strict (`verify_strict`): keys of small order and non-canonical signatures are refused, so what one node accepts
//! every node accepts.

use std::fmt;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use scheduler::NodeId;

/// A node's key pair. The secret is wiped from memory when dropped and printed by nothing.
#[derive(Clone)]
pub struct Identity {
    key: SigningKey,
}

impl Identity {
    /// A new key from the operating system's randomness.
    ///
    /// # Errors
    /// When the operating system has none to give.
    pub fn generate() -> Result<Self, getrandom::Error> {
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        Ok(Self::from_seed(seed))
    }

    /// The key that belongs to a secret seed; for tests and for keys read from disk.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self { key: SigningKey::from_bytes(&seed) }
    }

    /// The public key.
    pub fn node(&self) -> NodeId {
        NodeId::new(self.key.verifying_key().to_bytes())
    }

    /// Signs `message` as a message of the kind `domain`, such as `shoal/announce/1`.
    pub fn sign(&self, domain: &str, message: &[u8]) -> [u8; 64] {
        self.key.sign(&digest(domain, message)).to_bytes()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.node()).finish()
    }
}

/// Whether `node` signed `message` as a message of the kind `domain`.
pub fn verify(node: NodeId, domain: &str, message: &[u8], signature: &[u8; 64]) -> bool {
    let Ok(key) = VerifyingKey::from_bytes(node.as_bytes()) else { return false };
    key.verify_strict(&digest(domain, message), &Signature::from_bytes(signature)).is_ok()
}

/// What is signed. No domain contains a zero byte, so no two pairs share their bytes.
fn digest(domain: &str, message: &[u8]) -> [u8; 32] {
    debug_assert!(!domain.contains('\0'));
    let mut hasher = blake3::Hasher::new();
    hasher.update(domain.as_bytes()).update(&[0]).update(message);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::{Identity, verify};
    use scheduler::NodeId;

    #[test]
    fn a_signature_holds_for_one_node_domain_and_message() {
        let (me, other) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let signature = me.sign("shoal/a/1", b"text");
        assert!(verify(me.node(), "shoal/a/1", b"text", &signature));
        assert!(!verify(other.node(), "shoal/a/1", b"text", &signature));
        assert!(!verify(me.node(), "shoal/b/1", b"text", &signature));
        assert!(!verify(me.node(), "shoal/a/1", b"texts", &signature));
        for bit in 0..512 {
            let mut bad = signature;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(me.node(), "shoal/a/1", b"text", &bad), "bit {bit}");
        }
    }

    #[test]
    fn keys_of_small_order_sign_nothing() {
        // The neutral point, under which a signature of zeros fits every message unless checking is strict.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        assert!(!verify(NodeId::new(neutral), "shoal/a/1", b"any", &signature));
        assert!(!verify(NodeId::new([0xff; 32]), "shoal/a/1", b"any", &signature));
    }

    #[test]
    fn a_seed_gives_one_key_and_the_secret_stays_unprinted() {
        let me = Identity::from_seed([7; 32]);
        assert_eq!(me.node(), Identity::from_seed([7; 32]).node());
        assert_ne!(Identity::generate().unwrap().node(), Identity::generate().unwrap().node());
        assert_eq!(format!("{me:?}"), format!("Identity({:?})", me.node()));
    }
}
