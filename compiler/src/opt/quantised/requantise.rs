//! Simplifies the nodes between contractions of integers: division by a scale, requantisation and pooling.

use super::{
    real::{self, Real, Zero, binary, cast, is_fixed, known},
    tables,
};
use crate::{
    error::Result,
    graph::{Graph, Op, Value, axis},
    opt::bodies::number,
    scalar::{BinaryOp, Body, ReduceOp, Reg, Scalar, Step, UnaryOp},
};
use cranelift_entity::SecondaryMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Scales whose quotients are normal numbers for all stored integers.
const USUAL: std::ops::Range<f64> = 1e-12..1e12;

/// Rewrites of elementwise nodes.
pub(super) fn map(
    new: &mut Graph,
    body: &Body,
    operands: &[Value],
    used: &SecondaryMap<Value, u32>,
) -> Result<Option<Value>> {
    let of = |reg: Reg| operands[reg.0 as usize];
    match real::step(body) {
        Some(Step::Binary(BinaryOp::Div, x, y)) if body.params[0] == DType::F32 => {
            match number(new, of(y)).map(|c| c.as_f64()) {
                Some(c) if USUAL.contains(&c) => divided(new, of(x), of(y), used),
                _ => Ok(None),
            }
        }
        Some(Step::Cast(to @ (DType::U8 | DType::I8), x)) if body.params[0] == DType::F32 => {
            narrowed(new, of(x), to)
        }
        _ => Ok(None),
    }
}

