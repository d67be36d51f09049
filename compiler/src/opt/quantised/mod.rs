//! Turns contractions of quantised values into contractions of their one-byte integers.
//!
//! A quantised value is `(q - z) * s`: an integer less its zero point, times a scale. The left operand must have one
//! zero point and one scale, and the right one must be a constant whose scale varies along axes of the result only.
//! Then
//!
//! ```text
//! Σ (q - z) s · w t   = (Σ q w  -  z Σ w) · s t
//! (Σ q w · f + b) / c = Σ q w · (f / c) + b / c
//! ```
//!
//! Here `Σ` sums over k, and `w` is the right operand's integers less their zero points. `Σ q w` is exact, and `z Σ w`
//! is a constant of each column. On reals both sides are equal; on floats the right one rounds less often. A rewrite
//! is not applied if it could overflow 32 bits where the original could not.
//!
//! Two varying operands of integers are multiplied as floats, if that is exact ([`small_sums`]).
//!
//! The other rewrites are exact on floats too. Quantising a value that was dequantised with the same scale gives the
//! integer back. A maximum of dequantised values is the dequantised maximum. A saturating conversion needs no clamp
//! before it.

mod columns;
mod exact;
pub(super) mod few_bits;
mod integers;
mod real;
mod requantise;
mod small_sums;
mod tables;

use super::rebuild_by_uses::rebuild_by_uses;
use crate::{
    error::{Error, Result},
    graph::{Graph, Node, Op, Value},
    scalar::{Precision, ReduceOp},
    tensor::Tensor,
};
use columns::ConstantAxes;
use integers::Integers;
use real::{Real, Zero};
use symshape_runtime::DType;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn quantised(graph: &mut Graph) -> Result<()> {
    rebuild_by_uses(graph, |new, node, used| match &node.op {
        Op::Contraction { .. } => contraction(new, node),
        Op::Map(body) => requantise::map(new, body, &node.operands, used),
        Op::Reduce { op: ReduceOp::Max, axes } => requantise::maximum(new, node.operands[0], axes),
        _ => Ok(None),
    })
}

/// The constant operand of a contraction.
struct Weights {
    /// The integers, as stored.
    stored: Tensor,
    /// The scale of each integer, of the same shape. `None` means 1.
    scale: Option<Value>,
}

/// The largest magnitude of a 32-bit sum.
const MAX_SUM: i64 = i32::MAX as i64;

/// The largest magnitudes of a stored integer, and of one less its zero point.
const MAX_MAGNITUDE: i64 = 255;

fn contraction(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let Op::Contraction { lhs, rhs, out, dtype, precision } = &node.op else { return Ok(None) };
    let dtype = *dtype;
    let labels = [lhs, rhs];
    if dtype != DType::F32 && dtype != DType::I32 || *precision == Precision::Int8 {
        return Ok(None);
    }

    for side in [0, 1] {
        let data = node.operands[side];
        let fixed = node.operands[1 - side];
        if real::is_fixed(new, data) || !real::is_fixed(new, fixed) {
            continue;
        }
        let Some(real) = Real::of(new, data, dtype)? else { continue };
        let axes = ConstantAxes::new(labels[1 - side], out);
        let Some(weights) = weights(new, fixed, dtype, &axes.reduced)? else { continue };

        let stored = new.constant(weights.stored.clone())?;
        let operands = if side == 0 { [real.stored, stored] } else { [stored, real.stored] };
        let op = Op::Contraction {
            lhs: lhs.clone(),
            rhs: rhs.clone(),
            out: out.clone(),
            dtype: DType::I32,
            precision: *precision,
        };
        let sum = new.push(op, &operands)?;

        let operands = QuantisedOperands { real, weights, axes };
        let sum = operands.less_zero_point(new, sum)?;
        return if dtype == DType::I32 { Ok(Some(sum)) } else { operands.scaled(new, sum).map(Some) };
    }
    match dtype {
        DType::I32 => small_sums::contraction(new, node),
        _ => exact::contraction(new, node),
    }
}

/// The constant operand as one-byte integers, if its scale is constant along the axes `reduced` and no sum can
/// overflow 32 bits.
fn weights(new: &mut Graph, fixed: Value, dtype: DType, reduced: &[usize]) -> Result<Option<Weights>> {
    let parts = match dtype {
        DType::I32 => Some((fixed, None)),
        _ => real::scaled_integer(new, fixed)?,
    };
    let Some((integers, scale)) = parts else { return Ok(None) };
    if scale.is_some_and(|scale| reduced.iter().any(|k| real::varies(new, scale, *k))) {
        return Ok(None);
    }

    let Some(Integers { stored, largest }) = Integers::of(new, integers)? else { return Ok(None) };

    let depth: i64 = reduced.iter().map(|k| stored.shape()[*k] as i64).product();
    // Integer sums wrap around in any order of evaluation; float sums do not.
    let fits = depth.checked_mul(MAX_MAGNITUDE).and_then(|bound| bound.checked_mul(largest));
    if dtype != DType::I32 && fits.is_none_or(|bound| bound > MAX_SUM) {
        return Ok(None);
    }
    Ok(Some(Weights { stored, scale }))
}

/// Both operands of a contraction, and the values that turn the sum of stored integers into the result.
struct QuantisedOperands<'n> {
    real: Real,
    weights: Weights,
    axes: ConstantAxes<'n>,
}

impl QuantisedOperands<'_> {
    /// Emits `sum - z Σ w`.
    fn less_zero_point(&self, new: &mut Graph, sum: Value) -> Result<Value> {
        if matches!(self.real.zero, Zero::Number(0)) {
            return Ok(sum);
        }
        let sums = integers::sums(&self.weights.stored, &self.axes.reduced);
        let sums = sums.ok_or_else(|| Error::internal("there is a sum for each column"))?;
        let columns = new.constant(sums)?;

        // A data-dependent zero point is multiplied at run time, a constant one here.
        let columns = match self.real.zero {
            Zero::Number(zero) => {
                let zero = new.number(DType::I32, zero as f64)?;
                let columns = new.mul(columns, zero)?;
                self.axes.spread(new, columns, sum)?
            }
            Zero::Found(zero) => {
                let columns = self.axes.spread(new, columns, sum)?;
                new.mul(columns, zero)?
            }
        };
        new.sub(sum, columns)
    }

    /// Emits `sum * s t` as floats.
    fn scaled(&self, new: &mut Graph, sum: Value) -> Result<Value> {
        let wide = new.cast(DType::F32, sum)?;
        let columns = self.weights.scale.map(|scale| self.axes.drop_reduced(new, scale)).transpose()?;
        let factor = match (self.real.scale, columns) {
            (None, None) => return Ok(wide),
            (Some(scale), None) => scale,
            (None, Some(columns)) => self.axes.spread(new, columns, sum)?,
            (Some(scale), Some(columns)) if real::is_fixed(new, scale) => {
                let both = new.mul(columns, scale)?;
                self.axes.spread(new, both, sum)?
            }
            (Some(scale), Some(columns)) => {
                let columns = self.axes.spread(new, columns, sum)?;
                new.mul(columns, scale)?
            }
        };

        new.mul(wide, factor)
    }
}
