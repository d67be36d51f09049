//! Partitions are all kernels, and what may run at once keeps to itself.

use crate::{
    error::{Error, Result},
    kernel::{Control, Partition, Policies, Program, dependences::Footprint, partition::waits},
};
use std::collections::BTreeSet;

/// Checks the rules about partitions.
pub(super) fn verify(program: &Program) -> Result<()> {
    if program.partitions.is_empty() {
        return Ok(());
    }
    let cuts = cuts(program);
    let (mut names, mut end) = (BTreeSet::new(), 0);
    for (number, partition) in program.partitions.iter().enumerate() {
        let wrong = |what: &str| Err(Error::invalid(format!("partition {}: {what}", partition.name)));
        let Partition { name, kernels, after, .. } = partition;
        if kernels.start != end || kernels.end < end || kernels.end > program.kernels.len() {
            return wrong("its kernels don't follow those of the one before");
        }
        end = kernels.end;
        if !cuts.contains(&end) {
            return wrong("it ends within a region");
        }
        if !names.insert(name) {
            return wrong("another one has its name");
        }
        if !after.is_sorted_by(|a, b| a < b) || after.last().is_some_and(|last| *last >= number) {
            return wrong("it waits for itself, for a later one, or for one twice");
        }
    }
    if end != program.kernels.len() {
        return Err(Error::invalid("some kernels are in no partition"));
    }
    match program.policies {
        Policies::Serial => Ok(()),
        Policies::Any => keep_apart(program),
    }
}

/// The places between kernels where no region is open.
fn cuts(program: &Program) -> BTreeSet<usize> {
    let (mut depth, mut cuts) = (0_i64, BTreeSet::from([0]));
    for (idx, kernel) in program.kernels.iter().enumerate() {
        match kernel.control {
            Some(Control::If(_) | Control::While(_)) => depth += 1,
            Some(Control::End) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            cuts.insert(idx + 1);
        }
    }
    cuts
}

/// Of two partitions, one waits for the other, or they have nothing to do with each other.
fn keep_apart(program: &Program) -> Result<()> {
    let cuts: Vec<usize> = cuts(program).into_iter().collect();
    let uses: Vec<Footprint> = cuts.windows(2).map(|ends| Footprint::of(program, ends[0]..ends[1])).collect();
    let of = |partition: &Partition| {
        let position = |kernel: usize| cuts.partition_point(|cut| *cut < kernel);
        &uses[position(partition.kernels.start)..position(partition.kernels.end)]
    };
    for (later, before) in waits(&program.partitions).iter().enumerate() {
        for earlier in (0..later).filter(|earlier| !before.contains(earlier)) {
            let [first, second] = [&program.partitions[earlier], &program.partitions[later]];
            let meets = |a: &Footprint| {
                of(second).iter().any(|b| a.must_precede(b, program) || b.must_precede(a, program))
            };
            if of(first).iter().any(meets) {
                let message =
                    format!("partition {} does not wait for {}, as it must", second.name, first.name);
                return Err(Error::invalid(message));
            }
        }
    }
    Ok(())
}
