//! Fuses contraction → rows → contraction by blocks of rows: attention without its matrix of scores.
//!
//! Three kernels loop over the same rows. The first and the last are contractions whose right operand changes with the
//! loops around, so that no large weights are read once a block. The middle kernel consists of strips:
//!
//! ```text
//! for o { for m { X = A(o, m) } }   for r { P = B(r, X) }   for o { for m { C(o, m, P) } }
//! ⇒  for o { for block of m { X = A;  for m in block { P = B };  C } }
//! ```
//!
//! `X` and `P` are accessed row by row, at `row-major(o, m) * stride + rest`, and only by these kernels. So they
//! shrink to scratch memory for one block.
//!
//! Of several row axes, such as the query heads that share keys and the tokens, blocks divide the last one. A block has
//! all steps of the others, the *groups*. The other kernels may count several of the axes as one.

use super::{
    fresh_symbols::FreshSymbols,
    neighbours::{REACH, may_pass},
};
use crate::{
    Error, Result,
    kernel::{
        Access, Axis, BufferId, Contraction, Control, Kernel, MemorySpace, Program, Rhs, Stmt, upper_bound,
        walk::{self, Rewrite},
    },
    scalar::Precision,
};
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Facts, Symbol};

/// Rows of a block: a multiple of every tile height, and few enough for scores of long sequences to stay in cache.
const BLOCK_ROWS: i64 = 48;

/// As [`BLOCK_ROWS`], for tile registers: both right operands are packed once a block.
const FAST_BLOCK_ROWS: i64 = 192;

/// Most steps of the groups together: each block has all of them.
const MAX_GROUPS: i64 = 16;

fn block_rows(program: &Program) -> i64 {
    if program.microkernels.has_tiles() && program.precision != Precision::F32 {
        FAST_BLOCK_ROWS
    } else {
        BLOCK_ROWS
    }
}

/// Fuses all triples of such kernels.
pub(super) fn fuse(program: &mut Program) -> Result<()> {
    let mut last = 0;
    while last < program.kernels.len() {
        if let Some((first, middle)) = triple(program, last) {
            program.kernels[last] = join(program, first, middle, last)?;
            program.kernels.remove(middle);
            program.kernels.remove(first);
            last -= 2;
        }
        last += 1;
    }

    Ok(())
}

/// A kernel as a loop over rows.
struct RowKernel<'a> {
    /// The loops.
    outer: Vec<Axis>,
    /// The row axes of a contraction.
    rows: Vec<Axis>,
    work: RowBody<'a>,
}

enum RowBody<'a> {
    Contraction(&'a Contraction),
    Plain(&'a [Stmt]),
}

impl<'a> RowKernel<'a> {
    fn of(kernel: &'a Kernel) -> Option<RowKernel<'a>> {
        let mut outer = Vec::new();
        let mut body = &kernel.body[..];
        while let [Stmt::For { axis, body: inner, .. }] = body {
            outer.push(axis.clone());
            body = inner;
        }

        match body {
            [Stmt::Contraction(contraction)] => {
                let Rhs::Indexed(rhs) = &contraction.rhs else { return None };
                let changes = outer.iter().any(|axis| rhs.index.contains(&axis.var));
                // The order of row axes is free. That of the buffers decides whether kernels can be fused.
                let is_group = |axis: &&Axis| axis.extent.as_i64().is_some_and(|steps| steps <= MAX_GROUPS);
                let (groups, others): (Vec<&Axis>, Vec<&Axis>) = contraction.m.iter().partition(is_group);
                let rows = groups.into_iter().chain(others).cloned().collect();
                changes.then_some(RowKernel { outer, rows, work: RowBody::Contraction(contraction) })
            }
            _ if outer.is_empty() || !body.iter().all(super::rows::is_plain) => None,
            _ => Some(RowKernel { outer, rows: Vec::new(), work: RowBody::Plain(body) }),
        }
    }

    /// All axes of the rows, outermost first.
    fn axes(&self) -> impl DoubleEndedIterator<Item = &Axis> {
        self.outer.iter().chain(&self.rows)
    }

    /// The row-major index of the row, over the axes' variables.
    fn index(&self) -> Dim {
        row_major(self.axes().map(|axis| (&axis.extent, Dim::from(&axis.var))))
    }

    /// The row axes but the last one, and the last one.
    fn groups(&self) -> Option<(&[Axis], &Axis)> {
        self.rows.split_last().map(|(row, groups)| (groups, row))
    }
}

/// The row-major index of an element, from the extent of each axis and the step along it, outermost first.
pub(super) fn row_major<'d>(steps: impl Iterator<Item = (&'d Dim, Dim)>) -> Dim {
    steps.fold(Dim::zero(), |index, (extent, step)| index * extent + step)
}

