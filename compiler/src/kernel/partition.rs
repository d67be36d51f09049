//! Runs of kernels that are one step of the artefact's table.

use std::{collections::BTreeSet, ops::Range};

/// Kernels that follow one another in the list and run as one step: an entry of the artefact's table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// For people, and unique: what most of its work is.
    pub name: String,
    /// Its kernels; regions are never divided.
    pub kernels: Range<usize>,
    /// The partitions that must be done before, by their place in the list: earlier ones, in ascending order.
    pub after: Vec<usize>,
    /// The name of the target that it runs on.
    pub target: String,
}

/// In which orders partitions may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policies {
    /// One after another, in the order of the list.
    #[default]
    Serial,
    /// In any order that respects [`Partition::after`], several at once.
    Any,
}

/// For each partition the ones that are done before it, however indirectly.
pub fn waits(partitions: &[Partition]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let mut before: BTreeSet<usize> = partition.after.iter().copied().collect();
        partition.after.iter().filter_map(|other| all.get(*other)).for_each(|more| before.extend(more));
        all.push(before);
    }
    all
}

/// For each partition its stage: a number that goes up along the list. One that waits for all earlier ones, and that all
/// later ones wait for, is a stage of its own; those between two such are one stage, and may run at once.
pub fn stages(partitions: &[Partition]) -> Vec<usize> {
    let before = waits(partitions);
    let alone = |number: usize| {
        before[number].len() == number && before[number + 1..].iter().all(|waits| waits.contains(&number))
    };
    let (mut stages, mut stage) = (Vec::with_capacity(partitions.len()), 0);
    for number in 0..partitions.len() {
        if number > 0 && (alone(number) || alone(number - 1)) {
            stage += 1;
        }
        stages.push(stage);
    }
    stages
}
