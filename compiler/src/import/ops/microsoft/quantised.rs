//! Quantised operators of ONNX Runtime's domain.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::{OnnxNode, axes::normal_axis},
        ops::{
            activation::logistic,
            matmul::centred,
            microsoft::channels_last::{channels_first, channels_last},
            pool::{average, space},
            quant::{dynamically_quantised, requantised_product, saturated, scale_at},
        },
    },
    scalar::CompareOp,
};
use symshape_runtime::DType;

ops! {
    "com.microsoft" DynamicQuantizeMatMul 1 dynamic_quantize_matmul,
    "com.microsoft" MatMulIntegerToFloat 1 matmul_integer_to_float,
    "com.microsoft" QGemm 1 q_gemm,
    "com.microsoft" QLinearAdd 1 qlinear_add,
    "com.microsoft" QLinearAveragePool 1 qlinear_average_pool,
    "com.microsoft" QLinearConcat 1 qlinear_concat,
    "com.microsoft" QLinearGlobalAveragePool 1 qlinear_global_average_pool,
    "com.microsoft" QLinearLeakyRelu 1 qlinear_leaky_relu,
    "com.microsoft" QLinearMul 1 qlinear_mul,
    "com.microsoft" QLinearSigmoid 1 qlinear_sigmoid,
    "com.microsoft" QLinearSoftmax 1 qlinear_softmax,
    "com.microsoft" QLinearWhere 1 qlinear_where,
}

/// Input `k`, dequantised by the scale and zero point in the next two inputs.
fn dequantised(g: &mut Graph, n: &OnnxNode, k: usize) -> Result<Value> {
    let centred = centred(g, n.input(k)?, n.optional(k + 2), 0)?;
    let wide = g.cast(DType::F32, centred)?;
    let scale = scale_at(g, n.input(k + 1)?, 0)?;
    g.mul(wide, scale)
}

/// `y`, quantised to `dtype` by the scale and zero point in inputs `k` and `k + 1`.
fn quantised(g: &mut Graph, n: &OnnxNode, y: Value, k: usize, dtype: DType) -> Result<Value> {
    let scale = scale_at(g, n.input(k)?, 0)?;
    let y = g.div(y, scale)?;
    let zero = match n.optional(k + 1) {
        Some(zero) if g.rank(zero) == 1 => Some(g.squeeze(zero, &[0])?),
        zero => zero,
    };
    saturated(g, y, zero, dtype)
}

/// `f` of the dequantised input 0 (scale and zero point in inputs 1 and 2), quantised by inputs 3 and 4.
fn unary(g: &mut Graph, n: &OnnxNode, f: impl FnOnce(&mut Graph, Value) -> Result<Value>) -> Result<Value> {
    let dtype = g.dtype(n.input(0)?);
    let x = dequantised(g, n, 0)?;
    let y = f(g, x)?;
    quantised(g, n, y, 3, dtype)
}

/// `A + B` of quantised tensors, broadcast. The inputs are `A, A_scale, A_zero_point, B, B_scale, B_zero_point,
/// C_scale, C_zero_point`.
///
/// `QLinearAdd(u8[[3]], 0.5, u8:1, u8[[2]], 2, u8:0, 1, u8:10) = u8[[15]]`
fn qlinear_add(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let dtype = g.dtype(n.input(0)?);
    let a = dequantised(g, n, 0)?;
    let b = dequantised(g, n, 3)?;
    let y = g.add(a, b)?;
    quantised(g, n, y, 6, dtype)
}

/// `A * B` of quantised tensors, broadcast, with inputs as in `QLinearAdd`.
///
/// `QLinearMul(u8[[3]], 0.5, u8:1, u8[[2]], 2, u8:0, 1, u8:10) = u8[[14]]`
fn qlinear_mul(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let dtype = g.dtype(n.input(0)?);
    let a = dequantised(g, n, 0)?;
    let b = dequantised(g, n, 3)?;
    let y = g.mul(a, b)?;
    quantised(g, n, y, 6, dtype)
}

