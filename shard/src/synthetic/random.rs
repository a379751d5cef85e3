//! The numbers that weights are drawn from.

/// SplitMix64 (Steele, Lea and Flood 2014): a counter and a mixing function.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "an endless source, not an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Puts `items` into a drawn order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }

    /// Roughly normal with mean 0 and variance 1: the sum of twelve uniform values minus 6, exact in f32.
    pub fn normal(&mut self) -> f32 {
        let sum: u32 = (0..3).map(|_| self.next()).flat_map(u64_parts).sum();
        sum as f32 / 65_536.0 - 6.0
    }

    pub(super) fn normals(&mut self, count: usize, size: f32, mean: f32) -> Vec<u8> {
        (0..count).flat_map(|_| (mean + size * self.normal()).to_le_bytes()).collect()
    }
}

/// Four 16-bit numbers.
fn u64_parts(bits: u64) -> [u32; 4] {
    [bits, bits >> 16, bits >> 32, bits >> 48].map(|part| (part & 0xffff) as u32)
}
