//! Activation functions.

use crate::{
    error::{Error, Result},
    graph::{Graph, Op, Value},
    import::{node::OnnxNode, ops::shared::arithmetic::positions},
    scalar::{BinaryOp, CompareOp, ReduceOp, Reg, Scalar, Step, UnaryOp},
};
use symshape::Dim;

ops! {
    Celu 12 celu,
    Elu 1 elu,
    Gelu 20 gelu,
    "com.microsoft" Gelu 1 gelu_exact,
    "com.microsoft" FastGelu 1 fast_gelu,
    "com.microsoft" BiasGelu 1 bias_gelu,
    "com.microsoft" QuickGelu 1 quick_gelu,
    HardSigmoid 1 hard_sigmoid,
    HardSwish 14 hard_swish,
    Hardmax 1 hardmax_flattened,
    Hardmax 13 hardmax,
    LeakyRelu 1 leaky_relu,
    LogSoftmax 1 log_softmax_flattened,
    LogSoftmax 13 log_softmax,
    Mish 18 mish,
    PRelu 1 prelu,
    Relu 1 relu Elementwise,
    Selu 1 selu,
    Shrink 9 shrink,
    Sigmoid 1 sigmoid Elementwise,
    Softmax 1 softmax_flattened,
    Softmax 13 softmax,
    Softplus 1 softplus,
    Softsign 1 softsign,
    Swish 24 swish,
    Tanh 1 tanh,
    ThresholdedRelu 10 thresholded_relu,
}

/// `x * factor`.
fn scaled(g: &mut Graph, x: Value, factor: f64) -> Result<Value> {
    let factor = g.number(g.dtype(x), factor)?;
    g.mul(x, factor)
}

/// `x + summand`.
fn plus(g: &mut Graph, x: Value, summand: f64) -> Result<Value> {
    let summand = g.number(g.dtype(x), summand)?;
    g.add(x, summand)
}

/// `x` where it is NaN or not negative, `otherwise` elsewhere.
fn where_negative(g: &mut Graph, x: Value, otherwise: Value) -> Result<Value> {
    let zero = g.number(g.dtype(x), 0.0)?;
    let negative = g.compare(CompareOp::Lt, x, zero)?;
    g.select(negative, otherwise, x)
}

/// `1 / (1 + e^-x)`.
pub(crate) fn logistic(g: &mut Graph, x: Value) -> Result<Value> {
    let minus = g.neg(x)?;
    let power = g.exp(minus)?;
    let sum = plus(g, power, 1.0)?;
    g.recip(sum)
}

/// `max(0, X) + min(0, alpha * (e^(X/alpha) - 1))`.
///
/// `Celu([-1, 2]; alpha=2.0) = [-0.78693868, 2]`
fn celu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 1.0)?;
    let shrunk = scaled(g, x, 1.0 / alpha)?;
    let power = g.expm1(shrunk)?;
    let below = scaled(g, power, alpha)?;
    where_negative(g, x, below)
}

/// `X` where positive, `alpha * (e^X - 1)` elsewhere.
///
/// `Elu([-1, 2]; alpha=2.0) = [-1.2642411, 2]`
fn elu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 1.0)?;
    let power = g.expm1(x)?;
    let below = scaled(g, power, alpha)?;
    where_negative(g, x, below)
}

/// `X * Φ(X)`, where `Φ` is the distribution function of the standard normal distribution. With `approximate="tanh"`,
/// `Φ` is approximated by `tanh` of a polynomial.
///
/// `Gelu([-1, 0, 1]) = [-0.15865526, 0, 0.84134474]`
/// `Gelu([-1, 0, 1]; approximate="tanh") = [-0.158808, 0, 0.841192]`
fn gelu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    match n.string_or("approximate", "none")? {
        "none" => by_erf(g, x),
        "tanh" => by_tanh(g, x),
        other => Err(Error::invalid(format!("unknown approximate `{other}`"))),
    }
}

