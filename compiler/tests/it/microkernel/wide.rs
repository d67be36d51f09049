//! Elements of 64 bits, and functions of floats that are computed in double precision: each operation against its
//! definition, for whole vectors and tails.

use super::{
    bytes::{dtype, values},
    jit::{Compiled, address, address_mut, isas},
    strips::{set, strip},
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
    scalar::{BinaryOp, CompareOp, Scalar, UnaryOp, eval},
};

/// The bits of the results of a loop over operands of one type, and that one more element stayed as it was.
fn computed(
    (isa, fma): (&dyn VectorIsa, bool),
    body: Body,
    [from, to]: [Ty; 2],
    operands: &[&[u64]],
) -> Vec<u64> {
    let key = strip(vec![Phase::Loop { extent: 0, body }], vec![StreamStep::Unit; operands.len() + 1]);
    let count = operands[0].len();
    let [from_bytes, to_bytes] = [from, to].map(|ty| dtype(ty).size_bytes());
    let memory: Vec<Vec<u8>> = operands
        .iter()
        .map(|operand| operand.iter().flat_map(|bits| bits.to_le_bytes()[..from_bytes].to_vec()).collect())
        .collect();
    let mut results = vec![0xa5_u8; (count + 1) * to_bytes];
    let mut args = vec![0; key.slots()];
    args[key.extent(0)] = count as i64;
    for (stream, operand) in (0..).zip(&memory) {
        set(&mut args, &key, stream, address(operand), 0, from_bytes);
    }
    set(&mut args, &key, operands.len() as u32, address_mut(&mut results), 0, to_bytes);
    Compiled::new(&MicrokernelKey::Strip(key), isa, fma).call(&mut args);

    assert!(results[count * to_bytes..].iter().all(|byte| *byte == 0xa5), "wrote after the last element");
    let elements = results[..count * to_bytes].chunks_exact(to_bytes);
    elements
        .map(|bytes| {
            let mut word = [0; 8];
            word[..to_bytes].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        })
        .collect()
}

/// Distance in units of the last place of doubles.
fn ulps(got: f64, expected: f64) -> u64 {
    let key = |x: f64| {
        let magnitude = (x.to_bits() & !(1 << 63)) as i64;
        if x.is_sign_negative() { -magnitude } else { magnitude }
    };
    match (got.is_nan(), expected.is_nan()) {
        (true, true) => 0,
        (false, false) if got == 0.0 && expected == 0.0 => {
            u64::from(got.is_sign_negative() != expected.is_sign_negative())
        }
        (false, false) => key(got).abs_diff(key(expected)),
        _ => u64::MAX,
    }
}

fn check(name: &str, ty: Ty, bound: u64, got: u64, expected: Scalar, operands: &[u64]) {
    let is_right = match ty {
        Ty::F64 => ulps(f64::from_bits(got), expected.as_f64()) <= bound,
        Ty::F32 => ulps(f32::from_bits(got as u32).into(), expected.as_f64()) <= bound,
        _ => got == expected.bits(),
    };
    assert!(is_right, "{name}: {got:x}, not {:x}, of {operands:x?}", expected.bits());
}

fn sizes(all: usize) -> [usize; 9] {
    [all, 1, 2, 3, 7, 9, 16, 31, 33]
}

#[test]
fn operations_on_one_wide_element_are_those_of_the_definition() {
    use UnaryOp::*;
    let exact = [Neg, Abs, Sign, Floor, Ceil, Round, Trunc, Sqrt, Recip];
    let functions =
        [Exp, Expm1, Log, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Tanh, Asinh, Acosh, Atanh, Erf];
    let doubles = exact.iter().chain(&functions).map(|op| (Ty::F64, *op));
    let ints = [Neg, Abs, Sign, Floor, Not].map(|op| (Ty::I64, op));
    for (isa, fma) in isas() {
        for (ty, op) in doubles.clone().chain(ints) {
            let mut body = Body::default();
            let x = body.push(Op::Load(0), ty).expect("supported");
            let y = body.push(Op::Unary(op, x), ty).expect("supported");
            body.push(Op::Store(1, y), ty).expect("supported");
            // The functions are as exact as those of scalar code.
            let bound = if functions.contains(&op) { 4 } else { 0 };
            let all = values(ty);
            for count in sizes(all.len()) {
                let elems = &all[..count];
                let results = computed((&*isa, fma), body.clone(), [ty, ty], &[elems]);
                for (bits, got) in elems.iter().zip(results) {
                    let expected = eval::unary(op, Scalar::from_bits(dtype(ty), *bits));
                    check(&format!("{} {op:?} {ty:?}", isa.name()), ty, bound, got, expected, &[*bits]);
                }
            }
        }
    }
}

