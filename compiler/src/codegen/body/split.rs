//! How a kernel is cut into shares for several threads.
//!
//! A kernel runs as one or more *parts*, one after another: its statements where no scalar variable or binding passes
//! between them, else all of them as one. What of a part may run at once is its [`Split`]: the joint iterations of its
//! parallel loops, the elements of a strip, or the rows or columns of a contraction.
//!
//! The driver cuts a part's iterations into as many *shares* as there are threads, at places that depend on their number
//! only, and hands the shares to the host; [`share`] is the task that the host calls. A share, not a thread, owns a copy
//! of the kernel's scratch. No result depends on where the cuts are: every element is computed in one share, in the
//! order in which it is computed alone.

use crate::{
    codegen::function::{FuncCtx, frame},
    error::Result,
    kernel::{Axis, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Stmt, walk},
};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, condcodes::IntCC, types};
use std::collections::BTreeMap;
use symshape::Dim;

/// Meaning of the range that a part's function is called with, in the frame's slot [`frame::SPLIT_AXIS`].
pub(crate) mod split_axis {
    /// Nothing: everything is to be done.
    pub(crate) const ALL: i64 = 0;
    /// A range of a contraction's rows, in steps of its own.
    pub(crate) const ROWS: i64 = 1;
    /// A range of a contraction's columns, in steps of its own.
    pub(crate) const COLUMNS: i64 = 2;
}

/// Consecutive elements of a strip that are not divided: whole cache lines, and whole vectors of any ISA.
pub(crate) const STRIP_STEP: i64 = 64;

/// Statements of a kernel that run as one function.
pub(crate) struct KernelPart<'k> {
    pub(crate) body: &'k [Stmt],
    pub(crate) split: Split<'k>,
}

/// What of a part may run at once.
#[derive(Clone, Copy)]
pub(crate) enum Split<'k> {
    /// Nothing.
    Sequential,
    /// The iterations of a loop, or of two directly nested ones taken together.
    Loops(&'k Axis, Option<&'k Axis>, &'k [Stmt]),
    /// The elements of a strip without reductions.
    Strip(&'k Axis, &'k InstSeq),
    /// Rows or columns.
    Contraction(&'k Contraction),
}

/// The parts of a kernel.
pub(crate) fn parts<'k>(program: &Program, kernel: &'k Kernel) -> Vec<KernelPart<'k>> {
    let body = &kernel.body[..];
    let apart = |stmt: &Stmt| matches!(stmt, Stmt::For { .. } | Stmt::Strip { .. } | Stmt::Contraction(_));
    let whole = body.len() < 2
        || !kernel.locals.is_empty()
        || !body.iter().all(apart)
        || passes_scratch(program, body);
    let pieces: Vec<&[Stmt]> = if whole { vec![body] } else { body.chunks(1).collect() };
    pieces.into_iter().map(|body| KernelPart { body, split: split(body) }).collect()
}

/// Whether scratch memory, of which each share has its own, passes from one statement to another. Into a parallel loop
/// none does: what is there belongs to one of its iterations.
fn passes_scratch(program: &Program, body: &[Stmt]) -> bool {
    let mut first = BTreeMap::new();
    let mut passes = false;
    for (number, stmt) in body.iter().enumerate() {
        let begins_anew = matches!(stmt, Stmt::For { parallel: true, .. });
        walk::accesses(std::slice::from_ref(stmt), &mut |site| {
            let buffer = site.access.buffer;
            let is_scratch = matches!(program.buffers[buffer].space, MemorySpace::Scratch);
            let is_known = *first.entry(buffer).or_insert(number) != number;
            passes |= is_scratch && is_known && !begins_anew;
        });
    }
    passes
}

fn split(body: &[Stmt]) -> Split<'_> {
    match body {
        [Stmt::For { axis, parallel: true, body }] => match &body[..] {
            [Stmt::For { axis: inner, parallel: true, body }] if !inner.extent.contains(&axis.var) => {
                Split::Loops(axis, Some(inner), body)
            }
            _ => Split::Loops(axis, None, body),
        },
        [Stmt::Strip { axis, code }] if is_free(code) => Split::Strip(axis, code),
        [Stmt::Contraction(contraction)] => Split::Contraction(contraction),
        _ => Split::Sequential,
    }
}

/// Whether the elements of a strip leave nothing behind but what they store.
fn is_free(code: &InstSeq) -> bool {
    !code.insts.iter().any(|inst| matches!(inst, Inst::Reduce(..) | Inst::Set(..) | Inst::Bind(..)))
}

/// The extents of the loops of a part, multiplied; `None` where they are not known before it runs.
pub(crate) fn iterations(split: Split) -> Option<Dim> {
    match split {
        Split::Loops(axis, None, _) => Some(axis.extent.clone()),
        Split::Loops(axis, Some(inner), _) => Some(&axis.extent * &inner.extent),
        Split::Strip(axis, _) => Some(axis.extent.ceil_div(STRIP_STEP)),
        Split::Sequential | Split::Contraction(_) => None,
    }
}

/// The part of `0..count` that is to be done, as multiples of `step` where the frame says `way`; see [`split_axis`].
pub(crate) fn range(
    f: &mut FuncCtx,
    (begin, end): (Value, Value),
    axis: i64,
    step: i64,
    count: Value,
) -> Result<(Value, Value)> {
    let frame = f.frame()?;
    let set = f.builder.ins().load(types::I64, MemFlagsData::trusted(), frame, frame::SPLIT_AXIS);
    let mine = f.builder.ins().icmp_imm_s(IntCC::Equal, set, axis);
    let zero = f.int(0);
    let (first, last) = (f.builder.ins().imul_imm_s(begin, step), f.builder.ins().imul_imm_s(end, step));
    let last = f.builder.ins().smin(last, count);
    Ok((f.builder.ins().select(mine, first, zero), f.builder.ins().select(mine, last, count)))
}
