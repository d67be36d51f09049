//! The accumulator of a reduction.

use crate::scalar::{
    BinaryOp, Precision, ReduceOp, Scalar,
    eval::{binary, cast, combine, neutral},
};
use symshape_runtime::DType;

/// A reduction over the values pushed so far. Floats are kept in double precision until the end.
#[derive(Clone, Copy)]
pub(super) struct Accumulator {
    op: ReduceOp,
    dtype: DType,
    value: Scalar,
}

impl Accumulator {
    /// An accumulator without values, whose result has this type.
    pub(super) fn new(op: ReduceOp, dtype: DType) -> Self {
        let wide = if dtype.is_float() { DType::F64 } else { dtype };
        Accumulator { op, dtype, value: neutral(op, wide) }
    }

    /// Combines `x`, which is converted first.
    pub(super) fn push(&mut self, x: Scalar) {
        self.value = combine(self.op, self.value, cast(self.value.dtype(), x));
    }

    /// Combines the product of two values; each is converted before they are multiplied.
    pub(super) fn push_product(&mut self, x: Scalar, y: Scalar, precision: Precision) {
        let wide = self.value.dtype();
        if precision != Precision::F32 && self.dtype == DType::F32 {
            let product = precision.product(x.as_f64() as f32, y.as_f64() as f32);
            return self.push(Scalar::from_f64(wide, product));
        }
        self.push(binary(BinaryOp::Mul, cast(wide, x), cast(wide, y)));
    }

    pub(super) fn finish(self) -> Scalar {
        cast(self.dtype, self.value)
    }
}