pub(crate) fn by_erf(g: &mut Graph, x: Value) -> Result<Value> {
    let inner = scaled(g, x, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = g.erf(inner)?;
    let double = plus(g, erf, 1.0)?;
    let weight = scaled(g, double, 0.5)?;
    g.mul(x, weight)
}

pub(crate) fn by_tanh(g: &mut Graph, x: Value) -> Result<Value> {
    let square = g.mul(x, x)?;
    let cubic = scaled(g, square, 0.044715)?;
    let slope = plus(g, cubic, 1.0)?;
    let bent = g.mul(x, slope)?;
    let inner = scaled(g, bent, (2.0 / std::f64::consts::PI).sqrt())?;
    let tanh = g.tanh(inner)?;
    let double = plus(g, tanh, 1.0)?;
    let weight = scaled(g, double, 0.5)?;
    g.mul(x, weight)
}

/// `X * Φ(X)`, where `Φ` is the distribution function of the standard normal distribution.
///
/// `Gelu([-1, 0, 1]) = [-0.15865526, 0, 0.84134474]`
fn gelu_exact(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    by_erf(g, n.input(0)?)
}

/// `Gelu` with `approximate="tanh"` of `X + bias`. The bias (input 1) is optional.
///
/// `FastGelu([0, -1], [0, 2]) = [0, 0.841192]`
fn fast_gelu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut x = n.input(0)?;
    if let Some(bias) = n.optional(1) {
        x = g.add(x, bias)?;
    }
    by_tanh(g, x)
}

/// `Gelu` of `A + B`.
///
/// `BiasGelu([0, -1], [0, 2]) = [0, 0.84134474]`
fn bias_gelu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = g.add(n.input(0)?, n.input(1)?)?;
    by_erf(g, x)
}

/// `X * sigmoid(alpha * X)`.
///
/// `QuickGelu([0, 1]) = [0, 0.8457958]`
fn quick_gelu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 1.702)?;
    let inner = scaled(g, x, alpha)?;
    let weight = logistic(g, inner)?;
    g.mul(x, weight)
}

/// `max(0, min(1, alpha * X + beta))`.
///
/// `HardSigmoid([-5, 0, 1]) = [0, 0.5, 0.7]`
fn hard_sigmoid(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let alpha = n.float_or("alpha", 0.2)?;
    let beta = n.float_or("beta", 0.5)?;
    let x = n.input(0)?;
    ramp(g, x, alpha, beta)
}

fn ramp(g: &mut Graph, x: Value, alpha: f64, beta: f64) -> Result<Value> {
    let scaled = scaled(g, x, alpha)?;
    let line = plus(g, scaled, beta)?;
    let zero = g.number(g.dtype(x), 0.0)?;
    let one = g.number(g.dtype(x), 1.0)?;
    let low = g.min(line, one)?;
    g.max(low, zero)
}

/// `X * max(0, min(1, X/6 + 1/2))`.
///
/// `HardSwish([-4, 1, 4]) = [0, 0.6666667, 4]`
fn hard_swish(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let weight = ramp(g, x, 1.0 / 6.0, 0.5)?;
    g.mul(x, weight)
}

/// 1 at the first maximum along `axis`, 0 elsewhere.
///
/// `Hardmax([[1, 3, 3]]) = [[0, 1, 0]]`
fn hardmax(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(-1))?;
    one_at_largest(g, x, axis)
}

/// As in opset 13, of the input flattened to 2 axes at `axis`.
///
/// `Hardmax([[[1, 3], [4, 2]]]; axis=1) = [[[0, 0], [1, 0]]]`
fn hardmax_flattened(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    flattened(g, n, one_at_largest)
}

fn one_at_largest(g: &mut Graph, x: Value, axis: usize) -> Result<Value> {
    // An axis without elements has no largest one. With one more element, which is never the first maximum, it has.
    let mut after = vec![Dim::zero(); g.rank(x)];
    after[axis] = Dim::from(i64::from(!g.facts.prove_le(&Dim::one(), &g.shape(x)[axis]).is_yes()));
    let lowest = Scalar::from_f64(g.dtype(x), f64::NEG_INFINITY);
    let padded = g.pad(x, &vec![Dim::zero(); g.rank(x)], &after, lowest)?;
    let best = g.argreduce(ReduceOp::Max, padded, axis, true, false)?;

    let position = positions(g, x, axis)?;
    let found = g.compare(CompareOp::Eq, position, best)?;
    g.cast(g.dtype(x), found)
}

/// `X` where positive, `alpha * X` elsewhere.
///
/// `LeakyRelu([-10, 2]; alpha=0.1) = [-1, 2]`
fn leaky_relu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 0.01)?;
    let below = scaled(g, x, alpha)?;
    where_negative(g, x, below)
}

/// `X - max - ln(Σ e^(X - max))` along `axis`.
///
/// `LogSoftmax([[0, 0]]) = [[-0.69314718, -0.69314718]]`
fn log_softmax(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(-1))?;
    log_of_softmax(g, x, axis)
}

