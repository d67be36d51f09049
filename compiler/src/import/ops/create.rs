//! Operators that create tensors from shapes and scalars.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        constant,
        model::weights,
        node::{
            OnnxNode,
            axes::{larger, normal_axis},
        },
        ops::shared::dynamic,
    },
    scalar::{CompareOp, Scalar},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    BlackmanWindow 17 blackman_window,
    Constant 1 constant,
    ConstantOfShape 9 constant_of_shape,
    EyeLike 9 eye_like,
    HammingWindow 17 hamming_window,
    HannWindow 17 hann_window,
    OneHot 9 one_hot,
    Range 11 range,
    Trilu 14 trilu,
    "com.microsoft" Range 1 range,
    "com.microsoft" Trilu 1 trilu,
}

/// The tensor in one of the attributes `value`, `value_float`, `value_floats`, `value_int` or `value_ints`.
///
/// Limits: no strings and no sparse tensors.
///
/// `Constant(; value_ints=[1, 2]) = i64[1, 2]`
/// `Constant(; value_float=1.5) = 1.5`
fn constant(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let strings = ["value_string", "value_strings", "sparse_value"];
    if let Some(name) = strings.iter().find(|name| n.has(name)) {
        return Err(Error::unsupported(format!("{name} of Constant")));
    }

    let tensor = if let Some(tensor) = n.tensor("value")? {
        Some(tensor)
    } else if let Some(value) = n.float("value_float")? {
        Tensor::from_f32(Vec::new(), &[value])
    } else if let Some(values) = n.floats("value_floats")? {
        Tensor::from_f32(vec![values.len()], &values)
    } else if let Some(value) = n.int("value_int")? {
        Tensor::from_i64(Vec::new(), &[value])
    } else if let Some(values) = n.ints("value_ints")? {
        Tensor::from_i64(vec![values.len()], &values)
    } else {
        None
    };

    g.constant(tensor.ok_or_else(|| Error::invalid("Constant needs a value"))?)
}

/// A tensor of the shape in the input. All elements are the element of the attribute `value`, by default `[0.0]`.
///
/// `ConstantOfShape(i64[2]) = [0, 0]`
fn constant_of_shape(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let shape = if n.is_known(g, 0) { n.dims(g, 0)? } else { dynamic::shape(g, n, 0)? };
    let value = match n.tensor("value")? {
        None => Scalar::f32(0.0),
        Some(value) if value.elems() == 1 => value.get(0),
        Some(_) => return Err(Error::invalid("the attribute `value` must have one element")),
    };
    if let Some(dim) = shape.iter().find(|dim| g.facts.prove_lt(dim, &Dim::zero()).is_yes()) {
        return Err(Error::invalid(format!("the dim {dim} of the shape must not be negative")));
    }
    let value = g.scalar(value)?;
    g.broadcast_to(value, &shape)
}

/// A matrix of the shape of the input with ones on the diagonal `k` and zeros elsewhere. Its element type is `dtype`,
/// by default the type of the input.
///
/// `EyeLike([[0, 0], [0, 0]]; k=1) = [[0, 1], [0, 0]]`
fn eye_like(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let dtype = match n.int("dtype")? {
        Some(code) => weights::dtype(i32::try_from(code).unwrap_or(-1))?,
        None => g.dtype(x),
    };

    let k = n.int_or("k", 0)?;
    let shape = g.shape(x).to_vec();
    if shape.len() != 2 {
        return Err(Error::invalid("the input of EyeLike must have 2 axes"));
    }

    let distance = g.index(DType::I64, shape, Dim::from(axis(1)) - Dim::from(axis(0)))?;
    let k = g.scalar(Scalar::i64(k))?;
    let on = g.compare(CompareOp::Eq, distance, k)?;
    g.cast(dtype, on)
}

