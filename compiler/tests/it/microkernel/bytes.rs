//! Elements of one byte: conversions against their definition, tails and strides that touch no other byte, and rows
//! packed for tiles.

use super::jit::{Compiled, address, address_mut, isas, tile};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            contraction::{DotOp, TileKey},
            op::{Body, Op, StreamStep, Ty},
            pack_rows::{self, ByteForm, PackRowsKey, RowForm},
            strip::{Phase, Stream, StripKey},
        },
        vector::{
            VectorIsa, X86,
            vcode::{IntWidth, NarrowInt, VInst},
        },
    },
    scalar::{BinaryOp, Scalar, UnaryOp, eval},
};
use symshape_runtime::DType;

/// `y = x as to` for `count` elements. Those of `x` are `step` elements apart.
pub(super) fn convert(from: Ty, to: Ty, along: StreamStep) -> StripKey {
    let mut body = Body::default();
    let x = body.push(Op::Load(0), from).expect("supported");
    let y = body.push(Op::Cast(x), to).expect("supported");
    body.push(Op::Store(1, y), to).expect("supported");
    StripKey {
        rows: false,
        phases: vec![Phase::Loop { extent: 0, body }],
        row_steps: vec![StreamStep::Stride; 2],
        pointers: vec![along; 2],
        streams: [0, 1].map(|pointer| Stream { pointer, offset: 0 }).to_vec(),
        extents: 1,
        scalars: 0,
        variables: 0,
        results: Vec::new(),
        may_fail: false,
        keeps_stored: false,
        short_row: None,
        accumulators: Vec::new(),
        counts: false,
    }
}

pub(super) fn dtype(ty: Ty) -> DType {
    match ty {
        Ty::F32 => DType::F32,
        Ty::I32 => DType::I32,
        Ty::U8 => DType::U8,
        Ty::I8 => DType::I8,
        Ty::I16 => DType::I16,
        Ty::U16 => DType::U16,
        Ty::I64 => DType::I64,
        Ty::F64 => DType::F64,
        Ty::Bool => DType::Bool,
        Ty::Bf16 | Ty::F16 | Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 => unreachable!("no integers"),
    }
}

/// Values of a type as bits: all of one byte, and around the limits of those.
pub(super) fn values(ty: Ty) -> Vec<u64> {
    let special = [0.0, -0.0, f64::NAN, f64::INFINITY, -f64::INFINITY, 32767.6, -32768.9, 40000.0, 65535.5];
    let limits = [2f64.powi(31), 2f64.powi(32), 2f64.powi(52), 2f64.powi(53), 2f64.powi(63), 1e30, 3e9];
    let limits = limits.iter().flat_map(|x| [*x, -x, x.next_down(), x.next_up(), -x.next_up()]);
    let least = f64::from(f32::from_bits(1));
    let denormals = [5e-324, -5e-324, 1e-310, 1e-40, least, f64::MIN_POSITIVE, f32::MAX.into(), f64::MAX];
    let numbers = (-300..300).map(|n| f64::from(n) * 0.75).chain(special).chain(limits).chain(denormals);

    // Around each power of two, and halfway between two floats.
    let power = |shift: u32| 1i64.wrapping_shl(shift);
    let around = (0..64).flat_map(|shift| (-2..3).map(move |more| power(shift).wrapping_add(more)));
    let halfway = (25..63).flat_map(|shift| {
        let half = power(shift) + power(shift - 24);
        [half, half + 1, half - 1, half + power(shift - 23)]
    });
    let integers = (-300..300).chain(around).chain(halfway).flat_map(|n| [n, n.wrapping_neg()]);
    match ty {
        Ty::F32 => numbers.map(|x| u64::from((x as f32).to_bits())).collect(),
        Ty::F64 => numbers.map(f64::to_bits).collect(),
        Ty::I32 => {
            (-300..300).chain([i32::MAX, i32::MIN, 32768, -32769]).map(|n| u64::from(n as u32)).collect()
        }
        Ty::I64 => integers.map(|n| n as u64).collect(),
        Ty::U8 | Ty::I8 => (0..256).collect(),
        Ty::I16 | Ty::U16 => (0..1 << 16).step_by(37).collect(),
        Ty::Bool => [0, 1].repeat(40),
        Ty::Bf16 | Ty::F16 | Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 => unreachable!("no integers"),
    }
}

