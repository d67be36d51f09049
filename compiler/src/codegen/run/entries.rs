//! The functions and the table that `run` consists of, for the artefact's descriptor.

use cranelift_module::{DataId, FuncId};

/// The function that runs all kernels, and the functions that come with it.
pub(crate) struct RunFunctions {
    pub(crate) function: FuncId,
    /// As `function`, for several sequences with a state each, if the program can run them.
    pub(crate) sequences: Option<FuncId>,
    /// The table of partitions, if the program has any.
    pub(crate) partitions: Option<PartitionFunctions>,
    /// Present if the artefact has code for tile registers.
    pub(crate) tiles: Option<TileFunctions>,
}

/// Functions for callers that schedule partitions themselves.
pub(crate) struct PartitionFunctions {
    pub(crate) table: DataId,
    pub(crate) begin: FuncId,
    pub(crate) arena_slice: FuncId,
}

/// Functions of an artefact that has code for tile registers.
#[derive(Clone, Copy)]
pub(crate) struct TileFunctions {
    /// Requests tile registers from the system; runs when the artefact is loaded.
    pub(crate) load: FuncId,
    /// Returns whether calls use tile registers.
    pub(crate) uses: FuncId,
}
