//! Loss functions.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, Value, axis},
    import::node::OnnxNode,
    scalar::{CompareOp, ReduceOp, Scalar},
};
use symshape::Dim;

ops! {
    NegativeLogLikelihoodLoss 12 negative_log_likelihood_loss,
    SoftmaxCrossEntropyLoss 12 softmax_cross_entropy_loss,
}

/// `-weight[c] * input[n, c, …]` for the class `c = target[n, …]`. The input, `[N, C, …]`, holds log-probabilities.
/// `weight` (input 2) is optional. The loss is 0 where the class is `ignore_index`. `reduction` is `none`, `sum`, or
/// `mean`, weighted by `weight`.
///
/// `NegativeLogLikelihoodLoss([[-1, -2], [-3, -4]], i64[0, 1]) = 2.5`
/// `NegativeLogLikelihoodLoss([[-1, -2], [-3, -4]], i64[0, 1]; reduction="none") = [1, 4]`
fn negative_log_likelihood_loss(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    loss(g, n, n.input(0)?)
}

/// `NegativeLogLikelihoodLoss` of the logarithm of the softmax along axis 1. Output 1 is this logarithm.
///
/// `SoftmaxCrossEntropyLoss([[0, 0]], i64[1]) = 0.6931472`
fn softmax_cross_entropy_loss(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    if g.rank(x) < 2 {
        return Err(Error::invalid("the scores must have at least 2 axes"));
    }
    let max = g.reduce(ReduceOp::Max, x, &[1], true)?;
    let shifted = g.sub(x, max)?;
    let powers = g.exp(shifted)?;
    let sum = g.reduce(ReduceOp::Sum, powers, &[1], true)?;
    let log = g.log(sum)?;
    let logs = g.sub(shifted, log)?;
    Ok(vec![loss(g, n, logs)?, logs])
}

fn loss(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let target = n.input(1)?;
    let rank = g.rank(target);
    if rank == 0 || g.rank(x) != rank + 1 {
        return Err(Error::invalid("the scores must have one axis more than the classes"));
    }

    let shape = g.shape(target).to_vec();
    let dtype = g.dtype(x);
    let kind = g.dtype(target);
    let zero = g.scalar(Scalar::from_i64(kind, 0))?;
    let one = g.number(dtype, 1.0)?;
    let none = g.number(dtype, 0.0)?;

    let ignored = match n.int("ignore_index")? {
        None => None,
        Some(index) => {
            let index = g.scalar(Scalar::from_i64(kind, index))?;
            Some(g.compare(CompareOp::Eq, target, index)?)
        }
    };

    let class = match ignored {
        None => target,
        Some(ignored) => g.select(ignored, zero, target)?,
    };

    let all: Vec<Dim> = (0..rank).map(|k| axis(k).into()).collect();
    let mut coords = vec![Coord::At(axis(0).into()), Coord::Load { operand: 1, at: all }];
    coords.extend((1..rank).map(|k| Coord::At(axis(k).into())));
    let picked = g.push(Op::Gather { shape: shape.clone(), coords }, &[x, class])?;

    let mut losses = g.neg(picked)?;
    let mut weight = match n.optional(2) {
        Some(weights) => Some(g.gather(weights, class, 0)?),
        None => ignored.map(|_| one),
    };

    if let (Some(given), Some(ignored)) = (weight, ignored) {
        weight = Some(g.select(ignored, none, given)?);
    }

    if let Some(weight) = weight {
        losses = g.mul(losses, weight)?;
    }

    let axes: Vec<usize> = (0..rank).collect();
    match (n.string_or("reduction", "mean")?, weight) {
        ("none", _) => Ok(losses),
        ("sum", _) => g.reduce(ReduceOp::Sum, losses, &axes, false),
        ("mean", None) => g.mean(losses, &axes, false),
        ("mean", Some(weight)) => {
            let weight = g.broadcast_to(weight, &shape)?;
            let losses = g.reduce(ReduceOp::Sum, losses, &axes, false)?;
            let weights = g.reduce(ReduceOp::Sum, weight, &axes, false)?;
            g.div(losses, weights)
        }
        (other, _) => Err(Error::invalid(format!("unknown reduction `{other}`"))),
    }
}
