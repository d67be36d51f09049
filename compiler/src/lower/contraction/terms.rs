//! The terms of sums that strips compute.

use super::nest::ContractionNest;
use crate::{
    kernel::{Access, Axis, BufferId, Inst, InstSeq},
    lower::lowering::KernelScope,
    scalar::{BinaryOp, Reg},
    tensor::points,
};
use symshape::{Dim, Symbol};

/// Multiplies the operands' elements at these addresses, in the type of the sum.
fn multiply(
    contraction: &ContractionNest,
    buffers: [BufferId; 2],
    code: &mut InstSeq,
    addresses: &[Dim],
) -> Reg {
    let [x, y] = [0, 1].map(|side| {
        let factor = &contraction.operands[side];
        let access = Access { buffer: buffers[side], index: addresses[side].clone() };
        let reg = code.push(Inst::Load(access));
        if factor.dtype == contraction.dtype { reg } else { code.push(Inst::Cast(contraction.dtype, reg)) }
    });
    code.push(Inst::Binary(BinaryOp::Mul, x, y))
}

/// All points of axes whose extents are constants.
pub(super) fn points_of(reduced: &[Axis]) -> Vec<Vec<i64>> {
    let extents: Vec<i64> = reduced.iter().filter_map(|axis| axis.extent.as_i64()).collect();
    points(&extents)
}

/// Adds the terms at these points of `reduced` to `total`. `exprs` are those of the nest.
pub(super) fn add_terms(
    scope: &KernelScope,
    contraction: &ContractionNest,
    buffers: [BufferId; 2],
    exprs: &[Dim],
    (reduced, points): (&[Axis], &[Vec<i64>]),
    code: &mut InstSeq,
    mut total: Option<Reg>,
) -> Option<Reg> {
    for point in points {
        let value = |symbol: &Symbol| {
            reduced.iter().position(|axis| axis.var == *symbol).map(|k| Dim::from(point[k]))
        };
        let addresses = [0, 1].map(|side| scope.facts.simplify(&exprs[side].substitute(&value)));
        let term = multiply(contraction, buffers, code, &addresses);
        total = Some(match total {
            None => term,
            Some(total) => code.push(Inst::Binary(BinaryOp::Add, total, term)),
        });
    }
    total
}

/// Removes the first addend of an epilogue, such as a bias, if it is an element and the sum has no other use. The sum
/// can then start with it.
pub(super) fn take_addend(epilogue: &mut InstSeq) -> Option<Inst> {
    let uses = |reg: usize| {
        let operands = epilogue.insts.iter().flat_map(Inst::operands);
        operands.filter(|operand| operand.0 as usize == reg).count()
    };
    let (idx, x, y) = epilogue.insts.iter().enumerate().find_map(|(idx, inst)| match inst {
        Inst::Binary(BinaryOp::Add, x, y) => Some((idx, x.0 as usize, y.0 as usize)),
        _ => None,
    })?;
    let is_sum = |reg: usize| matches!(epilogue.insts[reg], Inst::Sum);
    let (sum, addend) = if is_sum(x) { (x, y) } else { (y, x) };

    // A loaded address is not known before the sum.
    let bound = epilogue.insts.iter().any(|inst| matches!(inst, Inst::Bind(..)));
    let is_load = matches!(epilogue.insts[addend], Inst::Load(_)) && !bound;
    let once = is_sum(sum) && uses(sum) == 1 && uses(addend) == 1;
    if !(is_load && once) {
        return None;
    }

    // All three represent the finished sum now, and only the last is used.
    epilogue.insts[idx] = Inst::Sum;
    Some(std::mem::replace(&mut epilogue.insts[addend], Inst::Sum))
}
