//! Quantised tensors: integers minus a zero point, times a scale.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, build::shape_text},
    import::{
        model::weights,
        node::{OnnxNode, axes::normal_axis},
        ops::{
            conv::{Window, convolve, kernel_of, with_bias},
            convert::{ElementType, converted, widened},
            matmul::centred,
        },
    },
    scalar::{CompareOp, ReduceOp, Scalar},
};
use std::ops::RangeInclusive;
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    DequantizeLinear 10 dequantize_linear,
    DynamicQuantizeLinear 11 dynamic_quantize_linear,
    QLinearConv 10 qlinear_conv,
    QLinearMatMul 10 qlinear_matmul,
    QuantizeLinear 10 quantize_linear,
    "com.microsoft" DequantizeLinear 1 dequantize_linear,
    "com.microsoft" QuantizeLinear 1 quantize_linear,
}

/// The axis that scales and zero points belong to, as the node names it, and the number of elements in each block along
/// it; 0 without blocks.
struct QuantAxis {
    axis: i64,
    block: i64,
}

fn quant_axis(n: &OnnxNode) -> Result<QuantAxis> {
    // A scalar scale has no axis, so the attribute may be out of range.
    let axis = n.int_or("axis", 1)?;
    let block = n.int_or("block_size", 0)?;
    if block < 0 {
        return Err(Error::invalid(format!("a block_size of {block}")));
    }
    Ok(QuantAxis { axis, block })
}

/// A scale or zero point in a shape that broadcasts with `x`. `name` is in errors.
fn broadcast_scale(
    g: &mut Graph,
    (name, s): (&str, Value),
    x: Value,
    quant_axis: &QuantAxis,
) -> Result<Value> {
    match g.rank(s) {
        0 => return Ok(s),
        1 if g.is_one(&g.shape(s)[0]) => return g.squeeze(s, &[0]),
        _ => {}
    }
    let rank = g.rank(x);
    let k = normal_axis(quant_axis.axis, rank)?;
    if quant_axis.block == 0 {
        let wanted = [g.shape(x)[k].clone()];
        require_shape(g, (name, s), &wanted, "")?;
        return g.unsqueeze(s, &(1..rank - k).collect::<Vec<_>>());
    }

    let mut wanted = g.shape(x).to_vec();
    wanted[k] = wanted[k].ceil_div(quant_axis.block);
    require_shape(g, (name, s), &wanted, &format!(" for blocks of {} along axis {k}", quant_axis.block))?;
    let mut shape = g.shape(s).to_vec();
    let unsqueezed = g.unsqueeze(s, &[k + 1])?;
    shape.insert(k + 1, quant_axis.block.into());
    let repeated = g.broadcast_to(unsqueezed, &shape)?;
    let blocks = shape.remove(k + 1) * &shape[k];
    shape[k] = g.facts.simplify(&blocks);
    let whole = g.reshape(repeated, shape)?;
    let size = g.shape(x)[k].clone();
    g.slice(whole, k, Dim::zero(), size, 1)
}

/// Requires that scales or zero points have this shape. `why` ends the error.
pub(crate) fn require_shape(
    g: &mut Graph,
    (name, s): (&str, Value),
    wanted: &[Dim],
    why: &str,
) -> Result<()> {
    let shape = g.shape(s).to_vec();
    let differs = |(a, b): (&Dim, &Dim)| a.as_i64().zip(b.as_i64()).is_some_and(|(a, b)| a != b);
    if shape.len() != wanted.len() || shape.iter().zip(wanted).any(differs) {
        return Err(Error::invalid(format!(
            "the {name} have the shape {}; {} is needed{why}",
            shape_text(&shape),
            shape_text(wanted)
        )));
    }
    for (dim, wanted) in shape.iter().zip(wanted) {
        g.require(Relation::eq(dim.clone(), wanted), &format!("the shape of the {name}"))?;
    }
    Ok(())
}

/// Refuses scales of integers.
pub(crate) fn require_float_scales(g: &Graph, scales: Value) -> Result<()> {
    let dtype = g.dtype(scales);
    if dtype.is_float() {
        return Ok(());
    }
    Err(Error::invalid(format!("scales of type {dtype}; they must be floats")))
}

