//! How a contraction multiplies: the operands as they are, or each split into a few bf16.
//!
//! This is the definition that the interpreters evaluate and that microkernels for tile registers follow. A bf16 is
//! the high half of an `f32`: 8 bits of significand and the same exponents. `high(x)` is `x` rounded to the nearest
//! bf16, ties to even. `low(x)` is `x - high(x)`, which is exact in `f32`, rounded likewise. If `x` is infinite or
//! rounds to infinity, `low(x)` is 0. A denormal `f32` counts as zero before it is rounded, as the rounding
//! instructions treat it, so no bf16 is denormal. Sums are computed in `f32` in any case.
//!
//! The error of `high` is at most `2^-8 |x|`, and that of `high + low` at most `2^-16 |x|`. The three products of
//! [`Precision::Bf16x3`] omit `low*low` and the errors of both `low`: a little more than `3 * 2^-16 |x*y|`.
//!
//! An `f32` has 24 bits of significand, so it is the sum of three bf16. If the other operand is a bf16 itself, as
//! one-byte integers are, three products of bf16 give the exact product. [`Precision::Exact`] omits only denormal
//! parts.

use std::fmt::{self, Display, Formatter};

/// How contractions of `f32` multiply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Precision {
    /// `x * y`.
    #[default]
    F32,
    /// `low(x)*high(y) + high(x)*high(y) + high(x)*low(y)`.
    Bf16x3,
    /// `high(x) * high(y)`.
    Bf16,
    /// `x * y`, where `y` is a bf16 and `x` is split into three. The compiler chooses it in place of
    /// [`Precision::F32`] for constants that are bf16; it cannot be requested.
    Exact,
    /// `x * y` at any requested precision, because the definition of the model requires it. Only graphs have it.
    /// Kernels have [`Precision::F32`] instead.
    Full,
    /// `round(x) * y`, where `y` is a constant of few bits and `round` keeps 8 bits, see
    /// [`activations`](super::activations). Sums of a block are exact. Only graphs have it; in kernels, the form of the
    /// weights says so.
    Int8,
}

/// The number of bf16 that the operands of a multiplication are split into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bf16Parts {
    /// Parts of the left operand.
    pub lhs: u8,
    /// Parts of the right operand.
    pub rhs: u8,
}

impl Precision {
    /// All precisions that can be requested, the most precise first.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16x3, Precision::Bf16];

    /// The name used on the command line and in text.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16x3 => "bf16x3",
            Precision::Bf16 => "bf16",
            Precision::Exact => "exact",
            Precision::Full => "full",
            Precision::Int8 => "int8",
        }
    }

    /// The precision with this name in text.
    pub fn from_name(name: &str) -> Option<Precision> {
        Precision::ALL
            .into_iter()
            .chain([Precision::Exact, Precision::Full, Precision::Int8])
            .find(|precision| precision.name() == name)
    }

    /// The parts that operands are split into. `None` if they are multiplied as they are.
    pub const fn parts(self) -> Option<Bf16Parts> {
        match self {
            Precision::F32 | Precision::Full | Precision::Int8 => None,
            Precision::Bf16x3 => Some(Bf16Parts { lhs: 2, rhs: 2 }),
            Precision::Bf16 => Some(Bf16Parts { lhs: 1, rhs: 1 }),
            Precision::Exact => Some(Bf16Parts { lhs: 3, rhs: 1 }),
        }
    }

    /// The maximum error of one product, relative to its magnitude. Sums round in addition, as they do in `f32`.
    pub const fn max_product_error(self) -> f64 {
        const HALF_STEP: f64 = 1.0 / 256.0;
        match self {
            Precision::F32 | Precision::Exact | Precision::Full | Precision::Int8 => 0.0,
            // `(1 + u^2)(u^2 + u^2) + (u + ...)^2`, rounded up in the last digit given.
            Precision::Bf16x3 => 3.02 * HALF_STEP * HALF_STEP,
            Precision::Bf16 => 2.01 * HALF_STEP,
        }
    }

    /// The maximum error of a whole model, relative to the largest element of an output, for `selfcheck` to pass.
    pub(crate) const fn max_model_error(self) -> f64 {
        match self {
            Precision::F32 | Precision::Exact | Precision::Full | Precision::Int8 => 0.0,
            Precision::Bf16x3 => 5e-5,
            Precision::Bf16 => 5e-2,
        }
    }

    /// The parts of `x`: high and low.
    pub(crate) fn operand_parts(self, x: f32) -> [f64; 2] {
        match self {
            Precision::F32 | Precision::Exact | Precision::Full | Precision::Int8 => [x.into(), 0.0],
            Precision::Bf16x3 => [high(x).into(), low(x).into()],
            Precision::Bf16 => [high(x).into(), 0.0],
        }
    }

    /// The product of two values, without further rounding.
    pub fn product(self, x: f32, y: f32) -> f64 {
        multiply_parts(self.operand_parts(x), self.operand_parts(y))
    }
}

