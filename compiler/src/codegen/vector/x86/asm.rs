//! An assembler: instructions, labels and a constant pool, encoded as bytes.
//!
//! Branches always take the long form, and pool references are relative to the instruction pointer. The length of an
//! instruction therefore does not depend on offsets: the first pass measures, the second encodes.

use crate::error::{Error, Result};
use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};

/// A position in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(usize);

/// An operand of an instruction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Reg(Register),
    Mem(MemoryOperand),
    /// A pool entry.
    Pool(usize),
    /// A pool entry of 4 bytes, broadcast to all lanes.
    Splat(usize),
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

#[derive(Clone, Copy, Debug)]
enum AsmItem {
    Plain(Instruction),
    /// Refers to a pool entry.
    Pool(Instruction, usize),
    Branch(Code, Label),
    Label(Label),
    Align(usize),
}

/// Code under construction.
#[derive(Default)]
pub(super) struct Assembler {
    items: Vec<AsmItem>,
    labels: usize,
    pool: Vec<Vec<u8>>,
    /// The error of the last instruction that has no encoding.
    error: Option<String>,
}

impl Assembler {
    /// A label that is not placed yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Places a label here.
    pub(super) fn place(&mut self, label: Label) {
        self.items.push(AsmItem::Label(label));
    }

    /// Pads with no-operations to a multiple of `bytes`.
    pub(super) fn align(&mut self, bytes: usize) {
        self.items.push(AsmItem::Align(bytes));
    }

    /// A jump or conditional jump.
    pub(super) fn branch(&mut self, code: Code, to: Label) {
        self.items.push(AsmItem::Branch(code, to));
    }

    /// The index of the pool entry with these bytes, aligned to their length.
    pub(super) fn constant(&mut self, bytes: Vec<u8>) -> usize {
        let existing = self.pool.iter().position(|other| *other == bytes);
        existing.unwrap_or_else(|| {
            self.pool.push(bytes);
            self.pool.len() - 1
        })
    }

    /// Appends an instruction.
    pub(super) fn op(&mut self, code: Code, operands: &[Operand]) {
        self.op_masked(code, operands, Register::None, false);
    }

    /// Appends an instruction under a mask. The other lanes become zero if `zeroing`, else they keep their values.
    pub(super) fn op_masked(&mut self, code: Code, operands: &[Operand], mask: Register, zeroing: bool) {
        match assemble(code, operands) {
            Ok(Assembled { mut instruction, pool_entry }) => {
                if mask != Register::None {
                    instruction.set_op_mask(mask);
                    instruction.set_zeroing_masking(zeroing);
                }
                self.items.push(match pool_entry {
                    Some(entry) => AsmItem::Pool(instruction, entry),
                    None => AsmItem::Plain(instruction),
                });
            }
            Err(error) => self.error = Some(format!("{code:?}: {error}")),
        }
    }

    /// The machine code, followed by the pool.
    pub(super) fn finish(self) -> Result<Vec<u8>> {
        if let Some(error) = self.error {
            return Err(Error::internal(error));
        }
        let mut offsets = Offsets { labels: vec![0; self.labels], pool: vec![0; self.pool.len()] };
        self.encode(&mut offsets)?;
        self.encode(&mut offsets)
    }

    fn encode(&self, offsets: &mut Offsets) -> Result<Vec<u8>> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut encoder = Encoder::new(64);
        for item in &self.items {
            let offset = bytes.len() as u64;
            let instruction = match item {
                AsmItem::Label(label) => {
                    offsets.labels[label.0] = offset;
                    continue;
                }
                AsmItem::Align(to) => {
                    pad(&mut bytes, *to);
                    continue;
                }
                AsmItem::Plain(instruction) => *instruction,
                AsmItem::Pool(instruction, entry) => {
                    let mut instruction = *instruction;
                    instruction.set_memory_displacement64(offsets.pool[*entry]);
                    instruction
                }
                AsmItem::Branch(code, to) => {
                    Instruction::with_branch(*code, offsets.labels[to.0]).map_err(encoding_error)?
                }
            };

            encoder.encode(&instruction, offset).map_err(encoding_error)?;
            bytes.extend(encoder.take_buffer());
        }

        for (entry, data) in self.pool.iter().enumerate() {
            bytes.resize(bytes.len().next_multiple_of(data.len()), 0);
            offsets.pool[entry] = bytes.len() as u64;
            bytes.extend(data);
        }
        Ok(bytes)
    }
}

/// Offsets from the start of the code, in bytes.
struct Offsets {
    labels: Vec<u64>,
    pool: Vec<u64>,
}

fn encoding_error(error: iced_x86::IcedError) -> Error {
    Error::internal(error.to_string())
}

/// Pads to a multiple of `to` bytes with as few no-operations as possible.
fn pad(bytes: &mut Vec<u8>, to: usize) {
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

    let mut missing = bytes.len().next_multiple_of(to) - bytes.len();
    while missing > 0 {
        let nop = NOPS[missing.min(NOPS.len()) - 1];
        bytes.extend(nop);
        missing -= nop.len();
    }
}

/// A reference to the pool, whose displacement is set when the layout is known.
fn pooled(broadcast: bool) -> MemoryOperand {
    MemoryOperand::with_base_displ_bcst_seg(Register::RIP, 0, broadcast, Register::None)
}

/// An instruction, and the pool entry that it refers to.
struct Assembled {
    instruction: Instruction,
    pool_entry: Option<usize>,
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
