//! Operators that address elements by the values of other tensors.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, ScatterMode, Value, axis},
    import::node::{OnnxNode, axes::normal_axis},
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Gather 1 gather MovesElements,
    GatherElements 11 gather_elements MovesElements,
    "com.microsoft" GatherND 1 gather_nd,
    GatherND 11 gather_nd MovesElements,
    ReverseSequence 10 reverse_sequence,
    Scatter 9 scatter_elements,
    ScatterElements 11 scatter_elements,
    ScatterND 11 scatter_nd,
    TensorScatter 24 tensor_scatter,
}

/// The positions `at`, counted from the start: `sizes` is added to negative positions.
///
/// `sizes` holds one size, or one for each element of the last axis of `at`.
pub(crate) fn from_start(g: &mut Graph, at: Value, sizes: &[Dim]) -> Result<Value> {
    let not_negative = |dim: &Dim| g.facts.prove_le(&Dim::zero(), dim).is_yes();
    if g.contents(at).is_some_and(|dims| dims.iter().all(not_negative)) || not_negative_const(g, at) {
        return Ok(at);
    }

    let dtype = g.dtype(at);
    let size = match sizes {
        [size] => g.dim(dtype, size.clone())?,
        sizes => {
            let sizes = g.dims(sizes)?;
            g.cast(dtype, sizes)?
        }
    };

    let zero = g.scalar(Scalar::from_i64(dtype, 0))?;
    let negative = g.compare(CompareOp::Lt, at, zero)?;
    let shifted = g.add(at, size)?;
    g.select(negative, shifted, at)
}

fn not_negative_const(g: &Graph, at: Value) -> bool {
    g.as_constant(at)
        .is_some_and(|tensor| tensor.elems() <= 1 << 16 && tensor.to_i64s().iter().all(|at| *at >= 0))
}

fn along(k: usize) -> Dim {
    axis(k).into()
}

/// The slices of `data` (input 0) along `axis` at the positions in input 1. Negative positions count from the end.
///
/// `Gather([[1, 2], [3, 4], [5, 6]], i64[2, -3]) = [[5, 6], [1, 2]]`
/// `Gather([[1, 2], [3, 4]], i64:1; axis=1) = [2, 4]`
fn gather(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let at = n.input(1)?;

    let k = n.axis(g, x, Some(0))?;
    let size = g.shape(x)[k].clone();
    if g.rank(at) == 0
        && let Some([position]) = g.contents(at)
    {
        let position = position.clone();
        return one(g, x, k, &size, position);
    }

    let at = from_start(g, at, &[size])?;
    g.gather(x, at, k)
}

/// The slice at one position, which is an expression over symbols.
fn one(g: &mut Graph, x: Value, k: usize, size: &Dim, position: Dim) -> Result<Value> {
    let position = if g.facts.prove_lt(&position, &Dim::zero()).is_yes() {
        g.facts.simplify(&(position + size))
    } else {
        position
    };
    g.require(Relation::le(0, &position), "a position of Gather")?;
    g.require(Relation::lt(&position, size), "a position of Gather")?;
    let slice = g.slice(x, k, position, Dim::one(), 1)?;
    g.squeeze(slice, &[k])
}

/// For `axis=0`, `output[i, j] = data[indices[i, j], j]`, and alike for other axes and ranks. Both inputs have the same
/// rank. Negative indices count from the end.
///
/// `GatherElements([[1, 2], [3, 4]], i64[[0, 0], [1, 0]]; axis=1) = [[1, 1], [4, 3]]`
fn gather_elements(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let at = n.input(1)?;
    let k = n.axis(g, x, Some(0))?;
    same_rank(g, x, at)?;
    let at = from_start(g, at, &[g.shape(x)[k].clone()])?;
    let shape = g.shape(at).to_vec();
    let coords = element_coords(g.rank(x), k, 1);
    g.push(Op::Gather { shape, coords }, &[x, at])
}

/// Coordinates of an element: its own index on every axis, except axis `k`, whose coordinate is loaded from operand
/// `operand`.
fn element_coords(rank: usize, k: usize, operand: usize) -> Vec<Coord> {
    let all: Vec<Dim> = (0..rank).map(along).collect();
    let coord =
        |i: usize| if i == k { Coord::Load { operand, at: all.clone() } } else { Coord::At(along(i)) };
    (0..rank).map(coord).collect()
}

fn same_rank(g: &Graph, x: Value, at: Value) -> Result<()> {
    if g.rank(x) == g.rank(at) {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "the indices have {} axes, the input {}; they must have the same number of axes",
            g.rank(at),
            g.rank(x)
        )))
    }
}

