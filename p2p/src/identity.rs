//! Who a node is: one ed25519 key.
//!
//! The public key *is* the [`NodeId`], and both are the libp2p `PeerId` in another coat: a connection that Noise or
//! TLS has authenticated therefore proves a `NodeId`, and a signature under it can be checked by anyone who knows the
//! name. Signatures are over `blake3(domain | 0 | message)`; a domain names what kind of statement is signed, so no
//! signature can be replayed as another kind.
//!
//! On disk the key is its 32-byte seed in a file that only its owner can read. The file is created exclusively: of
//! two nodes started at once on a fresh machine one creates it and the other reads it.
//!
//! Limits: no rotation, no encryption at rest. A copied key file is a second node under the same name, and the swarm
//! cannot tell.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
#[cfg(feature = "net")]
use libp2p::{
    PeerId,
    identity::{self, Keypair},
};
use scheduler::NodeId;

use crate::error::{Error, Result};

/// Bytes of the key file: an ed25519 seed.
const SEED_LEN: usize = 32;
/// Multihash code of a public key carried whole inside a `PeerId`.
#[cfg(feature = "net")]
const IDENTITY_HASH: u64 = 0;

/// The secret key of this node.
#[derive(Clone)]
pub struct Identity {
    key: SigningKey,
}

impl fmt::Debug for Identity {
    /// The name only; the secret is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.node())
    }
}

impl Identity {
    /// A fresh key from the system's randomness.
    ///
    /// # Errors
    /// [`Error::Random`] when the system has none.
    pub fn generate() -> Result<Self> {
        let mut seed = [0; SEED_LEN];
        getrandom::fill(&mut seed).map_err(Error::Random)?;
        Ok(Self::from_seed(seed))
    }

    /// The key that grows from `seed`; the same seed is the same node.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self { key: SigningKey::from_bytes(&seed) }
    }

    /// Reads the key at `path`, or creates it there with permissions 0600.
    ///
    /// # Errors
    /// [`Error::File`] when it can be neither read nor created, [`Error::Key`] when the file is not 32 bytes long or
    /// may be read by others.
    pub fn load_or_create(path: &Path) -> Result<Self> {
        match Self::load(path) {
            Err(Error::File { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        let fresh = Self::generate()?;
        match create_exclusively(path, fresh.key.as_bytes()) {
            Ok(()) => Ok(fresh),
            Err(source) if source.kind() == ErrorKind::AlreadyExists => Self::load(path),
            Err(source) => Err(Error::File { path: path.to_owned(), source }),
        }
    }

    fn load(path: &Path) -> Result<Self> {
        let unusable = |source| Error::File { path: path.to_owned(), source };
        let file = fs::File::open(path).map_err(unusable)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = file.metadata().map_err(unusable)?.permissions().mode();
            if mode & 0o077 != 0 {
                return Err(Error::Key {
                    path: path.to_owned(),
                    why: "others may read it, run chmod 600 on it",
                });
            }
        }
        let mut seed = Vec::with_capacity(SEED_LEN + 1);
        file.take(SEED_LEN as u64 + 1).read_to_end(&mut seed).map_err(unusable)?;
        let seed = seed.try_into().map_err(|_| Error::Key {
            path: path.to_owned(),
            why: "it is not 32 bytes long, move it away to get a new key",
        })?;
        Ok(Self::from_seed(seed))
    }

    /// The name of this node.
    pub fn node(&self) -> NodeId {
        NodeId::new(self.key.verifying_key().to_bytes())
    }

    /// Signs `message` as a statement of kind `domain`.
    pub fn sign(&self, domain: &str, message: &[u8]) -> [u8; 64] {
        self.key.sign(&digest(domain, message)).to_bytes()
    }

    /// A secret for one `purpose`, which tells nothing of the key or of the secrets for others.
    pub fn secret(&self, purpose: &str) -> [u8; SEED_LEN] {
        blake3::derive_key(purpose, self.key.as_bytes())
    }

    /// The same key for libp2p.
    #[cfg(feature = "net")]
    pub(crate) fn keypair(&self) -> Keypair {
        Keypair::ed25519_from_bytes(self.key.to_bytes()).expect("a seed of 32 bytes is a key")
    }
}

/// Whether `node` signed `message` as a statement of kind `domain`. Strict: keys of small order and non-canonical
/// signatures are refused, so one statement has one signature per signer.
pub fn verify(node: NodeId, domain: &str, message: &[u8], signature: &[u8; 64]) -> bool {
    VerifyingKey::from_bytes(node.as_bytes()).is_ok_and(|key| {
        key.verify_strict(&digest(domain, message), &Signature::from_bytes(signature)).is_ok()
    })
}

fn digest(domain: &str, message: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(domain.as_bytes()).update(&[0]).update(message);
    *hasher.finalize().as_bytes()
}

/// The libp2p name of `node`, `None` when its 32 bytes are no public key.
#[cfg(feature = "net")]
pub fn peer_id(node: NodeId) -> Option<PeerId> {
    let key = identity::ed25519::PublicKey::try_from_bytes(node.as_bytes()).ok()?;
    Some(identity::PublicKey::from(key).to_peer_id())
}

/// The node behind a libp2p name, `None` when the name is not an ed25519 key.
#[cfg(feature = "net")]
pub fn node_id(peer: &PeerId) -> Option<NodeId> {
    let hash = peer.as_ref();
    if hash.code() != IDENTITY_HASH {
        return None;
    }
    let key = identity::PublicKey::try_decode_protobuf(hash.digest()).ok()?;
    Some(NodeId::new(key.try_into_ed25519().ok()?.to_bytes()))
}

/// Writes `bytes` to a fresh file of mode 0600 that appears at `path` whole or not at all.
fn create_exclusively(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).map_err(std::io::Error::other)?;
    let draft = path.with_extension(format!("{:016x}.new", u64::from_le_bytes(suffix)));
    let written = write_private(&draft, bytes).and_then(|()| fs::hard_link(&draft, path));
    // The draft goes whether or not it got its second name; a leftover would hold a copy of the key.
    let _ = fs::remove_file(&draft);
    match written {
        Err(source) if source.kind() == ErrorKind::AlreadyExists => Err(source),
        // File systems without hard links: exclusive, at the price of a torn file if power fails right now.
        Err(_) => write_private(path, bytes),
        Ok(()) => Ok(()),
    }
}

