//! Index arithmetic: strides, substitution of axes, and addresses that visit each element once.
//!
//! Everything here is a pure function of dims and facts; nothing knows of graphs or buffers.

use crate::graph::axis;
use symshape::{Dim, Facts, Symbol};

/// Axes of a tensor in memory, from outermost to innermost.
pub(super) type AxisOrder = Vec<usize>;

/// The order of a row-major tensor.
pub(super) fn natural(rank: usize) -> AxisOrder {
    (0..rank).collect()
}

/// Whether this order is row-major apart from axes of extent 1.
pub(super) fn is_row_major(shape: &[Dim], order: &[usize]) -> bool {
    order.iter().filter(|k| shape[**k].as_i64() != Some(1)).is_sorted()
}

/// The last axis of `order` that has several elements.
pub(super) fn innermost(
    shape: &[Dim],
    order: impl IntoIterator<Item = usize, IntoIter: DoubleEndedIterator>,
) -> Option<usize> {
    order.into_iter().rfind(|k| shape[*k].as_i64() != Some(1))
}

/// The number of elements of a shape.
pub(super) fn elems(shape: &[Dim]) -> Dim {
    shape.iter().fold(Dim::one(), |product, dim| product * dim)
}

/// The index `[$0, $1, …]` of a tensor.
pub(super) fn identity(rank: usize) -> Vec<Dim> {
    (0..rank).map(|k| Dim::from(axis(k))).collect()
}

/// Row-major strides of a shape, in elements.
pub(super) fn row_major(shape: &[Dim]) -> Vec<Dim> {
    strides(shape, &natural(shape.len()))
}

/// Strides, in elements, of a dense tensor whose axes are stored in this order.
pub(super) fn strides(shape: &[Dim], order: &[usize]) -> Vec<Dim> {
    let mut strides = vec![Dim::one(); shape.len()];
    let mut stride = Dim::one();
    for axis in order.iter().rev() {
        strides[*axis] = stride.clone();
        stride = stride * &shape[*axis];
    }
    strides
}

/// `offset + Σ strides[k] * index[k]`
pub(super) fn address(offset: Dim, strides: &[Dim], index: &[Dim]) -> Dim {
    strides.iter().zip(index).fold(offset, |sum, (stride, at)| sum + stride * at)
}

/// The expressions `map` over the axes `$k`, evaluated at `index`.
pub(super) fn substitute(map: &[Dim], index: &[Dim]) -> Vec<Dim> {
    let axes: Vec<Symbol> = (0..index.len()).map(axis).collect();
    let at = |symbol: &Symbol| axes.iter().position(|axis| axis == symbol).map(|k| index[k].clone());
    map.iter().map(|expr| expr.substitute(&at)).collect()
}

/// Whether `address`, over the axes `$k` of `shape`, visits each of `0..product` once: it is linear, and in some order
/// of the axes each coefficient is the product of the extents of the axes further inside.
pub(super) fn mixed_radix(facts: &Facts, address: &Dim, shape: &[Dim]) -> bool {
    let mut rest = address.clone();
    let mut terms = Vec::new();
    for (k, extent) in shape.iter().enumerate() {
        let Some((coef, without)) = facts.linear_in(&rest, &axis(k)) else { return false };
        rest = without;
        if extent.as_i64() != Some(1) {
            terms.push((estimate(facts, &coef), coef, extent));
        }
    }
    terms.sort_by_key(|(size, ..)| *size);

    let mut product = Dim::one();
    for (_, coef, extent) in terms {
        if !facts.prove_eq(&coef, &product).is_yes() {
            return false;
        }
        product = facts.simplify(&(product * extent));
    }
    true
}

/// The value of `expr` at a typical binding. Use it only for choices that need no proof.
pub(super) fn estimate(facts: &Facts, expr: &Dim) -> i64 {
    let typical = |symbol: &Symbol| {
        let hi = facts.declaration(symbol).and_then(|declared| declared.hi.clone());
        Some(hi.and_then(|hi| i64::try_from(hi).ok()).unwrap_or(97).clamp(2, 4096))
    };
    expr.eval_i64(&typical).unwrap_or(i64::MAX)
}
