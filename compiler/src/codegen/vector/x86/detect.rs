//! The function that says what the machine at hand can do: `extern "C" fn() -> i64`, as machine code.
//!
//! It asks `cpuid` for the instructions and `xgetbv` for what the operating system saves, as the manuals of the makers
//! tell. What a level needs is listed here once more, by bits.

use super::asm::{Assembler, Label, Operand};
use crate::error::Result;
use iced_x86::{Code, Register};

/// SSE4.2 and less, which is not asked for.
pub const BASE: i64 = 2;
/// AVX2, FMA and their like.
pub const AVX2: i64 = 3;
/// AVX-512 F, BW, CD, DQ and VL too.
pub const AVX512: i64 = 4;
/// VNNI too.
pub const AVX512_VNNI: i64 = 5;

/// Leaf 1, `ecx`: FMA, MOVBE, POPCNT, OSXSAVE, AVX, F16C.
const LEAF_1_ECX: i32 = 1 << 12 | 1 << 22 | 1 << 23 | 1 << 27 | 1 << 28 | 1 << 29;
/// Leaf 0x80000001, `ecx`: LZCNT.
const LEAF_EXTENDED_ECX: i32 = 1 << 5;
/// Leaf 7, `ebx`: BMI1, AVX2, BMI2.
const LEAF_7_EBX: i32 = 1 << 3 | 1 << 5 | 1 << 8;
/// Leaf 7, `ebx`: AVX-512 F, DQ, CD, BW, VL.
const LEAF_7_EBX_WIDE: i32 = 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30 | 1 << 31;
/// Leaf 7, `ecx`: VNNI.
const LEAF_7_ECX: i32 = 1 << 11;
/// Register sets that the system saves: SSE, AVX.
const SAVED: i32 = 0b110;
/// The same with mask registers and the wide vector registers.
const SAVED_WIDE: i32 = 0b1110_0110;

/// The machine code.
///
/// # Errors
/// `Internal` where an instruction can't be encoded: a bug.
pub fn detect() -> Result<Vec<u8>> {
    use Register::{EAX, EBX, ECX, R8D, R9D, R10D, R11D};
    let mut asm = Assembler::default();
    let end = asm.label();
    asm.op(Code::Push_r64, &[Register::RBX.into()]);
    set(&mut asm, R8D, BASE as i32);
    ask(&mut asm, 0);
    asm.op(Code::Cmp_rm32_imm32, &[EAX.into(), 7.into()]);
    asm.branch(Code::Jb_rel32_64, end);
    ask(&mut asm, 1);
    require(&mut asm, ECX, LEAF_1_ECX, end);
    set(&mut asm, ECX, 0);
    asm.op(Code::Xgetbv, &[]);
    asm.op(Code::Mov_r32_rm32, &[R9D.into(), EAX.into()]);
    require(&mut asm, EAX, SAVED, end);
    ask(&mut asm, 0x8000_0001_u32 as i32);
    require(&mut asm, ECX, LEAF_EXTENDED_ECX, end);
    ask(&mut asm, 7);
    asm.op(Code::Mov_r32_rm32, &[R10D.into(), EBX.into()]);
    asm.op(Code::Mov_r32_rm32, &[R11D.into(), ECX.into()]);
    require(&mut asm, EBX, LEAF_7_EBX, end);
    set(&mut asm, R8D, AVX2 as i32);
    require(&mut asm, R9D, SAVED_WIDE, end);
    require(&mut asm, R10D, LEAF_7_EBX_WIDE, end);
    set(&mut asm, R8D, AVX512 as i32);
    require(&mut asm, R11D, LEAF_7_ECX, end);
    set(&mut asm, R8D, AVX512_VNNI as i32);
    asm.place(end);
    asm.op(Code::Mov_r32_rm32, &[EAX.into(), R8D.into()]);
    asm.op(Code::Pop_r64, &[Register::RBX.into()]);
    asm.op(Code::Retnq, &[]);
    asm.finish()
}

fn set(asm: &mut Assembler, reg: Register, value: i32) {
    asm.op(Code::Mov_r32_imm32, &[reg.into(), value.into()]);
}

/// `cpuid` of a leaf, subleaf 0.
fn ask(asm: &mut Assembler, leaf: i32) {
    set(asm, Register::EAX, leaf);
    set(asm, Register::ECX, 0);
    asm.op(Code::Cpuid, &[]);
}

/// Goes to `end` unless all these bits are set; the register is clobbered.
fn require(asm: &mut Assembler, reg: Register, bits: i32, end: Label) {
    let operand: Operand = reg.into();
    asm.op(Code::And_rm32_imm32, &[operand, bits.into()]);
    asm.op(Code::Cmp_rm32_imm32, &[operand, bits.into()]);
    asm.branch(Code::Jne_rel32_64, end);
}
