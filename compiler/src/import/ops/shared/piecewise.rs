//! Functions of integers by a table of cubic polynomials, in integer arithmetic.
//!
//! Floating-point functions differ by a rounding from one target to the next. These functions have the same bits
//! everywhere, because both their tables and their evaluation do: the tables are computed at compile time by sums,
//! products, quotients and square roots of `f64`, which IEEE 754 defines exactly.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, Value, axis},
    scalar::{BinaryOp, Scalar},
    tensor::Tensor,
};
use symshape::Dim;
use symshape_runtime::DType;

/// Bits of the position within a piece.
pub(crate) const POSITION_BITS: i64 = 24;

/// Coefficients of a piece, from the constant to the cubic one, in units of the result.
pub(crate) type Piece = [i64; 4];

/// The cubic polynomial through the values at positions 0, 1/3, 2/3 and 1 of a piece, in units of `1 / scale`.
pub(crate) fn cubic([a, b, c, d]: [f64; 4], scale: f64) -> Piece {
    [
        a,
        -5.5 * a + 9.0 * b - 4.5 * c + d,
        9.0 * a - 22.5 * b + 18.0 * c - 4.5 * d,
        -4.5 * a + 13.5 * b - 13.5 * c + 4.5 * d,
    ]
    .map(|coefficient| (coefficient * scale).round() as i64)
}

/// The function of `pieces` at `position / 2^24` in piece `piece`; all are `i64`. Coefficients after the first must be
/// below `2^38` in magnitude.
pub(crate) fn piecewise(g: &mut Graph, pieces: &[Piece], piece: Value, position: Value) -> Result<Value> {
    let flat: Vec<i64> = pieces.iter().flatten().copied().collect();
    let table = Tensor::from_i64(vec![pieces.len(), 4], &flat)
        .ok_or_else(|| Error::internal("each piece must have four coefficients"))?;
    let table = g.constant(table)?;
    let shape = g.shape(piece).to_vec();
    let at: Vec<Dim> = (0..shape.len()).map(|k| axis(k).into()).collect();
    let coefficient = |g: &mut Graph, k: i64| {
        let coords = vec![Coord::Load { operand: 1, at: at.clone() }, Coord::At(k.into())];
        g.push(Op::Gather { shape: shape.clone(), coords }, &[table, piece])
    };

    let bits = g.scalar(Scalar::i64(POSITION_BITS))?;
    let mut sum = coefficient(g, 3)?;
    for k in [2, 1, 0] {
        let product = g.mul(sum, position)?;
        let scaled = g.binary(BinaryOp::Shr, product, bits)?;
        let next = coefficient(g, k)?;
        sum = g.add(scaled, next)?;
    }
    Ok(sum)
}

/// Shifts `x` to the right.
pub(crate) fn shr(g: &mut Graph, x: Value, distance: i64) -> Result<Value> {
    let distance = g.scalar(Scalar::from_i64(g.dtype(x), distance))?;
    g.binary(BinaryOp::Shr, x, distance)
}

/// The lowest `count` bits of `x`.
pub(crate) fn low_bits(g: &mut Graph, x: Value, count: u32) -> Result<Value> {
    let mask = g.scalar(Scalar::from_i64(g.dtype(x), (1 << count) - 1))?;
    g.and(x, mask)
}

/// `2^-x` for an `i64` that is not negative, in units of `2^-24`. The result is in units of `2^-30`, rounded down.
pub(crate) fn halved(g: &mut Graph, x: Value) -> Result<Value> {
    const PIECE_BITS: i64 = 5;
    let pieces: Vec<Piece> = (0..1 << PIECE_BITS)
        .map(|k| {
            let at = |third: i32| root_of_half(f64::from(3 * k + third) / f64::from(3 << PIECE_BITS));
            cubic([at(0), at(1), at(2), at(3)], f64::from(1 << 30))
        })
        .collect();

    let fraction = low_bits(g, x, POSITION_BITS as u32)?;
    let piece = shr(g, fraction, POSITION_BITS - PIECE_BITS)?;
    let rest = low_bits(g, fraction, (POSITION_BITS - PIECE_BITS) as u32)?;
    let factor = g.scalar(Scalar::i64(1 << PIECE_BITS))?;
    let position = g.mul(rest, factor)?;
    let power = piecewise(g, &pieces, piece, position)?;
    let whole = shr(g, x, POSITION_BITS)?;
    g.binary(BinaryOp::Shr, power, whole)
}