/// Rewrites `x / c` for a positive `c` to a product with other constants, where `x` is computed from a contraction's
/// sum.
fn divided(new: &mut Graph, x: Value, c: Value, used: &SecondaryMap<Value, u32>) -> Result<Option<Value>> {
    let Some((op, a, b)) = binary(new, x) else { return Ok(None) };
    if used[x] != 1 {
        return Ok(None);
    }

    let (a, b) = if is_fixed(new, a) { (b, a) } else { (a, b) };
    match op {
        BinaryOp::Mul if is_fixed(new, b) && is_sum(new, a) => {
            let b = quotient(new, b, c)?;
            new.mul(a, b).map(Some)
        }
        BinaryOp::Add if is_fixed(new, b) => match divided(new, a, c, used)? {
            Some(a) => {
                let b = quotient(new, b, c)?;
                new.add(a, b).map(Some)
            }
            None => Ok(None),
        },
        BinaryOp::Max if number(new, b).is_some_and(|b| b.as_f64() == 0.0) => {
            match divided(new, a, c, used)? {
                Some(a) => new.max(a, b).map(Some),
                None => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// The sum of an integer contraction as floats, possibly less a constant.
fn is_sum(graph: &Graph, value: Value) -> bool {
    let Some((DType::F32, sum)) = cast(graph, value) else { return false };
    let is_contraction = |value: Value| matches!(graph.op(value), Op::Contraction { dtype: DType::I32, .. });
    match binary(graph, sum) {
        Some((BinaryOp::Sub | BinaryOp::Add, x, _)) => is_contraction(x),
        _ => is_contraction(sum),
    }
}

/// Divides `x / c` before a view repeats the elements.
fn quotient(new: &mut Graph, x: Value, c: Value) -> Result<Value> {
    match new.op(x).clone() {
        Op::View { shape, index } => {
            let inner = quotient(new, new.operands(x)[0], c)?;
            new.view(inner, shape, index)
        }
        _ => {
            let c = match number(new, c) {
                Some(c) => new.scalar(c)?,
                None => c,
            };
            new.div(x, c)
        }
    }
}

/// Simplifies the conversion of a float to a one-byte integer. A clamp to the bounds of the conversion is dropped, and
/// a value that was dequantised with the same scale becomes the integer itself.
fn narrowed(new: &mut Graph, x: Value, to: DType) -> Result<Option<Value>> {
    let (lo, hi) = match to {
        DType::I8 => (-128.0, 127.0),
        _ => (0.0, 255.0),
    };
    let bound = |graph: &Graph, value: Value, wanted: BinaryOp, holds: &dyn Fn(f64) -> bool| {
        let (op, a, b) = binary(graph, value)?;
        let (a, b) = if number(graph, a).is_some() { (b, a) } else { (a, b) };
        (op == wanted && number(graph, b).is_some_and(|b| holds(b.as_f64()))).then_some(a)
    };

    let Some(inner) = bound(new, x, BinaryOp::Min, &|bound| bound >= hi) else { return Ok(None) };
    let Some(inner) = bound(new, inner, BinaryOp::Max, &|bound| bound <= lo) else { return Ok(None) };
    match requantised(new, inner, to)? {
        Some(stored) => Ok(Some(stored)),
        None => {
            let inner = without_bounds(new, inner, [lo, hi])?;
            let inner = without_zero(new, inner);
            if let Some(result) = tables::lookup(new, inner, to)? {
                return Ok(Some(result));
            }
            new.cast(to, inner).map(Some)
        }
    }
}

/// Returns `x` for `x + 0`. The sign of a zero is lost in the conversion to integers.
fn without_zero(graph: &Graph, value: Value) -> Value {
    let is_zero = |value: Value| known(graph, value).is_some_and(|number| number.as_f64() == 0.0);
    match binary(graph, value) {
        Some((BinaryOp::Add, x, y)) if is_zero(y) => x,
        Some((BinaryOp::Add, x, y)) if is_zero(x) => y,
        _ => value,
    }
}

/// Drops bounds of the rounded number that the bounds of the conversion imply: `round(max(y, 0)) + lo` is converted to
/// the same integer as `round(y) + lo`, because numbers below `lo` become `lo`.
fn without_bounds(new: &mut Graph, x: Value, [lo, hi]: [f64; 2]) -> Result<Value> {
    let Some(Rounded { number, zero, zero_point }) = Rounded::of(new, x) else { return Ok(x) };
    let (bounded, scale) = match binary(new, number) {
        Some((BinaryOp::Div, y, scale)) => match known(new, scale).map(Scalar::as_f64) {
            Some(number) if USUAL.contains(&number) => (y, Some((scale, number))),
            _ => return Ok(x),
        },
        _ => (number, None),
    };
    let by = scale.map_or(1.0, |(_, number)| number);
    let mut inner = bounded;
    while let Some((op @ (BinaryOp::Max | BinaryOp::Min), a, b)) = binary(new, inner) {
        let (a, b) = if known(new, a).is_some() { (b, a) } else { (a, b) };
        let Some(bound) = known(new, b).map(Scalar::as_f64) else { break };
        let is_implied = match op {
            BinaryOp::Max => bound <= 0.0 && zero_point == lo,
            _ => (bound as f32 / by as f32).round_ties_even() >= (hi - zero_point) as f32,
        };
        if !is_implied {
            break;
        }
        inner = a;
    }
    if inner == bounded {
        return Ok(x);
    }
    let quotient = match scale {
        Some((scale, _)) => new.div(inner, scale)?,
        None => inner,
    };
    let rounded = new.round(quotient)?;
    match zero {
        Some(zero) => new.add(rounded, zero),
        None => Ok(rounded),
    }
}

/// A value of the form `round(number) + zero`, with a zero point that is known. Without one, it is 0.
struct Rounded {
    number: Value,
    zero: Option<Value>,
    zero_point: f64,
}

impl Rounded {
    fn of(graph: &Graph, x: Value) -> Option<Rounded> {
        let (rounded, zero) = match binary(graph, x) {
            Some((BinaryOp::Add, a, b)) => match (known(graph, a), known(graph, b)) {
                (_, Some(zero)) => (a, Some((b, zero))),
                (Some(zero), None) => (b, Some((a, zero))),
                (None, None) => (x, None),
            },
            _ => (x, None),
        };
        let Op::Map(body) = graph.op(rounded) else { return None };
        let Some(Step::Unary(UnaryOp::Round, _)) = real::step(body) else { return None };
        let zero_point = zero.map_or(0.0, |(_, zero)| zero.as_f64());
        Some(Rounded { number: graph.operands(rounded)[0], zero: zero.map(|(value, _)| value), zero_point })
    }
}

/// The stored integers, where `x` is `round((stored - zero) * scale / scale) + zero`.
fn requantised(new: &mut Graph, x: Value, to: DType) -> Result<Option<Value>> {
    let Some(Rounded { number, zero_point, .. }) = Rounded::of(new, x) else { return Ok(None) };
    let Some((BinaryOp::Div, y, scale)) = binary(new, number) else { return Ok(None) };
    let (Some(scale), Some(real)) = (known(new, scale), Real::of(new, y, DType::F32)?) else {
        return Ok(None);
    };
    let own = real.scale.and_then(|own| known(new, own));

    // A product with a normal scale, divided by it again, is within one unit in the last place of the integer.
    let alike = USUAL.contains(&scale.as_f64())
        && own == Some(scale)
        && matches!(real.zero, Zero::Number(own) if own as f64 == zero_point)
        && new.dtype(real.stored) == to;
    Ok(alike.then_some(real.stored))
}

/// Takes the maximum of the stored integers instead of the dequantised numbers.
pub(super) fn maximum(new: &mut Graph, x: Value, axes: &[usize]) -> Result<Option<Value>> {
    // The maximum of an empty set is not a stored integer.
    let some = axes.iter().all(|k| new.facts.prove_le(&Dim::one(), &new.shape(x)[*k]).is_yes());
    if new.dtype(x) != DType::F32 || !some {
        return Ok(None);
    }

    let Some((stored, real)) = windows(new, x)? else { return Ok(None) };
    let positive = real.scale.and_then(|scale| known(new, scale)).is_some_and(|scale| scale.as_f64() > 0.0);
    let Zero::Number(zero) = real.zero else { return Ok(None) };
    if !positive {
        return Ok(None);
    }

    let maximum = new.reduce(ReduceOp::Max, stored, axes, false)?;
    let wide = new.cast(DType::I32, maximum)?;
    let zero = new.number(DType::I32, zero as f64)?;
    let centred = new.sub(wide, zero)?;
    let wide = new.cast(DType::F32, centred)?;

    match real.scale {
        Some(scale) => new.mul(wide, scale).map(Some),
        None => Ok(Some(wide)),
    }
}

/// The stored integers that a maximum reduces. They have no padding, or each window of the padded tensor shows at
/// least one element of the original; the padding is then the smallest integer.
fn windows(new: &mut Graph, x: Value) -> Result<Option<(Value, Real)>> {
    if let Some(real) = Real::of(new, x, DType::F32)? {
        return Ok(Some((real.stored, real)));
    }

    let Op::View { shape, index } = new.op(x).clone() else { return Ok(None) };
    let padded = new.operands(x)[0];
    let Op::Pad { value, lo, hi } = new.op(padded).clone() else { return Ok(None) };
    if value.as_f64() != f64::NEG_INFINITY {
        return Ok(None);
    }

    let inner = new.operands(padded)[0];
    let sizes = new.shape(inner).to_vec();
    let facts = new.index_facts(&shape);

    let shows = (0..index.len()).all(|k| {
        let padded = lo[k].as_i64() != Some(0) || hi[k].as_i64() != Some(0);
        !padded || shows_some(&facts, &index[k], &shape, &lo[k], &sizes[k])
    });

    let (true, Some(real)) = (shows, Real::of(new, inner, DType::F32)?) else { return Ok(None) };
    let min = if new.dtype(real.stored) == DType::I8 { -128 } else { 0 };
    let blank = Scalar::from_i64(new.dtype(real.stored), min);
    let stored = new.pad(real.stored, &lo, &hi, blank)?;
    let stored = new.view(stored, shape, index)?;
    Ok(Some((stored, real)))
}

/// Whether an index `a*$i + $k` is in `lo..lo + size` for some `$k`, for every `$i`.
fn shows_some(facts: &symshape::Facts, index: &Dim, shape: &[Dim], lo: &Dim, size: &Dim) -> bool {
    let mut taps = (0..shape.len()).filter(|k| {
        index.contains(&axis(*k))
            && facts.linear_in(index, &axis(*k)).is_some_and(|(by, _)| by.as_i64() == Some(1))
    });
    // The last axis with coefficient one is the axis within the window.
    let Some(tap) = taps.next_back() else { return false };
    let at = |value: Dim| index.substitute(&|symbol| (*symbol == axis(tap)).then(|| value.clone()));
    let first = at(Dim::zero());
    let last = at(&shape[tap] - 1);
    facts.prove_le(lo, &last).is_yes() && facts.prove_lt(&first, &(lo + size)).is_yes()
}