#[test]
fn conversions_are_those_of_the_definition() {
    let types = [Ty::F32, Ty::I32, Ty::U8, Ty::I8, Ty::I16, Ty::Bool, Ty::U16, Ty::I64, Ty::F64];
    for (isa, fma) in isas() {
        for (from, to) in types.iter().flat_map(|from| types.map(|to| (*from, to))) {
            let (size, bytes) = (dtype(from).size_bytes(), dtype(to).size_bytes());
            for (along, step) in [(StreamStep::Unit, 1), (StreamStep::Stride, 3)] {
                let compiled = Compiled::new(&MicrokernelKey::Strip(convert(from, to, along)), &*isa, fma);
                for count in [values(from).len(), 1, 2, 7, 8, 13, 17, 31] {
                    let elems = &values(from)[..count];
                    let mut x = vec![0xa5_u8; count * step * size];
                    for (idx, bits) in elems.iter().enumerate() {
                        x[idx * step * size..][..size].copy_from_slice(&bits.to_le_bytes()[..size]);
                    }
                    let mut y = vec![0xa5_u8; (count * step + 1) * bytes];
                    let key = convert(from, to, along);
                    let mut args = vec![0; key.slots()];
                    args[StripKey::ROWS] = 1;
                    args[key.extent(0)] = count as i64;
                    for (pointer, (start, size)) in
                        [(address(&x), size), (address_mut(&mut y), bytes)].into_iter().enumerate()
                    {
                        let slot = key.pointer(pointer as u32);
                        args[slot..slot + 3].copy_from_slice(&[start, 0, (step * size) as i64]);
                    }
                    compiled.call(&mut args);
                    let mut expected = vec![0xa5_u8; y.len()];
                    for (idx, bits) in elems.iter().enumerate() {
                        let value = Scalar::from_bits(dtype(from), *bits);
                        let value = eval::cast(dtype(to), value).bits().to_le_bytes();
                        expected[idx * step * bytes..][..bytes].copy_from_slice(&value[..bytes]);
                    }
                    let wrong = y.iter().zip(&expected).position(|(got, expected)| got != expected);
                    let wrong = wrong.map(|at| (elems.get(at / bytes / step), &y[at..], &expected[at..]));
                    assert!(
                        y == expected,
                        "{} {from:?} as {to:?}, {count} by {step}: {wrong:x?}",
                        isa.name()
                    );
                }
            }
        }
    }
}

/// Floats that are known to fit 32 bits are quantised as all others are.
#[test]
fn bounded_floats_are_quantised_exactly() {
    let limit = 2f32.powi(30).next_down();
    let near = (-700..700).map(|n| n as f32 * 0.25);
    let near = near.flat_map(|x| [x, x.next_up(), x.next_down()]);
    let far = (0..31).flat_map(|power| [2f32.powi(power) - 0.5, 0.5 - 2f32.powi(power)]);
    let values: Vec<f32> = near.chain(far).chain([limit, -limit, 0.0, -0.0]).collect();

    for (isa, fma) in isas() {
        for (ty, zero_point) in
            [(Ty::U8, 0.0), (Ty::U8, 128.0), (Ty::I8, 0.0), (Ty::I8, -128.0), (Ty::I8, 77.0)]
        {
            let mut key = convert(Ty::F32, ty, StreamStep::Unit);
            let mut body = Body::default();
            let mut push = |op, ty| body.push(op, ty).expect("supported");
            let x = push(Op::Load(0), Ty::F32);
            let rounded = push(Op::Unary(UnaryOp::Round, x), Ty::F32);
            let zero = push(Op::Const(f32::to_bits(zero_point)), Ty::F32);
            let sum = push(Op::Binary(BinaryOp::Add, rounded, zero), Ty::F32);
            let integer = push(Op::Cast(sum), ty);
            push(Op::Store(1, integer), ty);
            body.bounded = vec![x];
            key.phases = vec![Phase::Loop { extent: 0, body }];

            let mut y = vec![0xa5_u8; values.len() + 1];
            let mut args = vec![0; key.slots()];
            args[StripKey::ROWS] = 1;
            args[key.extent(0)] = values.len() as i64;
            for (pointer, (start, size)) in
                [(address(&values), 4), (address_mut(&mut y), 1)].into_iter().enumerate()
            {
                let slot = key.pointer(pointer as u32);
                args[slot..slot + 3].copy_from_slice(&[start, 0, size]);
            }
            Compiled::new(&MicrokernelKey::Strip(key), &*isa, fma).call(&mut args);

            for (x, got) in values.iter().zip(&y) {
                let sum = Scalar::f32(x.round_ties_even() + zero_point);
                let expected = eval::cast(dtype(ty), sum).bits() as u8;
                assert_eq!(*got, expected, "{x} as {ty:?} with {zero_point} on {}", isa.name());
            }
            assert_eq!(y[values.len()], 0xa5, "wrote after the last element");
        }
    }
}

