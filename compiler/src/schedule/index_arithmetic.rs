//! Arithmetic on indices as index expressions, so that comparisons of positions have a vector form.
//!
//! `add (index i64 a), (index i64 b)` computes with 64-bit integers, for which there are no lanes. But it is
//! `index i64 a + b`, unless the sum wraps around. A comparison of an index that falls along the columns with a constant
//! becomes one of two indices that rise, which are read from a table element by element:
//!
//! ```text
//! i - j + P >= 0   ⇒   i + P >= j
//! ```

use crate::{
    kernel::{Inst, InstSeq, hoist},
    scalar::{BinaryOp, Reg, Scalar},
};
use num_traits::ToPrimitive;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// Folds the arithmetic on indices in `code`, which binds no symbols. `column` is the variable of the innermost loop.
pub(super) fn fold(facts: &Facts, column: &Symbol, code: &mut InstSeq) {
    let mut folded = InstSeq::default();
    let mut moved: Vec<Reg> = Vec::with_capacity(code.insts.len());
    let mut changed = false;
    for inst in &code.insts {
        let inst = inst.with_operands(&|reg| moved[reg.0 as usize]);
        let new = match &inst {
            Inst::Binary(op, x, y) => combined(facts, &folded, *op, *x, *y),
            Inst::Compare(op, x, y) => rising(facts, &folded, column, *x, *y).map(|(dtype, x, y)| {
                let x = folded.push(Inst::Index(dtype, x));
                let y = folded.push(Inst::Index(dtype, y));
                Inst::Compare(*op, x, y)
            }),
            _ => None,
        };
        changed |= new.is_some();
        moved.push(folded.push(new.unwrap_or(inst)));
    }

    if changed {
        *code = hoist::without_dead(&folded);
    }
}

/// An integer that is known as an expression.
struct Known {
    dtype: DType,
    dim: Dim,
    is_const: bool,
}

/// The expression of a register, if it is an index or an integer constant.
fn known(code: &InstSeq, reg: Reg) -> Option<Known> {
    match &code.insts[reg.0 as usize] {
        Inst::Index(dtype @ (DType::I32 | DType::I64), dim) => {
            Some(Known { dtype: *dtype, dim: dim.clone(), is_const: false })
        }
        Inst::Const(value) => known_constant(*value),
        _ => None,
    }
}

fn known_constant(value: Scalar) -> Option<Known> {
    let is_index_type = matches!(value.dtype(), DType::I32 | DType::I64);
    is_index_type.then(|| Known { dtype: value.dtype(), dim: Dim::from(value.as_i64()), is_const: true })
}

/// The sum, difference or product of two known integers as an index, if it can't wrap around.
fn combined(facts: &Facts, code: &InstSeq, op: BinaryOp, x: Reg, y: Reg) -> Option<Inst> {
    let x = known(code, x)?;
    let y = known(code, y)?;
    if x.is_const && y.is_const {
        return None;
    }

    let dim = match op {
        BinaryOp::Add => x.dim + y.dim,
        BinaryOp::Sub => x.dim - y.dim,
        BinaryOp::Mul if x.is_const || y.is_const => x.dim * y.dim,
        _ => return None,
    };
    let dim = facts.simplify(&dim);
    fits(facts, x.dtype, &dim).then(|| Inst::Index(x.dtype, dim))
}

/// Both sides of a comparison, moved such that they rise along the columns, if the left side falls along them.
fn rising(facts: &Facts, code: &InstSeq, column: &Symbol, x: Reg, y: Reg) -> Option<(DType, Dim, Dim)> {
    let x = known(code, x)?;
    let y = known(code, y)?;
    let difference = facts.simplify(&(&x.dim - &y.dim));
    let (step, rest) = facts.linear_in(&difference, column)?;
    let falls = step.as_i64().is_some_and(|step| step < 0);
    // The rewrite gives two rising indices, so it must not apply to them.
    if !falls || rest.contains(column) || !y.dim.contains(column) && !x.dim.contains(column) {
        return None;
    }
    let right = facts.simplify(&(Dim::from(column) * -step));
    let is_new = right != y.dim;
    let fits = fits(facts, x.dtype, &rest) && fits(facts, x.dtype, &right);
    (is_new && fits).then_some((x.dtype, rest, right))
}

/// Whether all values of an expression are integers of this type.
fn fits(facts: &Facts, dtype: DType, dim: &Dim) -> bool {
    let bounds = facts.bounds(dim);
    let bound = |bound: Option<num_bigint::BigInt>| {
        let value = bound.and_then(|bound| bound.to_i64());
        value.is_some_and(|value| dtype == DType::I64 || i32::try_from(value).is_ok())
    };
    bound(bounds.lo) && bound(bounds.hi)
}
