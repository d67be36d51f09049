//! Floats that are rounded on their way to an integer of few bits, as quantisation does: `cast(round(x / scale) + zero)`.
//!
//! A cast brings its operand between bounds, and these are integers: so the quotient may be brought between what is `zero`
//! less, or `x` between what is `scale` times that, and the quotient then becomes an integer in one step that rounds.
//!
//! The quotient by a constant is a multiplication by its reciprocal, whose rest is another number: `x * high + x * low`,
//! rounded once. That is as good as a division where no integer comes out differently, which is found by trying all numbers
//! near those halfway between two integers.

use super::{
    math,
    op::{Body, Op, Ty},
};
use crate::{
    codegen::vector::{
        Builder,
        vcode::{VBinary, VUnary, Vector},
    },
    scalar::{BinaryOp, UnaryOp},
};

/// Largest zero point: sums of it and a bound are exact.
const MOST_ZERO: f32 = 65536.0;

/// Scales between this and its reciprocal are far from where products lose bits.
const LEAST_SCALE: f32 = 1e-15;

/// What such a cast is made of.
#[derive(Clone, Copy)]
struct Rounded {
    x: u32,
    scale: Option<f32>,
    zero: i32,
    bounds: (f32, f32),
    /// What reads the integer takes the zero point away again.
    is_bare: bool,
}

/// What a body rounds.
pub(super) struct Roundings {
    /// At the number of each cast.
    casts: Vec<Option<Rounded>>,
    /// Instructions that only casts need.
    skipped: Vec<bool>,
    /// Differences that are what they are taken from.
    same: Vec<Option<u32>>,
}

impl Roundings {
    /// Those of a body, on an ISA with multiplications and additions in one.
    pub(super) fn of(body: &Body, fma: bool) -> Roundings {
        let uses = body.uses();
        let mut skipped = vec![false; body.insts.len()];
        let casts = (0..body.insts.len()).map(|cast| {
            let (rounded, parts) = Rounded::of(body, cast, fma, &uses)?;
            parts.into_iter().for_each(|reg| skipped[reg as usize] = true);
            Some(rounded)
        });
        let mut casts: Vec<Option<Rounded>> = casts.collect();
        let mut same = vec![None; body.insts.len()];
        for (idx, &(op, ty)) in body.insts.iter().enumerate() {
            let (Op::Binary(BinaryOp::Sub, x, y), Ty::I32) = (op, ty) else { continue };
            let mut cast = x;
            while let (Op::Cast(inner), true) = (body.insts[cast as usize].0, uses[cast as usize] == 1) {
                if let Some(rounded) = &mut casts[cast as usize] {
                    if body.insts[y as usize] == (Op::Const(rounded.zero as u32), Ty::I32) {
                        rounded.is_bare = true;
                        same[idx] = Some(x);
                    }
                    break;
                }
                cast = inner;
            }
        }
        Roundings { casts, skipped, same }
    }

    /// Whether an instruction's value is needed by none that is emitted.
    pub(super) fn skips(&self, idx: usize) -> bool {
        self.skipped[idx]
    }

    /// The other instruction whose value this one's is.
    pub(super) fn same(&self, idx: usize) -> Option<u32> {
        self.same[idx]
    }

    /// The value of a cast, given those before it; none where it is not of this kind.
    pub(super) fn emit(&self, b: &mut Builder, idx: usize, at: impl Fn(u32) -> Vector) -> Option<Vector> {
        self.casts[idx].map(|rounded| rounded.emit(b, at(rounded.x)))
    }
}

