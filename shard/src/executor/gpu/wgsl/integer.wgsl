// What a format decodes of 32 weights: codes, four a word, and the numbers of its chain.
var<private> w: array<u32, 8>;
var<private> scale: f32;
var<private> offset: f32;

// The exact sum of sixteen codes times activations.
fn dot_half(block: u32, h: u32) -> i32 {
    let at = 8u * block + 4u * h;
    var sum = dot4I8Packed(w[4u * h], codes[at]);
    sum = sum + dot4I8Packed(w[4u * h + 1u], codes[at + 1u]);
    sum = sum + dot4I8Packed(w[4u * h + 2u], codes[at + 2u]);
    return sum + dot4I8Packed(w[4u * h + 3u], codes[at + 3u]);
}
fn dot_all(block: u32) -> i32 { return dot_half(block, 0u) + dot_half(block, 1u); }
fn sum(block: u32) -> i32 { return sums[2u * block] + sums[2u * block + 1u]; }

// acc + coded * (scale * dx) + summed * (offset * dx), in this order; the last term changes its sign with `sign`.
fn two_terms(acc: f32, coded: i32, summed: i32, dx: f32, sign: u32) -> f32 {
    let whole = array<f32, 2>(f32(coded), f32(summed));
    let factor = array<f32, 2>(scale, bitcast<f32>(bitcast<u32>(offset) ^ sign));
    var y = acc;
    for (var i = 0u; i < 2u; i = i + 1u) { y = f_fma(whole[i], f_mul(factor[i], dx), y); }
    return y;
}

// Sixteen bytes of two codes from byte `at` on: the low halves come first.
fn nibbles(at: u32) {
    for (var i = 0u; i < 4u; i = i + 1u) {
        let four = bytes(at + 4u * i);
        w[i] = four & 0x0f0f0f0fu;
        w[i + 4u] = (four >> 4u) & 0x0f0f0f0fu;
    }
}

// The fifth bit of each code, one bit a code.
fn fifth_bits(bits: u32) {
    for (var i = 0u; i < 8u; i = i + 1u) {
        let four = bits >> (4u * i);
        let spread = (four & 1u) | ((four & 2u) << 7u) | ((four & 4u) << 14u) | ((four & 8u) << 21u);
        w[i] = w[i] | (spread << 4u);
    }
}

fn byte(at: u32) -> u32 { return bytes(at) & 0xffu; }

// Scale and minimum of group g of a block of 256 whose units are at byte `at` and whose packed scales follow.
fn affine(at: u32, g: u32) {
    var sc = 0u;
    var mn = 0u;
    if (g < 4u) {
        sc = byte(at + 4u + g) & 63u;
        mn = byte(at + 8u + g) & 63u;
    } else {
        let low = byte(at + 8u + g);
        sc = (low & 15u) | ((byte(at + g) >> 6u) << 4u);
        mn = (low >> 4u) | ((byte(at + 4u + g) >> 6u) << 4u);
    }
    let units = bytes(at);
    let whole = array<f32, 2>(f32(sc), f32(mn));
    var made: array<f32, 2>;
    for (var i = 0u; i < 2u; i = i + 1u) { made[i] = f_mul(half(units >> (16u * i)), whole[i]); }
    scale = made[0];
    offset = made[1];
}
