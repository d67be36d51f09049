//! Reductions, running combinations, and orders along axes.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::{OnnxNode, axes::normal_axis},
        ops::shared::dynamic::may_be,
    },
    scalar::{ReduceOp, Scalar, UnaryOp},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    ArgMax 1 arg_max,
    ArgMin 1 arg_min,
    CumProd 26 cum_prod,
    CumSum 11 cum_sum,
    ReduceL1 1 reduce_l1,
    ReduceL2 1 reduce_l2,
    ReduceLogSum 1 reduce_log_sum,
    ReduceLogSumExp 1 reduce_log_sum_exp,
    ReduceMax 1 reduce_max,
    ReduceMean 1 reduce_mean,
    ReduceMin 1 reduce_min,
    ReduceProd 1 reduce_prod,
    ReduceSum 1 reduce_sum,
    ReduceSumSquare 1 reduce_sum_square,
    TopK 1 top_k,
}

/// The index of the maximum along `axis`. Of equal maxima the first counts, or with `select_last_index=1` the last. The
/// axis stays with size 1 unless `keepdims=0`. An empty axis is refused, unless the result is empty.
///
/// `ArgMax([[1, 3, 3]]; axis=1) = i64[[1]]`
/// `ArgMax([[1, 3, 3]]; axis=1, keepdims=0, select_last_index=1) = i64[2]`
fn arg_max(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    arg(g, n, ReduceOp::Max)
}

/// The index of the minimum along `axis`. Of equal minima the first counts, or with `select_last_index=1` the last. The
/// axis stays with size 1 unless `keepdims=0`. An empty axis is refused, unless the result is empty.
///
/// `ArgMin([[3, 1, 1]]; axis=1) = i64[[1]]`
fn arg_min(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    arg(g, n, ReduceOp::Min)
}

fn arg(g: &mut Graph, n: &OnnxNode, op: ReduceOp) -> Result<Value> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(0))?;
    let keep_dims = n.flag("keepdims", true)?;
    let last = n.flag("select_last_index", false)?;

    if is_empty(g, &g.shape(x)[axis]) {
        return empty_arg(g, x, axis, keep_dims);
    }

    g.argreduce(op, x, axis, keep_dims, last)
}

fn is_empty(g: &Graph, dim: &Dim) -> bool {
    g.facts.prove_eq(dim, &Dim::zero()).is_yes()
}

/// The result for an axis without elements: empty if another axis is empty too.
fn empty_arg(g: &mut Graph, x: Value, axis: usize, keep_dims: bool) -> Result<Value> {
    let mut shape = g.shape(x).to_vec();
    shape.remove(axis);
    if !shape.iter().any(|dim| is_empty(g, dim)) {
        return Err(Error::invalid(format!(
            "axis {axis} has size 0, so it has no largest or smallest element to choose; pad the axis or skip the node"
        )));
    }

    if keep_dims {
        shape.insert(axis, Dim::one());
    }
    let zero = g.scalar(Scalar::i64(0))?;
    g.broadcast_to(zero, &shape)
}

/// Cumulative product along the axis in input 1. `exclusive` and `reverse` are as in `CumSum`.
///
/// `CumProd([1, 2, 3], i64:0) = [1, 2, 6]`
fn cum_prod(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    cumulate(g, n, ReduceOp::Prod)
}

/// Cumulative sum along the axis in input 1. With `exclusive=1` a sum excludes its own element. With `reverse=1` the
/// sums start at the end.
///
/// `CumSum([1, 2, 3], i64:0) = [1, 3, 6]`
/// `CumSum([1, 2, 3], i64:0; exclusive=1, reverse=1) = [5, 3, 0]`
fn cum_sum(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    cumulate(g, n, ReduceOp::Sum)
}

