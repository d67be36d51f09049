//! Operators that are each a family of their own.

use super::super::node::{OnnxNode, normal_axes, normal_axis};
use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, ScatterMode, Value, axis, build::LoopBody},
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    CausalConvWithState 27 causal_conv_with_state,
    CenterCropPad 18 center_crop_pad,
    Det 11 det,
    TensorScatter 24 tensor_scatter,
}

/// A depthwise convolution of `[N, C, T]` whose windows end at each element; what came before the first one is the state
/// (input 3), zeros by default. The second output is the state for what follows.
///
/// `CausalConvWithState([[[1, 2]]], [[[10, 1]]]) = [[[1, 12]]], [[[2]]]`
fn causal_conv_with_state(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let (x, w) = (n.input(0)?, n.input(1)?);
    if g.rank(x) != 3 || g.rank(w) != 3 {
        return Err(Error::invalid("input and weights must have 3 axes"));
    }
    let (shape, taps) = (g.shape(x).to_vec(), g.shape(w)[2].clone());
    let taps = taps.as_i64().ok_or_else(|| Error::unsupported("a kernel of unknown size"))?;
    let padded = match n.optional(3) {
        Some(state) => g.concat(&[state, x], 2)?,
        None => {
            let lo = [Dim::zero(), Dim::zero(), (taps - 1).into()];
            g.pad(x, &lo, &[Dim::zero(), Dim::zero(), Dim::zero()], Scalar::from_i64(g.dtype(x), 0))?
        }
    };
    let windows = vec![shape[0].clone(), shape[1].clone(), shape[2].clone(), taps.into()];
    let index = vec![axis(0).into(), axis(1).into(), Dim::from(axis(2)) + Dim::from(axis(3))];
    let windows = g.view(padded, windows, index)?;
    let w = g.squeeze(w, &[1])?;
    let mut y = g.contract(windows, b"nctk", w, b"ck", b"nct")?;
    if let Some(bias) = n.optional(2) {
        let bias = g.unsqueeze(bias, &[1])?;
        y = g.add(y, bias)?;
    }
    match n.string_or("activation", "none")? {
        "none" => {}
        "silu" | "swish" => {
            let gate = super::activation::logistic(g, y)?;
            y = g.mul(y, gate)?;
        }
        other => return Err(Error::invalid(format!("activation `{other}`"))),
    }
    let state = g.slice(padded, 2, shape[2].clone(), (taps - 1).into(), 1)?;
    Ok(vec![y, state])
}

/// The input cut or padded with zeros to the size in input 1, for `axes`, evenly on both sides; what is left over goes to
/// the end.
///
/// `CenterCropPad([1, 2, 3, 4], i64[2]) = [2, 3]`
/// `CenterCropPad([1, 2], i64[5]) = [0, 1, 2, 0, 0]`
fn center_crop_pad(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut x = n.input(0)?;
    let rank = g.rank(x);
    let axes = match n.ints("axes")? {
        Some(axes) => normal_axes(&axes, rank)?,
        None => (0..rank).collect(),
    };
    let sizes = n.elements(g, 1)?;
    if sizes.len() != axes.len() {
        return Err(Error::invalid(format!("{} sizes for {} axes", sizes.len(), axes.len())));
    }
    for (size, k) in sizes.into_iter().zip(axes) {
        let (have, want) = (g.shape(x)[k].clone(), n.size(g, size, k, None)?);
        // Cut to what both have room for, then padded to what is wanted; one of the two does nothing.
        let keep = g.facts.simplify(&super::smaller(g, &have, &want));
        let start = g.facts.simplify(&(&have - &keep).floor_div(2));
        x = g.slice(x, k, start, keep.clone(), 1)?;
        let missing = g.facts.simplify(&(&want - &keep));
        let before = g.facts.simplify(&missing.floor_div(2));
        let (mut lo, mut hi) = (vec![Dim::zero(); rank], vec![Dim::zero(); rank]);
        hi[k] = g.facts.simplify(&(missing - &before));
        lo[k] = before;
        x = g.pad(x, &lo, &hi, Scalar::from_i64(g.dtype(x), 0))?;
    }
    Ok(x)
}

/// More rows than this are eliminated one after another.
const MAX_EXPANDED: i64 = 3;

/// The determinants of the matrices in the last two axes: by expansion along the first row where there are up to three, else
/// by elimination in double precision, the largest element of a column first.
///
/// `Det([[1, 2], [3, 4]]) = -2`
/// `Det([[0, 2, 0, 0], [3, 0, 0, 0], [0, 0, 1, 4], [0, 0, 1, 2]]) = 12`
fn det(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let rank = g.rank(x);
    if rank < 2 {
        return Err(Error::invalid("a matrix has two axes"));
    }
    let [rows, size] = [2, 1].map(|k| g.shape(x)[rank - k].clone());
    g.require(Relation::eq(rows, &size), "rows of Det")?;
    match size.as_i64().filter(|size| (1..=MAX_EXPANDED).contains(size)) {
        Some(size) => minor(g, x, 0, &(0..size).collect::<Vec<i64>>()),
        None => eliminated(g, n, x, &size),
    }
}

