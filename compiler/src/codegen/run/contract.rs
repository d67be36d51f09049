//! `check`, from the guards of [`crate::kernel::contract`]: binds the symbols, or describes the violation.

use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame, report_error},
    error::{Error, ErrorKind, Result},
    kernel::contract::{
        Condition, Contract, DeclaredSymbol, Failure, InputAxis, RelationGuard, SymbolBinding, SymbolGuard,
        ValueSource,
    },
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::{FuncId, Linkage};
use symshape::{Comparison, Dim, Symbol};
use symshape_runtime::abi;

/// Emits `check(input_shapes, dims, err) -> code`.
pub(crate) fn check(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let Contract { bindings, axes, relations, .. } = unit.contract;
    let name = unit.symbol("check");
    let id = unit.declare(&name, Linkage::Export, &[types::I64; 3], &[types::I32])?;
    unit.define(id, |f, params| {
        let report = report(f, params[2]);
        for binding in bindings {
            bind(f, report, params[0], binding)?;
        }
        for axis in axes {
            let (met, expected) = (axis_value(f, params[0], axis.axis), f.dim(&axis.dim)?);
            let equal = f.ins().icmp(IntCC::Equal, met, expected);
            require(f, report, equal, &axis.failure, [met, expected, expected])?;
        }
        check_relations(f, report, relations)?;
        let program = f.unit.program;
        for idx in 0..program.data_dependent.len() {
            let unknown = f.int(abi::UNKNOWN_DIM);
            let at = 8 * (program.symbols.len() + idx) as i32;
            f.store_at(unknown, params[1], at);
        }
        for (idx, symbol) in program.symbols.iter().enumerate() {
            let value = f.dim(&Dim::from(symbol))?;
            f.store_at(value, params[1], 8 * idx as i32);
        }
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// The beginning of a frame for [`report_error::emit`], with room for an error if the caller passed none.
fn report(f: &mut FuncCtx, error: Value) -> Value {
    let slot = f.slot(16 + size_of::<abi::Error>(), 16);
    let (frame, unseen) = (f.ins().stack_addr(types::I64, slot, 0), f.ins().stack_addr(types::I64, slot, 16));
    let error = f.ins().select(error, error, unseen);
    let zero = f.int(0);
    f.store_at(error, frame, frame::ERROR);
    f.store_at(zero, frame, frame::FAILED);
    frame
}

fn bind(f: &mut FuncCtx, report: Value, shapes: Value, binding: &SymbolBinding) -> Result<()> {
    let value = match &binding.source {
        ValueSource::Fixed(value) => f.int(*value),
        ValueSource::Axis { axis, coefficient, rest, if_zero, inexact } => {
            let value = axis_value(f, shapes, *axis);
            let solved = quotient(f, report, inexact, value, coefficient, rest)?;
            free_where_zero(f, *if_zero, coefficient, solved)?
        }
    };
    accept_symbol(f, report, value, &binding.declared)
}

/// Checks a symbol's value and binds the symbol to it. Later code relies on the declaration.
pub(crate) fn accept_symbol(
    f: &mut FuncCtx,
    report: Value,
    value: Value,
    declared: &DeclaredSymbol,
) -> Result<()> {
    let symbol = &declared.symbol;
    for guard in &declared.guards {
        check_symbol_guard(f, report, symbol, value, guard)?;
    }
    f.bind(symbol.clone(), value);
    if let Some(declaration) = declared.declaration.clone() {
        let known = f.facts_mut().declare(symbol, declaration);
        known.map_err(|error| Error::new(ErrorKind::Contract, error.to_string()))?;
    }
    Ok(())
}

/// The symbol's value if its coefficient is zero, where there is one, else the solution.
fn free_where_zero(f: &mut FuncCtx, free: Option<i64>, coefficient: &Dim, solved: Value) -> Result<Value> {
    let Some(free) = free else { return Ok(solved) };
    let (free, coefficient) = (f.int(free), f.dim(coefficient)?);
    let is_zero = f.ins().icmp_imm_s(IntCC::Equal, coefficient, 0);
    Ok(f.ins().select(is_zero, free, solved))
}

/// `(value - rest) / coefficient`, which must be exact; the dividend's own value where the coefficient is zero.
fn quotient(
    f: &mut FuncCtx,
    report: Value,
    failure: &Failure,
    value: Value,
    coefficient: &Dim,
    rest: &Dim,
) -> Result<Value> {
    let rest = f.dim(rest)?;
    let difference = f.ins().isub(value, rest);
    if coefficient.as_i64() == Some(1) {
        return Ok(difference);
    }
    let divisor = f.dim(coefficient)?;
    let one = f.int(1);
    let is_zero = f.ins().icmp_imm_s(IntCC::Equal, divisor, 0);
    let safe = f.ins().select(is_zero, one, divisor);
    // The least integer divided by -1 would trap; no dim comes near it.
    let least = f.int(-i64::MAX);
    let difference = f.ins().smax(difference, least);
    let quotient = f.ins().sdiv(difference, safe);
    let back = f.ins().imul(quotient, safe);
    let exact = f.ins().icmp(IntCC::Equal, back, difference);
    let below = f.ins().iadd(back, rest);
    require(f, report, exact, failure, [value, below, below])?;
    Ok(quotient)
}

fn axis_value(f: &mut FuncCtx, shapes: Value, InputAxis { input, axis }: InputAxis) -> Value {
    let shape = f.load_word(shapes, 8 * input as i32);
    f.load_word(shape, 8 * axis as i32)
}

/// Leaves the function with the failure where `good` does not hold; `numbers`: value, lo, hi.
pub(crate) fn require(
    f: &mut FuncCtx,
    report: Value,
    good: Value,
    failure: &Failure,
    numbers: [Value; 3],
) -> Result<()> {
    let (bad, next) = (f.create_block(), f.create_block());
    f.builder.set_cold_block(bad);
    f.ins().brif(good, next, &[], bad, &[]);
    f.switch_to_block(bad);
    f.builder.seal_block(bad);
    let [value, lo, hi] = numbers;
    report_error::emit(f, report, failure, value, lo, hi)?;
    f.return_code(failure.code as i64);
    f.switch_to_block(next);
    f.builder.seal_block(next);
    Ok(())
}

/// Emits the comparison of a symbol's value with one thing declared about it.
fn check_symbol_guard(
    f: &mut FuncCtx,
    report: Value,
    symbol: &Symbol,
    value: Value,
    guard: &SymbolGuard,
) -> Result<()> {
    let (lo, hi) = (f.int(guard.range.0), f.int(guard.range.1));
    let good = match &guard.condition {
        Condition::InRange => {
            let not_below = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, value, lo);
            let not_above = f.ins().icmp(IntCC::SignedLessThanOrEqual, value, hi);
            f.ins().band(not_below, not_above)
        }
        Condition::OneOf(values) => {
            let idx = f.unit.program.symbols.iter().position(|known| known == symbol);
            let table = f.unit.table(&format!("values_{}", idx.unwrap_or_default()), values)?;
            is_listed(f, table, values.len(), value)
        }
        Condition::StepOf(step) => {
            // The value is in range, so the difference is not negative.
            let distance = f.ins().isub(value, lo);
            let step = f.int(*step);
            let over = f.ins().urem(distance, step);
            f.ins().icmp_imm_s(IntCC::Equal, over, 0)
        }
    };
    require(f, report, good, &guard.failure, [value, lo, hi])
}

/// Whether a value is among the `len` ones of a table.
fn is_listed(f: &mut FuncCtx, table: cranelift_module::DataId, len: usize, value: Value) -> Value {
    let global = f.global(table);
    let base = f.ins().symbol_value(types::I64, global);
    let (head, after) = (f.create_block(), f.create_block());
    let at = f.builder.append_block_param(head, types::I64);
    let found = f.builder.append_block_param(after, types::I8);
    let end = f.ins().iadd_imm_s(base, 8 * len as i64);
    f.ins().jump(head, &[BlockArg::Value(base)]);
    f.switch_to_block(head);
    let item = f.load_word(at, 0);
    let equal = f.ins().icmp(IntCC::Equal, item, value);
    let next = f.ins().iadd_imm_s(at, 8);
    let last = f.ins().icmp(IntCC::Equal, next, end);
    let stop = f.ins().bor(equal, last);
    f.ins().brif(stop, after, &[BlockArg::Value(equal)], head, &[BlockArg::Value(next)]);
    f.builder.seal_block(head);
    f.builder.seal_block(after);
    f.switch_to_block(after);
    found
}

/// Emits the comparison of relations with the symbols' values.
pub(crate) fn check_relations(f: &mut FuncCtx, report: Value, guards: &[RelationGuard]) -> Result<()> {
    guards.iter().try_for_each(|guard| check_relation(f, report, guard))
}

/// Emits the comparison of one relation with the symbols' values.
pub(crate) fn check_relation(f: &mut FuncCtx, report: Value, guard: &RelationGuard) -> Result<()> {
    let relation = &guard.relation;
    let (a, b) = (f.dim(&relation.a)?, f.dim(&relation.b)?);
    let good = match relation.comparison {
        Comparison::Eq => f.ins().icmp(IntCC::Equal, a, b),
        Comparison::Ne => f.ins().icmp(IntCC::NotEqual, a, b),
        Comparison::Lt => f.ins().icmp(IntCC::SignedLessThan, a, b),
        Comparison::Le => f.ins().icmp(IntCC::SignedLessThanOrEqual, a, b),
        Comparison::Divides => {
            let over = f.dim(&relation.b.modulo(&relation.a))?;
            f.ins().icmp_imm_s(IntCC::Equal, over, 0)
        }
    };
    require(f, report, good, &guard.failure, [a, b, b])
}
