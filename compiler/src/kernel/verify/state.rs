//! The rule about overwritten state: a call reads the values of the call before, and writes those of the next one last.

use crate::{
    error::{Error, Result},
    kernel::{BufferId, Control, Kernel, Program, StateTensor, walk},
};
use std::collections::BTreeSet;

/// Checks that no kernel reads an overwritten tensor after a kernel has written it.
pub(super) fn verify(program: &Program) -> Result<()> {
    let Some(state) = &program.state else { return Ok(()) };
    let is_overwritten = |tensor: &&StateTensor| tensor.axis.is_none();
    let buffers: BTreeSet<BufferId> =
        state.tensors.iter().filter(is_overwritten).map(|tensor| tensor.buffer).collect();
    if buffers.is_empty() {
        return Ok(());
    }

    let mut written = BTreeSet::new();
    for kernel in &program.kernels {
        let (read, stored) = touched(kernel);
        if let Some(buffer) = read.intersection(&written).find(|buffer| buffers.contains(buffer)) {
            let message = format!("kernel {} reads {buffer:?}, a state that was overwritten", kernel.name);
            return Err(Error::invalid(message));
        }
        written.extend(stored);
    }
    Ok(())
}

/// The buffers that a kernel reads, and those that it writes.
fn touched(kernel: &Kernel) -> (BTreeSet<BufferId>, BTreeSet<BufferId>) {
    let (read, written) = kernel.control.as_ref().map(Control::touched).unwrap_or_default();
    let mut read: BTreeSet<BufferId> = read.into_iter().collect();
    let mut written: BTreeSet<BufferId> = written.into_iter().collect();
    walk::accesses(&kernel.body, &mut |site| {
        let set = if site.is_store { &mut written } else { &mut read };
        set.insert(site.access.buffer);
    });
    (read, written)
}
