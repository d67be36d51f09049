//! Small expressions that several families of operators use.

use crate::{
    error::Result,
    graph::{Graph, Value, axis},
    scalar::Scalar,
};
use symshape_runtime::DType;

/// `x * factor + summand`.
pub(crate) fn linear(g: &mut Graph, x: Value, factor: f64, summand: f64) -> Result<Value> {
    let dtype = g.dtype(x);
    let factor = g.number(dtype, factor)?;
    let summand = g.number(dtype, summand)?;
    let x = g.mul(x, factor)?;
    g.add(x, summand)
}

/// The number `value`, an `i64`.
pub(crate) fn int(g: &mut Graph, value: i64) -> Result<Value> {
    g.scalar(Scalar::i64(value))
}

/// The index along axis `k` of each element of `x`.
pub(crate) fn positions(g: &mut Graph, x: Value, k: usize) -> Result<Value> {
    let shape = g.shape(x).to_vec();
    g.index(DType::I64, shape, axis(k).into())
}