/// Pseudo-random bytes.
fn bytes(count: usize, seed: u32) -> Vec<u8> {
    (0..count as u32).map(|idx| ((idx ^ seed).wrapping_mul(0x9e37_79b9) >> 21) as u8).collect()
}

fn number(from: NarrowInt, byte: u8) -> i32 {
    match from {
        NarrowInt::U8 => i32::from(byte),
        NarrowInt::I8 => i32::from(byte as i8),
        NarrowInt::I16 | NarrowInt::U16 => unreachable!("rows are of bytes"),
    }
}

#[test]
fn rows_are_packed_contiguously() {
    for (isa, fma) in isas() {
        for (from, dense, to) in [NarrowInt::U8, NarrowInt::I8].into_iter().flat_map(|from| {
            [
                (true, ByteForm::Halves),
                (true, ByteForm::Unsigned),
                (false, ByteForm::Unsigned),
                (true, ByteForm::Signed),
                (false, ByteForm::Signed),
            ]
            .map(|(dense, to)| (from, dense, to))
        }) {
            let key = PackRowsKey { form: RowForm::Bytes { from, to }, dense, levels: 2 };
            let compiled = Compiled::new(&MicrokernelKey::PackRows(key.clone()), &*isa, fma);
            for inner in [1, 3, 7, 8, 9, 11, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 70] {
                let (rows, outer, step) = (3, 2, if dense { 1 } else { 5 });
                let (segment, width) = (inner * step + 3, if to == ByteForm::Halves { 2 } else { 1 });
                let x = bytes(rows * outer * segment, 7);
                let row_bytes = inner * outer * width + 2;
                let mut y = vec![0xa5_u8; rows * row_bytes];
                let mut args = vec![0; key.slots()];
                args[PackRowsKey::FROM] = address(&x);
                args[PackRowsKey::FROM_ROW] = (outer * segment) as i64;
                args[PackRowsKey::TO] = address_mut(&mut y);
                args[PackRowsKey::TO_ROW] = row_bytes as i64;
                args[PackRowsKey::ROWS] = rows as i64;
                for (level, (count, step)) in [(inner, step), (outer, segment)].into_iter().enumerate() {
                    let slot = PackRowsKey::level(level as u8);
                    args[slot..slot + 2].copy_from_slice(&[count as i64, step as i64]);
                }
                compiled.call(&mut args);
                let mut expected = vec![0xa5_u8; y.len()];
                for (row, k) in (0..rows).flat_map(|row| (0..outer * inner).map(move |k| (row, k))) {
                    let at = (row * outer + k / inner) * segment + k % inner * step;
                    let shift = match (from, to) {
                        (NarrowInt::I8, ByteForm::Unsigned) => 128,
                        (NarrowInt::U8, ByteForm::Signed) => -128,
                        _ => 0,
                    };
                    let value = number(from, x[at]) + shift;
                    expected[row * row_bytes + k * width..][..width]
                        .copy_from_slice(&value.to_le_bytes()[..width]);
                }
                assert!(y == expected, "{} {key:?} by {inner}", isa.name());
            }
        }
    }
}

/// Unsigned bytes: every second one is the largest.
fn extreme_bytes(count: usize) -> Vec<i32> {
    let largest = |(idx, byte): (usize, u8)| if idx / 3 % 2 == 0 { 255 } else { i32::from(byte) };
    bytes(count, 3).into_iter().enumerate().map(largest).collect()
}

/// Signed bytes whose pairs have the largest sums of products that 16 bits hold.
fn extreme_pairs(count: usize) -> Vec<i32> {
    let pairs = [[64, 64], [-64, -64], [127, 1], [0, -128], [127, -128], [-127, -1], [-128, 127], [1, 127]];
    let chosen = bytes(count / 2, 5).into_iter().map(|byte| pairs[usize::from(byte) % pairs.len()]);
    chosen.flatten().collect()
}

