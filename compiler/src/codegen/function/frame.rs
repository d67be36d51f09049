//! The frame that `run` hands to every kernel: an array of 64-bit slots. Only this file knows its layout.
//!
//! After the fixed slots come the values of the symbols (the dims of the call contract, then the data-dependent
//! symbols), a pointer for each buffer, a state for each partition, and an error for callers that pass none.

use crate::kernel::{BufferId, Program};
use symshape_runtime::abi;

/// Pointer to the [`abi::Error`] to fill; never null.
pub(crate) const ERROR: i32 = 0;
/// The code of the first error, 0 if there is none.
pub(crate) const FAILED: i32 = 8;
/// Pointer to the host's [`abi::Exec`], or null.
pub(crate) const EXEC: i32 = 16;
/// Address of the function of the part whose iterations threads share at the moment.
pub(crate) const BODY: i32 = 24;
/// The number of iterations of this part.
pub(crate) const COUNT: i32 = 32;
/// The number of shares.
pub(crate) const SHARES: i32 = 40;
/// The axis of a contraction that threads share, see [`crate::codegen::body::split::split_axis`]. Zero outside of
/// shared work.
pub(crate) const SPLIT_AXIS: i32 = 48;
/// The host's `parallel_for`, or zero if kernels run on the calling thread alone.
pub(crate) const PARALLEL_FOR: i32 = 56;
/// The pointer that `parallel_for` takes as its first argument.
pub(crate) const HOST: i32 = 64;
/// The host's number of threads.
pub(crate) const THREADS: i32 = 72;
/// The caller's array of dims.
pub(crate) const CALLER_DIMS: i32 = 80;
/// The most rows of a sequence of a ragged batch that one thread runs. All threads share longer ones.
pub(crate) const MAX_ROWS_ALONE: i32 = 88;
/// The address of the weights file, if the artefact has one.
pub(crate) const WEIGHTS: i32 = 96;
/// The block of the state, or the caller's array of blocks in a call for several sequences; undefined without state.
pub(crate) const STATES: i32 = 104;
/// The first symbol.
const SYMBOLS: i32 = 112;

/// Bytes of a slot.
const SLOT_BYTES: i32 = 8;

/// Offset of the value of a symbol, by its index in [`Program::all_symbols`].
pub(crate) fn symbol_slot(idx: usize) -> i32 {
    SYMBOLS + SLOT_BYTES * idx as i32
}

/// Offset of the pointer to a buffer.
pub(crate) fn buffer_slot(program: &Program, buffer: BufferId) -> i32 {
    symbol_slot(program.all_symbols().count()) + SLOT_BYTES * buffer.as_u32() as i32
}

/// Offset of the state of a partition.
pub(crate) fn state_slot(program: &Program, partition: usize) -> i32 {
    let n_pointers = program.all_symbols().count() + program.buffers.len();
    symbol_slot(n_pointers) + SLOT_BYTES * partition as i32
}

/// Offset of the [`abi::Error`] that is filled if the caller passes none.
pub(crate) fn spare_error(program: &Program) -> i32 {
    state_slot(program, program.partitions.len())
}

/// Size of the frame.
pub(crate) fn bytes(program: &Program) -> i32 {
    spare_error(program) + size_of::<abi::Error>() as i32
}
