//! Recognises values that represent quantised numbers, through views, padding and concatenations.

use crate::{
    error::Result,
    graph::{
        Graph, Op, Value,
        eval::{Binding, values},
    },
    opt::{bodies::number, views::compose},
    scalar::{BinaryOp, Body, Reg, Scalar, Step},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

/// The longest chain of definitions that is followed.
const MAX_STEPS: usize = 64;

/// The quantised numbers `(stored - zero) * scale`.
pub(super) struct Real {
    /// One-byte integers.
    pub(super) stored: Value,
    pub(super) zero: Zero,
    /// A scalar. `None` means 1.
    pub(super) scale: Option<Value>,
}

/// The concatenations that are followed: parts of a concatenation may share concatenations, on too many paths.
#[derive(Clone, Copy)]
enum Concats {
    One,
    None,
}

/// A zero point.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Zero {
    /// Known at compile time.
    Number(i64),
    /// An `i32` of rank 0.
    Found(Value),
}

impl Real {
    /// The quantised form of `value`, which has the type `dtype`. It has no scale if the elements are integers.
    pub(super) fn of(graph: &mut Graph, value: Value, dtype: DType) -> Result<Option<Real>> {
        match dtype {
            DType::I32 => integers(graph, value),
            _ => floats(graph, value, Concats::One),
        }
    }
}

/// Applies one view or padding of `x` to the parts of `inner`. Padding becomes the zero point.
fn moved(graph: &mut Graph, value: Value, inner: Real) -> Result<Option<Real>> {
    let stored = match graph.op(value).clone() {
        Op::View { shape, index } => graph.view(inner.stored, shape, index)?,
        Op::Pad { lo, hi, .. } => {
            let Some(padded) = padded(graph, inner.stored, (&lo, &hi), inner.zero)? else { return Ok(None) };
            padded
        }
        _ => return Ok(None),
    };
    Ok(Some(Real { stored, ..inner }))
}

/// Pads `stored` with its zero point, if the zero point fits the stored type. With a data-dependent zero point, the
/// differences (which take nine bits) are padded with zeros instead.
fn padded(graph: &mut Graph, stored: Value, (lo, hi): (&[Dim], &[Dim]), zero: Zero) -> Result<Option<Value>> {
    let dtype = graph.dtype(stored);
    match zero {
        Zero::Number(number) => {
            let blank = Scalar::from_i64(dtype, number);
            (blank.as_i64() == number).then(|| graph.pad(stored, lo, hi, blank)).transpose()
        }
        Zero::Found(number) if cast(graph, number).is_some_and(|(_, x)| graph.dtype(x) == dtype) => {
            let wide = graph.cast(DType::I32, stored)?;
            let differences = graph.sub(wide, number)?;
            let differences = graph.cast(DType::I16, differences)?;
            let padded = graph.pad(differences, lo, hi, Scalar::from_i64(DType::I16, 0))?;
            let wide = graph.cast(DType::I32, padded)?;
            let stored = graph.add(wide, number)?;
            graph.cast(dtype, stored).map(Some)
        }
        Zero::Found(_) => Ok(None),
    }
}

/// Whether `value` only moves the elements of its operand, and the padding it adds.
fn is_movement(graph: &Graph, value: Value) -> bool {
    match graph.op(value) {
        Op::View { .. } => true,
        Op::Pad { value: blank, .. } => blank.as_f64() == 0.0,
        _ => false,
    }
}

fn floats(graph: &mut Graph, value: Value, concats: Concats) -> Result<Option<Real>> {
    if is_movement(graph, value) {
        let operand = graph.operands(value)[0];
        return match floats(graph, operand, concats)? {
            Some(inner) => moved(graph, value, inner),
            None => Ok(None),
        };
    }
    if let Op::Concat { axis } = *graph.op(value) {
        return match concats {
            Concats::One => concatenated(graph, value, axis),
            Concats::None => Ok(None),
        };
    }
    let Some((x, scale)) = product(graph, value) else { return Ok(None) };
    let Some(scale) = uniform(graph, scale)? else { return Ok(None) };
    let Some((DType::F32, whole)) = cast(graph, x) else { return Ok(None) };
    Ok(integers(graph, whole)?.map(|real| Real { scale: Some(scale), ..real }))
}

