//! The vector form of one strip.

use super::{
    builder::{BodyBuilder, lane_type},
    obstacle::Obstacle,
};
use crate::kernel::{Axis, Inst, InstSeq, Kernel, Program};
use symshape::Facts;
use symshape_runtime::DType;

/// The reason why a strip has no vector form. `facts` must have the range of its axis.
pub(crate) fn strip_obstacle(
    program: &Program,
    kernel: &Kernel,
    facts: &Facts,
    axis: &Axis,
    code: &InstSeq,
) -> Option<Obstacle> {
    let reduced = code.insts.iter().filter_map(|inst| match inst {
        Inst::Reduce(_, _, local) => Some(*local),
        _ => None,
    });
    let mut builder = BodyBuilder::new(program, kernel, facts, None);
    builder.inner = reduced.collect();
    builder.may_fail = true;
    builder.extent = Some(axis.extent.clone());
    builder.body(code, Some(&axis.var)).err()
}

/// Whether there are lanes for elements of this type.
pub(crate) fn has_lanes(dtype: DType) -> bool {
    lane_type(dtype).is_some()
}
