//! Statements as control flow: loops, branches, straight-line code, and the scalar form of the two microkernels.
//!
//! The microkernels' vector forms take over where they can; what is here works for every type and is what they are tested
//! against.

use super::{
    split::{KernelPart, STRIP_STEP, Split},
    strips, tiles,
};
use crate::{
    codegen::function::{FuncCtx, report_error},
    error::{Error, Result},
    kernel::{
        Access, Axis, BufferId, Check, Contraction, Inst, InstSeq, Kernel, Local, Rhs, Stmt,
        contract::Failure,
    },
    scalar::Reg,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use cranelift_frontend::Variable;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// What straight-line code may refer to besides memory and locals.
#[derive(Clone, Default)]
struct BlockContext {
    /// The sum, in the epilogue of a contraction.
    sum: Option<(Value, DType)>,
    /// Accumulators of a strip: one for each reduction in order.
    reductions: Vec<Variable>,
}

/// Emits the function of a part of a kernel: `(frame, begin, end, copy)`; the range is that of its split. True when
/// it can do less than everything.
pub(crate) fn part(f: &mut FuncCtx, kernel: &Kernel, part: &KernelPart, params: &[Value]) -> Result<bool> {
    let [frame, begin, end, copy] = *params else {
        return Err(Error::internal("a part has four parameters"));
    };
    f.set_frame(frame);
    let copy = f.builder.ins().uextend(types::I64, copy);
    f.set_copy(copy);
    f.declare_locals(kernel.locals.iter().map(|(local, dtype)| (local, *dtype)));
    let mut can_share = true;
    match part.split {
        Split::Sequential => {
            can_share = false;
            stmts(f, kernel, part.body)?;
        }
        Split::Loops(axis, None, body) => between(f, kernel, axis, (begin, end), body)?,
        Split::Loops(axis, Some(inner), body) => joint(f, kernel, [axis, inner], (begin, end), body)?,
        Split::Strip(axis, code) => {
            let count = f.dim(&axis.extent)?;
            let (begin, end) =
                (f.builder.ins().imul_imm_s(begin, STRIP_STEP), f.builder.ins().imul_imm_s(end, STRIP_STEP));
            let end = f.builder.ins().smin(end, count);
            strip(f, kernel, axis, Some((begin, end)), code)?;
        }
        Split::Contraction(what) => can_share = emit_contraction(f, kernel, what, Some((begin, end)))?,
    }
    f.builder.ins().return_(&[]);
    Ok(can_share)
}

/// Iterations `begin..end` of a loop.
fn between(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    (begin, end): (Value, Value),
    body: &[Stmt],
) -> Result<()> {
    if f.unit.has_microkernels() && strips::rows(f, kernel, axis, (begin, end), body)? {
        return Ok(());
    }
    f.for_axis_range(axis, begin, end, |f| stmts(f, kernel, body))
}

/// Joint iterations `begin..end` of two nested loops, counted from the inner one.
fn joint(
    f: &mut FuncCtx,
    kernel: &Kernel,
    [axis, inner]: [&Axis; 2],
    (begin, end): (Value, Value),
    body: &[Stmt],
) -> Result<()> {
    let extent = f.dim(&inner.extent)?;
    let one = f.int(1);
    let safe = f.builder.ins().smax(extent, one);
    let first = f.builder.ins().udiv(begin, safe);
    let padded = f.builder.ins().iadd(end, safe);
    let padded = f.builder.ins().iadd_imm_s(padded, -1);
    let last = f.builder.ins().udiv(padded, safe);
    f.for_axis_range(axis, first, last, |f| {
        let (at, _) = f.symbol(&axis.var)?;
        let skipped = f.builder.ins().imul(at, extent);
        let (from, to) = (f.builder.ins().isub(begin, skipped), f.builder.ins().isub(end, skipped));
        let zero = f.int(0);
        let (from, to) = (f.builder.ins().smax(from, zero), f.builder.ins().smin(to, extent));
        between(f, kernel, inner, (from, to), body)
    })
}

fn stmts(f: &mut FuncCtx, kernel: &Kernel, body: &[Stmt]) -> Result<()> {
    body.iter().try_for_each(|stmt| emit(f, kernel, stmt))
}

fn emit(f: &mut FuncCtx, kernel: &Kernel, stmt: &Stmt) -> Result<()> {
    match stmt {
        Stmt::For { axis, body, .. } => repeated(f, kernel, axis, body),
        Stmt::Block(block) => code(f, kernel, block, &BlockContext::default()),
        Stmt::Strip { axis, code } => strip(f, kernel, axis, None, code),
        Stmt::Contraction(contraction) => emit_contraction(f, kernel, contraction, None).map(|_| ()),
        Stmt::If { cond, then, otherwise } => branch(f, kernel, *cond, then, otherwise),
        Stmt::While { cond, body } => repeat(f, kernel, *cond, body),
    }
}

fn repeated(f: &mut FuncCtx, kernel: &Kernel, axis: &Axis, body: &[Stmt]) -> Result<()> {
    let (begin, end) = (f.int(0), f.dim(&axis.extent)?);
    between(f, kernel, axis, (begin, end), body)
}

fn branch(f: &mut FuncCtx, kernel: &Kernel, cond: Local, then: &[Stmt], otherwise: &[Stmt]) -> Result<()> {
    let (yes, no, after) = (f.builder.create_block(), f.builder.create_block(), f.builder.create_block());
    let cond = f.local(cond)?;
    let exit = f.builder.ins().brif(cond, yes, &[], no, &[]);
    for (block, body) in [(yes, then), (no, otherwise)] {
        f.builder.switch_to_block(block);
        f.builder.seal_block(block);
        f.push_scope(exit);
        stmts(f, kernel, body)?;
        f.builder.ins().jump(after, &[]);
        f.pop_scope();
    }
    f.builder.switch_to_block(after);
    f.builder.seal_block(after);
    Ok(())
}

fn repeat(f: &mut FuncCtx, kernel: &Kernel, cond: Local, body: &[Stmt]) -> Result<()> {
    let (inside, after) = (f.builder.create_block(), f.builder.create_block());
    let first = f.local(cond)?;
    let exit = f.builder.ins().brif(first, inside, &[], after, &[]);
    f.builder.switch_to_block(inside);
    f.push_scope(exit);
    stmts(f, kernel, body)?;
    let again = f.local(cond)?;
    f.builder.ins().brif(again, inside, &[], after, &[]);
    f.pop_scope();
    f.builder.seal_block(inside);
    f.builder.switch_to_block(after);
    f.builder.seal_block(after);
    Ok(())
}

/// A strip, or its iterations in `range`.
fn strip(
    f: &mut FuncCtx,
    kernel: &Kernel,
    axis: &Axis,
    range: Option<(Value, Value)>,
    body: &InstSeq,
) -> Result<()> {
    if f.unit.has_microkernels() && strips::strip(f, kernel, axis, range, body)? {
        return Ok(());
    }
    let mut around = BlockContext::default();
    let mut results = Vec::new();
    for inst in &body.insts {
        let Inst::Reduce(op, _, local) = inst else { continue };
        let dtype = kernel.locals[*local];
        let acc = f.builder.declare_var(FuncCtx::reg_type(dtype));
        let neutral = f.neutral(*op, dtype);
        f.builder.def_var(acc, neutral);
        around.reductions.push(acc);
        results.push((*local, acc));
    }
    let (begin, end) = match range {
        Some(range) => range,
        None => (f.int(0), f.dim(&axis.extent)?),
    };
    f.for_axis_range(axis, begin, end, |f| code(f, kernel, body, &around))?;
    for (local, acc) in results {
        let value = f.builder.use_var(acc);
        f.set_local(local, value)?;
    }
    Ok(())
}

/// A contraction, or the part of it that the frame and `range` say; true when it took heed of them.
fn emit_contraction(
    f: &mut FuncCtx,
    kernel: &Kernel,
    contraction: &Contraction,
    range: Option<(Value, Value)>,
) -> Result<bool> {
    if f.unit.has_microkernels() && tiles::contraction(f, kernel, contraction, range)? {
        return Ok(true);
    }
    nest(f, &contraction.m, &mut |f| f.for_axis(&contraction.n, |f| element(f, kernel, contraction)))?;
    Ok(false)
}

fn nest(f: &mut FuncCtx, axes: &[Axis], inner: &mut dyn FnMut(&mut FuncCtx) -> Result<()>) -> Result<()> {
    match axes {
        [] => inner(f),
        [axis, rest @ ..] => f.for_axis(axis, |f| nest(f, rest, inner)),
    }
}

/// One element of a contraction's result.
fn element(f: &mut FuncCtx, kernel: &Kernel, contraction: &Contraction) -> Result<()> {
    let ty = FuncCtx::reg_type(contraction.dtype);
    let acc = f.builder.declare_var(ty);
    let zero = f.zero(ty);
    f.builder.def_var(acc, zero);
    let rhs = rhs_access(contraction);
    nest(f, &contraction.k, &mut |f| {
        let (a, b) = (factor(f, contraction, &contraction.lhs)?, factor(f, contraction, &rhs)?);
        let sum = f.builder.use_var(acc);
        let sum = match contraction.dtype.is_float() {
            true => {
                let product = f.builder.ins().fmul(a, b);
                f.builder.ins().fadd(sum, product)
            }
            false => {
                let product = f.builder.ins().imul(a, b);
                f.builder.ins().iadd(sum, product)
            }
        };
        f.builder.def_var(acc, sum);
        Ok(())
    })?;
    let sum = f.builder.use_var(acc);
    let around = BlockContext { sum: Some((sum, contraction.dtype)), ..BlockContext::default() };
    code(f, kernel, &contraction.epilogue, &around)
}

fn factor(f: &mut FuncCtx, contraction: &Contraction, access: &Access) -> Result<Value> {
    let dtype = dtype_of(f, access.buffer);
    let address = f.address(access)?;
    let value = f.load(dtype, address, 0);
    Ok(f.cast(dtype, contraction.dtype, value))
}

/// Where the right factor lies, as one expression over the variables of the contraction.
fn rhs_access(contraction: &Contraction) -> Access {
    let (buffer, base, width) = match &contraction.rhs {
        Rhs::Indexed(access) => return access.clone(),
        Rhs::Panels { buffer, base, width } => (*buffer, base, i64::from(*width)),
    };
    let row = contraction.k.iter().fold(Dim::zero(), |row, axis| row * &axis.extent + Dim::from(&axis.var));
    let n = Dim::from(&contraction.n.var);
    let at = base + (n.floor_div(width) * contraction.depth() + row) * width + n.modulo(width);
    Access { buffer, index: at }
}

fn dtype_of(f: &FuncCtx, buffer: BufferId) -> DType {
    f.unit.program.buffers[buffer].dtype
}

/// The registers of a piece of code while it is emitted.
struct Regs {
    values: Vec<Option<(Value, DType)>>,
    /// Ranges that registers were checked to be in.
    checked: Vec<(Reg, Dim, Dim)>,
    reductions: usize,
}

impl Regs {
    fn get(&self, reg: Reg) -> Result<(Value, DType)> {
        let value = self.values.get(reg.0 as usize).copied().flatten();
        value.ok_or_else(|| Error::internal(format!("r{} has no value", reg.0)))
    }
}

fn code(f: &mut FuncCtx, kernel: &Kernel, code: &InstSeq, around: &BlockContext) -> Result<()> {
    let values = Vec::with_capacity(code.insts.len());
    let mut regs = Regs { values, checked: Vec::new(), reductions: 0 };
    for inst in &code.insts {
        let value = instruction(f, kernel, inst, around, &mut regs)?;
        regs.values.push(value);
    }
    Ok(())
}

fn instruction(
    f: &mut FuncCtx,
    kernel: &Kernel,
    inst: &Inst,
    around: &BlockContext,
    regs: &mut Regs,
) -> Result<Option<(Value, DType)>> {
    Ok(match inst {
        Inst::Const(scalar) => Some((f.constant(*scalar), scalar.dtype())),
        Inst::Index(dtype, dim) => {
            let value = f.dim(dim)?;
            Some((f.cast(DType::I64, *dtype, value), *dtype))
        }
        Inst::Load(access) => {
            let (dtype, address) = (dtype_of(f, access.buffer), f.address(access)?);
            Some((f.load(dtype, address, 0), dtype))
        }
        Inst::Bind(symbol, reg) => {
            bind(f, symbol, *reg, regs)?;
            None
        }
        Inst::Sum => Some(around.sum.ok_or_else(|| Error::internal("a sum outside an epilogue"))?),
        Inst::Get(local) => Some((f.local(*local)?, kernel.locals[*local])),
        Inst::Set(local, reg) => {
            f.set_local(*local, regs.get(*reg)?.0)?;
            None
        }
        Inst::Unary(op, x) => {
            let (x, dtype) = regs.get(*x)?;
            let bool = matches!(op, crate::scalar::UnaryOp::IsNan | crate::scalar::UnaryOp::IsInf);
            Some((f.unary(*op, dtype, x)?, if bool { DType::Bool } else { dtype }))
        }
        Inst::Binary(op, a, b) => {
            let ((a, dtype), (b, _)) = (regs.get(*a)?, regs.get(*b)?);
            Some((f.binary(*op, dtype, a, b)?, dtype))
        }
        Inst::Compare(op, a, b) => {
            let ((a, dtype), (b, _)) = (regs.get(*a)?, regs.get(*b)?);
            Some((f.compare(*op, dtype, a, b), DType::Bool))
        }
        Inst::Select(cond, yes, no) => {
            let ((cond, _), (yes, dtype), (no, _)) = (regs.get(*cond)?, regs.get(*yes)?, regs.get(*no)?);
            Some((f.select(cond, yes, no), dtype))
        }
        Inst::Cast(dtype, reg) => {
            let (value, from) = regs.get(*reg)?;
            Some((f.cast(from, *dtype, value), *dtype))
        }
        Inst::Bits(dtype, reg) => {
            let (value, from) = regs.get(*reg)?;
            Some((f.bits(from, *dtype, value), *dtype))
        }
        Inst::Store(access, reg) => {
            let (value, dtype) = regs.get(*reg)?;
            let address = f.address(access)?;
            f.store(dtype, value, address, 0);
            None
        }
        Inst::Reduce(op, reg, _) => {
            let ((value, dtype), acc) = (regs.get(*reg)?, around.reductions[regs.reductions]);
            regs.reductions += 1;
            let old = f.builder.use_var(acc);
            let new = f.reduce(*op, dtype, old, value)?;
            f.builder.def_var(acc, new);
            None
        }
        Inst::Check(what) => {
            check(f, what, regs)?;
            None
        }
    })
}

fn bind(f: &mut FuncCtx, symbol: &Symbol, reg: Reg, regs: &Regs) -> Result<()> {
    let (value, dtype) = regs.get(reg)?;
    let value = f.widened(value, types::I64, dtype.is_signed_int());
    f.bind(symbol.clone(), value);
    for (_, lo, end) in regs.checked.iter().filter(|(checked, ..)| *checked == reg) {
        f.facts_mut().declare_between(symbol, lo, &(end - 1));
    }
    Ok(())
}

/// Leaves the kernel when a value is out of its range; the first worker that meets one says so.
fn check(f: &mut FuncCtx, check: &Check, regs: &mut Regs) -> Result<()> {
    let (value, dtype) = regs.get(check.value)?;
    let value = f.widened(value, types::I64, dtype.is_signed_int());
    let (lo, end) = (f.dim(&check.lo)?, f.dim(&check.end)?);
    let (bad, good) = (f.builder.create_block(), f.builder.create_block());
    f.builder.set_cold_block(bad);
    let not_below = f.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, value, lo);
    let below_end = f.builder.ins().icmp(IntCC::SignedLessThan, value, end);
    let both = f.builder.ins().band(not_below, below_end);
    f.builder.ins().brif(both, good, &[], bad, &[]);
    f.builder.switch_to_block(bad);
    f.builder.seal_block(bad);
    let failure = Failure::index_out_of_bounds(&check.context);
    let hi = f.builder.ins().iadd_imm_s(end, -1);
    let frame = f.frame()?;
    report_error::emit(f, frame, &failure, value, lo, hi)?;
    f.builder.ins().return_(&[]);
    f.builder.switch_to_block(good);
    f.builder.seal_block(good);
    regs.checked.push((check.value, check.lo.clone(), check.end.clone()));
    Ok(())
}
