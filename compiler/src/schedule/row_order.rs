//! Makes the longest row axis of a product with weights the innermost one: microkernels compute several rows of that
//! axis at once.
//!
//! ```text
//! m s in 0..33, m n in 0..N: lhs[192*s + 6336*n + k]   ⇒   m n in 0..N, m s in 0..33
//! ```
//!
//! The rows of one sequence after another have such axes if the model transposes them first. With a batch of one, each
//! call of a microkernel would compute one row. Results don't depend on the order of rows.

use crate::{
    Result,
    kernel::{Axis, Contraction, Program, Rhs, Stmt, cost},
};
use num_traits::ToPrimitive;
use symshape::Facts;

/// With less depth, storing results takes longest. Rows that are adjacent in the result are faster then.
const MIN_DEPTH: i64 = 64;

/// Another axis is worth moving if the product of its smallest and its largest extent is this many times as large.
const LEAST_GAIN: f64 = 4.0;

/// Reorders the rows of all such products.
pub(super) fn reorder(program: &mut Program) -> Result<()> {
    for kernel in &mut program.kernels {
        if let [Stmt::Contraction(contraction)] = &mut kernel.body[..]
            && is_product(contraction)
        {
            move_longest_inwards(&program.facts, &mut contraction.m);
        }
    }
    Ok(())
}

/// Whether a contraction is a deep product with panels of weights. The order of the axes of an image has other uses.
fn is_product(contraction: &Contraction) -> bool {
    let [depth] = &contraction.k[..] else { return false };
    let is_deep = depth.extent.as_i64().is_some_and(|depth| depth >= MIN_DEPTH);
    is_deep && matches!(contraction.rhs, Rhs::Panels { .. }) && contraction.padding.is_none()
}

fn move_longest_inwards(facts: &Facts, rows: &mut Vec<Axis>) {
    let Some((last, outer)) = rows.split_last() else { return };
    let least = LEAST_GAIN * length(facts, last);
    let lengths = outer.iter().map(|axis| length(facts, axis)).enumerate();
    if let Some((idx, longest)) = lengths.max_by(|a, b| a.1.total_cmp(&b.1))
        && longest >= least
    {
        let axis = rows.remove(idx);
        rows.push(axis);
    }
}

/// The product of an axis' smallest and largest extent.
fn length(facts: &Facts, axis: &Axis) -> f64 {
    let least = facts.bounds(&axis.extent).lo.and_then(|least| least.to_f64()).unwrap_or(1.0);
    least.max(1.0) * cost::most_iterations(facts, &axis.extent).max(1.0)
}
