//! Products of bytes and of 16-bit integers in lanes of 32 bits, which x86 computes by pairs of 16 bits.

use super::{
    jit::{Compiled, address, address_mut, isas},
    strips::{set, strip},
};
use symshape_compiler::{
    codegen::microkernel::{
        MicrokernelKey,
        op::{Body, Op, StreamStep, Ty},
        strip::Phase,
    },
    scalar::BinaryOp,
};

/// The values at the ends of a type and around zero, and some between, as its bytes.
fn values(ty: Ty) -> Vec<i64> {
    let range = match ty {
        Ty::U8 => 0..=255,
        Ty::I8 => -128..=127,
        _ => -32_768..=32_767,
    };
    let steps = range.clone().step_by(if ty == Ty::I16 { 419 } else { 1 });
    steps.chain([*range.start(), *range.end(), 1]).collect()
}

fn bytes(ty: Ty, values: impl Iterator<Item = i64>) -> Vec<u8> {
    let size = if ty == Ty::I16 { 2 } else { 1 };
    values.flat_map(|value| value.to_le_bytes()[..size].to_vec()).collect()
}

/// Terms of the long sum, which has several accumulators.
const TERMS: usize = 25;

/// From streams 0 to 2 of these types: `x*y + x*z + y` to stream 3, and `y + x*y + y*z + x*y + ..` to stream 4.
fn products([x, y, z]: [Ty; 3]) -> Body {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let loads = [(0, x), (1, y), (2, z)].map(|(stream, ty)| push(Op::Load(stream), ty));
    let [x, y, z] = loads.map(|load| push(Op::Cast(load), Ty::I32));
    let first = push(Op::Binary(BinaryOp::Mul, x, y), Ty::I32);
    let second = push(Op::Binary(BinaryOp::Mul, z, x), Ty::I32);
    let sum = push(Op::Binary(BinaryOp::Add, first, second), Ty::I32);
    let sum = push(Op::Binary(BinaryOp::Add, sum, y), Ty::I32);
    push(Op::Store(3, sum), Ty::I32);

    let sum = (0..TERMS).fold(y, |sum, term| {
        let (lhs, rhs) = if term % 2 == 0 { (x, y) } else { (y, z) };
        let product = push(Op::Binary(BinaryOp::Mul, lhs, rhs), Ty::I32);
        push(Op::Binary(BinaryOp::Add, sum, product), Ty::I32)
    });
    push(Op::Store(4, sum), Ty::I32);
    body
}

#[test]
fn sums_of_products_of_narrow_integers_are_exact() {
    const TYPES: [Ty; 3] = [Ty::U8, Ty::I8, Ty::I16];
    for (isa, fma) in isas() {
        for (tx, ty) in TYPES.into_iter().flat_map(|x| TYPES.map(|y| (x, y))) {
            let tz = Ty::I8;
            let (xs, ys) = (values(tx), values(ty));
            let pairs: Vec<(i64, i64)> = xs.iter().flat_map(|&x| ys.iter().map(move |&y| (x, y))).collect();
            let z = |idx: usize| (idx as i64 * 37) % 256 - 128;

            let operands = [
                bytes(tx, pairs.iter().map(|pair| pair.0)),
                bytes(ty, pairs.iter().map(|pair| pair.1)),
                bytes(tz, (0..pairs.len()).map(z)),
            ];
            let key = strip(
                vec![Phase::Loop { extent: 0, body: products([tx, ty, tz]) }],
                vec![StreamStep::Unit; 5],
            );
            let mut results = [(); 2].map(|()| vec![0i32; pairs.len()]);
            let mut args = vec![0; key.slots()];
            args[key.extent(0)] = pairs.len() as i64;
            for (stream, operand) in (0..).zip(&operands) {
                set(&mut args, &key, stream, address(operand), 0, operand.len() / pairs.len());
            }
            for (stream, result) in (3..).zip(&mut results) {
                set(&mut args, &key, stream, address_mut(result), 0, 4);
            }
            Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);

            let even = TERMS.div_ceil(2) as i64;
            let odd = TERMS as i64 - even;
            for (idx, &(x, y)) in pairs.iter().enumerate() {
                let z = z(idx);
                // The long sum of 16-bit integers may wrap.
                let exact = [x * y + x * z + y, y + even * x * y + odd * y * z].map(|sum| sum as i32);
                let got = [results[0][idx], results[1][idx]];
                assert_eq!(got, exact, "{}: {tx:?} {x}, {ty:?} {y}, z {z}", isa.name());
            }
        }
    }
}
