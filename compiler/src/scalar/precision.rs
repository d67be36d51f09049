//! What the products of a contraction are made of: the factors as they are, or a few bf16 for each.
//!
//! This is the definition that the interpreters evaluate and that leaves on tile registers follow. A bf16 is the high half
//! of an `f32`: 8 bits of significand and the same exponents. `high(x)` is `x` rounded to the nearest bf16, ties to even,
//! and `low(x)` is `x - high(x)`, which is an `f32` exactly, rounded likewise; `low` of what is infinite, or rounds to
//! that, is 0. A denormal `f32` counts as zero before it is rounded, as it does for the instructions that round, so
//! no bf16 is denormal. Sums run in `f32` whatever the factors are.
//!
//! One rounding is off by at most `2^-8 |x|`, and what `low` misses by at most `2^-16 |x|`. Of `x*y` the three products of
//! [`Precision::Bf16x3`] leave out `low*low` and what both `low` miss: `3 * 2^-16 |x*y|` and a little.
//!
//! An `f32` has 24 bits of significand, so three bf16 are all of it. Where the other factor is a bf16 as it is, as integers
//! of one byte are, three products of bf16 are that of the factors: [`Precision::Exact`] leaves out nothing but parts that
//! are denormal.

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
    /// `x * y`, where `y` is a bf16 and `x` becomes three that add up to it. Nobody asks for it: it takes the place of
    /// [`Precision::F32`] where constants are such.
    Exact,
    /// `x * y` at whatever precision a model is compiled, as its definition asks for. Graphs alone have it: kernels have
    /// [`Precision::F32`] in its place.
    Full,
}

/// Bf16 that the factors of a product become.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bf16Parts {
    /// Those of the left one.
    pub lhs: u8,
    /// Those of the right one.
    pub rhs: u8,
}

impl Precision {
    /// All that a model may be compiled with, the most precise first.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16x3, Precision::Bf16];

    /// The name used on the command line and in text.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16x3 => "bf16x3",
            Precision::Bf16 => "bf16",
            Precision::Exact => "exact",
            Precision::Full => "full",
        }
    }

    /// The precision of this name, in text.
    pub fn from_name(name: &str) -> Option<Precision> {
        Precision::ALL
            .into_iter()
            .chain([Precision::Exact, Precision::Full])
            .find(|precision| precision.name() == name)
    }

    /// The bf16 that factors become; none of those that are multiplied as they are.
    pub const fn parts(self) -> Option<Bf16Parts> {
        match self {
            Precision::F32 | Precision::Full => None,
            Precision::Bf16x3 => Some(Bf16Parts { lhs: 2, rhs: 2 }),
            Precision::Bf16 => Some(Bf16Parts { lhs: 1, rhs: 1 }),
            Precision::Exact => Some(Bf16Parts { lhs: 3, rhs: 1 }),
        }
    }

    /// The most that one product is off, relative to its magnitude; sums round on top of it, as they do in `f32`.
    pub const fn max_product_error(self) -> f64 {
        const HALF_STEP: f64 = 1.0 / 256.0;
        match self {
            Precision::F32 | Precision::Exact | Precision::Full => 0.0,
            // `(1 + u^2)(u^2 + u^2) + (u + ...)^2`, rounded up in the last place that is told.
            Precision::Bf16x3 => 3.02 * HALF_STEP * HALF_STEP,
            Precision::Bf16 => 2.01 * HALF_STEP,
        }
    }

    /// The most that results of a whole model may be off, relative to the largest of an output, for `selfcheck` to pass.
    pub const fn max_model_error(self) -> f64 {
        match self {
            Precision::F32 | Precision::Exact | Precision::Full => 0.0,
            Precision::Bf16x3 => 5e-5,
            Precision::Bf16 => 5e-2,
        }
    }

    /// The factors that `x` becomes: high and low.
    pub fn operand_parts(self, x: f32) -> [f64; 2] {
        match self {
            Precision::F32 | Precision::Exact | Precision::Full => [x.into(), 0.0],
            Precision::Bf16x3 => [high(x).into(), low(x).into()],
            Precision::Bf16 => [high(x).into(), 0.0],
        }
    }

    /// The product of two numbers, without further rounding.
    pub fn product(self, x: f32, y: f32) -> f64 {
        multiply_parts(self.operand_parts(x), self.operand_parts(y))
    }
}

impl Display for Precision {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The product of two numbers by their factors.
pub fn multiply_parts(x: [f64; 2], y: [f64; 2]) -> f64 {
    x[0] * y[0] + (x[1] * y[0] + x[0] * y[1])
}

/// The nearest bf16, ties to even; NaN stays NaN, and denormals are zeros.
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

/// The bf16 nearest to what [`high`] misses.
pub fn low(x: f32) -> f32 {
    let high = self::high(x);
    if high.is_infinite() { 0.0 } else { self::high(x - high) }
}

/// Where numbers are multiplied in parts, fewer rows, columns, or numbers to add up take longer to be split and laid out than
/// they gain.
pub(crate) const MIN_SPLIT_EXTENT: i64 = 16;

/// Whether `x` is a finite bf16 as it is. Infinity is none: its products with the parts of a number that are zero are no
/// numbers.
pub fn is_bf16(x: f32) -> bool {
    x.is_finite() && high(x).to_bits() == x.to_bits()
}

/// The three bf16 that `x` is the sum of: each is what the former ones leave, cut off behind its 8 bits. All of infinity and
/// of NaN is in the first ones, and what is denormal counts as zero.
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
        // All significands of a factor with the patterns of the other that round worst.
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