/// Elements of axes together.
pub(super) fn count<'a>(axes: impl IntoIterator<Item = &'a Axis>) -> Dim {
    axes.into_iter().fold(Dim::one(), |count, axis| count * &axis.extent)
}

/// How many of the consecutive `axes` each of `coarser` counts as one. `None` if `coarser` has other axes.
pub(super) fn merged(facts: &Facts, axes: &[Axis], coarser: &[Axis]) -> Option<Vec<usize>> {
    let mut rest = axes;
    let mut lens = Vec::new();
    for axis in coarser {
        let is_merged = |len: &usize| facts.prove_eq(&count(&rest[..*len]), &axis.extent).is_yes();
        let len = (1..=rest.len()).find(is_merged)?;
        lens.push(len);
        rest = &rest[len..];
    }
    rest.is_empty().then_some(lens)
}

/// The two kernels that can be fused with the contraction at `last`.
fn triple(program: &Program, last: usize) -> Option<(usize, usize)> {
    let kernels = &program.kernels;
    let after = RowKernel::of(&kernels[last])?;
    let RowBody::Contraction(contraction) = after.work else { return None };

    let middle = writer(kernels, last, contraction.lhs.buffer)?;
    let plain = RowKernel::of(&kernels[middle])?;
    let RowBody::Plain(body) = plain.work else { return None };

    let mut read = BTreeSet::new();
    walk::accesses(body, &mut |site| _ = read.insert(site.access.buffer));
    let first = read.iter().find_map(|buffer| {
        let first = writer(kernels, middle, *buffer)?;
        let rows = RowKernel::of(&kernels[first])?;
        matches!(rows.work, RowBody::Contraction(_)).then_some(first)
    })?;

    let before = RowKernel::of(&kernels[first])?;
    let (groups, _) = before.groups()?;
    let all: Vec<Axis> = before.axes().cloned().collect();
    let same_rows = count(groups).as_i64().is_some_and(|groups| groups <= MAX_GROUPS)
        && merged(&program.facts, &before.outer, &after.outer).is_some()
        && merged(&program.facts, &before.rows, &after.rows).is_some()
        && merged(&program.facts, &all, &plain.outer).is_some();
    let free = may_pass(&between(kernels, first, last, middle), &kernels[first])
        && may_pass(&kernels[middle + 1..last], &kernels[middle]);
    let shared = [&kernels[first], &kernels[middle], &kernels[last]];
    (same_rows && free && accesses_by_rows(program, shared).is_some()).then_some((first, middle))
}

fn between(kernels: &[Kernel], first: usize, last: usize, but: usize) -> Vec<Kernel> {
    (first + 1..last).filter(|at| *at != but).map(|at| kernels[at].clone()).collect()
}

/// The nearest kernel before `at` that writes `buffer`.
fn writer(kernels: &[Kernel], at: usize, buffer: BufferId) -> Option<usize> {
    (at.saturating_sub(REACH)..at).rev().find(|at| {
        let mut writes = false;
        walk::accesses(&kernels[*at].body, &mut |site| {
            writes |= site.is_store && site.access.buffer == buffer;
        });
        writes
    })
}

/// The buffers that pass between the kernels, with their row strides. `None` if one is not accessed row by row, or is
/// accessed by another kernel too.
fn accesses_by_rows(program: &Program, kernels: [&Kernel; 3]) -> Option<BTreeMap<BufferId, Dim>> {
    let mut written = BTreeSet::new();
    let mut users: BTreeMap<BufferId, BTreeSet<usize>> = BTreeMap::new();
    for (position, kernel) in kernels.iter().enumerate() {
        walk::accesses(&kernel.body, &mut |site| {
            users.entry(site.access.buffer).or_default().insert(position);
            if site.is_store {
                written.insert(site.access.buffer);
            }
        });
    }

    let mut strides: BTreeMap<BufferId, Dim> = BTreeMap::new();
    let mut fits = true;
    for kernel in kernels {
        let rows = RowKernel::of(kernel)?;
        let row_index = rows.index();
        walk::accesses(&kernel.body, &mut |site| {
            let buffer = site.access.buffer;
            let passes = written.contains(&buffer) && users.get(&buffer).is_some_and(|users| users.len() > 1);
            if !passes {
                return;
            }

            let mut facts = program.facts.clone();
            site.axes.iter().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));

            let Some(stride) = stride(&facts, &rows, &row_index, &site.access.index) else {
                fits = false;
                return;
            };

            let old = strides.entry(buffer).or_insert_with(|| stride.clone());
            fits &= facts.prove_eq(old, &stride).is_yes();
        });
    }

    let is_private = |buffer: &BufferId| {
        let others = program.kernels.iter().filter(|kernel| {
            let (read, written) = kernel.control.as_ref().map(Control::touched).unwrap_or_default();
            let mut uses = read.contains(buffer) || written.contains(buffer);
            walk::accesses(&kernel.body, &mut |site| uses |= site.access.buffer == *buffer);
            uses
        });
        matches!(program.buffers[*buffer].space, MemorySpace::Arena) && others.count() == users[buffer].len()
    };
    (fits && !strides.is_empty() && strides.keys().all(is_private)).then_some(strides)
}

