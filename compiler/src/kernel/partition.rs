//! Partitions: runs of kernels that form one entry of the artefact's table.

use std::{collections::BTreeSet, num::NonZeroU32, ops::Range};

/// Consecutive kernels that run as one step: an entry of the artefact's table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// A unique name, after the kernel with the largest work.
    pub name: String,
    /// The range of its kernels in the program; regions are never divided.
    pub kernels: Range<usize>,
    /// Indices of the partitions that must finish before it: earlier ones, in ascending order.
    pub after: Vec<usize>,
    /// The name of the target that it runs on.
    pub target: String,
}

/// A limit of the calls of one target that may run at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallLimit {
    /// Name of the target.
    pub target: String,
    /// The largest number of its calls that may run at once.
    pub at_once: NonZeroU32,
}

/// The orders in which partitions may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policies {
    /// One after another, in the order of the list.
    #[default]
    Serial,
    /// In any order that respects [`Partition::after`], several at once.
    Any,
}

/// For each partition, those that finish before it, directly or indirectly.
pub fn waits(partitions: &[Partition]) -> Vec<BTreeSet<usize>> {
    let mut all: Vec<BTreeSet<usize>> = Vec::with_capacity(partitions.len());
    for partition in partitions {
        let mut before: BTreeSet<usize> = partition.after.iter().copied().collect();
        partition.after.iter().filter_map(|other| all.get(*other)).for_each(|more| before.extend(more));
        all.push(before);
    }
    all
}

/// The stage of each partition, ascending along the list. A partition that depends on all earlier ones, and that all
/// later ones depend on, is a separate stage. The partitions between two such stages form one stage, and may run in
/// parallel.
pub fn stages(partitions: &[Partition]) -> Vec<usize> {
    let before = waits(partitions);
    let alone = |number: usize| {
        before[number].len() == number && before[number + 1..].iter().all(|waits| waits.contains(&number))
    };

    let mut stages = Vec::with_capacity(partitions.len());
    let mut stage = 0;
    for number in 0..partitions.len() {
        if number > 0 && (alone(number) || alone(number - 1)) {
            stage += 1;
        }
        stages.push(stage);
    }

    stages
}