/// `2^-x` for `x` in `0..=1`.
fn root_of_half(x: f64) -> f64 {
    exp_of_minus(x * std::f64::consts::LN_2)
}

/// `e^-x` for `x` in `0..=32`: the series at `x / 1024`, squared ten times.
fn exp_of_minus(x: f64) -> f64 {
    let small = x / 1024.0;
    let mut sum = 1.0;
    for k in (1..=16).rev() {
        sum = 1.0 - small / f64::from(k) * sum;
    }
    for _ in 0..10 {
        sum *= sum;
    }
    sum
}

/// The density of the standard normal distribution.
fn density(z: f64) -> f64 {
    exp_of_minus(z * z / 2.0) / std::f64::consts::TAU.sqrt()
}

/// The probability that a standard normal variable exceeds `z`, for `z` in `0..=8`.
fn upper_tail(z: f64) -> f64 {
    if z < 2.5 {
        // Abramowitz and Stegun, 26.2.11.
        let mut term = z;
        let mut sum = z;
        for k in 1..60 {
            term *= z * z / f64::from(2 * k + 1);
            sum += term;
        }
        return 0.5 - density(z) * sum;
    }
    // The continued fraction 26.2.14.
    let fraction = (1..=150).rev().fold(z, |below, k| z + f64::from(k) / below);
    density(z) / fraction
}

/// The pieces of [`normal`].
fn normal_pieces() -> Vec<Piece> {
    // Values from the middle of the distribution outwards. Newton's iteration approaches each from the one before it,
    // and never passes it, because the tail is convex.
    let mut z = 0.0;
    let mut pieces = Vec::new();
    let mut last = 0.0;
    for piece in (0..OCTAVES << PIECE_BITS).rev() {
        let octave = f64::from(1_u32 << (piece >> PIECE_BITS)) / 2_f64.powi(OCTAVES + 1);
        let start = f64::from(piece % (1 << PIECE_BITS));
        let mut at = |third: f64| {
            let p = octave * (1.0 + (start + third / 3.0) / f64::from(1 << PIECE_BITS));
            for _ in 0..8 {
                z += (upper_tail(z) - p) / density(z);
            }
            z
        };
        let values = [at(2.0), at(1.0), at(0.0)];
        pieces.push(cubic([values[2], values[1], values[0], last], 2_f64.powi(NORMAL_BITS)));
        last = values[2];
    }
    pieces.reverse();
    pieces
}

/// Octaves of the probability, from `2^-33` to `2^-1`.
const OCTAVES: i32 = 32;
/// Each octave has this power of two of pieces.
const PIECE_BITS: i32 = 5;
/// The unit of [`normal`] is this negative power of two.
pub(crate) const NORMAL_BITS: i32 = 36;

/// The standard normal variable with the rank of `word`, a `u64` below `2^32`: an `i64` in units of `2^-36`. Its lowest
/// bit is the sign, the others the probability of the tail beyond it, from `2^-33` to `1/2`.
pub(crate) fn normal(g: &mut Graph, word: Value) -> Result<Value> {
    static PIECES: std::sync::LazyLock<Vec<Piece>> = std::sync::LazyLock::new(normal_pieces);

    // An odd number below 2^32. As a float, its exponent is the octave, and its mantissa the place in it.
    let one = g.scalar(Scalar::from_i64(DType::U64, 1))?;
    let odd = g.or(word, one)?;
    let odd = g.cast(DType::I64, odd)?;
    let float = g.cast(DType::F64, odd)?;
    let bits = g.bits(DType::I64, float)?;
    let above = shr(g, bits, 52 - i64::from(PIECE_BITS))?;
    let bias = g.scalar(Scalar::i64(1023 << PIECE_BITS))?;
    let piece = g.sub(above, bias)?;
    let position = shr(g, bits, 52 - i64::from(PIECE_BITS) - POSITION_BITS)?;
    let position = low_bits(g, position, POSITION_BITS as u32)?;

    let size = piecewise(g, &PIECES, piece, position)?;
    let sign = g.and(word, one)?;
    let is_negative = g.compare(crate::scalar::CompareOp::Eq, sign, one)?;
    let negative = g.neg(size)?;
    g.select(is_negative, negative, size)
}
