//! Taps of kernels that see nothing but padding.
//!
//! Far taps of a dilated kernel are outside of a small image, wherever the window is.

use std::ops::Range;
use symshape::{Dim, Facts};

/// A window along one axis of an image.
pub(super) struct WindowAxis<'a> {
    /// The size of the image.
    pub(super) size: &'a Dim,
    pub(super) taps: i64,
    pub(super) stride: i64,
    pub(super) dilation: i64,
    /// Elements of padding before the image.
    pub(super) lo: &'a Dim,
    /// Elements of padding after it.
    pub(super) hi: &'a Dim,
}

impl WindowAxis<'_> {
    /// The taps that may see the image, at some position and some size. There is at least one. As much padding as the
    /// other taps need can be removed.
    pub(super) fn seeing_taps(&self, facts: &Facts) -> Range<i64> {
        let WindowAxis { size, taps, stride, dilation, lo, hi } = *self;
        let is_le = |a: &Dim, b: &Dim| facts.prove_le(a, b).is_yes();
        let span = (taps - 1) * dilation + 1;
        // The distance from the first window to the last one.
        let travel = (size + lo + hi - span).floor_div(stride) * stride;

        let mut first = 0;
        while first + 1 < taps {
            let is_before_image = is_le(&(&travel + first * dilation + 1), lo);
            if !is_before_image || !is_le(&Dim::from((first + 1) * dilation), lo) {
                break;
            }
            first += 1;
        }
        let mut end = taps;
        while end - 1 > first {
            let is_behind_image = is_le(&(lo + size), &Dim::from((end - 1) * dilation));
            let removed = (taps - end + 1) * dilation;
            if !is_behind_image || !is_le(&Dim::from(removed), hi) {
                break;
            }
            end -= 1;
        }
        first..end
    }
}
