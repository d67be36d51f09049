//! Arithmetic, comparison, logic and conversion, element by element.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        constant::value_of,
        node::{OnnxNode, axes::normal_axis},
    },
    scalar::{BinaryOp, CompareOp, Scalar, UnaryOp},
};
use symshape_runtime::DType;

ops! {
    Abs 1 abs Elementwise,
    Acos 7 acos,
    Acosh 9 acosh,
    Add 1 add Elementwise,
    And 1 and,
    Asin 7 asin,
    Asinh 9 asinh,
    Atan 7 atan,
    Atanh 9 atanh,
    BitShift 11 bit_shift,
    BitwiseAnd 18 bitwise_and,
    BitwiseNot 18 bitwise_not,
    BitwiseOr 18 bitwise_or,
    BitwiseXor 18 bitwise_xor,
    Ceil 1 ceil,
    Clip 1 clip_attributes,
    Clip 11 clip,
    Cos 7 cos Elementwise,
    Cosh 9 cosh,
    Div 1 div Elementwise,
    Equal 1 equal,
    Erf 9 erf,
    Exp 1 exp Elementwise,
    Floor 1 floor,
    Greater 1 greater,
    GreaterOrEqual 12 greater_or_equal,
    IsInf 10 is_inf,
    IsNaN 9 is_nan,
    Less 1 less,
    LessOrEqual 12 less_or_equal,
    Log 1 log Elementwise,
    Max 1 max,
    Mean 1 mean,
    Min 1 min,
    Mod 10 modulo,
    Mul 1 mul Elementwise,
    Neg 1 neg Elementwise,
    Not 1 not,
    Or 1 or,
    Pow 1 pow,
    Reciprocal 1 reciprocal,
    Round 11 round,
    Sign 9 sign,
    Sin 7 sin Elementwise,
    Sinh 9 sinh,
    Sqrt 1 sqrt Elementwise,
    Sub 1 sub Elementwise,
    Sum 1 sum,
    Tan 7 tan,
    Where 9 where_,
    Xor 1 xor,
}

/// Both inputs. Before opset 7 the attribute `axis` aligns the second input with the axes of the first one from `axis`
/// on.
fn pair(g: &mut Graph, n: &OnnxNode) -> Result<(Value, Value)> {
    let a = n.input(0)?;
    let mut b = n.input(1)?;
    if n.opset < 7 {
        let axis = n.int("axis")?;
        if n.flag("broadcast", false)?
            && let Some(axis) = axis
        {
            let rank = g.rank(b);
            let axis = normal_axis(axis, g.rank(a))?;
            let trailing = g.rank(a).checked_sub(axis + rank);
            let trailing = trailing.ok_or_else(|| Error::invalid("the second input has too many axes"))?;
            b = g.unsqueeze(b, &(rank..rank + trailing).collect::<Vec<_>>())?;
        }
    }

    Ok((a, b))
}

fn binary(g: &mut Graph, n: &OnnxNode, op: BinaryOp) -> Result<Value> {
    let (a, b) = pair(g, n)?;
    g.binary(op, a, b)
}

fn compare(g: &mut Graph, n: &OnnxNode, op: CompareOp) -> Result<Value> {
    let (a, b) = pair(g, n)?;
    g.compare(op, a, b)
}

fn unary(g: &mut Graph, n: &OnnxNode, op: UnaryOp) -> Result<Value> {
    g.unary(op, n.input(0)?)
}

/// All inputs combined by `op`, broadcast.
fn fold(g: &mut Graph, n: &OnnxNode, op: BinaryOp) -> Result<Value> {
    let inputs = n.all()?;
    inputs[1..].iter().try_fold(inputs[0], |acc, input| g.binary(op, acc, *input))
}

/// `|X|`.
///
/// `Abs([-1.5, 2]) = [1.5, 2]`
fn abs(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Abs)
}

/// Arc cosine of the input.
///
/// `Acos([1, 0]) = [0, 1.5707964]`
fn acos(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Acos)
}

