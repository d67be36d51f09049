//! Logistic functions, which one exponential and an estimated reciprocal compute.

use super::{
    jit::isas,
    strips::{computed, sweep, ulp},
};
use symshape_compiler::{
    codegen::microkernel::{
        logistic::{LOGISTIC_ULP, ZERO_BELOW},
        op::{Body, Op, Ty},
    },
    scalar::{BinaryOp, UnaryOp},
};

/// `x / (e^-x + 1)`, or the reciprocal alone. Another reader adds the sum.
fn logistic(has_dividend: bool, one_first: bool, has_reader: bool) -> Body {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let x = push(Op::Load(0), Ty::F32);
    let minus = push(Op::Unary(UnaryOp::Neg, x), Ty::F32);
    let power = push(Op::Unary(UnaryOp::Exp, minus), Ty::F32);
    let one = push(Op::Const(1f32.to_bits()), Ty::F32);
    let (lhs, rhs) = if one_first { (one, power) } else { (power, one) };
    let divisor = push(Op::Binary(BinaryOp::Add, lhs, rhs), Ty::F32);
    let quotient = match has_dividend {
        true => Op::Binary(BinaryOp::Div, x, divisor),
        false => Op::Unary(UnaryOp::Recip, divisor),
    };
    let mut y = push(quotient, Ty::F32);
    if has_reader {
        y = push(Op::Binary(BinaryOp::Add, y, divisor), Ty::F32);
    }
    push(Op::Store(1, y), Ty::F32);
    body
}

#[test]
fn logistic_functions_stay_within_their_bound() {
    let x = sweep();
    for (has_dividend, one_first) in [(false, false), (false, true), (true, false), (true, true)] {
        for (isa, fma) in isas() {
            let mut worst = (0.0, 0.0);
            let y = computed((&*isa, fma), logistic(has_dividend, one_first, false), &[&x]);
            for (&x, &y) in x.iter().zip(&y) {
                let dividend = if has_dividend { f64::from(x) } else { 1.0 };
                let exact = dividend / (1.0 + (-f64::from(x)).exp());
                // Here the reciprocal is subnormal, and may be zero.
                let error = if (-120.0..ZERO_BELOW).contains(&x) {
                    assert!((f64::from(y) - exact).abs() <= 1e-35, "{}: {y:e} of {x:e}", isa.name());
                    0.0
                } else {
                    ulp(y, exact)
                };
                if error > worst.0 {
                    worst = (error, x);
                }
            }
            let name = format!("{} fma {fma}: with a dividend {has_dividend}", isa.name());
            println!("{name}: {:.2} ulp at {:e}", worst.0, worst.1);
            assert!(worst.0 <= LOGISTIC_ULP, "{name}: {:.2} ulp at {:e}", worst.0, worst.1);
        }
    }
}

#[test]
fn other_readers_of_a_logistic_function_have_its_values() {
    let x: Vec<f32> = (-800..800).map(|k| k as f32 * 0.1).collect();
    for (isa, fma) in isas() {
        let y = computed((&*isa, fma), logistic(false, false, true), &[&x]);
        for (&x, &y) in x.iter().zip(&y) {
            let sum = 1.0 + (-f64::from(x)).exp();
            let exact = sum + 1.0 / sum;
            assert!(ulp(y, exact) <= LOGISTIC_ULP, "{}: {y:e} of {x:e}, not {exact:e}", isa.name());
        }
    }
}
