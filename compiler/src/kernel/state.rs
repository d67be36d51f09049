//! The block of memory that holds the state of a model.
//!
//! A block begins with a header: [`abi::StateHeader`], then one word for each symbol in [`StateBlock::words`]. The
//! tensors follow, each at a multiple of [`STATE_ALIGN_BYTES`]. Their offsets are expressions over these symbols.

use super::{Buffer, BufferId};
use cranelift_entity::PrimaryMap;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::abi;

/// Alignment of a block, its header and each tensor, in bytes.
pub const STATE_ALIGN_BYTES: i64 = 64;

/// The state of a program.
#[derive(Clone, Debug, Default)]
pub struct StateBlock {
    /// The tensors, in their order in memory.
    pub tensors: Vec<StateTensor>,
    /// The rows of the appended tensors, if there are any.
    pub rows: Option<BlockRows>,
    /// A hash of the model, which the header repeats.
    pub id: u64,
}

/// The rows of all appended tensors of a block.
#[derive(Clone, Debug)]
pub struct BlockRows {
    /// Number of rows before a call.
    pub length: Symbol,
    /// Number of rows that there is memory for.
    pub capacity: Symbol,
    /// Number of rows that a call appends.
    pub growth: Dim,
}

/// A tensor of a state: dense and row-major.
#[derive(Clone, Debug)]
pub struct StateTensor {
    /// Name of the model's input.
    pub input: String,
    /// Name of the model's output.
    pub output: String,
    /// Shape in memory; the number of rows is the capacity.
    pub shape: Vec<Dim>,
    /// The axis of the rows, if a call appends rows.
    pub axis: Option<usize>,
    /// Its memory, in the space `State`.
    pub buffer: BufferId,
}

impl StateBlock {
    /// The symbols whose values the header holds: capacity and length first, if there are any, then the other symbols
    /// in the shapes of the tensors.
    pub fn words(&self) -> Vec<Symbol> {
        let rows = self.rows.iter().flat_map(|rows| [&rows.capacity, &rows.length]);
        let mut words: Vec<Symbol> = rows.cloned().collect();
        for symbol in self.tensors.iter().flat_map(|tensor| &tensor.shape).flat_map(Dim::symbols) {
            if !words.contains(&symbol) {
                words.push(symbol);
            }
        }
        words
    }

    /// Bytes of the header, a multiple of the alignment.
    pub fn header_bytes(&self) -> i64 {
        let bytes = (size_of::<abi::StateHeader>() + 8 * self.words().len()) as i64;
        (bytes + STATE_ALIGN_BYTES - 1) / STATE_ALIGN_BYTES * STATE_ALIGN_BYTES
    }

    /// Byte offset of each tensor in the block, then the bytes of the block.
    pub fn offsets(&self, buffers: &PrimaryMap<BufferId, Buffer>, facts: &Facts) -> Vec<Dim> {
        let mut end = Dim::from(self.header_bytes());
        let mut offsets = Vec::new();
        for tensor in &self.tensors {
            offsets.push(facts.simplify(&end));
            let bytes = buffers[tensor.buffer].bytes();
            end = end + bytes.ceil_div(STATE_ALIGN_BYTES) * STATE_ALIGN_BYTES;
        }
        offsets.push(facts.simplify(&end));
        offsets
    }
}
