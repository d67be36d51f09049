//! Folds per-channel affine maps that follow a contraction into its weights. Batch normalisation leaves such maps.
//!
//! For vectors `s`, `t`, `u` along one axis of the result and constant weights `w`:
//!
//! ```text
//! contraction(x, w) * s       = contraction(x, w * s)
//! (contraction(x, w) + t) * s = contraction(x, w * s) + t * s
//! (y + t) + u              = y + (t + u)
//! (y * t) * u              = y * (t * u)
//! ```
//!
//! Weights that are bf16 stay bf16, so that [`Precision::Exact`](crate::scalar::Precision::Exact) can multiply them.
//! The vector that multiplies them stays after the sum. So do weights of few bits.
//!
//! The laws hold for real numbers. On floats they round differently, by no more than the contraction itself rounds, and
//! an overflow may occur sooner or later. So they are applied to floats only where each side has one use.

use super::rebuild_by_uses::rebuild_by_uses;
use crate::{
    error::Result,
    graph::{Graph, Node, Op, Value, axis},
    scalar::{BinaryOp, Body, Reg, Scalar, Step, eval, precision},
    tensor::Tensor,
};
use cranelift_entity::SecondaryMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn affine(graph: &mut Graph) -> Result<()> {
    rebuild_by_uses(graph, rewritten)
}

/// An operation `x op vector`, where the vector varies along axis `axis` of `x`.
pub(super) struct ByChannel {
    pub(super) op: BinaryOp,
    pub(super) x: Value,
    pub(super) axis: usize,
    pub(super) vector: Vec<Scalar>,
}

fn rewritten(new: &mut Graph, node: &Node, used: &SecondaryMap<Value, u32>) -> Result<Option<Value>> {
    let Some(outer) = by_channel(new, &node.op, &node.operands) else { return Ok(None) };
    if used[outer.x] != 1 {
        return Ok(None);
    }

    let inner =
        by_channel(new, new.op(outer.x), new.operands(outer.x)).filter(|inner| inner.axis == outer.axis);

    match (outer.op, inner) {
        (BinaryOp::Mul, None) => scaled(new, outer.x, outer.axis, &outer.vector, used),
        (BinaryOp::Mul, Some(inner)) if inner.op == BinaryOp::Mul => {
            scaled(new, outer.x, outer.axis, &outer.vector, used)
        }
        (BinaryOp::Mul, Some(inner)) if inner.op == BinaryOp::Add && used[inner.x] == 1 => {
            let Some(x) = scaled(new, inner.x, outer.axis, &outer.vector, used)? else { return Ok(None) };
            let vector = combined(BinaryOp::Mul, &inner.vector, &outer.vector);
            with_vector(new, BinaryOp::Add, x, outer.axis, &vector).map(Some)
        }
        (BinaryOp::Add, Some(inner)) if inner.op == BinaryOp::Add => {
            let vector = combined(BinaryOp::Add, &inner.vector, &outer.vector);
            with_vector(new, BinaryOp::Add, inner.x, outer.axis, &vector).map(Some)
        }
        _ => Ok(None),
    }
}

/// Matches an `Op::Map` that is a product or sum with a vector. A difference is a sum with the negated vector.
pub(super) fn by_channel(graph: &Graph, op: &Op, operands: &[Value]) -> Option<ByChannel> {
    let (Op::Map(body), &[a, b]) = (op, operands) else { return None };
    let &[Step::Binary(op, left, right)] = body.steps.as_slice() else { return None };
    if !body.params[0].is_float() || left == right || body.result != Reg(2) {
        return None;
    }

    let of = |reg: Reg| if reg.0 == 0 { a } else { b };
    let left = of(left);

    let right = of(right);
    match (op, channel(graph, right), channel(graph, left)) {
        (BinaryOp::Mul | BinaryOp::Add, Some((axis, vector)), _) => {
            Some(ByChannel { op, x: left, axis, vector })
        }
        (BinaryOp::Mul | BinaryOp::Add, None, Some((axis, vector))) => {
            Some(ByChannel { op, x: right, axis, vector })
        }
        (BinaryOp::Sub, Some((axis, vector)), _) => {
            let vector =
                vector.into_iter().map(|value| eval::unary(crate::scalar::UnaryOp::Neg, value)).collect();
            Some(ByChannel { op: BinaryOp::Add, x: left, axis, vector })
        }
        _ => None,
    }
}

