//! Axes, and positions along them.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    scalar::{CompareOp, Scalar},
};
use symshape::Dim;

/// `axis`, counted from the start.
///
/// # Errors
/// It is out of range for `rank` axes.
pub(crate) fn normal_axis(axis: i64, rank: usize) -> Result<usize> {
    let from_start = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    let found = from_start.and_then(|axis| usize::try_from(axis).ok()).filter(|axis| *axis < rank);
    found.ok_or_else(|| Error::invalid(format!("axis {axis} is out of range: the tensor has {rank} axes")))
}

/// Distinct axes, counted from the start, in the given order.
///
/// # Errors
/// One of them is out of range for `rank` axes, or two are equal.
pub(crate) fn normal_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let normal: Vec<usize> = axes.iter().map(|axis| normal_axis(*axis, rank)).collect::<Result<_>>()?;
    match normal.iter().enumerate().find(|(k, axis)| normal[..*k].contains(axis)) {
        None => Ok(normal),
        Some((_, axis)) => Err(Error::invalid(format!("axis {axis} is given twice in {axes:?}"))),
    }
}

/// `at`, plus `size` where it is negative.
pub(crate) fn normal_position(g: &mut Graph, at: Value, size: Value) -> Result<Value> {
    let zero = g.scalar(Scalar::i64(0))?;
    let negative = g.compare(CompareOp::Lt, at, zero)?;
    let shifted = g.add(at, size)?;
    g.select(negative, shifted, at)
}

/// The values of a list by axis. Entry `i` belongs to axis `axes[i]`. Other axes have their default.
pub(crate) fn by_axis(
    g: &mut Graph,
    rank: usize,
    axes: &[Value],
    list: &[Value],
    default: &[Value],
) -> Result<Vec<Value>> {
    let size = g.scalar(Scalar::i64(rank as i64))?;
    let mut values = default.to_vec();
    for (axis, entry) in axes.iter().zip(list) {
        let axis = normal_position(g, *axis, size)?;
        for (k, value) in values.iter_mut().enumerate() {
            let own = g.scalar(Scalar::i64(k as i64))?;
            let here = g.compare(CompareOp::Eq, axis, own)?;
            *value = g.select(here, *entry, *value)?;
        }
    }
    Ok(values)
}

/// The smaller of two expressions. If it is known which one, the result has no `min`.
pub(crate) fn smaller(g: &Graph, a: &Dim, b: &Dim) -> Dim {
    if g.facts.prove_le(a, b).is_yes() {
        a.clone()
    } else if g.facts.prove_le(b, a).is_yes() {
        b.clone()
    } else {
        Dim::min(a, b.clone())
    }
}

/// The larger of two expressions. If it is known which one, the result has no `max`.
pub(crate) fn larger(g: &Graph, a: &Dim, b: &Dim) -> Dim {
    if g.facts.prove_le(b, a).is_yes() {
        a.clone()
    } else if g.facts.prove_le(a, b).is_yes() {
        b.clone()
    } else {
        Dim::max(a, b.clone())
    }
}
