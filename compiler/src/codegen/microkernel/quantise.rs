//! Quantisation: floats rounded to an integer of few bits, `cast(round(x / scale) + zero_point)`.
//!
//! The cast clamps to integer bounds. So the quotient can be clamped to the bounds minus `zero_point`, or `x` to
//! `scale` times those limits. The conversion to an integer then rounds, in one instruction. Where the quotient is
//! known to fit 32 bits, it is rounded first and clamped as an integer. Some ISAs have stores that clamp: then an
//! integer that is only stored stays as it is.
//!
//! Division by a constant becomes multiplication by its reciprocal ([`super::quotient`]), but only where every `x`
//! gives the same integer. Integers can differ only near the midpoints between two integers, so all floats near each
//! midpoint are tried.

use super::{
    math,
    op::{Body, Op, Ty},
    quotient::{reciprocal, times_reciprocal},
};
use crate::{
    codegen::vector::{
        Builder, VectorShape,
        vcode::{VBinary, VUnary, Vector},
    },
    scalar::{BinaryOp, UnaryOp},
};

/// Largest zero point: its sum with a bound is exact.
const MAX_ZERO_POINT: f32 = 65536.0;

/// Products of scales between this and its reciprocal lose no bits to underflow or overflow.
const MIN_SCALE: f32 = 1e-15;

/// A closed interval of floats.
#[derive(Clone, Copy)]
struct Limits {
    lo: f32,
    hi: f32,
}

/// One quantising cast.
#[derive(Clone, Copy)]
struct Quantisation {
    /// The dividend.
    x: u32,
    /// The constant divisor, if a reciprocal replaces it.
    scale: Option<f32>,
    zero_point: i32,
    /// The range of the integer type.
    bounds: Limits,
    /// The reader subtracts the zero point again, so it is not added.
    cancels_zero_point: bool,
    /// The quotient and its sum with the zero point fit an integer of 32 bits.
    is_bounded: bool,
    /// The type of the stores that clamp the sum, if only stores read it.
    stored_as: Option<Ty>,
}

/// A cast with the instructions that only it reads.
struct Match {
    quantisation: Quantisation,
    absorbed: Vec<u32>,
}

/// The quantisations of a body.
pub(super) struct Quantisations {
    /// At the index of each quantising cast.
    casts: Vec<Option<Quantisation>>,
    /// The instructions that quantisations absorb.
    skipped: Vec<bool>,
    /// For differences that cancel a zero point: the minuend, whose value they have.
    same_value: Vec<Option<u32>>,
}

impl Quantisations {
    /// Finds them in a body.
    pub(super) fn of(body: &Body, shape: &VectorShape) -> Quantisations {
        let uses = body.use_counts();
        let stores = body.store_counts();
        let mut casts = Vec::with_capacity(body.insts.len());
        let mut skipped = vec![false; body.insts.len()];
        for idx in 0..body.insts.len() {
            let mut found = Quantisation::of(body, idx, shape.fma, &uses);
            if let Some(Match { quantisation, .. }) = &mut found {
                let is_clamped = shape.clamping_stores && quantisation.is_bounded && stores[idx] == uses[idx];
                quantisation.stored_as = is_clamped.then(|| clamping_type(body.insts[idx].1)).flatten();
            }
            for reg in found.iter().flat_map(|found| &found.absorbed) {
                skipped[*reg as usize] = true;
            }
            casts.push(found.map(|found| found.quantisation));
        }

        let same_value =
            (0..body.insts.len()).map(|idx| cancel_zero_point(body, idx, &uses, &mut casts)).collect();
        Quantisations { casts, skipped, same_value }
    }

    /// Whether no emitted instruction needs the value of this one.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped[idx]
    }

    /// The earlier instruction that has the same value.
    pub(super) fn same_value(&self, idx: usize) -> Option<u32> {
        self.same_value[idx]
    }

    /// The type whose stores clamp this value.
    pub(super) fn clamping_store(&self, reg: u32) -> Option<Ty> {
        self.casts[reg as usize].and_then(|quantisation| quantisation.stored_as)
    }

    /// Emits the cast at `idx` if it quantises. `value` gives the values of earlier instructions.
    pub(super) fn emit(&self, b: &mut Builder, idx: usize, value: impl Fn(u32) -> Vector) -> Option<Vector> {
        self.casts[idx].map(|quantisation| quantisation.emit(b, value(quantisation.x)))
    }
}

/// If instruction `idx` subtracts the zero point of a quantisation that only it reads, lets the quantisation leave its
/// zero point out, and returns the minuend.
fn cancel_zero_point(
    body: &Body,
    idx: usize,
    uses: &[usize],
    casts: &mut [Option<Quantisation>],
) -> Option<u32> {
    let (Op::Binary(BinaryOp::Sub, minuend, subtrahend), Ty::I32) = body.insts[idx] else { return None };

    // There may be widening casts between the quantisation and the difference.
    let mut cast = minuend;
    while let Op::Cast(inner) = body.op(cast)
        && uses[cast as usize] == 1
    {
        if let Some(quantisation) = &mut casts[cast as usize] {
            let zero_point = (Op::Const(quantisation.zero_point as u32), Ty::I32);
            if body.insts[subtrahend as usize] != zero_point {
                return None;
            }
            quantisation.cancels_zero_point = true;
            return Some(minuend);
        }
        cast = inner;
    }
    None
}

