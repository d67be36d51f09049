//! The steps of the driver as data: kernel parts with their functions, groups of kernels that run for each sequence of
//! a ragged batch, and control markers.

use crate::{
    codegen::body::split::{KernelPart, PartSplit},
    kernel::{BufferId, Control, Ragged},
};
use cranelift_module::FuncId;
use std::collections::BTreeSet;
use symshape::Dim;

/// A kernel part and its function.
#[derive(Clone)]
pub(crate) struct EmittedPart<'k> {
    /// `(frame, begin, end, copy)`.
    pub(crate) func: FuncId,
    pub(crate) part: KernelPart<'k>,
    /// The index of the kernel in the program; of the first one of a group.
    pub(crate) kernel: usize,
    /// The estimate of its work as an expression over the model's symbols, see [`cost`].
    pub(crate) work: Dim,
    /// The function may report an error in the frame.
    pub(crate) fails: bool,
    pub(crate) uses_scratch: bool,
    /// The function heeds the range that it is called with.
    pub(crate) is_divisible: bool,
}

impl<'k> EmittedPart<'k> {
    /// The iterations that may run at once.
    pub(crate) fn split(&self) -> &PartSplit<'k> {
        &self.part.split
    }

    /// Whether several threads may share the part. With one worker there is a single copy of the scratch buffers, which
    /// threads must not share.
    pub(crate) fn can_share(&self, workers: u32) -> bool {
        self.is_divisible && (workers > 1 || !self.uses_scratch)
    }
}

/// A step of the driver: a kernel part to call, kernels to call for each sequence of a ragged batch, or a marker that
/// controls later steps.
pub(crate) enum DriverStep<'k> {
    Part(EmittedPart<'k>),
    Sequences(SequenceGroup<'k>),
    Control(&'k Control),
}

/// A group of kernels that runs as a whole for one sequence, and then for the next one.
pub(crate) struct SequenceGroup<'k> {
    pub(crate) ragged: &'k Ragged,
    /// The kernels, in order.
    pub(crate) parts: Vec<EmittedPart<'k>>,
    /// The function of the group: it runs all sequences whose first row is in its range.
    pub(crate) whole: EmittedPart<'k>,
    /// The buffers that the kernels access, except constants.
    pub(crate) touched: BTreeSet<BufferId>,
    /// Scratch memory passes from one kernel to another, so all kernels of a sequence run on one thread.
    pub(crate) passes_scratch: bool,
}