/// `1 / (1 + e^-X)` of a quantised tensor. The inputs are `X, X_scale, X_zero_point, Y_scale, Y_zero_point`.
///
/// `QLinearSigmoid(u8[[128]], 1, u8:128, 0.01, u8:0) = u8[[50]]`
fn qlinear_sigmoid(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, logistic)
}

/// `LeakyRelu` of a quantised tensor. The inputs are `X, X_scale, X_zero_point, Y_scale, Y_zero_point`.
///
/// `QLinearLeakyRelu(u8[[28, 130]], 1, u8:128, 1, u8:128; alpha=0.1) = u8[[118, 130]]`
fn qlinear_leaky_relu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let alpha = n.float_or("alpha", 0.01)?;
    unary(g, n, |g, x| {
        let alpha = g.number(DType::F32, alpha)?;
        let zero = g.number(DType::F32, 0.0)?;
        let below = g.mul(x, alpha)?;
        let negative = g.compare(CompareOp::Lt, x, zero)?;
        g.select(negative, below, x)
    })
}

/// `Softmax` along `axis` of a quantised tensor. The inputs are `X, X_scale, X_zero_point, Y_scale, Y_zero_point`.
///
/// Limits: with `opset` below 13, only along the last axis.
///
/// `QLinearSoftmax(u8[[7, 7]], 1, u8:0, 0.01, u8:0; opset=13) = u8[[50, 50]]`
fn qlinear_softmax(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let axis = normal_axis(n.int_or("axis", -1)?, g.rank(x))?;
    let late = n.int_or("opset", 13)? >= 13;
    if !late && axis + 1 != g.rank(x) {
        return Err(Error::unsupported("QLinearSoftmax over several axes"));
    }
    unary(g, n, |g, x| g.softmax(x, axis))
}

/// Mean over all spatial axes of a quantised tensor. The inputs are `X, X_scale, X_zero_point, Y_scale, Y_zero_point`.
///
/// With `channels_last=1`, the spatial axes are all between the first and the last.
///
/// `QLinearGlobalAveragePool(u8[[[1, 3]]], 1, u8:0, 1, u8:0) = u8[[[2]]]`
/// `QLinearGlobalAveragePool(u8[[[1], [3]]], 1, u8:0, 1, u8:0; channels_last=1) = u8[[[2]]]`
fn qlinear_global_average_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    pooled(g, n, |g, x| {
        let axes = space(g, x)?;
        g.mean(x, &axes, true)
    })
}

/// `f` of the dequantised image, as [`unary`]. With `channels_last=1`, `f` gets it with its channels on axis 1.
fn pooled(g: &mut Graph, n: &OnnxNode, f: impl FnOnce(&mut Graph, Value) -> Result<Value>) -> Result<Value> {
    if !n.flag("channels_last", false)? {
        return unary(g, n, f);
    }
    unary(g, n, |g, x| {
        let x = channels_first(g, x)?;
        let y = f(g, x)?;
        channels_last(g, y)
    })
}

/// `AveragePool` of a quantised tensor. The inputs are `X, X_scale, X_zero_point, Y_scale, Y_zero_point`.
///
/// With `channels_last=1`, the channels are the last axis.
///
/// `QLinearAveragePool(u8[[[1, 3, 5]]], 1, u8:0, 1, u8:0; kernel_shape=[2]) = u8[[[2, 4]]]`
fn qlinear_average_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    pooled(g, n, |g, x| average(g, n, x))
}

/// Elements of `X` where the condition (input 0) holds, elsewhere of `Y`. The other inputs are `X, X_scale,
/// X_zero_point, Y, Y_scale, Y_zero_point, Z_scale, Z_zero_point`.
///
/// `QLinearWhere(bool[[1, 0]], u8[[3, 3]], 0.5, u8:1, u8[[2, 2]], 2, u8:0, 1, u8:10) = u8[[11, 14]]`
fn qlinear_where(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let dtype = g.dtype(n.input(1)?);
    let x = dequantised(g, n, 1)?;
    let y = dequantised(g, n, 4)?;
    let chosen = g.select(n.input(0)?, x, y)?;
    quantised(g, n, chosen, 7, dtype)
}

