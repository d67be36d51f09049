//! Interchanges loops whose strips are shorter than a vector, where their functions take long: a call of such a
//! function takes as long for three elements as for a vector of them.
//!
//! ```text
//! for row parallel { strip c in 0..3 { y[row, c] = sin(x[row, c]) } }
//! ⇒  for block of rows parallel { for c in 0..3 { strip row { y[row, c] = sin(x[row, c]) } } }
//! ```
//!
//! Each element is computed by the same instructions. Its loads and stores take longer, because their addresses are no
//! longer adjacent. Threads share the blocks.

use crate::{
    Result,
    kernel::{Axis, Inst, InstSeq, Program, Stmt, cost, lanes::op},
    scalar::BinaryOp,
    schedule::{epilogues, fresh_symbols::FreshSymbols},
};
use symshape::{Dim, Facts};

/// Most elements of a strip whose loops are interchanged: half of a vector of 256 bits.
const MAX_ELEMS: i64 = 4;

/// The least number of rows that pays: a vector of 512 bits.
const MIN_ROWS: f64 = 16.0;

/// The rows of a block.
const BLOCK_ROWS: i64 = 256;

/// Interchanges all such loops.
pub(super) fn interchange(program: &mut Program) -> Result<()> {
    if !program.microkernels.is_native() {
        return Ok(());
    }
    let symbols = FreshSymbols::for_one_kernel(program);
    for kernel in &mut program.kernels {
        let mut symbols = symbols.outside_of(&kernel.body);
        for stmt in &mut kernel.body {
            if let Some(interchanged) = interchanged(&program.facts, &mut symbols, stmt) {
                *stmt = interchanged;
            }
        }
    }
    Ok(())
}

/// The loop with its axes interchanged, if that pays and the iterations are independent.
fn interchanged(facts: &Facts, symbols: &mut FreshSymbols, stmt: &Stmt) -> Option<Stmt> {
    let Stmt::For { axis: rows, parallel: true, body } = stmt else { return None };
    let [Stmt::Strip { axis: elems, code }] = &body[..] else { return None };
    let is_narrow = elems.extent.as_i64().is_some_and(|elems| elems <= MAX_ELEMS);
    let has_rows = cost::most_iterations(facts, &rows.extent) >= MIN_ROWS;
    if !(is_narrow && has_rows && takes_long(code)) {
        return None;
    }

    let blocks = Axis { var: symbols.fresh(), extent: rows.extent.ceil_div(BLOCK_ROWS) };
    let start = Dim::from(&blocks.var) * BLOCK_ROWS;
    let mut inner = facts.clone();
    inner.declare_index(&blocks.var, &blocks.extent);
    let extent = inner.simplify(&(&rows.extent - &start).min(BLOCK_ROWS.into()));
    let row = Axis { var: symbols.fresh(), extent };
    inner.declare_index(&row.var, &row.extent);
    let at = start + Dim::from(&row.var);
    let strip = Stmt::Strip { axis: row, code: epilogues::at(&inner, code, &rows.var, &at) };
    let columns = Stmt::For { axis: elems.clone(), parallel: false, body: vec![strip] };
    Some(Stmt::For { axis: blocks, parallel: true, body: vec![columns] })
}

/// Whether a code has a function that takes dozens of instructions or more, and leaves no state to the next iteration.
fn takes_long(code: &InstSeq) -> bool {
    let is_stateless = |inst: &Inst| {
        use Inst::*;
        matches!(
            inst,
            Const(_) | Load(_) | Store(..) | Unary(..) | Binary(..) | Compare(..) | Select(..) | Cast(..)
        )
    };
    let is_long = |inst: &Inst| match inst {
        Inst::Unary(op, _) => op::takes_long(*op),
        Inst::Binary(op, ..) => matches!(op, BinaryOp::Pow | BinaryOp::Atan2),
        _ => false,
    };
    code.insts.iter().all(is_stateless) && code.insts.iter().any(is_long)
}