/// `Σ c[j] cos(2πij/L)` for `i` from 0 to the size in the input (exclusive). `L` is the size, or with `periodic=0` the
/// size minus 1.
fn window(g: &mut Graph, n: &OnnxNode, coefficients: &[f64]) -> Result<Value> {
    let size = if n.is_known(g, 0) { n.dim(g, 0)? } else { n.size(g, n.input(0)?, 0, None)? };
    let dtype = weights::dtype(i32::try_from(n.int_or("output_datatype", 1)?).unwrap_or(-1))?;

    let length = if n.flag("periodic", true)? { size.clone() } else { Dim::max(&(&size - 1), 1) };
    let position = g.index(DType::I64, vec![size], axis(0).into())?;
    let position = g.cast(DType::F64, position)?;
    let length = g.dim(DType::F64, length)?;
    let turn = g.div(position, length)?;

    let mut sum = g.number(DType::F64, coefficients[0])?;
    for (j, coefficient) in coefficients.iter().enumerate().skip(1) {
        let speed = g.number(DType::F64, std::f64::consts::TAU * j as f64)?;
        let angle = g.mul(turn, speed)?;
        let cos = g.cos(angle)?;
        let coefficient = g.number(DType::F64, *coefficient)?;
        let term = g.mul(cos, coefficient)?;
        sum = g.add(sum, term)?;
    }

    g.cast(dtype, sum)
}

/// The Blackman window of the size in the input. It is periodic, or with `periodic=0` symmetric.
///
/// `BlackmanWindow(i64:4) = [0, 0.34, 1, 0.34]`
fn blackman_window(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    window(g, n, &[0.42, -0.5, 0.08])
}

/// The Hamming window of the size in the input. It is periodic, or with `periodic=0` symmetric.
///
/// `HammingWindow(i64:2) = [0.0869565, 1]`
fn hamming_window(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    window(g, n, &[25.0 / 46.0, -21.0 / 46.0])
}

/// The Hann window of the size in the input. It is periodic, or with `periodic=0` symmetric.
///
/// `HannWindow(i64:4) = [0, 0.5, 1, 0.5]`
fn hann_window(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    window(g, n, &[0.5, -0.5])
}

/// A new axis at `axis` of size `depth` (input 1) for each index in input 0. The element at the index is `values[1]`,
/// the others are `values[0]` (input 2). Negative indices count from the end. Indices out of range give `values[0]`
/// everywhere.
///
/// `OneHot(i64[1, -1], i64:3, [0, 5]) = [[0, 5, 0], [0, 0, 5]]`
fn one_hot(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let at = n.input(0)?;
    let values = n.input(2)?;
    let depth_value = n.input(1)?;
    let place = normal_axis(n.int_or("axis", -1)?, g.rank(at) + 1)?;

    let is_constant = constant::value_of(g, depth_value)?.is_some();
    let depth = if !is_constant && !n.is_known(g, 1) {
        let depth = g.cast(DType::I64, depth_value)?;
        n.size(g, depth, place, None)?
    } else if g.dtype(depth_value).is_float() {
        let depth = n.constant(g, depth_value, "depth")?;
        Dim::from(if depth.elems() == 1 { depth.get(0).as_i64() } else { -1 })
    } else {
        n.dim(g, 1)?
    };

    // Float indices are compared as floats, so that fractions match no position.
    let at = if g.dtype(at).is_float() { g.cast(DType::F64, at)? } else { g.cast(DType::I64, at)? };
    let kind = g.dtype(at);
    let size = g.dim(kind, depth.clone())?;

    let zero = g.scalar(Scalar::from_i64(kind, 0))?;
    let negative = g.compare(CompareOp::Lt, at, zero)?;

    let shifted = g.add(at, size)?;
    let at = g.select(negative, shifted, at)?;
    let at = g.unsqueeze(at, &[place])?;
    let mut shape = g.shape(at).to_vec();
    shape[place] = depth;

    let position = g.index(DType::I64, shape, axis(place).into())?;
    let position = g.cast(kind, position)?;
    let hit = g.compare(CompareOp::Eq, position, at)?;

    let pick = |g: &mut Graph, k: i64| -> Result<Value> {
        let one = g.slice(values, 0, k.into(), Dim::one(), 1)?;
        g.squeeze(one, &[0])
    };

    if g.rank(values) != 1 || g.shape(values)[0].as_i64() != Some(2) {
        return Err(Error::invalid("the values of OneHot must have 2 elements"));
    }

    let off = pick(g, 0)?;
    let on = pick(g, 1)?;
    g.select(hit, on, off)
}

