//! The functions and the table that `run` is made of, for the artefact's descriptor.

use cranelift_module::{DataId, FuncId};

/// The function that runs all kernels, and the others that come with it.
pub(crate) struct Run {
    pub(crate) function: FuncId,
    /// The table of partitions, if the program has any.
    pub(crate) partitions: Option<Partitions>,
    /// Present where there is code for tile registers.
    pub(crate) tiles: Option<Tiles>,
}

/// Functions for callers that schedule partitions themselves.
pub(crate) struct Partitions {
    pub(crate) table: DataId,
    pub(crate) begin: FuncId,
    pub(crate) arena_slice: FuncId,
}

/// Functions of an artefact that has code for tile registers.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    /// Runs when the artefact is loaded.
    pub(crate) load: FuncId,
    /// Whether calls use tile registers.
    pub(crate) uses: FuncId,
}
