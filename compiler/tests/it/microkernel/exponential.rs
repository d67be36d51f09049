//! Exponentials that are zero below a limit: `exp(select(x < limit, -inf, x))`, which one function computes.

use super::{
    jit::isas,
    strips::{computed, sweep, ulp},
};
use symshape_compiler::{
    codegen::microkernel::{
        math::MAX_ULP,
        op::{Body, Op, Ty},
    },
    scalar::{BinaryOp, CompareOp, UnaryOp},
};

/// The exponential of stream 0 to stream 1. `adds` also adds the selected argument, so that it has another reader.
fn exp_above(limit: f32, adds: bool) -> Body {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let x = push(Op::Load(0), Ty::F32);
    let limit = push(Op::Const(limit.to_bits()), Ty::F32);
    let below = push(Op::Const(f32::NEG_INFINITY.to_bits()), Ty::F32);
    let is_below = push(Op::Compare(CompareOp::Lt, x, limit), Ty::Bool);
    let argument = push(Op::Select(is_below, below, x), Ty::F32);
    let mut power = push(Op::Unary(UnaryOp::Exp, argument), Ty::F32);
    if adds {
        power = push(Op::Binary(BinaryOp::Add, argument, power), Ty::F32);
    }
    push(Op::Store(1, power), Ty::F32);
    body
}

/// Arguments, with those next to the limit on both sides.
fn arguments(limit: f32) -> Vec<f32> {
    let mut x = sweep();
    x.extend([limit, limit.next_down(), limit.next_up()]);
    x
}

#[test]
fn powers_below_the_limit_are_zero() {
    // Only limits from -86.6 to 0 are matched. The others are an exponential of a selection.
    for limit in [-86.5, -86.6, -1.0, 0.0, -86.7, -100.0, 3.0] {
        let x = arguments(limit);
        for (isa, fma) in isas() {
            let y = computed((&*isa, fma), exp_above(limit, false), &[&x]);
            for (&x, &y) in x.iter().zip(&y) {
                let exact = if x < limit { 0.0 } else { f64::from(x).exp() };
                let error = ulp(y, exact);
                let name = isa.name();
                assert!(error <= MAX_ULP, "{name}: e^{x:e} above {limit} = {y:e}, {error} ulp off");
                assert!(x >= limit || x.is_nan() || y.to_bits() == 0, "{name}: {y:e} below {limit}");
            }
        }
    }
}

#[test]
fn other_readers_of_the_argument_have_its_value() {
    let limit = -86.5;
    let x = arguments(limit);
    for (isa, fma) in isas() {
        let alone = computed((&*isa, fma), exp_above(limit, false), &[&x]);
        let sums = computed((&*isa, fma), exp_above(limit, true), &[&x]);
        for ((&x, &power), &sum) in x.iter().zip(&alone).zip(&sums) {
            let argument = if x < limit { f32::NEG_INFINITY } else { x };
            let expected = argument + power;
            let same = sum == expected || sum.is_nan() && expected.is_nan();
            assert!(same, "{}: {x:e} gives {sum:e} instead of {expected:e}", isa.name());
        }
    }
}
