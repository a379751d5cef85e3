//! Values as f32, dimensions side by side, whatever way they are stored.

use std::ops::Range;

use half::f16;

use super::tile::Work;
use crate::kernels::simd::{LANES, Simd};

impl Work<'_> {
    /// Widens one row of values to place `at`; its padding becomes 0.
    #[inline(always)]
    pub(super) unsafe fn widen_value<S: Simd>(&self, from: *const u16, at: usize) {
        let dim = self.task.shape.head_dim;
        let whole = dim / LANES * LANES;
        // SAFETY: as in `page`; vectors are read only where 16 values of the row follow.
        unsafe {
            let to = self.values.add(at * self.padded_value());
            for d in (0..whole).step_by(LANES) {
                S::store(to.add(d), S::load_f16(from.add(d)));
            }
            for d in whole..self.padded_value() {
                *to.add(d) = if d < dim { f16::from_bits(*from.add(d)).to_f32() } else { 0.0 };
            }
        }
    }

    /// Widens the ends of the keys of positions `run` of a quarter, sixteen of which lie side by side; the padding of a row becomes 0.
    #[inline(always)]
    pub(super) unsafe fn turn_values<S: Simd>(&self, keys: *const u16, run: Range<usize>) {
        let (dim, values) = (self.task.shape.head_dim, self.task.shape.value_dim());
        // SAFETY: as in `page`; a group of keys is there whole, whether its positions are written or not.
        unsafe {
            for group in run.start / LANES..run.end.div_ceil(LANES) {
                let lanes = run.start.max(group * LANES)..run.end.min((group + 1) * LANES);
                let to = |position: usize, d: usize| {
                    self.values.add((position - run.start) * self.padded_value() + d)
                };
                for d in 0..values {
                    let mut column = [0.0f32; LANES];
                    let from = keys.add((group * dim + dim - values + d) * LANES);
                    S::store(column.as_mut_ptr(), S::load_f16(from));
                    for position in lanes.clone() {
                        *to(position, d) = column[position % LANES];
                    }
                }
                for position in lanes {
                    for d in values..self.padded_value() {
                        *to(position, d) = 0.0;
                    }
                }
            }
        }
    }
}