impl Rounded {
    /// What cast number `idx` is made of, and the instructions of it.
    fn of(body: &Body, idx: usize, fma: bool, uses: &[usize]) -> Option<(Rounded, Vec<u32>)> {
        let (Op::Cast(sum), ty) = body.insts[idx] else { return None };
        let bounds = bounds(ty)?;
        let (round, zero) = match body.insts[sum as usize] {
            (Op::Binary(BinaryOp::Add, x, y), Ty::F32) => match (body.constant(x), body.constant(y)) {
                (None, Some(zero)) => (x, zero),
                (Some(zero), None) => (y, zero),
                _ => return None,
            },
            _ => (sum, 0.0),
        };
        let (Op::Unary(UnaryOp::Round, x), Ty::F32) = body.insts[round as usize] else { return None };
        let once = |reg: u32| uses[reg as usize] == 1;
        if !once(sum) || !once(round) || zero != zero.round() || zero.abs() > MOST_ZERO {
            return None;
        }
        let rounded = Rounded { x, scale: None, zero: zero as i32, bounds, is_bare: false };
        let quotient = match body.insts[x as usize].0 {
            Op::Binary(BinaryOp::Div, dividend, scale) if fma && once(x) => {
                let scale = body.constant(scale).filter(|scale| is_exact(*scale, rounded.limits()));
                scale.map(|scale| Rounded { x: dividend, scale: Some(scale), ..rounded })
            }
            _ => None,
        };
        let parts = [sum, round].into_iter().chain(quotient.is_some().then_some(x)).collect();
        Some((quotient.unwrap_or(rounded), parts))
    }

    /// What the quotient is brought between.
    fn limits(self) -> (f32, f32) {
        (self.bounds.0 - self.zero as f32, self.bounds.1 - self.zero as f32)
    }

    /// The integer; of NaN, 0.
    fn emit(self, b: &mut Builder, x: Vector) -> Vector {
        let (scale, limits) = (self.scale.unwrap_or(1.0), self.limits());
        let (least, most) = (b.float(limits.0 * scale), b.float(limits.1 * scale));
        let x = match self.bounds.0 == 0.0 {
            true => x,
            false => {
                let (nan, zero) = (math::is_nan(b, x), b.float(-self.zero as f32 * scale));
                b.select(nan, zero, x)
            }
        };
        // Where `x` is NaN the step returns the bound.
        let x = b.binary(VBinary::Max, x, least);
        let mut x = b.binary(VBinary::Min, x, most);
        if self.scale.is_some() {
            let (high, low) = reciprocal(scale);
            let (high, low) = (b.float(high), b.float(low));
            let rest = b.binary(VBinary::Mul, x, low);
            x = b.fma(x, high, rest);
        }
        let rounded = b.unary(VUnary::ToNearest, x);
        if self.zero == 0 || self.is_bare {
            return rounded;
        }
        let zero = b.bits(self.zero as u32);
        b.binary(VBinary::AddInt, rounded, zero)
    }
}

/// What a cast to such a type brings floats between.
fn bounds(ty: Ty) -> Option<(f32, f32)> {
    match ty {
        Ty::U8 => Some((0.0, 255.0)),
        Ty::I8 => Some((-128.0, 127.0)),
        Ty::F32 | Ty::I32 | Ty::I16 | Ty::Bf16 | Ty::Nearest | Ty::Bool => None,
    }
}

/// `1 / scale` as a number and what is left.
fn reciprocal(scale: f32) -> (f32, f32) {
    let exact = 1.0 / f64::from(scale);
    let high = exact as f32;
    (high, (exact - f64::from(high)) as f32)
}

/// Whether the product is rounded to the same integer as the quotient for all numbers that come between the limits.
fn is_exact(scale: f32, (lo, hi): (f32, f32)) -> bool {
    if !(LEAST_SCALE..1.0 / LEAST_SCALE).contains(&scale) {
        return false;
    }
    let (high, low) = reciprocal(scale);
    let agree = |x: f32| (x / scale).round_ties_even() == x.mul_add(high, x * low).round_ties_even();
    // The product is less than two units of the last place from the quotient, so numbers farther away don't matter.
    let near = |x: f32| {
        std::iter::successors(Some(x.next_down().next_down().next_down().next_down()), |x| Some(x.next_up()))
    };
    (lo as i32..hi as i32).all(|below| near((below as f32 + 0.5) * scale).take(9).all(agree))
}
