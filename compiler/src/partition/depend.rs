//! Dependencies between the kernels of a program.

use crate::{
    error::{Error, Result},
    kernel::{Control, Kernel, Partition, Program, cost, dependences::Footprint, partition::waits, walk},
};
use num_traits::ToPrimitive;
use std::{collections::BTreeSet, ops::Range};
use symshape::{Dim, Symbol};

/// Kernels that are never separated: an outermost region, or a kernel and those that fill memory for it.
pub(super) struct Atom {
    /// Their indices in the program.
    pub(super) kernels: Range<usize>,
    /// Its direct dependencies, without those that another one implies.
    pub(super) after: Vec<Edge>,
    /// The offload target that runs it; empty for the host.
    pub(super) target: String,
    /// Estimated work at sizes in the middle of their ranges, at least 1.
    pub(super) work: f64,
    name: String,
}

/// A dependency on an earlier atom.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    /// Index of the atom that must run before.
    pub(super) from: usize,
    /// Bytes exchanged, at sizes in the middle of their ranges.
    pub(super) bytes: f64,
}

/// The atoms in the order of the program. Every atom depends only on earlier ones.
pub(super) struct Graph {
    pub(super) atoms: Vec<Atom>,
}

impl Graph {
    /// The dependencies of a program's kernels.
    pub(super) fn of(program: &Program) -> Result<Graph> {
        let ranges = with_fills(program, atoms(program)?);
        let uses: Vec<Footprint> =
            ranges.iter().map(|kernels| Footprint::of(program, kernels.clone())).collect();

        let mut atoms: Vec<Atom> = Vec::with_capacity(uses.len());
        let mut before: Vec<BTreeSet<usize>> = Vec::with_capacity(uses.len());
        for (number, later) in uses.iter().enumerate() {
            let mut after = Vec::new();
            let mut known = BTreeSet::new();
            for from in (0..number).rev() {
                if known.contains(&from) {
                    continue;
                }
                if uses[from].must_precede(later, program) {
                    after.push(Edge { from, bytes: bytes_between(program, &uses[from], later) });
                    known.insert(from);
                    known.extend(&before[from]);
                }
            }

            after.reverse();
            before.push(known);

            let kernels = ranges[number].clone();
            let work = kernels.clone().map(|idx| middle(program, &cost::of(program, &program.kernels[idx])));
            let name = program.kernels[kernels.start].name.clone();
            let target = target(&program.kernels[kernels.clone()]);
            atoms.push(Atom { work: work.sum::<f64>().max(1.0), kernels, after, target, name });
        }

        Ok(Graph { atoms })
    }

    /// Makes each atom depend on the one before it.
    pub(super) fn keep_order(&mut self) {
        for (number, atom) in self.atoms.iter_mut().enumerate().skip(1) {
            if !atom.after.iter().any(|edge| edge.from == number - 1) {
                atom.after.push(Edge { from: number - 1, bytes: 0.0 });
            }
        }
    }

    /// The name of a piece: that of its atom with the largest work.
    pub(super) fn name(&self, piece: &[usize]) -> String {
        let largest = piece.iter().rev().max_by(|a, b| self.atoms[**a].work.total_cmp(&self.atoms[**b].work));
        largest.map_or_else(String::new, |atom| self.atoms[*atom].name.clone())
    }
}

/// The target that runs these kernels: the offload target of the call, if they consist of one call.
fn target(kernels: &[Kernel]) -> String {
    match kernels {
        [Kernel { control: Some(Control::Call(call)), .. }] => call.callee.target.clone(),
        _ => String::new(),
    }
}

/// The value of an expression with every symbol at the geometric middle of its range.
fn middle(program: &Program, dim: &Dim) -> f64 {
    let value_of = |symbol: &Symbol| {
        let bounds = program.facts.bounds(&Dim::from(symbol));
        let lo = bounds.lo?.to_f64()?.max(1.0);
        let hi = bounds.hi?.to_f64()?.max(1.0);
        Some((lo * hi).sqrt().round().to_i64()?.into())
    };
    dim.eval(&value_of).ok().and_then(|value| value.to_f64()).unwrap_or(1.0)
}

/// Bytes of the buffers that both touch.
fn bytes_between(program: &Program, a: &Footprint, b: &Footprint) -> f64 {
    a.buffers()
        .filter(|buffer| b.touches(*buffer))
        .map(|id| middle(program, &program.buffers[id].bytes()))
        .sum()
}

/// The kernels of each atom.
fn atoms(program: &Program) -> Result<Vec<Range<usize>>> {
    let mut list = Vec::new();
    let mut depth = 0_usize;

    let mut begin = 0;
    for (idx, kernel) in program.kernels.iter().enumerate() {
        match &kernel.control {
            Some(Control::If(_) | Control::While(_)) => depth += 1,
            Some(Control::End) => {
                depth = depth
                    .checked_sub(1)
                    .ok_or_else(|| Error::internal("an `end` without an `if` or `while`"))?;
            }
            _ => {}
        }
        if depth == 0 {
            list.push(begin..idx + 1);
            begin = idx + 1;
        }
    }

    Ok(list)
}

/// The ranges, joined where one only fills memory for the next one, such as the borders of padded tensors. A separate
/// fill could run at any time, so no other buffer could use that memory before.
fn with_fills(program: &Program, ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut list: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match list.last_mut() {
            Some(last) if fills(program, last, &range) => last.end = range.end,
            _ => list.push(range),
        }
    }
    list
}

/// Whether kernels read nothing, and write memory that the next ones use.
fn fills(program: &Program, range: &Range<usize>, next: &Range<usize>) -> bool {
    let only_writes = |kernel: &Kernel| {
        let mut reads = false;
        walk::accesses(&kernel.body, &mut |site| reads |= !site.is_store);
        !reads && kernel.control.is_none()
    };

    let is_plain = program.kernels[next.clone()].iter().all(|kernel| kernel.control.is_none());
    if !is_plain || !program.kernels[range.clone()].iter().all(only_writes) {
        return false;
    }

    let own = Footprint::of(program, range.clone());
    let other = Footprint::of(program, next.clone());
    own.buffers().any(|buffer| other.touches(buffer))
}

/// Reduces each partition's dependencies to those that no other one implies, in ascending order.
pub(super) fn reduce(partitions: &mut [Partition]) {
    let all = waits(partitions);
    for partition in partitions {
        let direct: BTreeSet<usize> = partition.after.iter().copied().collect();
        let implied = |other: &usize| direct.iter().any(|between| all[*between].contains(other));
        partition.after = direct.iter().copied().filter(|other| !implied(other)).collect();
    }
}
