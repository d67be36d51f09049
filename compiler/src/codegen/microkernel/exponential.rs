//! Exponentials that are zero for arguments below a limit: `exp(select(x < limit, -inf, x))`, as softmax has them.
//!
//! They have no subnormal results, so they need no assist of the core, and on 256-bit vectors fewer instructions than
//! `exp`.

use super::{
    math,
    op::{Body, Op, Ty},
};
use crate::codegen::vector::{Builder, vcode::Vector};
use crate::scalar::{CompareOp, UnaryOp};

/// One exponential, and the instructions it is matched from.
#[derive(Clone, Copy)]
struct Exponential {
    x: u32,
    limit: f32,
    comparison: u32,
    selection: u32,
}

/// The exponentials with a limit of a body.
pub(super) struct Exponentials {
    /// At the index of each exponential.
    found: Vec<Option<Exponential>>,
    /// The comparisons and selections that nothing else reads.
    skipped: Vec<bool>,
}

impl Exponentials {
    /// Finds them in a body.
    pub(super) fn of(body: &Body) -> Exponentials {
        let found: Vec<_> = (0..body.insts.len()).map(|idx| Exponential::of(body, idx)).collect();
        let uses = body.use_counts();
        let mut skipped = vec![false; body.insts.len()];
        for Exponential { selection, comparison, .. } in found.iter().flatten() {
            let is_selection_skipped = uses[*selection as usize] == 1;
            skipped[*selection as usize] = is_selection_skipped;
            skipped[*comparison as usize] = is_selection_skipped && uses[*comparison as usize] == 1;
        }
        Exponentials { found, skipped }
    }

    /// Whether no emitted instruction needs the value of this one.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped[idx]
    }

    /// Emits the exponential at `idx` if it has a limit. `value` gives the values of earlier instructions.
    pub(super) fn emit(&self, b: &mut Builder, idx: usize, value: impl Fn(u32) -> Vector) -> Option<Vector> {
        self.found[idx].map(|exponential| math::exp_above(b, value(exponential.x), exponential.limit))
    }
}

impl Exponential {
    fn of(body: &Body, idx: usize) -> Option<Exponential> {
        let (Op::Unary(UnaryOp::Exp, selection), Ty::F32) = body.insts[idx] else { return None };
        let Op::Select(comparison, below, x) = body.op(selection) else { return None };
        let Op::Compare(CompareOp::Lt, compared, limit) = body.op(comparison) else { return None };
        let limit = body.constant(limit)?;
        let is_zero_below = body.constant(below) == Some(f32::NEG_INFINITY);
        let matches = compared == x && is_zero_below && math::LIMITS.contains(&limit);
        matches.then_some(Exponential { x, limit, comparison, selection })
    }
}
