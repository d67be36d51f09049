//! The rules about partitions.

use crate::{
    error::{Error, Result},
    kernel::{CallLimit, Control, Partition, Policies, Program, dependences::Footprint, partition::waits},
};
use std::collections::{BTreeMap, BTreeSet};

/// Checks the table of partitions.
pub(super) fn verify(program: &Program) -> Result<()> {
    if program.partitions.is_empty() {
        return Ok(());
    }

    let cuts = cuts(program);
    let mut names = BTreeSet::new();

    let mut end = 0;
    for (number, partition) in program.partitions.iter().enumerate() {
        let error = |message: &str| Err(Error::invalid(format!("partition {}: {message}", partition.name)));
        let Partition { name, kernels, after, .. } = partition;
        if kernels.start != end || kernels.end < end || kernels.end > program.kernels.len() {
            return error("its kernels don't follow those of the previous partition");
        }

        end = kernels.end;
        if !cuts.contains(&end) {
            return error("it ends within a region or a group of a ragged batch");
        }
        if !names.insert(name) {
            return error("its name is not unique");
        }

        if !after.is_sorted_by(|a, b| a < b) || after.last().is_some_and(|last| *last >= number) {
            return error(
                "its list of earlier partitions is not ascending, or contains itself or a later one",
            );
        }
    }

    if end != program.kernels.len() {
        return Err(Error::invalid("the partitions don't cover the last kernels"));
    }

    match program.policies {
        Policies::Serial => Ok(()),
        Policies::Any => {
            verify_waits(program)?;
            verify_limits(program)
        }
    }
}

/// Indices of the kernels before which neither a region nor a group of a ragged batch is open, and the number of
/// kernels.
fn cuts(program: &Program) -> BTreeSet<usize> {
    let mut cuts = BTreeSet::from([0]);
    let mut depth = 0_i64;
    for (idx, kernel) in program.kernels.iter().enumerate() {
        match kernel.control {
            Some(Control::If(_) | Control::While(_)) => depth += 1,
            Some(Control::End) => depth -= 1,
            _ => {}
        }
        let joins_next = program.ragged.as_ref().is_some_and(|ragged| ragged.joins_next(idx));
        if depth == 0 && !joins_next {
            cuts.insert(idx + 1);
        }
    }

    cuts
}

/// Checks that of two dependent partitions, the later one waits for the earlier one.
fn verify_waits(program: &Program) -> Result<()> {
    let cuts: Vec<usize> = cuts(program).into_iter().collect();
    let uses: Vec<Footprint> = cuts.windows(2).map(|ends| Footprint::of(program, ends[0]..ends[1])).collect();

    let of = |partition: &Partition| {
        let position = |kernel: usize| cuts.partition_point(|cut| *cut < kernel);
        &uses[position(partition.kernels.start)..position(partition.kernels.end)]
    };

    for (later, before) in waits(&program.partitions).iter().enumerate() {
        for earlier in (0..later).filter(|earlier| !before.contains(earlier)) {
            let [first, second] = [&program.partitions[earlier], &program.partitions[later]];
            let depends = |a: &Footprint| {
                of(second).iter().any(|b| a.must_precede(b, program) || b.must_precede(a, program))
            };
            if of(first).iter().any(depends) {
                let message =
                    format!("partition {} depends on {} but does not wait for it", second.name, first.name);
                return Err(Error::invalid(message));
            }
        }
    }

    Ok(())
}

/// Checks that no order lets more calls of a target run at once than its limit.
fn verify_limits(program: &Program) -> Result<()> {
    let before = waits(&program.partitions);
    for CallLimit { target, at_once } in &program.call_limits {
        let calls = |number: &usize| program.calls(program.partitions[*number].kernels.clone(), target);
        let callers: Vec<usize> = (0..program.partitions.len()).filter(calls).collect();
        let most = most_at_once(&callers, &before);
        if most > at_once.get() as usize {
            let message = format!("{most} partitions can call {target} at once, which allows {at_once}");
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// The largest number of these partitions that can run at once. By Dilworth's theorem it is the smallest number of
/// chains that contain all of them: their number, less the pairs of a maximum matching with later ones.
fn most_at_once(partitions: &[usize], before: &[BTreeSet<usize>]) -> usize {
    let mut matched: BTreeMap<usize, usize> = BTreeMap::new();
    let pairs = partitions.iter().filter(|later| {
        let mut visited = BTreeSet::new();
        find_match(**later, partitions, before, &mut matched, &mut visited)
    });
    partitions.len() - pairs.count()
}

/// Matches `later` with an earlier partition; those that are matched already may change their match.
fn find_match(
    later: usize,
    partitions: &[usize],
    before: &[BTreeSet<usize>],
    matched: &mut BTreeMap<usize, usize>,
    visited: &mut BTreeSet<usize>,
) -> bool {
    for earlier in partitions.iter().filter(|earlier| before[later].contains(earlier)) {
        if !visited.insert(*earlier) {
            continue;
        }
        let current = matched.get(earlier).copied();
        if current.is_none_or(|other| find_match(other, partitions, before, matched, visited)) {
            matched.insert(*earlier, later);
            return true;
        }
    }
    false
}
