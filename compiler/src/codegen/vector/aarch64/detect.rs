//! Detects the machine's level on Linux.
//!
//! The kernel lists the extensions of the machine in the auxiliary vector of a process, which is a file too. It is read
//! when the artefact is loaded. Where it can't be read, the level is the lowest one.

use super::{
    asm::Assembler,
    instructions::Op,
    registers::STACK_POINTER,
    transfers::{AddressForm, Transfer},
};
use crate::error::Result;

/// NEON alone: what every machine has.
pub const NEON: i64 = 2;
/// NEON with dot products of bytes.
pub const DOTPROD: i64 = 3;
/// NEON with dot products and products of matrices of bytes.
pub const I8MM: i64 = 4;
/// As [`I8MM`], with products of matrices of bf16.
pub const BF16: i64 = 5;

/// The auxiliary vector: pairs of a type and a value, of 64 bits each.
const FILE: [u8; 16] = *b"/proc/self/auxv\0";

/// Bytes of a pair.
const PAIR: i64 = 16;

/// Bytes that are read: twice as many pairs as Linux lists.
const VECTOR_BYTES: i64 = 64 * PAIR;

/// The types of the pairs whose values have a bit for each extension: `AT_HWCAP` and `AT_HWCAP2`.
const EXTENSIONS: i64 = 16;
const MORE_EXTENSIONS: i64 = 26;

/// The bit of dot products in the first value: `HWCAP_ASIMDDP`.
const DOTPROD_BIT: i64 = 20;
/// The bit of products of matrices in the second value: `HWCAP2_I8MM`.
const I8MM_BIT: i64 = 13;
/// The bit of instructions for bf16 in the second value: `HWCAP2_BF16`.
const BF16_BIT: i64 = 14;

const EQUAL: i64 = 0;
const LESS: i64 = 11;
const ALWAYS: i64 = 14;

/// The numbers of system calls.
const OPEN_AT: i64 = 56;
const CLOSE: i64 = 57;
const READ: i64 = 63;

/// In place of a folder: the working folder, as `open` has it.
const WORKING_FOLDER: i64 = -100;

// System calls change register 0 alone.
const SYSTEM_CALL: i64 = 8;
const LEVEL: i64 = 9;
const DESCRIPTOR: i64 = 10;
const REST: i64 = 11;
const PLACE: i64 = 12;
const TYPE: i64 = 13;
const VALUE: i64 = 14;
const ONE: i64 = 15;
/// 1 if the machine has the extension.
const DOTS: i64 = 16;
const MATRICES: i64 = 17;
const HALVES: i64 = 7;

/// The machine code of a function without parameters that returns [`NEON`], [`DOTPROD`], [`I8MM`] or [`BF16`]. It
/// enters the system.
///
/// # Errors
/// `Internal` where an instruction can't be encoded: a bug.
pub fn detect() -> Result<Vec<u8>> {
    let mut asm = Assembler::default();
    let [next, first, second, end] = std::array::from_fn(|_| asm.label());
    asm.op(Op::SubImm, &[STACK_POINTER, STACK_POINTER, VECTOR_BYTES]);
    for (reg, value) in [(LEVEL, NEON), (ONE, 1), (DOTS, 0), (MATRICES, 0), (HALVES, 0)] {
        set(&mut asm, reg, value);
    }

    asm.load_constant(0, FILE);
    asm.transfer(Transfer::STR_Q, AddressForm::Offset, [0, STACK_POINTER, 0]);
    asm.op(Op::MovN, &[0, !WORKING_FOLDER, 0]);
    asm.op(Op::AddImm, &[1, STACK_POINTER, 0]);
    set(&mut asm, 2, 0);
    system_call(&mut asm, OPEN_AT);
    asm.op(Op::CmpImm, &[0, 0]);
    asm.branch(LESS, end);
    asm.op(Op::Mov, &[DESCRIPTOR, 0]);

    asm.op(Op::AddImm, &[1, STACK_POINTER, 0]);
    set(&mut asm, 2, VECTOR_BYTES);
    system_call(&mut asm, READ);
    asm.op(Op::Mov, &[REST, 0]);
    asm.op(Op::Mov, &[0, DESCRIPTOR]);
    system_call(&mut asm, CLOSE);
    asm.op(Op::AddImm, &[PLACE, STACK_POINTER, 0]);

    asm.place(next);
    asm.op(Op::CmpImm, &[REST, PAIR]);
    asm.branch(LESS, end);
    asm.transfer(Transfer::LDR_X, AddressForm::Offset, [TYPE, PLACE, 0]);
    asm.transfer(Transfer::LDR_X, AddressForm::Offset, [VALUE, PLACE, 8]);
    asm.op(Op::AddImm, &[PLACE, PLACE, PAIR]);
    asm.op(Op::SubImm, &[REST, REST, PAIR]);
    asm.op(Op::CmpImm, &[TYPE, EXTENSIONS]);
    asm.branch(EQUAL, first);
    asm.op(Op::CmpImm, &[TYPE, MORE_EXTENSIONS]);
    asm.branch(EQUAL, second);
    asm.branch(ALWAYS, next);

    for (label, bits) in
        [(first, &[(DOTPROD_BIT, DOTS)][..]), (second, &[(I8MM_BIT, MATRICES), (BF16_BIT, HALVES)])]
    {
        asm.place(label);
        for (bit, flag) in bits {
            asm.op(Op::Asr, &[*flag, VALUE, *bit]);
            asm.op(Op::AndInt, &[*flag, *flag, ONE]);
        }
        asm.branch(ALWAYS, next);
    }

    asm.place(end);
    // Each level needs the extensions of those below.
    asm.op(Op::AndInt, &[MATRICES, MATRICES, DOTS]);
    asm.op(Op::AndInt, &[HALVES, HALVES, MATRICES]);
    asm.op(Op::Add, &[LEVEL, LEVEL, DOTS]);
    asm.op(Op::Add, &[LEVEL, LEVEL, MATRICES]);
    asm.op(Op::Add, &[0, LEVEL, HALVES]);
    asm.op(Op::AddImm, &[STACK_POINTER, STACK_POINTER, VECTOR_BYTES]);
    asm.op(Op::Ret, &[]);
    asm.finish()
}

/// The machine code of a function without parameters that returns [`NEON`], for calls before the artefact is loaded.
///
/// # Errors
/// `Internal` where an instruction can't be encoded: a bug.
pub fn least() -> Result<Vec<u8>> {
    let mut asm = Assembler::default();
    set(&mut asm, 0, NEON);
    asm.op(Op::Ret, &[]);
    asm.finish()
}

fn set(asm: &mut Assembler, reg: i64, value: i64) {
    asm.op(Op::MovZ, &[reg, value, 0]);
}

/// Enters the system; registers 0 to 2 have the arguments, and register 0 gets the result.
fn system_call(asm: &mut Assembler, number: i64) {
    set(asm, SYSTEM_CALL, number);
    asm.op(Op::Svc, &[0]);
}
