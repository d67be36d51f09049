//! Quantisation, which rounds and clamps a quotient: the same integers as by its definition, step by step.

use super::jit::{Compiled, address, address_mut, isas};
use symshape_compiler::{
    codegen::microkernel::{
        MicrokernelKey,
        op::{Body, Op, StreamStep, Ty},
        strip::{Phase, Stream, StripKey},
    },
    scalar::{BinaryOp, UnaryOp},
};

/// `cast(round(x / scale) + zero)`, from which `zero` is subtracted again, as integers of 32 bits.
fn key(to: Ty, scale: Option<f32>, zero: i32) -> StripKey {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let mut x = push(Op::Load(0), Ty::F32);
    if let Some(scale) = scale {
        let scale = push(Op::Const(scale.to_bits()), Ty::F32);
        x = push(Op::Binary(BinaryOp::Div, x, scale), Ty::F32);
    }
    let round = push(Op::Unary(UnaryOp::Round, x), Ty::F32);
    let start = push(Op::Const((zero as f32).to_bits()), Ty::F32);
    let sum = push(Op::Binary(BinaryOp::Add, round, start), Ty::F32);
    let byte = push(Op::Cast(sum), to);
    let wide = push(Op::Cast(byte), Ty::I32);
    let zero = push(Op::Const(zero as u32), Ty::I32);
    let bare = push(Op::Binary(BinaryOp::Sub, wide, zero), Ty::I32);
    push(Op::Store(1, bare), Ty::I32);
    StripKey {
        rows: false,
        phases: vec![Phase::Loop { extent: 0, body }],
        row_steps: vec![StreamStep::Stride; 2],
        pointers: vec![StreamStep::Unit; 2],
        streams: [0, 1].map(|pointer| Stream { pointer, offset: 0 }).to_vec(),
        extents: 1,
        scalars: 0,
        variables: 0,
        results: Vec::new(),
        may_fail: false,
        counts: false,
    }
}

fn defined(to: Ty, scale: Option<f32>, zero: i32, x: f32) -> i32 {
    let (lo, hi) = if to == Ty::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
    let quotient = x / scale.unwrap_or(1.0);
    let sum = quotient.round_ties_even() + zero as f32;
    // The cast turns NaN into 0.
    (if sum.is_nan() { 0 } else { sum.clamp(lo, hi) as i32 }) - zero
}

#[test]
fn quotients_are_rounded_as_defined() {
    let scales = [1.0, 0.25, 0.1, 0.007_874_016, 1.0 / 255.0, 0.0412_381, 3.7e-3, 1e-12, 1e-30, 7.3, 1e20];
    for (isa, fma) in isas() {
        for (to, zero) in
            [(Ty::U8, 0), (Ty::U8, 128), (Ty::U8, 255), (Ty::I8, 0), (Ty::I8, -128), (Ty::I8, 7)]
        {
            for scale in scales.map(Some).into_iter().chain([None]) {
                let special =
                    [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, 3e9];
                // Around all midpoints between two integers, and beyond the bounds.
                let halves = (-600..600).flat_map(|n| {
                    let half = (n as f32 * 0.5) * scale.unwrap_or(1.0);
                    [half.next_down(), half, half.next_up(), half * 1.003]
                });
                let x: Vec<f32> = halves.chain(special).collect();
                let key = key(to, scale, zero);
                let mut y = vec![0_i32; x.len()];
                let mut args = vec![0; key.slots()];
                args[StripKey::ROWS] = 1;
                args[key.extent(0)] = x.len() as i64;
                for (pointer, start) in [address(&x), address_mut(&mut y)].into_iter().enumerate() {
                    args[key.pointer(pointer as u32)..][..3].copy_from_slice(&[start, 0, 4]);
                }
                Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);
                for (x, y) in x.iter().zip(&y) {
                    let expected = defined(to, scale, zero, *x);
                    assert_eq!(*y, expected, "{} {x} / {scale:?} + {zero} as {to:?}", isa.name());
                }
            }
        }
    }
}
