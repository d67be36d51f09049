//! Trigonometric functions and their inverses in double precision.
//!
//! Arguments are reduced by multiples of π/2 in three exact steps (Cody and Waite). From 2^20 on, they are multiplied
//! by as many bits of 2/π as affect the result (Payne and Hanek). Kernels and inverses are those of FreeBSD's msun
//! (Sun Microsystems, 1993), with selections instead of branches.

use super::value::{Table, V};
use crate::error::Result;
use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, PI};

const PIO2_LO: f64 = 6.123_233_995_736_766e-17;
const PIO2_1: f64 = 1.570_796_326_734_125_6;
const PIO2_2: f64 = 6.077_100_506_303_966e-11;
const PIO2_3: f64 = 2.022_266_248_711_166_5e-21;
const PIO2_3T: f64 = 8.478_427_660_368_9e-32;
/// Beyond this limit the multiples of `PIO2_1` are not exact.
const MAX_SIMPLE: f64 = 1_048_576.0;

/// 64 zeros and the first 1280 bits of 2/π.
const TWO_OVER_PI: Table =
    Table { name: "two_over_pi", words: &TWO_OVER_PI_BITS, max_idx: 16, max_idx_f32: 2 };

const TWO_OVER_PI_BITS: [u64; 21] = [
    0,
    0xa2f9_836e_4e44_1529,
    0xfc27_57d1_f534_ddc0,
    0xdb62_9599_3c43_9041,
    0xfe51_63ab_debb_c561,
    0xb724_6e3a_424d_d2e0,
    0x0649_2eea_09d1_921c,
    0xfe1d_eb1c_b129_a73e,
    0xe882_35f5_2ebb_4484,
    0xe99c_7026_b45f_7e41,
    0x3991_d639_8353_39f4,
    0x9c84_5f8b_bdf9_283b,
    0x1ff8_97ff_de05_980f,
    0xef2f_118b_5a0a_6d1f,
    0x6d36_7ecf_27cb_09b7,
    0x4f46_3f66_9e5f_ea2d,
    0x7527_bac7_ebe5_f17b,
    0x3d07_39f7_8a52_92ea,
    0x6bfb_5fb1_1f8d_5d08,
    0x5603_3046_fc7b_6bab,
    0xf0cf_bc20_9af4_361d,
];

const SIN: [f64; 6] = [
    -0.166_666_666_666_666_32,
    0.008_333_333_333_322_49,
    -0.000_198_412_698_298_579_5,
    2.755_731_370_707_006_8e-6,
    -2.505_076_025_340_686_3e-8,
    1.589_690_995_211_55e-10,
];
const COS: [f64; 6] = [
    0.041_666_666_666_666_6,
    -0.001_388_888_888_887_411,
    2.480_158_728_947_673e-5,
    -2.755_731_435_139_066_3e-7,
    2.087_572_321_298_175e-9,
    -1.135_964_755_778_819_5e-11,
];

/// The quadrant (an integer modulo 4) and the remainder of `x` in two parts, within ±π/4.
fn reduce<'e>(x: V<'e>) -> Result<[V<'e>; 3]> {
    x.abs().lt(MAX_SIMPLE).branch(|| Ok(reduce_simple(x)), || reduce_large(x))
}

/// `a - b` and its rounding error.
fn difference<'e>(a: V<'e>, b: V<'e>) -> (V<'e>, V<'e>) {
    let d = a - b;
    let part = d - a;
    (d, (a - (d - part)) - (b + part))
}

fn reduce_simple<'e>(x: V<'e>) -> [V<'e>; 3] {
    let n = (x * FRAC_2_PI).round();
    let (first, error_1) = difference(x - n * PIO2_1, n * PIO2_2);
    let (second, error_2) = difference(first, n * PIO2_3);
    let tail = error_1 + error_2 - n * PIO2_3T;
    let y = second + tail;
    [n.to_small_int(), y, (second - y) + tail]
}

