//! Divides the last axis of a contraction where taps are several elements apart.
//!
//! The taps of a dilated window are `d` outputs apart, so the outputs at `p`, `p + d`, `p + 2d`, … are a convolution
//! without dilation. Taps down an image whose rows and columns are one axis are a row apart:
//!
//! ```text
//! m x in 0..X, k t in 0..3: lhs[x + d*t]
//! m y in 0..X//d, m p in 0..d, k t in 0..3: lhs[d*(y + t) + p]
//! ```
//!
//! The last `X mod d` outputs are computed by a separate contraction.

use crate::{
    kernel::{Axis, Contraction, Stmt, walk::Rewrite},
    schedule::{epilogues, fresh_symbols::FreshSymbols},
};
use symshape::{Dim, Facts, Symbol};

/// A contraction that is divided.
pub(super) struct Divided {
    /// The outputs that form whole rows; its last two axes are those rows and their columns.
    pub(super) rows: Contraction,
    /// The contraction for the other outputs, if there are any.
    pub(super) remainder: Option<Stmt>,
}

/// Divides a contraction. `None` if no window of at least `taps` taps is several elements apart.
pub(super) fn divided(
    facts: &Facts,
    contraction: &Contraction,
    taps: usize,
    symbols: &mut FreshSymbols,
) -> Option<Divided> {
    let (x, outer) = contraction.m.split_last()?;
    let [.., tap, _] = &contraction.k[..] else { return None };
    if tap.extent.as_i64().is_none_or(|extent| extent < taps as i64) {
        return None;
    }
    let step = |axis: &Axis| Some(facts.linear_in(&contraction.lhs.index, &axis.var)?.0);
    let (tap_step, x_step) = (step(tap)?, step(x)?);
    let width = facts.simplify(&tap_step.floor_div(x_step.clone()));
    let is_multiple = facts.prove_eq(&(&width * &x_step), &tap_step).is_yes();
    if width.as_i64() == Some(1) || !facts.prove_le(&1.into(), &width).is_yes() || !is_multiple {
        return None;
    }

    let height = facts.simplify(&x.extent.floor_div(width.clone()));
    let in_rows = facts.simplify(&(&height * &width));
    let are_all = facts.prove_eq(&in_rows, &x.extent).is_yes();
    if !are_all && width.as_i64().is_none() {
        return None;
    }

    let [row, column] = [height, width.clone()].map(|extent| Axis { var: symbols.fresh(), extent });
    let at = Dim::from(&row.var) * width + Dim::from(&column.var);
    let mut rows = moved(contraction, &x.var, &at);
    rows.m = outer.iter().cloned().chain([row, column]).collect();

    let remainder = (!are_all).then(|| {
        let last = Axis { var: symbols.fresh(), extent: facts.simplify(&(&x.extent - &in_rows)) };
        let mut remainder = moved(contraction, &x.var, &(in_rows + Dim::from(&last.var)));
        remainder.m = outer.iter().cloned().chain([last]).collect();
        epilogues::renamed(symbols, &Stmt::Contraction(Box::new(remainder)))
    });
    Some(Divided { rows, remainder })
}

/// A contraction whose outputs along an axis are elsewhere.
fn moved(contraction: &Contraction, var: &Symbol, to: &Dim) -> Contraction {
    Rewrite::dims(&|dim| dim.substitute(&|symbol| (symbol == var).then(|| to.clone())))
        .contraction(contraction)
}
