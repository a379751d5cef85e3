// IEEE 754 binary32 in u32 arithmetic: one correct result on every device, subnormals, infinities and NaN included.
// Numbers are passed as their bits, so a device that flushes subnormals does not see them as floats.

const INFINITE: u32 = 0x7f800000u;
const NOT_A_NUMBER: u32 = 0x7fc00000u;
const SIGN: u32 = 0x80000000u;

// (high, low) << s, for s in 0..=63.
fn left64(v: vec2<u32>, s: u32) -> vec2<u32> {
    if (s == 0u) { return v; }
    if (s >= 32u) { return vec2<u32>(v.y << (s - 32u), 0u); }
    return vec2<u32>((v.x << s) | (v.y >> (32u - s)), v.y << s);
}

// (high, low) >> s, for s in 0..=63.
fn right64(v: vec2<u32>, s: u32) -> vec2<u32> {
    if (s == 0u) { return v; }
    if (s >= 32u) { return vec2<u32>(0u, v.x >> (s - 32u)); }
    return vec2<u32>(v.x >> s, (v.y >> s) | (v.x << (32u - s)));
}

// As right64 for any s; a set bit that is shifted out sets the lowest.
fn right64_sticky(v: vec2<u32>, s: u32) -> vec2<u32> {
    if (s == 0u) { return v; }
    if (s >= 64u) { return vec2<u32>(0u, select(0u, 1u, (v.x | v.y) != 0u)); }
    let kept = right64(v, s);
    let lost = left64(v, 64u - s);
    return vec2<u32>(kept.x, kept.y | select(0u, 1u, (lost.x | lost.y) != 0u));
}

// v * 2^e, not 0, rounded to the nearest f32, ties to even.
fn pack(sign: u32, v: vec2<u32>, e: i32) -> u32 {
    var top = i32(firstLeadingBit(v.y));
    if (v.x != 0u) { top = 32 + i32(firstLeadingBit(v.x)); }
    let biased = top + e + 127;
    if (biased >= 255) { return sign | INFINITE; }
    var s = top - 23;
    if (biased <= 0) { s = s + 1 - biased; }
    var m = 0u;
    if (s <= 0) {
        m = v.y << u32(-s);
    } else if (s < 64) {
        m = right64(v, u32(s)).y;
        let lost = left64(v, u32(64 - s));
        let rest = (lost.x << 1u) | lost.y;
        if ((lost.x & SIGN) != 0u && (rest != 0u || (m & 1u) != 0u)) { m = m + 1u; }
    }
    if (biased > 0) { m = m + (u32(biased - 1) << 23u); }
    return sign | m;
}

// A finite magnitude that is not 0 as (m, e): m * 2^e with m of 24 bits.
fn parts(magnitude: u32) -> vec2<i32> {
    let field = magnitude >> 23u;
    if (field == 0u) {
        let s = 23u - firstLeadingBit(magnitude);
        return vec2<i32>(i32(magnitude << s), -149 - i32(s));
    }
    return vec2<i32>(i32((magnitude & 0x7fffffu) | 0x800000u), i32(field) - 150);
}

// a * b + c where one of them is infinite or no number.
fn fma_special(a: u32, b: u32, c: u32) -> u32 {
    let x = a & ~SIGN;
    let y = b & ~SIGN;
    let z = c & ~SIGN;
    if (x > INFINITE || y > INFINITE || z > INFINITE) { return NOT_A_NUMBER; }
    if (x == INFINITE || y == INFINITE) {
        let product = ((a ^ b) & SIGN) | INFINITE;
        if (x == 0u || y == 0u || (z == INFINITE && c != product)) { return NOT_A_NUMBER; }
        return product;
    }
    return c;
}

