//! Functions of `f32` without branches, so that the compiler of this crate makes vector code of loops over them, also
//! of the loops of [`super::wide`], into which they are inlined.
//!
//! They compute in `f64`, with a relative error below 1e-9, and round once.

/// `e^x`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite in `f32`.
    let y = exp_of(f64::from(x).clamp(-200.0, 200.0)) as f32;
    if x.is_nan() { x } else { y }
}

/// `tanh x`.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let y = f64::from(x);
    let magnitude = y.abs().min(20.0);
    // Near 0 the difference would lose all digits.
    let near = magnitude - magnitude * magnitude * magnitude / 3.0;
    let far = 1.0 - 2.0 / (exp_of(2.0 * magnitude) + 1.0);
    let result = if magnitude < 1e-3 { near } else { far };
    if x.is_nan() { x } else { result.copysign(y) as f32 }
}

/// `erf x`.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let y = f64::from(x);
    // The result is 1 in `f32` from 4 on.
    let magnitude = y.abs().min(6.0);
    let square = magnitude * magnitude;
    let near = magnitude * polynomial(square, &ERF_NEAR_ZERO);
    let t = 1.0 / (1.0 + 0.5 * magnitude);
    let far = 1.0 - exp_of(-square) * polynomial(t, &ERFCX);
    let result = if magnitude < 0.5 { near } else { far };
    if x.is_nan() { x } else { result.copysign(y) as f32 }
}

/// The smaller one; NaN if either is NaN, and `-0 < 0`.
#[inline(always)]
pub(super) fn min(x: f32, y: f32) -> f32 {
    // Of equal floats only zeros differ, in their sign.
    let smaller = if x == y { f32::from_bits(x.to_bits() | y.to_bits()) } else { y };
    if x.is_nan() | (x < y) { x } else { smaller }
}

/// The larger one; NaN if either is NaN, and `-0 < 0`.
#[inline(always)]
pub(super) fn max(x: f32, y: f32) -> f32 {
    let larger = if x == y { f32::from_bits(x.to_bits() & y.to_bits()) } else { y };
    if x.is_nan() | (x > y) { x } else { larger }
}

/// The sum of the two parts of an element at `bf16x3`, which is exact, and the low part.
#[inline(always)]
pub(super) fn whole_and_low(x: f32) -> (f32, f32) {
    let high = high_of_finite(x);
    let rest = high_of_finite(x - high);
    // The rest of an element that rounds to infinity is 0.
    let low = if high.is_infinite() { 0.0 } else { rest };
    (high + low, low)
}

/// As [`crate::scalar::precision::high`], for elements that are not NaN, without branches.
#[inline(always)]
pub(super) fn high_of_finite(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    let is_denormal = bits & 0x7f80_0000 == 0;
    f32::from_bits(if is_denormal { bits & 0x8000_0000 } else { rounded })
}

/// `2/√π * (-1)^n / (n! (2n + 1))`: the series of `erf x / x` in `x²`.
const ERF_NEAR_ZERO: [f64; 8] = [
    std::f64::consts::FRAC_2_SQRT_PI,
    -0.376_126_389_031_837_5,
    0.112_837_916_709_551_26,
    -0.026_866_170_645_131_25,
    0.005_223_977_625_442_188,
    -8.548_327_023_450_853e-4,
    1.205_533_298_178_966_4e-4,
    -1.492_565_035_840_625e-5,
];

/// `e^(x²) erfc x` for `x` in 0.5..6 as a polynomial in `1 / (1 + x/2)`, interpolated at Chebyshev nodes. The error of
/// `erfc x` is 1.5e-10.
const ERFCX: [f64; 10] = [
    -8.210_236_802_641_546e-7,
    0.282_067_539_370_265_2,
    0.282_915_258_768_983_6,
    0.238_255_975_458_595_96,
    0.225_315_657_363_085_26,
    -0.088_898_739_489_819_54,
    0.382_803_449_795_466_16,
    -0.593_024_851_596_100_1,
    0.343_574_120_826_670_5,
    -0.073_016_586_682_674_62,
];

/// `1 / n!`.
const EXP: [f64; 10] = [
    1.0,
    1.0,
    0.5,
    1.666_666_666_666_666_6e-1,
    4.166_666_666_666_666_4e-2,
    8.333_333_333_333_333e-3,
    1.388_888_888_888_889e-3,
    1.984_126_984_126_984e-4,
    2.480_158_730_158_73e-5,
    2.755_731_922_398_589e-6,
];

/// `1.5 * 2^52`: a sum with it rounds to an integer, which the low bits of the sum hold.
const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// `e^x` for `x` between -700 and 700: `2^k e^r`, where `|r| <= ln 2 / 2`.
#[inline(always)]
fn exp_of(x: f64) -> f64 {
    let shifted = x * std::f64::consts::LOG2_E + ROUNDER;
    let remainder = x - (shifted - ROUNDER) * std::f64::consts::LN_2;
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    power * polynomial(remainder, &EXP)
}

#[inline(always)]
fn polynomial<const N: usize>(x: f64, coefficients: &[f64; N]) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error in units of the last place, over floats of all magnitudes and many between -10 and 10.
    fn worst(actual: impl Fn(f32) -> f32, expected: impl Fn(f64) -> f64) -> f64 {
        let patterns = (0..=u32::MAX).step_by(9973).map(f32::from_bits);
        let near = (-100_000..=100_000).map(|k| k as f32 * 1e-4);
        let error = |x: f32| {
            let actual = actual(x);
            let expected = expected(f64::from(x));
            let rounded = expected as f32;
            if !rounded.is_finite() || !actual.is_finite() {
                let same = actual.to_bits() == rounded.to_bits() || actual.is_nan() && rounded.is_nan();
                return if same { 0.0 } else { f64::INFINITY };
            }
            let unit = f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs());
            (f64::from(actual) - expected).abs() / unit
        };
        patterns.chain(near).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_rounded_to_nearest_but_for_ties() {
        for (name, error) in
            [("exp", worst(exp, f64::exp)), ("tanh", worst(tanh, f64::tanh)), ("erf", worst(erf, libm::erf))]
        {
            assert!(error <= 0.51, "{name}: {error}");
        }
    }

    #[test]
    fn zeros_keep_their_sign() {
        for function in [tanh, erf] {
            assert_eq!(function(-0.0).to_bits(), (-0.0_f32).to_bits());
        }
    }
}
