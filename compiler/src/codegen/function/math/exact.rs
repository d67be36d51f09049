//! Functions whose results are exact: remainders of doubles, and powers of integers.

use super::super::FuncCtx;
use cranelift_codegen::ir::{
    BlockArg, InstBuilder, MemFlagsData, Value,
    condcodes::{FloatCC, IntCC},
    types,
};

/// The leading bit of the mantissa, which doubles do not store.
const HIDDEN: i64 = 1 << 52;

/// A positive double as mantissa (with its leading bit at position 52) and biased exponent, which is below 1 for
/// subnormal numbers.
fn split(f: &mut FuncCtx, x: Value) -> (Value, Value) {
    let bits = f.ins().bitcast(types::I64, MemFlagsData::new(), x);
    let exponent = f.ins().ushr_imm_u(bits, 52);
    let fraction = f.ins().band_imm_s(bits, HIDDEN - 1);
    let normal = f.ins().bor_imm_s(fraction, HIDDEN);

    let zeros = f.ins().clz(fraction);
    let shift = f.ins().iadd_imm_s(zeros, -11);
    let shifted = f.ins().ishl(fraction, shift);

    let one = f.int(1);
    let low = f.ins().isub(one, shift);
    let subnormal = f.ins().icmp_imm_u(IntCC::Equal, exponent, 0);
    let mantissa = f.ins().select(subnormal, shifted, normal);

    (mantissa, f.ins().select(subnormal, low, exponent))
}

/// `x % y` with the sign of `x`: long division of the mantissas, one bit of the quotient at a time.
pub(super) fn fmod(f: &mut FuncCtx, x: Value, y: Value) -> Value {
    let [work, head, step, tail, done] = [0; 5].map(|_| f.create_block());
    let result = f.builder.append_block_param(done, types::F64);
    let ax = f.ins().fabs(x);
    let ay = f.ins().fabs(y);

    // The result is `x` if it is below `y`, and NaN if `x` is not finite, `y` is zero, or either is NaN.
    let nan = f.ins().f64const(f64::NAN);
    let zero = f.zero(types::F64);
    let infinity = f.ins().f64const(f64::INFINITY);
    let below = f.ins().fcmp(FloatCC::LessThan, ax, ay);
    let finite = f.ins().fcmp(FloatCC::LessThan, ax, infinity);
    let divisible = f.ins().fcmp(FloatCC::GreaterThan, ay, zero);
    let valid = f.ins().band(finite, divisible);
    let not_below = f.ins().bxor_imm_u(below, 1);
    let divides = f.ins().band(valid, not_below);
    let early = f.ins().select(below, x, nan);
    f.ins().brif(divides, work, &[], done, &[BlockArg::Value(early)]);

    f.switch_to_block(work);
    let ((mx, ex), (my, ey)) = (split(f, ax), split(f, ay));
    let [m, e] = [types::I64; 2].map(|ty| f.builder.append_block_param(head, ty));
    f.ins().jump(head, &[mx.into(), ex.into()]);

    f.switch_to_block(head);
    let less = f.ins().isub(m, my);
    let fits = f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, less, 0);
    let rest = f.ins().select(fits, less, m);
    let more = f.ins().icmp(IntCC::SignedGreaterThan, e, ey);
    f.ins().brif(more, step, &[], tail, &[]);

    f.switch_to_block(step);
    let doubled = f.ins().ishl_imm_u(rest, 1);
    let lower = f.ins().iadd_imm_s(e, -1);
    f.ins().jump(head, &[doubled.into(), lower.into()]);

    f.switch_to_block(tail);
    // The remainder is an integer that a double holds exactly. Two factors scale it exactly for all exponents.
    let magnitude = f.ins().fcvt_from_sint(types::F64, rest);
    let k = f.ins().iadd_imm_s(ey, -1075);
    let half = f.ins().sshr_imm_u(k, 1);
    let other = f.ins().isub(k, half);
    let [first, second] = [half, other].map(|k| {
        let biased = f.ins().iadd_imm_s(k, 1023);
        let bits = f.ins().ishl_imm_u(biased, 52);
        f.ins().bitcast(types::F64, MemFlagsData::new(), bits)
    });
    let scaled = f.ins().fmul(magnitude, first);
    let scaled = f.ins().fmul(scaled, second);
    let signed = f.ins().fcopysign(scaled, x);
    f.ins().jump(done, &[signed.into()]);

    f.switch_to_block(done);
    result
}

/// The remainder with the sign of `y`, computed from the remainder with the sign of `x`.
pub(super) fn modulo(f: &mut FuncCtx, x: Value, y: Value) -> Value {
    let rest = fmod(f, x, y);
    let zero = f.zero(types::F64);
    let signed_zero = f.ins().fcopysign(zero, y);
    let is_zero = f.ins().fcmp(FloatCC::Equal, rest, zero);
    let negative = f.ins().fcmp(FloatCC::LessThan, rest, zero);
    let below = f.ins().fcmp(FloatCC::LessThan, y, zero);
    let differ = f.ins().bxor(negative, below);
    let shifted = f.ins().fadd(rest, y);
    let result = f.ins().select(differ, shifted, rest);
    f.ins().select(is_zero, signed_zero, result)
}

/// `x^exponent` by squaring, wrapping. A negative exponent gives the truncated quotient `1 / x^-exponent`.
pub(super) fn int_pow(f: &mut FuncCtx, x: Value, exponent: Value, signed: bool) -> Value {
    let [head, body, done] = [0; 3].map(|_| f.create_block());
    let result = f.builder.append_block_param(done, types::I64);
    let [base, remaining, power] = [types::I64; 3].map(|ty| f.builder.append_block_param(head, ty));
    let one = f.int(1);
    if signed {
        let negative = f.ins().icmp_imm_s(IntCC::SignedLessThan, exponent, 0);
        let is_one = f.ins().icmp_imm_s(IntCC::Equal, x, 1);
        let is_minus = f.ins().icmp_imm_s(IntCC::Equal, x, -1);
        let odd = f.ins().band_imm_u(exponent, 1);
        let zero = f.int(0);
        let minus = f.int(-1);
        let alternating = f.ins().select(odd, minus, one);
        let other = f.ins().select(is_minus, alternating, zero);
        let quotient = f.ins().select(is_one, one, other);
        f.ins().brif(negative, done, &[quotient.into()], head, &[x.into(), exponent.into(), one.into()]);
    } else {
        f.ins().jump(head, &[x.into(), exponent.into(), one.into()]);
    }

    f.switch_to_block(head);
    f.ins().brif(remaining, body, &[], done, &[power.into()]);

    f.switch_to_block(body);
    let bit = f.ins().band_imm_u(remaining, 1);
    let product = f.ins().imul(power, base);
    let power = f.ins().select(bit, product, power);
    let square = f.ins().imul(base, base);
    let rest = f.ins().ushr_imm_u(remaining, 1);
    f.ins().jump(head, &[square.into(), rest.into(), power.into()]);

    f.switch_to_block(done);
    result
}
