//! What Q4_K and Q5_K share: the packed scales and minima of eight groups of 32, and the search for good ones.
//!
//! Twelve bytes hold `sc[8]` and `mn[8]`, 6 bits each, for j < 4:
//!
//! ```text
//! byte j        sc[j],                      top 2 bits: bits 4, 5 of sc[4 + j]
//! byte 4 + j    mn[j],                      top 2 bits: bits 4, 5 of mn[4 + j]
//! byte 8 + j    low nibble of sc[4 + j],    high nibble: low nibble of mn[4 + j]
//! ```

use super::{half, inverse, range, to_half};

const GROUP: usize = 32;
const GROUPS: usize = 8;
const LEN: usize = GROUP * GROUPS;
/// The largest scale or minimum: 6 bits.
const MAX_SCALE: f32 = 63.0;

/// Scale and minimum of group `g`, both 0..=63, from the 12 packed bytes.
pub(super) fn scale_min(packed: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        return (packed[g] & 63, packed[4 + g] & 63);
    }
    let (low, sc, mn) = (packed[4 + g], packed[g - 4], packed[g]);
    (low & 0x0f | sc >> 6 << 4, low >> 4 | mn >> 6 << 4)
}

/// The opposite of [`scale_min`] for all groups.
fn pack(scales: &[(u8, u8); GROUPS]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        let ((sc, mn), (sc4, mn4)) = (scales[j], scales[4 + j]);
        packed[j] = sc | sc4 >> 4 << 6;
        packed[4 + j] = mn | mn4 >> 4 << 6;
        packed[8 + j] = sc4 & 0x0f | mn4 << 4;
    }
    packed
}

/// A quantized block of 256 weights before its codes are packed.
pub(super) struct Fit {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    pub scales: [u8; 12],
    pub codes: [u8; LEN],
}

/// Quantizes 256 weights to codes `0..=max_code`.
///
/// Each group's best scale and minimum is searched in f32 ([`best_line`]), all are rounded to 6 bits of the
/// block's largest, and around what rounding gives the neighbors are tried, since a scale rounded down goes well
/// with another minimum. Errors count by [`importance`].
pub(super) fn fit(weights: &[f32], max_code: u8) -> Fit {
    let max_code = f32::from(max_code);
    let lines: [(f32, f32); GROUPS] =
        std::array::from_fn(|g| best_line(&weights[g * GROUP..][..GROUP], max_code));
    let largest = |of: fn(&(f32, f32)) -> f32| lines.iter().map(of).fold(0.0, f32::max);
    let (d, dmin) =
        (to_half(largest(|line| line.0) / MAX_SCALE), to_half(largest(|line| line.1) / MAX_SCALE));
    let (unit, unit_min) = (half(&d), half(&dmin));

    let mut scales = [(0, 0); GROUPS];
    let mut codes = [0; LEN];
    for (g, codes) in codes.chunks_exact_mut(GROUP).enumerate() {
        let weights = &weights[g * GROUP..][..GROUP];
        let sc = (lines[g].0 * inverse(unit)).round_ties_even();
        let mn = (lines[g].1 * inverse(unit_min)).round_ties_even();
        let (sc, mn) = best_neighbor(weights, max_code, (sc, mn), (unit, unit_min));
        scales[g] = (sc as u8, mn as u8);
        let (per_scale, min) = (inverse(unit * sc), unit_min * mn);
        for (code, w) in codes.iter_mut().zip(weights) {
            *code = ((w + min) * per_scale).round_ties_even().clamp(0.0, max_code) as u8;
        }
    }
    Fit { d, dmin, scales: pack(&scales), codes }
}

/// The best of the nine pairs around `(sc, mn)`, in 0..=63.
fn best_neighbor(
    weights: &[f32],
    max_code: f32,
    (sc, mn): (f32, f32),
    (unit, unit_min): (f32, f32),
) -> (f32, f32) {
    let rms = rms(weights);
    let (mut best, mut least) = ((sc.clamp(0.0, MAX_SCALE), mn.clamp(0.0, MAX_SCALE)), f32::INFINITY);
    for step in 0..9 {
        let sc = (sc + (step % 3 - 1) as f32).clamp(0.0, MAX_SCALE);
        let mn = (mn + (step / 3 - 1) as f32).clamp(0.0, MAX_SCALE);
        let (scale, min) = (unit * sc, unit_min * mn);
        let per_scale = inverse(scale);
        let error: f32 = weights
            .iter()
            .map(|&w| {
                let code = ((w + min) * per_scale).round_ties_even().clamp(0.0, max_code);
                let off = scale * code - min - w;
                importance(w, rms) * off * off
            })
            .sum();
        if error < least {
            (best, least) = ((sc, mn), error);
        }
    }
    best
}

/// How much an error at weight `w` counts: large weights matter more, but small ones matter.
fn importance(w: f32, rms: f32) -> f32 {
    rms + w.abs()
}

fn rms(weights: &[f32]) -> f32 {
    (weights.iter().map(|w| w * w).sum::<f32>() / weights.len() as f32).sqrt()
}

/// Scale and minimum (>= 0) so that `scale * code - minimum` comes closest to the weights.
///
/// Tries scales around the one that spans the weights exactly; the codes that follow from each have a
/// least-squares line through them, and the line with the smallest error wins.
fn best_line(weights: &[f32], max_code: f32) -> (f32, f32) {
    let (low, high) = range(weights);
    let low = low.min(0.0);
    let span = high - low;
    if !(span > 0.0 && span.is_finite()) {
        return (0.0, -low);
    }
    let rms = rms(weights);
    let (mut best, mut least) = ((span / max_code, -low), f32::INFINITY);
    for step in -10..=10 {
        let per_scale = (max_code + 0.1 * step as f32) / span;
        let code = |w: f32| ((w - low) * per_scale).round_ties_even().clamp(0.0, max_code);
        let (scale, offset) = least_squares(weights.iter().map(|&w| (importance(w, rms), code(w), w)));
        let error: f32 = weights
            .iter()
            .map(|&w| {
                let off = scale * code(w) + offset - w;
                importance(w, rms) * off * off
            })
            .sum();
        if scale > 0.0 && error < least {
            (best, least) = ((scale, -offset), error);
        }
    }
    best
}

/// The line `scale * code + offset` with the least squared error over `(importance, code, weight)`, among those
/// with `offset <= 0`.
fn least_squares(points: impl Iterator<Item = (f32, f32, f32)>) -> (f32, f32) {
    let (mut n, mut c, mut w, mut cc, mut cw) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for (importance, code, weight) in points {
        n += importance;
        c += importance * code;
        w += importance * weight;
        cc += importance * code * code;
        cw += importance * code * weight;
    }
    let determinant = n * cc - c * c;
    if determinant > 0.0 {
        let (scale, offset) = ((n * cw - c * w) / determinant, (cc * w - c * cw) / determinant);
        if offset <= 0.0 {
            return (scale, offset);
        }
    }
    (cw * inverse(cc), 0.0)
}
