//! Every primitive of every instruction set here against the scalar specification, bit by bit.

use super::{LANES, Simd, scalar::Scalar};
use crate::kernels::{Isa, Kernel};

/// Everything the primitives return for one set of inputs, as bits.
type Bits = Vec<(&'static str, Vec<u32>)>;

struct Everything<'a> {
    a: &'a [f32; LANES],
    b: &'a [f32; LANES],
    c: &'a [f32; LANES],
    bytes: &'a [u8; 64],
    other: &'a [u8; 64],
    x: &'a [i8; 4],
}

#[inline(always)]
unsafe fn floats<S: Simd>(v: S::F) -> Vec<u32> {
    let mut out = [0_f32; LANES];
    // SAFETY: the array holds a full vector and the caller has the instruction set.
    unsafe { S::store(out.as_mut_ptr(), v) };
    out.iter().map(|v| v.to_bits()).collect()
}

#[inline(always)]
unsafe fn ints<S: Simd>(v: S::I) -> Vec<u32> {
    let mut out = [0_i32; LANES];
    // SAFETY: as in `floats`.
    unsafe { S::store_i32(out.as_mut_ptr(), v) };
    out.iter().map(|&v| v as u32).collect()
}

#[inline(always)]
unsafe fn bytes<S: Simd>(v: S::B) -> Vec<u32> {
    let mut out = [0_u8; 64];
    // SAFETY: as in `floats`.
    unsafe { S::store_bytes(out.as_mut_ptr(), v) };
    out.iter().map(|&v| u32::from(v)).collect()
}

impl Kernel for Everything<'_> {
    type Output = Bits;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> Bits {
        // SAFETY: the caller has the instruction set; every pointer comes from an array of the size read or written.
        unsafe {
            let mut out: Bits = Vec::new();
            let (a, b, c) = (S::load(self.a.as_ptr()), S::load(self.b.as_ptr()), S::load(self.c.as_ptr()));
            out.push(("splat", floats::<S>(S::splat(self.a[3]))));
            out.push(("add", floats::<S>(S::add(a, b))));
            out.push(("sub", floats::<S>(S::sub(a, b))));
            out.push(("mul", floats::<S>(S::mul(a, b))));
            out.push(("div", floats::<S>(S::div(a, c))));
            out.push(("fma", floats::<S>(S::fma(a, b, c))));
            out.push(("max", floats::<S>(S::max(a, b))));
            out.push(("min", floats::<S>(S::min(a, b))));
            out.push(("abs", floats::<S>(S::abs(a))));
            for bound in [0, 1, 7, 8, 9, 15, 16, 40] {
                out.push(("select_below", floats::<S>(S::select_below(bound, a, b))));
            }
            out.push(("sum_tree", vec![S::sum_tree(a).to_bits()]));
            out.push(("max_lane", vec![(S::max_lane(a) + 0.0).to_bits()]));
            let mut half = [0_u16; LANES];
            S::store_f16(half.as_mut_ptr(), a);
            out.push(("store_f16", half.iter().map(|&v| u32::from(v)).collect()));
            out.push(("load_f16", floats::<S>(S::load_f16(half.as_ptr()))));
            let raw: [u16; LANES] = std::array::from_fn(|i| {
                let bits = u16::from_le_bytes([self.bytes[2 * i], self.bytes[2 * i + 1]]);
                if bits & 0x7c00 == 0x7c00 { bits & 0xfc00 } else { bits }
            });
            out.push(("load_f16 of any bits", floats::<S>(S::load_f16(raw.as_ptr()))));
            out.push(("load_bf16", floats::<S>(S::load_bf16(raw.as_ptr()))));

            let small: [f32; LANES] = std::array::from_fn(|i| f32::from(self.bytes[i] as i8) * 0.5);
            let rounded = S::round_i32(S::load(small.as_ptr()));
            out.push(("round_i32", ints::<S>(rounded)));
            let tame: [f32; LANES] = self.a.map(|v| if v.abs() < 1e9 { v } else { 0.25 });
            out.push(("round_i32 of floats", ints::<S>(S::round_i32(S::load(tame.as_ptr())))));
            out.push(("exp2_int", floats::<S>(S::exp2_int(S::mul_i32(rounded, S::splat_i32(1))))));
            let unsigned = S::load_u8_i32(self.bytes.as_ptr());
            let signed = S::load_i8_i32(self.other.as_ptr().cast());
            out.push(("load_u8_i32", ints::<S>(unsigned)));
            out.push(("load_i8_i32", ints::<S>(signed)));
            let [low, high] = S::load_nibbles_i32(self.bytes.as_ptr());
            out.push(("load_nibbles_i32", [ints::<S>(low), ints::<S>(high)].concat()));
            let [low, high] = S::load_halves_i32(self.other.as_ptr());
            out.push(("load_halves_i32", [ints::<S>(low), ints::<S>(high)].concat()));
            let big = S::mul_i32(unsigned, S::splat_i32(0x0123_4567));
            out.push(("mul_i32", ints::<S>(big)));
            out.push(("add_i32", ints::<S>(S::add_i32(big, S::mul_i32(big, signed)))));
            out.push(("to_f32", floats::<S>(S::to_f32(big))));
            out.push(("sum_i32", vec![S::sum_i32(big) as u32]));
            let mut narrow = [0_i8; LANES];
            S::store_i8(narrow.as_mut_ptr(), signed);
            out.push(("store_i8", narrow.iter().map(|&v| v as u32).collect()));

            let (p, q) = (S::load_bytes(self.bytes.as_ptr()), S::load_bytes(self.other.as_ptr()));
            out.push(("splat_byte", bytes::<S>(S::splat_byte(self.bytes[5]))));
            out.push(("and", bytes::<S>(S::and(p, q))));
            out.push(("or", bytes::<S>(S::or(p, q))));
            out.push(("sub_bytes", bytes::<S>(S::sub_bytes(p, q))));
            out.push(("shr 0", bytes::<S>(S::shr::<0>(p))));
            out.push(("shr 1", bytes::<S>(S::shr::<1>(p))));
            out.push(("shr 4", bytes::<S>(S::shr::<4>(p))));
            out.push(("shr 7", bytes::<S>(S::shr::<7>(p))));
            out.push(("shl 0", bytes::<S>(S::shl::<0>(p))));
            out.push(("shl 1", bytes::<S>(S::shl::<1>(p))));
            out.push(("shl 4", bytes::<S>(S::shl::<4>(p))));
            out.push(("shl 7", bytes::<S>(S::shl::<7>(p))));
            let mut table = [0_i8; 16];
            table.iter_mut().zip(self.other).for_each(|(t, &o)| *t = o as i8);
            out.push(("lookup", bytes::<S>(S::lookup(&table, S::and(p, S::splat_byte(15))))));
            let sum = self.x.iter().map(|&v| i32::from(v)).sum::<i32>();
            let x = self.x.as_ptr();
            out.push(("dot_i8", ints::<S>(S::dot_i8(S::start_i8(sum), p, x))));
            out.push(("dot_biased", ints::<S>(S::dot_biased(S::start_i8(sum), S::bias(p), x))));
            out.push(("dot_u7", ints::<S>(S::dot_u7(big, S::and(q, S::splat_byte(127)), x))));
            S::prefetch(self.bytes.as_ptr());
            out
        }
    }
}

