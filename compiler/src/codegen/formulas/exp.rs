//! Exponentials, logarithms, and functions defined by them, in double precision.
//!
//! The reductions and coefficients are those of FreeBSD's msun (Sun Microsystems, 1993), with selections instead of
//! branches.

use super::value::V;

const LN2_HI: f64 = 0.693_147_180_369_123_8;
const LN2_LO: f64 = 1.908_214_929_270_587_7e-10;
const LN2: f64 = std::f64::consts::LN_2;
const INV_LN2: f64 = std::f64::consts::LOG2_E;
/// `r - (coth-like rational)` of `exp`: `r * (exp(r) + 1) / (exp(r) - 1) = 2 + r² * poly(r²)`.
const EXP: [f64; 5] = [
    0.166_666_666_666_666_02,
    -0.002_777_777_777_701_559_3,
    6.613_756_321_437_934e-5,
    -1.653_390_220_546_525_2e-6,
    4.138_136_797_057_238_5e-8,
];
const EXPM1: [f64; 6] = [
    1.0,
    -0.033_333_333_333_333_13,
    0.001_587_301_587_254_814_6,
    -7.936_507_578_674_88e-5,
    4.008_217_827_329_362e-6,
    -2.010_992_181_836_243_7e-7,
];
const LOG_ODD: [f64; 4] =
    [0.666_666_666_666_673_5, 0.285_714_287_436_623_9, 0.181_835_721_616_180_5, 0.147_981_986_051_165_86];
const LOG_EVEN: [f64; 3] = [0.399_999_999_994_094_2, 0.222_221_984_321_497_84, 0.153_138_376_992_093_73];

/// `k`, and `x - k * ln 2` as the difference of two parts. `k` is a double.
fn reduce<'e>(x: V<'e>) -> (V<'e>, V<'e>, V<'e>) {
    let k = (x * INV_LN2).round();
    (k, x - k * LN2_HI, k * LN2_LO)
}

pub(super) fn exp(x: V<'_>) -> V<'_> {
    let x = x.max(-750.0).min(710.0);
    let (k, hi, lo) = reduce(x);
    let r = hi - lo;
    let z = r * r;
    let c = r - z * z.poly(&EXP);
    let y = (r * c / (2.0 - c) - lo + hi) + 1.0;
    y.scale(k.to_small_int())
}

pub(super) fn expm1(x: V<'_>) -> V<'_> {
    let clamped = x.max(-60.0).min(710.0);
    let (k, hi, lo) = reduce(clamped);
    let r = hi - lo;

    let half = r * 0.5;
    let square = r * half;
    let r1 = square.poly(&EXPM1);
    let t = 3.0 - r1 * half;
    let e = square * ((r1 - t) / (6.0 - r * t));
    let reduced = r - (r * e - square);

    // `2^k (1 + reduced) - 1 = 2^k ((1 - 2^-k) + reduced)`, and the rounding of the bracket is negligible.
    let k = k.to_small_int();
    let one = x.float(1.0);
    let scaled = ((one - one.scale(-k)) + reduced).scale(k);
    let result = k.int_eq(0).pick(reduced, scaled);
    x.eq(0.0).pick(x, result)
}

/// The exponent `k` (an integer) and the mantissa of a positive number, between sqrt(1/2) and sqrt(2).
fn split<'e>(x: V<'e>) -> (V<'e>, V<'e>) {
    const ROOT: i64 = 0x3fe6_a09e << 32;
    let bits = x.bits() + ((0x3ff0_0000 << 32) - ROOT);
    let mantissa = (bits & bits.int(0x000f_ffff_ffff_ffff)) + ROOT;
    ((bits >> 52) - 0x3ff, mantissa.with_bits())
}

/// `ln(1 + f) + c + k ln 2`.
fn log_of<'e>(f: V<'e>, c: V<'e>, k: V<'e>) -> V<'e> {
    let half = 0.5 * f * f;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let r = z * w.poly(&LOG_ODD) + w * w.poly(&LOG_EVEN);
    let k = k.to_float();
    s * (half + r) + (k * LN2_LO + c) - half + f + k * LN2_HI
}

