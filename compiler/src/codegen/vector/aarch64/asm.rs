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

/// Offsets of two adjacent vectors that one instruction loads are below this.
const PAIR_BYTES: i64 = 64 * 16;

/// An instruction.
pub(super) enum Placed {
    Word(u32),
    /// Loads a whole vector register from a base and an offset.
    Load {
        dst: i64,
        base: i64,
        offset: i64,
    },
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
            Placed::Load { dst, base, offset } => {
                Transfer::LDR_Q.encode(AddressForm::Offset, [*dst, *base, *offset])?
            }
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

    /// Appends a load of a whole vector register. Loads of adjacent vectors become one instruction.
    pub(super) fn load(&mut self, dst: i64, base: i64, offset: i64) {
        if let Some(last) = self.last_mut()
            && let Placed::Load { dst: first, base: before, offset: at } = *last
            && (before, at + 16) == (base, offset)
            && first != dst
            && at < PAIR_BYTES
        {
            match Op::LoadPairQ.encode(&[first, dst, base, at]) {
                Ok(word) => *last = Placed::Word(word),
                Err(error) => self.push(Err(error)),
            }
            return;
        }
        self.push(Ok(Placed::Load { dst, base, offset }));
    }

    /// Appends a load or store with the operands of its text.
    pub(super) fn transfer(&mut self, transfer: Transfer, form: AddressForm, operands: [i64; 3]) {
        self.push(transfer.encode(form, operands).map(Placed::Word));
    }
}