fn cumulate(g: &mut Graph, n: &OnnxNode, op: ReduceOp) -> Result<Value> {
    let x = n.input(0)?;
    let exclusive = n.flag("exclusive", false)?;
    let reverse = n.flag("reverse", false)?;
    if let Some(axis) = n.is_known(g, 1).then(|| n.dim(g, 1)).transpose()? {
        let axis = axis.as_i64().ok_or_else(|| Error::unsupported("an axis that is not a constant"))?;
        let axis = normal_axis(axis, g.rank(x))?;
        return g.scan(op, x, axis, exclusive, reverse);
    }

    n.by_axes(
        g,
        1,
        g.rank(x),
        |_, _| true,
        |g, axes| {
            let axis = *axes
                .unwrap_or_default()
                .first()
                .ok_or_else(|| Error::invalid("the axis (input 1) must have one element"))?;
            g.scan(op, x, axis, exclusive, reverse)
        },
    )
}

/// The result of `f` for the axes of a reduction node and the flag `keepdims`.
///
/// The axes come from the attribute `axes` or the optional input 1. An empty list means all axes, unless
/// `noop_with_empty_axes=1`.
fn reduce_axes(
    g: &mut Graph,
    n: &OnnxNode,
    mut f: impl FnMut(&mut Graph, &[usize], bool) -> Result<Value>,
) -> Result<Value> {
    let x = n.input(0)?;
    let rank = g.rank(x);
    let keep = n.flag("keepdims", true)?;
    let noop = n.flag("noop_with_empty_axes", false)?;
    let declared = n.declared(g, 0);

    let fits = |g: &Graph, axes: &[usize]| {
        let dim = |k: usize| match (axes.contains(&k), keep) {
            (false, _) => Some(g.shape(x)[k].clone()),
            (true, true) => Some(Dim::one()),
            (true, false) => None,
        };
        may_be(g, &(0..rank).filter_map(dim).collect::<Vec<_>>(), declared.as_deref())
    };

    n.by_axes(g, 1, rank, fits, |g, axes| {
        let axes = axes.unwrap_or_default();
        let axes = if axes.is_empty() && !noop { (0..rank).collect() } else { axes };
        f(g, &axes, keep)
    })
}

fn reduce(g: &mut Graph, n: &OnnxNode, op: ReduceOp, x: Value) -> Result<Value> {
    reduce_axes(g, n, |g, axes, keep| g.reduce(op, x, axes, keep))
}

/// Sum of the absolute values over `axes`.
///
/// `ReduceL1([[1, -2], [3, 4]], i64[1]; keepdims=0) = [3, 7]`
fn reduce_l1(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = g.abs(n.input(0)?)?;
    reduce(g, n, ReduceOp::Sum, x)
}

/// Square root of the sum of squares over `axes`.
///
/// `ReduceL2([[3, 4], [6, 8]], i64[1]; keepdims=0) = [5, 10]`
fn reduce_l2(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let sum = reduce_sum_square(g, n)?;
    if g.dtype(sum).is_float() {
        g.sqrt(sum)
    } else {
        let dtype = g.dtype(sum);
        let wide = g.cast(DType::F64, sum)?;
        let root = g.sqrt(wide)?;
        g.cast(dtype, root)
    }
}

/// Logarithm of the sum over `axes`.
///
/// `ReduceLogSum([[1, 1]]; keepdims=0) = 0.69314718`
fn reduce_log_sum(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let sum = reduce(g, n, ReduceOp::Sum, n.input(0)?)?;
    g.log(sum)
}

/// `ln(Σ e^X)` over `axes`. It is computed as `max + ln(Σ e^(X - max))`, which does not overflow for finite `X`.
///
/// `ReduceLogSumExp([[100, 100]]; keepdims=0) = 100.69315`
fn reduce_log_sum_exp(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    reduce_axes(g, n, |g, axes, keep| log_sum_exp(g, x, axes, keep))
}

fn log_sum_exp(g: &mut Graph, x: Value, axes: &[usize], keep: bool) -> Result<Value> {
    let largest = g.reduce(ReduceOp::Max, x, axes, true)?;
    let zero = g.number(g.dtype(x), 0.0)?;
    let infinite = g.unary(UnaryOp::IsInf, largest)?;
    let shift = g.select(infinite, zero, largest)?;
    let shifted = g.sub(x, shift)?;
    let powers = g.exp(shifted)?;
    let sum = g.reduce(ReduceOp::Sum, powers, axes, true)?;
    let log = g.log(sum)?;
    let result = g.add(shift, log)?;
    if keep { Ok(result) } else { g.squeeze(result, axes) }
}