/// The values from `start` (input 0) to `limit` (input 1, exclusive) in steps of `delta` (input 2), by default 1.
///
/// `Range(i64:1, i64:6, i64:2) = i64[1, 3, 5]`
/// `Range(0, 1, 0.5) = [0, 0.5]`
fn range(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let start = n.input(0)?;
    let dtype = g.dtype(start);
    let delta = match n.optional(2) {
        Some(delta) => delta,
        None => g.number(dtype, 1.0)?,
    };
    let inputs = [start, n.input(1)?, delta];

    let whole: Option<Vec<Dim>> =
        inputs.iter().map(|input| whole_number(g, *input)).collect::<Result<Option<_>>>()?;
    if let Some([start, limit, step]) = whole.as_deref() {
        let step = step.as_i64().filter(|step| *step != 0 && *step != i64::MIN);
        let step = step.ok_or_else(|| Error::unsupported("a step of Range that is 0 or not a constant"))?;
        let span = if step > 0 { limit - start } else { start - limit };
        let span = larger(g, &g.facts.simplify(&span), &Dim::zero());
        let count = g.facts.simplify(&span.ceil_div(step.abs()));
        let wide = if dtype.is_float() { DType::I64 } else { dtype };
        let values = g.index(wide, vec![count], start + Dim::from(axis(0)) * step)?;
        return g.cast(dtype, values);
    }

    let known = |input: &Value| constant::value_of(g, *input).is_ok_and(|value| value.is_some());
    if !inputs.iter().all(known) {
        return dynamic::range(g, n, inputs);
    }

    let [start, limit, step] = inputs.map(|input| {
        let bound = n.constant(g, input, "a bound")?;
        (bound.elems() == 1)
            .then(|| bound.get(0).as_f64())
            .ok_or_else(|| Error::invalid("the inputs of Range must have 1 element"))
    });

    let start = start?;
    let limit = limit?;
    let step = step?;
    let count = ((limit - start) / step).ceil().max(0.0);
    if count.is_nan() || count >= 1e15 {
        return Err(Error::invalid(format!("Range({start}, {limit}, {step}) is not finite")));
    }

    let position = g.index(DType::I64, vec![(count as i64).into()], axis(0).into())?;
    let position = g.cast(dtype, position)?;
    let start = g.number(dtype, start)?;
    let step = g.number(dtype, step)?;
    let walked = g.mul(position, step)?;
    g.add(start, walked)
}

/// The element of `x` as an expression, if it is an integer or a float with an integral value.
fn whole_number(g: &mut Graph, x: Value) -> Result<Option<Dim>> {
    let one = |g: &Graph, x: Value| g.contents(x).and_then(|dims| <[Dim; 1]>::try_from(dims.to_vec()).ok());
    if !g.dtype(x).is_float() {
        return Ok(one(g, x).map(|[dim]| dim));
    }
    let floor = g.floor(x)?;
    let ceil = g.ceil(x)?;
    let floor = g.cast(DType::I64, floor)?;
    let ceil = g.cast(DType::I64, ceil)?;
    let (Some([floor]), Some([ceil])) = (one(g, floor), one(g, ceil)) else { return Ok(None) };
    Ok((floor == ceil).then_some(floor))
}

/// The elements of the last two axes on and above diagonal `k` (input 1), 0 elsewhere. With `upper=0`, the elements on
/// and below the diagonal.
///
/// `Trilu([[1, 2], [3, 4]]) = [[1, 2], [0, 4]]`
/// `Trilu([[1, 2], [3, 4]], i64:-1; upper=0) = [[0, 0], [3, 0]]`
fn trilu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let rank = g.rank(x);
    if rank < 2 {
        return Err(Error::invalid("the input of Trilu must have at least 2 axes"));
    }

    let k = match n.optional(1) {
        Some(k) => g.reshape(k, Vec::new())?,
        None => g.scalar(Scalar::i64(0))?,
    };

    let matrix = g.shape(x)[rank - 2..].to_vec();
    let distance = g.index(DType::I64, matrix, Dim::from(axis(1)) - Dim::from(axis(0)))?;
    let op = if n.flag("upper", true)? { CompareOp::Ge } else { CompareOp::Le };
    let kept = g.compare(op, distance, k)?;
    let zero = g.scalar(Scalar::from_i64(g.dtype(x), 0))?;
    g.select(kept, x, zero)
}
