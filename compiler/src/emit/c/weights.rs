//! Constants of a C source in a weights file, where kernels read them by pointers.

use crate::{
    codegen::WeightsLayout,
    kernel::{BufferId, MemorySpace, Program},
};
use std::collections::BTreeMap;

/// The weights file of a source.
pub(super) struct SourceWeights {
    pub(super) layout: WeightsLayout,
    /// The place of each constant in the file.
    pub(super) offsets: BTreeMap<BufferId, u64>,
}

impl SourceWeights {
    /// The constants that kernels use, in their order.
    pub(super) fn of(program: &Program) -> SourceWeights {
        let mut weights = SourceWeights { layout: WeightsLayout::default(), offsets: BTreeMap::new() };
        for id in program.used_constants() {
            if let MemorySpace::Const(tensor) = &program.buffers[id].space {
                let offset = weights.layout.add(program.weight_name(id), tensor.shared_bytes());
                weights.offsets.insert(id, offset);
            }
        }
        weights
    }
}