/// A small counter-based generator: enough variety, no dependency.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    fn float(&mut self) -> f32 {
        const EDGES: [f32; 20] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            1.5,
            2.5,
            -2.5,
            f32::MIN_POSITIVE,
            1e-42,
            -1e-45,
            65504.0,
            65519.9,
            65520.0,
            -70000.0,
            5.9604645e-8,
            2.9802322e-8,
            6.1e-5,
            1e-7,
            1.000_488_3,
        ];
        match self.bits() % 4 {
            0 => EDGES[self.bits() as usize % EDGES.len()],
            1 => (self.bits() as i32 >> 16) as f32 / 256.0,
            2 => f32::from_bits((self.bits() & 0x8fff_ffff) | 0x3000_0000),
            _ => self.bits() as i32 as f32 / 3e9,
        }
    }
}

#[test]
fn every_primitive_equals_the_scalar_one() {
    let mut random = Random(7);
    let sets = Isa::available();
    for round in 0..2000 {
        let (mut a, mut b, mut c) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for v in a.iter_mut().chain(&mut b).chain(&mut c) {
            *v = random.float();
        }
        c.iter_mut().for_each(|v| *v = if *v == 0.0 { 3.0 } else { *v });
        let (mut bytes, mut other) = ([0; 64], [0; 64]);
        for v in bytes.iter_mut().chain(&mut other) {
            *v = match random.bits() % 8 {
                0 => 128,
                1 => 255,
                2 => 127,
                _ => random.bits() as u8,
            };
        }
        let mut x = [0_i8; 4];
        x.iter_mut().for_each(|v| {
            *v = if random.bits().is_multiple_of(3) { 127 } else { (random.bits() % 255) as u8 as i8 }
        });
        x.iter_mut().for_each(|v| *v = (*v).max(-127));
        let input = || Everything { a: &a, b: &b, c: &c, bytes: &bytes, other: &other, x: &x };
        // SAFETY: the scalar implementation needs nothing of the processor.
        let expected = unsafe { input().run::<Scalar>() };
        for &isa in &sets {
            // SAFETY: the instruction set is available.
            let got = unsafe { isa.dispatch(input()) };
            for (e, g) in expected.iter().zip(&got) {
                assert_eq!(e, g, "{} round {round}", isa.name());
            }
            assert_eq!(expected.len(), got.len());
        }
    }
}

#[test]
fn names_lead_back_to_their_instruction_set() {
    for isa in Isa::available() {
        assert_eq!(Isa::from_name(isa.name()), Some(isa));
    }
    assert_eq!(Isa::from_name("mmx"), None);
    assert_eq!(Isa::available().last(), Some(&Isa::detect()));
}
