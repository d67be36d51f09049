//! The left operand, as tiles read it.

use super::{packed_lhs::PackedLhs, packing::Packing, reduction::ReductionLoop};
use crate::{
    codegen::body::body_builder::{Stream, linear_parts, linear_steps},
    kernel::{Access, Contraction},
};
use symshape::{Dim, Facts};

/// The left operand, as tiles read it.
pub(crate) struct LhsPlan {
    /// Its first row. `column` is not used.
    pub(crate) stream: Stream,
    /// Bytes of the unit that its steps count: 32-bit elements, or operand elements where groups of them are read in
    /// place.
    pub(crate) unit_bytes: i64,
    /// How it is packed before that.
    pub(crate) packed: Option<PackedLhs>,
    /// Bytes that the last group of each run shares with the one before, where it is read in place.
    pub(crate) shared_bytes: u8,
}

/// The lhs in memory: a stream along the last row axis, and the steps of the reduction axes. `None` where it is not
/// linear.
pub(super) fn in_memory(facts: &Facts, contraction: &Contraction) -> Option<(Stream, Vec<Dim>)> {
    let (last, outer) = contraction.m.split_last()?;
    let (steps, origin) = linear_steps(facts, &contraction.lhs.index, &contraction.k)?;
    let (row, origin) = linear_parts(facts, &origin, Some(&last.var))?;
    let is_fixed = |step: &Dim| outer.iter().all(|axis| !step.contains(&axis.var));
    if origin.contains(&contraction.n.var) || !is_fixed(&row) || !steps.iter().all(is_fixed) {
        return None;
    }
    let origin = Access { index: origin, ..contraction.lhs.clone() };
    Some((Stream { origin, row, column: Dim::zero() }, steps))
}

impl LhsPlan {
    /// The lhs and the loops of the reduction as tiles see them, given those in memory. `None` where it would have to
    /// be packed and nothing packs it.
    pub(super) fn of(
        packing: Option<&Packing>,
        stream: Stream,
        loops: Vec<ReductionLoop>,
    ) -> Option<(LhsPlan, Vec<ReductionLoop>)> {
        let Some(packing) = packing else {
            return Some((LhsPlan { stream, unit_bytes: 4, packed: None, shared_bytes: 0 }, loops));
        };
        if packing.reads_in_place(&loops[0]) {
            let unit_bytes = packing.element_bytes();
            let lhs = LhsPlan { stream, unit_bytes, packed: None, shared_bytes: packing.shared_bytes() };
            return Some((lhs, in_place_loops(packing, loops)));
        }
        if packing.needs_in_place() {
            return None;
        }

        let packed = packing.packed_lhs(stream, loops);
        let stream = Stream { origin: packing.origin(), row: packing.row_step(), column: Dim::zero() };
        Some((LhsPlan { stream, unit_bytes: 4, packed: Some(packed), shared_bytes: 0 }, packing.loops()))
    }
}

/// The loops of the reduction over groups of a lhs that is read in place. For its steps on tile registers, see
/// [`ReductionLoop::lhs_step`].
fn in_place_loops(packing: &Packing, loops: Vec<ReductionLoop>) -> Vec<ReductionLoop> {
    let mut moved_inside = Dim::zero();
    let mut grouped = Vec::new();
    for (idx, ReductionLoop { extent, lhs_step, rhs_step }) in loops.into_iter().enumerate() {
        let moved = &lhs_step * &extent;
        grouped.push(if idx == 0 {
            ReductionLoop { extent: packing.groups(&extent), lhs_step: Dim::one(), rhs_step: Dim::zero() }
        } else if packing.dot.is_amx() {
            ReductionLoop { extent, lhs_step: lhs_step - moved_inside, rhs_step }
        } else {
            ReductionLoop { extent, lhs_step, rhs_step }
        });
        moved_inside = moved;
    }

    grouped
}
