//! Quantisation, which rounds and clamps a quotient: the same integers as by its definition, step by step.

use super::{
    jit::{Compiled, address, address_mut, isas},
    strips::{set, strip},
};
use symshape_compiler::{
    codegen::microkernel::{
        MicrokernelKey,
        op::{Body, Op, StreamStep, Ty},
        strip::{Phase, StripKey},
    },
    scalar::{BinaryOp, UnaryOp},
};

/// `cast(round(x / scale) + zero)` of stream 0, and the quotient.
fn quantised(body: &mut Body, to: Ty, scale: Option<f32>, zero: i32) -> [u32; 2] {
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let mut x = push(Op::Load(0), Ty::F32);
    if let Some(scale) = scale {
        let scale = push(Op::Const(scale.to_bits()), Ty::F32);
        x = push(Op::Binary(BinaryOp::Div, x, scale), Ty::F32);
    }
    let round = push(Op::Unary(UnaryOp::Round, x), Ty::F32);
    let start = push(Op::Const((zero as f32).to_bits()), Ty::F32);
    let sum = push(Op::Binary(BinaryOp::Add, round, start), Ty::F32);
    [push(Op::Cast(sum), to), x]
}

/// The quantised stream, from which `zero` is subtracted again, as integers of 32 bits.
fn key(to: Ty, scale: Option<f32>, zero: i32) -> StripKey {
    let mut body = Body::default();
    let [byte, _] = quantised(&mut body, to, scale, zero);
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let wide = push(Op::Cast(byte), Ty::I32);
    let zero = push(Op::Const(zero as u32), Ty::I32);
    let bare = push(Op::Binary(BinaryOp::Sub, wide, zero), Ty::I32);
    push(Op::Store(1, bare), Ty::I32);
    strip(vec![Phase::Loop { extent: 0, body }], vec![StreamStep::Unit; 2])
}

/// The quantised stream as bytes, if `to_words` as integers too. Quotients are smaller than 2³⁰.
fn stored(to: Ty, scale: Option<f32>, zero: i32, last: StreamStep, to_words: bool) -> StripKey {
    let mut body = Body::default();
    let [byte, quotient] = quantised(&mut body, to, scale, zero);
    body.bounded = vec![quotient];
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    push(Op::Store(1, byte), to);
    push(Op::Store(2, byte), to);
    if to_words {
        let wide = push(Op::Cast(byte), Ty::I32);
        push(Op::Store(3, wide), Ty::I32);
    }
    let steps = vec![StreamStep::Unit, StreamStep::Unit, last, StreamStep::Unit];
    strip(vec![Phase::Loop { extent: 0, body }], steps)
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

/// Bytes from element to element of the strided stream.
const STRIDE: usize = 3;

/// The bytes of memory before the call.
const UNTOUCHED: u8 = 0x5a;

/// The arguments of [`stored`].
#[derive(Clone, Copy)]
struct Stored {
    to: Ty,
    scale: Option<f32>,
    zero: i32,
    last: StreamStep,
    to_words: bool,
}

/// Runs [`stored`] on the first of these elements, and compares each byte with its definition.
fn check_stored(code: &Compiled, key: &StripKey, case: Stored, x: &[f32], count: usize, isa: &str) {
    let Stored { to, scale, zero, last, to_words } = case;
    let stride = if last == StreamStep::Unit { 1 } else { STRIDE };
    let mut bytes = vec![UNTOUCHED; x.len()];
    let mut strided = vec![UNTOUCHED; x.len() * stride];
    let mut words = vec![0i32; x.len()];
    let mut args = vec![0; key.slots()];
    args[key.extent(0)] = count as i64;
    set(&mut args, key, 0, address(x), 0, 4);
    set(&mut args, key, 1, address_mut(&mut bytes), 0, 1);
    set(&mut args, key, 2, address_mut(&mut strided), 0, stride);
    set(&mut args, key, 3, address_mut(&mut words), 0, 4);
    code.call(&mut args);

    for (at, x) in x.iter().enumerate() {
        let value = defined(to, scale, zero, *x) + zero;
        let expected = if at < count { value as u8 } else { UNTOUCHED };
        let place = format!("{isa} {at} of {count}: {x} / {scale:?} + {zero} as {to:?}");
        assert_eq!(bytes[at], expected, "{place}");
        assert_eq!(strided[at * stride], expected, "{place}");
        assert!(!to_words || at >= count || words[at] == value, "{place}: {}", words[at]);
    }
    let is_untouched = |at: usize| at.is_multiple_of(stride) || strided[at] == UNTOUCHED;
    assert!((0..strided.len()).all(is_untouched), "{isa}");
}

#[test]
fn stored_bytes_are_clamped_as_defined() {
    let far =
        [-1e9, -70_000.0, -40_000.0, -33_000.0, -300.0, 300.0, 33_000.0, 40_000.0, 70_000.0, 1e9, 1.073e9];
    // Around both bounds of all types and zero points, ties among them.
    let near = (-1600..1600).map(|n| n as f32 * 0.25);
    let quotients: Vec<f32> = far.into_iter().chain(near).collect();
    assert_eq!(quotients.len() % 16, 11, "the last vector is not whole");
    let zeros = [0, 3, 128, 255].map(|zero| (Ty::U8, zero));
    let signed_zeros = [0, 3, -128, 127].map(|zero| (Ty::I8, zero));
    for (isa, fma) in isas() {
        for (to, zero) in zeros.into_iter().chain(signed_zeros) {
            for (scale, last, to_words) in [
                (None, StreamStep::Unit, false),
                (Some(0.1), StreamStep::Stride, false),
                (Some(0.1), StreamStep::Unit, true),
            ] {
                let x: Vec<f32> = quotients.iter().map(|quotient| quotient * scale.unwrap_or(1.0)).collect();
                let key = stored(to, scale, zero, last, to_words);
                let code = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
                let case = Stored { to, scale, zero, last, to_words };
                for count in [1, 3, 8, 11, 15, 16, 17, 31, 33, x.len()] {
                    check_stored(&code, &key, case, &x, count, isa.name());
                }
            }
        }
    }
}

#[test]
fn stores_clamp_where_nothing_else_reads_the_bytes() {
    for (isa, _) in isas().into_iter().filter(|(isa, _)| isa.shape().clamping_stores) {
        let text = |to, to_words| {
            let key = stored(to, Some(0.1), 3, StreamStep::Unit, to_words);
            MicrokernelKey::Strip(key).code(&*isa).to_string()
        };
        let clamps = |text: &str| ["MinInt", "Clamp"].map(|op| text.contains(op));
        for to in [Ty::I8, Ty::U8] {
            assert_eq!(clamps(&text(to, false)), [false, true]);
            assert_eq!(clamps(&text(to, true)), [true, false]);
        }
    }
}
