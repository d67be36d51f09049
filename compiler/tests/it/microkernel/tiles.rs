//! The contraction tile: bit for bit the sum over `k` in order, for every tile, form of rhs, tail and epilogue.

use super::jit::{Compiled, address, address_mut, elements, isas, tile};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            contraction::{DotOp, ReductionPart, Rhs, TileKey, max_rows, wide_vectors},
            op::{Body, Op, StreamStep, Ty},
        },
        vector::VectorIsa,
    },
    scalar::{BinaryOp, UnaryOp},
};

/// `y = max(sum + bias[n], 0) + residual[m, n]`, streams bias, residual, y.
fn epilogue() -> Body {
    let mut body = Body::default();
    let mut push = |op, ty| body.push(op, ty).expect("supported");
    let sum = push(Op::Accumulator, Ty::F32);
    let bias = push(Op::Load(0), Ty::F32);
    let biased = push(Op::Binary(BinaryOp::Add, sum, bias), Ty::F32);
    let zero = push(Op::Const(0), Ty::F32);
    let relu = push(Op::Binary(BinaryOp::Max, biased, zero), Ty::F32);
    let residual = push(Op::Load(1), Ty::F32);
    let added = push(Op::Binary(BinaryOp::Add, relu, residual), Ty::F32);
    push(Op::Store(2, added), Ty::F32);
    body
}

/// Sizes of one test: `k` is `outer` segments of `inner`.
struct Case {
    rows: usize,
    vectors: usize,
    tiles: usize,
    columns: usize,
    inner: usize,
    outer: usize,
    rhs: Rhs,
    dense: bool,
    stored: StreamStep,
    /// Each segment is a separate part of the reduction.
    in_parts: bool,
    prefetch: bool,
}

/// Rhs as `[k, n]` for the naive loop, and in the form that the microkernel reads.
struct Matrix {
    memory: Vec<f32>,
    strides: (usize, usize),
}

fn rhs(case: &Case, lanes: usize) -> (Vec<f32>, Matrix) {
    let k = case.inner * case.outer;
    let plain = elements(k * case.columns, 7);
    let matrix = match case.rhs {
        Rhs::Panels(width) => {
            let width = width as usize;
            let panels = (case.vectors * lanes).div_ceil(width).max(case.columns.div_ceil(width));
            let mut memory = vec![0.0; panels * k * width];
            for depth in 0..k {
                for n in 0..case.columns {
                    memory[(n / width * k + depth) * width + n % width] = plain[depth * case.columns + n];
                }
            }
            Matrix { memory, strides: (width, k * width) }
        }
        Rhs::FewBits(_) => unreachable!("the tests of few bits compare whole contractions"),
        Rhs::Rows => Matrix { memory: plain.clone(), strides: (case.columns, 1) },
        Rhs::Scattered => {
            let mut memory = vec![0.0; k * case.columns];
            for depth in 0..k {
                for n in 0..case.columns {
                    memory[n * k + depth] = plain[depth * case.columns + n];
                }
            }
            Matrix { memory, strides: (1, k) }
        }
    };
    (plain, matrix)
}

fn key(case: &Case, lanes: usize) -> TileKey {
    let mut key = TileKey {
        tail: case.columns != case.vectors * lanes,
        dense: case.dense,
        levels: 2,
        rhs: case.rhs,
        prefetch_panels: case.prefetch,
        ..tile([case.rows, case.vectors], DotOp::F32, 3, epilogue())
    };
    key.streams[2] = case.stored;
    key
}