/// Refuses zero points that are not as many as the scales.
fn require_as_many(g: &Graph, zero: Value, scale: Value) -> Result<()> {
    let elems = |x: Value| g.shape(x).iter().try_fold(1_i64, |elems, dim| elems.checked_mul(dim.as_i64()?));
    match elems(zero).zip(elems(scale)) {
        Some((zeros, scales)) if zeros != scales => {
            Err(Error::invalid(format!("there are {zeros} zero points and {scales} scales")))
        }
        _ => Ok(()),
    }
}

/// `(x - x_zero_point) * x_scale`. Scale and zero point (inputs 1 and 2) are scalars, or have one element per index
/// along `axis`. With `block_size`, they have one element per block along `axis`.
///
/// `DequantizeLinear(u8[0, 130], 2, u8:128) = [-256, 4]`
/// `DequantizeLinear(i8[[1, 2], [3, 4]], [1, 10]; axis=0) = [[1, 2], [30, 40]]`
fn dequantize_linear(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    let quant_axis = quant_axis(n)?;

    let to = match n.int_or("output_dtype", 0)? {
        0 if n.storage_type(1).is_some() => DType::F32,
        0 => g.dtype(scale),
        code => weights::dtype(i32::try_from(code).unwrap_or(-1))?,
    };
    if !to.is_float() {
        return Err(Error::invalid(format!("scales, or a result, of type {to}; they must be floats")));
    }

    // Differences of integers are exact. Floats have a zero point of 0.
    let exact = |g: &mut Graph, x: Value| if g.dtype(x).is_float() { Ok(x) } else { g.cast(DType::I32, x) };
    let wide = widened(g, n, 0)?;

    let mut centred = exact(g, wide)?;
    if let Some(zero) = n.optional(2) {
        if g.dtype(zero) != g.dtype(x) {
            let [own, of_elements] = [ElementType::of_input(g, n, 2)?, ElementType::of_input(g, n, 0)?];
            return Err(Error::invalid(format!(
                "zero points of type {own}; the elements are of type {of_elements}"
            )));
        }
        require_as_many(g, zero, scale)?;
        let zero = widened(g, n, 2)?;
        let zero = exact(g, zero)?;
        let zero = broadcast_scale(g, ("zero points", zero), x, &quant_axis)?;
        centred = g.sub(centred, zero)?;
    }

    let scale = widened(g, n, 1)?;
    let scale = broadcast_scale(g, ("scales", scale), x, &quant_axis)?;
    let wide = g.cast(DType::F32, centred)?;
    let scale = g.cast(DType::F32, scale)?;
    let y = g.mul(wide, scale)?;
    g.cast(to, y)
}

/// `round(x) + zero`, clamped to the range of `dtype`.
pub(crate) fn saturated(g: &mut Graph, x: Value, zero: Option<Value>, dtype: DType) -> Result<Value> {
    let bits = 8 * dtype.size_bytes() as u32;
    if !dtype.is_int() || bits > 16 {
        return Err(Error::unsupported(format!("quantisation to {dtype}")));
    }
    let range = if dtype.is_signed_int() {
        -(1_i64 << (bits - 1))..=(1_i64 << (bits - 1)) - 1
    } else {
        0..=(1_i64 << bits) - 1
    };
    saturated_to(g, x, zero, range, dtype)
}

/// `round(x) + zero`, clamped to `range`, as `dtype`.
fn saturated_to(
    g: &mut Graph,
    x: Value,
    zero: Option<Value>,
    range: RangeInclusive<i64>,
    dtype: DType,
) -> Result<Value> {
    let mut y = g.round(x)?;
    if let Some(zero) = zero {
        let zero = g.cast(g.dtype(y), zero)?;
        y = g.add(y, zero)?;
    }
    let lo = g.number(g.dtype(y), *range.start() as f64)?;
    let hi = g.number(g.dtype(y), *range.end() as f64)?;
    let y = g.max(y, lo)?;
    let y = g.min(y, hi)?;
    g.cast(dtype, y)
}

