//! Scores of classical models: constants, and the function after them.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::ops::activation::logistic,
    scalar::CompareOp,
    tensor::Tensor,
};

/// A constant vector.
pub(crate) fn vector(g: &mut Graph, elements: &[f32]) -> Result<Value> {
    let tensor = Tensor::from_f32(vec![elements.len()], elements);
    g.constant(tensor.ok_or_else(|| Error::internal("the elements of a vector must match its shape"))?)
}

/// The function `post_transform` of `y`.
pub(crate) fn transformed(g: &mut Graph, y: Value, name: &str) -> Result<Value> {
    let last = g.rank(y) - 1;
    match name {
        "NONE" => Ok(y),
        "SOFTMAX" => g.softmax(y, last),
        "LOGISTIC" => logistic(g, y),
        "SOFTMAX_ZERO" => {
            let zero = g.number(g.dtype(y), 0.0)?;
            let none = g.compare(CompareOp::Eq, y, zero)?;
            let low = g.number(g.dtype(y), f64::NEG_INFINITY)?;
            let kept = g.select(none, low, y)?;
            let shares = g.softmax(kept, last)?;
            g.select(none, zero, shares)
        }
        other => Err(Error::unsupported(format!("post_transform `{other}`"))),
    }
}
