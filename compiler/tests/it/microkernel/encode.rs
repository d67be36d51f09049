//! The encodings of microkernels, including those of levels and architectures that this machine lacks.

use super::{jit::tile, strips::strip};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use symshape_compiler::{
    codegen::{
        microkernel::{
            MicrokernelKey,
            contraction::{DotOp, Rhs, TileKey, max_rows, wide_vectors},
            op::{Body, Op, StreamStep, Ty},
            strip::Phase,
        },
        vector::{Aarch64, VectorIsa, X86, vcode::VCode},
    },
    scalar::{BinaryOp, UnaryOp, precision::Bf16Parts},
};

/// `relu(sum + bias)`, or `erf(sum + bias)`.
fn epilogue(erf: bool) -> Body {
    let mut body = Body::default();
    let mut push = |op| body.push(op, Ty::F32).expect("supported");
    let (sum, bias) = (push(Op::Accumulator), push(Op::Load(0)));
    let biased = push(Op::Binary(BinaryOp::Add, sum, bias));
    let zero = push(Op::Const(0));
    let y = push(if erf { Op::Unary(UnaryOp::Erf, biased) } else { Op::Binary(BinaryOp::Max, biased, zero) });
    push(Op::Store(1, y));
    body
}

/// A sum of bytes, scaled and stored as a byte.
fn requantised() -> Body {
    let mut body = Body::default();
    let sum = body.push(Op::Accumulator, Ty::I32).expect("supported");
    let float = body.push(Op::Cast(sum), Ty::F32).expect("supported");
    let scale = body.push(Op::Load(0), Ty::F32).expect("supported");
    let scaled = body.push(Op::Binary(BinaryOp::Mul, float, scale), Ty::F32).expect("supported");
    let rounded = body.push(Op::Unary(UnaryOp::Round, scaled), Ty::F32).expect("supported");
    let byte = body.push(Op::Cast(rounded), Ty::U8).expect("supported");
    body.push(Op::Store(1, byte), Ty::U8).expect("supported");
    body
}

#[test]
fn accumulators_of_bytes_are_not_spilled() {
    let products = [
        (X86::AVX2, DotOp::I16Pairs),
        (X86::AVX2, DotOp::BytePairs),
        (X86::AVX2_VNNI, DotOp::I16Pairs),
        (X86::AVX2_VNNI, DotOp::Vnni),
        (X86::AVX512, DotOp::I16Pairs),
        (X86::AVX512, DotOp::BytePairs),
        (X86::AVX512_VNNI, DotOp::I16Pairs),
        (X86::AVX512_VNNI, DotOp::Vnni),
    ];
    for (isa, product) in products {
        let shape = isa.shape();
        for rows in 1..=max_rows(shape) {
            let vectors = wide_vectors(shape, rows, product);
            let key = tile([rows, vectors], product, 2, requantised());
            let key = TileKey { prefetch_panels: true, prefetch_epilogue: true, ..key };
            let (_, spilled) = isa.encode(&MicrokernelKey::Tile(key).code(&isa)).expect("it encodes");
            assert_eq!(spilled, 0, "{} {product:?} {rows}", isa.name());
        }
    }
}

/// An ISA, and its encoder: the bytes of a microkernel and the number of registers that are spilled.
type Encoder = (Box<dyn VectorIsa>, fn(&VCode) -> (Vec<u8>, usize));

/// The levels that multiply floats on vector registers.
fn encoders() -> [Encoder; 3] {
    [
        (Box::new(X86::AVX2), |code| X86::AVX2.encode(code).expect("it encodes")),
        (Box::new(X86::AVX512), |code| X86::AVX512.encode(code).expect("it encodes")),
        (Box::new(Aarch64::NEON), |code| Aarch64::NEON.encode(code).expect("it encodes")),
    ]
}

#[test]
fn accumulators_of_tiles_are_not_spilled() {
    for (isa, encode) in encoders() {
        let shape = isa.shape();
        for rows in 1..=max_rows(shape) {
            let narrow = 16 / shape.lanes;
            for (vectors, erf) in [
                (wide_vectors(shape, rows, DotOp::F32), false),
                (narrow.max(2), false),
                (narrow.max(2), true),
            ] {
                let key = tile([rows, vectors], DotOp::F32, 2, epilogue(erf));
                let key = TileKey { levels: 2, prefetch_panels: true, ..key };
                let (bytes, spilled) = encode(&MicrokernelKey::Tile(key).code(&*isa));
                assert_eq!(spilled, 0, "{} {rows}x{vectors}", isa.name());
                assert!(bytes.len() < 4500, "{} {rows}x{vectors}: {} bytes", isa.name(), bytes.len());
            }
        }
    }
}

/// Masks take vector registers on some levels: they are spilled there in place of accumulators, or computed later.
#[test]
fn accumulators_of_tail_tiles_are_not_spilled() {
    for (isa, encode) in encoders() {
        let shape = isa.shape();
        for rows in 1..=max_rows(shape) {
            for rhs in [Rhs::Panels(16), Rhs::Rows] {
                let key = tile([rows, 16 / shape.lanes], DotOp::F32, 2, epilogue(false));
                let key = TileKey { levels: 2, tail: true, rhs, ..key };
                let (_, spilled) = encode(&MicrokernelKey::Tile(key).code(&*isa));
                assert_eq!(spilled, 0, "{} {rows} rows, {rhs:?}", isa.name());
            }
        }
    }
}