/// Creates `path`, which must not exist, readable by its owner only.
fn write_private(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(all(test, feature = "net"))]
mod tests {
    use super::*;

    #[test]
    fn names_convert_both_ways() {
        let me = Identity::from_seed([7; 32]);
        let peer = peer_id(me.node()).unwrap();
        assert_eq!(peer, me.keypair().public().to_peer_id());
        assert_eq!(node_id(&peer), Some(me.node()));
        let no_point =
            |y: &u8| peer_id(NodeId::new(std::array::from_fn(|i| if i == 0 { *y } else { 0 }))).is_none();
        assert!((2..32).any(|y| no_point(&y)), "half of all numbers are no key");
        assert_eq!(node_id(&PeerId::random()), None);
    }

    #[test]
    fn a_signature_holds_for_its_signer_domain_and_message_only() {
        let (me, other) = (Identity::from_seed([1; 32]), Identity::from_seed([2; 32]));
        let signature = me.sign("test/1", b"words");
        assert!(verify(me.node(), "test/1", b"words", &signature));
        assert!(!verify(other.node(), "test/1", b"words", &signature));
        assert!(!verify(me.node(), "test/2", b"words", &signature));
        assert!(!verify(me.node(), "test/1", b"wordt", &signature));
        for bit in 0..512 {
            let mut bad = signature;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(me.node(), "test/1", b"words", &bad), "bit {bit}");
        }
    }

    #[test]
    fn a_small_order_key_verifies_nothing() {
        // The neutral element: under lax verification R = S = 0 would pass for every message.
        let mut neutral = [0; 32];
        neutral[0] = 1;
        let mut signature = [0; 64];
        signature[0] = 1;
        assert!(!verify(NodeId::new(neutral), "test/1", b"anything", &signature));
    }

    #[test]
    fn a_key_file_is_created_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/identity.key");
        let nodes: Vec<NodeId> = std::thread::scope(|scope| {
            let start = || Identity::load_or_create(&path).unwrap().node();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(nodes.iter().all(|node| *node == nodes[0]));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_loose_or_short_key_file_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.key");
        Identity::load_or_create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Identity::load_or_create(&path), Err(Error::Key { .. })));
        fs::remove_file(&path).unwrap();
        write_private(&path, &[1; 31]).unwrap();
        assert!(matches!(Identity::load_or_create(&path), Err(Error::Key { .. })));
    }
}
