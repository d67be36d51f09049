//! Padding and concatenation: tensors that are filled piece by piece.
//!
//! A piece that is a root is computed in place by its own kernel, in several tensors if several contain it. The other
//! pieces are copied here, with elementwise definitions inlined into the copy.

use super::{buffers::piece, lowering::Lowering, map, nest::axes_of, storage::Storage};
use crate::{
    Error, Result,
    graph::{Op, Value},
    kernel::{Access, Inst, InstSeq, Kernel},
    scalar::Scalar,
};
use symshape::Dim;

/// The kernels of a concatenation.
pub(super) fn concat(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    for (position, operand) in graph.operands(value).iter().enumerate() {
        copy_unless_placed(lowering, value, *operand, position, "concat")?;
    }
    Ok(())
}

/// The kernels of a padded tensor: its border, and its interior.
pub(super) fn pad(lowering: &mut Lowering, value: Value) -> Result<()> {
    let graph = lowering.graph;
    let Op::Pad { lo, hi, value: fill } = graph.op(value) else {
        return Err(Error::internal("not a padding"));
    };
    let operand = graph.operands(value)[0];
    let whole = lowering.storage[&value].clone();
    let mut shape = graph.shape(value).to_vec();
    let mut part = whole;

    // The slabs before and after the interior along axis k reach across all later axes, and of the earlier ones
    // cover the interior only: together they are the border, each element once.
    for k in 0..shape.len() {
        for (start, extent) in
            [(Dim::zero(), lo[k].clone()), (&lo[k] + &graph.shape(operand)[k], hi[k].clone())]
        {
            if extent.as_i64() != Some(0) {
                let mut slab = shape.clone();
                slab[k] = extent;
                fill_slab(lowering, value, &part.from(k, &start), &slab, *fill);
            }
        }
        part = part.from(k, &lo[k]);
        shape[k] = graph.shape(operand)[k].clone();
    }
    copy_unless_placed(lowering, value, operand, 0, "pad")
}

fn copy_unless_placed(
    lowering: &mut Lowering,
    parent: Value,
    operand: Value,
    position: usize,
    kind: &str,
) -> Result<()> {
    if lowering.is_stored(parent, position) {
        return Ok(());
    }
    let to = piece(lowering, parent, position);
    map::copy(lowering, operand, &to, kind)
}

fn fill_slab(lowering: &mut Lowering, value: Value, to: &Storage, shape: &[Dim], fill: Scalar) {
    let mut scope = lowering.scope();
    let (axes, index) = axes_of(&mut scope, shape);
    let mut code = InstSeq::default();
    let reg = code.push(Inst::Const(fill));
    let access = to.at(&index);
    let at = scope.facts.simplify(&access.index);
    code.push(Inst::Store(Access { index: at, ..access }, reg));
    let body = map::pass(&mut scope, axes, &code);
    lowering.push(value, "border", Kernel::default(), body);
}