/// `round(x / y_scale) + y_zero_point`, saturated. Ties round to even. The element type is that of the zero point, else
/// `output_dtype`, else `u8`. Floats of 8 and 4 bits are rounded as by `Cast`. Shapes of scale and zero point are as in
/// `DequantizeLinear`.
///
/// `QuantizeLinear([0, 3, 1000], 2, u8:128) = u8[128, 130, 255]`
fn quantize_linear(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let scale = n.input(1)?;
    let zero = n.optional(2);
    let quant_axis = quant_axis(n)?;
    n.flag("saturate", true)?;
    n.int_or("precision", 0)?;

    let to = match (n.int_or("output_dtype", 0)?, zero) {
        (0, None) => ElementType::Plain(DType::U8),
        (0, Some(_)) => ElementType::of_input(g, n, 2)?,
        (code, _) => ElementType::from_attribute(code)?,
    };

    let zero_type = n.storage_type(2);
    if let Some(zero) = zero {
        require_as_many(g, zero, scale)?;
    }
    let scale = broadcast_scale(g, ("scales", scale), x, &quant_axis)?;
    let zero = zero.map(|zero| broadcast_scale(g, ("zero points", zero), x, &quant_axis)).transpose()?;
    let x = g.cast(DType::F32, x)?;
    let scale = g.cast(DType::F32, scale)?;
    let y = g.div(x, scale)?;

    match to {
        ElementType::Plain(dtype) => saturated(g, y, zero, dtype),
        ElementType::Widened(storage_type) => match storage_type.range() {
            Some(range) => {
                n.set_output_type(storage_type);
                saturated_to(g, y, zero, range, storage_type.byte_dtype())
            }
            None => {
                let y = match (zero, zero_type) {
                    (Some(zero), Some(own)) => {
                        let zero = own.widened(g, zero)?;
                        g.add(y, zero)?
                    }
                    _ => y,
                };
                converted(g, n, y, to)
            }
        },
    }
}

/// The input as `u8`, with the scale and zero point that cover its range and 0. The outputs are `y`, `y_scale` and
/// `y_zero_point`.
///
/// `DynamicQuantizeLinear([0, 127.5, 255]) = u8[0, 128, 255], 1, u8:0`
fn dynamic_quantize_linear(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let [y, scale, zero] = dynamically_quantised(g, n.input(0)?)?;
    Ok(vec![y, scale, zero])
}

/// `x` as `u8`, its scale and its zero point.
pub(crate) fn dynamically_quantised(g: &mut Graph, x: Value) -> Result<[Value; 3]> {
    let axes: Vec<usize> = (0..g.rank(x)).collect();
    let zero = g.scalar(Scalar::f32(0.0))?;

    let lo = g.reduce(ReduceOp::Min, x, &axes, false)?;
    let hi = g.reduce(ReduceOp::Max, x, &axes, false)?;
    let lo = g.min(lo, zero)?;
    let hi = g.max(hi, zero)?;
    let span = g.sub(hi, lo)?;

    let steps = g.scalar(Scalar::f32(255.0))?;
    let scale = g.div(span, steps)?;

    // If all elements are zero, any scale is right.
    let empty = g.compare(CompareOp::Eq, span, zero)?;
    let one = g.scalar(Scalar::f32(1.0))?;
    let scale = g.select(empty, one, scale)?;

    let below = g.neg(lo)?;
    let start = g.div(below, scale)?;
    let zero_point = saturated(g, start, None, DType::U8)?;
    let quotient = g.div(x, scale)?;
    let y = saturated(g, quotient, Some(zero_point), DType::U8)?;

    Ok([y, scale, zero_point])
}

/// The exact matrix product of integers after subtraction of their zero points, times both scales.
pub(crate) fn requantised_product(
    g: &mut Graph,
    [a, b]: [Value; 2],
    zeros: [Option<Value>; 2],
    scales: [Value; 2],
) -> Result<Value> {
    let rows = g.rank(a).saturating_sub(2);
    let columns = g.rank(b).saturating_sub(1);
    let a = centred(g, a, zeros[0], rows)?;
    let b = centred(g, b, zeros[1], columns)?;
    let sum = g.matmul(a, b)?;
    let sum = g.cast(DType::F32, sum)?;
    let factor = [scale_at(g, scales[0], 1)?, scale_at(g, scales[1], 0)?];
    let factor = g.mul(factor[0], factor[1])?;
    g.mul(sum, factor)
}

