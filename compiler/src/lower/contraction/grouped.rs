//! Convolutions whose groups have a few channels: strips along the channels of all groups.
//!
//! A column of a matrix multiplication would be a channel of one group, so that tiles would be mostly empty. A vector
//! of a strip has the channels of several groups. Each term multiplies one channel of each group, which vectors repeat
//! for all results of the group, with the weights of the results.
//!
//! ```text
//! strip c { y[x][c] = Σ image[x + k][4*(c // 4) + l] * w[l][k][c]   for l in 0..4, k in 0..3 }
//! ```
//!
//! Neighbouring results share elements of the image where windows overlap, and all of them share weights.

use super::{large_windows, nest::ContractionNest};
use crate::{
    kernel::{Axis, MicrokernelSupport, lanes::repeated::RepeatedAddress},
    lower::{
        lowering::KernelScope,
        nest::{AxisRole, step},
        windows::MAX_WINDOW,
    },
    scalar::Precision,
};
use symshape::Dim;
use symshape_runtime::DType;

/// The axes of such a convolution.
pub(super) struct GroupedAxes {
    /// The channels of the result.
    pub(super) channels: Axis,
    /// The channels of the image that a result depends on.
    summed: Axis,
}

/// The axes of a contraction whose groups are so small that vectors hold several. The nest must not be split yet.
pub(super) fn axes(
    scope: &KernelScope,
    contraction: &ContractionNest,
    microkernels: MicrokernelSupport,
) -> Option<GroupedAxes> {
    let [image, weights] = &contraction.operands;
    let is_float = contraction.precision == Precision::F32
        && [contraction.dtype, image.dtype, weights.dtype] == [DType::F32; 3];
    if !is_float || weights.constant.is_none() || weights.has_few_bits() {
        return None;
    }

    let [image, weights] = [&contraction.nest.exprs[0], &contraction.nest.exprs[1]];
    let target = contraction.target();
    let kept = contraction.nest.axes(AxisRole::Kept);
    let is_channels = |axis: &&Axis| {
        let is_moved = image.contains(&axis.var) && weights.contains(&axis.var);
        is_moved && step(&scope.facts, target, axis) == 1
    };
    let channels = kept.iter().find(is_channels)?;
    scope.facts.linear_in(weights, &channels.var)?;

    let reduced = contraction.nest.axes(AxisRole::Reduced);
    if contraction.terms()? > MAX_WINDOW && large_windows::parts(contraction, &reduced).is_none() {
        return None;
    }

    // The elements of a group begin where all other axes, and the summed channels, are at their first iteration.
    let summed = reduced.iter().find(|axis| step(&scope.facts, image, axis) == 1)?;
    let first = image.substitute(&|symbol| (*symbol == summed.var).then(Dim::zero));
    let first = scope.facts.simplify(&first);
    let form = RepeatedAddress::of(&scope.facts, &first, &channels.var, &channels.extent)?;
    let group = i64::from(form.place.group);
    let is_group = form.place.lane == 0 && summed.extent.as_i64() == Some(group);
    (is_group && microkernels.hold_several(form.place.group.into()))
        .then(|| GroupedAxes { channels: channels.clone(), summed: summed.clone() })
}

/// Prepares the nest for strips along the channels.
pub(super) fn arrange(scope: &mut KernelScope, contraction: &mut ContractionNest, axes: &GroupedAxes) {
    contraction.take_padding();
    contraction.nest.split(scope, Some(&axes.channels.var));
    let target = contraction.target().clone();
    contraction.nest.order_by(&scope.facts, AxisRole::Kept, &target);
    // Neighbours read the same element a few terms later, unless all channels of a pixel are in between.
    contraction.nest.move_outside(&axes.summed.var);
}
