//! Fuses kernels that are near each other. Independent kernels between them move out of the way.

use crate::kernel::{BufferId, Kernel, walk};
use std::collections::BTreeSet;

/// The largest number of kernels between two fused ones.
pub(super) const REACH: usize = 8;

/// Fuses kernels one after another. `join` returns the fusion of two kernels, of which the first runs first, if they
/// can be fused. Independent kernels between the fused ones move before them.
pub(super) fn fuse(kernels: Vec<Kernel>, join: &dyn Fn(&Kernel, &Kernel) -> Option<Kernel>) -> Vec<Kernel> {
    let mut done: Vec<Kernel> = Vec::new();
    // Nothing moves into a region of kernels or out of it.
    let mut barrier = 0;
    for kernel in kernels {
        if kernel.control.is_some() {
            done.push(kernel);
            barrier = done.len();
            continue;
        }

        let first = done.len().saturating_sub(REACH).max(barrier);
        let partner = (first..done.len())
            .rev()
            .take_while(|at| *at + 1 == done.len() || may_pass(&done[at + 1..], &done[*at]))
            .find_map(|at| Some((at, join(&done[at], &kernel)?)));
        match partner {
            Some((at, whole)) => {
                done.remove(at);
                done.push(whole);
            }
            None => done.push(kernel),
        }
    }
    done
}

/// Whether `kernel` may run after all of `others` instead. No kernel moves across control flow or external calls.
pub(super) fn may_pass(others: &[Kernel], kernel: &Kernel) -> bool {
    if others.iter().any(|other| other.control.is_some()) {
        return false;
    }

    let own = BufferUse::by(kernel);
    others.iter().map(BufferUse::by).all(|other| {
        own.written.is_disjoint(&other.written)
            && own.written.is_disjoint(&other.read)
            && own.read.is_disjoint(&other.written)
    })
}

/// The buffers that the statements of a kernel read and write.
pub(super) struct BufferUse {
    pub(super) read: BTreeSet<BufferId>,
    pub(super) written: BTreeSet<BufferId>,
}

impl BufferUse {
    pub(super) fn by(kernel: &Kernel) -> BufferUse {
        let mut used = BufferUse { read: BTreeSet::new(), written: BTreeSet::new() };
        walk::accesses(&kernel.body, &mut |site| {
            let set = if site.is_store { &mut used.written } else { &mut used.read };
            set.insert(site.access.buffer);
        });
        used
    }
}