pub(super) fn log(x: V<'_>) -> V<'_> {
    let small = x.lt(f64::MIN_POSITIVE);
    let (k, m) = split(small.pick(x * 1.801_439_850_948_198_4e16, x));
    let k = k - small.pick(x.int(54), x.int(0));
    let result = log_of(m - 1.0, x.float(0.0), k);
    let result = x.eq(f64::INFINITY).pick(x, result);
    let special = x.eq(0.0).pick_const(f64::NEG_INFINITY, x.float(f64::NAN));
    x.gt(0.0).pick(result, special)
}

pub(super) fn log1p(x: V<'_>) -> V<'_> {
    let u = x + 1.0;
    let (k, m) = split(u);
    let large = k.int_ge(2);

    // The rounding error of `1 + x`.
    let lost = large.pick(1.0 - (u - x), x - (u - 1.0)) / u;
    let c = k.int_ge(54).pick_const(0.0, lost);

    let near = x.gt(-0.292_893_218_813_452_4) & x.lt(0.414_213_562_373_095_03);
    let zero = x.float(0.0);
    let result = log_of(near.pick(x, m - 1.0), near.pick(zero, c), near.pick(x.int(0), k));
    let result = (x.eq(f64::INFINITY) | x.eq(0.0)).pick(x, result);
    let special = x.eq(-1.0).pick_const(f64::NEG_INFINITY, x.float(f64::NAN));

    x.gt(-1.0).pick(result, special)
}

/// `exp(x) / 2` without overflow where only `exp(x)` does.
fn half_exp(x: V<'_>) -> V<'_> {
    let root = exp(x * 0.5);
    root * 0.5 * root
}

pub(super) fn sinh(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let t = expm1(a);
    let small = 2.0 * t - t * t / (t + 1.0);
    let middle = t + t / (t + 1.0);
    let result = a.lt(1.0).pick(small, middle) * 0.5;
    a.gt(709.0).pick(half_exp(a), result).copysign(x)
}

pub(super) fn cosh(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let t = expm1(a.min(1.0));
    let small = t * t / (2.0 * (t + 1.0)) + 1.0;
    let e = exp(a);
    let middle = (e + 1.0 / e) * 0.5;
    let result = a.lt(LN2).pick(small, middle);
    a.gt(709.0).pick(half_exp(a), result)
}

pub(super) fn tanh(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let small = a.lt(0.2554);
    let t = expm1(small.pick(a * -2.0, a * 2.0));
    let quotient = t.abs() / (t + 2.0);
    let middle = 1.0 - 2.0 / (t + 2.0);
    let result = a.gt(0.5493).pick(middle, quotient);
    let result = a.gt(22.0).pick_const(1.0, result);
    result.copysign(x)
}

pub(super) fn asinh(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let root = (a * a + 1.0).sqrt();
    let small = log1p(a + a * a / (root + 1.0));
    let huge = a.gt(67_108_864.0);
    let argument = huge.pick(a, 2.0 * a + 1.0 / (root + a));
    let large = log(argument) + huge.pick_const(LN2, x.float(0.0));
    a.lt(2.0).pick(small, large).copysign(x)
}

pub(super) fn acosh(x: V<'_>) -> V<'_> {
    let d = x - 1.0;
    let small = log1p(d + (d * d + 2.0 * d).sqrt());
    let huge = x.gt(67_108_864.0);
    let argument = huge.pick(x, 2.0 * x - 1.0 / (x + (x * x - 1.0).sqrt()));
    let large = log(argument) + huge.pick_const(LN2, x.float(0.0));
    let result = x.lt(2.0).pick(small, large);
    x.lt(1.0).pick_const(f64::NAN, result)
}

pub(super) fn atanh(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let twice = 2.0 * a;
    let argument = a.lt(0.5).pick(twice + twice * a / (1.0 - a), 2.0 * (a / (1.0 - a)));
    (log1p(argument) * 0.5).copysign(x)
}
