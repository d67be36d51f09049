//! Operators of ONNX Runtime's domain for loops that generate text, and older forms of standard operators.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, ScatterMode, Value, axis},
    import::{
        constant,
        node::{OnnxNode, axes::normal_axis},
    },
    scalar::{CompareOp, ReduceOp},
};
use symshape::{Dim, Relation};

ops! {
    "com.microsoft" CDist 1 cdist,
    "com.microsoft" ExpandDims 1 expand_dims,
    "com.microsoft" NGramRepeatBlock 1 ngram_repeat_block,
}

/// The largest `ngram_size`: one comparison is built for each element.
const MAX_NGRAM: i64 = 64;

/// The scores (input 1, `[B, V]`) with `-inf` for each token that would complete an n-gram which occurs before in the
/// token ids (input 0, `[B, S]`).
///
/// `NGramRepeatBlock(i64[[1, 2, 1]], [[5, 6, 7]]; ngram_size=2) = [[5, 6, -inf]]`
fn ngram_repeat_block(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let ids = n.input(0)?;
    let scores = n.input(1)?;
    let size = n.int("ngram_size")?.unwrap_or(0);
    if !(1..=MAX_NGRAM).contains(&size) {
        return Err(Error::invalid(format!("ngram_size is {size}; it must be in 1..={MAX_NGRAM}")));
    }
    let [batch, steps] = <[Dim; 2]>::try_from(g.shape(ids).to_vec())
        .map_err(|_| Error::invalid("the token ids must have 2 axes"))?;
    if g.rank(scores) != 2 {
        return Err(Error::invalid("the scores must have 2 axes"));
    }
    g.require(Relation::eq(&batch, g.shape(scores)[0].clone()), "sequences of ids and scores")?;

    // Shorter sequences have no n-gram.
    let grams = g.facts.simplify(&Dim::max(&(&steps - (size - 1)), 0));
    let shape = vec![batch.clone(), grams.clone()];
    let dtype = g.dtype(scores);
    let low = g.number(dtype, f64::NEG_INFINITY)?;
    let high = g.number(dtype, f64::INFINITY)?;
    let mut limit = g.broadcast_to(low, &shape)?;
    for k in 0..size - 1 {
        // Element `k` of each n-gram, and of the n-gram that the last tokens begin.
        let of_gram = g.view(ids, shape.clone(), vec![axis(0).into(), Dim::from(axis(1)) + k])?;
        let last = Dim::max(&(&steps - (size - 1 - k)), 0);
        let of_last = g.view(ids, shape.clone(), vec![axis(0).into(), last])?;
        let differs = g.compare(CompareOp::Ne, of_gram, of_last)?;
        limit = g.select(differs, high, limit)?;
    }

    let tokens = g.view(ids, shape, vec![axis(0).into(), Dim::from(axis(1)) + (size - 1)])?;
    let coords =
        vec![Coord::At(axis(0).into()), Coord::Load { operand: 2, at: vec![axis(0).into(), axis(1).into()] }];
    g.push(Op::Scatter { coords, mode: ScatterMode::Combine(ReduceOp::Min) }, &[scores, limit, tokens])
}

/// The input with a new axis of size 1 at the position in input 1.
///
/// `ExpandDims([1, 2], i32:-1) = [[1], [2]]`
fn expand_dims(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let at = n.input(1)?;
    let at = constant::value_of(g, at)?
        .filter(|at| at.elems() == 1 && at.dtype().is_int())
        .ok_or_else(|| Error::unsupported("ExpandDims: the axis must be a constant"))?;
    g.unsqueeze(x, &[normal_axis(at.get(0).as_i64(), g.rank(x) + 1)?])
}

/// The distance of each row of `A`, `[M, K]`, from each row of `B`, `[N, K]`: `[M, N]`. The metric is `sqeuclidean`,
/// the default, or `euclidean`.
///
/// Limits: no other metrics.
///
/// `CDist([[1, 2]], [[1, 2], [4, 6]]; metric="euclidean") = [[0, 5]]`
fn cdist(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let b = n.input(1)?;
    if g.rank(a) != 2 || g.rank(b) != 2 || !g.dtype(a).is_float() {
        return Err(Error::invalid("the inputs of CDist must be matrices of floats"));
    }
    let is_squared = match n.string_or("metric", "sqeuclidean")? {
        "sqeuclidean" => true,
        "euclidean" => false,
        other => return Err(Error::unsupported(format!("CDist with the metric `{other}`"))),
    };

    let a = g.unsqueeze(a, &[1])?;
    let b = g.unsqueeze(b, &[0])?;
    let difference = g.sub(a, b)?;
    let squares = g.mul(difference, difference)?;
    let sum = g.reduce(ReduceOp::Sum, squares, &[2], false)?;
    if is_squared { Ok(sum) } else { g.sqrt(sum) }
}
