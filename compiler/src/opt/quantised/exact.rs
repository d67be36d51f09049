//! Moves the scale of quantised constant operands after the sum.
//!
//! Such weights are stored as one-byte integers and multiplied with floats, as `x · (q s)`, where the scale `s` varies
//! along axes of the result only. With `p`, the largest power of two that is not larger than `s`,
//!
//! ```text
//! Σ x · (q s) = (Σ x · (q p)) · (s / p)
//! ```
//!
//! and the constant `q p` is bf16, by which tile registers multiply floats without loss, see
//! [`Precision::Exact`](crate::scalar::Precision::Exact). Sums stay within a factor of two of their old values, so
//! none overflows unless it nearly did before. On reals both sides are equal. On floats `q s` is no longer rounded,
//! and the sum is rounded once more.

use super::{columns::ConstantAxes, few_bits::products, real};
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value},
    scalar::{
        BinaryOp, Scalar,
        precision::{MIN_SPLIT_EXTENT, is_bf16},
    },
    tensor::Tensor,
};
use symshape_runtime::DType;

/// Integers and their scale, both of the shape of the operand.
struct Scaled {
    integers: Value,
    scale: Value,
}

pub(super) fn contraction(new: &mut Graph, node: &Node) -> Result<Option<Value>> {
    let Op::Contraction { lhs, rhs, out, dtype: DType::F32, precision } = &node.op else { return Ok(None) };
    let labels = [lhs, rhs];
    for side in [0, 1] {
        let fixed = node.operands[side];
        if real::is_fixed(new, node.operands[1 - side]) || !real::is_fixed(new, fixed) {
            continue;
        }

        let axes = ConstantAxes::new(labels[side], out);
        let extent = |k: usize| new.shape(fixed)[k].as_i64().unwrap_or(0);
        let columns = axes.kept().filter(|k| !labels[1 - side].contains(&labels[side][*k]));
        let n_columns: i64 = columns.map(extent).product();
        let depth: i64 = axes.reduced.iter().map(|k| extent(*k)).product();
        if n_columns < MIN_SPLIT_EXTENT || depth < MIN_SPLIT_EXTENT {
            continue;
        }

        let Some((weights, rest)) = parts(new, fixed, &axes)? else { continue };
        let mut operands = node.operands.clone();
        operands[side] = new.constant(weights)?;
        let op = Op::Contraction {
            lhs: lhs.clone(),
            rhs: rhs.clone(),
            out: out.clone(),
            dtype: DType::F32,
            precision: *precision,
        };

        let sum = new.push(op, &operands)?;
        let rest = new.constant(rest)?;
        let scale = axes.spread(new, rest, sum)?;
        return new.mul(sum, scale).map(Some);
    }
    Ok(None)
}

/// A fixed operand as bf16, and the rest of the scale without the reduced axes, along which it is constant.
fn parts(new: &mut Graph, fixed: Value, axes: &ConstantAxes<'_>) -> Result<Option<(Tensor, Tensor)>> {
    for Scaled { integers, scale } in scaled(new, fixed)? {
        if axes.reduced.iter().any(|k| real::varies(new, scale, *k)) {
            continue;
        }

        let rest = axes.drop_reduced(new, scale)?;
        let Some(rest) = real::evaluated(new, rest) else { continue };
        // A difference of bytes has eight bits, as a bf16 has.
        let weights = match products(new, integers, scale, &power_of_two) {
            Some(weights) => Some(Tensor::from_few_bits(weights)),
            None => {
                let [Some(integers), Some(scale)] =
                    [integers, scale].map(|value| real::evaluated(new, value))
                else {
                    continue;
                };
                map(&integers, |idx, x| {
                    let x = x * power_of_two(element(&scale, idx))?;
                    is_bf16(x).then_some(x)
                })
            }
        };

        let rest = map(&rest, |_, scale| Some(scale / power_of_two(scale)?));
        if let (Some(weights), Some(rest)) = (weights, rest) {
            return Ok(Some((weights, rest)));
        }
    }
    Ok(None)
}

fn element(tensor: &Tensor, idx: usize) -> f32 {
    tensor.get(idx).as_f64() as f32
}

/// Maps all elements of a tensor. `None` if the function returns `None` for one of them.
fn map(tensor: &Tensor, of: impl Fn(usize, f32) -> Option<f32>) -> Option<Tensor> {
    let elems = (0..tensor.elems()).map(|idx| of(idx, element(tensor, idx)).map(Scalar::f32));
    Tensor::from_scalars(DType::F32, tensor.shape().to_vec(), &elems.collect::<Option<Vec<_>>>()?)
}

/// The largest power of two in `scale`. `None` unless `scale` is a normal float.
fn power_of_two(scale: f32) -> Option<f32> {
    scale.is_normal().then(|| f32::from_bits(scale.to_bits() & 0x7f80_0000))
}

/// The interpretations of a multiplication as integers and their scale.
fn scaled(new: &mut Graph, value: Value) -> Result<Vec<Scaled>> {
    match new.op(value).clone() {
        Op::View { shape, index } => {
            let inner = scaled(new, new.operands(value)[0])?;
            let mut seen = |value: Value| new.view(value, shape.clone(), index.clone());
            let outer =
                |Scaled { integers, scale }| Ok(Scaled { integers: seen(integers)?, scale: seen(scale)? });
            inner.into_iter().map(outer).collect()
        }
        _ => Ok(match real::binary(new, value) {
            Some((BinaryOp::Mul, x, y)) => {
                vec![Scaled { integers: x, scale: y }, Scaled { integers: y, scale: x }]
            }
            _ => Vec::new(),
        }),
    }
}