/// `m 2^e 2/π` modulo 4 in 128 bits: two for the quadrant, the others for the remainder.
fn reduce_large<'e>(x: V<'e>) -> Result<[V<'e>; 3]> {
    let bits = x.abs().bits();
    let m = (bits & x.int((1 << 52) - 1)) | x.int(1 << 52);

    // The first bit of 2/π that affects the result has the weight 2 in the product: bit `e - 1` after the point, which
    // is bit `e + 62` of the table. Infinities and NaN would point beyond the table. Their result is discarded.
    let e = (bits >> 52) - 1075;
    let first = (e + 62).int_lt(1034).pick(e + 62, x.int(0));
    let at = first >> 6;
    let shift = first & x.int(63);

    let words = [
        at.lookup(&TWO_OVER_PI, 0)?,
        at.lookup(&TWO_OVER_PI, 1)?,
        at.lookup(&TWO_OVER_PI, 2)?,
        at.lookup(&TWO_OVER_PI, 3)?,
    ];
    let word = |idx: usize| {
        let high = words[idx];
        let low = words[idx + 1];
        high.shl_by(shift) | low.shr_unsigned(x.int(1)).shr_unsigned(x.int(63) - shift)
    };

    let w0 = word(2);
    let w1 = word(1);
    let w2 = word(0);

    // The product's words from the top: those of `w2` beyond 64 bits are multiples of 4.
    let low = m * w1;
    let low_sum = low + m.mul_high(w0);
    let high = m * w2 + m.mul_high(w1) + low_sum.wrapped(low);
    let quadrant = high.shr_unsigned(x.int(62));
    let (fraction, below) = ((high << 2) | low_sum.shr_unsigned(x.int(62)), low_sum << 2);

    // The signed fraction is within ±1/2.
    let quadrant = quadrant + fraction.shr_unsigned(x.int(63));
    let top = fraction.to_float();
    let rest = (fraction - top.to_int()).to_float() + below.unsigned_to_float() * 2f64.powi(-64);

    let top = top * 2f64.powi(-64);
    let rest = rest * 2f64.powi(-64);
    let (y, error) = product(top, x.float(FRAC_PI_2));
    let tail = error + top * PIO2_LO + rest * FRAC_PI_2;
    let sum = y + tail;

    let negative = x.lt(0.0);
    let signed = |v: V<'e>| negative.pick(-v, v);

    Ok([signed(quadrant), signed(sum), signed((y - sum) + tail)])
}

/// `a * b` and its rounding error.
fn product<'e>(a: V<'e>, b: V<'e>) -> (V<'e>, V<'e>) {
    let split = |v: V<'e>| {
        let t = v * 134_217_729.0;
        let high = t - (t - v);
        (high, v - high)
    };
    let ((ah, al), (bh, bl)) = (split(a), split(b));
    let p = a * b;
    (p, al * bl - (((p - ah * bh) - al * bh) - ah * bl))
}

fn sin_kernel<'e>(x: V<'e>, y: V<'e>) -> V<'e> {
    let z = x * x;
    let r = z.poly(&SIN[1..]);
    let v = z * x;
    x - ((z * (0.5 * y - v * r) - y) - v * SIN[0])
}

fn cos_kernel<'e>(x: V<'e>, y: V<'e>) -> V<'e> {
    let z = x * x;
    let r = z * z.poly(&COS);
    let half = 0.5 * z;
    let w = 1.0 - half;
    w + (((1.0 - w) - half) + (z * r - x * y))
}

/// Sine and cosine of a finite number.
fn both<'e>(x: V<'e>) -> Result<(V<'e>, V<'e>)> {
    let [n, y0, y1] = reduce(x)?;
    let s = sin_kernel(y0, y1);
    let c = cos_kernel(y0, y1);
    let odd = (n & n.int(1)).int_eq(1);
    let (s, c) = (odd.pick(c, s), odd.pick(s, c));
    let sin = (n & n.int(2)).int_eq(2).pick(-s, s);
    let cos = ((n + 1) & n.int(2)).int_eq(2).pick(-c, c);
    Ok((sin, cos))
}

/// NaN if the argument is infinite.
fn finite<'e>(x: V<'e>, result: V<'e>) -> V<'e> {
    x.abs().lt(f64::INFINITY).pick(result, x.float(f64::NAN))
}

/// Below this limit an odd function returns its argument. The kernels would lose the sign of zero.
const TINY: f64 = 1e-20;

pub(super) fn sin<'e>(x: V<'e>) -> Result<V<'e>> {
    let (sin, _) = both(x)?;
    Ok(x.abs().lt(TINY).pick(x, finite(x, sin)))
}

pub(super) fn cos<'e>(x: V<'e>) -> Result<V<'e>> {
    let (_, cos) = both(x)?;
    Ok(finite(x, cos))
}

pub(super) fn tan<'e>(x: V<'e>) -> Result<V<'e>> {
    let (sin, cos) = both(x)?;
    Ok(x.abs().lt(TINY).pick(x, finite(x, sin / cos)))
}

const ASIN_P: [f64; 6] = [
    0.166_666_666_666_666_66,
    -0.325_565_818_622_400_9,
    0.201_212_532_134_862_93,
    -0.040_055_534_500_679_41,
    0.000_791_534_994_289_814_5,
    3.479_331_075_960_212e-5,
];
const ASIN_Q: [f64; 5] = [
    1.0,
    -2.403_394_911_734_414,
    2.020_945_760_233_505_7,
    -0.688_283_971_605_453_3,
    0.077_038_150_555_901_94,
];

