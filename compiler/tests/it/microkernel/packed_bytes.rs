//! Rows of a tile that become bytes: those of two or four vectors are stored together.

use super::jit::{Compiled, address, address_mut, isas, tile};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            contraction::{DotOp, TileKey},
            op::{Body, Op, Ty},
        },
        vector::VectorIsa,
    },
    scalar::{BinaryOp, UnaryOp},
};

/// Zero points at the ends of the ranges, and between them.
const ZERO_POINTS: [(Ty, i32); 6] =
    [(Ty::I8, -128), (Ty::I8, 0), (Ty::I8, 127), (Ty::U8, 0), (Ty::U8, 77), (Ty::U8, 255)];

/// A sum for each row: its products with the columns.
const ROWS: [f32; 3] = [1.0, -0.5, 70_000.0];

/// `cast(round(sum) + zero)`, which is stored twice. The sum is smaller than 2³⁰.
fn epilogue(to: Ty, zero: i32, stores_elsewhere: bool) -> Body {
    let mut body = Body { stores_elsewhere, ..Body::default() };
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let sum = push(Op::Accumulator, Ty::F32);
    let round = push(Op::Unary(UnaryOp::Round, sum), Ty::F32);
    let zero = push(Op::Const((zero as f32).to_bits()), Ty::F32);
    let moved = push(Op::Binary(BinaryOp::Add, round, zero), Ty::F32);
    let byte = push(Op::Cast(moved), to);
    push(Op::Store(0, byte), to);
    push(Op::Store(1, byte), to);
    body.bounded = vec![sum];
    body
}

fn key(vectors: usize, (to, zero): (Ty, i32), stores_elsewhere: bool) -> TileKey {
    tile([ROWS.len(), vectors], DotOp::F32, 2, epilogue(to, zero, stores_elsewhere))
}

fn check(isa: &dyn VectorIsa, fma: bool, vectors: usize, (to, zero): (Ty, i32)) {
    let columns = vectors * isa.shape().lanes;
    // Panels have 16 columns.
    let rhs: Vec<f32> = (0..columns.next_multiple_of(16)).map(|at| at as f32 * 9.75 - 300.0).collect();
    let mut results = [0, 1].map(|_| vec![0xa5_u8; ROWS.len() * columns + 3]);

    let key = key(vectors, (to, zero), true);
    let mut args = vec![0; key.slots()];
    args[TileKey::LHS] = address(&ROWS);
    args[TileKey::LHS_ROW] = 4;
    args[TileKey::RHS] = address(&rhs);
    args[TileKey::RHS_COLUMN] = 64;
    args[TileKey::TILES] = 1;
    args[TileKey::level(0)] = 1;
    for (stream, result) in results.iter_mut().enumerate() {
        let slot = key.stream(stream as u32);
        args[slot..slot + 3].copy_from_slice(&[address_mut(result), columns as i64, 1]);
    }
    Compiled::new(&MicrokernelKey::Tile(key), isa, fma).call(&mut args);

    let (lo, hi) = if to == Ty::I8 { (-128, 127) } else { (0, 255) };
    let mut expected: Vec<u8> = Vec::new();
    for row in ROWS {
        let bytes = rhs[..columns].iter().map(|x| ((row * x).round_ties_even() as i32 + zero).clamp(lo, hi));
        expected.extend(bytes.map(|byte| byte as u8));
    }
    expected.extend([0xa5; 3]);
    for result in results {
        assert!(result == expected, "{}: {vectors} vectors, {to:?}, zero point {zero}", isa.name());
    }
}

#[test]
fn rows_of_a_tile_become_the_nearest_bytes() {
    for (isa, fma) in isas() {
        for vectors in 1..=4 {
            for bytes in ZERO_POINTS {
                check(&*isa, fma, vectors, bytes);
            }
        }
    }
}

#[test]
fn bytes_that_the_epilogue_may_load_are_stored_vector_by_vector() {
    for (isa, _) in isas().into_iter().filter(|(isa, _)| isa.shape().clamping_stores) {
        let text = |vectors, elsewhere| {
            MicrokernelKey::Tile(key(vectors, ZERO_POINTS[0], elsewhere)).code(&*isa).to_string()
        };
        for vectors in [2, 4] {
            assert!(text(vectors, true).contains("StorePacked"));
            assert!(!text(vectors, false).contains("StorePacked"));
        }
        assert!(!text(3, true).contains("StorePacked"));
    }
}
