//! Strips of bytes that are read along their rows and stored along their columns.

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
    scalar::BinaryOp,
};

/// The rows and columns of squares, of blocks of 16 and of a vector of bytes, with one less and one more.
const SIDES: [usize; 14] = [0, 1, 3, 7, 9, 15, 16, 17, 31, 33, 63, 64, 65, 150];

/// Bytes behind the last one of the result, which stay as they are.
const AFTER: usize = 5;

/// A copy, or the sum with one.
fn body(ty: Ty, copies: bool) -> Body {
    let mut body = Body { stores_elsewhere: true, ..Body::default() };
    let mut value = body.push(Op::Load(0), ty).expect("supported");
    if !copies {
        value = body.push(Op::Cast(value), Ty::I32).expect("supported");
        let one = body.push(Op::Const(1), Ty::I32).expect("supported");
        value = body.push(Op::Binary(BinaryOp::Add, value, one), Ty::I32).expect("supported");
        value = body.push(Op::Cast(value), ty).expect("supported");
    }
    body.push(Op::Store(1, value), ty).expect("supported");
    body
}

/// Compares `y[r, c] = x[c, r + 1]`, or that plus one, with its definition. `apart` bytes are between the columns of
/// `x`, and as many between the rows of `y`.
fn check(compiled: &Compiled, key: &StripKey, [rows, columns]: [usize; 2], apart: [usize; 2], copies: bool) {
    let (source_step, target_step) = (rows + 1 + apart[0], columns + apart[1]);
    // The memory ends with the last byte that is read.
    let bytes = (columns * source_step).saturating_sub(apart[0]);
    let x: Vec<u8> = (0..bytes).map(|at| (at * 167 + at / 251) as u8).collect();
    let end = (rows * target_step).saturating_sub(apart[1]);
    let mut y = vec![0xa5; end + AFTER];
    let mut expected = y.clone();
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let byte = x[column * source_step + row + 1];
        expected[row * target_step + column] = if copies { byte } else { byte.wrapping_add(1) };
    }
    let mut args = vec![0; key.slots()];
    args[StripKey::ROWS] = rows as i64;
    args[key.extent(0)] = columns as i64;
    set(&mut args, key, 0, address(&x), 1, source_step);
    set(&mut args, key, 1, address_mut(&mut y), target_step, 1);
    compiled.call(&mut args);
    assert!(y == expected, "{rows} rows, {columns} columns, {apart:?} between them");
}

#[test]
fn bytes_are_transposed_in_blocks() {
    for (ty, copies) in [(Ty::U8, true), (Ty::I8, true), (Ty::U8, false), (Ty::I8, false)] {
        for (isa, fma) in isas() {
            let phases = vec![Phase::Loop { extent: 0, body: body(ty, copies) }];
            let mut key = strip(phases, vec![StreamStep::Stride, StreamStep::Unit]);
            key.streams[0].offset = 1;
            (key.rows, key.row_steps) = (true, vec![StreamStep::Unit, StreamStep::Stride]);
            let compiled = Compiled::new(&MicrokernelKey::Strip(key.clone()), &*isa, fma);
            for (rows, columns) in SIDES.iter().flat_map(|&rows| SIDES.map(|columns| (rows, columns))) {
                for apart in [[0, 0], [200, 0], [0, 200]] {
                    check(&compiled, &key, [rows, columns], apart, copies);
                }
            }
        }
    }
}