/// The stride for which `address = row_index * stride + rest`, where `0 <= rest < stride` and all rows have the same
/// `rest`.
fn stride(facts: &Facts, rows: &RowKernel, row_index: &Dim, address: &Dim) -> Option<Dim> {
    let row = rows.axes().next_back()?;
    let (stride, _) = facts.linear_in(address, &row.var)?;
    let rest = facts.simplify(&(address - row_index * &stride));
    let inside = !rows.axes().any(|axis| rest.contains(&axis.var))
        && facts.prove_le(&Dim::zero(), &rest).is_yes()
        && facts.prove_lt(&rest, &stride).is_yes();
    inside.then_some(stride)
}

/// A block of rows, which all parts of a fused kernel process.
struct RowBlock {
    strides: BTreeMap<BufferId, Dim>,
    outer: Vec<Axis>,
    groups: Vec<Axis>,
    /// The axis that blocks divide.
    row: Axis,
    /// The first row of the block, within the row axis.
    start: Dim,
    /// The number of rows of the block.
    extent: Dim,
    /// That of the first block, which no other one exceeds.
    max_extent: Dim,
    facts: Facts,
}

fn join(program: &mut Program, first: usize, middle: usize, last: usize) -> Result<Kernel> {
    let kernels = [first, middle, last].map(|at| program.kernels[at].clone());
    let not_by_rows = || Error::internal("kernels that are fused must loop over the same rows");
    let strides = accesses_by_rows(program, kernels.each_ref()).ok_or_else(not_by_rows)?;
    let before = RowKernel::of(&kernels[0]).ok_or_else(not_by_rows)?;
    let (groups, row) = before.groups().ok_or_else(not_by_rows)?;
    let n_groups = count(groups).as_i64().ok_or_else(not_by_rows)?;
    let mut symbols = FreshSymbols::for_one_kernel(program);
    let outer = &before.outer;
    outer.iter().for_each(|axis| symbols.reserve(axis.var.clone()));

    let rows = (block_rows(program) / n_groups).max(1);
    let block = Axis { var: symbols.fresh(), extent: program.facts.simplify(&row.extent.ceil_div(rows)) };
    let is_one_block = block.extent.as_i64() == Some(1);
    let start = if is_one_block { Dim::zero() } else { Dim::from(&block.var) * rows };
    let mut facts = program.facts.clone();
    outer.iter().chain([&block]).for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
    let shared = RowBlock {
        extent: facts.simplify(&(&row.extent - &start).min(rows.into())),
        max_extent: facts.simplify(&row.extent.clone().min(rows.into())),
        strides,
        outer: outer.clone(),
        groups: groups.to_vec(),
        row: row.clone(),
        start,
        facts,
    };

    let mut fused = Kernel::default();
    let mut body = Vec::new();
    for kernel in &kernels {
        let stmt = body_of_block(&shared, &mut symbols, kernel, fused.locals.len());
        body.push(stmt.ok_or_else(not_by_rows)?);
        kernel.locals.values().for_each(|dtype| _ = fused.locals.push(*dtype));
    }

    for (buffer, stride) in &shared.strides {
        let block = row.extent.clone().min(rows.into()) * n_groups * stride;
        // If the block has no upper bound, the buffer keeps its size, which is enough for a block.
        if let Some(elems) = upper_bound(&program.facts, &program.data_dependent, &block) {
            program.buffers[*buffer].elems = elems;
        }
        program.buffers[*buffer].space = MemorySpace::Scratch;
    }

    // Only the outer loops are parallel, so that the blocks of an iteration share packed operands.
    let n_parallel = outer.len().max(1);
    let block = Some(block).filter(|_| !is_one_block || outer.is_empty());
    let axes = outer.iter().cloned().chain(block).enumerate().collect::<Vec<_>>();
    fused.body = axes
        .into_iter()
        .rev()
        .fold(body, |body, (depth, axis)| vec![Stmt::For { axis, parallel: depth < n_parallel, body }]);
    fused.name = kernels.each_ref().map(|kernel| kernel.name.as_str()).join(", ");
    Ok(fused)
}

