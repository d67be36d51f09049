//! The division of a kernel into parts, and of a part into shares for several threads.
//!
//! A kernel runs as one or more *parts*, one after another. Each statement of its body is a part, unless scalar
//! variables, bindings or scratch memory pass between statements: then the whole body is one part. The [`PartSplit`]
//! of a part names the iterations that may run at once: those of its parallel loops and the columns that these compute,
//! the elements of a strip, or the rows or columns of a contraction.
//!
//! The driver divides a part's iterations into *shares*, one or several for each thread, see `codegen/run/share.rs`.
//! Threads run ranges of consecutive shares. Ranges that run at once have different copies of the kernel's scratch
//! memory. No result depends on the boundaries: every element is computed within one range, in the same order as on
//! one thread.

use super::column_split::ColumnSplit;
use crate::{
    codegen::function::{FuncCtx, frame},
    error::Result,
    kernel::{Axis, Contraction, InstSeq, Kernel, MemorySpace, Program, Stmt, walk},
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use std::{collections::BTreeMap, slice};
use symshape::Dim;

/// The axis that the range in the call of a part's function refers to; the frame stores it at [`frame::SPLIT_AXIS`].
pub(crate) mod split_axis {
    /// Contractions ignore the range: the call computes everything. Other parts have a single axis.
    pub(crate) const ALL: i64 = 0;
    /// The rows of a contraction, in units that the contraction chooses.
    pub(crate) const ROWS: i64 = 1;
    /// The columns of a contraction, in units that the contraction chooses.
    pub(crate) const COLUMNS: i64 = 2;
}

/// Consecutive elements of a strip that are not divided: whole cache lines, and whole vectors of any ISA.
pub(crate) const STRIP_STEP: i64 = 64;

/// Statements of a kernel that run as one function.
#[derive(Clone)]
pub(crate) struct KernelPart<'k> {
    pub(crate) body: &'k [Stmt],
    pub(crate) split: PartSplit<'k>,
}

/// The iterations of a part that may run at once.
#[derive(Clone)]
pub(crate) enum PartSplit<'k> {
    /// The part runs on one thread.
    Sequential,
    /// The iterations of parallel loops, or ranges of the columns inside of them.
    Loops(ParallelNest<'k>),
    /// The elements of a strip without reductions, in units of [`STRIP_STEP`].
    Strip { axis: &'k Axis, code: &'k InstSeq },
    /// The rows or the columns of a contraction: its size decides at run time.
    Contraction(&'k Contraction),
}

/// Up to two parallel loops around `body`, one directly inside of the other. Their iterations are counted jointly, and
/// the inner loop counts fastest.
#[derive(Clone)]
pub(crate) struct ParallelNest<'k> {
    /// From the outermost loop to the innermost one.
    pub(crate) loops: Vec<&'k Axis>,
    pub(crate) body: &'k [Stmt],
    /// The division of the columns that the body computes. Their units count faster than all loops.
    pub(crate) columns: Option<ColumnSplit<'k>>,
}

impl<'k> ParallelNest<'k> {
    /// The iterations of a single loop.
    pub(crate) fn of_loop(axis: &'k Axis, body: &'k [Stmt]) -> Self {
        ParallelNest { loops: vec![axis], body, columns: None }
    }

    /// The joint iterations of the loop over `axis` and of a parallel loop directly inside of it.
    fn around(program: &Program, kernel: &Kernel, axis: &'k Axis, body: &'k [Stmt]) -> Self {
        let mut nest = ParallelNest::of_loop(axis, body);
        if let [Stmt::For { axis: inner, parallel: true, body }] = body
            && !inner.extent.contains(&axis.var)
        {
            nest.loops.push(inner);
            nest.body = body;
        }
        nest.columns = ColumnSplit::of(program, kernel, &nest.loops, nest.body);
        nest
    }

    /// The number of iterations of the loops from `depth` on, with the units of columns.
    pub(crate) fn count(&self, depth: usize) -> Dim {
        let units = self.columns.as_ref().map(|columns| Dim::from(columns.units()));
        Dim::product(self.loops[depth..].iter().map(|axis| axis.extent.clone()).chain(units))
    }
}