/// Runs the microkernel and the naive loop, and compares bits.
fn check(case: &Case, isa: &dyn VectorIsa, fma: bool) {
    let lanes = isa.shape().lanes;
    let (m, k) = (case.rows * case.tiles, case.inner * case.outer);
    let (plain, matrix) = rhs(case, lanes);
    // The segments of lhs are apart, and so are its elements unless it is dense.
    let spread = if case.dense { 1 } else { 3 };
    let segment = case.inner * spread + 5;
    let a_row = segment * case.outer + 2;
    let a = elements(m * a_row, 3);
    let (bias, residual) = (elements(case.columns, 11), elements(m * (case.columns + 3), 13));
    let mut y = vec![f32::NAN; m * case.columns + 1];
    let (y_row, y_column) = match case.stored {
        StreamStep::Stride => (1, m),
        _ => (case.columns, 1),
    };

    let key = key(case, lanes);
    let mut args = vec![0; key.slots()];
    let bytes = |elems: usize| 4 * elems as i64;
    args[TileKey::LHS] = address(&a);
    args[TileKey::LHS_ROW] = bytes(a_row);
    args[TileKey::LHS_K] = bytes(spread);
    args[TileKey::RHS] = address(&matrix.memory);
    args[TileKey::RHS_K] = bytes(matrix.strides.0);
    args[TileKey::RHS_COLUMN] = bytes(matrix.strides.1);
    args[TileKey::TILES] = case.tiles as i64;
    args[TileKey::PREFETCH_ROUNDS] = case.tiles as i64;
    args[TileKey::PREFETCH_SKIP] = 64;
    args[TileKey::COLUMNS] = case.columns as i64;
    args[TileKey::level(0)] = case.inner as i64;
    args[TileKey::level(1)] = case.outer as i64;
    args[TileKey::level(1) + 1] = bytes(segment);
    args[TileKey::level(1) + 2] = bytes(matrix.strides.0 * case.inner);
    let streams = [
        (address(&bias), 0, 1),
        (address(&residual), case.columns + 3, 1),
        (address_mut(&mut y), y_row, y_column),
    ];
    for (stream, (base, row, column)) in streams.into_iter().enumerate() {
        let slot = key.stream(stream as u32);
        args[slot..slot + 3].copy_from_slice(&[base, bytes(row), bytes(column)]);
    }
    for (part, first, count) in parts(case) {
        let mut args = args.clone();
        args[TileKey::LHS] += first as i64 * bytes(segment);
        args[TileKey::RHS] += first as i64 * bytes(matrix.strides.0 * case.inner);
        args[TileKey::level(1)] = count as i64;
        Compiled::new(&MicrokernelKey::Tile(TileKey { part, ..key.clone() }), isa, fma).call(&mut args);
    }

    for row in 0..m {
        for n in 0..case.columns {
            let mut sum = 0f32;
            for depth in 0..k {
                let at = row * a_row + depth / case.inner * segment + depth % case.inner * spread;
                let other = plain[depth * case.columns + n];
                sum = if isa.shape().fma { a[at].mul_add(other, sum) } else { a[at] * other + sum };
            }
            let expected = (sum + bias[n]).max(0.0) + residual[row * (case.columns + 3) + n];
            let got = y[row * y_row + n * y_column];
            assert_eq!(
                got.to_bits(),
                expected.to_bits(),
                "{} row {row} of {m} column {n} of {}, tile {}x{}, {:?}: {got} for {expected}",
                isa.name(),
                case.columns,
                case.rows,
                case.vectors,
                case.rhs,
            );
        }
    }
    assert!(y[m * case.columns].is_nan(), "wrote after the last row");
}

fn base(rows: usize, vectors: usize, lanes: usize) -> Case {
    Case {
        rows,
        vectors,
        tiles: 2,
        columns: vectors * lanes,
        inner: 9,
        outer: 2,
        rhs: Rhs::Panels(16),
        dense: true,
        stored: StreamStep::Unit,
        in_parts: false,
        prefetch: true,
    }
}

/// The parts of the reduction, with their first segment and number of segments. Partial sums are kept in `y`.
fn parts(case: &Case) -> Vec<(ReductionPart, usize, usize)> {
    if !case.in_parts {
        return vec![(ReductionPart::Whole, 0, case.outer)];
    }
    let part = |segment: usize| match segment {
        0 => ReductionPart::First(2),
        last if last + 1 == case.outer => ReductionPart::Last(2),
        _ => ReductionPart::Middle(2),
    };
    (0..case.outer).map(|segment| (part(segment), segment, 1)).collect()
}

