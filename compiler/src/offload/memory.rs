//! Device memory: moves buffers that only a target's calls touch into the memory of that target.

use super::target::Targets;
use crate::kernel::{BufferId, Control, Device, MemorySpace, Program, walk};
use std::collections::BTreeSet;

/// Moves buffers into the device memories of the targets that have one.
pub(super) fn assign(program: &mut Program, targets: &Targets) {
    for target in targets {
        let Some(bytes) = target.memory_bytes() else { continue };
        let device = program.devices.len() as u32;
        let buffers = buffers_of(program, target.name());
        if buffers.is_empty() {
            continue;
        }

        program.devices.push(Device { target: target.name().into(), bytes });
        buffers.into_iter().for_each(|id| program.buffers[id].space = MemorySpace::Device(device));
    }
}

/// The arena buffers that only calls of this target touch.
fn buffers_of(program: &Program, target: &str) -> BTreeSet<BufferId> {
    let mut own = BTreeSet::new();
    let mut others = BTreeSet::new();
    for kernel in &program.kernels {
        walk::accesses(&kernel.body, &mut |site| _ = others.insert(site.access.buffer));

        let Some(control) = &kernel.control else { continue };
        let is_own = matches!(control, Control::Call(call) if call.callee.target == target);
        let (read, written) = control.touched();
        if is_own { &mut own } else { &mut others }.extend(read.into_iter().chain(written));
    }

    own.retain(|id| !others.contains(id) && matches!(program.buffers[*id].space, MemorySpace::Arena));
    own
}
