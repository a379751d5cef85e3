//! Names of states: which model, layers, rotation and kind of executor their contents belong to.

use scheduler::LayerRange;

use crate::{
    gguf::Gguf,
    models::{Blueprint, Frequencies},
};

/// Bytes of each tensor that enter the tag: enough that two quantizations or fine-tunes of a model never agree.
const SAMPLE: usize = 256;

/// What the tags of states are made of.
pub(super) struct Tags {
    /// Digest of the blueprint and the rotation.
    model: [u8; blake3::OUT_LEN],
    /// Digest of a sample of every tensor, per layer held.
    layers: Vec<[u8; blake3::OUT_LEN]>,
}

impl Tags {
    /// Of the layers `held`, rotated by `ropes`; `executor` is empty for profile `d1` and else names whose states they are.
    pub fn new(
        gguf: &Gguf,
        executor: &str,
        blueprint: &Blueprint,
        held: LayerRange,
        ropes: &[Frequencies],
    ) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(executor.as_bytes());
        // The debug form names every field of the blueprint: sizes, norms, windows, scales, softcaps, experts.
        hasher.update(format!("{blueprint:?}").as_bytes());
        for rope in ropes {
            hasher.update(&rope.magnitude.to_bits().to_le_bytes());
            rope.radians.iter().for_each(|r| {
                hasher.update(&r.to_bits().to_le_bytes());
            });
        }
        let model = *hasher.finalize().as_bytes();
        let layer = |layer: u32| {
            let prefix = format!("blk.{layer}.");
            let mut hasher = blake3::Hasher::new();
            for info in gguf.tensors().iter().filter(|info| info.name.starts_with(&prefix)) {
                let Some(tensor) = gguf.tensor(&info.name) else { continue };
                hasher.update(info.name.as_bytes()).update(&info.ggml_type.to_le_bytes());
                let middle = tensor.bytes.len() / 2;
                hasher.update(&tensor.bytes[middle..(middle + SAMPLE).min(tensor.bytes.len())]);
                hasher.update(tensor.tail());
            }
            *hasher.finalize().as_bytes()
        };
        Self { model, layers: (held.start()..held.end()).map(layer).collect() }
    }

    /// The tag of `layers`, which lie inside the layers `held`.
    pub fn of(&self, held: LayerRange, layers: LayerRange) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.model);
        hasher.update(&layers.start().to_le_bytes()).update(&layers.end().to_le_bytes());
        let first = (layers.start() - held.start()) as usize;
        self.layers[first..first + layers.len() as usize].iter().for_each(|digest| {
            hasher.update(digest);
        });
        let digest = *hasher.finalize().as_bytes();
        u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
    }
}
