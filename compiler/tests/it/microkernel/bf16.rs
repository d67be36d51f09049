//! Strips over bf16, bit by bit as the scalar semantics define.

use super::{
    jit::{Compiled, address, address_mut, isas, isas_of_tiles},
    strips::{set, strip, sweep},
};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            op::{Body, Op, StreamStep, Ty},
            strip::Phase,
        },
        vector::VectorIsa,
    },
    scalar::{BinaryOp, Scalar, UnaryOp, eval, precision},
};
use symshape_runtime::DType;

/// The content of memory that nothing is stored to.
const CANARY: u16 = 0x5a5a;

fn all_isas() -> Vec<(Box<dyn VectorIsa>, bool)> {
    isas().into_iter().chain(isas_of_tiles()).collect()
}

/// The bf16 that a float is cast to.
fn cast(x: f32) -> u16 {
    eval::cast(DType::BF16, Scalar::from_bits(DType::F32, x.to_bits().into())).bits() as u16
}

fn float(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

fn is_nan(half: u16) -> bool {
    half & 0x7fff > 0x7f80
}

/// `z = cast bf16 (x + y)`, rounded so that denormals are zero or not, `x` a float and `y` a bf16.
fn sum(high: bool) -> Body {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let (x, y) = (push(Op::Load(0), Ty::F32), push(Op::Load(1), Ty::Bf16));
    let y = push(Op::Cast(y), Ty::F32);
    let mut z = push(Op::Binary(BinaryOp::Add, x, y), Ty::F32);
    if high {
        z = push(Op::Unary(UnaryOp::RoundBf16, z), Ty::F32);
    }
    let z = push(Op::Cast(z), Ty::Bf16);
    push(Op::Store(2, z), Ty::Bf16);
    body
}

#[test]
fn sums_of_every_length_are_rounded() {
    for (isa, fma) in all_isas() {
        for high in [true, false] {
            for (along, step) in [(StreamStep::Unit, 1), (StreamStep::Stride, 3)] {
                let phases = vec![Phase::Loop { extent: 0, body: sum(high) }];
                let key = strip(phases, vec![along, along, along]);
                let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
                for n in (0..40).chain([64, 127]) {
                    let x: Vec<f32> = (0..n * step).map(|at| (at as f32 - 31.0) * 1.7).collect();
                    let y: Vec<u16> = (0..n * step).map(|at| cast(1e-3 * at as f32)).collect();
                    let mut z = vec![CANARY; n * step + 1];
                    let mut args = vec![0; key.slots()];
                    args[key.extent(0)] = n as i64;
                    set(&mut args, &key, 0, address(&x), 0, 4 * step);
                    set(&mut args, &key, 1, address(&y), 0, 2 * step);
                    set(&mut args, &key, 2, address_mut(&mut z), 0, 2 * step);
                    compiled.call(&mut args);
                    for (at, got) in z.iter().enumerate() {
                        let wanted = match at % step == 0 && at < n * step {
                            true => cast(x[at] + float(y[at])),
                            false => CANARY,
                        };
                        assert_eq!(*got, wanted, "{} {at} of {n}, {step} apart", isa.name());
                    }
                }
            }
        }
    }
}

/// The bits of a strip `y = body(x)`, rounded to bf16.
fn rounded(isa: &dyn VectorIsa, fma: bool, high: bool, x: &[f32]) -> Vec<u16> {
    let zeros = vec![0x8000_u16];
    let key = strip(
        vec![Phase::Loop { extent: 0, body: sum(high) }],
        vec![StreamStep::Unit, StreamStep::Fixed, StreamStep::Unit],
    );
    let mut y = vec![0; x.len()];
    let mut args = vec![0; key.slots()];
    args[key.extent(0)] = x.len() as i64;
    set(&mut args, &key, 0, address(x), 0, 4);
    set(&mut args, &key, 1, address(&zeros), 0, 0);
    set(&mut args, &key, 2, address_mut(&mut y), 0, 2);
    Compiled::new(&MicrokernelKey::Strip(key), isa, fma).call(&mut args);
    y
}

#[test]
fn every_float_becomes_the_nearest() {
    let mut x = sweep();
    // Halfway between two bf16, and the neighbours.
    x.extend(
        (0..1_u32 << 16)
            .flat_map(|half| [0x7fff, 0x8000, 0x8001].map(|low| f32::from_bits(half << 16 | low))),
    );
    for (isa, fma) in all_isas() {
        for high in [true, false] {
            let got = rounded(&*isa, fma, high, &x);
            for (x, got) in x.iter().zip(got) {
                let wanted = if high { (precision::high(*x).to_bits() >> 16) as u16 } else { cast(*x) };
                let same = got == wanted || is_nan(got) && is_nan(wanted);
                assert!(same, "{} {high} {:#x}: {got:#x}, not {wanted:#x}", isa.name(), x.to_bits());
            }
        }
    }
}

#[test]
fn a_rounded_value_may_have_other_readers() {
    // The rounded sum is stored as a float too.
    let mut body = sum(true);
    let at = body.insts.len() as u32 - 2;
    let wide = body.push(Op::Cast(at), Ty::F32).expect("supported");
    body.push(Op::Store(3, wide), Ty::F32).expect("supported");
    let key = strip(vec![Phase::Loop { extent: 0, body }], vec![StreamStep::Unit; 4]);
    for (isa, fma) in all_isas() {
        let x: Vec<f32> = (0..37).map(|at| at as f32 * 1.003).collect();
        let (y, mut z, mut wide) = (vec![cast(0.3); 37], vec![0_u16; 37], vec![0_f32; 37]);
        let mut args = vec![0; key.slots()];
        args[key.extent(0)] = 37;
        set(&mut args, &key, 0, address(&x), 0, 4);
        set(&mut args, &key, 1, address(&y), 0, 2);
        set(&mut args, &key, 2, address_mut(&mut z), 0, 2);
        set(&mut args, &key, 3, address_mut(&mut wide), 0, 4);
        Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma).call(&mut args);
        for (z, wide) in z.iter().zip(&wide) {
            assert_eq!(float(*z), *wide, "{}", isa.name());
        }
        assert_eq!(z[36], cast(x[36] + float(y[36])));
    }
}
