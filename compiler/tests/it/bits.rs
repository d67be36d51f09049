//! Comparison of floats by their bits.

use std::fmt::Display;

/// Asserts that `got` has the bits of `expected`. The message names the first element that differs.
#[track_caller]
pub(crate) fn assert_same_bits(got: &[f32], expected: &[f32], context: impl Display) {
    assert_eq!(got.len(), expected.len(), "{context}: number of elements");
    for (idx, (got, expected)) in got.iter().zip(expected).enumerate() {
        let is_same = got.to_bits() == expected.to_bits();
        assert!(is_same, "{context}: element {idx} is {got:e} instead of {expected:e}");
    }
}
