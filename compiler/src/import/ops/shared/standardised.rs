//! Tensors minus their mean, divided by their standard deviation.

use crate::{
    error::{Error, Result},
    graph::{Graph, Op, Value, axis},
    scalar::ReduceOp,
};
use std::collections::HashSet;
use symshape::{Dim, Relation};

/// `1 / sqrt(variance + epsilon)`.
pub(crate) fn inverse_deviation(g: &mut Graph, variance: Value, epsilon: f64) -> Result<Value> {
    let epsilon = g.number(g.dtype(variance), epsilon)?;
    let shifted = g.add(variance, epsilon)?;
    let deviation = g.sqrt(shifted)?;
    g.recip(deviation)
}

/// `x` minus its mean over `axes`, then `1 / sqrt(variance + epsilon)`, then the mean.
pub(crate) fn standardised(g: &mut Graph, x: Value, axes: &[usize], epsilon: f64) -> Result<[Value; 3]> {
    let mean = g.mean(x, axes, true)?;
    let centred = g.sub(x, mean)?;
    let squares = g.mul(centred, centred)?;
    let variance = g.mean(squares, axes, true)?;
    Ok([centred, inverse_deviation(g, variance, epsilon)?, mean])
}

/// `x` with the shape `[N, C, …]`, standardised over the axes after the second.
pub(crate) fn standardised_channels(g: &mut Graph, x: Value, epsilon: f64) -> Result<Value> {
    if let Some((base, groups)) = groups_of_base(g, x)? {
        let normal = standardised_by_channels(g, base, &groups, epsilon)?;
        return g.reshape(normal, g.shape(x).to_vec());
    }
    let axes: Vec<usize> = (2..g.rank(x)).collect();
    let [centred, inverse, _] = standardised(g, x, &axes, epsilon)?;
    g.mul(centred, inverse)
}

/// `x` with the shape `[N, C, …]`, standardised within each of `count` groups of channels.
pub(crate) fn standardised_groups(g: &mut Graph, x: Value, count: i64, epsilon: f64) -> Result<Value> {
    let groups = groups_of_channels(g, x, count)?;
    if has_channels_last(g, x) {
        return standardised_by_channels(g, x, &groups, epsilon);
    }
    let split = g.reshape(x, groups)?;
    let normal = standardised_channels(g, split, epsilon)?;
    g.reshape(normal, g.shape(x).to_vec())
}

/// The shape `[N, count, C/count, …]` for `x` with the shape `[N, C, …]`.
pub(crate) fn groups_of_channels(g: &mut Graph, x: Value, count: i64) -> Result<Vec<Dim>> {
    let mut shape = g.shape(x).to_vec();
    if shape.len() < 2 || count < 1 {
        return Err(Error::invalid(format!(
            "the number of groups must be positive, but it is {count}; the input needs at least 2 axes"
        )));
    }

    g.require(Relation::divides(count, &shape[1]), &format!("{count} groups of channels"))?;
    let each = g.facts.simplify(&shape[1].floor_div(count));
    shape.splice(1..2, [count.into(), each]);
    Ok(shape)
}

/// `x` standardised within groups of channels. `groups` is its shape with the groups as axis 1.
///
/// The sums of a group are those of its channels, and each channel gets the mean of its group. So no kernel that reads
/// `x` has an axis of the channels of one group, which would be short and innermost where channels are last in memory.
fn standardised_by_channels(g: &mut Graph, x: Value, groups: &[Dim], epsilon: f64) -> Result<Value> {
    let mut of_channels = g.shape(x)[..2].to_vec();
    of_channels.resize(g.rank(x), Dim::one());

    let mean = means_of_groups(g, x, groups)?;
    let mean = g.reshape(mean, of_channels.clone())?;
    let centred = g.sub(x, mean)?;
    let squares = g.mul(centred, centred)?;
    let variance = means_of_groups(g, squares, groups)?;
    let inverse = inverse_deviation(g, variance, epsilon)?;
    let inverse = g.reshape(inverse, of_channels)?;
    g.mul(centred, inverse)
}

/// The mean of its group for each channel of `x`, in the shape `[N, count, C/count]`. `groups` begins with these axes.
fn means_of_groups(g: &mut Graph, x: Value, groups: &[Dim]) -> Result<Value> {
    let spatial: Vec<usize> = (2..g.rank(x)).collect();
    let sums = g.reduce(ReduceOp::Sum, x, &spatial, false)?;
    let sums = g.reshape(sums, groups[..3].to_vec())?;
    let sums = g.reduce(ReduceOp::Sum, sums, &[2], true)?;
    let sums = g.expand(sums, &groups[..3])?;
    let elems = g.facts.simplify(&Dim::product(groups[2..].iter().cloned()));
    let elems = g.dim(g.dtype(x), elems)?;
    g.div(sums, elems)
}

/// The tensor `[N, C, …]` that `x` is a reshaped view of, and its shape with groups, if each channel of `x` is a group
/// of its channels, which are last in memory. PyTorch exports group normalisations as such views.
fn groups_of_base(g: &mut Graph, x: Value) -> Result<Option<(Value, Vec<Dim>)>> {
    let Op::View { shape, index } = g.op(x).clone() else { return Ok(None) };
    let base = g.operands(x)[0];
    let of_base = g.shape(base).to_vec();
    let ([batch, groups, _], true) = (shape.as_slice(), of_base.len() > 2) else { return Ok(None) };
    let (Some(count), Some(channels)) = (groups.as_i64(), of_base[1].as_i64()) else { return Ok(None) };
    let elems = |dims: &[Dim]| Dim::product(dims.iter().cloned());
    let are_groups = (1..channels).contains(&count) && channels % count == 0;
    if *batch != of_base[0] || !are_groups || !has_channels_last(g, base) {
        return Ok(None);
    }
    if !g.facts.prove_eq(&elems(&shape), &elems(&of_base)).is_yes() {
        return Ok(None);
    }
    let reshaped = g.reshape(base, shape)?;
    let is_same = matches!(g.op(reshaped), Op::View { index: other, .. } if *other == index);
    is_same.then(|| Ok((base, groups_of_channels(g, base, count)?))).transpose()
}

/// Whether the channels of `x`, its axis 1, are innermost in memory. They are in results of contractions whose columns
/// they are (`lower/layout.rs`), in inputs where they are the last axis, and in tensors with the axes of such ones.
fn has_channels_last(g: &Graph, x: Value) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![(x, 1)];
    while let Some((value, k)) = open.pop() {
        if !seen.insert((value, k)) {
            continue;
        }
        let operands = g.operands(value);
        match g.op(value) {
            Op::Contraction { lhs, rhs, out, .. } => {
                let is_column = |(operand, labels): (&Value, &Vec<_>)| {
                    labels.contains(&out[k]) && g.viewed_constant(*operand).is_some()
                };
                if operands.iter().zip([lhs, rhs]).any(is_column) {
                    return true;
                }
            }
            Op::Input(_) if k + 1 == g.rank(value) && k > 0 => return true,
            Op::Map(_) | Op::Concat { .. } => open.extend(operands.iter().map(|operand| (*operand, k))),
            Op::Pad { .. } => open.push((operands[0], k)),
            Op::View { index, .. } => {
                let moved = (0..index.len()).filter(|j| index[*j].contains(&axis(k)));
                open.extend(moved.map(|j| (operands[0], j)));
            }
            _ => {}
        }
    }
    false
}
