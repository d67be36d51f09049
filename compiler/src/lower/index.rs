//! Index arithmetic: strides, substitution of axes, and addresses that visit each element once.
//!
//! Everything here is a pure function of dims and facts; nothing knows of graphs or buffers.

use crate::graph::axis;
use num_bigint::BigInt;
use symshape::{Bounds, Dim, Facts, Node, Symbol};

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

/// `index` over the axes of `shape`, and that shape, with each axis in two that the index divides by a constant `c`, as
/// in `$k // c` and `$k % c`. The quotient takes the place of the axis, and the remainder is a new last axis.
pub(super) fn with_digits(facts: &Facts, index: &[Dim], shape: &[Dim]) -> (Vec<Dim>, Vec<Dim>) {
    let mut shape = shape.to_vec();
    let mut index = index.to_vec();
    for k in 0..shape.len() {
        let Some(size) = index.iter().find_map(|expr| divisor(expr, &axis(k))) else { continue };
        if !facts.divides(&size.into(), &shape[k]).is_yes() {
            continue;
        }
        let joined = Dim::from(axis(k)) * size + Dim::from(axis(shape.len()));
        let digits = |symbol: &Symbol| (*symbol == axis(k)).then(|| joined.clone());
        index.iter_mut().for_each(|expr| *expr = expr.substitute(&digits));
        shape[k] = facts.simplify(&shape[k].floor_div(size));
        shape.push(size.into());
    }
    (index, shape)
}

/// The constant above 1 that `dim` divides `axis` by.
fn divisor(dim: &Dim, axis: &Symbol) -> Option<i64> {
    if let Node::FloorDiv(numerator, size) | Node::Mod(numerator, size) = dim.node()
        && *numerator == Dim::from(axis)
    {
        return size.as_i64().filter(|size| *size > 1);
    }
    dim.node().operands().into_iter().find_map(|operand| divisor(operand, axis))
}

/// Whether an extent is at least `least`. A range counts by the geometric mean of its ends.
pub(super) fn is_long(facts: &Facts, extent: &Dim, least: i64) -> bool {
    let Bounds { lo, hi } = facts.bounds(extent);
    let enough = BigInt::from(least) * least;
    lo.is_some_and(|shortest| hi.is_none_or(|longest| shortest * longest >= enough))
}

/// The value of `expr` at a typical binding. Use it only for choices that need no proof.
pub(super) fn estimate(facts: &Facts, expr: &Dim) -> i64 {
    let typical = |symbol: &Symbol| {
        let hi = facts.declaration(symbol).and_then(|declared| declared.hi.clone());
        Some(hi.and_then(|hi| i64::try_from(hi).ok()).unwrap_or(97).clamp(2, 4096))
    };
    expr.eval_i64(&typical).unwrap_or(i64::MAX)
}
