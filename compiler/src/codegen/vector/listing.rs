//! Machine code under construction, as far as it is alike on all ISAs: labels, alignment and a constant pool.

use crate::error::{Error, Result};

/// A position in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(usize);

/// An entry of the constant pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PoolEntry(usize);

/// Offsets from the start of the code, in bytes.
pub(super) struct Offsets {
    labels: Vec<usize>,
    pool: Vec<usize>,
}

impl Offsets {
    pub(super) fn label(&self, label: Label) -> usize {
        self.labels[label.0]
    }

    pub(super) fn entry(&self, entry: PoolEntry) -> usize {
        self.pool[entry.0]
    }
}

/// An instruction, whose length does not depend on offsets.
pub(super) trait Instruction {
    /// Appends the instruction to the code before it.
    ///
    /// # Errors
    /// `Internal` where it has no encoding: a bug.
    fn encode(&self, code: &mut Vec<u8>, offsets: &Offsets) -> Result<()>;

    /// Pads the code with no-operations to a multiple of `to` bytes.
    ///
    /// # Errors
    /// `Internal` where these have no encoding: a bug.
    fn pad(code: &mut Vec<u8>, to: usize) -> Result<()>;
}

enum Item<I> {
    Instruction(I),
    Label(Label),
    Align(usize),
}

/// Code under construction, of instructions of one ISA.
pub(super) struct Listing<I> {
    items: Vec<Item<I>>,
    labels: usize,
    pool: Vec<Vec<u8>>,
    /// The error of the first instruction that has no encoding.
    error: Option<Error>,
}

impl<I> Default for Listing<I> {
    fn default() -> Listing<I> {
        Listing { items: Vec::new(), labels: 0, pool: Vec::new(), error: None }
    }
}

impl<I: Instruction> Listing<I> {
    /// A label that is not placed yet.
    pub(super) fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels - 1)
    }

    /// Places a label here.
    pub(super) fn place(&mut self, label: Label) {
        self.items.push(Item::Label(label));
    }

    /// Pads with no-operations to a multiple of `bytes`.
    pub(super) fn align(&mut self, bytes: usize) {
        self.items.push(Item::Align(bytes));
    }

    /// The pool entry with these bytes, aligned to their length.
    pub(super) fn constant(&mut self, bytes: Vec<u8>) -> PoolEntry {
        let existing = self.pool.iter().position(|other| *other == bytes);
        PoolEntry(existing.unwrap_or_else(|| {
            self.pool.push(bytes);
            self.pool.len() - 1
        }))
    }

    /// Appends an instruction. [`Listing::finish`] returns its error.
    pub(super) fn push(&mut self, instruction: Result<I>) {
        match instruction {
            Ok(instruction) => self.items.push(Item::Instruction(instruction)),
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
    }

    /// The last instruction, unless a label or an alignment follows it.
    pub(super) fn last_mut(&mut self) -> Option<&mut I> {
        match self.items.last_mut() {
            Some(Item::Instruction(instruction)) => Some(instruction),
            _ => None,
        }
    }

    /// The machine code, followed by the pool.
    ///
    /// # Errors
    /// The first error of an instruction.
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        // The first pass measures, the second encodes.
        let mut offsets = Offsets { labels: vec![0; self.labels], pool: vec![0; self.pool.len()] };
        self.encode(&mut offsets)?;
        self.encode(&mut offsets)
    }

    fn encode(&self, offsets: &mut Offsets) -> Result<Vec<u8>> {
        let mut code: Vec<u8> = Vec::new();
        for item in &self.items {
            match item {
                Item::Instruction(instruction) => instruction.encode(&mut code, offsets)?,
                Item::Label(label) => offsets.labels[label.0] = code.len(),
                Item::Align(to) => I::pad(&mut code, *to)?,
            }
        }

        for (entry, data) in self.pool.iter().enumerate() {
            code.resize(code.len().next_multiple_of(data.len()), 0);
            offsets.pool[entry] = code.len();
            code.extend(data);
        }
        Ok(code)
    }
}
