//! Left operands of bytes that vectors multiply where they are.

use crate::{
    codegen::{
        body::body_builder::linear_parts,
        microkernel::contraction::{DotOp, PANEL},
        vector::vcode::NarrowInt,
    },
    kernel::Contraction,
};
use symshape::Facts;

/// The cost of packing a row of bytes: a constant, one for each run, and one for some bytes. See [`BytesInPlace::of`].
const PACK_ROW_COST: i64 = 16;
const PACK_RUN_COST: i64 = 8;
const PACKED_BYTES_PER_COST: i64 = 16;

/// Runs of bytes of a lhs that are read in place, in groups of four.
///
/// If a run has no multiple of four bytes, its last group begins earlier, and shares bytes with the group before. The
/// rhs is zero for these.
#[derive(Clone, Copy)]
pub(super) struct BytesInPlace {
    /// Bytes of a run, at least four.
    pub(super) run: i64,
    /// Bytes that the last group of a run shares with the group before.
    pub(super) shared: u8,
}

impl BytesInPlace {
    /// The runs of a lhs, if reading them in place takes less time than packing rows does.
    pub(super) fn of(facts: &Facts, contraction: &Contraction, from: NarrowInt) -> Option<BytesInPlace> {
        let group = DotOp::Vnni.group();
        let innermost = contraction.k.last()?;
        let (step, _) = linear_parts(facts, &contraction.lhs.index, Some(&innermost.var))?;
        let run = innermost.extent.as_i64().filter(|run| *run >= group)?;
        let depth = contraction.depth().as_i64()?;
        let columns = contraction.n.extent.as_i64()?;
        if step.as_i64() != Some(1) {
            return None;
        }

        // The unit of cost is about a multiplication of two vectors. Each tile of columns flips the signs of all
        // groups. Some machines do that in parallel with the multiplications, and others on the same ports.
        let ceil_div = |count: i64, by: i64| (count + by - 1) / by;
        let runs = depth / run;
        let groups = runs * ceil_div(run, group);
        let groups_of_packed = ceil_div(depth, group);
        let panels = ceil_div(columns, PANEL as i64);
        let tiles = ceil_div(panels, 2);
        let flips = if from == NarrowInt::I8 { groups * tiles / 2 } else { 0 };
        let cost = (groups - groups_of_packed) * panels + flips;
        let cost_of_packing = PACK_ROW_COST + PACK_RUN_COST * runs + depth / PACKED_BYTES_PER_COST;
        let shared = (-run).rem_euclid(group) as u8;
        (cost <= cost_of_packing).then_some(BytesInPlace { run, shared })
    }
}