#[test]
fn every_tile_of_packed_panels() {
    for (isa, fma) in isas() {
        let shape = isa.shape();
        for rows in 1..=max_rows(shape) {
            for vectors in [wide_vectors(shape, rows, DotOp::F32), 2, 1] {
                for width in [16, 32] {
                    for prefetch in [false, true] {
                        let rhs = Rhs::Panels(width);
                        check(&Case { rhs, prefetch, ..base(rows, vectors, shape.lanes) }, &*isa, fma);
                    }
                }
            }
        }
    }
}

#[test]
fn reductions_in_parts_have_the_bits_of_the_whole() {
    for (isa, fma) in isas() {
        let shape = isa.shape();
        for rows in 1..=max_rows(shape) {
            for outer in [2, 3, 4] {
                check(&Case { outer, in_parts: true, ..base(rows, 2, shape.lanes) }, &*isa, fma);
            }
        }
        for columns in 1..2 * shape.lanes {
            check(&Case { columns, outer: 3, in_parts: true, ..base(3, 2, shape.lanes) }, &*isa, fma);
        }
    }
}

#[test]
fn every_length_of_k_and_number_of_tiles() {
    for (isa, fma) in isas() {
        for inner in [1, 2, 3, 4, 5, 8, 31] {
            for tiles in [1, 3] {
                let case = Case { inner, tiles, ..base(3, 2, isa.shape().lanes) };
                check(&case, &*isa, fma);
                check(&Case { dense: false, ..case }, &*isa, fma);
            }
        }
    }
}

#[test]
fn every_tail_of_columns() {
    for (isa, fma) in isas() {
        let lanes = isa.shape().lanes;
        for columns in 1..2 * lanes {
            for rhs in [Rhs::Panels(16), Rhs::Rows, Rhs::Scattered] {
                check(&Case { columns, rhs, ..base(2, 2, lanes) }, &*isa, fma);
            }
            check(&Case { columns, stored: StreamStep::Stride, ..base(2, 2, lanes) }, &*isa, fma);
        }
    }
}

#[test]
fn unpacked_rhs_and_strided_columns() {
    for (isa, fma) in isas() {
        let shape = isa.shape();
        for rows in 1..=max_rows(shape) {
            for rhs in [Rhs::Rows, Rhs::Scattered] {
                for stored in [StreamStep::Unit, StreamStep::Stride] {
                    check(&Case { rhs, stored, ..base(rows, 2, shape.lanes) }, &*isa, fma);
                }
            }
        }
    }
}

#[test]
fn no_reduction_gives_the_epilogue_of_zero() {
    for (isa, fma) in isas() {
        check(&Case { outer: 0, ..base(2, 2, isa.shape().lanes) }, &*isa, fma);
    }
}

#[test]
fn activations_in_the_epilogue_keep_the_accumulators() {
    let mut body = Body::default();
    let sum = body.push(Op::Accumulator, Ty::F32).expect("supported");
    let erf = body.push(Op::Unary(UnaryOp::Erf, sum), Ty::F32).expect("supported");
    let tanh = body.push(Op::Unary(UnaryOp::Tanh, erf), Ty::F32).expect("supported");
    body.push(Op::Store(0, tanh), Ty::F32).expect("supported");
    for (isa, fma) in isas() {
        let shape = isa.shape();
        let rows = max_rows(shape);
        let columns = 2 * shape.lanes;
        let key = TileKey { prefetch_panels: true, ..tile([rows, 2], DotOp::F32, 1, body.clone()) };
        let k = 5;
        let (a, b) = (elements(rows * k, 1), elements(32 * k, 2));
        let mut y = vec![0f32; rows * columns];
        let mut args = vec![0; key.slots()];
        args[TileKey::LHS] = address(&a);
        args[TileKey::LHS_ROW] = 4 * k as i64;
        args[TileKey::RHS] = address(&b);
        args[TileKey::RHS_COLUMN] = 64 * k as i64;
        args[TileKey::TILES] = 1;
        args[TileKey::level(0)] = k as i64;
        let slot = key.stream(0);
        args[slot] = address_mut(&mut y);
        args[slot + 1] = 4 * columns as i64;
        Compiled::new(&MicrokernelKey::Tile(key), &*isa, fma).call(&mut args);
        for row in 0..rows {
            for n in 0..columns {
                let sum: f64 = (0..k)
                    .map(|depth| {
                        f64::from(a[row * k + depth]) * f64::from(b[(n / 16 * k + depth) * 16 + n % 16])
                    })
                    .sum();
                let expected = super::strips::erf(sum).tanh();
                let got = f64::from(y[row * columns + n]);
                assert!((got - expected).abs() < 2e-6, "{got} for {expected}");
            }
        }
    }
}