/// Inverse hyperbolic cosine of the input.
///
/// `Acosh([1, 2]) = [0, 1.316958]`
fn acosh(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Acosh)
}

/// `A + B`, broadcast. Integers wrap on overflow.
///
/// `Add([[1], [2]], [10, 20]) = [[11, 21], [12, 22]]`
fn add(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Add)
}

/// Logical and, `A && B`, broadcast.
///
/// `And(bool[1, 0], bool[1]) = bool[1, 0]`
fn and(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::And)
}

/// Arc sine of the input.
///
/// `Asin([0, 1]) = [0, 1.5707964]`
fn asin(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Asin)
}

/// Inverse hyperbolic sine of the input.
///
/// `Asinh([0, 1]) = [0, 0.88137358]`
fn asinh(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Asinh)
}

/// Arc tangent of the input.
///
/// `Atan([0, 1]) = [0, 0.78539816]`
fn atan(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Atan)
}

/// Inverse hyperbolic tangent of the input.
///
/// `Atanh([0, 0.5]) = [0, 0.54930614]`
fn atanh(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Atanh)
}

/// `X << Y` for `direction="LEFT"` or `X >> Y` for `direction="RIGHT"`, broadcast. Both inputs are unsigned integers.
///
/// `BitShift(u8[1, 255], u8[3]; direction="LEFT") = u8[8, 248]`
fn bit_shift(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    match n.string_or("direction", "")? {
        "LEFT" => binary(g, n, BinaryOp::Shl),
        "RIGHT" => binary(g, n, BinaryOp::Shr),
        other => Err(Error::invalid(format!("unknown direction `{other}`"))),
    }
}

/// Bitwise and of integers, broadcast.
///
/// `BitwiseAnd(i32[12, 10], i32[10]) = i32[8, 10]`
fn bitwise_and(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::And)
}

/// Bitwise complement of integers.
///
/// `BitwiseNot(i32[0, 5]) = i32[-1, -6]`
fn bitwise_not(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Not)
}

/// Bitwise or of integers, broadcast.
///
/// `BitwiseOr(i32[12, 10], i32[3]) = i32[15, 11]`
fn bitwise_or(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Or)
}

/// Bitwise exclusive or of integers, broadcast.
///
/// `BitwiseXor(i32[12, 10], i32[10]) = i32[6, 0]`
fn bitwise_xor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Xor)
}

/// The smallest integer that is not below `X`.
///
/// `Ceil([1.2, -1.2]) = [2, -1]`
fn ceil(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Ceil)
}

/// `min(max(X, min), max)`. The bounds are the optional attributes `min` and `max`.
///
/// `Clip([-2, 0.5, 3]; min=0.0, max=1.0) = [0, 0.5, 1]`
fn clip_attributes(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut x = n.input(0)?;
    let dtype = g.dtype(x);
    if let Some(lo) = n.float("min")? {
        let lo = g.number(dtype, lo.into())?;
        x = g.max(x, lo)?;
    }
    if let Some(hi) = n.float("max")? {
        let hi = g.number(dtype, hi.into())?;
        x = g.min(x, hi)?;
    }
    Ok(x)
}

/// `min(max(X, min), max)`. The bounds are the optional inputs 1 and 2. Where `min > max`, the result is `max`.
///
/// `Clip([-2, 0.5, 3], 0, 1) = [0, 0.5, 1]`
/// `Clip([-2, 0.5, 3], _, 1) = [-2, 0.5, 1]`
fn clip(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut x = n.input(0)?;
    if let Some(lo) = n.optional(1) {
        x = g.max(x, lo)?;
    }
    if let Some(hi) = n.optional(2) {
        x = g.min(x, hi)?;
    }
    Ok(x)
}

/// Cosine of the input.
///
/// `Cos([0, 1]) = [1, 0.54030231]`
fn cos(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Cos)
}

/// Hyperbolic cosine of the input.
///
/// `Cosh([0, 1]) = [1, 1.5430806]`
fn cosh(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Cosh)
}

