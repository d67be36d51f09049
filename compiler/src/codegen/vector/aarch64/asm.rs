//! An assembler: words, loads from the constant pool and branches.

use super::{
    instructions::Op,
    transfers::{AddressForm, Transfer},
};
use crate::{
    codegen::vector::listing::{Instruction, Label, Listing, Offsets, PoolEntry},
    error::Result,
};

/// The condition that always holds.
pub(super) const ALWAYS: i64 = 14;

/// An instruction.
pub(super) enum Placed {
    Word(u32),
    /// Loads a vector register from a pool entry.
    Pool(i64, PoolEntry),
    /// A branch on a condition.
    Branch(i64, Label),
}

impl Instruction for Placed {
    fn encode(&self, code: &mut Vec<u8>, offsets: &Offsets) -> Result<()> {
        let distance = |to: usize| to as i64 - code.len() as i64;
        let word = match self {
            Placed::Word(word) => *word,
            Placed::Pool(dst, entry) => Op::LdrLiteral.encode(&[*dst, distance(offsets.entry(*entry))])?,
            Placed::Branch(condition, to) => {
                Op::Branch.encode(&[*condition, distance(offsets.label(*to))])?
            }
        };
        code.extend(word.to_le_bytes());
        Ok(())
    }

    fn pad(code: &mut Vec<u8>, to: usize) -> Result<()> {
        let nop = Op::Nop.encode(&[])?;
        while !code.len().is_multiple_of(to) {
            code.extend(nop.to_le_bytes());
        }
        Ok(())
    }
}

/// Code under construction.
pub(super) type Assembler = Listing<Placed>;

impl Assembler {
    /// A branch on a condition.
    pub(super) fn branch(&mut self, condition: i64, to: Label) {
        self.push(Ok(Placed::Branch(condition, to)));
    }

    /// Loads constant bytes into a vector register.
    pub(super) fn load_constant(&mut self, dst: i64, bytes: [u8; 16]) {
        let entry = self.constant(bytes.to_vec());
        self.push(Ok(Placed::Pool(dst, entry)));
    }

    /// Appends an instruction with the operands of its text.
    pub(super) fn op(&mut self, op: Op, operands: &[i64]) {
        self.push(op.encode(operands).map(Placed::Word));
    }

    /// Appends a load or store with the operands of its text.
    pub(super) fn transfer(&mut self, transfer: Transfer, form: AddressForm, operands: [i64; 3]) {
        self.push(transfer.encode(form, operands).map(Placed::Word));
    }
}