/// Maximum over `axes`. Without elements it is the smallest value of the type. For bools it is the logical or.
///
/// `ReduceMax([[1, 5], [3, 4]], i64[1]) = [[5], [4]]`
fn reduce_max(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    extreme(g, n, ReduceOp::Max)
}

fn extreme(g: &mut Graph, n: &OnnxNode, op: ReduceOp) -> Result<Value> {
    let x = n.input(0)?;
    if g.dtype(x) != DType::Bool {
        return reduce(g, n, op, x);
    }
    let bits = g.cast(DType::U8, x)?;
    let reduced = reduce(g, n, op, bits)?;
    g.cast(DType::Bool, reduced)
}

/// Mean over `axes`. Means of integers truncate.
///
/// `ReduceMean([[1, 5], [3, 4]], i64[1]) = [[3], [3.5]]`
fn reduce_mean(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    reduce_axes(g, n, |g, axes, keep| g.mean(x, axes, keep))
}

/// Minimum over `axes`. Without elements it is the largest value of the type. For bools it is the logical and.
///
/// `ReduceMin([[1, 5], [3, 4]], i64[1]) = [[1], [3]]`
fn reduce_min(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    extreme(g, n, ReduceOp::Min)
}

/// Product over `axes`.
///
/// `ReduceProd([[1, 5], [3, 4]], i64[1]) = [[5], [12]]`
fn reduce_prod(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    reduce(g, n, ReduceOp::Prod, n.input(0)?)
}

/// Sum over `axes`, which are an attribute or input 1. Without `axes` it is the sum over all axes, or with
/// `noop_with_empty_axes=1` the input. Reduced axes stay with size 1 unless `keepdims=0`.
///
/// `ReduceSum([[1, 5], [3, 4]], i64[1]) = [[6], [7]]`
/// `ReduceSum([[1, 5], [3, 4]]; keepdims=0) = 13`
fn reduce_sum(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    reduce(g, n, ReduceOp::Sum, n.input(0)?)
}

/// Sum of the squares over `axes`.
///
/// `ReduceSumSquare([[1, 2], [3, 4]], i64[1]) = [[5], [25]]`
fn reduce_sum_square(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let squares = g.mul(x, x)?;
    reduce(g, n, ReduceOp::Sum, squares)
}

/// The `k` largest elements along `axis` and their indices, sorted. With `largest=0` they are the smallest. Equal
/// elements are sorted by their index. NaN is larger than all other values. `k` is input 1, before opset 10 an
/// attribute. The time is linear in the axis, for every order of the elements: the blocks with the best elements are
/// selected, and their elements are sorted by a radix sort (Knuth, volume 3, section 5.2.5), or by insertion if they
/// are few.
///
/// `TopK([[3, 1, 2]], i64[2]) = [[3, 2]], i64[[0, 2]]`
/// `TopK([[3, 1, 2]], i64[2]; largest=0) = [[1, 2]], i64[[1, 2]]`
fn top_k(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let k = if n.opset < 10 {
        n.int("k")?.ok_or_else(|| Error::invalid("TopK needs the attribute `k`"))?.into()
    } else if n.is_known(g, 1) {
        n.dim(g, 1)?
    } else {
        let axis = n.axis(g, x, Some(-1))?;
        let k = n.input(1)?;
        let size = g.shape(x)[axis].clone();
        n.size(g, k, axis, Some(size))?
    };

    let axis = n.axis(g, x, Some(-1))?;
    let largest = n.flag("largest", true)?;

    // `sorted=0` allows any order, so the sorted one is right too.
    n.flag("sorted", true)?;
    if g.facts.prove_lt(&g.shape(x)[axis], &k).is_yes() {
        return Err(Error::invalid(format!("k is {k}, but the axis has {} elements", g.shape(x)[axis])));
    }

    let size = g.shape(x)[axis].clone();
    g.require(Relation::le(&k, size), "k of TopK")?;
    let (values, positions) = g.sort_first(x, axis, largest, &k)?;
    Ok(vec![values, positions])
}