impl Quantisation {
    /// Matches the cast at `idx`.
    fn of(body: &Body, idx: usize, fma: bool, uses: &[usize]) -> Option<Match> {
        let (Op::Cast(sum), ty) = body.insts[idx] else { return None };
        let bounds = bounds(ty)?;
        let (round, zero_point) = match body.insts[sum as usize] {
            (Op::Binary(BinaryOp::Add, x, y), Ty::F32) => match (body.constant(x), body.constant(y)) {
                (None, Some(zero_point)) => (x, zero_point),
                (Some(zero_point), None) => (y, zero_point),
                _ => return None,
            },
            _ => (sum, 0.0),
        };
        let (Op::Unary(UnaryOp::Round, x), Ty::F32) = body.insts[round as usize] else { return None };

        let is_used_once = |reg: u32| uses[reg as usize] == 1;
        let is_exact_zero_point = zero_point == zero_point.round() && zero_point.abs() <= MAX_ZERO_POINT;
        if !is_used_once(sum) || !is_used_once(round) || !is_exact_zero_point {
            return None;
        }

        let mut quantisation = Quantisation {
            x,
            scale: None,
            zero_point: zero_point as i32,
            bounds,
            cancels_zero_point: false,
            is_bounded: body.bounded.contains(&x),
            stored_as: None,
        };
        let mut absorbed = vec![sum, round];
        if let Op::Binary(BinaryOp::Div, dividend, divisor) = body.op(x)
            && fma
            && is_used_once(x)
            && let Some(scale) = body.constant(divisor)
            && has_exact_reciprocal(scale, quantisation.limits())
        {
            absorbed.push(x);
            quantisation.x = dividend;
            quantisation.scale = Some(scale);
        }
        Some(Match { quantisation, absorbed })
    }

    /// The interval that the quotient is clamped to.
    fn limits(self) -> Limits {
        let zero_point = self.zero_point as f32;
        Limits { lo: self.bounds.lo - zero_point, hi: self.bounds.hi - zero_point }
    }

    /// The integer; 0 for NaN. Where stores clamp it, it may exceed the range.
    fn emit(self, b: &mut Builder, x: Vector) -> Vector {
        let rounded = match self {
            Quantisation { stored_as: Some(_), .. } => {
                let quotient = self.quotient(b, x);
                b.unary(VUnary::ToNearest, quotient)
            }
            Quantisation { is_bounded: true, .. } => self.rounded_first(b, x),
            _ => self.clamped_first(b, x),
        };
        let mut integer = rounded;
        if self.zero_point != 0 && !self.cancels_zero_point {
            let zero_point = b.bits(self.zero_point as u32);
            integer = b.binary(VBinary::AddInt, rounded, zero_point);
        }
        integer
    }

    /// The integer without the zero point, for quotients that fit 32 bits. They are clamped as integers, which takes
    /// less time than clamping floats.
    fn rounded_first(self, b: &mut Builder, x: Vector) -> Vector {
        let limits = self.limits();
        let quotient = self.quotient(b, x);
        let rounded = b.unary(VUnary::ToNearest, quotient);
        let lo = b.bits(limits.lo as i32 as u32);
        let hi = b.bits(limits.hi as i32 as u32);
        let rounded = b.binary(VBinary::MaxInt, rounded, lo);
        b.binary(VBinary::MinInt, rounded, hi)
    }

    /// The integer without the zero point, for any `x`.
    fn clamped_first(self, b: &mut Builder, x: Vector) -> Vector {
        let scale = self.scale.unwrap_or(1.0);
        let limits = self.limits();
        let lo = b.float(limits.lo * scale);
        let hi = b.float(limits.hi * scale);

        // `Max` returns `lo` for NaN, which is the right value where the type's lower bound is 0.
        let mut x = x;
        if self.bounds.lo != 0.0 {
            let nan = math::is_nan(b, x);
            let zero = b.float(-self.zero_point as f32 * scale);
            x = b.select(nan, zero, x);
        }
        let x = b.binary(VBinary::Max, x, lo);
        let x = b.binary(VBinary::Min, x, hi);
        let quotient = self.quotient(b, x);
        b.unary(VUnary::ToNearest, quotient)
    }

    /// The quotient, or a float that rounds to the same integer.
    fn quotient(self, b: &mut Builder, x: Vector) -> Vector {
        let Some(scale) = self.scale else { return x };
        times_reciprocal(b, x, scale)
    }
}

/// The type whose stores clamp to an integer type.
fn clamping_type(ty: Ty) -> Option<Ty> {
    match ty {
        Ty::I8 => Some(Ty::ClampToI8),
        Ty::U8 => Some(Ty::ClampToU8),
        _ => None,
    }
}

/// The range of an integer type that quantisation supports.
fn bounds(ty: Ty) -> Option<Limits> {
    match ty {
        Ty::U8 => Some(Limits { lo: 0.0, hi: 255.0 }),
        Ty::I8 => Some(Limits { lo: -128.0, hi: 127.0 }),
        Ty::F32 | Ty::I32 | Ty::I16 | Ty::U16 | Ty::I64 | Ty::F64 => None,
        Ty::Bf16 | Ty::F16 | Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 | Ty::Bool => None,
    }
}

/// Whether the product with the reciprocal rounds to the same integer as the quotient for all `x` within the limits.
fn has_exact_reciprocal(scale: f32, limits: Limits) -> bool {
    if !(MIN_SCALE..1.0 / MIN_SCALE).contains(&scale) {
        return false;
    }
    let (high, low) = reciprocal(scale);
    let agree = |x: f32| (x / scale).round_ties_even() == x.mul_add(high, x * low).round_ties_even();

    // The product is within two units in the last place of the quotient, so floats farther from the midpoint agree.
    let near = |x: f32| {
        std::iter::successors(Some(x.next_down().next_down().next_down().next_down()), |x| Some(x.next_up()))
    };
    (limits.lo as i32..limits.hi as i32).all(|below| near((below as f32 + 0.5) * scale).take(9).all(agree))
}