/// As in opset 13, of the input flattened to 2 axes at `axis`.
///
/// `LogSoftmax([[[0], [0]]]; axis=1) = [[[-0.69314718], [-0.69314718]]]`
fn log_softmax_flattened(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    flattened(g, n, log_of_softmax)
}

fn log_of_softmax(g: &mut Graph, x: Value, axis: usize) -> Result<Value> {
    let largest = g.reduce(ReduceOp::Max, x, &[axis], true)?;
    let shifted = g.sub(x, largest)?;
    let powers = g.exp(shifted)?;
    let sum = g.reduce(ReduceOp::Sum, powers, &[axis], true)?;
    let log = g.log(sum)?;
    g.sub(shifted, log)
}

/// `f` along axis 1 of the input flattened to 2 axes at the attribute `axis`, by default 1.
fn flattened(g: &mut Graph, n: &OnnxNode, f: fn(&mut Graph, Value, usize) -> Result<Value>) -> Result<Value> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(1))?;
    let shape = g.shape(x).to_vec();
    if axis + 1 == shape.len() {
        return f(g, x, axis);
    }
    let matrix = g.flatten(x, axis)?;
    let result = f(g, matrix, 1)?;
    g.reshape(result, shape)
}

/// `X * tanh(softplus(X))`.
///
/// `Mish([0, 1]) = [0, 0.86509836]`
fn mish(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let weight = tanh_of_soft_plus(g, x)?;
    g.mul(x, weight)
}

/// `X` where positive, `slope * X` elsewhere. The slope (input 1) is broadcast to the shape of `X`.
///
/// `PRelu([[-1, -2], [3, -4]], [0.5, 0.25]) = [[-0.5, -0.5], [3, -1]]`
fn prelu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let mut slope = n.input(1)?;
    // Before opset 7 a slope with one axis belongs to the channels.
    if n.opset < 7 && g.rank(slope) == 1 && g.rank(x) > 2 {
        slope = g.unsqueeze(slope, &(1..g.rank(x) - 1).collect::<Vec<_>>())?;
    }
    let below = g.mul(x, slope)?;
    where_negative(g, x, below)
}

/// `max(X, 0)`.
///
/// `Relu([-1, 2]) = [0, 2]`
fn relu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    g.relu(n.input(0)?)
}

/// `gamma * X` where positive, `gamma * alpha * (e^X - 1)` elsewhere.
///
/// `Selu([-1, 1]) = [-1.1113307, 1.050701]`
fn selu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 1.673_263_2)?;
    let gamma = n.float_or("gamma", 1.050_701)?;
    let power = g.expm1(x)?;
    let below = scaled(g, power, alpha)?;
    let bent = where_negative(g, x, below)?;
    scaled(g, bent, gamma)
}

/// `X + bias` where `X < -lambd`, `X - bias` where `X > lambd`, 0 elsewhere.
///
/// `Shrink([-2, 0.2, 2]; lambd=1.5, bias=0.5) = [-1.5, 0, 1.5]`
fn shrink(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let dtype = g.dtype(x);

    let lambd = n.float_or("lambd", 0.5)?;
    let bias = n.float_or("bias", 0.0)?;
    let low = g.number(dtype, -lambd)?;
    let high = g.number(dtype, lambd)?;
    let below = g.compare(CompareOp::Lt, x, low)?;
    let above = g.compare(CompareOp::Gt, x, high)?;

    let bias = g.number(dtype, bias)?;
    let up = g.add(x, bias)?;
    let down = g.sub(x, bias)?;
    let zero = g.number(dtype, 0.0)?;
    let rest = g.select(above, down, zero)?;

    g.select(below, up, rest)
}

/// `1 / (1 + e^-X)`.
///
/// `Sigmoid([0, 1, -100]) = [0.5, 0.73105858, 0]`
fn sigmoid(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    logistic(g, n.input(0)?)
}

/// `e^(X - max) / Σ e^(X - max)` along `axis`.
///
/// `Softmax([[0, 0], [100, 0]]) = [[0.5, 0.5], [1, 0]]`
fn softmax(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(-1))?;
    g.softmax(x, axis)
}

/// As in opset 13, of the input flattened to 2 axes at `axis`.
///
/// `Softmax([[[0, 0], [0, 0]]]; axis=1) = [[[0.25, 0.25], [0.25, 0.25]]]`
fn softmax_flattened(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    flattened(g, n, Graph::softmax)
}

