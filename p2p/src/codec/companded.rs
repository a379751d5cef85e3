//! Companded codes: small values keep their relative precision, and the largest value of a group travels by itself.
//!
//! Rows of real models have a few massive channels. Under one scale per block ([`super::q8`]) the neighbors of such a channel
//! become zero; here it leaves the group first, and the others get steps that grow with their size. Nothing is calibrated, no
//! state is kept, and every step is an integer operation or one correctly rounded f32 operation, so that all machines agree.
//!
//! A group of `G` values, with `M` bits of mantissa and an escape of `E` bytes, is
//!
//! ```text
//! at (u8) | e (E bytes) | d (bf16) | G codes of M + 3 bits, in planes
//! ```
//!
//! all little-endian. The rule, which the shard crate applies at the rounding boundaries of a session and must match bit for
//! bit, with `TOP = 8 * (2 - 2^-M) - 1`:
//!
//! ```text
//! at   = first index of the largest |x|
//! e    = x[at], nearest even to 8 * E bits, saturated to a finite value; not normal: the group is zeros
//! a    = min(largest |x| of the others, |e| less 16 ulp of f32)
//! d    = bf16(a / TOP), towards zero; not normal: d = 0 and the others are zeros
//! w    = 1 + |x| * (1 / d), nearest even to M mantissa bits, at most TOP + 1
//! code = exponent and mantissa of w above those of 1.0; the sign above them
//! x'   = +-(w - 1) * d                                                  exact in f32
//! ```
//!
//! The largest of the others always gets the largest code, so `TOP * d` is in the group and gives `d` again, and it stays below
//! `|e|`, so `at` is found again: what was rounded once stays as it is. Decoding accepts only groups that encoding can write.
//!
//! Codes stand in planes, low bits first: of 8 bits each, then of 4, 2 and 1, as far as `M + 3` has them. The slot of `at`
//! holds zero.

use super::{Malformed, NonFinite};

/// Bits of an infinity; every finite value has smaller ones, sign aside.
const INFINITE: u32 = 0x7f80_0000;
/// Bits of the smallest normal f32.
const SMALLEST: u32 = 0x0080_0000;
const SIGN: u32 = 1 << 31;
/// Bits of 1.0.
const ONE: u32 = 0x3f80_0000;
/// How far the others stay below the escape, in steps of its last f32 bit: more than rounding can lift them.
const GAP: u32 = 16;

/// Bytes of a group.
pub(super) const fn group_bytes(values: usize, mantissa: u32, escape: usize) -> usize {
    1 + escape + 2 + values * (mantissa as usize + 3) / 8
}

/// Writes `data` to `out`. Both are whole groups, as many; the caller has measured them.
pub(super) fn encode<const G: usize, const M: u32, const E: usize>(
    data: &[f32],
    out: &mut [u8],
) -> Result<(), NonFinite> {
    let (groups, _) = data.as_chunks::<G>();
    for (group, slot) in groups.iter().zip(out.chunks_exact_mut(group_bytes(G, M, E))) {
        encode_group::<G, M, E>(group, slot)?;
    }
    Ok(())
}

/// Reads `bytes` into `out`. Both are whole groups, as many; the caller has measured them.
pub(super) fn decode<const G: usize, const M: u32, const E: usize>(
    bytes: &[u8],
    out: &mut [f32],
) -> Result<(), Malformed> {
    let (groups, _) = out.as_chunks_mut::<G>();
    for (slot, group) in bytes.chunks_exact(group_bytes(G, M, E)).zip(groups) {
        let Group { at, escape, scale, codes } = Group::<G>::read::<M, E>(slot)?;
        for (value, code) in group.iter_mut().zip(codes) {
            let size = f32::from_bits(ONE + (u32::from(code & !sign::<M>()) << (23 - M)));
            let size = (size - 1.0) * scale;
            *value = if code & sign::<M>() == 0 { size } else { -size };
        }
        group[at] = escape;
    }
    Ok(())
}

/// Whether every group of `bytes`, whole ones, is one that encoding writes.
pub(super) fn check<const G: usize, const M: u32, const E: usize>(bytes: &[u8]) -> Result<(), Malformed> {
    bytes.chunks_exact(group_bytes(G, M, E)).try_for_each(|slot| Group::<G>::read::<M, E>(slot).map(drop))
}

/// The bit of a code that holds the sign.
const fn sign<const M: u32>() -> u16 {
    1 << (M + 2)
}

/// Bits of the largest `w`: all mantissa bits set, three octaves above 1.
const fn top<const M: u32>() -> u32 {
    ONE + (3 << 23) + ((1 << 23) - (1 << (23 - M)))
}

