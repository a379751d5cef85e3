//! What Q2_K, Q4_K and Q5_K share: the search for good scales and minima; and of the last two how eight of them are packed.
//!
//! Twelve bytes hold `sc[8]` and `mn[8]`, 6 bits each, for j < 4:
//!
//! ```text
//! byte j        sc[j],                      top 2 bits: bits 4, 5 of sc[4 + j]
//! byte 4 + j    mn[j],                      top 2 bits: bits 4, 5 of mn[4 + j]
//! byte 8 + j    low nibble of sc[4 + j],    high nibble: low nibble of mn[4 + j]
//! ```

use super::{half, importances, inverse, nearest, range, to_half};

const LEN: usize = 256;
/// How often units and the pairs of the groups follow from each other at most.
const ROUNDS: usize = 4;

/// Scale and minimum of group `g`, both 0..=63, from the 12 packed bytes.
pub(super) fn scale_min(packed: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        return (packed[g] & 63, packed[4 + g] & 63);
    }
    let (low, sc, mn) = (packed[4 + g], packed[g - 4], packed[g]);
    (low & 0x0f | sc >> 6 << 4, low >> 4 | mn >> 6 << 4)
}

/// The opposite of [`scale_min`] for all groups.
pub(super) fn pack(scales: &[(u8, u8)]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        let ((sc, mn), (sc4, mn4)) = (scales[j], scales[4 + j]);
        packed[j] = sc | sc4 >> 4 << 6;
        packed[4 + j] = mn | mn4 >> 4 << 6;
        packed[8 + j] = sc4 & 0x0f | mn4 << 4;
    }
    packed
}

/// A quantized block of 256 weights before it is packed.
pub(super) struct Fit {
    pub d: [u8; 2],
    pub dmin: [u8; 2],
    /// Scale and minimum of each group.
    pub scales: Vec<(u8, u8)>,
    pub codes: [u8; LEN],
}

/// The largest code, and the largest scale and minimum.
#[derive(Clone, Copy)]
pub(super) struct Largest {
    pub code: u8,
    pub scale: u8,
}

/// Quantizes 256 weights in groups of `N`, an error at each of which counts as `importance` says, if it says so.
///
/// Each group's best scale and minimum is searched in f32 ([`Group::best_line`]), all are rounded to the bits that they have of the
/// block's largest, and around what rounding gives the neighbors are tried, since a scale rounded down goes well
/// with another minimum. Then the units that suit all groups by least squares are taken, and again, while errors become smaller.
pub(super) fn fit<const N: usize>(weights: &[f32], importance: Option<&[f32]>, largest: Largest) -> Fit {
    let importance = importances(weights, importance);
    let parts = weights.chunks_exact(N).zip(importance.chunks_exact(N));
    let groups: Vec<Group<N>> =
        parts.map(|(weights, importance)| Group::new(weights, importance, largest.code)).collect();
    let lines: Vec<(f32, f32)> = groups.iter().map(Group::best_line).collect();
    let most = f32::from(largest.scale);
    let unit = |of: fn(&(f32, f32)) -> f32| to_half(lines.iter().map(of).fold(0.0, f32::max) / most);
    let mut best = fit_units(&groups, &lines, (unit(|line| line.0), unit(|line| line.1)), most);
    for _ in 1..ROUNDS {
        let next = fit_units(&groups, &lines, best.better, most);
        if next.error.total_cmp(&best.error).is_ge() {
            break;
        }
        best = next;
    }
    best.fit
}

/// What units give.
struct Tried {
    fit: Fit,
    error: f32,
    /// The units that suit the scales, minima and codes by least squares.
    better: ([u8; 2], [u8; 2]),
}

/// The pairs and codes of all groups for the units `d` and `dmin`.
fn fit_units<const N: usize>(
    groups: &[Group<N>],
    lines: &[(f32, f32)],
    (d, dmin): ([u8; 2], [u8; 2]),
    most: f32,
) -> Tried {
    let units = (half(&d), half(&dmin));
    let mut scales = Vec::with_capacity(groups.len());
    let (mut codes, mut sums) = ([0; LEN], [0.0f32; 6]);
    for ((group, line), codes) in groups.iter().zip(lines).zip(codes.chunks_exact_mut(N)) {
        let (sc, mn) = group.best_pair(*line, units, most);
        scales.push((sc as u8, mn as u8));
        let (per_scale, min) = (inverse(units.0 * sc), units.1 * mn);
        for (code, &w) in codes.iter_mut().zip(&group.weights) {
            *code = group.code(w + min, per_scale) as u8;
        }
        let of = group.sum(|weight, importance| {
            let scaled = sc * group.code(weight + min, per_scale);
            let off = units.0 * scaled - min - weight;
            let terms = [off * off, scaled * scaled, scaled * mn, mn * mn, scaled * weight, mn * weight];
            terms.map(|term| importance * term)
        });
        sums.iter_mut().zip(of).for_each(|(sum, of)| *sum += of);
    }
    let [error, ss, sm, mm, sw, mw] = sums;
    let determinant = ss * mm - sm * sm;
    let (unit, min) = match determinant > 0.0 {
        true => ((sw * mm - mw * sm) / determinant, (sw * sm - mw * ss) / determinant),
        false => (sw * inverse(ss), units.1),
    };
    let better = (to_half(unit.max(0.0)), to_half(min.max(0.0)));
    Tried { fit: Fit { d, dmin, scales, codes }, error, better }
}