fn asin_ratio(z: V<'_>) -> V<'_> {
    z * z.poly(&ASIN_P) / z.poly(&ASIN_Q)
}

pub(super) fn asin(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let small = a + a * asin_ratio(a * a);

    let z = (1.0 - a) * 0.5;
    let s = z.sqrt();
    let r = asin_ratio(z);
    let near_one = FRAC_PI_2 - (2.0 * (s + s * r) - PIO2_LO);
    let f = s.high();

    // At 1 both are zero, and `near_one` is selected.
    let c = (z - f * f) / (s + f);
    let middle = 0.5 * FRAC_PI_2 - ((2.0 * s * r - (PIO2_LO - 2.0 * c)) - (0.5 * FRAC_PI_2 - 2.0 * f));
    let large = a.gt(0.975).pick(near_one, middle);
    a.lt(0.5).pick(small, large).copysign(x)
}

pub(super) fn acos(x: V<'_>) -> V<'_> {
    let small = FRAC_PI_2 - (x - (PIO2_LO - x * asin_ratio(x * x)));
    let z = (1.0 - x.abs()) * 0.5;
    let s = z.sqrt();
    let r = asin_ratio(z);
    let negative = 2.0 * (FRAC_PI_2 - (s + (r * s - PIO2_LO)));
    let f = s.high();
    let c = (z - f * f) / (s + f);
    let positive = 2.0 * (f + (r * s + c));
    let large = x.lt(0.0).pick(negative, positive);
    let result = x.abs().lt(0.5).pick(small, large);
    x.eq(1.0).pick_const(0.0, result)
}

const ATAN_ODD: [f64; 6] = [
    0.333_333_333_333_329_3,
    0.142_857_142_725_034_66,
    0.090_908_871_334_365_07,
    0.066_610_731_373_875_31,
    0.049_768_779_946_159_324,
    0.016_285_820_115_365_782,
];
const ATAN_EVEN: [f64; 5] = [
    -0.199_999_999_998_764_83,
    -0.111_111_104_054_623_56,
    -0.076_918_762_050_448_3,
    -0.058_335_701_337_905_735,
    -0.036_531_572_744_216_916,
];
/// From where on, arctangent of the middle of the interval, and its tail.
const ATAN_STEPS: [(f64, f64, f64); 4] = [
    (0.4375, 0.463_647_609_000_806_1, 2.269_877_745_296_168_7e-17),
    (0.6875, FRAC_PI_4, 3.061_616_997_868_383e-17),
    (1.1875, 0.982_793_723_247_329, 1.390_331_103_123_099_8e-17),
    (2.4375, FRAC_PI_2, 6.123_233_995_736_766e-17),
];

pub(super) fn atan(x: V<'_>) -> V<'_> {
    let a = x.abs();
    let mut above = a;
    let mut below = x.float(1.0);
    let mut high = x.float(0.0);
    let mut low = x.float(0.0);

    let quotients =
        [(2.0 * a - 1.0, a + 2.0), (a - 1.0, a + 1.0), (a - 1.5, 1.5 * a + 1.0), (x.float(-1.0), a)];
    for ((from, hi, lo), (top, bottom)) in ATAN_STEPS.into_iter().zip(quotients) {
        let here = a.ge(from);
        (above, below) = (here.pick(top, above), here.pick(bottom, below));
        (high, low) = (here.pick_const(hi, high), here.pick_const(lo, low));
    }

    let t = above / below;
    let z = t * t;
    let w = z * z;
    let sum = z * w.poly(&ATAN_ODD) + w * w.poly(&ATAN_EVEN);
    (high - (t * sum - low - t)).copysign(x)
}

pub(super) fn atan2<'e>(y: V<'e>, x: V<'e>) -> V<'e> {
    const PI_LO: f64 = 2.0 * PIO2_LO;
    let ax = x.abs();

    let ay = y.abs();
    let both_infinite = ax.eq(f64::INFINITY) & ay.eq(f64::INFINITY);
    let both_zero = ax.eq(0.0) & ay.eq(0.0);
    let first = atan(ay / ax);
    let first = both_infinite.pick_const(FRAC_PI_4, first);
    let first = both_zero.pick_const(0.0, first);

    let negative = x.bits().int_lt(0);
    let mirrored = PI - (first - PI_LO);
    let result = negative.pick(mirrored, first).copysign(y);

    (x.is_nan() | y.is_nan()).pick_const(f64::NAN, result)
}
