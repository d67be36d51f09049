//! The frame that `run` hands to every kernel: an array of 64-bit slots.

use crate::kernel::Program;

/// Pointer to the [`symshape_runtime::abi::Error`] to fill; never null.
pub(crate) const ERROR: i32 = 0;
/// The code of the error that was met, 0 until there is one.
pub(crate) const FAILED: i32 = 8;
/// Pointer to the host's [`symshape_runtime::abi::Exec`], or null.
pub(crate) const EXEC: i32 = 16;
/// Address of the function of the part that is being run in shares.
pub(crate) const BODY: i32 = 24;
/// Its iterations.
pub(crate) const COUNT: i32 = 32;
/// The number of shares.
pub(crate) const SHARES: i32 = 40;
/// The axis of a contraction that threads share, see [`crate::codegen::body::split::split_axis`]; zero outside of shared work.
pub(crate) const SPLIT_AXIS: i32 = 48;
/// The host's `parallel_for`, or zero where kernels run on the calling thread alone.
pub(crate) const PARALLEL_FOR: i32 = 56;
/// The pointer that `parallel_for` takes as its first argument.
pub(crate) const HOST: i32 = 64;
/// Its number of threads.
pub(crate) const THREADS: i32 = 72;
/// The caller's array of dims.
pub(crate) const CALLER_DIMS: i32 = 80;
/// The dims in the order of the contract, then the symbols found while running; behind them a pointer for each
/// buffer, and a state for each partition.
pub(crate) const DIMS: i32 = 88;

/// Offset of the states of the partitions.
pub(crate) fn states(program: &Program) -> i32 {
    DIMS + 8 * (program.all_symbols().count() + program.buffers.len()) as i32
}

/// Size of the frame. After the states there is room for an error whose caller passed none.
pub(crate) fn bytes(program: &Program) -> i32 {
    unseen(program) + size_of::<symshape_runtime::abi::Error>() as i32
}

/// Offset of that room.
pub(crate) fn unseen(program: &Program) -> i32 {
    states(program) + 8 * program.partitions.len() as i32
}
