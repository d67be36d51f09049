//! The function that detects the machine's ISA level: `fn() -> i64` in the System V convention, as machine code.
//!
//! `cpuid` tells which instructions the machine has, and `xgetbv` which registers the operating system saves. The
//! constants below list the bits that each level requires, by their positions in the manuals of Intel and AMD.
//!
//! Linux grants tile registers only on request, by a system call. The function therefore runs when code is loaded,
//! never during a call of the model.

use super::asm::{Assembler, Operand};
use crate::{codegen::vector::listing::Label, error::Result};
use iced_x86::{Code, Register};

/// Set in addition to any level that has AVX2: AVX-VNNI. Machines with AVX-512 and VNNI may lack it.
pub const AVX_VNNI: i64 = 1;
/// SSE4.2 and lower. This level is not checked.
pub(crate) const BASE: i64 = 4;
/// AVX2, FMA and the other extensions of x86-64-v3.
pub const AVX2: i64 = 6;
/// The above, and AVX-512 F, BW, CD, DQ and VL.
pub const AVX512: i64 = 8;
/// The above, and VNNI.
pub const AVX512_VNNI: i64 = 10;
/// The above, AMX with bf16 and bytes, and AVX-512 with bf16. The operating system has granted the tile registers.
pub const AVX512_AMX: i64 = 12;

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
/// `xgetbv`: the system saves the registers of SSE and AVX.
const SAVED: i32 = 0b110;
/// `xgetbv`: it also saves mask registers and 512-bit vector registers.
const SAVED_WIDE: i32 = 0b1110_0110;
/// Leaf 7, `edx`: AMX with bf16, tile registers, AMX with bytes.
const LEAF_7_EDX_TILES: i32 = 1 << 22 | 1 << 24 | 1 << 25;
/// Leaf 7, subleaf 1, `eax`: AVX-512 with bf16.
const LEAF_7_1_EAX: i32 = 1 << 5;
/// Leaf 7, subleaf 1, `eax`: AVX-VNNI.
const LEAF_7_1_EAX_VNNI: i32 = 1 << 4;
/// `xgetbv`: it also saves the configuration and the data of tile registers.
const SAVED_TILES: i32 = 0b11 << 17;

/// Linux's call `arch_prctl(ARCH_REQ_XCOMP_PERM, 18)`: requests permission to use tile data.
const ARCH_PRCTL: i32 = 158;
const REQUEST_PERMISSION: i32 = 0x1023;
const TILE_DATA: i32 = 18;

/// How a program obtains permission to use tile registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// Tile registers are not used.
    Refused,
    /// Linux grants them on request.
    Linux,
    /// No request is necessary.
    Free,
}

/// The machine code. It requests tile registers from the system if `grant` is [`Grant::Linux`].
///
/// Each check jumps to the end if it fails. `r8d` holds the highest level whose checks have passed.
///
/// # Errors
/// `Internal` where an instruction can't be encoded: a bug.
pub fn detect(grant: Grant) -> Result<Vec<u8>> {
    use Register::{EAX, EBX, ECX, EDI, EDX, ESI, R8D, R9D, R10D, R11D};
    let mut asm = Assembler::default();
    let end = asm.label();

    // `cpuid` clobbers `rbx`, which a function must preserve.
    asm.op(Code::Push_r64, &[Register::RBX.into()]);
    set(&mut asm, R8D, BASE as i32);

    // Leaf 7 exists.
    cpuid(&mut asm, 0, 0);
    asm.op(Code::Cmp_rm32_imm32, &[EAX.into(), 7.into()]);
    asm.branch(Code::Jb_rel32_64, end);

    cpuid(&mut asm, 1, 0);
    require(&mut asm, ECX, LEAF_1_ECX, end);

    // `r9d` keeps the register sets that the system saves.
    set(&mut asm, ECX, 0);
    asm.op(Code::Xgetbv, &[]);
    asm.op(Code::Mov_r32_rm32, &[R9D.into(), EAX.into()]);
    require(&mut asm, EAX, SAVED, end);
    cpuid(&mut asm, 0x8000_0001_u32 as i32, 0);
    require(&mut asm, ECX, LEAF_EXTENDED_ECX, end);

    // Leaf 7 serves several levels, so its registers are kept: `ebx` in `r10d`, `ecx` in `r11d`, `edx` in `esi`.
    cpuid(&mut asm, 7, 0);
    asm.op(Code::Mov_r32_rm32, &[R10D.into(), EBX.into()]);
    asm.op(Code::Mov_r32_rm32, &[R11D.into(), ECX.into()]);
    asm.op(Code::Mov_r32_rm32, &[ESI.into(), EDX.into()]);
    require(&mut asm, EBX, LEAF_7_EBX, end);
    set(&mut asm, R8D, AVX2 as i32);

    asm.op(Code::Mov_r32_rm32, &[EDI.into(), R9D.into()]);
    require(&mut asm, EDI, SAVED_WIDE, end);
    require(&mut asm, R10D, LEAF_7_EBX_WIDE, end);
    set(&mut asm, R8D, AVX512 as i32);

    require(&mut asm, R11D, LEAF_7_ECX, end);
    set(&mut asm, R8D, AVX512_VNNI as i32);

    if grant != Grant::Refused {
        require(&mut asm, ESI, LEAF_7_EDX_TILES, end);
        require(&mut asm, R9D, SAVED_TILES, end);
        cpuid(&mut asm, 7, 1);
        require(&mut asm, EAX, LEAF_7_1_EAX, end);
    }
    if grant == Grant::Linux {
        set(&mut asm, EAX, ARCH_PRCTL);
        set(&mut asm, EDI, REQUEST_PERMISSION);
        set(&mut asm, ESI, TILE_DATA);
        asm.op(Code::Syscall, &[]);
        asm.op(Code::Cmp_rm32_imm32, &[EAX.into(), 0.into()]);
        asm.branch(Code::Jne_rel32_64, end);
    }
    if grant != Grant::Refused {
        set(&mut asm, R8D, AVX512_AMX as i32);
    }

    // A machine without the subleaf has zeros there.
    asm.place(end);
    let done = asm.label();
    asm.op(Code::Cmp_rm32_imm32, &[R8D.into(), (AVX2 as i32).into()]);
    asm.branch(Code::Jb_rel32_64, done);
    cpuid(&mut asm, 7, 1);
    require(&mut asm, EAX, LEAF_7_1_EAX_VNNI, done);
    asm.op(Code::Or_rm32_imm32, &[R8D.into(), (AVX_VNNI as i32).into()]);

    asm.place(done);
    asm.op(Code::Mov_r32_rm32, &[EAX.into(), R8D.into()]);
    asm.op(Code::Pop_r64, &[Register::RBX.into()]);
    asm.op(Code::Retnq, &[]);
    asm.finish()
}

fn set(asm: &mut Assembler, reg: Register, value: i32) {
    asm.op(Code::Mov_r32_imm32, &[reg.into(), value.into()]);
}

fn cpuid(asm: &mut Assembler, leaf: i32, subleaf: i32) {
    set(asm, Register::EAX, leaf);
    set(asm, Register::ECX, subleaf);
    asm.op(Code::Cpuid, &[]);
}

/// Jumps to `end` unless all these bits are set. The register is clobbered.
fn require(asm: &mut Assembler, reg: Register, bits: i32, end: Label) {
    let operand: Operand = reg.into();
    asm.op(Code::And_rm32_imm32, &[operand, bits.into()]);
    asm.op(Code::Cmp_rm32_imm32, &[operand, bits.into()]);
    asm.branch(Code::Jne_rel32_64, end);
}
