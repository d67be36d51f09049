//! Interchanges loops whose strips are shorter than a vector, where their functions take long: a call of such a
//! function takes as long for three elements as for a vector of them.
//!
//! ```text
//! for row parallel { strip c in 0..3 { y[row, c] = sin(x[row, c]) } }
//! ⇒  for c in 0..3 parallel { strip row { y[row, c] = sin(x[row, c]) } }
//! ```
//!
//! Each element is computed by the same instructions. Its loads and stores take longer, because their addresses are no
//! longer adjacent.

use crate::{
    Result,
    kernel::{Axis, Inst, InstSeq, Program, Stmt, lanes::op},
    scalar::BinaryOp,
};
use symshape::Facts;

/// Most elements of a strip whose loops are interchanged: half of a vector of 256 bits.
const MAX_ELEMS: i64 = 4;

/// The least number of rows that pays: a vector of 512 bits.
const MIN_ROWS: i64 = 16;

/// Interchanges all such loops.
pub(super) fn interchange(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }
    for kernel in &mut program.kernels {
        for stmt in &mut kernel.body {
            if let Some(interchanged) = interchanged(&program.facts, stmt) {
                *stmt = interchanged;
            }
        }
    }
    Ok(())
}

/// The loop with its axes interchanged, if that pays and the iterations are independent.
fn interchanged(facts: &Facts, stmt: &Stmt) -> Option<Stmt> {
    let Stmt::For { axis: rows, parallel: true, body } = stmt else { return None };
    let [Stmt::Strip { axis: elems, code }] = &body[..] else { return None };
    let is_narrow = elems.extent.as_i64().is_some_and(|elems| elems <= MAX_ELEMS);
    let has_rows = facts.bounds(&rows.extent).hi.is_none_or(|most| most >= MIN_ROWS.into());
    let [elems, rows] = [elems, rows].map(Axis::clone);
    (is_narrow && has_rows && takes_long(code)).then(|| {
        let strip = Stmt::Strip { axis: rows, code: code.clone() };
        Stmt::For { axis: elems, parallel: true, body: vec![strip] }
    })
}

/// Whether a code has a function that takes hundreds of instructions, and no state between iterations.
fn takes_long(code: &InstSeq) -> bool {
    let is_stateless = |inst: &Inst| {
        use Inst::*;
        matches!(
            inst,
            Const(_) | Load(_) | Store(..) | Unary(..) | Binary(..) | Compare(..) | Select(..) | Cast(..)
        )
    };
    let is_long = |inst: &Inst| match inst {
        Inst::Unary(op, _) => op::is_computed_in_double(*op),
        Inst::Binary(op, ..) => matches!(op, BinaryOp::Pow | BinaryOp::Atan2),
        _ => false,
    };
    code.insts.iter().all(is_stateless) && code.insts.iter().any(is_long)
}