/// `bits` with all but the first `keep` rounded off, to the nearest, ties to even; those of finite values.
fn round_to(bits: u32, keep: u32) -> u32 {
    let drop = 32 - keep;
    let half = (1 << (drop - 1)) - 1;
    (bits + half + (bits >> drop & 1)) & !((1 << drop) - 1)
}

fn encode_group<const G: usize, const M: u32, const E: usize>(
    group: &[f32; G],
    slot: &mut [u8],
) -> Result<(), NonFinite> {
    slot.fill(0);
    let size = |x: &f32| x.to_bits() & !SIGN;
    let largest = group.iter().map(size).fold(0, u32::max);
    if largest >= INFINITE {
        return Err(NonFinite);
    }
    let at = group.iter().position(|x| size(x) == largest).unwrap_or_default();
    let most = (INFINITE - 1) & !((1 << (32 - 8 * E)) - 1);
    let escape = round_to(largest, 8 * E as u32).min(most);
    if escape < SMALLEST {
        return Ok(());
    }
    slot[0] = at as u8;
    let signed = escape | group[at].to_bits() & SIGN;
    slot[1..1 + E].copy_from_slice(&signed.to_le_bytes()[4 - E..]);
    let others = group.iter().enumerate().filter(|(index, _)| *index != at);
    let amount = others.map(|(_, x)| size(x)).fold(0, u32::max).min(escape - GAP);
    let limit = f32::from_bits(top::<M>()) - 1.0;
    let scale = (f32::from_bits(amount) / limit).to_bits() & 0xffff_0000;
    if scale < SMALLEST {
        return Ok(());
    }
    slot[1 + E..3 + E].copy_from_slice(&scale.to_le_bytes()[2..]);
    let inverse = 1.0 / f32::from_bits(scale);
    let mut codes = [0; G];
    for (code, x) in codes.iter_mut().zip(group) {
        // Infinity is more than the largest code as well.
        let w = 1.0 + x.abs() * inverse;
        let w = round_to(w.to_bits(), 9 + M).min(top::<M>());
        *code = ((w - ONE) >> (23 - M)) as u16 | if x.is_sign_negative() { sign::<M>() } else { 0 };
    }
    codes[at] = 0;
    planes::<M>(G, |at, width, from| {
        for (index, code) in codes.iter().enumerate() {
            let bits = (code >> from) as u8 & mask(width);
            slot[3 + E + at + index * width / 8] |= bits << (index * width % 8);
        }
    });
    Ok(())
}

/// Names the planes of codes of `M + 3` bits: where each begins, its bits per code, and the bit of the code it begins with.
fn planes<const M: u32>(values: usize, mut each: impl FnMut(usize, usize, u32)) {
    let (mut at, mut from) = (0, 0);
    for width in [8, 4, 2, 1] {
        if (M + 3) & width != 0 {
            each(at, width as usize, from);
            at += values * width as usize / 8;
            from += width;
        }
    }
}

fn mask(width: usize) -> u8 {
    ((1_u16 << width) - 1) as u8
}

/// A group that encoding writes.
struct Group<const G: usize> {
    at: usize,
    escape: f32,
    scale: f32,
    codes: [u16; G],
}

impl<const G: usize> Group<G> {
    fn read<const M: u32, const E: usize>(slot: &[u8]) -> Result<Self, Malformed> {
        const BAD: Malformed = Malformed("activations: group");
        let at = usize::from(slot[0]);
        let mut bits = [0; 4];
        bits[4 - E..].copy_from_slice(&slot[1..1 + E]);
        let escape = f32::from_le_bytes(bits);
        let scale = f32::from_le_bytes([0, 0, slot[1 + E], slot[2 + E]]);
        let mut codes = [0_u16; G];
        planes::<M>(G, |plane, width, from| {
            for (index, code) in codes.iter_mut().enumerate() {
                let byte = slot[3 + E + plane + index * width / 8];
                *code |= u16::from(byte >> (index * width % 8) & mask(width)) << from;
            }
        });
        let sound = match (escape.to_bits(), scale.to_bits()) {
            (0, 0) => at == 0 && codes.iter().all(|code| *code == 0),
            (escape, scale) => {
                let size = escape & !SIGN;
                let others = match scale {
                    0 => codes.iter().all(|code| *code == 0),
                    _ => {
                        let highest = codes.iter().map(|code| code & !sign::<M>()).fold(0, u16::max);
                        let limit = f32::from_bits(top::<M>()) - 1.0;
                        (SMALLEST..INFINITE).contains(&scale)
                            && highest == sign::<M>() - 1
                            && limit * f32::from_bits(scale) < f32::from_bits(size)
                    }
                };
                (SMALLEST..INFINITE).contains(&size) && codes.get(at) == Some(&0) && others
            }
        };
        if sound { Ok(Self { at, escape, scale, codes }) } else { Err(BAD) }
    }
}