/// `A / B`, broadcast. Integer division truncates toward zero.
///
/// `Div([1, 4], [2]) = [0.5, 2]`
/// `Div(i32[7, -7], i32[2]) = i32[3, -3]`
fn div(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Div)
}

/// `A == B`, broadcast.
///
/// `Equal(i64[1, 2], i64[1]) = bool[1, 0]`
fn equal(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    compare(g, n, CompareOp::Eq)
}

/// The error function of the input.
///
/// `Erf([0, 1]) = [0, 0.84270079]`
fn erf(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Erf)
}

/// `e^X`.
///
/// `Exp([0, 1]) = [1, 2.7182818]`
fn exp(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Exp)
}

/// The largest integer that is not above `X`.
///
/// `Floor([1.8, -1.2]) = [1, -2]`
fn floor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Floor)
}

/// `A > B`, broadcast.
///
/// `Greater([1, 2], [1]) = bool[0, 1]`
fn greater(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    compare(g, n, CompareOp::Gt)
}

/// `A >= B`, broadcast.
///
/// `GreaterOrEqual([0, 1, 2], [1]) = bool[0, 1, 1]`
fn greater_or_equal(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    compare(g, n, CompareOp::Ge)
}

/// True where `X` is infinite. With `detect_positive=0` or `detect_negative=0`, infinities of that sign give false.
///
/// `IsInf([inf, -inf, 1]) = bool[1, 1, 0]`
/// `IsInf([inf, -inf, 1]; detect_negative=0) = bool[1, 0, 0]`
fn is_inf(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let positive = n.flag("detect_positive", true)?;
    let negative = n.flag("detect_negative", true)?;
    let infinite = g.unary(UnaryOp::IsInf, x)?;
    let zero = g.number(g.dtype(x), 0.0)?;

    let sign = match (positive, negative) {
        (true, true) => return Ok(infinite),
        (true, false) => g.compare(CompareOp::Gt, x, zero)?,
        (false, true) => g.compare(CompareOp::Lt, x, zero)?,
        (false, false) => g.scalar(Scalar::bool(false))?,
    };

    g.and(infinite, sign)
}

/// True where `X` is NaN.
///
/// `IsNaN([nan, 1]) = bool[1, 0]`
fn is_nan(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::IsNan)
}

/// `A < B`, broadcast.
///
/// `Less([0, 1], [1]) = bool[1, 0]`
fn less(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    compare(g, n, CompareOp::Lt)
}

/// `A <= B`, broadcast.
///
/// `LessOrEqual([0, 1, 2], [1]) = bool[1, 1, 0]`
fn less_or_equal(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    compare(g, n, CompareOp::Le)
}

/// Natural logarithm of the input.
///
/// `Log([1, 2]) = [0, 0.69314718]`
fn log(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Log)
}

/// Maximum of all inputs, broadcast. NaN where an input is NaN.
///
/// `Max([1, 5], [3], [2]) = [3, 5]`
fn max(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    fold(g, n, BinaryOp::Max)
}

/// Mean of all inputs, broadcast.
///
/// `Mean([1, 5], [3]) = [2, 4]`
fn mean(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let sum = fold(g, n, BinaryOp::Add)?;
    let count = g.number(g.dtype(sum), n.input_count() as f64)?;
    g.div(sum, count)
}

/// Minimum of all inputs, broadcast. NaN where an input is NaN.
///
/// `Min([1, 5], [3]) = [1, 3]`
fn min(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    fold(g, n, BinaryOp::Min)
}

/// Remainder of `A / B`, broadcast. It has the sign of `B`, or with `fmod=1` the sign of `A`.
///
/// `Mod(i32[7, -7], i32[3]) = i32[1, 2]`
/// `Mod([7.5, -7.5], [2]; fmod=1) = [1.5, -1.5]`
fn modulo(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let op = if n.flag("fmod", false)? { BinaryOp::Rem } else { BinaryOp::Mod };
    binary(g, n, op)
}

/// `A * B`, broadcast. Integers wrap on overflow.
///
/// `Mul([1, 2], [3]) = [3, 6]`
fn mul(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Mul)
}

