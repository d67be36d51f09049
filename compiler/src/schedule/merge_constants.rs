//! Constants with equal bytes become one buffer: a weight that several kernels read in one form is stored once.
//!
//! Equal constants come from operators that share a weight, and from exporters that write a weight twice.

use crate::{
    Result,
    kernel::{BufferId, MemorySpace, Program, walk},
    tensor::ByContent,
};
use std::collections::{BTreeMap, HashMap};

/// Redirects each use of a constant to the first buffer with equal bytes and type.
#[expect(clippy::mutable_key_type, reason = "weights of few bits are ordered by parts that never change")]
pub(super) fn merge(program: &mut Program) -> Result<()> {
    let mut firsts: BTreeMap<ByContent, BufferId> = BTreeMap::new();
    let mut replacement: HashMap<BufferId, BufferId> = HashMap::new();
    for buffer in program.used_constants() {
        let MemorySpace::Const(tensor) = &program.buffers[buffer].space else { continue };
        let first = *firsts.entry(ByContent(tensor.clone())).or_insert(buffer);
        if first != buffer {
            replacement.insert(buffer, first);
        }
    }

    let mut redirect = |buffer: &mut BufferId| {
        if let Some(first) = replacement.get(buffer) {
            *buffer = *first;
        }
    };
    for kernel in &mut program.kernels {
        walk::buffers_mut(&mut kernel.body, &mut redirect);
        if let Some(control) = &mut kernel.control {
            control.buffers_mut(&mut redirect);
        }
    }

    Ok(())
}
