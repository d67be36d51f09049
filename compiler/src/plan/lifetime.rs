//! The lifetime of each planned buffer: from the first kernel that touches it to the last.

use crate::kernel::{BufferId, Policies, Program, partition::waits, walk};
use cranelift_entity::SecondaryMap;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// The first and the last kernel that touch a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lifetime {
    pub(crate) buffer: BufferId,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// The lifetimes of the buffers in the arena that any kernel touches, in the order of the buffers.
pub(crate) fn lifetimes(program: &Program) -> Vec<Lifetime> {
    within(program, 0..program.kernels.len())
}

/// The lifetimes within a range of kernels, whose bounds no region crosses.
fn within(program: &Program, kernels: Range<usize>) -> Vec<Lifetime> {
    let mut found: SecondaryMap<BufferId, Option<Lifetime>> = SecondaryMap::new();
    for idx in kernels.clone() {
        let kernel = &program.kernels[idx];
        let mut touch = |buffer| {
            let lifetime = found[buffer].get_or_insert(Lifetime { buffer, first: idx, last: idx });
            lifetime.last = idx;
        };
        walk::accesses(&kernel.body, &mut |site| touch(site.access.buffer));
        if let Some(control) = &kernel.control {
            let (read, written) = control.touched();
            read.into_iter().chain(written).for_each(touch);
        }
    }

    for (begin, end) in program.while_loops().into_iter().filter(|(begin, _)| kernels.contains(begin)) {
        for lifetime in found.values_mut().flatten() {
            stretch(lifetime, begin, end);
        }
    }

    // A group runs all its kernels for one sequence before it runs the first one for the next sequence.
    for group in program.sequence_groups() {
        for lifetime in found.values_mut().flatten() {
            stretch_to_touched(lifetime, group);
        }
    }

    let in_arena = |id: &BufferId| program.buffers[*id].space.is_planned();
    program.buffers.keys().filter(in_arena).filter_map(|id| found[id]).collect()
}

/// Which buffers can be needed at the same time.
pub(super) enum Interference {
    /// Buffers interfere if their lifetimes share a kernel.
    InOrder,
    /// For each buffer, its lifetime in every partition that touches it; for each partition, those that run before it.
    AnyOrder(BTreeMap<BufferId, Vec<(usize, Lifetime)>>, Vec<BTreeSet<usize>>),
}

impl Interference {
    /// The interference under all policies that the program's memory is planned for.
    pub(super) fn of(program: &Program) -> Interference {
        if program.policies == Policies::Serial {
            return Interference::InOrder;
        }
        let mut uses: BTreeMap<BufferId, Vec<(usize, Lifetime)>> = BTreeMap::new();
        for (number, partition) in program.partitions.iter().enumerate() {
            for lifetime in within(program, partition.kernels.clone()) {
                uses.entry(lifetime.buffer).or_default().push((number, lifetime));
            }
        }
        Interference::AnyOrder(uses, waits(&program.partitions))
    }

    /// Whether both can be needed at the same time.
    pub(super) fn interferes(&self, a: &Lifetime, b: &Lifetime) -> bool {
        match self {
            Interference::InOrder => a.first <= b.last && b.first <= a.last,
            Interference::AnyOrder(uses, before) => {
                let is_over = |a: &Lifetime, b: &Lifetime| {
                    let pairs =
                        uses[&a.buffer].iter().flat_map(|x| uses[&b.buffer].iter().map(move |y| (x, y)));
                    pairs.into_iter().all(|((own, x), (other, y))| {
                        if own == other { x.last < y.first } else { before[*other].contains(own) }
                    })
                };
                !is_over(a, b) && !is_over(b, a)
            }
        }
    }
}

/// A buffer that is written before a loop and read within it is needed in every iteration. A buffer that is written
/// in an iteration and read later must not be overwritten by the next one.
fn stretch(lifetime: &mut Lifetime, begin: usize, end: usize) {
    let touches = lifetime.last >= begin && lifetime.first <= end;
    let leaves = lifetime.first < begin || lifetime.last > end;
    if touches && leaves {
        lifetime.first = lifetime.first.min(begin);
        lifetime.last = lifetime.last.max(end);
    }
}

/// A buffer that is needed for one sequence is needed until the last sequence has run.
fn stretch_to_touched(lifetime: &mut Lifetime, group: &Range<usize>) {
    if lifetime.last >= group.start && lifetime.first < group.end {
        lifetime.first = lifetime.first.min(group.start);
        lifetime.last = lifetime.last.max(group.end - 1);
    }
}