/// The only axis along which a view of a constant varies, and the elements along it.
fn channel(graph: &Graph, value: Value) -> Option<(usize, Vec<Scalar>)> {
    let Op::View { shape, index } = graph.op(value) else { return None };
    let tensor = graph.as_constant(graph.operands(value)[0])?;
    let varying: Vec<usize> = (0..index.len()).filter(|k| index[*k].as_i64().is_none()).collect();
    let &[from] = varying.as_slice() else { return None };
    let axis = (0..shape.len()).find(|k| index[from] == Dim::from(axis(*k)))?;
    let size = usize::try_from(shape[axis].as_i64()?).ok()?;

    let flat = |i: usize| {
        index.iter().zip(tensor.shape()).enumerate().try_fold(0, |flat, (k, (expr, size))| {
            let idx = if k == from { i } else { usize::try_from(expr.as_i64()?).ok()? };
            (idx < *size).then_some(flat * size + idx)
        })
    };

    let vector = (0..size).map(|i| flat(i).map(|flat| tensor.get(flat))).collect::<Option<_>>()?;
    Some((axis, vector))
}

pub(super) fn combined(op: BinaryOp, a: &[Scalar], b: &[Scalar]) -> Vec<Scalar> {
    a.iter().zip(b).map(|(a, b)| eval::binary(op, *a, *b)).collect()
}

/// Emits `x op vector`, with the vector repeated along all other axes.
pub(super) fn with_vector(
    new: &mut Graph,
    op: BinaryOp,
    x: Value,
    axis_: usize,
    vector: &[Scalar],
) -> Result<Value> {
    let dtype = new.dtype(x);
    let tensor = Tensor::from_scalars(dtype, vec![vector.len()], vector).expect("one element for each");
    let constant = new.constant(tensor)?;
    let spread = new.view(constant, new.shape(x).to_vec(), vec![axis(axis_).into()])?;
    let body = Body { params: vec![dtype; 2], steps: vec![Step::Binary(op, Reg(0), Reg(1))], result: Reg(2) };
    new.push(Op::Map(body), &[x, spread])
}

/// The contraction `x` with the vector multiplied into its constant operand, if that has no other use. Otherwise the
/// vector is multiplied into the vector that already scales the contraction.
fn scaled(
    new: &mut Graph,
    x: Value,
    axis: usize,
    vector: &[Scalar],
    used: &SecondaryMap<Value, u32>,
) -> Result<Option<Value>> {
    if let Some(inner) = by_channel(new, new.op(x), new.operands(x)) {
        let fits = inner.op == BinaryOp::Mul && inner.axis == axis && used[inner.x] == 1;
        let is_sum = matches!(new.op(inner.x), Op::Contraction { .. });
        return if fits && is_sum {
            let vector = combined(BinaryOp::Mul, &inner.vector, vector);
            with_vector(new, BinaryOp::Mul, inner.x, axis, &vector).map(Some)
        } else {
            Ok(None)
        };
    }

    let Op::Contraction { lhs, rhs, out, dtype, precision } = new.op(x).clone() else { return Ok(None) };
    let mut operands = new.operands(x).to_vec();
    let side = [&lhs, &rhs].into_iter().enumerate().find_map(|(side, labels)| {
        let k = labels.iter().position(|label| *label == out[axis])?;
        let weights = operands[side];
        let tensor = fixed(new, weights).filter(|_| new.dtype(weights) == dtype && used[weights] == 1)?;
        (tensor.few_bits().is_none() && !is_bf16(tensor)).then_some((side, k))
    });

    let Some((side, k)) = side else { return Ok(None) };
    operands[side] = with_vector(new, BinaryOp::Mul, operands[side], k, vector)?;
    new.push(Op::Contraction { lhs, rhs, out, dtype, precision }, &operands).map(Some)
}

/// The constant that a value shows through views.
fn fixed(graph: &Graph, value: Value) -> Option<&Tensor> {
    match graph.op(value) {
        Op::Const(_) => graph.as_constant(value),
        Op::View { .. } => fixed(graph, graph.operands(value)[0]),
        _ => None,
    }
}

/// Whether a constant of floats holds bf16 values only, and is large enough to be multiplied as bf16.
pub(super) fn is_bf16(tensor: &Tensor) -> bool {
    tensor.dtype() == DType::F32
        && tensor.elems() >= (precision::MIN_SPLIT_EXTENT * precision::MIN_SPLIT_EXTENT) as usize
        && tensor.all_f32s(precision::is_bf16)
}
