//! What the tests of this module share.

use std::{io::Write, path::Path, sync::Arc};

use scheduler::ModelId;
use tempfile::NamedTempFile;

use super::{GroupSet, Held, Outboard, Shelf};

/// Bytes that repeat nowhere, the same for the same seed.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut out = vec![0; bytes];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut out);
    out
}

/// A temporary file with these bytes.
pub fn written(data: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(data).expect("a write");
    file
}

/// A model of `bytes` and the file it is in.
pub fn model(bytes: usize, seed: u64) -> (Vec<u8>, NamedTempFile) {
    let data = noise(bytes, seed);
    let file = written(&data);
    (data, file)
}

/// The outboard of the file at `path` and its bytes.
pub fn outboard_of(path: &Path) -> (Arc<Outboard>, Vec<u8>) {
    let (tree, encoded) = Outboard::make(path, &mut |_| true).expect("an outboard");
    (Arc::new(tree), encoded)
}

/// A shelf with one model on it.
pub struct OneModel {
    id: ModelId,
    held: Arc<Held>,
    _outboard: NamedTempFile,
}

impl OneModel {
    /// The model at `path`, of which the groups `have` are handed out.
    pub fn new(path: &Path, have: Option<GroupSet>) -> (ModelId, Arc<Self>) {
        let (tree, encoded) = outboard_of(path);
        let outboard = written(&encoded);
        let held = Held::open(tree.id(), path.to_owned(), outboard.path().to_owned(), have).expect("a model");
        (tree.id(), Arc::new(Self { id: tree.id(), held: Arc::new(held), _outboard: outboard }))
    }
}

impl Shelf for OneModel {
    fn find(&self, id: ModelId) -> Option<Arc<Held>> {
        (id == self.id).then(|| self.held.clone())
    }
}
