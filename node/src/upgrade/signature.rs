//! Signatures of releases, in the format of minisign.
//!
//! ```text
//! key file          untrusted comment: anything
//!                   Base64 of: "Ed" | number of the key, 8 bytes | public key, 32 bytes
//! FILE.minisig      untrusted comment: anything
//!                   Base64 of: "ED" | number of the key | signature of BLAKE2b-512(FILE), 64 bytes
//!                   trusted comment: TEXT
//!                   Base64 of: signature of (the signature before | TEXT), 64 bytes
//! ```
//!
//! Limits: the older form, which signs the file itself (`Ed` in the signature), is refused.

use blake2::{Blake2b512, Digest};
use data_encoding::{BASE64, HEXUPPER};
use ed25519_dalek::{Signature, VerifyingKey};

/// Longest key or signature file, bytes.
pub const MAX_BYTES: usize = 8 << 10;
const KEY_KIND: &[u8; 2] = b"Ed";
const HASHED: &[u8; 2] = b"ED";

/// Who signs releases.
#[derive(Clone, Debug)]
pub struct PublicKey {
    number: [u8; 8],
    key: VerifyingKey,
}

impl PublicKey {
    /// The key as `minisign -G` prints it, alone or in its file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.rfind(|line| !line.starts_with("untrusted comment:")).ok_or("it is empty")?;
        let bytes = BASE64.decode(line.as_bytes()).map_err(|_| "it is not Base64")?;
        let bytes: [u8; 42] = bytes.try_into().map_err(|_| "it has not the length of a minisign key")?;
        let (kind, rest) = bytes.split_at(2);
        let (number, key) = rest.split_at(8);
        let key = key.try_into().ok().and_then(|key: [u8; 32]| VerifyingKey::from_bytes(&key).ok());
        match (kind == KEY_KIND, key, number.try_into()) {
            (true, Some(key), Ok(number)) => Ok(Self { number, key }),
            _ => Err("it is no ed25519 key".into()),
        }
    }

    /// Its number, as minisign prints it.
    pub fn number(&self) -> String {
        hex(self.number)
    }

    /// Whether this key signed `file` in `signature`; the comment that was signed with it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn verify(&self, file: &[u8], signature: &str) -> Result<String, String> {
        let lines: Vec<&str> = signature.lines().map(str::trim_end).collect();
        let [first, signed, comment, both, rest @ ..] = lines.as_slice() else {
            return Err("it is cut short".into());
        };
        let comment =
            comment.strip_prefix("trusted comment: ").filter(|_| first.starts_with("untrusted comment:"));
        let comment = comment.filter(|_| rest.iter().all(|line| line.is_empty()));
        let comment = comment.ok_or("it is no signature of minisign")?;
        let signed: Option<[u8; 74]> = decoded(signed);
        let both: Option<[u8; 64]> = decoded(both);
        let (Some(signed), Some(both)) = (signed, both) else { return Err("it is damaged".into()) };
        let (kind, rest) = signed.split_at(2);
        let (number, signature) = rest.split_at(8);
        if kind != HASHED {
            return Err("it is of an old form that is not taken: sign with minisign 0.11 or later".into());
        }
        if number != self.number {
            let other = number.try_into().map(hex).unwrap_or_default();
            return Err(format!("it was made with the key {other} and not with {}", self.number()));
        }
        let sound = |message: &[u8], signature: &[u8]| {
            let signature = Signature::from_slice(signature);
            signature.is_ok_and(|signature| self.key.verify_strict(message, &signature).is_ok())
        };
        if !sound(&Blake2b512::digest(file), signature) {
            return Err("the file is not the one that was signed".into());
        }
        if !sound(&[signature, comment.as_bytes()].concat(), &both) {
            return Err("its comment is not the one that was signed".into());
        }
        Ok(comment.to_owned())
    }
}

fn decoded<const N: usize>(line: &str) -> Option<[u8; N]> {
    BASE64.decode(line.as_bytes()).ok()?.try_into().ok()
}