impl RowBlock {
    /// All axes of the rows, outermost first.
    fn axes(&self) -> impl Iterator<Item = &Axis> {
        self.outer.iter().chain(&self.groups).chain([&self.row])
    }
}

/// The axes of a kernel's rows within a block: the groups, and the rows of the block.
struct RowsOfBlock {
    groups: Vec<Axis>,
    row: Axis,
}

impl RowsOfBlock {
    fn new(block: &RowBlock, symbols: &mut FreshSymbols) -> RowsOfBlock {
        let mut fresh = |extent: &Dim| Axis { var: symbols.fresh(), extent: extent.clone() };
        let groups = block.groups.iter().map(|axis| fresh(&axis.extent)).collect();
        RowsOfBlock { groups, row: fresh(&block.extent) }
    }

    fn axes(&self) -> impl DoubleEndedIterator<Item = &Axis> {
        self.groups.iter().chain([&self.row])
    }

    /// The step along each axis of all rows.
    fn steps(&self, block: &RowBlock) -> Vec<Dim> {
        let outer = block.outer.iter().chain(&self.groups).map(|axis| Dim::from(&axis.var));
        outer.chain([&block.start + Dim::from(&self.row.var)]).collect()
    }

    /// The row-major index of a row within the block, where each group has the rows of the first block.
    fn index(&self, block: &RowBlock) -> Dim {
        let groups = self.groups.iter().map(|axis| (&axis.extent, Dim::from(&axis.var)));
        row_major(groups.chain([(&block.max_extent, Dim::from(&self.row.var))]))
    }
}

/// The body of one kernel over the rows of a block. `None` if the kernel does not loop over such rows.
fn body_of_block(
    block: &RowBlock,
    symbols: &mut FreshSymbols,
    kernel: &Kernel,
    shift: usize,
) -> Option<Stmt> {
    let own = RowsOfBlock::new(block, symbols);
    let steps = own.steps(block);
    let all: Vec<Axis> = block.axes().cloned().collect();
    let rows = RowKernel::of(kernel)?;
    let axes: Vec<Axis> = rows.axes().cloned().collect();
    let lens = merged(&block.facts, &all, &axes)?;

    let mut values: BTreeMap<Symbol, Dim> = BTreeMap::new();
    let mut at = 0;
    for (axis, len) in axes.iter().zip(lens) {
        let merged = all[at..at + len].iter().zip(&steps[at..]);
        values.insert(axis.var.clone(), row_major(merged.map(|(axis, step)| (&axis.extent, step.clone()))));
        at += len;
    }

    let mut facts = block.facts.clone();
    own.axes().for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
    let global = row_major(all.iter().zip(&steps).map(|(axis, step)| (&axis.extent, step.clone())));
    // From the index of a row among all rows to that within the block.
    let shift_of_rows = own.index(block) - global;

    let mut renamed = BTreeMap::new();
    let mut rename = |symbol: &Symbol| {
        let fresh = symbols.fresh();
        values.insert(symbol.clone(), Dim::from(&fresh));
        renamed.insert(symbol.clone(), fresh);
    };
    match &rows.work {
        RowBody::Plain(body) => walk::symbols(body, &mut rename),
        RowBody::Contraction(contraction) => {
            contraction.k.iter().chain([&contraction.n]).for_each(|axis| rename(&axis.var));
        }
    }

    let by = Rewrite {
        dim: &|dim| dim.substitute(&|symbol| values.get(symbol).cloned()),
        access: &|access| match block.strides.get(&access.buffer) {
            Some(stride) => {
                Access { index: facts.simplify(&(access.index + &shift_of_rows * stride)), ..access }
            }
            None => Access { index: facts.simplify(&access.index), ..access },
        },
        symbol: &|symbol| renamed.get(symbol).unwrap_or(symbol).clone(),
        local: &|local| local.after(shift),
    };

    Some(match rows.work {
        RowBody::Plain(body) => {
            let body = walk::rewrite(body, &by);
            let looped = |body, axis: &Axis| vec![Stmt::For { axis: axis.clone(), parallel: false, body }];
            own.axes().rev().fold(body, looped).remove(0)
        }
        RowBody::Contraction(contraction) => {
            let m = own.axes().cloned().collect();
            let without_rows = Contraction { m: vec![], ..contraction.clone() };
            Stmt::Contraction(Box::new(Contraction { m, ..by.contraction(&without_rows) }))
        }
    })
}