/// The result of a tile whose panels are these bytes.
fn product(isa: &dyn VectorIsa, fma: bool, case: &Case, element: Ty, panels: &[u8]) -> Vec<u32> {
    let lanes = isa.shape().lanes;
    let mut epilogue = Body::default();
    let sum = epilogue.push(Op::Accumulator, Ty::F32).expect("supported");
    epilogue.push(Op::Store(0, sum), Ty::F32).expect("supported");
    let key = TileKey {
        tail: case.columns != case.vectors * lanes,
        rhs_element: element,
        prefetch_panels: case.prefetch,
        ..tile([case.rows, case.vectors], DotOp::F32, 1, epilogue)
    };

    let a = elements(case.rows * case.tiles * case.inner, 3);
    let mut y = vec![0f32; case.rows * case.tiles * case.columns];
    let mut args = vec![0; key.slots() + 2];
    args[TileKey::LHS] = address(&a);
    args[TileKey::LHS_ROW] = 4 * case.inner as i64;
    args[TileKey::RHS] = address(panels);
    args[TileKey::RHS_COLUMN] = (16 * case.inner * if element == Ty::F32 { 4 } else { 2 }) as i64;
    args[TileKey::TILES] = case.tiles as i64;
    args[TileKey::COLUMNS] = case.columns as i64;
    args[TileKey::level(0)] = case.inner as i64;
    let slot = key.stream(0);
    args[slot..slot + 3].copy_from_slice(&[address_mut(&mut y), 4 * case.columns as i64, 4]);
    Compiled::new(&MicrokernelKey::Tile(key), isa, fma).call(&mut args);
    y.into_iter().map(f32::to_bits).collect()
}

#[test]
fn panels_of_halves_have_the_bits_of_floats() {
    for (isa, fma) in isas() {
        let lanes = isa.shape().lanes;
        for (rows, vectors, missing) in [(1, 16 / lanes, 0), (3, 16 / lanes, 5), (1, 32 / lanes, 0)] {
            let whole = base(rows, vectors, lanes);
            for inner in [1, 4, 7, 64] {
                let case = Case {
                    inner,
                    outer: 1,
                    columns: whole.columns - missing,
                    prefetch: false,
                    ..base(rows, vectors, lanes)
                };
                // Multiples of 1/64 are equal in all types; so are the largest elements and denormals of each.
                let count = vectors * lanes * inner;
                let special = [65504f32, 6e-8, 0.0, -0.0].map(|x| half::f16::from_f32(x).to_f32());
                let numbers: Vec<f32> =
                    elements(count, 5).iter().map(|x| (x * 64.0).round() / 64.0).collect();
                let f16s: Vec<f32> = special.iter().chain(&numbers).take(count).copied().collect();
                let bytes = f16s.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes());
                let bytes: Vec<u8> = bytes.collect();
                let floats: Vec<u8> = f16s.iter().flat_map(|x| x.to_le_bytes()).collect();
                let expected = product(&*isa, fma, &case, Ty::F32, &floats);
                assert!(product(&*isa, fma, &case, Ty::F16, &bytes) == expected, "{} {inner}", isa.name());

                let bytes: Vec<u8> =
                    numbers.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
                let floats: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
                let expected = product(&*isa, fma, &case, Ty::F32, &floats);
                assert!(product(&*isa, fma, &case, Ty::Bf16, &bytes) == expected, "{} {inner}", isa.name());
            }
        }
    }
}
