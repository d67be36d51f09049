//! Dependencies between the kernels of a program.

use crate::{
    error::{Error, Result},
    external::Callee,
    kernel::{
        CallLimit, Control, Kernel, Partition, Program, cost, dependences::Footprint, partition::waits, walk,
    },
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
    /// The offloaded part that it is one call of, if any.
    pub(super) part: Option<u32>,
    /// Indices of the program's call limits that its calls count for.
    pub(super) limits: Vec<usize>,
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
    /// Targets whose calls may not all run at once.
    pub(super) limits: Vec<CallLimit>,
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
            let only_call = only_call(&program.kernels[kernels.clone()]);
            let target = only_call.map(|callee| callee.target.clone()).unwrap_or_default();
            let part = only_call.and_then(|callee| callee.part.0);
            let limits = limits_of(program, &kernels);
            atoms.push(Atom { work: work.sum::<f64>().max(1.0), kernels, after, target, part, limits, name });
        }

        Ok(Graph { atoms, limits: program.call_limits.clone() })
    }

    /// Makes each atom depend on the one before it.
    pub(super) fn keep_order(&mut self) {
        for (number, atom) in self.atoms.iter_mut().enumerate().skip(1) {
            if !atom.after.iter().any(|edge| edge.from == number - 1) {
                atom.after.push(Edge { from: number - 1, bytes: 0.0 });
            }
        }
    }

    /// Indices of the limits that the calls of a piece count for.
    pub(super) fn limits_of<'g>(&'g self, piece: &'g [usize]) -> BTreeSet<usize> {
        piece.iter().flat_map(|atom| self.atoms[*atom].limits.iter().copied()).collect()
    }

    /// Whether the target of an atom takes one call at a time.
    pub(super) fn is_exclusive(&self, atom: usize) -> bool {
        self.atoms[atom].limits.iter().any(|idx| self.limits[*idx].at_once.get() == 1)
    }

    /// The name of the atom of a piece with the largest work.
    pub(super) fn largest(&self, piece: &[usize]) -> &str {
        let largest = piece.iter().rev().max_by(|a, b| self.atoms[**a].work.total_cmp(&self.atoms[**b].work));
        largest.map_or("", |atom| &self.atoms[*atom].name)
    }
}

/// The callee, if the kernels consist of one call.
fn only_call(kernels: &[Kernel]) -> Option<&Callee> {
    match kernels {
        [Kernel { control: Some(Control::Call(call)), .. }] => Some(&call.callee),
        _ => None,
    }
}

/// Indices of the limits that the calls of these kernels count for. Calls within regions count too.
fn limits_of(program: &Program, kernels: &Range<usize>) -> Vec<usize> {
    let limits = program.call_limits.iter().enumerate();
    limits.filter(|(_, limit)| program.calls(kernels.clone(), &limit.target)).map(|(idx, _)| idx).collect()
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

/// The kernels of each outermost region, those that run together for each sequence of a ragged batch, and each other
/// kernel.
pub(super) fn atoms(program: &Program) -> Result<Vec<Range<usize>>> {
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
        let joins_next = program.ragged.as_ref().is_some_and(|ragged| ragged.joins_next(idx));
        if depth == 0 && !joins_next {
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