// a * b + c, rounded once.
fn fma_bits(a: u32, b: u32, c: u32) -> u32 {
    let x = a & ~SIGN;
    let y = b & ~SIGN;
    let z = c & ~SIGN;
    if (x >= INFINITE || y >= INFINITE || z >= INFINITE) { return fma_special(a, b, c); }
    let product_sign = (a ^ b) & SIGN;
    let addend_sign = c & SIGN;
    if (x == 0u || y == 0u) {
        if (z != 0u) { return c; }
        return product_sign & addend_sign;
    }
    let xp = parts(x);
    let yp = parts(y);
    let xl = u32(xp.x) & 0xfffu;
    let xh = u32(xp.x) >> 12u;
    let yl = u32(yp.x) & 0xfffu;
    let yh = u32(yp.x) >> 12u;
    // The product of 48 bits, 14 bits up: 62 bits.
    let low = xl * yl;
    let middle = xl * yh + xh * yl;
    let low_word = (low << 14u) + (middle << 26u);
    let carry = select(0u, 1u, low_word < (low << 14u));
    var p = vec2<u32>((low >> 18u) + (middle >> 6u) + ((xh * yh) << 6u) + carry, low_word);
    var e = xp.y + yp.y - 14;
    // One shift and one rounding for all cases: compilers of software devices copy them to each place that names them.
    var sign = product_sign;
    if (z != 0u) {
        let zp = parts(z);
        var q = vec2<u32>(u32(zp.x) << 6u, 0u);
        let apart = e - (zp.y - 38);
        let moved = right64_sticky(select(p, q, apart > 0), u32(abs(apart)));
        if (apart > 0) {
            q = moved;
        } else {
            p = moved;
            e = e - apart;
        }
        if (product_sign == addend_sign) {
            let sum = p.y + q.y;
            p = vec2<u32>(p.x + q.x + select(0u, 1u, sum < p.y), sum);
        } else {
            if (p.x == q.x && p.y == q.y) { return 0u; }
            if (p.x < q.x || (p.x == q.x && p.y < q.y)) {
                let larger = q;
                q = p;
                p = larger;
                sign = addend_sign;
            }
            p = vec2<u32>(p.x - q.x - select(0u, 1u, p.y < q.y), p.y - q.y);
        }
    }
    return pack(sign, p, e);
}

// a / b, rounded once.
fn div_bits(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & SIGN;
    let x = a & ~SIGN;
    let y = b & ~SIGN;
    if (x > INFINITE || y > INFINITE || (x == INFINITE && y == INFINITE) || (x == 0u && y == 0u)) {
        return NOT_A_NUMBER;
    }
    if (x == INFINITE || y == 0u) { return sign | INFINITE; }
    if (x == 0u || y == INFINITE) { return sign; }
    let xp = parts(x);
    let yp = parts(y);
    var rest = u32(xp.x);
    let divisor = u32(yp.x);
    var e = xp.y - yp.y - 25;
    if (rest < divisor) {
        rest = rest << 1u;
        e = e - 1;
    }
    var quotient = 0u;
    for (var i = 0; i < 26; i = i + 1) {
        quotient = quotient << 1u;
        if (rest >= divisor) {
            rest = rest - divisor;
            quotient = quotient | 1u;
        }
        rest = rest << 1u;
    }
    return pack(sign, vec2<u32>(0u, quotient | select(0u, 1u, rest != 0u)), e);
}

// The square root of a, rounded once.
fn sqrt_bits(a: u32) -> u32 {
    if ((a & ~SIGN) == 0u || a == INFINITE) { return a; }
    if (a > INFINITE) { return NOT_A_NUMBER; }
    let p = parts(a);
    // 26 bits with an even exponent, and as many zeros behind them.
    var shift = 1;
    if (((p.y - 1) & 1) != 0) { shift = 2; }
    let m = u32(p.x) << u32(shift);
    let e = (p.y - shift) / 2 - 13;
    var root = 0u;
    var rest = 0u;
    for (var i = 0; i < 26; i = i + 1) {
        var next = 0u;
        if (i < 13) { next = (m >> u32(24 - 2 * i)) & 3u; }
        rest = (rest << 2u) | next;
        let trial = (root << 2u) | 1u;
        root = root << 1u;
        if (rest >= trial) {
            rest = rest - trial;
            root = root | 1u;
        }
    }
    return pack(0u, vec2<u32>(0u, root | select(0u, 1u, rest != 0u)), e);
}

// The f16 in the low bits of h; exact.
fn half_bits(h: u32) -> u32 {
    let sign = (h & 0x8000u) << 16u;
    let field = (h >> 10u) & 31u;
    let fraction = h & 0x3ffu;
    if (field == 31u) { return sign | INFINITE | (fraction << 13u); }
    if (field != 0u) { return sign | ((field + 112u) << 23u) | (fraction << 13u); }
    if (fraction == 0u) { return sign; }
    let top = firstLeadingBit(fraction);
    return sign | ((top + 103u) << 23u) | ((fraction << (23u - top)) & 0x7fffffu);
}

// The nearest f16, ties to even; magnitudes beyond 65504 become 65504.
fn to_half_bits(a: u32) -> u32 {
    let sign = (a & SIGN) >> 16u;
    let x = a & ~SIGN;
    if (x > INFINITE) { return sign | 0x7e00u; }
    if (x >= 0x477fe000u) { return sign | 0x7bffu; }
    if (x >= 0x38800000u) {
        let rebased = x - 0x38000000u;
        return sign | ((rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u);
    }
    let field = x >> 23u;
    if (field < 102u) { return sign; }
    let s = 126u - field;
    let m = (x & 0x7fffffu) | 0x800000u;
    let kept = m >> s;
    let lost = m & ((1u << s) - 1u);
    let middle = 1u << (s - 1u);
    if (lost > middle || (lost == middle && (kept & 1u) != 0u)) { return sign | (kept + 1u); }
    return sign | kept;
}
