//! The functions and the table that `run` consists of, for the artefact's descriptor.

use cranelift_module::{DataId, FuncId};

/// The function that runs all kernels, and the functions that come with it.
pub(crate) struct RunFunctions {
    pub(crate) function: FuncId,
    /// As `function`, for several sequences with a state each, if the program can run them.
    pub(crate) sequences: Option<FuncId>,
    /// The table of partitions, if the program has any.
    pub(crate) partitions: Option<PartitionFunctions>,
    /// Present if the level is detected when the artefact is loaded.
    pub(crate) load: Option<LoadFunctions>,
}

/// Functions for callers that schedule partitions themselves.
pub(crate) struct PartitionFunctions {
    pub(crate) table: DataId,
    pub(crate) begin: FuncId,
    pub(crate) arena_slice: FuncId,
}

/// Functions of an artefact that asks the system for its level.
#[derive(Clone, Copy)]
pub(crate) struct LoadFunctions {
    /// Detects the level, and requests tile registers; runs when the artefact is loaded.
    pub(crate) load: FuncId,
    /// Returns whether calls use tile registers, if the artefact has code for them.
    pub(crate) uses_tiles: Option<FuncId>,
}
