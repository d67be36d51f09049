//! Cuts a program into partitions: the entries of the artefact's table. A driver runs them serially or in parallel.
//!
//! 1. Dependencies ([`depend`]): the kernels of a control-flow region form one atom. Atoms depend on each other as
//!    [`crate::kernel::dependences`] says.
//! 2. The cut ([`cut`]): a chain without branches is one piece. Pieces are merged or divided until the requested
//!    number is reached, with similar work and few bytes between them.
//! 3. Pieces that call a target with a limit wait for each other, in the order in which they could begin.
//! 4. Kernels are sorted into the order of their partitions.
//!
//! Where partitions only run serially, every kernel depends on the one before it. The order and the memory of the
//! program then stay unchanged.
//!
//! Kernels on different targets are never one piece, so the number of pieces can exceed the requested one.
//!
//! The results of a program don't depend on the cut.

mod count;
mod cut;
mod depend;
mod names;

pub use count::{Count, MAX_PARTITIONS};

use crate::{
    error::Result,
    kernel::{Partition, Policies, Program},
};
use std::collections::BTreeMap;

/// Cuts the program, and may reorder its kernels.
///
/// # Errors
/// Only internal errors.
pub fn partition(program: &mut Program, count: Count, policies: Policies, target: &str) -> Result<()> {
    let mut graph = depend::Graph::of(program)?;
    if policies == Policies::Serial {
        graph.keep_order();
    }
    let pieces = cut::pieces(&graph, count);
    arrange(program, &graph, &pieces, target);
    program.policies = policies;
    Ok(())
}

/// Makes each kernel a partition, in the order of the program, so that a caller can time them. The kernels of a region
/// stay together. The program has no partitions before.
pub(crate) fn one_for_each_kernel(program: &mut Program, target: &str) -> Result<()> {
    for (number, kernels) in depend::atoms(program)?.into_iter().enumerate() {
        let name = names::of(&program.kernels[kernels.clone()], &program.kernels[kernels.start].name);
        let after = number.checked_sub(1).into_iter().collect();
        program.partitions.push(Partition { name, kernels, after, target: target.into() });
    }
    program.policies = Policies::Serial;
    Ok(())
}

/// Sorts the kernels into the order of the pieces, which respects the dependencies.
fn arrange(program: &mut Program, graph: &depend::Graph, pieces: &[Vec<usize>], target: &str) {
    let mut old: Vec<_> = std::mem::take(&mut program.kernels).into_iter().map(Some).collect();
    let mut piece_of = vec![0; graph.atoms.len()];
    for (number, piece) in pieces.iter().enumerate() {
        piece.iter().for_each(|atom| piece_of[*atom] = number);
    }

    let mut turns = Turns::default();
    let mut taken: BTreeMap<String, usize> = BTreeMap::new();
    for (number, piece) in pieces.iter().enumerate() {
        let begin = program.kernels.len();
        for atom in piece {
            program
                .kernels
                .extend(old[graph.atoms[*atom].kernels.clone()].iter_mut().filter_map(Option::take));
        }

        let waits = piece.iter().flat_map(|atom| &graph.atoms[*atom].after);
        let waits = waits.map(|edge| piece_of[edge.from]).filter(|other| *other != number);
        let waits: Vec<usize> = waits.chain(turns.take(graph, number, piece)).collect();

        let kernels = begin..program.kernels.len();
        let name = names::of(&program.kernels[kernels.clone()], graph.largest(piece));
        let name = unique(&mut taken, name);
        let own = piece.first().map_or("", |atom| &graph.atoms[*atom].target);
        let target = if own.is_empty() { target } else { own };
        program.partitions.push(Partition { name, kernels, after: waits, target: target.into() });
    }

    depend::reduce(&mut program.partitions);
}

/// The pieces so far that call each target with a limit.
///
/// Each such piece waits for the one that is as many pieces before it as calls may run at once. So these pieces form as
/// many chains, and no more of them can run at once, in any order that respects the waits.
#[derive(Default)]
struct Turns(BTreeMap<usize, Vec<usize>>);

impl Turns {
    /// Adds the next piece, and returns those that it must wait for.
    fn take(&mut self, graph: &depend::Graph, number: usize, piece: &[usize]) -> Vec<usize> {
        let mut waits = Vec::new();
        for limit in graph.limits_of(piece) {
            let at_once = graph.limits[limit].at_once.get() as usize;
            let earlier = self.0.entry(limit).or_default();
            waits.extend(earlier.len().checked_sub(at_once).map(|idx| earlier[idx]));
            earlier.push(number);
        }
        waits
    }
}

/// The name, with a number appended if it is taken.
fn unique(taken: &mut BTreeMap<String, usize>, name: String) -> String {
    let times = taken.entry(name.clone()).or_insert(0);
    *times += 1;
    if *times == 1 { name } else { format!("{name} ({times})") }
}