/// The slices of `data` at the index tuples in the last axis of input 1. An index tuple addresses the axes after the
/// first `batch_dims`, which both inputs share.
///
/// `GatherND([[1, 2], [3, 4]], i64[[0, 1], [1, -1]]) = [2, 4]`
/// `GatherND([[1, 2], [3, 4]], i64[[1], [0]]) = [[3, 4], [1, 2]]`
fn gather_nd(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let at = n.input(1)?;

    let batch = usize::try_from(n.int_or("batch_dims", 0)?).unwrap_or(usize::MAX);
    let rank = g.rank(x);
    let depth = depth_of(g, at)?;
    if batch.checked_add(depth).is_none_or(|used| used > rank) || batch >= g.rank(at) {
        return Err(Error::invalid(format!(
            "{depth} indices after {batch} batch axes are too many for {rank} axes"
        )));
    }

    for k in 0..batch {
        let a = g.shape(x)[k].clone();
        let b = g.shape(at)[k].clone();
        g.require(Relation::eq(a, b), "batch axes of GatherND")?;
    }

    let sizes = g.shape(x)[batch..batch + depth].to_vec();
    let at = from_start(g, at, &sizes)?;
    let outer = g.rank(at) - 1;
    let shape = [&g.shape(at)[..outer], &g.shape(x)[batch + depth..]].concat();
    let coords = nd_coords(rank, batch, depth, outer, 1);
    g.push(Op::Gather { shape, coords }, &[x, at])
}

/// Coordinates for `rank` axes. The `depth` coordinates after the first `batch` are loaded from the last axis of
/// operand `operand`, which has `outer + 1` axes.
fn nd_coords(rank: usize, batch: usize, depth: usize, outer: usize, operand: usize) -> Vec<Coord> {
    let coord = |k: usize| match k {
        k if k < batch => Coord::At(along(k)),
        k if k < batch + depth => {
            let part = Dim::from(k - batch);
            Coord::Load { operand, at: (0..outer).map(along).chain([part]).collect() }
        }
        k => Coord::At(along(outer + k - batch - depth)),
    };
    (0..rank).map(coord).collect()
}

/// The size of the last axis, which must be a constant.
fn depth_of(g: &Graph, at: Value) -> Result<usize> {
    let last = g.shape(at).last().ok_or_else(|| Error::invalid("the indices must have at least 1 axis"))?;
    let depth = last.as_i64().and_then(|depth| usize::try_from(depth).ok());
    depth.ok_or_else(|| {
        Error::unsupported(format!("indices whose last axis has size {last}, which is not a constant"))
    })
}

/// The input with the first `sequence_lens` elements (input 1) along `time_axis` reversed. There is one length for each
/// index along `batch_axis`.
///
/// `ReverseSequence([[1, 2, 3], [4, 5, 6]], i64[2, 3]; time_axis=1, batch_axis=0) = [[2, 1, 3], [6, 5, 4]]`
fn reverse_sequence(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let lens = n.input(1)?;
    let rank = g.rank(x);
    let time = normal_axis(n.int_or("time_axis", 0)?, rank)?;
    let batch = normal_axis(n.int_or("batch_axis", 1)?, rank)?;
    if time == batch {
        return Err(Error::invalid("time_axis and batch_axis must differ"));
    }
    reversed(g, x, lens, time, batch)
}

/// `x` with the first elements along the axis `time` reversed. `lens` holds their count for each index along the axis
/// `batch`.
pub(crate) fn reversed(g: &mut Graph, x: Value, lens: Value, time: usize, batch: usize) -> Result<Value> {
    let rank = g.rank(x);
    let other: Vec<usize> = (0..rank).filter(|k| *k != batch).collect();
    let lens = g.unsqueeze(lens, &other)?;

    let along_time = |k: usize| if k == time { g.shape(x)[k].clone() } else { Dim::one() };
    let position = g.index(DType::I64, (0..rank).map(along_time).collect(), axis(time).into())?;
    let lens = g.cast(g.dtype(position), lens)?;

    let one = g.scalar(Scalar::i64(1))?;
    let last = g.sub(lens, one)?;
    let mirrored = g.sub(last, position)?;
    let inside = g.compare(CompareOp::Le, position, last)?;
    let from = g.select(inside, mirrored, position)?;
    let shape = g.shape(x).to_vec();

    // Whole rows are reversed, so an address serves all other axes.
    let at_row = |k: usize| if k == time || k == batch { Dim::from(axis(k)) } else { Dim::zero() };
    let coord = |k: usize| match k {
        k if k == time => Coord::Load { operand: 1, at: (0..rank).map(at_row).collect() },
        k => Coord::At(axis(k).into()),
    };
    g.push(Op::Gather { shape, coords: (0..rank).map(coord).collect() }, &[x, from])
}

