//! An assembler: instructions that may refer to the constant pool, and branches.
//!
//! Branches always take the long form, and pool references are relative to the instruction pointer. The length of an
//! instruction therefore does not depend on offsets.

use crate::{
    codegen::vector::listing::{self, Label, Listing, Offsets, PoolEntry},
    error::{Error, Result},
};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

/// An operand of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Reg(Register),
    Mem(MemoryOperand),
    /// A pool entry.
    Pool(PoolEntry),
    /// A pool entry of 4 bytes, broadcast to all lanes.
    Splat(PoolEntry),
    Imm(i32),
}

impl From<Register> for Operand {
    fn from(reg: Register) -> Operand {
        Operand::Reg(reg)
    }
}

impl From<MemoryOperand> for Operand {
    fn from(mem: MemoryOperand) -> Operand {
        Operand::Mem(mem)
    }
}

impl From<i32> for Operand {
    fn from(imm: i32) -> Operand {
        Operand::Imm(imm)
    }
}

/// An instruction.
pub(super) enum Placed {
    Plain(Instruction),
    /// Refers to a pool entry.
    Pool(Instruction, PoolEntry),
    Branch(Code, Label),
}

impl listing::Instruction for Placed {
    fn encode(&self, code: &mut Vec<u8>, offsets: &Offsets) -> Result<()> {
        let instruction = match self {
            Placed::Plain(instruction) => *instruction,
            Placed::Pool(instruction, entry) => {
                let mut instruction = *instruction;
                instruction.set_memory_displacement64(offsets.entry(*entry) as u64);
                instruction
            }
            Placed::Branch(code, to) => {
                Instruction::with_branch(*code, offsets.label(*to) as u64).map_err(encoding_error)?
            }
        };

        let mut encoder = Encoder::new(64);
        encoder.encode(&instruction, code.len() as u64).map_err(encoding_error)?;
        code.extend(encoder.take_buffer());
        Ok(())
    }

    /// Takes as few no-operations as possible.
    fn pad(code: &mut Vec<u8>, to: usize) -> Result<()> {
        let mut missing = code.len().next_multiple_of(to) - code.len();
        while missing > 0 {
            let nop = NOPS[missing.min(NOPS.len()) - 1];
            code.extend(nop);
            missing -= nop.len();
        }
        Ok(())
    }
}

/// No-operations of one byte, of two, and so on.
const NOPS: [&[u8]; 8] = [
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

/// Code under construction.
pub(super) type Assembler = Listing<Placed>;

impl Assembler {
    /// A jump or conditional jump.
    pub(super) fn branch(&mut self, code: Code, to: Label) {
        self.push(Ok(Placed::Branch(code, to)));
    }

    /// Appends an instruction.
    pub(super) fn op(&mut self, code: Code, operands: &[Operand]) {
        self.op_masked(code, operands, Register::None, false);
    }

    /// Appends an instruction under a mask. The other lanes become zero if `zeroing`, else they keep their values.
    pub(super) fn op_masked(&mut self, code: Code, operands: &[Operand], mask: Register, zeroing: bool) {
        let placed = assemble(code, operands).map(|Assembled { mut instruction, pool_entry }| {
            if mask != Register::None {
                instruction.set_op_mask(mask);
                instruction.set_zeroing_masking(zeroing);
            }
            match pool_entry {
                Some(entry) => Placed::Pool(instruction, entry),
                None => Placed::Plain(instruction),
            }
        });
        self.push(placed.map_err(|error| Error::internal(format!("{code:?}: {error}"))));
    }
}

fn encoding_error(error: iced_x86::IcedError) -> Error {
    Error::internal(error.to_string())
}

/// A reference to the pool, whose displacement is set when the layout is known.
fn pooled(broadcast: bool) -> MemoryOperand {
    MemoryOperand::with_base_displ_bcst_seg(Register::RIP, 0, broadcast, Register::None)
}

/// An instruction, and the pool entry that it refers to.
struct Assembled {
    instruction: Instruction,
    pool_entry: Option<PoolEntry>,
}

fn assemble(code: Code, operands: &[Operand]) -> Result<Assembled, iced_x86::IcedError> {
    use Operand::{Imm, Mem, Reg};
    let mut pool_entry = None;
    let operands: Vec<Operand> = operands
        .iter()
        .map(|operand| match *operand {
            Operand::Pool(entry) => {
                pool_entry = Some(entry);
                Mem(pooled(false))
            }
            Operand::Splat(entry) => {
                pool_entry = Some(entry);
                Mem(pooled(true))
            }
            other => other,
        })
        .collect();

    let instruction = match *operands.as_slice() {
        [] => Instruction::with(code),
        [Reg(a)] => Instruction::with1(code, a)?,
        [Mem(a)] => Instruction::with1(code, a)?,
        [Reg(a), Reg(b)] => Instruction::with2(code, a, b)?,
        [Reg(a), Mem(b)] => Instruction::with2(code, a, b)?,
        [Mem(a), Reg(b)] => Instruction::with2(code, a, b)?,
        [Reg(a), Imm(b)] => Instruction::with2(code, a, b)?,
        [Reg(a), Reg(b), Reg(c)] => Instruction::with3(code, a, b, c)?,
        [Reg(a), Reg(b), Mem(c)] => Instruction::with3(code, a, b, c)?,
        [Mem(a), Reg(b), Reg(c)] => Instruction::with3(code, a, b, c)?,
        [Reg(a), Reg(b), Imm(c)] => Instruction::with3(code, a, b, c)?,
        [Reg(a), Mem(b), Reg(c)] => Instruction::with3(code, a, b, c)?,
        [Reg(a), Mem(b), Imm(c)] => Instruction::with3(code, a, b, c)?,
        [Mem(a), Reg(b), Imm(c)] => Instruction::with3(code, a, b, c)?,
        [Reg(a), Reg(b), Reg(c), Imm(d)] => Instruction::with4(code, a, b, c, d)?,
        [Reg(a), Reg(b), Mem(c), Imm(d)] => Instruction::with4(code, a, b, c, d)?,
        [Reg(a), Reg(b), Reg(c), Reg(d)] => Instruction::with4(code, a, b, c, d)?,
        [Reg(a), Reg(b), Mem(c), Reg(d)] => Instruction::with4(code, a, b, c, d)?,
        _ => unreachable!("no x86 instruction has such operands"),
    };
    Ok(Assembled { instruction, pool_entry })
}

/// The code of an instruction with this immediate. The short form is three bytes shorter.
pub(super) fn by_imm_width(value: i32, short: Code, long: Code) -> Code {
    if i8::try_from(value).is_ok() { short } else { long }
}
