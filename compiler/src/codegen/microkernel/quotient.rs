//! Quotients by constants.
//!
//! Independent divisions of 512 bits take 3.4 ns each on Emerald Rapids, and multiplications 0.5 ns. So the dividend is
//! multiplied by the reciprocal of the constant, which is split into two floats: `x / c = x * high + x * low`.
//!
//! Source: N. Brisebarre, J.-M. Muller and S. K. Raina, "Accelerating correctly rounded floating-point division when
//! the divisor is known in advance", IEEE Transactions on Computers 53 (8), 2004.

use crate::codegen::vector::{
    Builder,
    vcode::{VBinary, Vector},
};

/// Largest error in units in the last place of a quotient of at least [`LEAST_QUOTIENT`].
///
/// The two roundings of `low` and of `x * low` are 2^-46 of the quotient, so they are 2^-22 of its last place. They
/// change the result only next to a midpoint between two floats. A quotient that is a float is exact.
pub const QUOTIENT_ULP: f64 = 0.500_000_25;

/// Smaller quotients are off by one unit in the last place at most, because `x * low` loses bits to underflow.
pub const LEAST_QUOTIENT: f32 = 7.9e-31;

/// The magnitudes of other divisors than powers of two. Both parts of their reciprocals are normal floats.
const DIVISORS: std::ops::Range<f32> = 1e-18..1e18;

/// `x / divisor`.
pub(super) fn by_constant(b: &mut Builder, x: Vector, divisor: f32) -> Vector {
    if is_power_of_two(divisor) && divisor.recip().is_normal() {
        let reciprocal = b.float(divisor.recip());
        return b.binary(VBinary::Mul, x, reciprocal);
    }
    if !b.shape().fma || !DIVISORS.contains(&divisor.abs()) {
        let divisor = b.float(divisor);
        return b.binary(VBinary::Div, x, divisor);
    }
    times_reciprocal(b, x, divisor)
}

/// `x * high + x * low`, rounded once after `x * low`.
pub(super) fn times_reciprocal(b: &mut Builder, x: Vector, divisor: f32) -> Vector {
    let (high, low) = reciprocal(divisor);
    let high = b.float(high);
    let low = b.float(low);
    let rest = b.binary(VBinary::Mul, x, low);
    b.fma(x, high, rest)
}

/// `1 / divisor` as the sum of two floats, the larger one first. Both have the same sign: the products of an infinity
/// then add up to an infinity. The second is zero for powers of two only.
pub(super) fn reciprocal(divisor: f32) -> (f32, f32) {
    let exact = 1.0 / f64::from(divisor);
    let nearest = exact as f32;
    let exceeds = f64::from(nearest).abs() > exact.abs();
    let high = if exceeds { f32::from_bits(nearest.to_bits() - 1) } else { nearest };
    (high, (exact - f64::from(high)) as f32)
}

fn is_power_of_two(x: f32) -> bool {
    x.is_normal() && x.to_bits().trailing_zeros() >= f32::MANTISSA_DIGITS - 1
}
