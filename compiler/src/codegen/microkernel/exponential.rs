//! Exponentials that are zero for arguments below a limit: `exp(select(x < limit, -inf, x))`, as softmax has them.
//!
//! They have no subnormal results, so they need no assist of the core, and on 256-bit vectors fewer instructions than
//! `exp`.

use super::{
    matches::Matches,
    math,
    op::{Body, Op, Ty},
};
use crate::codegen::vector::{Builder, vcode::Vector};
use crate::scalar::{CompareOp, UnaryOp};

/// One exponential.
#[derive(Clone, Copy)]
pub(super) struct Exponential {
    x: u32,
    limit: f32,
}

/// The exponentials with a limit of a body.
pub(super) type Exponentials = Matches<Exponential>;

impl Matches<Exponential> {
    /// Finds them in a body.
    pub(super) fn of(body: &Body) -> Exponentials {
        Matches::find(body, |uses, idx| Exponential::of(body, uses, idx))
    }

    /// Emits the exponential at `idx` if it has a limit. `value` gives the values of earlier instructions.
    pub(super) fn emit(&self, b: &mut Builder, idx: usize, value: impl Fn(u32) -> Vector) -> Option<Vector> {
        self.at(idx).map(|exponential| math::exp_above(b, value(exponential.x), exponential.limit))
    }
}

impl Exponential {
    /// The exponential at `idx`, and the comparison and the selection if nothing else reads them.
    fn of(body: &Body, uses: &[usize], idx: usize) -> Option<(Exponential, Vec<u32>)> {
        let (Op::Unary(UnaryOp::Exp, selection), Ty::F32) = body.insts[idx] else { return None };
        let Op::Select(comparison, below, x) = body.op(selection) else { return None };
        let Op::Compare(CompareOp::Lt, compared, limit) = body.op(comparison) else { return None };
        let limit = body.constant(limit)?;
        let is_zero_below = body.constant(below) == Some(f32::NEG_INFINITY);
        let matches = compared == x && is_zero_below && math::LIMITS.contains(&limit);
        let mut absorbed = Vec::new();
        if uses[selection as usize] == 1 {
            absorbed.push(selection);
            if uses[comparison as usize] == 1 {
                absorbed.push(comparison);
            }
        }
        matches.then_some((Exponential { x, limit }, absorbed))
    }
}
