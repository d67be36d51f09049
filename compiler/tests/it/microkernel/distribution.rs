//! Distribution functions: `1 + erf x` and `1 + tanh x`, which one exponential computes.

use super::{
    jit::isas,
    strips::{computed, erf, sweep},
};
use symshape_compiler::{
    codegen::microkernel::{
        distribution::MAX_ERROR,
        op::{Body, Op, Ty},
    },
    scalar::{BinaryOp, UnaryOp},
};

/// Who else reads the values that the sum is matched from.
#[derive(Clone, Copy, PartialEq, Debug)]
enum OtherReader {
    None,
    /// A second sum reads the quotient.
    OfQuotient,
    /// A second sum reads the function.
    OfFunction,
}

/// `1 + function(x / divisor)` of stream 0 to stream 1. Other readers add the value that they read.
fn one_plus(function: UnaryOp, divisor: Option<f32>, one_first: bool, reader: OtherReader) -> Body {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let x = push(Op::Load(0), Ty::F32);
    let mut argument = x;
    if let Some(divisor) = divisor {
        let divisor = push(Op::Const(divisor.to_bits()), Ty::F32);
        argument = push(Op::Binary(BinaryOp::Div, x, divisor), Ty::F32);
    }
    let value = push(Op::Unary(function, argument), Ty::F32);
    let one = push(Op::Const(1f32.to_bits()), Ty::F32);
    let (lhs, rhs) = if one_first { (one, value) } else { (value, one) };
    let mut sum = push(Op::Binary(BinaryOp::Add, lhs, rhs), Ty::F32);
    let other = match reader {
        OtherReader::None => None,
        OtherReader::OfQuotient => Some(argument),
        OtherReader::OfFunction => Some(value),
    };
    if let Some(other) = other {
        sum = push(Op::Binary(BinaryOp::Add, sum, other), Ty::F32);
    }
    push(Op::Store(1, sum), Ty::F32);
    body
}

fn exact(function: UnaryOp, x: f64) -> f64 {
    if function == UnaryOp::Erf { erf(x) } else { x.tanh() }
}

#[test]
fn distribution_functions_stay_within_their_bound() {
    let x = sweep();
    for function in [UnaryOp::Erf, UnaryOp::Tanh] {
        // The reciprocal of the last one is a subnormal float, so that remains a division.
        for divisor in [None, Some(std::f32::consts::SQRT_2), Some(-0.3), Some(3e38)] {
            for (isa, fma) in isas() {
                let body = one_plus(function, divisor, fma, OtherReader::None);
                let y = computed((&*isa, fma), body, &[&x]);
                let mut worst = (0.0, 0.0);
                for (&x, &y) in x.iter().zip(&y) {
                    let argument = f64::from(x) / f64::from(divisor.unwrap_or(1.0));
                    let expected = 1.0 + exact(function, argument);
                    assert_eq!(y.is_nan(), expected.is_nan(), "{}: {function:?} of {x:e}", isa.name());
                    let error = if y.is_nan() { 0.0 } else { (f64::from(y) - expected).abs() };
                    if error > worst.0 {
                        worst = (error, x);
                    }
                    assert!(y.is_nan() || (0.0..=2.0).contains(&y), "{}: {y} for {x:e}", isa.name());
                }
                let name = format!("{} fma {fma}: {function:?} by {divisor:?}", isa.name());
                println!("{name}: {:.2} of the bound at {:e}", worst.0 / MAX_ERROR, worst.1);
                assert!(worst.0 <= MAX_ERROR, "{name}: {:e} off at {:e}", worst.0, worst.1);
            }
        }
    }
}

/// Far below zero, GELU multiplies the result by large numbers.
#[test]
fn distribution_functions_vanish_far_below_zero() {
    let x: Vec<f32> = (6..200).map(|k: i16| -2.0 * f32::from(k)).collect();
    let x = [x, vec![-1e4, -1e30, f32::MIN, f32::NEG_INFINITY]].concat();
    for function in [UnaryOp::Erf, UnaryOp::Tanh] {
        for (isa, fma) in isas() {
            let y = computed((&*isa, fma), one_plus(function, None, false, OtherReader::None), &[&x]);
            for (&x, &y) in x.iter().zip(&y) {
                let bound = if x < -45.0 { 1e-36 } else { 1e-10 };
                assert!((0.0..bound).contains(&y), "{}: {function:?} of {x:e} gives {y:e}", isa.name());
            }
        }
    }
}

#[test]
fn other_readers_of_a_distribution_have_its_values() {
    let x = sweep();
    for function in [UnaryOp::Erf, UnaryOp::Tanh] {
        for reader in [OtherReader::OfQuotient, OtherReader::OfFunction] {
            for (isa, fma) in isas() {
                let body = one_plus(function, Some(2.0), false, reader);
                let y = computed((&*isa, fma), body, &[&x]);
                for (&x, &y) in x.iter().zip(&y) {
                    let argument = f64::from(x) / 2.0;
                    let value = exact(function, argument);
                    let other = if reader == OtherReader::OfFunction { value } else { argument };
                    let expected = 1.0 + value + other;
                    // The second sum is rounded too.
                    let close = (f64::from(y) - expected).abs() <= 2.0 * MAX_ERROR * expected.abs().max(1.0);
                    let same = f64::from(y) == expected || y.is_nan() && expected.is_nan();
                    assert!(close || same, "{}: {reader:?}, {function:?} of {x:e} is {y:e}", isa.name());
                }
            }
        }
    }
}
