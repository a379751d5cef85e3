//! Keys of a session, and the seal of a message.
//!
//! Both ends derive the same keys from the secret of an X25519 exchange that they make on a stream which libp2p has
//! authenticated: BLAKE3 extracts a secret from the exchange and both public keys, and expands it under a name for each direction and
//! purpose. Every epoch has an exchange of its own, and the keys of one say nothing of another's.
//!
//! A message is sealed once as a whole, with the [`Cipher`] of the session and a nonce that never comes twice under a key: epoch,
//! direction and message number. What only tags datagrams (a kernel module) holds header keys and never one of these.

use ring::aead::{AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use x25519_dalek::{EphemeralSecret, PublicKey};

use super::header::HeaderKey;

/// Bytes that a seal adds to a message.
pub(crate) const SEAL_LEN: usize = 16;

const SECRET_NAME: &str = "shoal lan v2 secret";
const HEADER_NAMES: [&str; 2] = ["shoal lan v2 header 0", "shoal lan v2 header 1"];
const SEAL_NAMES: [&str; 2] = ["shoal lan v2 seal 0", "shoal lan v2 seal 1"];
const AES_NAMES: [&str; 2] = ["shoal lan v2 aes 0", "shoal lan v2 aes 1"];

/// What seals the messages of a session: the faster one of both that both ends compute without tables, in constant time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cipher {
    /// ChaCha20-Poly1305 (RFC 8439): fast on every processor.
    ChaCha20Poly1305,
    /// AES-256-GCM (NIST SP 800-38D): several times as fast where the processors of both ends have instructions for it.
    Aes256Gcm,
}

impl Cipher {
    /// That of two ends, each of which says whether it has the instructions.
    pub(crate) fn of(ends_have_aes: [bool; 2]) -> Self {
        if ends_have_aes == [true; 2] { Self::Aes256Gcm } else { Self::ChaCha20Poly1305 }
    }

    fn parts(self) -> (&'static Algorithm, [&'static str; 2]) {
        match self {
            Self::ChaCha20Poly1305 => (&CHACHA20_POLY1305, SEAL_NAMES),
            Self::Aes256Gcm => (&AES_256_GCM, AES_NAMES),
        }
    }
}

/// Whether this processor has instructions for AES and for the products of GCM.
pub(crate) fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

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
    pub(crate) fn keys(&self, direction: Direction, epoch: u32, cipher: Cipher) -> Keys {
        let derive = |name: &str| blake3::derive_key(name, &self.0);
        let (algorithm, names) = cipher.parts();
        let header = derive(HEADER_NAMES[direction as usize]);
        let seal = derive(names[direction as usize]);
        let seal = UnboundKey::new(algorithm, &seal).expect("the ciphers' keys have 32 bytes");
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
        for cipher in [Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm] {
            let keys =
                |secret: [u8; 32], direction, epoch| Secret::new(secret).keys(direction, epoch, cipher);
            let there = keys([7; 32], Direction::FromDialer, 0);
            let mut sealed = b"hidden states".to_vec();
            there.seal(5, 9, &mut sealed);
            assert_eq!(sealed.len(), 13 + SEAL_LEN);
            let opens = |keys: &Keys, session, number| {
                let mut copy = sealed.clone();
                keys.open(session, number, &mut copy) && copy == b"hidden states"
            };
            assert!(opens(&there, 5, 9));
            assert!(!opens(&there, 6, 9) && !opens(&there, 5, 10));
            assert!(!opens(&keys([7; 32], Direction::ToDialer, 0), 5, 9));
            assert!(!opens(&keys([7; 32], Direction::FromDialer, 1), 5, 9));
            assert!(!opens(&keys([8; 32], Direction::FromDialer, 0), 5, 9));
            for at in 0..sealed.len() {
                let mut copy = sealed.clone();
                copy[at] ^= 1;
                assert!(!there.open(5, 9, &mut copy));
            }
            assert!(!there.open(5, 9, &mut Vec::new()));
        }
        assert_eq!(Cipher::of([true, false]), Cipher::ChaCha20Poly1305);
    }
}
