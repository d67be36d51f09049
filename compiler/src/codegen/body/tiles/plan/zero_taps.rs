//! Taps of a convolution that see only padding, which microkernels leave out.
//!
//! The outermost loop of the reduction runs over the taps along an axis of the image. At an outer row axis, such as the
//! line of the result, some of them are outside of the image. They are the first or the last ones, so the loop takes
//! fewer iterations.

use super::reduction::{ReductionLoop, constant_depth};
use crate::{
    codegen::{body::body_builder::linear_parts, microkernel::contraction::Rhs},
    kernel::{Contraction, Padding},
};
use symshape::{Dim, Facts};

/// The taps of the outermost loop of the reduction, and where they are in the image.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ZeroTaps {
    /// The number of taps.
    pub(crate) taps: i64,
    /// The distance from tap to tap.
    pub(crate) dilation: i64,
    /// The position of the first tap, over the outer row axes.
    pub(crate) first: Dim,
    /// The positions in the image.
    pub(crate) begin: Dim,
    /// Their end.
    pub(crate) end: Dim,
}

impl ZeroTaps {
    /// The taps of a contraction whose operands are read in place, with the loops of its reduction.
    pub(super) fn of(
        facts: &Facts,
        contraction: &Contraction,
        rhs: Rhs,
        loops: &[ReductionLoop],
    ) -> Option<ZeroTaps> {
        let Padding { position, begin, end } = contraction.padding.as_ref()?;
        let (last, _) = contraction.m.split_last()?;
        let (dilation, first) = linear_parts(facts, position, Some(&contraction.k.first()?.var))?;
        let (outermost, inner) = loops.split_last()?;
        let taps = outermost.extent.as_i64()?;
        // The panels of two taps are a constant distance apart.
        constant_depth(inner)?;
        let is_panels = matches!(rhs, Rhs::Panels(_));
        if !is_panels || loops.len() != contraction.k.len() || first.contains(&last.var) {
            return None;
        }
        let dilation = dilation.as_i64().filter(|dilation| *dilation > 0)?;
        Some(ZeroTaps { taps, dilation, first, begin: begin.clone(), end: end.clone() })
    }
}