/// `N` weights, and how much an error at each counts.
struct Group<const N: usize> {
    weights: [f32; N],
    importance: [f32; N],
    max_code: f32,
}

impl<const N: usize> Group<N> {
    fn new(weights: &[f32], importance: &[f32], max_code: u8) -> Self {
        Self {
            weights: std::array::from_fn(|i| weights[i]),
            importance: std::array::from_fn(|i| importance[i]),
            max_code: max_code.into(),
        }
    }

    /// The code of a weight that lies `above` the minimum.
    fn code(&self, above: f32, per_scale: f32) -> f32 {
        nearest(above * per_scale).clamp(0.0, self.max_code)
    }

    /// Scale and minimum (>= 0) so that `scale * code - minimum` comes closest to the weights.
    ///
    /// Tries scales around the one that spans the weights exactly; the codes that follow from each have a
    /// least-squares line through them, and the line with the smallest error wins.
    fn best_line(&self) -> (f32, f32) {
        let (low, high) = range(&self.weights);
        let low = low.min(0.0);
        let span = high - low;
        if !(span > 0.0 && span.is_finite()) {
            return (0.0, -low);
        }
        let (mut best, mut least) = ((span / self.max_code, -low), f32::INFINITY);
        for step in -10..=10 {
            let per_scale = (self.max_code + 0.1 * step as f32) / span;
            let (scale, offset, error) = self.least_squares(low, per_scale);
            if scale > 0.0 && error < least {
                (best, least) = ((scale, -offset), error);
            }
        }
        best
    }

    /// The line `scale * code + offset` with the least squared error among those with `offset <= 0`, and that error
    /// less what all lines have in common. Codes are those of the weights above `low`.
    fn least_squares(&self, low: f32, per_scale: f32) -> (f32, f32, f32) {
        let [n, c, w, cc, cw] = self.sum(|weight, importance| {
            let code = self.code(weight - low, per_scale);
            let (c, w) = (importance * code, importance * weight);
            [importance, c, w, c * code, c * weight]
        });
        let error = |scale: f32, offset: f32| {
            scale * (scale * cc + 2.0 * (offset * c - cw)) + offset * (offset * n - 2.0 * w)
        };
        let determinant = n * cc - c * c;
        if determinant > 0.0 {
            let (scale, offset) = ((n * cw - c * w) / determinant, (cc * w - c * cw) / determinant);
            if offset <= 0.0 {
                return (scale, offset, error(scale, offset));
            }
        }
        let scale = cw * inverse(cc);
        (scale, 0.0, error(scale, 0.0))
    }

    /// The best pair of scale and minimum up to `most` among the nine around what the line rounds to.
    fn best_pair(&self, line: (f32, f32), units: (f32, f32), most: f32) -> (f32, f32) {
        let (sc, mn) = (nearest(line.0 * inverse(units.0)), nearest(line.1 * inverse(units.1)));
        let (mut best, mut least) = ((sc.clamp(0.0, most), mn.clamp(0.0, most)), f32::INFINITY);
        for step in 0..9 {
            let sc = (sc + (step % 3 - 1) as f32).clamp(0.0, most);
            let mn = (mn + (step / 3 - 1) as f32).clamp(0.0, most);
            let (scale, min) = (units.0 * sc, units.1 * mn);
            let per_scale = inverse(scale);
            let [error] = self.sum(|weight, importance| {
                let off = scale * self.code(weight + min, per_scale) - min - weight;
                [importance * off * off]
            });
            if error < least {
                (best, least) = ((sc, mn), error);
            }
        }
        best
    }

    /// Sums over all weights and their importance, in four partial sums that a compiler can keep in one register.
    fn sum<const T: usize>(&self, terms: impl Fn(f32, f32) -> [f32; T]) -> [f32; T] {
        const LANES: usize = 4;
        let mut sums = [[0.0f32; LANES]; T];
        for (weights, importance) in self.weights.chunks_exact(LANES).zip(self.importance.chunks_exact(LANES))
        {
            for lane in 0..LANES {
                for (sum, term) in sums.iter_mut().zip(terms(weights[lane], importance[lane])) {
                    sum[lane] += term;
                }
            }
        }
        sums.map(|lanes| lanes.iter().sum())
    }
}