/// Numbers are little endian and written from the greatest digit.
fn hex(mut number: [u8; 8]) -> String {
    number.reverse();
    HEXUPPER.encode(&number)
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer, SigningKey};

    use super::*;

    fn key(seed: u8) -> (SigningKey, String) {
        let key = SigningKey::from_bytes(&[seed; 32]);
        let bytes = [&KEY_KIND[..], &[seed; 8], key.verifying_key().as_bytes()].concat();
        (key, format!("untrusted comment: a key\n{}\n", BASE64.encode(&bytes)))
    }

    fn signed(seed: u8, file: &[u8], comment: &str) -> String {
        let key = key(seed).0;
        let signature = key.sign(&Blake2b512::digest(file)).to_bytes();
        let both = key.sign(&[&signature, comment.as_bytes()].concat()).to_bytes();
        let first = [&HASHED[..], &[seed; 8], &signature].concat();
        let (first, both) = (BASE64.encode(&first), BASE64.encode(&both));
        format!("untrusted comment: x\n{first}\ntrusted comment: {comment}\n{both}\n")
    }

    #[test]
    fn a_signature_holds_for_its_file_key_and_comment_only() {
        let (mine, other) = (PublicKey::parse(&key(1).1).unwrap(), PublicKey::parse(&key(2).1).unwrap());
        assert_eq!(mine.number(), "0101010101010101");
        let signature = signed(1, b"archive", "file:a");
        assert_eq!(mine.verify(b"archive", &signature).unwrap(), "file:a");
        assert!(mine.verify(b"archivf", &signature).unwrap_err().contains("not the one"));
        assert!(other.verify(b"archive", &signature).unwrap_err().contains("with the key 01010101"));
        assert!(
            mine.verify(b"archive", &signature.replace("file:a", "file:b")).unwrap_err().contains("comment")
        );
        // The number is no part of what is signed: it decides nothing by itself.
        let forged = signed(2, b"archive", "file:a").replace('\n', "\u{1}");
        assert!(mine.verify(b"archive", &forged).is_err());
        for cut in 0..signature.trim_end().len() {
            assert!(mine.verify(b"archive", &signature[..cut]).is_err(), "{cut}");
        }
    }

    /// What minisign 0.11 made of the file `archive`, and of the older form.
    #[test]
    fn what_minisign_makes_is_read() {
        let key = PublicKey::parse(
            "untrusted comment: minisign public key 56424EFA4F01B456\n\
             RWRWtAFP+k5CVo2FkQ+Q93aSyTbm48v0caYCMKOoPI9qNqfDa30anhQh\n",
        )
        .unwrap();
        let signature = "untrusted comment: signature from minisign secret key\n\
            RURWtAFP+k5CVrelNLVUKquoapVHML9CgdgmGVfXXqJgfaD+6REvtey+Cdjx4TtwoUXlN2mWhsI6xPUVhTemVdTnzD6yKIJw1gE=\n\
            trusted comment: shoal-9.0.0-linux-x86_64\n\
            OFM99oDzmT91iJTBeSOchQa13ConVi33yrSFO7pvqae2+wjtN3QGIlSfdUYJ1aEKmxkxwRHYt7CE0BKozyl9BA==\n";
        assert_eq!(key.number(), "56424EFA4F01B456");
        assert_eq!(key.verify(b"archive", signature).unwrap(), "shoal-9.0.0-linux-x86_64");
        let old = "untrusted comment: signature from minisign secret key\n\
            RWRWtAFP+k5CVpynstCEjhjwxCuSL8a5zo3D6O39aot6ritZL3dsidtvelNT0oSUAhgjCF9HJybK2klcvdGSDKQQbV4If2kOwAk=\n\
            trusted comment: old\n\
            Ua6//nIKISJz/9TEp3hWBWMw6ze+ISWkzqIHYcj4Lzq0n3BBv0ynuotNsXhpcPGOCz+3pKmQYR2uxsUIHZ5BCA==\n";
        assert!(key.verify(b"archive", old).unwrap_err().contains("old form"));
    }

    #[test]
    fn another_key_under_the_same_number_signs_nothing() {
        let mine = PublicKey::parse(&key(1).1).unwrap();
        let forger = SigningKey::from_bytes(&[9; 32]);
        let signature = forger.sign(&Blake2b512::digest(b"archive")).to_bytes();
        let both = forger.sign(&[&signature[..], b"c"].concat()).to_bytes();
        let first = BASE64.encode(&[&HASHED[..], &[1; 8], &signature].concat());
        let text = format!("untrusted comment: x\n{first}\ntrusted comment: c\n{}\n", BASE64.encode(&both));
        assert!(mine.verify(b"archive", &text).unwrap_err().contains("not the one that was signed"));
    }

    #[test]
    fn keys_are_read_alone_and_in_their_file() {
        let text = key(3).1;
        let alone = text.lines().last().unwrap();
        assert_eq!(PublicKey::parse(alone).unwrap().number(), PublicKey::parse(&text).unwrap().number());
        for wrong in ["", "untrusted comment: only", "RWQ", "!!!", &alone[..40], &alone.replacen('R', "S", 1)]
        {
            assert!(PublicKey::parse(wrong).is_err(), "{wrong}");
        }
    }
}
