//! Small expressions that several families of operators use.

use crate::{
    error::Result,
    graph::{Graph, Value, axis},
    scalar::Scalar,
};
use symshape_runtime::DType;

/// `x * scale + offset`.
pub(crate) fn linear(g: &mut Graph, x: Value, scale: f64, offset: f64) -> Result<Value> {
    let dtype = g.dtype(x);
    let scale = g.number(dtype, scale)?;
    let offset = g.number(dtype, offset)?;
    let x = g.mul(x, scale)?;
    g.add(x, offset)
}

/// An `i64` of rank 0.
pub(crate) fn int(g: &mut Graph, value: i64) -> Result<Value> {
    g.scalar(Scalar::i64(value))
}

/// The index along axis `k` of each element of `x`.
pub(crate) fn positions(g: &mut Graph, x: Value, k: usize) -> Result<Value> {
    let shape = g.shape(x).to_vec();
    g.index(DType::I64, shape, axis(k).into())
}
