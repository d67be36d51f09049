//! An assembler: instructions, labels and a constant pool, encoded as bytes.

use super::instructions::Op;
use crate::error::{Error, Result};

/// Bytes of an instruction.
const WORD: usize = 4;

/// Bytes of an entry of the pool, and its alignment.
const ENTRY: usize = 16;

/// The condition that always holds.
pub(super) const ALWAYS: i64 = 14;

/// A position in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(usize);

#[derive(Clone, Copy, Debug)]
enum AsmItem {
    Word(u32),
    /// Loads a vector register from a pool entry.
    Pool(i64, usize),
    /// A branch on a condition.
    Branch(i64, Label),
    Label(Label),
    Align(usize),
}

/// Code under construction.
#[derive(Default)]
pub(super) struct Assembler {
    items: Vec<AsmItem>,
    labels: usize,
    pool: Vec<[u8; ENTRY]>,
    /// The error of the first instruction that has no encoding.
    error: Option<Error>,
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

    /// A branch on a condition.
    pub(super) fn branch(&mut self, condition: i64, to: Label) {
        self.items.push(AsmItem::Branch(condition, to));
    }

    /// Loads constant bytes into a vector register.
    pub(super) fn load_constant(&mut self, dst: i64, bytes: [u8; ENTRY]) {
        let known = self.pool.iter().position(|other| *other == bytes);
        let entry = known.unwrap_or_else(|| {
            self.pool.push(bytes);
            self.pool.len() - 1
        });
        self.items.push(AsmItem::Pool(dst, entry));
    }

    /// Appends an instruction with the operands of its text.
    pub(super) fn op(&mut self, op: Op, operands: &[i64]) {
        match op.encode(operands) {
            Ok(word) => self.items.push(AsmItem::Word(word)),
            Err(error) => self.fail(error),
        }
    }

    /// Remembers an error, which [`Assembler::finish`] returns.
    pub(super) fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    /// The machine code, followed by the pool.
    pub(super) fn finish(self) -> Result<Vec<u8>> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let mut labels = vec![0; self.labels];
        let mut end = 0_usize;
        for item in &self.items {
            match item {
                AsmItem::Label(label) => labels[label.0] = end,
                AsmItem::Align(to) => end = end.next_multiple_of(*to),
                AsmItem::Word(_) | AsmItem::Pool(..) | AsmItem::Branch(..) => end += WORD,
            }
        }

        let pool = end.next_multiple_of(ENTRY);
        let mut bytes = Vec::with_capacity(pool + ENTRY * self.pool.len());
        for item in &self.items {
            let distance = |to: usize| to as i64 - bytes.len() as i64;
            let word = match item {
                AsmItem::Label(_) => continue,
                AsmItem::Align(to) => {
                    pad(&mut bytes, *to)?;
                    continue;
                }
                AsmItem::Word(word) => *word,
                AsmItem::Pool(dst, entry) => {
                    Op::LdrLiteral.encode(&[*dst, distance(pool + ENTRY * entry)])?
                }
                AsmItem::Branch(condition, to) => Op::Branch.encode(&[*condition, distance(labels[to.0])])?,
            };
            bytes.extend(word.to_le_bytes());
        }

        pad(&mut bytes, ENTRY)?;
        self.pool.iter().for_each(|entry| bytes.extend(entry));
        Ok(bytes)
    }
}

/// Pads to a multiple of `to` bytes with no-operations.
fn pad(bytes: &mut Vec<u8>, to: usize) -> Result<()> {
    let nop = Op::Nop.encode(&[])?;
    while !bytes.len().is_multiple_of(to) {
        bytes.extend(nop.to_le_bytes());
    }
    Ok(())
}
