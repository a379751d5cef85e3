//! Keys of a session, and the seal of a message.
//!
//! Both ends derive the same keys from the secret of an X25519 exchange that they make on a stream which libp2p has
//! authenticated: BLAKE3 extracts a secret from the exchange and both public keys, and expands it under a name for each direction and
//! purpose. Every epoch has an exchange of its own, and the keys of one say nothing of another's.
//!
//! A message is sealed once as a whole, with ChaCha20-Poly1305 (RFC 8439) and a nonce that never comes twice under a key: epoch,
//! direction and message number. What only tags datagrams (a kernel module) holds header keys and never one of these.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use x25519_dalek::{EphemeralSecret, PublicKey};

use super::header::HeaderKey;

/// Bytes that a seal adds to a message.
pub(crate) const SEAL_LEN: usize = 16;

const SECRET_NAME: &str = "shoal lan v2 secret";
const HEADER_NAMES: [&str; 2] = ["shoal lan v2 header 0", "shoal lan v2 header 1"];
const SEAL_NAMES: [&str; 2] = ["shoal lan v2 seal 0", "shoal lan v2 seal 1"];

/// Which way a message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// From the end that dialed the session.
    FromDialer = 0,
    /// To it.
    ToDialer = 1,
}

impl Direction {
    pub(crate) fn back(self) -> Self {
        if self == Self::FromDialer { Self::ToDialer } else { Self::FromDialer }
    }
}

/// What both ends know and no other.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    #[cfg(test)]
    pub(crate) fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// Of an exchange: this end's part, its public key, and that of the other end; `publics` are both, the dialer's first. `None` where
    /// the other end's key is one that any secret gives the same with.
    pub(crate) fn agreed(own: EphemeralSecret, theirs: &PublicKey, publics: [&PublicKey; 2]) -> Option<Self> {
        let shared = own.diffie_hellman(theirs);
        let material =
            [shared.as_bytes(), publics[0].as_bytes(), publics[1].as_bytes()].map(|part| &part[..]).concat();
        shared.was_contributory().then(|| Self(blake3::derive_key(SECRET_NAME, &material)))
    }

    /// The keys of one direction in the epoch that the exchange was made for.
    pub(crate) fn keys(&self, direction: Direction, epoch: u32) -> Keys {
        let derive = |name: &str| blake3::derive_key(name, &self.0);
        let header = derive(HEADER_NAMES[direction as usize]);
        let seal = derive(SEAL_NAMES[direction as usize]);
        let seal = UnboundKey::new(&CHACHA20_POLY1305, &seal).expect("the cipher's keys have 32 bytes");
        let header = HeaderKey::new(std::array::from_fn(|i| header[i]));
        Keys { epoch, direction, header, seal: LessSafeKey::new(seal) }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The keys of one direction in one epoch.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) epoch: u32,
    direction: Direction,
    pub(crate) header: HeaderKey,
    seal: LessSafeKey,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys of epoch {}", self.epoch)
    }
}

impl Keys {
    fn nonce(&self, message: u32) -> Nonce {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.epoch.to_le_bytes());
        nonce[4..8].copy_from_slice(&(self.direction as u32).to_le_bytes());
        nonce[8..].copy_from_slice(&message.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn about(session: u64, message: u32, sealed_len: usize) -> Aad<[u8; 16]> {
        let mut about = [0; 16];
        about[..8].copy_from_slice(&session.to_le_bytes());
        about[8..12].copy_from_slice(&message.to_le_bytes());
        about[12..].copy_from_slice(&(sealed_len as u32).to_le_bytes());
        Aad::from(about)
    }

    /// Encrypts `message` where it lies and appends its seal. `session` is the receiver's name for it.
    pub(crate) fn seal(&self, session: u64, number: u32, message: &mut Vec<u8>) {
        let about = Self::about(session, number, message.len() + SEAL_LEN);
        let sealed = self.seal.seal_in_place_separate_tag(self.nonce(number), about, message);
        let tag = sealed.expect("a message is far shorter than the cipher's limit of 256 GiB");
        message.extend_from_slice(tag.as_ref());
    }

    /// Decrypts what [`Keys::seal`] made, where it lies. False when it was made with another key, for another place, or
    /// changed on the way: nothing is left of it then.
    #[must_use]
    pub(crate) fn open(&self, session: u64, number: u32, sealed: &mut Vec<u8>) -> bool {
        let about = Self::about(session, number, sealed.len());
        let opened = self.seal.open_in_place(self.nonce(number), about, sealed).map(|message| message.len());
        sealed.truncate(opened.unwrap_or(0));
        opened.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of an exchange have one secret, which depends on both public keys.
    #[test]
    fn an_exchange_gives_both_ends_the_same_keys() {
        let (one, other) = (EphemeralSecret::random(), EphemeralSecret::random());
        let publics = [PublicKey::from(&one), PublicKey::from(&other)];
        let both = [&publics[0], &publics[1]];
        let here = Secret::agreed(one, &publics[1], both).unwrap();
        let there = Secret::agreed(other, &publics[0], both).unwrap();
        assert_eq!(here.0, there.0);
        let (own, weak) = (EphemeralSecret::random(), PublicKey::from([0; 32]));
        assert!(
            Secret::agreed(own, &weak, [&weak, &publics[0]]).is_none(),
            "a key that gives nothing is refused"
        );
        let own = EphemeralSecret::random();
        assert_ne!(Secret::agreed(own, &publics[1], both).unwrap().0, here.0);
    }

    #[test]
    fn a_seal_holds_for_its_place_only() {
        let secret = Secret::new([7; 32]);
        let there = secret.keys(Direction::FromDialer, 0);
        let mut sealed = b"hidden states".to_vec();
        there.seal(5, 9, &mut sealed);
        assert_eq!(sealed.len(), 13 + SEAL_LEN);
        let opens = |keys: &Keys, session, number| {
            let mut copy = sealed.clone();
            keys.open(session, number, &mut copy) && copy == b"hidden states"
        };
        assert!(opens(&there, 5, 9));
        assert!(!opens(&there, 6, 9) && !opens(&there, 5, 10));
        assert!(!opens(&secret.keys(Direction::ToDialer, 0), 5, 9));
        assert!(!opens(&secret.keys(Direction::FromDialer, 1), 5, 9));
        assert!(!opens(&Secret::new([8; 32]).keys(Direction::FromDialer, 0), 5, 9));
        for at in 0..sealed.len() {
            let mut copy = sealed.clone();
            copy[at] ^= 1;
            assert!(!there.open(5, 9, &mut copy));
        }
        assert!(!there.open(5, 9, &mut Vec::new()));
    }
}