impl Display for Precision {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The product of two values, given their parts.
pub(crate) fn multiply_parts(x: [f64; 2], y: [f64; 2]) -> f64 {
    x[0] * y[0] + (x[1] * y[0] + x[0] * y[1])
}

/// The nearest bf16, ties to even. NaN stays NaN, and denormals become zero.
pub fn high(x: f32) -> f32 {
    if x.is_nan() {
        return f32::from_bits(0x7fc0_0000);
    }
    if x.is_subnormal() {
        return 0.0_f32.copysign(x);
    }
    let bits = x.to_bits();
    let even = bits >> 16 & 1;
    f32::from_bits(bits.wrapping_add(0x7fff + even) & 0xffff_0000)
}

/// The bf16 nearest to the error of [`high`].
pub fn low(x: f32) -> f32 {
    let high = self::high(x);
    if high.is_infinite() { 0.0 } else { self::high(x - high) }
}

/// With fewer rows, columns or reduced elements, splitting and packing the operands takes longer than tile registers
/// save.
pub(crate) const MIN_SPLIT_EXTENT: i64 = 16;

/// Whether `x` is a finite bf16. Infinity is excluded, because its products with parts that are zero are NaN.
pub(crate) fn is_bf16(x: f32) -> bool {
    x.is_finite() && high(x).to_bits() == x.to_bits()
}

/// The three bf16 whose sum is `x`. Each is the remainder of the former ones, truncated to 8 bits. Infinity and NaN
/// are in the first part only, and denormal parts are zero.
pub fn split_in_three(x: f32) -> [f32; 3] {
    let cut = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
    let rest = if x.is_infinite() { 0.0 } else { x - cut(x) };
    [cut(x), cut(rest), rest - cut(rest)].map(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_even() {
        let next = f32::from_bits(0x3f81_0000);
        for (x, want) in [
            (1.0, 1.0),
            (f32::from_bits(0x3f80_8000), 1.0),
            (f32::from_bits(0x3f80_8001), next),
            (f32::from_bits(0x3f81_8000), f32::from_bits(0x3f82_0000)),
            (f32::MAX, f32::INFINITY),
            (-f32::INFINITY, -f32::INFINITY),
            (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
            (f32::from_bits(0x007f_ffff), 0.0),
        ] {
            assert_eq!(high(x), want, "{x}");
        }

        assert!(high(f32::from_bits(0x7f80_0001)).is_nan());
        assert_eq!(low(f32::INFINITY), 0.0);
        assert_eq!(low(f32::MAX), 0.0);
    }

    #[test]
    fn thirds_are_all_of_a_number() {
        let exponents = [24_u32, 127, 254];
        for x in exponents.into_iter().flat_map(|exponent| {
            let significands = (0..1_u32 << 23).step_by(41).chain([0x7fff, 0x8000, 0xffff, (1 << 23) - 1]);
            significands.map(move |bits| f32::from_bits(exponent << 23 | bits))
        }) {
            for x in [x, -x] {
                let [high, middle, low] = split_in_three(x);
                assert!([high, middle, low].into_iter().all(is_bf16), "{x}");
                assert_eq!(high + (middle + low), x);
            }
        }

        assert_eq!(split_in_three(-f32::INFINITY), [-f32::INFINITY, 0.0, 0.0]);
        for bits in [0x7fc0_0000, 0x7f80_0001, 0xff80_8000] {
            assert!(split_in_three(f32::from_bits(bits)).iter().sum::<f32>().is_nan());
        }
        assert_eq!(split_in_three(f32::from_bits(0x007f_ffff)), [0.0; 3]);
        assert!(is_bf16(-256.0) && !is_bf16(257.0) && !is_bf16(f32::from_bits(1)));
        assert!(!is_bf16(f32::INFINITY) && !is_bf16(f32::NAN));
    }

    #[test]
    fn products_keep_their_bound() {
        // All significands of one operand with the worst-rounding patterns of the other.
        let significands = (0..1_u32 << 23).step_by(37).chain([0x7fff, 0x8000, 0x8001, 0x80_0000 - 1]);
        for x in significands.map(|bits| f32::from_bits(0x3f80_0000 | bits)) {
            for y in [0x3f80_7fff_u32, 0x3f80_8000, 0x3f80_8080, 0x3f81_7f7f, 0x3fff_7fff, 0x4000_0000] {
                let y = f32::from_bits(y);
                let exact = f64::from(x) * f64::from(y);
                for precision in Precision::ALL {
                    let off = (precision.product(x, y) - exact).abs();
                    assert!(
                        off <= precision.max_product_error() * exact.abs(),
                        "{precision}: {x} * {y} is off by {off}"
                    );
                }
            }
        }
    }
}