/// A concatenation of numbers with the same type, zero point and scale.
fn concatenated(graph: &mut Graph, value: Value, axis: usize) -> Result<Option<Real>> {
    let parts = graph.operands(value).to_vec();
    let mut first: Option<Real> = None;
    let mut stored = Vec::with_capacity(parts.len());
    for part in parts {
        let Some(real) = floats(graph, part, Concats::None)? else { return Ok(None) };
        stored.push(real.stored);
        let Some(first) = &first else {
            first = Some(real);
            continue;
        };
        let scale = |real: &Real| real.scale.and_then(|scale| known(graph, scale));
        let is_alike = matches!(real.zero, Zero::Number(_))
            && real.zero == first.zero
            && graph.dtype(real.stored) == graph.dtype(first.stored)
            && scale(&real).is_some_and(|own| scale(first) == Some(own));
        if !is_alike {
            return Ok(None);
        }
    }
    let Some(first) = first else { return Ok(None) };
    let stored = graph.concat(&stored, axis)?;
    Ok(Some(Real { stored, ..first }))
}

fn integers(graph: &mut Graph, value: Value) -> Result<Option<Real>> {
    if matches!(graph.dtype(value), DType::U8 | DType::I8) {
        return Ok(Some(Real { stored: value, zero: Zero::Number(0), scale: None }));
    }
    if is_movement(graph, value) {
        let operand = graph.operands(value)[0];
        return match integers(graph, operand)? {
            Some(inner) => moved(graph, value, inner),
            None => Ok(None),
        };
    }

    if graph.dtype(value) != DType::I32 {
        return Ok(None);
    }
    if let Some((_, x)) = cast(graph, value) {
        let narrow = matches!(graph.dtype(x), DType::U8 | DType::I8);
        return Ok(narrow.then_some(Real { stored: x, zero: Zero::Number(0), scale: None }));
    }
    let Some((BinaryOp::Sub, x, zero)) = binary(graph, value) else { return Ok(None) };
    let Some(inner) = integers(graph, x)?.filter(|inner| inner.zero == Zero::Number(0)) else {
        return Ok(None);
    };
    Ok(zero_point(graph, zero)?.map(|zero| Real { zero, ..inner }))
}

/// A zero point that is the same for all elements.
fn zero_point(graph: &mut Graph, value: Value) -> Result<Option<Zero>> {
    if is_fixed(graph, value) {
        let known = evaluated(graph, value).map(|tensor| tensor.to_i64s());
        let Some([first, rest @ ..]) = known.as_deref() else {
            // Repeated along symbolic axes: the source decides.
            let Some(source) = uniform(graph, value)? else { return Ok(None) };
            let known = evaluated(graph, source);
            return Ok(known.map(|tensor| Zero::Number(tensor.get(0).as_i64())));
        };
        return Ok(rest.iter().all(|other| other == first).then_some(Zero::Number(*first)));
    }
    Ok(uniform(graph, value)?.map(Zero::Found))
}

/// A rank-0 value equal to all elements of `value`, if they are known to be equal.
pub(super) fn uniform(graph: &mut Graph, value: Value) -> Result<Option<Value>> {
    if let Some(number) = number(graph, value) {
        return graph.scalar(number).map(Some);
    }

    let mut source = value;
    for _ in 0..MAX_STEPS {
        if graph.shape(source).iter().all(|dim| dim.as_i64() == Some(1)) {
            let index = vec![Dim::zero(); graph.rank(source)];
            return match graph.rank(source) {
                0 => Ok(Some(source)),
                _ => graph.view(source, Vec::new(), index).map(Some),
            };
        }
        match graph.op(source) {
            Op::View { .. } => source = graph.operands(source)[0],
            _ => break,
        }
    }

    Ok(None)
}