/// Compares the sums of a tile of this many rows and columns, whose rows are this many groups of 32 bits.
fn assert_sums_are_exact(isa: &dyn VectorIsa, fma: bool, dot: DotOp, [rows, columns, groups]: [usize; 3]) {
    let group = dot.group() as usize;
    let depth = group * groups;
    // Elements of a column that are adjacent in a panel.
    let run = if dot == DotOp::Matrix { 2 * group } else { group };
    // Signed bytes, or 16 bits on both sides of zero.
    let elements = |count: usize, seed: u32, shift: i32| -> Vec<i32> {
        let element = |byte: u8| if group == 4 { i32::from(byte as i8) } else { i32::from(byte) - shift };
        bytes(count, seed).into_iter().map(element).collect()
    };
    let packed = |elements: &[i32]| -> Vec<u8> {
        elements.iter().flat_map(|element| element.to_le_bytes().into_iter().take(4 / group)).collect()
    };
    let is_paired = dot == DotOp::BytePairs;
    let a = if is_paired { extreme_bytes(rows * depth) } else { elements(rows * depth, 3, 3) };
    let b = if is_paired { extreme_pairs(16 * depth) } else { elements(16 * depth, 5, 200) };
    // Panels of bytes begin with the values that sums start from.
    let has_start = matches!(dot, DotOp::BytePairs | DotOp::Signed | DotOp::Matrix);
    let start: Vec<i32> = (0..16).map(|column| if has_start { 1000 * column - 77 } else { 0 }).collect();
    let mut panel = packed(&b);
    if has_start {
        panel.splice(0..0, start.iter().flat_map(|value| value.to_le_bytes()));
    }
    let lhs = packed(&a);

    let lanes = isa.shape().lanes;
    let mut y = vec![-1_i32; rows * columns + 1];
    let mut epilogue = Body::default();
    let sum = epilogue.push(Op::Accumulator, Ty::I32).expect("supported");
    epilogue.push(Op::Store(0, sum), Ty::I32).expect("supported");
    let key = tile([rows, 16 / lanes], dot, 1, epilogue);
    let key = TileKey { tail: columns != 16, ..key };
    let mut args = vec![0; key.slots()];
    args[TileKey::LHS] = address(&lhs);
    args[TileKey::LHS_ROW] = 4 * groups as i64;
    args[TileKey::RHS] = address(&panel);
    args[TileKey::RHS_COLUMN] = panel.len() as i64;
    args[TileKey::TILES] = 1;
    args[TileKey::COLUMNS] = columns as i64;
    args[TileKey::level(0)] = groups as i64;
    let slot = key.stream(0);
    args[slot..slot + 3].copy_from_slice(&[address_mut(&mut y), 4 * columns as i64, 4]);
    Compiled::new(&MicrokernelKey::Tile(key), isa, fma).call(&mut args);
    for (at, got) in y[..rows * columns].iter().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let product = |k: usize| a[row * depth + k] * b[(k / run * 16 + column) * run + k % run];
        let expected = start[column] + (0..depth).map(product).sum::<i32>();
        assert_eq!(*got, expected, "{dot:?} on {} {row}, {column}", isa.name());
    }
    assert_eq!(y[rows * columns], -1, "wrote after the last row");
}

#[test]
fn sums_of_products_are_exact() {
    for (isa, fma) in isas() {
        for sizes in [[1, 16, 5], [4, 16, 40], [3, 11, 9]] {
            assert_sums_are_exact(&*isa, fma, DotOp::I16Pairs, sizes);
        }
        for sizes in [[1, 16, 5], [4, 16, 40], [6, 16, 7], [3, 11, 9]] {
            if isa.shape().signed_dots {
                assert_sums_are_exact(&*isa, fma, DotOp::Signed, sizes);
            }
            if isa.shape().byte_pairs {
                assert_sums_are_exact(&*isa, fma, DotOp::BytePairs, sizes);
            }
        }
        for sizes in [[1, 16, 6], [4, 16, 40], [5, 16, 2], [6, 16, 8], [3, 11, 10]] {
            if isa.shape().matrix_dots {
                assert_sums_are_exact(&*isa, fma, DotOp::Matrix, sizes);
            }
        }
    }
}

#[test]
fn short_rows_of_signed_bytes_are_packed_in_words() {
    let words = |from: NarrowInt| {
        let key =
            PackRowsKey { form: RowForm::Bytes { from, to: ByteForm::Unsigned }, dense: true, levels: 1 };
        let code = pack_rows::emit(&key, X86::AVX512.shape());
        code.steps.iter().filter(|step| matches!(step, VInst::StoreInt(_, _, IntWidth::I64))).count()
    };
    assert!(words(NarrowInt::I8) > 0);
    assert_eq!(words(NarrowInt::I8), words(NarrowInt::U8));
}
