//! `check`, from the guards of the call contract: binds the symbols to the sizes of the inputs, or reports the failed
//! guard.
//!
//! [`crate::kernel::contract`] derives the guards, in an order in which each refers only to symbols that are bound
//! already. The driver reuses the guards on symbols and relations from here, because it checks the dims again.

use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame, report_error},
    error::{Error, ErrorKind, Result},
    kernel::contract::{
        AxisGuard, Condition, Contract, DeclaredSymbol, Failure, InputAxis, RelationGuard, SymbolBinding,
        SymbolGuard, ValueSource,
    },
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Value, condcodes::IntCC, types};
use cranelift_module::{DataId, FuncId, Linkage};
use symshape::{Comparison, Dim, Symbol};
use symshape_runtime::abi;

/// Emits `check(input_shapes, dims, err) -> code`.
pub(crate) fn check(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let Contract { bindings, axes, relations, .. } = unit.contract;
    let name = unit.symbol("check");
    let id = unit.declare(&name, Linkage::Export, &[types::I64; 3], &[types::I32])?;
    unit.define(id, |f, params| {
        let [shapes, dims, error] = *params else {
            return Err(Error::internal("`check` has three parameters"));
        };
        let report = report_frame(f, error);

        for binding in bindings {
            bind(f, report, shapes, binding)?;
        }
        for axis in axes {
            check_axis(f, report, shapes, axis)?;
        }
        check_relations(f, report, relations)?;

        store_dims(f, dims)?;
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// Stores the values of all symbols in the caller's dims. Data-dependent symbols have no value before the call.
fn store_dims(f: &mut FuncCtx, dims: Value) -> Result<()> {
    let program = f.unit.program;
    for idx in 0..program.data_dependent.len() {
        let unknown = f.int(abi::UNKNOWN_DIM);
        let offset = 8 * (program.symbols.len() + idx) as i32;
        f.store_at(unknown, dims, offset);
    }
    for (idx, symbol) in program.symbols.iter().enumerate() {
        let value = f.dim(&Dim::from(symbol))?;
        f.store_at(value, dims, 8 * idx as i32);
    }
    Ok(())
}

/// The beginning of a frame for [`report_error::emit`], and memory for an error in case the caller passed none.
fn report_frame(f: &mut FuncCtx, error: Value) -> Value {
    let slot = f.slot(16 + size_of::<abi::Error>(), 16);
    let frame = f.ins().stack_addr(types::I64, slot, 0);
    let own_error = f.ins().stack_addr(types::I64, slot, 16);
    let error = f.ins().select(error, error, own_error);
    let zero = f.int(0);
    f.store_fields(frame, &[(error, frame::ERROR), (zero, frame::FAILED)]);
    frame
}

/// Emits the guard that an axis has its declared size.
fn check_axis(f: &mut FuncCtx, report: Value, shapes: Value, guard: &AxisGuard) -> Result<()> {
    let actual = axis_size(f, shapes, guard.axis);
    let expected = f.dim(&guard.dim)?;
    let is_equal = f.ins().icmp(IntCC::Equal, actual, expected);
    require(f, report, is_equal, &guard.failure, [actual, expected, expected])
}

/// Binds a symbol to its value, which follows from the size of an axis.
fn bind(f: &mut FuncCtx, report: Value, shapes: Value, binding: &SymbolBinding) -> Result<()> {
    let value = match &binding.source {
        ValueSource::Fixed(value) => f.int(*value),
        ValueSource::Axis { axis, coefficient, rest, if_zero, inexact } => {
            let size = axis_size(f, shapes, *axis);
            let solution = exact_quotient(f, report, inexact, size, coefficient, rest)?;
            unless_zero(f, *if_zero, coefficient, solution)?
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
        check_symbol(f, report, symbol, value, guard)?;
    }

    f.bind(symbol.clone(), value);
    if let Some(declaration) = declared.declaration.clone() {
        let declared = f.facts_mut().declare(symbol, declaration);
        declared.map_err(|error| Error::new(ErrorKind::Contract, error.to_string()))?;
    }
    Ok(())
}

/// The solution, or `if_zero` if the coefficient is zero: any value of the symbol then solves the equation.
fn unless_zero(f: &mut FuncCtx, if_zero: Option<i64>, coefficient: &Dim, solution: Value) -> Result<Value> {
    let Some(if_zero) = if_zero else { return Ok(solution) };
    let if_zero = f.int(if_zero);
    let coefficient = f.dim(coefficient)?;
    let is_zero = f.ins().icmp_imm_s(IntCC::Equal, coefficient, 0);
    Ok(f.ins().select(is_zero, if_zero, solution))
}

/// `(size - rest) / coefficient`, which must be exact; `size - rest` if the coefficient is zero.
fn exact_quotient(
    f: &mut FuncCtx,
    report: Value,
    failure: &Failure,
    size: Value,
    coefficient: &Dim,
    rest: &Dim,
) -> Result<Value> {
    let rest = f.dim(rest)?;
    let difference = f.ins().isub(size, rest);
    if coefficient.as_i64() == Some(1) {
        return Ok(difference);
    }

    // A division by zero would trap.
    let divisor = f.dim(coefficient)?;
    let one = f.int(1);
    let is_zero = f.ins().icmp_imm_s(IntCC::Equal, divisor, 0);
    let divisor = f.ins().select(is_zero, one, divisor);

    // So would the smallest integer divided by -1. No size comes near it.
    let min = f.int(-i64::MAX);
    let difference = f.ins().smax(difference, min);
    let quotient = f.ins().sdiv(difference, divisor);

    let multiple = f.ins().imul(quotient, divisor);
    let is_exact = f.ins().icmp(IntCC::Equal, multiple, difference);
    let nearest = f.ins().iadd(multiple, rest);
    require(f, report, is_exact, failure, [size, nearest, nearest])?;
    Ok(quotient)
}

/// The size of an axis of an input.
fn axis_size(f: &mut FuncCtx, shapes: Value, axis: InputAxis) -> Value {
    let shape = f.load_word(shapes, 8 * axis.input as i32);
    f.load_word(shape, 8 * axis.axis as i32)
}

/// Returns the failure from the function unless `guard` holds. The values are the one that was met, and the smallest
/// and largest one allowed.
pub(crate) fn require(
    f: &mut FuncCtx,
    report: Value,
    guard: Value,
    failure: &Failure,
    values: [Value; 3],
) -> Result<()> {
    f.leave_unless(guard, |f| {
        let [value, lo, hi] = values;
        report_error::emit(f, report, failure, value, lo, hi)?;
        f.return_code(failure.code as i64);
        Ok(())
    })
}

/// Emits one guard on a symbol's value.
fn check_symbol(
    f: &mut FuncCtx,
    report: Value,
    symbol: &Symbol,
    value: Value,
    guard: &SymbolGuard,
) -> Result<()> {
    let lo = f.int(guard.range.0);
    let hi = f.int(guard.range.1);

    let holds = match &guard.condition {
        Condition::InRange => {
            let is_not_below = f.ins().icmp(IntCC::SignedGreaterThanOrEqual, value, lo);
            let is_not_above = f.ins().icmp(IntCC::SignedLessThanOrEqual, value, hi);
            f.ins().band(is_not_below, is_not_above)
        }
        Condition::OneOf(values) => {
            let idx = f.unit.program.symbols.iter().position(|other| other == symbol);
            let table = f.unit.table(&format!("values_{}", idx.unwrap_or_default()), values)?;
            is_listed(f, table, values.len(), value)
        }
        Condition::StepOf(step) => {
            // The value is in range, so the distance is not negative.
            let distance = f.ins().isub(value, lo);
            let step = f.int(*step);
            let remainder = f.ins().urem(distance, step);
            f.ins().icmp_imm_s(IntCC::Equal, remainder, 0)
        }
    };

    require(f, report, holds, &guard.failure, [value, lo, hi])
}

/// Whether a table of `len` words, which must not be empty, contains a value.
fn is_listed(f: &mut FuncCtx, table: DataId, len: usize, value: Value) -> Value {
    // Not at the function's top: there, the address would take up a register for the whole function.
    let global = f.global(table);
    let begin = f.ins().symbol_value(types::I64, global);

    let head = f.create_block();
    let after = f.create_block();
    let address = f.builder.append_block_param(head, types::I64);
    let is_listed = f.builder.append_block_param(after, types::I8);
    let end = f.ins().iadd_imm_s(begin, 8 * len as i64);
    f.ins().jump(head, &[BlockArg::Value(begin)]);

    f.switch_to_block(head);
    let item = f.load_word(address, 0);
    let is_equal = f.ins().icmp(IntCC::Equal, item, value);
    let next = f.ins().iadd_imm_s(address, 8);
    let is_last = f.ins().icmp(IntCC::Equal, next, end);
    let stop = f.ins().bor(is_equal, is_last);
    f.ins().brif(stop, after, &[BlockArg::Value(is_equal)], head, &[BlockArg::Value(next)]);
    f.builder.seal_block(head);
    f.builder.seal_block(after);

    f.switch_to_block(after);
    is_listed
}

/// Emits the guards on relations between symbols.
pub(crate) fn check_relations(f: &mut FuncCtx, report: Value, guards: &[RelationGuard]) -> Result<()> {
    guards.iter().try_for_each(|guard| check_relation(f, report, guard))
}

/// Emits one guard on a relation between symbols.
pub(crate) fn check_relation(f: &mut FuncCtx, report: Value, guard: &RelationGuard) -> Result<()> {
    let relation = &guard.relation;
    let a = f.dim(&relation.a)?;
    let b = f.dim(&relation.b)?;

    let holds = match relation.comparison {
        Comparison::Eq => f.ins().icmp(IntCC::Equal, a, b),
        Comparison::Ne => f.ins().icmp(IntCC::NotEqual, a, b),
        Comparison::Lt => f.ins().icmp(IntCC::SignedLessThan, a, b),
        Comparison::Le => f.ins().icmp(IntCC::SignedLessThanOrEqual, a, b),
        Comparison::Divides => {
            let remainder = f.dim(&relation.b.modulo(&relation.a))?;
            f.ins().icmp_imm_s(IntCC::Equal, remainder, 0)
        }
    };

    require(f, report, holds, &guard.failure, [a, b, b])
}
