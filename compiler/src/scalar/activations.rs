//! How activations are rounded to 8 bits for products with weights of few bits.
//!
//! The elements of a row along the reduction are rounded in the blocks that the weights have there. In `f32`,
//!
//! ```text
//! largest = max |x|                  of the block; NaN if an element is NaN
//! scale   = largest / 127
//! q       = nearest(x * (127 / largest))             halves to even, so -127 to 127
//! sum     = Σ q * (code - zero)      of the block; an exact integer of 32 bits
//! result  = sum * (scale * weight scale) + result    block by block, from 0
//! ```
//!
//! The last step is one multiply-add, rounded once where the machine can. If `largest` is smaller than
//! [`SMALLEST`], infinite or NaN, all `q` are 0; a block with an infinity or a NaN then makes the result NaN.
//! Blocks of a row depend on no other row, and integer sums are exact. So the bits of a result depend neither on the
//! number of rows, nor on threads, nor on the order in which a machine adds products.

/// The largest magnitude of a rounded activation.
pub(crate) const MAX_CODE: f32 = 127.0;

/// Blocks without a magnitude of at least this, 2⁻¹⁰⁰, are rounded to zero: the inverse of their scale may be infinite.
pub(crate) const SMALLEST: f32 = f32::from_bits(27 << 23);

/// The largest number of elements of a block. Blocks of more elements would have large errors, and sums that `f32`
/// doesn't hold.
pub(crate) const MAX_BLOCK: usize = 1024;

/// The distance from the middle of two integers within which small errors of elements change the code: those of a few
/// roundings, `2⁻¹⁹` of the largest magnitude.
const NEAR_MIDDLE: f32 = 1.0 / 4096.0;

/// The largest number of elements of a row, so that the addresses of rounded rows fit.
pub(crate) const MAX_DEPTH: usize = 1 << 24;

/// A block of activations, rounded.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct RoundedBlock {
    /// The factor of all codes.
    pub(crate) scale: f32,
    /// An integer of magnitude at most 127 for each element.
    pub(crate) codes: Vec<i8>,
}

impl RoundedBlock {
    /// Rounds the elements of a block.
    pub(crate) fn of(elements: &[f32]) -> RoundedBlock {
        RoundedBlock::with(elements, f32::round_ties_even)
    }

    /// As [`RoundedBlock::of`], but elements near the middle of two integers are rounded to the other one. The
    /// difference shows the effect of small errors of the elements.
    pub(crate) fn of_to_other_side(elements: &[f32]) -> RoundedBlock {
        RoundedBlock::with(elements, |x| {
            let nearest = x.round_ties_even();
            let is_near_middle = (x - nearest).abs() > 0.5 - NEAR_MIDDLE;
            if is_near_middle { nearest + (x - nearest).signum() } else { nearest }
        })
    }

    fn with(elements: &[f32], nearest: impl Fn(f32) -> f32) -> RoundedBlock {
        // The bits of magnitudes are ordered as the magnitudes are, and those of NaN are largest.
        let bits = elements.iter().map(|x| x.abs().to_bits()).max().unwrap_or(0);
        let largest = f32::from_bits(bits);
        let is_usable = (SMALLEST..=f32::MAX).contains(&largest);
        let inverse = MAX_CODE / largest;
        let code = |x: &f32| if is_usable { nearest(x * inverse) as i8 } else { 0 };
        RoundedBlock { scale: largest / MAX_CODE, codes: elements.iter().map(code).collect() }
    }

    /// The rounded elements, exactly.
    pub(crate) fn values(&self) -> impl Iterator<Item = f64> {
        self.codes.iter().map(|code| f64::from(*code) * f64::from(self.scale))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_reach_the_ends_and_round_halves_to_even() {
        let block = RoundedBlock::of(&[254.0, -254.0, 1.0, 3.0, -5.0, 0.0]);
        assert_eq!(block, RoundedBlock { scale: 2.0, codes: vec![127, -127, 0, 2, -2, 0] });
        assert!(block.values().eq([254.0, -254.0, 0.0, 4.0, -4.0, 0.0]));
    }

    #[test]
    fn only_elements_near_the_middle_go_to_the_other_side() {
        let elements = [127.0, 1.4999, -1.4999, 1.5001, 1.49, 126.6, 0.0];
        assert_eq!(RoundedBlock::of(&elements).codes, [127, 1, -1, 2, 1, 127, 0]);
        assert_eq!(RoundedBlock::of_to_other_side(&elements).codes, [127, 2, -2, 1, 1, 127, 0]);
    }

    #[test]
    fn all_magnitudes_stay_in_range() {
        for bits in (SMALLEST.to_bits()..f32::MAX.to_bits()).step_by(9973) {
            let x = f32::from_bits(bits);
            assert_eq!(RoundedBlock::of(&[x, -x, 0.0]).codes, [127, -127, 0], "{x}");
        }
    }

    #[test]
    fn tiny_and_endless_blocks_have_no_codes() {
        let tiny = f32::from_bits(SMALLEST.to_bits() - 1);
        for x in [0.0, f32::from_bits(1), tiny, f32::INFINITY, f32::NAN] {
            let block = RoundedBlock::of(&[1e-38, x, -x]);
            assert_eq!(block.codes, [0; 3], "{x}");
            assert_eq!(block.scale.is_finite(), x.is_finite());
        }
        assert!(RoundedBlock::of(&[]).codes.is_empty());
    }
}
