//! The file that an identity travels in, encrypted under a passphrase.
//!
//! ```text
//! "shoal identity\n"      15 bytes
//! version                 1 byte, 1
//! memory, passes, lanes   u32 each: Argon2id (RFC 9106), memory in KiB
//! salt                    16 bytes, drawn for every file
//! sealed                  ChaCha20-Poly1305 of the content; all of the above is authenticated with it
//! checksum                32 bytes, BLAKE3 of all of the above
//!
//! content                 u32 length | list of names and lengths, as JSON | the files, one after the other
//! ```
//!
//! Integers are little endian. The checksum tells damage from a wrong passphrase and protects nothing: the seal does. A salt
//! makes a key that encrypts one file, so the nonce is zero.
//!
//! Bounds: [`MAX_BYTES`] a file, [`MAX_FILES`] in it, and the cost of the key, so that a file of others neither fills the memory nor
//! computes for hours.

use std::{fs::File, io::Read, path::Path};

use argon2::{Algorithm, Argon2, Block, Params, Version};
use chacha20poly1305::{
    ChaCha20Poly1305, KeyInit, Nonce,
    aead::{Aead, Payload},
};
use p2p::Identity;
use serde::{Deserialize, Serialize};

use crate::{Error, Result, sealed};

/// Longest file: all conversations that a node keeps have 256 MiB, the rest has a few.
pub const MAX_BYTES: usize = 320 << 20;
/// Most files in it: 2,000 conversations, and room.
pub const MAX_FILES: usize = 4_096;
/// The fewest letters of a passphrase.
pub const LEAST_PASSPHRASE: usize = 8;
const MAGIC: &[u8; 15] = b"shoal identity\n";
const VERSION: u8 = 1;
const HEAD: usize = MAGIC.len() + 1 + 3 * 4 + sealed::SALT_BYTES;
const CHECKSUM: usize = 32;
/// What RFC 9106 recommends where memory is scarce: 64 MiB, three passes, four lanes.
const COST: Cost = Cost { memory_kib: 64 << 10, passes: 3, lanes: 4 };
/// The most that a file may ask for: 1 GiB, for seconds.
const MAX_COST: Cost = Cost { memory_kib: 1 << 20, passes: 16, lanes: 16 };

/// What a guess of the passphrase takes.
#[derive(Clone, Copy, Debug)]
struct Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

/// A file of the data folder.
#[derive(Clone, PartialEq, Eq)]
pub struct Item {
    /// Its path below the folder.
    pub path: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// The identity of a node with what belongs to it.
pub struct Backup {
    /// When it was made, seconds since 1970.
    pub made_s: u64,
    /// The files, the key among them.
    pub items: Vec<Item>,
}

#[derive(Serialize, Deserialize)]
struct List {
    made_s: u64,
    files: Vec<Listed>,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    path: String,
    bytes: u64,
}

fn broken(why: &str) -> Error {
    Error::Failed(format!("this is no backup of an identity that can be read: {why}; nothing was changed"))
}

impl Backup {
    /// The key in it.
    ///
    /// # Errors
    /// When there is none.
    pub fn identity(&self) -> Result<Identity> {
        let key = self.items.iter().find(|item| item.path == sealed::IDENTITY);
        let seed = key.and_then(|item| item.bytes.as_slice().try_into().ok());
        seed.map(Identity::from_seed).ok_or_else(|| broken("there is no key in it"))
    }

    fn content(&self) -> Result<Vec<u8>> {
        let listed = |item: &Item| Listed { path: item.path.clone(), bytes: item.bytes.len() as u64 };
        let list = List { made_s: self.made_s, files: self.items.iter().map(listed).collect() };
        let list = serde_json::to_vec(&list)?;
        let mut content = (list.len() as u32).to_le_bytes().to_vec();
        content.extend(list);
        self.items.iter().for_each(|item| content.extend(&item.bytes));
        Ok(content)
    }