/// `-X`.
///
/// `Neg([1, -2]) = [-1, 2]`
fn neg(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Neg)
}

/// Logical not of the input.
///
/// `Not(bool[1, 0]) = bool[0, 1]`
fn not(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Not)
}

/// Logical or, `A || B`, broadcast.
///
/// `Or(bool[1, 0], bool[0]) = bool[1, 0]`
fn or(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Or)
}

/// `X^Y`, broadcast, in the type of `X`. `Y` is converted to that type. If `X` is an integer and `Y` a float, the power
/// is computed in double precision and truncated.
///
/// `Pow([2, 9], [3, 0.5]) = [8, 3]`
/// `Pow(i32[4, 9], [2, 0.5]) = i32[16, 3]`
fn pow(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let (a, b) = pair(g, n)?;
    let base = g.dtype(a);
    let exponent = g.dtype(b);

    if let Some(times) = small_power(g, n, a)? {
        // A square rounds once, like the power. A cube rounds twice, which is less than the error of a power.
        let square = g.mul(a, a)?;
        return if times == 2 { Ok(square) } else { g.mul(square, a) };
    }
    if base.is_float() || base == exponent || !exponent.is_float() {
        let b = g.cast(base, b)?;
        return g.pow(a, b);
    }

    let a = g.cast(DType::F64, a)?;
    let b = g.cast(DType::F64, b)?;
    let power = g.pow(a, b)?;
    g.cast(base, power)
}

/// The exponent if it is a constant 2 or 3 of one element that does not change the shape of `a`.
fn small_power(g: &Graph, n: &OnnxNode, a: Value) -> Result<Option<i64>> {
    let exponent = n.input(1)?;
    let alone = g.shape(exponent).iter().all(|dim| g.is_one(dim)) && g.rank(exponent) <= g.rank(a);
    let Some(number) = value_of(g, exponent)?.filter(|_| alone) else { return Ok(None) };
    let times = number.get(0).as_f64();
    Ok([2, 3].into_iter().find(|small| *small as f64 == times))
}

/// `1 / X`.
///
/// `Reciprocal([2, -4]) = [0.5, -0.25]`
fn reciprocal(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Recip)
}

/// The nearest integer. Ties round to even.
///
/// `Round([0.5, 1.5, -1.2]) = [0, 2, -1]`
fn round(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Round)
}

/// -1, 0 or 1, the sign of the input.
///
/// `Sign([-3, 0, 0.5]) = [-1, 0, 1]`
fn sign(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Sign)
}

/// Sine of the input.
///
/// `Sin([0, 1]) = [0, 0.84147098]`
fn sin(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Sin)
}

/// Hyperbolic sine of the input.
///
/// `Sinh([0, 1]) = [0, 1.1752012]`
fn sinh(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Sinh)
}

/// Square root of the input.
///
/// `Sqrt([4, 2]) = [2, 1.4142136]`
fn sqrt(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Sqrt)
}

/// `A - B`, broadcast. Integers wrap on overflow.
///
/// `Sub([1, 2], [3]) = [-2, -1]`
fn sub(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Sub)
}

/// Sum of all inputs, broadcast.
///
/// `Sum([1, 5], [3], [1]) = [5, 9]`
fn sum(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    fold(g, n, BinaryOp::Add)
}

/// Tangent of the input.
///
/// `Tan([0, 1]) = [0, 1.5574077]`
fn tan(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    unary(g, n, UnaryOp::Tan)
}

/// `X` (input 1) where `condition` (input 0) is true, `Y` (input 2) elsewhere, broadcast.
///
/// `Where(bool[1, 0], [1], [2, 3]) = [1, 3]`
fn where_(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    g.select(n.input(0)?, n.input(1)?, n.input(2)?)
}

/// Logical exclusive or, broadcast.
///
/// `Xor(bool[1, 0], bool[1]) = bool[0, 1]`
fn xor(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    binary(g, n, BinaryOp::Xor)
}
