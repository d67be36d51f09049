//! Linear models (`ai.onnx.ml`).

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::OnnxNode,
        ops::ml::scores::{transformed, vector},
    },
    scalar::{CompareOp, ReduceOp},
    tensor::Tensor,
};
use symshape_runtime::DType;

ops! {
    "ai.onnx.ml" LinearRegressor 1 linear_regressor,
    "ai.onnx.ml" LinearClassifier 1 linear_classifier,
}

/// `X·Cᵀ + b` for `targets` targets.
fn linear(g: &mut Graph, n: &OnnxNode, x: Value, targets: i64) -> Result<Value> {
    let coefficients = n.floats("coefficients")?.unwrap_or_default();
    let count = usize::try_from(targets).ok().filter(|count| *count > 0 && coefficients.len() % count == 0);
    let count = count.ok_or_else(|| {
        Error::invalid(format!("{} coefficients are given for {targets} targets", coefficients.len()))
    })?;
    let width = coefficients.len() / count;

    let weights = vector(g, &coefficients)?;
    let weights = g.reshape(weights, vec![targets.into(), width.into()])?;
    let weights = g.transpose(weights, &[1, 0])?;
    let y = g.matmul(x, weights)?;

    match n.floats("intercepts")? {
        None => Ok(y),
        Some(intercepts) => {
            let intercepts = vector(g, &intercepts)?;
            g.add(y, intercepts)
        }
    }
}

/// The class with the highest score, and the scores by class: `post_transform(X·Cᵀ + b)`, with one row of
/// `coefficients` per class. With two classes and one row, the second class wins if its score is above 0. The other
/// score is then 1 minus this score.
///
/// Limits: integer classes; no `PROBIT`.
///
/// `LinearClassifier([[1, 2]]; classlabels_ints=[7, 8], coefficients=[3.0, 4.0, 5.0, 6.0], intercepts=[0.0, 1.0]) = i64[8], [[11, 18]]`
/// `LinearClassifier([[1, 2]]; classlabels_ints=[7, 8], coefficients=[3.0, 4.0], intercepts=[1.0]) = i64[8], [[-11, 12]]`
fn linear_classifier(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    if n.has("classlabels_strings") {
        return Err(Error::unsupported("LinearClassifier with string classes"));
    }

    n.int("multi_class")?;
    let labels = n.ints("classlabels_ints")?.unwrap_or_default();
    let classes = n.floats("intercepts")?.map_or(labels.len(), |intercepts| intercepts.len());
    if labels.len() != classes && (labels.len(), classes) != (2, 1) {
        return Err(Error::invalid(format!("{} classes are given for {classes} scores", labels.len())));
    }

    let name = n.string_or("post_transform", "NONE")?;
    let x = n.input(0)?;
    let x = g.cast(DType::F32, x)?;
    let scores = linear(g, n, x, classes as i64)?;
    let labels = Tensor::from_i64(vec![labels.len()], &labels);
    let labels =
        g.constant(labels.ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?)?;

    let (choice, scores) = match classes {
        1 => {
            let zero = g.number(DType::F32, 0.0)?;
            let won = g.compare(CompareOp::Gt, scores, zero)?;
            let won = g.squeeze(won, &[1])?;
            // The softmax of a single score would be 1, so it is skipped.
            let name = if name.starts_with("SOFTMAX") { "NONE" } else { name };
            let scores = transformed(g, scores, name)?;
            let one = g.number(DType::F32, 1.0)?;
            let other = g.sub(one, scores)?;
            (g.cast(DType::I64, won)?, g.concat(&[other, scores], 1)?)
        }
        _ => (g.argreduce(ReduceOp::Max, scores, 1, false, false)?, transformed(g, scores, name)?),
    };

    Ok(vec![g.gather(labels, choice, 0)?, scores])
}

/// `post_transform(X·Cᵀ + b)`, with one row of `coefficients` per target.
///
/// Limits: no `PROBIT`.
///
/// `LinearRegressor([[1, 2]]; coefficients=[3.0, 4.0], intercepts=[5.0]) = [[16]]`
fn linear_regressor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let x = g.cast(DType::F32, x)?;
    let y = linear(g, n, x, n.int_or("targets", 1)?)?;
    transformed(g, y, n.string_or("post_transform", "NONE")?)
}
