//! Contractions, with the epilogue of the root that finishes them.
//!
//! The loops run over the root's axes rather than the contraction's, and the index of the sum is an expression over
//! them. The operands' addresses classify an axis. A *row* axis moves only the varying operand, a *column* axis moves
//! only the other one, and a *batch* axis moves both. The columns are the axes of that operand that move the result's
//! address by one. If that is a batch axis (depthwise convolution), there is no matrix multiplication, and strips along
//! it accumulate the result. The same holds if each channel has a few columns only, or each group of a few channels.

mod few_bits;
mod grouped;
mod large_windows;
mod matrix;
mod nest;
mod packing;
mod panels;
mod strips;
mod terms;

use super::{lowering::Lowering, nest::AxisRole};
use crate::{Result, graph::Value, scalar::Precision};
use nest::{ContractionNest, LoopForm};

/// The kernel of `root`, which finishes the contraction `sum`. Both may be the same value.
pub(super) fn lower(lowering: &mut Lowering, root: Value, sum: Value) -> Result<()> {
    let mut scope = lowering.scope();
    let mut contraction = ContractionNest::new(lowering, &mut scope, root, sum)?;
    if let Some(axes) = grouped::axes(&scope, &contraction, lowering.program.microkernels) {
        grouped::arrange(&mut scope, &mut contraction, &axes);
        return strips::lower(lowering, &mut scope, sum, contraction, Some(&axes.channels));
    }
    contraction.nest.split(&mut scope, None);

    let target = contraction.target().clone();
    contraction.nest.order_by(&scope.facts, AxisRole::Kept, &target);
    match contraction.form(&scope, &target) {
        LoopForm::Strips => {
            contraction.take_padding();
            contraction.nest.lengthen(&scope.facts);
            return strips::lower(lowering, &mut scope, sum, contraction, None);
        }
        LoopForm::Matrix => {}
        LoopForm::SwappedMatrix => contraction.swap_operands(),
    }

    // Blocks of rounded activations are runs of the reduction as the graph has it.
    if contraction.precision != Precision::Int8 {
        let lhs = contraction.nest.exprs[0].clone();
        contraction.nest.order_by(&scope.facts, AxisRole::Reduced, &lhs);
    }
    matrix::lower(lowering, &mut scope, contraction)
}