/// A scale of one axis, followed by `trailing` axes of size 1. A scale of one element becomes a scalar.
pub(crate) fn scale_at(g: &mut Graph, scale: Value, trailing: usize) -> Result<Value> {
    let scale = g.cast(DType::F32, scale)?;
    match g.rank(scale) {
        1 if g.is_one(&g.shape(scale)[0]) => g.squeeze(scale, &[0]),
        1 => g.unsqueeze(scale, &(1..trailing + 1).collect::<Vec<_>>()),
        _ => Ok(scale),
    }
}

/// The exact integer `acc` times `a * b / y`, quantised.
fn requantised(g: &mut Graph, acc: Value, scales: [Value; 3], zero: Value) -> Result<Value> {
    let [a, b, y] = scales;
    let product = g.mul(a, b)?;
    let acc = g.cast(DType::F32, acc)?;
    let factor = g.div(product, y)?;
    let scaled = g.mul(acc, factor)?;
    let dtype = g.dtype(zero);
    let zero = match g.rank(zero) {
        1 => g.squeeze(zero, &[0])?,
        _ => zero,
    };
    saturated(g, scaled, Some(zero), dtype)
}

/// The matrix product of quantised matrices, accumulated exactly in 32 bits. The inputs are `a, a_scale, a_zero_point,
/// b, b_scale, b_zero_point, y_scale, y_zero_point`.
///
/// `QLinearMatMul(u8[[3, 1]], 0.5, u8:1, u8[[2], [1]], 2, u8:0, 1, u8:10) = u8[[14]]`
fn qlinear_matmul(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let a = n.input(0)?;
    let b = n.input(3)?;
    let rows = g.rank(a).saturating_sub(2);
    let columns = g.rank(b).saturating_sub(1);
    let a = centred(g, a, Some(n.input(2)?), rows)?;
    let b = centred(g, b, Some(n.input(5)?), columns)?;
    let acc = g.matmul(a, b)?;
    let scales = [scale_at(g, n.input(1)?, 1)?, scale_at(g, n.input(4)?, 0)?, scale_at(g, n.input(6)?, 0)?];
    requantised(g, acc, scales, n.input(7)?)
}

/// Convolution of quantised tensors, accumulated exactly in 32 bits. The inputs are `x, x_scale, x_zero_point, w,
/// w_scale, w_zero_point, y_scale, y_zero_point, B`. `w_scale` and `w_zero_point` are scalars or have one element per
/// kernel.
///
/// Limits: as `Conv`.
///
/// `QLinearConv(u8[[[3, 1]]], 0.5, u8:1, u8[[[2]]], 2, u8:0, 1, u8:10) = u8[[[14, 10]]]`
fn qlinear_conv(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    quantised_convolution(g, n, n.input(0)?, n.input(3)?)
}

/// The convolution of `x` with `w`, and the other inputs of `QLinearConv`.
pub(crate) fn quantised_convolution(g: &mut Graph, n: &OnnxNode, x: Value, w: Value) -> Result<Value> {
    let window = Window::read(g, n, x, kernel_of(g, n, w)?)?;

    let x = centred(g, x, Some(n.input(2)?), 0)?;
    let w = centred(g, w, Some(n.input(5)?), 0)?;
    let x = window.pad(g, x, Scalar::from_i64(DType::I32, 0))?;
    let acc = convolve(g, x, w, &window, n.int_or("group", 1)?)?;
    let acc = with_bias(g, acc, n.optional(8))?;

    let spatial = window.kernel.len();
    let scales =
        [scale_at(g, n.input(1)?, 0)?, scale_at(g, n.input(4)?, spatial)?, scale_at(g, n.input(6)?, 0)?];

    requantised(g, acc, scales, n.input(7)?)
}