/// The determinants of matrices with `size` rows: each round brings the largest element of a column to the diagonal, and
/// takes its row off those below.
fn eliminated(g: &mut Graph, n: &OnnxNode, x: Value, size: &Dim) -> Result<Value> {
    let (dtype, outer) = (g.dtype(x), g.shape(x)[..g.rank(x) - 2].to_vec());
    let batch = g.facts.simplify(&Dim::product(outer.iter().cloned()));
    let x = g.reshape(x, vec![batch.clone(), size.clone(), size.clone()])?;
    let x = g.cast(DType::F64, x)?;
    let one = g.number(DType::F64, 1.0)?;
    let det = g.broadcast_to(one, &[batch])?;
    let counter = n.fresh(g);
    let rounds = g.iterate(&counter, size, [&[x, det], &[]], |g, carried, _| {
        let (x, now) = (carried[0], Dim::from(&counter));
        let here = g.dim(DType::I64, now.clone())?;
        let place = g.index(DType::I64, vec![size.clone()], axis(0).into())?;
        let open = g.compare(CompareOp::Ge, place, here)?;
        let column = g.slice(x, 2, now.clone(), Dim::one(), 1)?;
        let column = g.squeeze(column, &[2])?;
        let weight = g.abs(column)?;
        let least = g.number(DType::F64, -1.0)?;
        let weight = g.select(open, weight, least)?;
        let largest = g.argreduce(ReduceOp::Max, weight, 1, true, false)?;
        // Row `here` and the one with the largest element change places.
        let (is_here, is_largest) = (g.compare(CompareOp::Eq, place, here)?, g.compare(CompareOp::Eq, place, largest)?);
        let from = g.select(is_largest, here, place)?;
        let from = g.select(is_here, largest, from)?;
        let row = Coord::Load { operand: 1, at: vec![axis(0).into(), axis(1).into()] };
        let coords = vec![Coord::At(axis(0).into()), row, Coord::At(axis(2).into())];
        let x = g.push(Op::Gather { shape: g.shape(x).to_vec(), coords }, &[x, from])?;
        let (row, column) =
            (g.slice(x, 1, now.clone(), Dim::one(), 1)?, g.slice(x, 2, now.clone(), Dim::one(), 1)?);
        let pivot = g.slice(row, 2, now, Dim::one(), 1)?;
        let (zero, one) = (g.number(DType::F64, 0.0)?, g.number(DType::F64, 1.0)?);
        let is_zero = g.compare(CompareOp::Eq, pivot, zero)?;
        let divisor = g.select(is_zero, one, pivot)?;
        let factor = g.div(column, divisor)?;
        let below = g.compare(CompareOp::Gt, place, here)?;
        let below = g.unsqueeze(below, &[1])?;
        let factor = g.select(below, factor, zero)?;
        let taken = g.mul(factor, row)?;
        let next = g.sub(x, taken)?;
        let (pivot, largest) = (g.squeeze(pivot, &[1, 2])?, g.squeeze(largest, &[1])?);
        let stays = g.compare(CompareOp::Eq, largest, here)?;
        let minus = g.neg(pivot)?;
        let pivot = g.select(stays, pivot, minus)?;
        Ok(LoopBody { next: vec![next, g.mul(carried[1], pivot)?], ..LoopBody::default() })
    })?;
    let det = g.reshape(rounds.carried[1], outer)?;
    g.cast(dtype, det)
}

/// The determinant of the rows from `row` on and these columns.
fn minor(g: &mut Graph, x: Value, row: i64, columns: &[i64]) -> Result<Value> {
    let rank = g.rank(x);
    let mut sum: Option<Value> = None;
    for (k, column) in columns.iter().enumerate() {
        let entry = g.slice(x, rank - 2, row.into(), Dim::one(), 1)?;
        let entry = g.slice(entry, rank - 1, (*column).into(), Dim::one(), 1)?;
        let entry = g.squeeze(entry, &[rank - 2, rank - 1])?;
        let rest: Vec<i64> = columns.iter().copied().filter(|other| other != column).collect();
        let term = match rest.is_empty() {
            true => entry,
            false => {
                let below = minor(g, x, row + 1, &rest)?;
                g.mul(entry, below)?
            }
        };
        sum = Some(match sum {
            None => term,
            Some(sum) if k % 2 == 0 => g.add(sum, term)?,
            Some(sum) => g.sub(sum, term)?,
        });
    }
    sum.ok_or_else(|| Error::internal("a matrix without columns"))
}

/// The cache (input 0) with slices written along `axis` from the place in input 2 on, one for each batch; `mode` `circular`
/// goes on at the beginning.
///
/// `TensorScatter([[[1], [2], [3]]], [[[9]]], i64[1]; axis=1) = [[[1], [9], [3]]]`
fn tensor_scatter(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let (cache, update) = (n.input(0)?, n.input(1)?);
    let rank = g.rank(cache);
    let k = normal_axis(n.int_or("axis", -2)?, rank)?;
    if g.rank(update) != rank || k == 0 {
        return Err(Error::invalid("cache and update don't fit, or the axis is that of the batch"));
    }
    let (batch, count) = (g.shape(update)[0].clone(), g.shape(update)[k].clone());
    let start = match n.optional(2) {
        Some(start) => g.cast(DType::I64, start)?,
        None => {
            let zero = g.scalar(Scalar::i64(0))?;
            g.broadcast_to(zero, std::slice::from_ref(&batch))?
        }
    };
    let start = g.unsqueeze(start, &[1])?;
    let place = g.index(DType::I64, vec![count], axis(0).into())?;
    let mut at = g.add(start, place)?;
    match n.string_or("mode", "linear")? {
        "linear" => {}
        "circular" => {
            let size = g.dim(DType::I64, g.shape(cache)[k].clone())?;
            at = g.binary(BinaryOp::Mod, at, size)?;
        }
        other => return Err(Error::invalid(format!("mode `{other}`"))),
    }
    let coord = |i: usize| match i == k {
        true => Coord::Load { operand: 2, at: vec![axis(0).into(), axis(k).into()] },
        false => Coord::At(axis(i).into()),
    };
    let coords = (0..rank).map(coord).collect();
    g.push(Op::Scatter { coords, mode: ScatterMode::Assign }, &[cache, update, at])
}
