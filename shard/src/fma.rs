//! Fused multiply-add with the same bits on every machine.
//!
//! Where the compiler knows of no instruction, `mul_add` of the standard library calls the platform's mathematics library, and
//! MinGW's rounds the product and the sum: there it is the crate `libm`'s.

/// Fused multiply-add.
pub(crate) trait Fma {
    /// `self * by + plus`, rounded once.
    #[must_use]
    fn fma(self, by: Self, plus: Self) -> Self;
}

impl Fma for f32 {
    #[inline(always)]
    #[allow(clippy::disallowed_methods)]
    fn fma(self, by: Self, plus: Self) -> Self {
        #[cfg(all(windows, target_env = "gnu"))]
        return libm::fmaf(self, by, plus);
        #[cfg(not(all(windows, target_env = "gnu")))]
        self.mul_add(by, plus)
    }
}

impl Fma for f64 {
    #[inline(always)]
    #[allow(clippy::disallowed_methods)]
    fn fma(self, by: Self, plus: Self) -> Self {
        #[cfg(all(windows, target_env = "gnu"))]
        return libm::fma(self, by, plus);
        #[cfg(not(all(windows, target_env = "gnu")))]
        self.mul_add(by, plus)
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn the_product_is_not_rounded() {
        // (1 + e)^2 - (1 + 2 e) is e^2, of which a rounded product has nothing.
        let e = 2.0_f32.recip() / 4096.0;
        assert_eq!(black_box(1.0 + e).fma(1.0 + e, -(1.0 + 2.0 * e)), e * e);
        let e = 2.0_f64.recip() / f64::from(1_u32 << 30);
        assert_eq!(black_box(1.0 + e).fma(1.0 + e, -(1.0 + 2.0 * e)), e * e);
    }
}
