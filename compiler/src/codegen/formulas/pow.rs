//! Power: `x^y` as `2^(y log2 x)` with the logarithm in two doubles, as FreeBSD's msun (Sun Microsystems, 2004) does.

use super::value::V;

const DP_H: f64 = 0.584_962_487_220_764_2;
const DP_L: f64 = 1.350_039_202_129_749e-8;
const L: [f64; 6] = [
    0.599_999_999_999_994_6,
    0.428_571_428_578_550_2,
    0.333_333_329_818_377_43,
    0.272_728_123_808_534,
    0.230_660_745_775_561_75,
    0.206_975_017_800_338_42,
];
const P: [f64; 5] = [
    0.166_666_666_666_666_02,
    -0.002_777_777_777_701_559_3,
    6.613_756_321_437_934e-5,
    -1.653_390_220_546_525_2e-6,
    4.138_136_797_057_238_5e-8,
];
const LG2: f64 = std::f64::consts::LN_2;
const LG2_H: f64 = 0.693_147_182_464_599_6;
const LG2_L: f64 = -1.904_654_299_957_768e-9;
const CP: f64 = 0.961_796_693_925_975_6;
const CP_H: f64 = 0.961_796_700_954_437_3;
const CP_L: f64 = -7.028_461_650_952_758e-9;

/// `log2(a)` of a positive finite number, the first part short enough to be multiplied exactly.
fn log2<'e>(a: V<'e>) -> (V<'e>, V<'e>) {
    let small = a.lt(f64::MIN_POSITIVE);
    let bits = small.pick(a * 9_007_199_254_740_992.0, a).bits();
    let mantissa = bits & a.int((1 << 52) - 1);

    // Three intervals: around 1, around 1.5, and the upper end, which counts as just below 1.
    let upper = mantissa.int_ge(0xBB67A << 32).truth_to_int();
    let middle = mantissa.int_ge(0x3988F << 32).truth_to_int() - upper;
    let n = (bits >> 52) - 0x3ff + upper - small.pick(a.int(53), a.int(0));
    let bits = (mantissa | a.int(0x3ff << 52)) - (upper << 52);
    let x = bits.with_bits();

    let at_middle = middle.int_eq(1);
    let zero = a.float(0.0);
    let bp = at_middle.pick_const(1.5, a.float(1.0));
    let dp_h = at_middle.pick_const(DP_H, zero);
    let dp_l = at_middle.pick_const(DP_L, zero);

    // `(x - bp) / (x + bp)` in two parts.
    let u = x - bp;
    let v = 1.0 / (x + bp);
    let ss = u * v;
    let s_h = ss.high();

    let sum_bits = ((bits >> 1) | a.int(0x2000_0000 << 32)) + (0x0008_0000 << 32) + (middle << 50);
    let t_h = sum_bits.with_bits().high();
    let t_l = x - (t_h - bp);
    let s_l = v * ((u - s_h * t_h) - s_h * t_l);

    let s2 = ss * ss;
    let r = s2 * s2 * s2.poly(&L) + s_l * (s_h + ss);
    let s2 = s_h * s_h;
    let t_h = (3.0 + s2 + r).high();
    let t_l = r - ((t_h - 3.0) - s2);

    let u = s_h * t_h;
    let v = s_l * t_h + t_l * ss;
    let p_h = (u + v).high();
    let p_l = v - (p_h - u);

    let z_h = p_h * CP_H;
    let z_l = p_h * CP_L + p_l * CP + dp_l;
    let t = n.to_float();
    let t1 = (((z_h + z_l) + dp_h) + t).high();

    (t1, z_l - (((t1 - t) - dp_h) - z_h))
}

/// `2^(high + low)`.
fn exp2<'e>(high: V<'e>, low: V<'e>) -> V<'e> {
    let total = high + low;
    let n = total.max(-1200.0).min(1200.0).round();
    let high = high - n;
    let t = (low + high).high();
    let u = t * LG2_H;

    let v = (low - (t - high)) * LG2 + t * LG2_L;
    let z = u + v;
    let w = v - (z - u);

    let t = z * z;
    let t1 = z - t * t.poly(&P);
    let r = (z * t1) / (t1 - 2.0) - (w + z * w);
    let result = (1.0 - (r - z)).scale(n.to_small_int());
    let result = total.gt(1025.0).pick_const(f64::INFINITY, result);

    total.lt(-1080.0).pick_const(0.0, result)
}

pub(super) fn pow<'e>(x: V<'e>, y: V<'e>) -> V<'e> {
    let a = x.abs();

    // Larger exponents give 0, 1 or infinity all the same, and an infinite one would not split.
    let limited = y.max(-1e21).min(1e21);
    let (t1, t2) = log2(a);
    let y1 = limited.high();
    let power = exp2(y1 * t1, (limited - y1) * t1 + limited * t2);

    let up = y.gt(0.0);
    let zero = x.float(0.0);
    let infinity = x.float(f64::INFINITY);
    let power = a.eq(0.0).pick(up.pick(zero, infinity), power);
    let power = a.eq(f64::INFINITY).pick(up.pick(infinity, zero), power);

    let integer = y.trunc().same(y);
    let half = y * 0.5;
    let odd = integer & half.trunc().same(half).not();
    let negative = x.bits().int_lt(0);
    let signed = (negative & odd).pick(-power, power);

    // A negative finite number has no power that is not an integer.
    let undefined = x.lt(0.0) & a.lt(f64::INFINITY) & integer.not();
    let result = undefined.pick_const(f64::NAN, signed);
    let result = (y.eq(0.5) & x.ge(0.0)).pick(x.abs().sqrt(), result);
    let result = y.eq(2.0).pick(x * x, result);
    let result = (x.is_nan() | y.is_nan()).pick_const(f64::NAN, result);

    (y.eq(0.0) | x.eq(1.0)).pick_const(1.0, result)
}