/// Tiles of one narrow vector have as many rows as tiles of whole vectors.
#[test]
fn accumulators_of_narrow_tiles_are_not_spilled() {
    let isa = X86::AVX2;
    for rows in 1..=max_rows(X86::AVX512.shape()) {
        let key = tile([rows, 1], DotOp::F32, 2, epilogue(false));
        let (_, spilled) = isa.encode(&MicrokernelKey::Tile(key).code(&isa)).expect("it encodes");
        assert_eq!(spilled, 0, "{rows} rows");
    }
}

/// The number of occurrences of an instruction: three bytes of a VEX prefix except for a register, and the opcode.
fn count(bytes: &[u8], low_bits: u8, opcode: u8) -> usize {
    let is = |four: &&[u8]| {
        four[0] == 0xc4 && four[1] & 0x1f == 2 && four[2] & 0x87 == low_bits && four[3] == opcode
    };
    bytes.windows(4).filter(is).count()
}

#[test]
fn tile_registers_are_configured_multiplied_and_released() {
    let isa = X86::AVX512_AMX;
    let bf16 = |left: u8, right: u8| DotOp::AmxBf16(Bf16Parts { lhs: left, rhs: right });
    for (product, products, low_bits, opcode) in [
        (bf16(2, 2), 3, 2, 0x5c),
        (bf16(1, 1), 1, 2, 0x5c),
        (bf16(3, 1), 3, 2, 0x5c),
        (DotOp::AmxBytes, 1, 1, 0x5e),
    ] {
        for (rows, vectors, sums) in [(32, 2, 4), (32, 1, 2), (16, 4, 4), (16, 2, 2), (16, 1, 1)] {
            let epilogue = if product == DotOp::AmxBytes { requantised() } else { epilogue(false) };
            let key = tile([rows, vectors], product, 2, epilogue);
            let key = TileKey { tail: vectors == 1, ..key };
            let (bytes, spilled) = isa.encode(&MicrokernelKey::Tile(key).code(&isa)).expect("it encodes");
            assert_eq!(spilled, 0, "{product:?} {rows}x{vectors}");
            assert_eq!(count(&bytes, low_bits, opcode), sums * products, "{product:?} {rows}x{vectors}");
            // Configuring and releasing both have opcode 49 without a prefix. Only releasing has no memory operand.
            assert_eq!(count(&bytes, 0, 0x49), 1, "{product:?} {rows}x{vectors} configures");
            assert!(!releases(&bytes), "{product:?} {rows}x{vectors}: other tiles may follow");
        }
    }
    let (bytes, _) = isa.encode(&MicrokernelKey::ReleaseTiles.code(&isa)).expect("it encodes");
    assert!(releases(&bytes) && count(&bytes, 0, 0x49) == 1);
}

fn releases(bytes: &[u8]) -> bool {
    bytes.windows(5).any(|five| five == [0xc4, 0xe2, 0x78, 0x49, 0xc0])
}

/// The instructions of each loop that has no loop within it.
fn innermost_loops(bytes: &[u8]) -> Vec<Vec<Instruction>> {
    let all: Vec<Instruction> = Decoder::new(64, bytes, DecoderOptions::NONE).into_iter().collect();
    let end = all.iter().rposition(|instruction| instruction.mnemonic() == Mnemonic::Ret);
    let all = &all[..end.expect("it returns")];
    let jumps_back = |instruction: &Instruction| {
        // Other instructions have no target, so theirs is 0.
        let target = instruction.near_branch_target();
        (target != 0 && target < instruction.ip()).then(|| target..instruction.ip())
    };
    let loops: Vec<_> = all.iter().filter_map(jumps_back).collect();
    let is_innermost = |range: &&std::ops::Range<u64>| {
        !loops.iter().any(|other| other != *range && range.start <= other.start && other.end <= range.end)
    };
    let body = |range: &std::ops::Range<u64>| {
        all.iter().filter(|instruction| range.contains(&instruction.ip())).copied().collect()
    };
    loops.iter().filter(is_innermost).map(body).collect()
}

#[test]
fn constants_of_loops_are_in_registers() {
    let isa = X86::AVX512;
    let mut body = Body::default();
    let x = body.push(Op::Load(0), Ty::F32).expect("supported");
    let y = body.push(Op::Unary(UnaryOp::Exp, x), Ty::F32).expect("supported");
    body.push(Op::Store(1, y), Ty::F32).expect("supported");
    let key = strip(vec![Phase::Loop { extent: 0, body }], vec![StreamStep::Unit; 2]);
    let (bytes, spilled) = isa.encode(&MicrokernelKey::Strip(key).code(&isa)).expect("it encodes");
    assert_eq!(spilled, 0);
    let loops = innermost_loops(&bytes);
    let longest = loops.iter().max_by_key(|body| body.len()).expect("the strip has a loop");
    assert!(longest.len() > 30, "{} instructions", longest.len());
    assert_eq!(longest.iter().filter(|instruction| instruction.is_ip_rel_memory_operand()).count(), 0);
}
