//! Lines that are encrypted with a key of the node's identity: what lies in the data folder and no one else may read.
//!
//! A line is ChaCha20-Poly1305 in Base64. Its key comes from the node's secret for one purpose, the name of the file and a
//! salt that is drawn for every writing; the number of the line is its nonce, so a line is read at its place only. A file
//! that is left behind, in a backup or on a disk that changed hands, tells nothing without `identity.key`.

pub(crate) mod folder;

use std::{io, path::Path};

use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Nonce, aead::Aead};
use data_encoding::BASE64_NOPAD;
use p2p::Identity;

use crate::{Error, Result};

/// The node's key, in its data folder.
pub(crate) const IDENTITY: &str = "identity.key";
/// What a line that holds a salt begins with.
pub(crate) const SALT: &str = "= ";
/// Bytes of a salt: one is never drawn twice.
pub(crate) const SALT_BYTES: usize = 16;

/// What lines of one file are encrypted with.
pub(crate) struct Seal {
    cipher: ChaCha20Poly1305,
}

impl Seal {
    /// Of the file `name` that was written under `salt`.
    pub(crate) fn of(secret: &[u8; 32], name: &str, salt: &[u8]) -> Self {
        let key = blake3::Hasher::new_keyed(secret).update(salt).update(name.as_bytes()).finalize();
        Self { cipher: ChaCha20Poly1305::new(key.as_bytes().into()) }
    }

    fn nonce(line: u64) -> Nonce {
        let mut nonce = Nonce::default();
        nonce[4..].copy_from_slice(&line.to_le_bytes());
        nonce
    }

    /// A payload as line number `line`, without the end of the line.
    pub(crate) fn close(&self, line: u64, payload: &str) -> Result<String> {
        let sealed = self.cipher.encrypt(&Self::nonce(line), payload.as_bytes());
        let sealed = sealed.map_err(|_| Error::Failed("a line could not be encrypted".into()))?;
        Ok(BASE64_NOPAD.encode(&sealed))
    }

    /// The payload of line number `line`; `None` when it is not that line of that file.
    pub(crate) fn open(&self, line: u64, text: &[u8]) -> Option<Vec<u8>> {
        self.cipher.decrypt(&Self::nonce(line), BASE64_NOPAD.decode(text).ok()?.as_slice()).ok()
    }
}

/// A salt.
pub(crate) fn salt() -> Result<[u8; SALT_BYTES]> {
    let mut salt = [0; SALT_BYTES];
    getrandom::fill(&mut salt).map_err(|error| Error::Io(io::Error::other(error)))?;
    Ok(salt)
}

/// The secret, for one purpose, of the node whose data folder this is.
pub(crate) fn secret(home: &Path, purpose: &str) -> Result<[u8; 32]> {
    let identity = Identity::load_or_create(&home.join(IDENTITY));
    Ok(identity.map_err(|error| Error::Failed(error.to_string()))?.secret(purpose))
}
