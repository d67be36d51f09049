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

use super::{
    fresh_symbols::FreshSymbols,
    neighbours::{REACH, may_pass},
};
use crate::{
    Result,
    kernel::{
        Access, Axis, BufferId, Contraction, Control, Kernel, Local, MemorySpace, Program, Rhs, Stmt,
        upper_bound,
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
            let fused = join(program, first, middle, last);
            program.kernels[last] = fused;
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
    /// The loops, the row axis last.
    axes: Vec<Axis>,
    work: RowBody<'a>,
}

enum RowBody<'a> {
    Contraction(&'a Contraction),
    Plain(&'a [Stmt]),
}

impl<'a> RowKernel<'a> {
    fn of(kernel: &'a Kernel) -> Option<RowKernel<'a>> {
        let mut axes = Vec::new();
        let mut body = &kernel.body[..];
        while let [Stmt::For { axis, body: inner, .. }] = body {
            axes.push(axis.clone());
            body = inner;
        }

        match body {
            [Stmt::Contraction(contraction)] if contraction.m.len() == 1 => {
                let Rhs::Indexed(rhs) = &contraction.rhs else { return None };
                let changes = axes.iter().any(|axis| rhs.index.contains(&axis.var));
                axes.push(contraction.m[0].clone());
                changes.then_some(RowKernel { axes, work: RowBody::Contraction(contraction) })
            }
            _ if axes.is_empty() || !body.iter().all(super::rows::is_plain) => None,
            _ => Some(RowKernel { axes, work: RowBody::Plain(body) }),
        }
    }

    fn count(&self) -> Dim {
        self.axes.iter().fold(Dim::one(), |count, axis| count * &axis.extent)
    }

    /// The row-major index of the row, over the axes' variables.
    fn index(&self) -> Dim {
        self.axes.iter().fold(Dim::zero(), |index, axis| index * &axis.extent + Dim::from(&axis.var))
    }
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
    let same_rows = same_axes(&program.facts, &before.axes, &after.axes)
        && (program.facts.prove_eq(&before.count(), &plain.count()).is_yes() && plain.axes.len() == 1
            || same_axes(&program.facts, &before.axes, &plain.axes));
    let free = may_pass(&between(kernels, first, last, middle), &kernels[first])
        && may_pass(&kernels[middle + 1..last], &kernels[middle]);
    let shared = [&kernels[first], &kernels[middle], &kernels[last]];
    (same_rows && free && accesses_by_rows(program, shared).is_some()).then_some((first, middle))
}

fn between(kernels: &[Kernel], first: usize, last: usize, but: usize) -> Vec<Kernel> {
    (first + 1..last).filter(|at| *at != but).map(|at| kernels[at].clone()).collect()
}

fn same_axes(facts: &Facts, a: &[Axis], b: &[Axis]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| facts.prove_eq(&a.extent, &b.extent).is_yes())
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
    let row = rows.axes.last()?;
    let (stride, _) = facts.linear_in(address, &row.var)?;
    let rest = facts.simplify(&(address - row_index * &stride));
    let inside = !rows.axes.iter().any(|axis| rest.contains(&axis.var))
        && facts.prove_le(&Dim::zero(), &rest).is_yes()
        && facts.prove_lt(&rest, &stride).is_yes();
    inside.then_some(stride)
}

/// A block of rows, which all parts of a fused kernel process.
struct RowBlock {
    strides: BTreeMap<BufferId, Dim>,
    outer: Vec<Axis>,
    /// The first row of the block, within the row axis.
    start: Dim,
    /// The number of rows of the block.
    extent: Dim,
    /// The row-major index of row `start`, over the loops around.
    origin: Dim,
    facts: Facts,
}

fn join(program: &mut Program, first: usize, middle: usize, last: usize) -> Kernel {
    let kernels = [first, middle, last].map(|at| program.kernels[at].clone());
    let strides = accesses_by_rows(program, kernels.each_ref()).unwrap_or_default();
    let mut symbols = FreshSymbols::for_one_kernel(program);
    let mut outer = RowKernel::of(&kernels[0]).map(|rows| rows.axes).unwrap_or_default();
    let Some(row) = outer.pop() else { return kernels[2].clone() };
    outer.iter().for_each(|axis| symbols.reserve(axis.var.clone()));

    let rows = block_rows(program);
    let block = Axis { var: symbols.fresh(), extent: program.facts.simplify(&row.extent.ceil_div(rows)) };
    let start = Dim::from(&block.var) * rows;
    let mut facts = program.facts.clone();
    outer.iter().chain([&block]).for_each(|axis| facts.declare_index(&axis.var, &axis.extent));
    let outer_index =
        outer.iter().fold(Dim::zero(), |index, axis| index * &axis.extent + Dim::from(&axis.var));
    let shared = RowBlock {
        extent: facts.simplify(&(&row.extent - &start).min(rows.into())),
        origin: outer_index * &row.extent + &start,
        strides,
        outer: outer.clone(),
        start,
        facts,
    };

    let mut fused = Kernel::default();
    let mut body = Vec::new();
    for kernel in &kernels {
        body.push(body_of_block(&shared, &mut symbols, kernel, fused.locals.len()));
        kernel.locals.values().for_each(|dtype| _ = fused.locals.push(*dtype));
    }

    for (buffer, stride) in &shared.strides {
        let block = row.extent.clone().min(rows.into()) * stride;
        // If the block has no upper bound, the buffer keeps its size, which is enough for a block.
        if let Some(elems) = upper_bound(&program.facts, &program.data_dependent, &block) {
            program.buffers[*buffer].elems = elems;
        }
        program.buffers[*buffer].space = MemorySpace::Scratch;
    }

    // Only the outer loops are parallel, so that the blocks of an iteration share packed operands.
    let n_parallel = outer.len().max(1);
    let axes = outer.into_iter().chain([block]).enumerate().collect::<Vec<_>>();
    fused.body = axes
        .into_iter()
        .rev()
        .fold(body, |body, (depth, axis)| vec![Stmt::For { axis, parallel: depth < n_parallel, body }]);
    fused.name = kernels.each_ref().map(|kernel| kernel.name.as_str()).join(", ");
    fused
}

/// The body of one kernel over the rows of a block.
fn body_of_block(block: &RowBlock, symbols: &mut FreshSymbols, kernel: &Kernel, shift: usize) -> Stmt {
    let Some(rows) = RowKernel::of(kernel) else {
        return Stmt::For {
            axis: Axis { var: symbols.fresh(), extent: Dim::zero() },
            parallel: false,
            body: vec![],
        };
    };

    let row = Axis { var: symbols.fresh(), extent: block.extent.clone() };
    let at_row = &block.start + Dim::from(&row.var);
    let mut values: BTreeMap<Symbol, Dim> = BTreeMap::new();
    match &rows.axes[..] {
        [only] if !block.outer.is_empty() => {
            values.insert(only.var.clone(), &block.origin + Dim::from(&row.var));
        }
        axes => {
            for (own, shared) in axes.iter().zip(&block.outer) {
                values.insert(own.var.clone(), Dim::from(&shared.var));
            }
            if let Some(last) = axes.last() {
                values.insert(last.var.clone(), at_row);
            }
        }
    }

    let mut facts = block.facts.clone();
    facts.declare_index(&row.var, &row.extent);

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
                Access { index: facts.simplify(&(access.index - &block.origin * stride)), ..access }
            }
            None => Access { index: facts.simplify(&access.index), ..access },
        },
        symbol: &|symbol| renamed.get(symbol).unwrap_or(symbol).clone(),
        local: &|local| Local::from_u32(local.as_u32() + shift as u32),
    };

    match rows.work {
        RowBody::Plain(body) => Stmt::For { axis: row, parallel: false, body: walk::rewrite(body, &by) },
        RowBody::Contraction(contraction) => {
            let stmt =
                by.stmt(&Stmt::Contraction(Box::new(Contraction { m: vec![], ..contraction.clone() })));
            match stmt {
                Stmt::Contraction(contraction) => {
                    Stmt::Contraction(Box::new(Contraction { m: vec![row], ..*contraction }))
                }
                other => other,
            }
        }
    }
}