fn mode_of(n: &OnnxNode) -> Result<ScatterMode> {
    match n.string_or("reduction", "none")? {
        "none" => Ok(ScatterMode::Assign),
        "add" => Ok(ScatterMode::Combine(ReduceOp::Sum)),
        "mul" => Ok(ScatterMode::Combine(ReduceOp::Prod)),
        "min" => Ok(ScatterMode::Combine(ReduceOp::Min)),
        "max" => Ok(ScatterMode::Combine(ReduceOp::Max)),
        other => Err(Error::invalid(format!("unknown reduction `{other}`"))),
    }
}

/// The input with `output[indices[i, j], j] = updates[i, j]` for `axis=0`, and alike for other axes and ranks.
/// `reduction` (`add`, `mul`, `min` or `max`) combines an update with the element that it would replace.
///
/// `ScatterElements([1, 2, 3], i64[2, 0], [9, 8]) = [8, 2, 9]`
/// `ScatterElements([1, 2, 3], i64[2, -1], [9, 8]; reduction="add") = [1, 2, 20]`
fn scatter_elements(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let at = n.input(1)?;
    let updates = n.input(2)?;

    let k = n.axis(g, x, Some(0))?;
    same_rank(g, x, at)?;
    same_rank(g, x, updates)?;
    let mode = mode_of(n)?;
    let at = from_start(g, at, &[g.shape(x)[k].clone()])?;

    for i in 0..g.rank(x) {
        let a = g.shape(at)[i].clone();
        let b = g.shape(updates)[i].clone();
        g.require(Relation::eq(a, b), "positions and updates")?;
    }

    g.push(Op::Scatter { coords: element_coords(g.rank(x), k, 2), mode }, &[x, updates, at])
}

/// The input with the slices at the index tuples in the last axis of input 1 replaced by `updates` (input 2).
/// `reduction` is as in `ScatterElements`.
///
/// `ScatterND([1, 2, 3], i64[[2], [0]], [9, 8]) = [8, 2, 9]`
fn scatter_nd(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let at = n.input(1)?;
    let updates = n.input(2)?;
    let rank = g.rank(x);

    let depth = depth_of(g, at)?;
    let mode = mode_of(n)?;
    let outer = g.rank(at) - 1;
    if depth > rank || g.rank(updates) != outer + rank - depth {
        return Err(Error::invalid(format!(
            "{depth} indices into {rank} axes don't fit updates of {} axes",
            g.rank(updates)
        )));
    }

    let expected = [&g.shape(at)[..outer], &g.shape(x)[depth..]].concat();
    for (k, dim) in expected.iter().enumerate() {
        let have = g.shape(updates)[k].clone();
        g.require(Relation::eq(have, dim), "updates of ScatterND")?;
    }

    let sizes = g.shape(x)[..depth].to_vec();
    let at = from_start(g, at, &sizes)?;
    g.push(Op::Scatter { coords: nd_coords(rank, 0, depth, outer, 2), mode }, &[x, updates, at])
}

/// The cache (input 0) with `update` (input 1) written along `axis`. The start position is in input 2, one for each
/// batch, by default 0. With `mode="circular"`, positions wrap around.
///
/// `TensorScatter([[[1], [2], [3]]], [[[9]]], i64[1]; axis=1) = [[[1], [9], [3]]]`
fn tensor_scatter(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let cache = n.input(0)?;
    let update = n.input(1)?;
    let rank = g.rank(cache);
    let k = normal_axis(n.int_or("axis", -2)?, rank)?;
    if g.rank(update) != rank || k == 0 {
        return Err(Error::invalid(
            "the update must have the axes of the cache, and the axis can't be the batch axis",
        ));
    }

    let batch = g.shape(update)[0].clone();
    let count = g.shape(update)[k].clone();

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
        other => return Err(Error::invalid(format!("unknown mode `{other}`"))),
    }

    let coord = |i: usize| {
        if i == k {
            Coord::Load { operand: 2, at: vec![axis(0).into(), axis(k).into()] }
        } else {
            Coord::At(axis(i).into())
        }
    };

    let coords = (0..rank).map(coord).collect();
    g.push(Op::Scatter { coords, mode: ScatterMode::Assign }, &[cache, update, at])
}
