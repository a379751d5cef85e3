//! Groups made shorter for their way: zstd where it pays, as they are where it does not.
//!
//! A packed group is the number of bytes that follow (u32, little-endian) and these bytes: as many as the group has
//! stand for themselves, fewer are one zstd frame. The asker knows the group's length from the proven tree, so a frame
//! is never given more room than its group, and what comes out is checked against the tree like any other group.
//!
//! Vocabularies shrink to a third, weights of two bytes by a fifth, quantized weights hardly: the first 2 MiB of
//! SmolLM2-135M in Q4_1 take 0.42 of their bytes, the whole file 0.98 (level 1; levels up to 3 gain 0.01 at half the
//! speed). So one group in [`RARELY`] is tried where the last did not pay.

use std::io;

use zstd::bulk::{Compressor, Decompressor};

use super::SourceError;

/// The level: 866 MB/s on one core for weights that do not shrink, 115 MB/s for vocabularies, which do.
const LEVEL: i32 = 1;
/// A frame is sent if it is shorter than the group by one part in so many.
const GAIN: usize = 16;
/// Groups between two attempts while attempts do not pay.
const RARELY: u32 = 8;
/// Bytes of a packed group's head.
pub const PACKED_HEAD: usize = 4;

/// Packs the groups of one stream.
pub struct Packer {
    encoder: Compressor<'static>,
    /// Groups that are sent as they are before the next attempt.
    rest: u32,
}

impl Packer {
    /// One that has packed nothing.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> io::Result<Self> {
        Ok(Self { encoder: Compressor::new(LEVEL)?, rest: 0 })
    }

    /// The bytes to send for `group`: at most [`PACKED_HEAD`] more than it has.
    pub fn pack(&mut self, group: &[u8]) -> Vec<u8> {
        let mut out = vec![0; PACKED_HEAD + group.len()];
        if self.rest == 0 {
            // A frame with no room for it is one that does not pay.
            let room = group.len() - group.len().div_ceil(GAIN);
            if let Ok(len) = self.encoder.compress_to_buffer(group, &mut out[PACKED_HEAD..PACKED_HEAD + room])
            {
                out[..PACKED_HEAD].copy_from_slice(&(len as u32).to_le_bytes());
                out.truncate(PACKED_HEAD + len);
                return out;
            }
            self.rest = RARELY;
        }
        self.rest -= 1;
        out[..PACKED_HEAD].copy_from_slice(&(group.len() as u32).to_le_bytes());
        out[PACKED_HEAD..].copy_from_slice(group);
        out
    }
}

/// How many bytes follow a packed group's `head`: `None` for those of the group itself, which has `group_len`.
///
/// # Errors
/// [`SourceError::Lied`] for a length that no packed group of this length has.
pub fn frame_len(head: [u8; PACKED_HEAD], group_len: usize) -> Result<Option<usize>, SourceError> {
    match u32::from_le_bytes(head) as usize {
        len if len == group_len => Ok(None),
        len if (1..group_len).contains(&len) => Ok(Some(len)),
        _ => Err(SourceError::Lied("a packed group of another length".into())),
    }
}

/// Fills `group` from a zstd frame; no byte is written beyond it, whatever the frame says.
///
/// # Errors
/// [`SourceError::Lied`] for what is no frame, or one of more or fewer bytes than the group.
pub fn unpack(decoder: &mut Decompressor<'_>, frame: &[u8], group: &mut [u8]) -> Result<(), SourceError> {
    match decoder.decompress_to_buffer(frame, group) {
        Ok(len) if len == group.len() => Ok(()),
        _ => Err(SourceError::Lied("a packed group that does not unpack".into())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::blob::{GROUP_BYTES, testing::noise};

    /// What an asker makes of packed bytes.
    fn unpacked(packed: &[u8], len: usize) -> Result<Vec<u8>, SourceError> {
        let (head, rest) = packed.split_first_chunk().expect("a head");
        match frame_len(*head, len)? {
            None => Ok(rest.to_vec()),
            Some(frame) => {
                assert_eq!(rest.len(), frame);
                let mut group = vec![0; len];
                unpack(&mut Decompressor::new().unwrap(), rest, &mut group)?;
                Ok(group)
            }
        }
    }

    #[test]
    fn words_shrink_and_noise_is_left_alone() {
        let mut packer = Packer::new().unwrap();
        let words: Vec<u8> =
            b"the node that has the layer answers ".iter().copied().cycle().take(1 << 16).collect();
        let packed = packer.pack(&words);
        assert!(packed.len() < words.len() / 3, "{}", packed.len());
        assert_eq!(unpacked(&packed, words.len()).unwrap(), words);
        let other = noise(GROUP_BYTES as usize, 1);
        assert_eq!(packer.pack(&other).len(), PACKED_HEAD + other.len());
        // The next ones are not tried, and later ones are.
        let lens: Vec<usize> = (0..RARELY).map(|_| packer.pack(&words).len()).collect();
        assert_eq!(lens.iter().filter(|&&len| len < words.len()).count(), 1, "{lens:?}");
    }

    #[test]
    fn a_frame_gets_no_more_room_than_its_group() {
        let bomb = zstd::bulk::compress(&vec![0; 1 << 20], 19).unwrap();
        let mut group = vec![0; 1 << 16];
        assert!(unpack(&mut Decompressor::new().unwrap(), &bomb, &mut group).is_err());
        let short = zstd::bulk::compress(&vec![0; 1 << 10], 1).unwrap();
        assert!(unpack(&mut Decompressor::new().unwrap(), &short, &mut group).is_err());
        for len in [0, (1 << 16) + 1, u32::MAX] {
            assert!(frame_len(len.to_le_bytes(), 1 << 16).is_err());
        }
    }

    proptest! {
        #[test]
        fn what_is_packed_unpacks(group in prop::collection::vec(0u8..4, 1..2_000)) {
            let packed = Packer::new().unwrap().pack(&group);
            prop_assert_eq!(unpacked(&packed, group.len()).unwrap(), group);
        }

        #[test]
        fn arbitrary_frames_never_panic(frame in prop::collection::vec(any::<u8>(), 0..300), len in 1usize..500) {
            let mut group = vec![0; len];
            let _ = unpack(&mut Decompressor::new().unwrap(), &frame, &mut group);
        }
    }
}
