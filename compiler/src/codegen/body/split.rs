//! The division of a kernel into parts, and of a part into shares for several threads.
//!
//! A kernel runs as one or more *parts*, one after another. Each statement of its body is a part, unless scalar
//! variables, bindings or scratch memory pass between statements: then the whole body is one part. The [`PartSplit`]
//! of a part names the iterations that may run at once: those of its parallel loops, the elements of a strip, or the
//! rows or columns of a contraction.
//!
//! The driver divides a part's iterations into *shares*, one or several for each thread, see `codegen/run/share.rs`.
//! Threads run ranges of consecutive shares. Ranges that run at once have different copies of the kernel's scratch
//! memory. No result depends on the boundaries: every element is computed within one range, in the same order as on
//! one thread.

use crate::{
    codegen::function::{FuncCtx, frame},
    error::Result,
    kernel::{Access, Axis, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Stmt, walk},
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
#[derive(Clone, Copy)]
pub(crate) enum PartSplit<'k> {
    /// The part runs on one thread.
    Sequential,
    /// The iterations of a parallel loop around `body`, or of two directly nested ones, counted from the inner one.
    Loops { axis: &'k Axis, inner: Option<&'k Axis>, body: &'k [Stmt] },
    /// The elements of a strip without reductions, in units of [`STRIP_STEP`].
    Strip { axis: &'k Axis, code: &'k InstSeq },
    /// The rows or the columns of a contraction: its size decides at run time.
    Contraction(&'k Contraction),
}

/// A range of iterations, as values of the function that runs them.
#[derive(Clone, Copy)]
pub(crate) struct IterationRange {
    pub(crate) begin: Value,
    /// Exclusive.
    pub(crate) end: Value,
}

/// The parts of a kernel.
pub(crate) fn parts<'k>(program: &Program, kernel: &'k Kernel) -> Vec<KernelPart<'k>> {
    let body = &kernel.body[..];
    let is_loop = |stmt: &Stmt| matches!(stmt, Stmt::For { .. } | Stmt::Strip { .. } | Stmt::Contraction(_));
    let is_one_part = body.len() < 2
        || !kernel.locals.is_empty()
        || !body.iter().all(is_loop)
        || passes_scratch(program, body);

    if is_one_part { vec![part(body)] } else { body.chunks(1).map(part).collect() }
}

fn part(body: &[Stmt]) -> KernelPart<'_> {
    KernelPart { body, split: split(body) }
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

fn split(body: &[Stmt]) -> PartSplit<'_> {
    match body {
        [Stmt::For { axis, parallel: true, body }] => match &body[..] {
            [Stmt::For { axis: inner, parallel: true, body }] if !inner.extent.contains(&axis.var) => {
                PartSplit::Loops { axis, inner: Some(inner), body }
            }
            _ => PartSplit::Loops { axis, inner: None, body },
        },
        [Stmt::Strip { axis, code }] if only_stores(code) => PartSplit::Strip { axis, code },
        [Stmt::Contraction(contraction)] => PartSplit::Contraction(contraction),
        _ => PartSplit::Sequential,
    }
}

/// Whether stores are the only effect of the code on later statements, and loaded addresses don't relate iterations:
/// no iteration stores at such an address, or loads from there in a buffer that another one stores to.
fn only_stores(code: &InstSeq) -> bool {
    let mut bound = Vec::new();
    let mut stored = Vec::new();
    let mut loaded = Vec::new();
    for inst in &code.insts {
        let is_at_loaded_address = |access: &Access| bound.iter().any(|symbol| access.index.contains(symbol));
        match inst {
            Inst::Reduce(..) | Inst::Set(..) => return false,
            Inst::Bind(symbol, _) => bound.push(symbol.clone()),
            Inst::Store(access, _) if is_at_loaded_address(access) => return false,
            Inst::Store(access, _) => stored.push(access.buffer),
            Inst::Load(access) if is_at_loaded_address(access) => loaded.push(access.buffer),
            _ => {}
        }
    }
    loaded.iter().all(|buffer| !stored.contains(buffer))
}

/// The number of iterations that may run at once; `None` if the part decides at run time, or is sequential.
pub(crate) fn iterations(split: PartSplit) -> Option<Dim> {
    match split {
        PartSplit::Loops { axis, inner: None, .. } => Some(axis.extent.clone()),
        PartSplit::Loops { axis, inner: Some(inner), .. } => Some(&axis.extent * &inner.extent),
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