/// `ln(1 + e^X)`. It is computed as `max(X, 0) + ln1p(e^-|X|)`, which does not overflow for finite `X`.
///
/// `Softplus([0, 100, -100]) = [0.69314718, 100, 0]`
fn softplus(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    soft_plus(g, n.input(0)?)
}

pub(crate) fn soft_plus(g: &mut Graph, x: Value) -> Result<Value> {
    let power = minus_size_power(g, x)?;
    let tail = g.log1p(power)?;
    let head = g.relu(x)?;
    g.add(head, tail)
}

/// `e^-|x|`.
fn minus_size_power(g: &mut Graph, x: Value) -> Result<Value> {
    let size = g.abs(x)?;
    let minus = g.neg(size)?;
    g.exp(minus)
}

/// `X / (1 + |X|)`.
///
/// `Softsign([1, -3]) = [0.5, -0.75]`
fn softsign(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let size = g.abs(x)?;
    let below = plus(g, size, 1.0)?;
    g.div(x, below)
}

/// `X * sigmoid(alpha * X)`.
///
/// `Swish([0, 1]) = [0, 0.73105858]`
fn swish(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = n.float_or("alpha", 1.0)?;
    let inner = scaled(g, x, alpha)?;
    let weight = logistic(g, inner)?;
    g.mul(x, weight)
}

/// Hyperbolic tangent of the input.
///
/// `Tanh([0, 1]) = [0, 0.76159416]`
fn tanh(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    match soft_plus_operand(g, x) {
        Some(inner) => tanh_of_soft_plus(g, inner),
        None => g.tanh(x),
    }
}

/// `tanh(ln(1 + e^x))`, as a quotient that takes one power:
///
/// ```text
/// tanh(ln(1 + e^x)) = (e^2x + 2e^x) / (e^2x + 2e^x + 2)
///                   = (1 + 2e^-x) / (1 + 2e^-x + 2e^-2x)
/// ```
///
/// The second form does not overflow where `x` is positive.
fn tanh_of_soft_plus(g: &mut Graph, x: Value) -> Result<Value> {
    let power = minus_size_power(g, x)?;
    let two = g.number(g.dtype(x), 2.0)?;
    let zero = g.number(g.dtype(x), 0.0)?;
    let is_below = g.compare(CompareOp::Lt, x, zero)?;

    let twice = g.mul(power, two)?;
    let above = plus(g, twice, 1.0)?;
    let below = plus(g, power, 2.0)?;
    let below = g.mul(power, below)?;
    let dividend = g.select(is_below, below, above)?;

    let square = g.mul(twice, power)?;
    let rest = g.select(is_below, two, square)?;
    let divisor = g.add(dividend, rest)?;
    g.div(dividend, divisor)
}

/// The operand of [`soft_plus`] whose result `value` is.
fn soft_plus_operand(g: &Graph, value: Value) -> Option<Value> {
    let of_binary = |value: Value, op: BinaryOp| match g.op(value) {
        Op::Map(body) if body.steps == [Step::Binary(op, Reg(0), Reg(1))] => Some(g.operands(value)),
        _ => None,
    };
    let of_unary = |value: Value, op: UnaryOp| match g.op(value) {
        Op::Map(body) if body.steps == [Step::Unary(op, Reg(0))] => Some(g.operands(value)[0]),
        _ => None,
    };
    let [head, tail] = *of_binary(value, BinaryOp::Add)? else { return None };
    let [operand, mut bound] = *of_binary(head, BinaryOp::Max)? else { return None };
    let steps = [UnaryOp::Log1p, UnaryOp::Exp, UnaryOp::Neg, UnaryOp::Abs];
    let inner = steps.into_iter().try_fold(tail, of_unary)?;
    while let Op::View { .. } = g.op(bound) {
        bound = g.operands(bound)[0];
    }
    let zero = g.as_constant(bound)?;
    (inner == operand && zero.elems() == 1 && zero.get(0).as_f64() == 0.0).then_some(operand)
}

/// `X` where `X > alpha`, 0 elsewhere.
///
/// `ThresholdedRelu([0.5, 2]; alpha=1.0) = [0, 2]`
fn thresholded_relu(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let alpha = g.number(g.dtype(x), n.float_or("alpha", 1.0)?)?;
    let zero = g.number(g.dtype(x), 0.0)?;
    let above = g.compare(CompareOp::Gt, x, alpha)?;
    g.select(above, x, zero)
}