/// Pairs of values, each with many others.
fn pairs(ty: Ty) -> (Vec<u64>, Vec<u64>) {
    let all = values(ty);
    let count = all.len();
    (0..8 * count).map(|idx| (all[idx % count], all[(idx * 31 + idx / count * 7) % count])).unzip()
}

#[test]
fn operations_on_two_elements_are_those_of_the_definition() {
    use BinaryOp::*;
    let doubles = [Add, Sub, Mul, Div, Min, Max, Pow, Atan2].map(|op| (Ty::F64, op));
    let ints = [Ty::I64, Ty::I32, Ty::I16, Ty::U16, Ty::I8, Ty::U8];
    let ints = ints.iter().flat_map(|ty| [Add, Sub, Mul, Min, Max, And, Or, Xor].map(|op| (*ty, op)));
    let remainders = [Rem, Mod].map(|op| (Ty::F32, op));
    for (isa, fma) in isas() {
        for (ty, op) in doubles.into_iter().chain(remainders).chain(ints.clone()) {
            let mut body = Body::default();
            let x = body.push(Op::Load(0), ty).expect("supported");
            let y = body.push(Op::Load(1), ty).expect("supported");
            let z = body.push(Op::Binary(op, x, y), ty).expect("supported");
            body.push(Op::Store(2, z), ty).expect("supported");
            let bound = if matches!(op, Pow | Atan2) { 2 } else { 0 };
            let (first, second) = pairs(ty);
            for count in sizes(first.len()) {
                let operands = [&first[..count], &second[..count]];
                let results = computed((&*isa, fma), body.clone(), [ty, ty], &operands);
                for (idx, got) in results.into_iter().enumerate() {
                    let bits = operands.map(|operand| operand[idx]);
                    let [x, y] = bits.map(|bits| Scalar::from_bits(dtype(ty), bits));
                    let expected = eval::binary(op, x, y);
                    check(&format!("{} {op:?} {ty:?}", isa.name()), ty, bound, got, expected, &bits);
                }
            }
        }
    }
}

#[test]
fn comparisons_select_wide_and_narrow_elements() {
    use CompareOp::*;
    for (isa, fma) in isas() {
        for (ty, op) in [Ty::F64, Ty::I64].iter().flat_map(|ty| [Eq, Ne, Lt, Le, Gt, Ge].map(|op| (*ty, op)))
        {
            // `x op y ? x : y` and, as an integer of 32 bits, `x op y`.
            let mut selected = Body::default();
            let x = selected.push(Op::Load(0), ty).expect("supported");
            let y = selected.push(Op::Load(1), ty).expect("supported");
            let truth = selected.push(Op::Compare(op, x, y), Ty::Bool).expect("supported");
            let mut truths = selected.clone();
            let z = selected.push(Op::Select(truth, x, y), ty).expect("supported");
            selected.push(Op::Store(2, z), ty).expect("supported");
            let number = truths.push(Op::Cast(truth), Ty::I32).expect("supported");
            truths.push(Op::Store(2, number), Ty::I32).expect("supported");

            let (first, second) = pairs(ty);
            for count in sizes(first.len()) {
                let operands = [&first[..count], &second[..count]];
                let selected = computed((&*isa, fma), selected.clone(), [ty, ty], &operands);
                let truths = computed((&*isa, fma), truths.clone(), [ty, Ty::I32], &operands);
                for idx in 0..count {
                    let [x, y] = operands.map(|operand| operand[idx]);
                    let holds = {
                        let [x, y] = [x, y].map(|bits| Scalar::from_bits(dtype(ty), bits));
                        eval::compare(op, x, y)
                    };
                    let expected = if holds { x } else { y };
                    assert_eq!(selected[idx], expected, "{} {op:?} {ty:?} {x:x} {y:x}", isa.name());
                    assert_eq!(truths[idx], u64::from(holds), "{} {op:?} {ty:?} {x:x} {y:x}", isa.name());
                }
            }
        }
    }
}
