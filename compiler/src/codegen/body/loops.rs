//! Statements of kernels as control flow: loops, branches, strips and contractions.
//!
//! Microkernels take over strips and contractions wherever they support the code. The scalar form here and in
//! [`super::scalar_contraction`] supports every type and every index, and tests compare the microkernels with it.

use super::{
    block::{self, BlockContext},
    column_split::{COLUMN_STEP, ColumnSplit},
    scalar_contraction,
    split::{ContractionPart, IterationRange, KernelPart, ParallelNest, PartSplit, STRIP_STEP},
    strip_call::Retry,
    strips::{self, StripOutcome},
    tiles,
};
use crate::{
    codegen::function::FuncCtx,
    error::{Error, Result},
    kernel::{Axis, Contraction, Inst, InstSeq, Kernel, Local, Stmt, hoist},
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use cranelift_frontend::Variable;

/// Emits the function of a kernel part, `(frame, begin, end, copy)`, where the range is that of its [`PartSplit`].
///
/// Returns whether the function heeds the range. A function that does not must be called once, for everything.
pub(crate) fn part(f: &mut FuncCtx, kernel: &Kernel, part: &KernelPart, params: &[Value]) -> Result<bool> {
    let [frame, begin, end, copy] = *params else {
        return Err(Error::internal("the function of a part has four parameters"));
    };
    let range = IterationRange { begin, end };
    f.set_frame(frame);
    let copy = f.ins().uextend(types::I64, copy);
    f.set_copy(copy);
    f.declare_locals(kernel.locals.iter().map(|(local, dtype)| (local, *dtype)));

    let mut is_divisible = true;
    match &part.split {
        PartSplit::Sequential => {
            is_divisible = false;
            emit_all(f, kernel, part.body, None)?;
        }
        PartSplit::Loops(nest) => emit_joint_range(f, kernel, nest, 0, range)?,
        PartSplit::Strip { axis, code } => {
            let range = strip_range(f, axis, range)?;
            emit_strip(f, kernel, axis, Some(range), code)?;
        }
        PartSplit::Contraction(contraction) => {
            is_divisible = emit_contraction(f, kernel, contraction, ContractionPart::OfFrame(range))?;
        }
    }
    f.ins().return_(&[]);
    Ok(is_divisible)
}

/// The elements of a strip in a range that counts units of [`STRIP_STEP`].
fn strip_range(f: &mut FuncCtx, axis: &Axis, range: IterationRange) -> Result<IterationRange> {
    let extent = f.dim(&axis.extent)?;
    let begin = f.ins().imul_imm_s(range.begin, STRIP_STEP);
    let end = f.ins().imul_imm_s(range.end, STRIP_STEP);
    let end = f.ins().smin(end, extent);
    Ok(IterationRange { begin, end })
}

/// Emits the iterations of a loop in `range`, each restricted to `columns` if there are some.
fn emit_range(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    range: IterationRange,
    body: &[Stmt],
    columns: Option<IterationRange>,
) -> Result<()> {
    let call = if f.unit.has_microkernels() {
        strips::emit_rows(f, kernel, axis, range, columns, body)?
    } else {
        None
    };
    unless_done(f, call, |f, retry| {
        f.for_axis_range(axis, range.begin, range.end, |f| match retry {
            Some(Retry::Checks) => emit_checks(f, kernel, body),
            Some(Retry::Strip) | None => emit_all(f, kernel, body, columns),
        })
    })
}

/// Emits the checks in the strips of a loop.
fn emit_checks(f: &mut FuncCtx, kernel: &Kernel, body: &[Stmt]) -> Result<()> {
    for stmt in body {
        if let Stmt::Strip { axis, code } = stmt
            && let Some(checks) = hoist::checks(code)
        {
            emit_scalar_strip(f, kernel, axis, None, &checks)?;
        }
    }
    Ok(())
}

/// Emits the joint iterations in `range` of the nest's loops from `depth` on. Iteration `i` is step `i / extent` of the
/// outermost loop and iteration `i % extent` inside of it, where `extent` is the number of iterations inside.
///
/// This takes one division for each loop and bound of the range, not one for each iteration: the outer loop runs over
/// the steps that the range touches, and the first and last of them run a part of the iterations inside.
fn emit_joint_range(
    f: &mut FuncCtx,
    kernel: &Kernel,
    nest: &ParallelNest,
    depth: usize,
    range: IterationRange,
) -> Result<()> {
    let axis = match (&nest.loops[depth..], &nest.columns) {
        ([], None) => return emit_all(f, kernel, nest.body, None),
        ([], Some(columns)) => return emit_column_units(f, kernel, columns, range),
        ([axis], None) => return emit_range(f, kernel, axis, range, nest.body, None),
        ([axis, ..], _) => axis,
    };

    let IterationRange { begin, end } = range;
    let extent = f.dim(&nest.count(depth + 1))?;
    // A division by an empty loop's extent would trap; its range is empty, so any divisor will do.
    let one = f.int(1);
    let divisor = f.ins().smax(extent, one);
    let first = f.ins().udiv(begin, divisor);
    let padded_end = f.ins().iadd(end, divisor);
    let padded_end = f.ins().iadd_imm_s(padded_end, -1);
    let last = f.ins().udiv(padded_end, divisor);

    f.for_axis_range(axis, first, last, |f| {
        let (step, _) = f.symbol(&axis.var)?;
        let skipped = f.ins().imul(step, extent);
        let begin = f.ins().isub(begin, skipped);
        let end = f.ins().isub(end, skipped);
        let zero = f.int(0);
        let begin = f.ins().smax(begin, zero);
        let end = f.ins().smin(end, extent);
        emit_joint_range(f, kernel, nest, depth + 1, IterationRange { begin, end })
    })
}

/// Emits the preamble of a body, and the units of its columns in `range`.
fn emit_column_units(
    f: &mut FuncCtx,
    kernel: &Kernel,
    split: &ColumnSplit,
    range: IterationRange,
) -> Result<()> {
    emit_all(f, kernel, split.preamble, None)?;
    let begin = f.ins().imul_imm_s(range.begin, COLUMN_STEP);
    let end = f.ins().imul_imm_s(range.end, COLUMN_STEP);
    let all = f.int(split.columns);
    let end = f.ins().smin(end, all);
    emit_all(f, kernel, split.divided, Some(IterationRange { begin, end }))
}

/// Emits statements, restricted to `columns` if there are some. All their strips and contractions have these columns.
fn emit_all(f: &mut FuncCtx, kernel: &Kernel, body: &[Stmt], columns: Option<IterationRange>) -> Result<()> {
    body.iter().try_for_each(|stmt| emit(f, kernel, stmt, columns))
}

fn emit(f: &mut FuncCtx, kernel: &Kernel, stmt: &Stmt, columns: Option<IterationRange>) -> Result<()> {
    match stmt {
        Stmt::For { axis, body, .. } => emit_for(f, kernel, axis, body, columns),
        Stmt::Block(code) => block::emit(f, kernel, code, &BlockContext::default()),
        Stmt::Strip { axis, code } => emit_strip(f, kernel, axis, columns, code),
        Stmt::Contraction(contraction) => {
            let part = columns.map_or(ContractionPart::Whole, ContractionPart::Columns);
            emit_contraction(f, kernel, contraction, part).map(|_| ())
        }
        Stmt::If { cond, then, otherwise } => emit_if(f, kernel, *cond, [then, otherwise], columns),
        Stmt::While { cond, body } => emit_while(f, kernel, *cond, body, columns),
    }
}

fn emit_for(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    body: &[Stmt],
    columns: Option<IterationRange>,
) -> Result<()> {
    let begin = f.int(0);
    let end = f.dim(&axis.extent)?;
    emit_range(f, kernel, axis, IterationRange { begin, end }, body, columns)
}

fn emit_if(
    f: &mut FuncCtx,
    kernel: &Kernel,
    cond: Local,
    [then, otherwise]: [&[Stmt]; 2],
    columns: Option<IterationRange>,
) -> Result<()> {
    let cond = f.local(cond)?;
    f.branch(cond, |f| emit_all(f, kernel, then, columns), |f| emit_all(f, kernel, otherwise, columns))
}

fn emit_while(
    f: &mut FuncCtx,
    kernel: &Kernel,
    cond: Local,
    body: &[Stmt],
    columns: Option<IterationRange>,
) -> Result<()> {
    let inside = f.create_block();
    let after = f.create_block();
    let first = f.local(cond)?;
    let exit = f.ins().brif(first, inside, &[], after, &[]);

    f.switch_to_block(inside);
    f.push_scope(exit);
    emit_all(f, kernel, body, columns)?;
    let again = f.local(cond)?;
    f.ins().brif(again, inside, &[], after, &[]);
    f.pop_scope();
    f.builder.seal_block(inside);

    f.switch_to_block(after);
    f.builder.seal_block(after);
    Ok(())
}

/// A reduction of a strip: the local variable that gets the result, and the accumulator.
struct StripReduction {
    local: Local,
    accumulator: Variable,
}

/// Emits a strip, or its elements in `range`.
fn emit_strip(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    range: Option<IterationRange>,
    code: &InstSeq,
) -> Result<()> {
    let call =
        if f.unit.has_microkernels() { strips::emit_strip(f, kernel, axis, range, code)? } else { None };
    unless_done(f, call, |f, retry| {
        let checks = retry.filter(|retry| matches!(retry, Retry::Checks)).and_then(|_| hoist::checks(code));
        emit_scalar_strip(f, kernel, axis, range, checks.as_ref().unwrap_or(code))
    })
}

/// Emits `scalar` as the whole code if there was no call, or for the case that a check of the call failed. It gets the
/// way to find the failure.
fn unless_done(
    f: &mut FuncCtx,
    call: Option<StripOutcome>,
    scalar: impl FnOnce(&mut FuncCtx, Option<Retry>) -> Result<()>,
) -> Result<()> {
    let (failed, retry) = match call {
        None => return scalar(f, None),
        Some(StripOutcome::Done) => return Ok(()),
        Some(StripOutcome::MayFail(failed, retry)) => (failed, retry),
    };
    f.when(failed, |f| {
        f.mark_cold();
        scalar(f, Some(retry))
    })
}

/// Emits a strip as a loop over scalar code.
fn emit_scalar_strip(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    range: Option<IterationRange>,
    code: &InstSeq,
) -> Result<()> {
    let reductions = declare_accumulators(f, kernel, code);
    let accumulators = reductions.iter().map(|reduction| reduction.accumulator).collect();
    let context = BlockContext { accumulators, ..BlockContext::default() };
    let range = match range {
        Some(range) => range,
        None => {
            let begin = f.int(0);
            let end = f.dim(&axis.extent)?;
            IterationRange { begin, end }
        }
    };
    f.for_axis_range(axis, range.begin, range.end, |f| block::emit(f, kernel, code, &context))?;

    for reduction in reductions {
        let value = f.builder.use_var(reduction.accumulator);
        f.set_local(reduction.local, value)?;
    }
    Ok(())
}

/// Declares an accumulator for each reduction in the code, and sets it to the neutral element.
fn declare_accumulators(f: &mut FuncCtx, kernel: &Kernel, code: &InstSeq) -> Vec<StripReduction> {
    let mut reductions = Vec::new();
    for inst in &code.insts {
        let Inst::Reduce(op, _, local) = inst else { continue };
        let dtype = kernel.locals[*local];
        let accumulator = f.builder.declare_var(FuncCtx::reg_type(dtype));
        let neutral = f.neutral(*op, dtype);
        f.builder.def_var(accumulator, neutral);
        reductions.push(StripReduction { local: *local, accumulator });
    }
    reductions
}

/// Emits a contraction, or a part of it. Returns whether the code heeds the part: the scalar loops compute everything.
fn emit_contraction(
    f: &mut FuncCtx,
    kernel: &Kernel,
    contraction: &Contraction,
    part: ContractionPart,
) -> Result<bool> {
    if f.unit.has_microkernels() && tiles::contraction(f, kernel, contraction, part)? {
        return Ok(true);
    }
    scalar_contraction::emit(f, kernel, contraction)?;
    Ok(false)
}
