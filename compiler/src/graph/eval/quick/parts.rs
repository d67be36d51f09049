//! The parts of elements that a precision multiplies.

use super::{functions::high_of_finite, wide};
use crate::scalar::Precision;

/// The parts of the elements of a matrix that are multiplied.
pub(super) struct Parts {
    /// The elements, or the sum of their parts.
    pub(super) whole: Vec<f32>,
    /// The low parts, at `bf16x3`.
    pub(super) low: Option<Vec<f32>>,
}

impl Parts {
    pub(super) fn of(elems: Vec<f32>, precision: Precision) -> Parts {
        let mut parts = Parts { low: has_low(precision).then(|| vec![0.0; elems.len()]), whole: elems };
        split(&mut parts.whole, parts.low.as_deref_mut().unwrap_or_default(), precision);
        parts
    }
}

/// Whether a precision multiplies two parts of each element.
pub(super) fn has_low(precision: Precision) -> bool {
    precision == Precision::Bf16x3
}

/// Whether a precision multiplies the elements as they are.
pub(super) fn is_whole(precision: Precision) -> bool {
    !matches!(precision, Precision::Bf16x3 | Precision::Bf16)
}

/// Replaces elements by the sum of their parts. `low` becomes the low parts if the precision has them.
pub(super) fn split(elems: &mut [f32], low: &mut [f32], precision: Precision) {
    match precision {
        Precision::Bf16x3 => wide::split(elems, low),
        Precision::Bf16 => elems.iter_mut().for_each(|x| *x = high_of_finite(*x)),
        Precision::F32 | Precision::Full | Precision::Exact | Precision::Int8 => {}
    }
}

/// Whether no element is an infinity or NaN.
pub(super) fn all_finite(elems: &[f32]) -> bool {
    let is_finite = |x: &f32| x.to_bits() & 0x7f80_0000 != 0x7f80_0000;
    elems.chunks(1024).all(|block| block.iter().fold(true, |all, x| all & is_finite(x)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scalar::precision;

    #[test]
    fn parts_are_those_of_the_definition() {
        let patterns = (0..=u32::MAX).step_by(65_521).chain([0, 1, 0x007f_ffff, 0x0080_0000, 0x7f7f_ffff]);
        let elems: Vec<f32> = patterns.map(f32::from_bits).filter(|x| x.is_finite()).collect();
        let parts = Parts::of(elems.clone(), Precision::Bf16x3);
        let lows = parts.low.expect("split");
        for ((x, whole), low) in elems.iter().zip(&parts.whole).zip(&lows) {
            assert_eq!(low.to_bits() << 1, precision::low(*x).to_bits() << 1, "{x}");
            assert_eq!(f64::from(*whole), f64::from(precision::high(*x)) + f64::from(precision::low(*x)));
        }
    }

    #[test]
    fn infinities_and_nans_are_not_finite() {
        for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut elems = vec![f32::MAX; 3000];
            assert!(all_finite(&elems));
            elems[2047] = x;
            assert!(!all_finite(&elems));
        }
    }
}
