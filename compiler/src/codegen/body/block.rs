//! Straight-line code of kernels, one Cranelift value for each register.

use crate::{
    codegen::function::{FuncCtx, report_error},
    error::{Error, Result},
    kernel::{Check, Inst, InstSeq, Kernel, contract::Failure},
    scalar::{Reg, UnaryOp},
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use cranelift_frontend::Variable;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// Values of the loop around a block that its code refers to.
#[derive(Clone, Default)]
pub(super) struct BlockContext {
    /// The sum, in the epilogue of a contraction.
    pub(super) sum: Option<Accumulator>,
    /// The accumulators of a strip: one for each reduction, in the order of the code.
    pub(super) accumulators: Vec<Variable>,
}

/// The final sum of one element of a contraction.
#[derive(Clone, Copy)]
pub(super) struct Accumulator {
    pub(super) value: Value,
    pub(super) dtype: DType,
}

/// The value of a register.
#[derive(Clone, Copy)]
struct TypedValue {
    value: Value,
    dtype: DType,
}

/// A range in which a register's value is, because code before checked it.
struct CheckedRange {
    reg: Reg,
    lo: Dim,
    /// Exclusive.
    end: Dim,
}

/// The registers of a block while it is emitted.
struct Registers {
    /// `None` for instructions without a result.
    values: Vec<Option<TypedValue>>,
    checked: Vec<CheckedRange>,
    /// Number of reductions so far.
    n_reductions: usize,
}

impl Registers {
    fn get(&self, reg: Reg) -> Result<TypedValue> {
        let value = self.values.get(reg.0 as usize).copied().flatten();
        value.ok_or_else(|| Error::internal(format!("r{} has no value", reg.0)))
    }
}

/// Emits straight-line code.
pub(super) fn emit(f: &mut FuncCtx, kernel: &Kernel, code: &InstSeq, context: &BlockContext) -> Result<()> {
    let values = Vec::with_capacity(code.insts.len());
    let mut regs = Registers { values, checked: Vec::new(), n_reductions: 0 };
    for inst in &code.insts {
        let result = emit_inst(f, kernel, inst, context, &mut regs)?;
        regs.values.push(result);
    }
    Ok(())
}

/// Emits one instruction. Returns its result, if it has one.
fn emit_inst(
    f: &mut FuncCtx,
    kernel: &Kernel,
    inst: &Inst,
    context: &BlockContext,
    regs: &mut Registers,
) -> Result<Option<TypedValue>> {
    let (value, dtype) = match inst {
        Inst::Set(..) | Inst::Store(..) | Inst::Reduce(..) | Inst::Bind(..) | Inst::Check(_) => {
            emit_effect(f, inst, context, regs)?;
            return Ok(None);
        }
        Inst::Const(scalar) => (f.constant(*scalar), scalar.dtype()),
        Inst::Index(dtype, dim) => {
            let value = f.dim(dim)?;
            (f.cast(DType::I64, *dtype, value), *dtype)
        }
        Inst::Load(access) => {
            let dtype = f.unit.program.buffers[access.buffer].dtype;
            let address = f.address(access)?;
            (f.load(dtype, address, 0), dtype)
        }
        Inst::Sum => {
            let sum = context.sum.ok_or_else(|| Error::internal("a sum outside of an epilogue"))?;
            (sum.value, sum.dtype)
        }
        Inst::Get(local) => (f.local(*local)?, kernel.locals[*local]),
        Inst::Unary(op, x) => {
            let x = regs.get(*x)?;
            let is_predicate = matches!(op, UnaryOp::IsNan | UnaryOp::IsInf);
            let dtype = if is_predicate { DType::Bool } else { x.dtype };
            (f.unary(*op, x.dtype, x.value)?, dtype)
        }
        Inst::Binary(op, a, b) => {
            let a = regs.get(*a)?;
            let b = regs.get(*b)?;
            (f.binary(*op, a.dtype, a.value, b.value)?, a.dtype)
        }
        Inst::Compare(op, a, b) => {
            let a = regs.get(*a)?;
            let b = regs.get(*b)?;
            (f.compare(*op, a.dtype, a.value, b.value), DType::Bool)
        }
        Inst::Select(cond, then, otherwise) => {
            let cond = regs.get(*cond)?;
            let then = regs.get(*then)?;
            let otherwise = regs.get(*otherwise)?;
            (f.select(cond.value, then.value, otherwise.value), then.dtype)
        }
        Inst::Cast(dtype, reg) => {
            let from = regs.get(*reg)?;
            (f.cast(from.dtype, *dtype, from.value), *dtype)
        }
        Inst::Bits(dtype, reg) => {
            let from = regs.get(*reg)?;
            (f.bits(from.dtype, *dtype, from.value), *dtype)
        }
    };
    Ok(Some(TypedValue { value, dtype }))
}

/// Emits an instruction without a result.
fn emit_effect(f: &mut FuncCtx, inst: &Inst, context: &BlockContext, regs: &mut Registers) -> Result<()> {
    match inst {
        Inst::Set(local, reg) => f.set_local(*local, regs.get(*reg)?.value),
        Inst::Store(access, reg) => {
            let stored = regs.get(*reg)?;
            let address = f.address(access)?;
            f.store(stored.dtype, stored.value, address, 0);
            Ok(())
        }
        Inst::Reduce(op, reg, _) => {
            let operand = regs.get(*reg)?;
            let accumulator = context.accumulators[regs.n_reductions];
            regs.n_reductions += 1;
            let old = f.builder.use_var(accumulator);
            let new = f.reduce(*op, operand.dtype, old, operand.value)?;
            f.builder.def_var(accumulator, new);
            Ok(())
        }
        Inst::Bind(symbol, reg) => bind(f, symbol, *reg, regs),
        Inst::Check(check) => emit_check(f, check, regs),
        _ => Err(Error::internal("an instruction with a result")),
    }
}

/// Binds a symbol to a register. Later code relies on the ranges that the register was checked to be in.
fn bind(f: &mut FuncCtx, symbol: &Symbol, reg: Reg, regs: &Registers) -> Result<()> {
    let bound = regs.get(reg)?;
    let value = f.widened(bound.value, types::I64, bound.dtype.is_signed_int());
    f.bind(symbol.clone(), value);
    for range in regs.checked.iter().filter(|range| range.reg == reg) {
        f.facts_mut().declare_between(symbol, &range.lo, &(&range.end - 1));
    }
    Ok(())
}

/// Emits a guard: the function reports an error and returns if the value is out of its range. If several threads fail,
/// the first report counts.
fn emit_check(f: &mut FuncCtx, check: &Check, regs: &mut Registers) -> Result<()> {
    let checked = regs.get(check.value)?;
    let value = f.widened(checked.value, types::I64, checked.dtype.is_signed_int());
    let lo = f.dim(&check.lo)?;
    let end = f.dim(&check.end)?;
    let is_within = f.is_within(value, lo, end);
    f.leave_unless(is_within, |f| {
        let failure = Failure::index_out_of_bounds(&check.context);
        let hi = f.ins().iadd_imm_s(end, -1);
        let frame = f.frame()?;
        report_error::emit(f, frame, &failure, value, lo, hi)?;
        f.ins().return_(&[]);
        Ok(())
    })?;

    regs.checked.push(CheckedRange { reg: check.value, lo: check.lo.clone(), end: check.end.clone() });
    Ok(())
}