/// The integers and the scale whose product is this constant of floats. Both have its shape.
pub(super) fn scaled_integer(graph: &mut Graph, value: Value) -> Result<Option<(Value, Option<Value>)>> {
    if let Op::View { shape, index } = graph.op(value).clone() {
        let operand = graph.operands(value)[0];
        let Some((integers, scale)) = scaled_integer(graph, operand)? else { return Ok(None) };
        let integers = graph.view(integers, shape.clone(), index.clone())?;
        let scale = scale.map(|scale| graph.view(scale, shape, index)).transpose()?;
        return Ok(Some((integers, scale)));
    }
    if let Some((DType::F32, whole)) = cast(graph, value).filter(|(_, x)| graph.dtype(*x).is_int()) {
        return Ok(Some((whole, None)));
    }

    let Some((x, scale)) = product(graph, value) else { return Ok(None) };
    let whole = cast(graph, x).filter(|(to, x)| *to == DType::F32 && graph.dtype(*x).is_int());
    Ok(whole.map(|(_, whole)| (whole, Some(scale))))
}

/// Whether elements of `value` may differ along its axis `k`.
pub(super) fn varies(graph: &Graph, value: Value, k: usize) -> bool {
    let mut index: Vec<Dim> = (0..graph.rank(value)).map(|k| Dim::from(crate::graph::axis(k))).collect();
    let mut source = value;
    while let Op::View { index: map, .. } = graph.op(source) {
        index = compose(map, &index);
        source = graph.operands(source)[0];
    }
    let one = |at: usize| graph.shape(source)[at].as_i64() == Some(1);
    number(graph, source).is_none()
        && index.iter().enumerate().any(|(at, expr)| !one(at) && expr.contains(&crate::graph::axis(k)))
}

/// Whether the value depends only on constants.
pub(super) fn is_fixed(graph: &Graph, value: Value) -> bool {
    let mut left = MAX_STEPS;
    fixed_within(graph, value, &mut left)
}

fn fixed_within(graph: &Graph, value: Value, left: &mut usize) -> bool {
    if matches!(graph.op(value), Op::Const(_)) {
        return true;
    }
    if *left == 0 || !matches!(graph.op(value), Op::Map(_) | Op::View { .. } | Op::Reduce { .. }) {
        return false;
    }
    *left -= 1;
    graph.operands(value).iter().all(|operand| fixed_within(graph, *operand, left))
}

/// The value of all elements, if they repeat one element that depends only on constants.
pub(super) fn known(graph: &Graph, value: Value) -> Option<Scalar> {
    let source = graph.through_views(value);
    let is_one = graph.shape(source).iter().all(|dim| dim.as_i64() == Some(1));
    let one = || evaluated(graph, source).map(|tensor| tensor.get(0));
    number(graph, source).or_else(|| is_one.then(one).flatten())
}

/// The contents of a fixed value of known shape.
pub(super) fn evaluated(graph: &Graph, value: Value) -> Option<Tensor> {
    let known = graph.shape(value).iter().all(|dim| dim.as_i64().is_some());
    if !known || !is_fixed(graph, value) {
        return None;
    }
    values(graph, &Binding::new(), &[], &[value]).ok()?.pop()
}

/// The only step of an elementwise definition.
pub(super) fn step(body: &Body) -> Option<Step> {
    match body.steps.as_slice() {
        [step] if body.result.0 as usize == body.params.len() => Some(step.clone()),
        _ => None,
    }
}

/// The binary operator that defines a value, and its operands.
pub(super) fn binary(graph: &Graph, value: Value) -> Option<(BinaryOp, Value, Value)> {
    let Op::Map(body) = graph.op(value) else { return None };
    let Step::Binary(op, x, y) = step(body)? else { return None };
    let of = |reg: Reg| graph.operands(value)[reg.0 as usize];
    Some((op, of(x), of(y)))
}

/// The target type and the operand of a conversion.
pub(super) fn cast(graph: &Graph, value: Value) -> Option<(DType, Value)> {
    let Op::Map(body) = graph.op(value) else { return None };
    let Step::Cast(to, _) = step(body)? else { return None };
    Some((to, graph.operands(value)[0]))
}

/// The operands of a product of floats, with a conversion from integers first.
fn product(graph: &Graph, value: Value) -> Option<(Value, Value)> {
    let (BinaryOp::Mul, x, y) = binary(graph, value)? else { return None };
    let is_cast = |value: Value| cast(graph, value).is_some_and(|(_, x)| graph.dtype(x).is_int());
    match (is_cast(x), is_cast(y)) {
        (true, _) => Some((x, y)),
        (false, true) => Some((y, x)),
        (false, false) => None,
    }
}