/// Quantised tensors, concatenated along `axis`. Inputs 0 and 1 are scale and zero point of the result. Then each
/// tensor comes with its scale and zero point.
///
/// `QLinearConcat(1, u8:0, u8[[1]], 2, u8:0, u8[[3]], 1, u8:1; axis=1) = u8[[2, 2]]`
fn qlinear_concat(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let count = (n.input_count().max(2) - 2) / 3;
    let rest = n.input_count().max(2) - 2;
    if count == 0 || !rest.is_multiple_of(3) {
        return Err(Error::invalid(format!("QLinearConcat of {} inputs", n.input_count())));
    }
    let dtype = g.dtype(n.input(2)?);
    let axis = n.axis(g, n.input(2)?, None)?;
    let parts: Vec<Value> = (0..count).map(|k| dequantised(g, n, 2 + 3 * k)).collect::<Result<_>>()?;
    let y = g.concat(&parts, axis)?;
    quantised(g, n, y, 0, dtype)
}

/// `Gemm` of quantised matrices, accumulated exactly in 32 bits. The inputs are `A, A_scale, A_zero_point, B, B_scale,
/// B_zero_point, C, Y_scale, Y_zero_point`. `C` is in units of `A_scale * B_scale`. Without `Y_scale` the result is
/// `f32`.
///
/// `QGemm(u8[[3, 1]], 0.5, u8:1, u8[[2], [1]], 2, u8:0, _, 1, u8:10) = u8[[14]]`
fn q_gemm(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let operand = |g: &mut Graph, k: usize, name: &str| -> Result<Value> {
        let x = n.input(k)?;
        if n.flag(name, false)? { g.transpose(x, &[1, 0]) } else { Ok(x) }
    };

    let a = operand(g, 0, "transA")?;
    let b = operand(g, 3, "transB")?;
    if g.rank(a) != 2 || g.rank(b) != 2 {
        return Err(Error::invalid("the operands of QGemm must have 2 axes"));
    }

    let dtype = g.dtype(a);
    let a = centred(g, a, n.optional(2), 0)?;
    let b = centred(g, b, n.optional(5), 1)?;

    let mut sum = g.matmul(a, b)?;
    if let Some(c) = n.optional(6) {
        sum = g.add(sum, c)?;
    }

    let sum = g.cast(DType::F32, sum)?;
    let scales = [scale_at(g, n.input(1)?, 0)?, scale_at(g, n.input(4)?, 0)?];
    let factor = g.mul(scales[0], scales[1])?;
    let alpha = g.number(DType::F32, n.float_or("alpha", 1.0)?)?;
    let factor = g.mul(factor, alpha)?;
    let y = g.mul(sum, factor)?;

    match n.optional(7) {
        Some(_) => quantised(g, n, y, 7, dtype),
        None => Ok(y),
    }
}

/// `A·B + bias`. `A` is quantised by its range. `B` holds integers with scale and zero point (inputs 2 and 3), scalars
/// or one per column. The bias (input 4) is optional.
///
/// `DynamicQuantizeMatMul([[0, 255]], u8[[7], [3]], [0.5], u8[1]) = [[255]]`
fn dynamic_quantize_matmul(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let [a, scale, zero] = dynamically_quantised(g, n.input(0)?)?;
    let zeros = [Some(zero), n.optional(3)];
    let y = requantised_product(g, [a, n.input(1)?], zeros, [scale, n.input(2)?])?;
    match n.optional(4) {
        Some(bias) => g.add(y, bias),
        None => Ok(y),
    }
}

/// `MatMulInteger` times both scales, plus an optional bias. The inputs are `A, B, A_scale, B_scale, A_zero_point,
/// B_zero_point, bias`.
///
/// `MatMulIntegerToFloat(u8[[3, 1]], u8[[2], [1]], 0.5, 2, u8:1) = [[4]]`
fn matmul_integer_to_float(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let zeros = [n.optional(4), n.optional(5)];
    let scales = [n.input(2)?, n.input(3)?];
    let y = requantised_product(g, [n.input(0)?, n.input(1)?], zeros, scales)?;
    match n.optional(6) {
        Some(bias) => g.add(y, bias),
        None => Ok(y),
    }
}