    fn of_content(content: &[u8]) -> Option<Self> {
        let (len, rest) = content.split_first_chunk::<4>()?;
        let (list, mut rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let list: List =
            serde_json::from_slice(list).ok().filter(|list: &List| list.files.len() <= MAX_FILES)?;
        let mut items = Vec::new();
        for Listed { path, bytes } in list.files {
            let own;
            (own, rest) = rest.split_at_checked(usize::try_from(bytes).ok()?)?;
            items.push(Item { path, bytes: own.to_vec() });
        }
        rest.is_empty().then_some(Self { made_s: list.made_s, items })
    }

    /// The file.
    ///
    /// # Errors
    /// [`Error::Usage`] for a passphrase that is too short, and for more than fits.
    pub fn seal(&self, passphrase: &str) -> Result<Vec<u8>> {
        if passphrase.chars().count() < LEAST_PASSPHRASE {
            return Err(Error::usage(format!(
                "the passphrase has fewer than {LEAST_PASSPHRASE} letters: choose one that is hard to guess, such as five words"
            )));
        }
        let content = self.content()?;
        if self.items.len() > MAX_FILES || content.len() > MAX_BYTES - HEAD - CHECKSUM - 16 {
            return Err(Error::usage(
                "this is more than a backup may hold; leave --conversations away and export them on the page",
            ));
        }
        let mut file = MAGIC.to_vec();
        file.push(VERSION);
        [COST.memory_kib, COST.passes, COST.lanes].iter().for_each(|n| file.extend(n.to_le_bytes()));
        file.extend(sealed::salt()?);
        let key = key(COST, &file[HEAD - sealed::SALT_BYTES..], passphrase)?;
        let payload = Payload { msg: &content, aad: &file };
        let sealed = ChaCha20Poly1305::new(&key.into()).encrypt(&Nonce::default(), payload);
        file.extend(sealed.map_err(|_| Error::Failed("the identity could not be encrypted".into()))?);
        file.extend(blake3::hash(&file).as_bytes());
        Ok(file)
    }

    /// What is in the file `bytes`.
    ///
    /// # Errors
    /// [`Error::Failed`] with the reason, a wrong passphrase being told from damage.
    pub fn open(bytes: &[u8], passphrase: &str) -> Result<Self> {
        let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| broken("it begins like another kind of file"))?;
        match rest.first() {
            Some(&VERSION) => {}
            Some(version) => {
                let why = format!("it is of version {version}, this program reads {VERSION}: upgrade it");
                return Err(broken(&why));
            }
            None => return Err(broken("it is cut short")),
        }
        let body = bytes.len().checked_sub(CHECKSUM).filter(|body| *body >= HEAD);
        let body = body.ok_or_else(|| broken("it is cut short"))?;
        if blake3::hash(&bytes[..body]) != <[u8; CHECKSUM]>::try_from(&bytes[body..]).unwrap_or_default() {
            return Err(broken("it is damaged, use another copy"));
        }
        let (head, sealed) = bytes[..body].split_at(HEAD);
        let numbers = head[MAGIC.len() + 1..].as_chunks::<4>().0;
        let number = |at: usize| u32::from_le_bytes(numbers[at]);
        let cost = Cost { memory_kib: number(0), passes: number(1), lanes: number(2) };
        let key = key(cost, &head[HEAD - sealed::SALT_BYTES..], passphrase)?;
        let payload = Payload { msg: sealed, aad: head };
        let content =
            ChaCha20Poly1305::new(&key.into()).decrypt(&Nonce::default(), payload).map_err(|_| {
                Error::Failed("the passphrase is not the one of this backup; nothing was changed".into())
            })?;
        Self::of_content(&content).ok_or_else(|| broken("its list of files is wrong"))
    }
}

/// The key that a passphrase makes.
fn key(cost: Cost, salt: &[u8], passphrase: &str) -> Result<[u8; 32]> {
    let Cost { memory_kib, passes, lanes } = cost;
    if memory_kib > MAX_COST.memory_kib || passes > MAX_COST.passes || lanes > MAX_COST.lanes {
        return Err(broken("its key would cost more than a file may ask for"));
    }
    let params = Params::new(memory_kib, passes, lanes, Some(32));
    let params = params.map_err(|_| broken("its key cannot be computed"))?;
    let mut blocks = vec![Block::default(); params.block_count()];
    let mut key = [0; 32];
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into_with_memory(passphrase.as_bytes(), salt, &mut key, &mut blocks)
        .map_err(|_| broken("its key cannot be computed"))?;
    Ok(key)
}

/// The bytes of the file at `path`, as far as one may go.
///
/// # Errors
/// Those of reading, and [`Error::Failed`] for one that is too long.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes));
    read.map_err(|error| shard::Error::io(path, error))?;
    if bytes.len() > MAX_BYTES {
        return Err(broken("it is too long"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSPHRASE: &str = "lantern owl river snow fox";

    fn backup() -> Backup {
        let item = |path: &str, bytes: &[u8]| Item { path: path.into(), bytes: bytes.into() };
        Backup {
            made_s: 7,
            items: vec![item(sealed::IDENTITY, &[3; 32]), item("receipts", b""), item("peers", b"xy")],
        }
    }

    fn why(result: Result<Backup>) -> String {
        result.err().expect("an error").to_string()
    }

    /// With the checksum that fits, as a person would make who wants a file to be read.
    fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.truncate(bytes.len() - CHECKSUM);
        bytes.extend(blake3::hash(&bytes).as_bytes());
        bytes
    }

    #[test]
    fn a_backup_opens_with_its_passphrase_only_and_says_why_not() {
        let made = backup();
        let file = made.seal(PASSPHRASE).unwrap();
        let read = Backup::open(&file, PASSPHRASE).unwrap();
        assert!(read.items == made.items && read.made_s == 7);
        assert_eq!(read.identity().unwrap().node(), Identity::from_seed([3; 32]).node());
        assert!(!file.windows(8).any(|bytes| bytes == [3; 8] || bytes == b"receipts"));
        assert!(why(Backup::open(&file, "another one")).contains("passphrase is not"));
        assert!(made.seal("short").is_err());

        let mut damaged = file.clone();
        let middle = damaged.len() - CHECKSUM - 3;
        damaged[middle] ^= 1;
        assert!(why(Backup::open(&damaged, PASSPHRASE)).contains("damaged"));
        assert!(
            why(Backup::open(&summed(damaged), PASSPHRASE)).contains("passphrase is not"),
            "it is authenticated"
        );
        for cut in [0, 5, MAGIC.len(), MAGIC.len() + 1, HEAD, HEAD + CHECKSUM, file.len() - 1] {
            assert!(Backup::open(&file[..cut], PASSPHRASE).is_err(), "{cut}");
        }
        let mut newer = file.clone();
        newer[MAGIC.len()] = 2;
        assert!(why(Backup::open(&newer, PASSPHRASE)).contains("version 2"));
        let mut dear = file.clone();
        dear[MAGIC.len() + 1..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(why(Backup::open(&summed(dear), PASSPHRASE)).contains("cost more"));
        let mut salted = file;
        salted[HEAD - 1] ^= 1;
        assert!(Backup::open(&summed(salted), PASSPHRASE).is_err(), "the head is authenticated, too");
    }

    #[test]
    fn a_list_that_lies_is_none() {
        let content = backup().content().unwrap();
        assert!(Backup::of_content(&content).is_some());
        for cut in 0..content.len() {
            assert!(Backup::of_content(&content[..cut]).is_none(), "{cut}");
        }
        let longer = [&content[..], b"x"].concat();
        assert!(Backup::of_content(&longer).is_none());
        assert!(Backup::of_content(&u32::MAX.to_le_bytes()).is_none());
    }
}