impl PartSplit<'_> {
    /// The number of iterations of the loops, if the columns of each are divided, too.
    pub(crate) fn blocks(&self) -> Option<Dim> {
        let PartSplit::Loops(nest) = self else { return None };
        nest.columns.as_ref()?;
        Some(Dim::product(nest.loops.iter().map(|axis| axis.extent.clone())))
    }
}

/// A range of iterations, as values of the function that runs them.
#[derive(Clone, Copy)]
pub(crate) struct IterationRange {
    pub(crate) begin: Value,
    /// Exclusive.
    pub(crate) end: Value,
}

/// The part of a contraction to compute.
#[derive(Clone, Copy)]
pub(crate) enum ContractionPart {
    Whole,
    /// A range of units along the axis that the frame names, see [`split_axis`].
    OfFrame(IterationRange),
    /// A range of columns.
    Columns(IterationRange),
}

/// The parts of a kernel.
pub(crate) fn parts<'k>(program: &Program, kernel: &'k Kernel) -> Vec<KernelPart<'k>> {
    let body = &kernel.body[..];
    let part = |body| KernelPart { body, split: split(program, kernel, body) };
    let is_loop = |stmt: &Stmt| matches!(stmt, Stmt::For { .. } | Stmt::Strip { .. } | Stmt::Contraction(_));
    let is_one_part = body.len() < 2
        || !kernel.locals.is_empty()
        || !body.iter().all(is_loop)
        || passes_scratch(program, body);

    if is_one_part { vec![part(body)] } else { body.chunks(1).map(part).collect() }
}

/// Whether scratch memory passes from one statement to another. Each share has its own copy, so the statements must
/// not be divided separately. A parallel loop reads no scratch of earlier statements: it belongs to one of its
/// iterations.
fn passes_scratch(program: &Program, body: &[Stmt]) -> bool {
    let mut first_use = BTreeMap::new();
    let mut passes = false;
    for (idx, stmt) in body.iter().enumerate() {
        let is_parallel = matches!(stmt, Stmt::For { parallel: true, .. });
        walk::accesses(slice::from_ref(stmt), &mut |site| {
            let buffer = site.access.buffer;
            let is_scratch = matches!(program.buffers[buffer].space, MemorySpace::Scratch);
            let is_used_before = *first_use.entry(buffer).or_insert(idx) != idx;
            passes |= is_scratch && is_used_before && !is_parallel;
        });
    }

    passes
}

fn split<'k>(program: &Program, kernel: &Kernel, body: &'k [Stmt]) -> PartSplit<'k> {
    match body {
        [Stmt::For { axis, parallel: true, body }] => {
            PartSplit::Loops(ParallelNest::around(program, kernel, axis, body))
        }
        [Stmt::Strip { axis, code }] if code.only_stores() => PartSplit::Strip { axis, code },
        [Stmt::Contraction(contraction)] => PartSplit::Contraction(contraction),
        _ => match ColumnSplit::of(program, kernel, &[], body) {
            Some(columns) => {
                PartSplit::Loops(ParallelNest { loops: Vec::new(), body, columns: Some(columns) })
            }
            None => PartSplit::Sequential,
        },
    }
}

/// The number of iterations that may run at once; `None` if the part decides at run time, or is sequential.
pub(crate) fn iterations(split: &PartSplit) -> Option<Dim> {
    match split {
        PartSplit::Loops(nest) => Some(nest.count(0)),
        PartSplit::Strip { axis, .. } => Some(axis.extent.ceil_div(STRIP_STEP)),
        PartSplit::Sequential | PartSplit::Contraction(_) => None,
    }
}

/// The part of `0..count` that a call computes along an axis of a contraction. If the driver splits this axis, it is
/// the range of the call in units of `step`; else it is everything.
pub(crate) fn range(
    f: &mut FuncCtx,
    range: IterationRange,
    axis: i64,
    step: i64,
    count: Value,
) -> Result<IterationRange> {
    let IterationRange { begin, end } = range;
    let frame = f.frame()?;
    let current = f.load_word(frame, frame::SPLIT_AXIS);
    let is_split = f.ins().icmp_imm_s(IntCC::Equal, current, axis);

    let zero = f.int(0);
    let first = f.ins().imul_imm_s(begin, step);
    let last = f.ins().imul_imm_s(end, step);
    let last = f.ins().smin(last, count);
    let begin = f.ins().select(is_split, first, zero);
    let end = f.ins().select(is_split, last, count);
    Ok(IterationRange { begin, end })
}
