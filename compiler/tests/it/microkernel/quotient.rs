//! Quotients by constants, which are products with reciprocals.

use super::{
    jit::isas,
    strips::{computed, sweep, ulp},
};
use symshape_compiler::{
    codegen::microkernel::{
        op::{Body, Op, Ty},
        quotient::{LEAST_QUOTIENT, QUOTIENT_ULP},
    },
    scalar::BinaryOp,
};

/// Divisors of models, powers of two, floats next to those, and the smallest and largest.
const DIVISORS: [f32; 24] = [
    6.0,
    3.0,
    -7.0,
    10.0,
    127.5,
    255.0,
    384.0,
    std::f32::consts::SQRT_2,
    5.656_854,
    0.007_843_114,
    1.0,
    -1.0,
    8.0,
    0.0625,
    1.000_000_1,
    0.999_999_94,
    -1.999_999_9,
    1e17,
    1e-17,
    1e30,
    1e-30,
    f32::MIN_POSITIVE,
    f32::MAX,
    0.0,
];

fn quotient(divisor: f32) -> Body {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let x = push(Op::Load(0), Ty::F32);
    let divisor = push(Op::Const(divisor.to_bits()), Ty::F32);
    let y = push(Op::Binary(BinaryOp::Div, x, divisor), Ty::F32);
    push(Op::Store(1, y), Ty::F32);
    body
}

#[test]
fn quotients_by_constants_stay_within_their_bound() {
    let x = sweep();
    for divisor in DIVISORS {
        for (isa, fma) in isas() {
            let y = computed((&*isa, fma), quotient(divisor), &[&x]);
            for (&x, &y) in x.iter().zip(&y) {
                let exact = f64::from(x) / f64::from(divisor);
                let small = exact != 0.0 && exact.abs() < f64::from(LEAST_QUOTIENT);
                let bound = if small { 1.0 } else { QUOTIENT_ULP };
                let same_sign = y.is_nan() || y.is_sign_negative() == exact.is_sign_negative();
                assert!(
                    ulp(y, exact) <= bound && same_sign,
                    "{} fma {fma}: {x:e} / {divisor:e} is {y:e}, not {exact:e}",
                    isa.name()
                );
            }
        }
    }
}

/// A model may round the quotient down, so a quotient just below an integer would be wrong by one.
#[test]
fn quotients_that_are_floats_are_exact() {
    let factors: Vec<f32> = (-5_000i16..5_000).map(f32::from).collect();
    for divisor in DIVISORS.into_iter().filter(|divisor| (1e-3..=1e3).contains(&divisor.abs())) {
        // Fewer bits, so that the products are exact.
        let divisor = f32::from_bits(divisor.to_bits() & !0x3fff);
        let x: Vec<f32> = factors.iter().map(|factor| factor * divisor).collect();
        for (isa, fma) in isas() {
            let y = computed((&*isa, fma), quotient(divisor), &[&x]);
            assert_eq!(y, factors, "{} fma {fma}: by {divisor:e}", isa.name());
        }
    }
}
