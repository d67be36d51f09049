//! `check`: from the shapes of the inputs to the values of the symbols, or to what is wrong with them.
//!
//! First every symbol is bound and held against its declaration, in an order in which nothing can overflow: a dim
//! that is a lone symbol gives its value, a dim that is linear in one symbol yet unbound is solved for it. Then every
//! dim is compared with what the symbols say, and at last the facts about several symbols.

use super::{
    fail::{self, Template},
    function::FuncCtx,
    unit::Unit,
};
use crate::error::{Error, ErrorKind, Result};
use cranelift_codegen::ir::{
    BlockArg, InstBuilder, MemFlagsData, StackSlotData, StackSlotKind, Value, condcodes::IntCC, types,
};
use cranelift_module::{FuncId, Linkage};
use num_traits::ToPrimitive;
use std::collections::HashSet;
use symshape::{Assumption, Comparison, Declaration, Dim, Symbol};
use symshape_runtime::abi::{self, Code};

/// Where a symbol's value comes from.
struct Binding {
    symbol: Symbol,
    source: Source,
}

enum Source {
    /// Its declaration allows one value.
    Fixed(i64),
    /// The dim at `(tensor, axis)` is `coefficient * symbol + rest`.
    Axis { place: (u32, u32), dim: Dim, coefficient: Dim, rest: Dim },
}

/// Emits `check(input_shapes, dims, err) -> code`.
pub(super) fn check(unit: &mut Unit) -> Result<FuncId> {
    let bindings = bindings(unit)?;
    let name = unit.symbol("check");
    let id = unit.declare(&name, Linkage::Export, &[types::I64; 3], &[types::I32])?;
    unit.define(id, |f, params| {
        let report = report(f, params[2]);
        for binding in &bindings {
            bind(f, report, params[0], binding)?;
        }
        check_axes(f, report, params[0])?;
        check_facts(f, report)?;
        let program = f.unit.program;
        for idx in 0..program.found.len() {
            let unknown = f.int(abi::NOT_FOUND);
            let at = 8 * (program.symbols.len() + idx) as i32;
            f.builder.ins().store(MemFlagsData::trusted(), unknown, params[1], at);
        }
        for (idx, symbol) in program.symbols.iter().enumerate() {
            let value = f.dim(&Dim::from(symbol))?;
            f.builder.ins().store(MemFlagsData::trusted(), value, params[1], 8 * idx as i32);
        }
        let ok = f.builder.ins().iconst(types::I32, 0);
        f.builder.ins().return_(&[ok]);
        Ok(())
    })?;
    Ok(id)
}

/// The beginning of a frame for [`fail::emit`], with room for an error that nobody wants to see.
fn report(f: &mut FuncCtx, error: Value) -> Value {
    use super::function::frame;
    let bytes = 16 + size_of::<abi::Error>() as u32;
    let slot = f.builder.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes, 4));
    let (frame, unseen) =
        (f.builder.ins().stack_addr(types::I64, slot, 0), f.builder.ins().stack_addr(types::I64, slot, 16));
    let error = f.builder.ins().select(error, error, unseen);
    let zero = f.int(0);
    f.builder.ins().store(MemFlagsData::trusted(), error, frame, frame::ERROR);
    f.builder.ins().store(MemFlagsData::trusted(), zero, frame, frame::FAILED);
    frame
}

/// How each symbol is found, in an order in which each step needs only the ones before.
fn bindings(unit: &Unit) -> Result<Vec<Binding>> {
    let program = unit.program;
    let mut bound: HashSet<Symbol> = HashSet::new();
    let mut list = Vec::new();
    for symbol in &program.symbols {
        if let Some(value) = program.facts.const_value(&symbol.into()).and_then(|value| value.to_i64()) {
            list.push(Binding { symbol: symbol.clone(), source: Source::Fixed(value) });
            bound.insert(symbol.clone());
        }
    }
    let axes: Vec<((u32, u32), &Dim)> = axes(unit).collect();
    // Lone symbols first: their errors are the clearest.
    for lone in [true, false] {
        while let Some(binding) = axes.iter().find_map(|(place, dim)| solve(unit, &bound, *place, dim, lone))
        {
            bound.insert(binding.symbol.clone());
            list.push(binding);
        }
    }
    match program.symbols.iter().find(|symbol| !bound.contains(*symbol)) {
        None => Ok(list),
        Some(symbol) => Err(Error::new(
            ErrorKind::Contract,
            format!(
                "the shapes of the inputs don't tell the value of {}: no dim is {0} alone or linear in it",
                symbol.name()
            ),
        )),
    }
}

fn axes<'u>(unit: &Unit<'u>) -> impl Iterator<Item = ((u32, u32), &'u Dim)> {
    unit.program.inputs.iter().enumerate().flat_map(|(tensor, port)| {
        port.shape.iter().enumerate().map(move |(axis, dim)| ((tensor as u32, axis as u32), dim))
    })
}

/// The binding of the one symbol that is still missing in `dim`, if it can be solved for it.
fn solve(unit: &Unit, bound: &HashSet<Symbol>, place: (u32, u32), dim: &Dim, lone: bool) -> Option<Binding> {
    let mut missing = dim.symbols().into_iter().filter(|symbol| !bound.contains(symbol));
    let (symbol, None) = (missing.next()?, missing.next()) else { return None };
    if lone && dim.as_symbol().is_none() {
        return None;
    }
    let (coefficient, rest) = unit.program.facts.linear_in(dim, &symbol)?;
    let source = Source::Axis { place, dim: dim.clone(), coefficient, rest };
    Some(Binding { symbol, source })
}

fn bind(f: &mut FuncCtx, report: Value, shapes: Value, binding: &Binding) -> Result<()> {
    let symbol = &binding.symbol;
    let (value, place) = match &binding.source {
        Source::Fixed(value) => (f.int(*value), None),
        Source::Axis { place, dim, coefficient, rest } => {
            let value = axis_value(f, shapes, *place);
            let template = Template {
                code: Code::Mismatch,
                why: Some(format!("declared as {dim}")),
                ..axis_template(f, *place, dim)
            };
            let solved = quotient(f, report, &template, value, coefficient, rest)?;
            (free_where_zero(f, symbol, coefficient, solved)?, Some(*place))
        }
    };
    accept_symbol(f, report, symbol, value, place)
}

/// Checks a symbol's value, binds the symbol to it, and from there on counts on what is declared.
pub(super) fn accept_symbol(
    f: &mut FuncCtx,
    report: Value,
    symbol: &Symbol,
    value: Value,
    place: Option<(u32, u32)>,
) -> Result<()> {
    check_symbol(f, report, symbol, value, place)?;
    f.bind(symbol.clone(), value);
    if let Some(declaration) = f.unit.program.facts.declaration(symbol).cloned() {
        let known = f.facts_mut().declare(symbol, declaration);
        known.map_err(|error| Error::new(ErrorKind::Contract, error.to_string()))?;
    }
    Ok(())
}

/// The symbol's least value where the coefficient is zero: the dim says nothing about it, and any value will do.
fn free_where_zero(f: &mut FuncCtx, symbol: &Symbol, coefficient: &Dim, solved: Value) -> Result<Value> {
    let declaration = f.unit.program.facts.declaration(symbol).cloned();
    let (Some(declaration), None) = (declaration, coefficient.as_int()) else { return Ok(solved) };
    let (lo, _) = range(symbol, &declaration)?;
    let (lo, coefficient) = (f.int(lo), f.dim(coefficient)?);
    let free = f.builder.ins().icmp_imm_s(IntCC::Equal, coefficient, 0);
    Ok(f.builder.ins().select(free, lo, solved))
}

/// `(value - rest) / coefficient`, which must be exact; the dividend's own value where the coefficient is zero.
fn quotient(
    f: &mut FuncCtx,
    report: Value,
    template: &Template,
    value: Value,
    coefficient: &Dim,
    rest: &Dim,
) -> Result<Value> {
    let rest = f.dim(rest)?;
    let difference = f.builder.ins().isub(value, rest);
    if coefficient.as_i64() == Some(1) {
        return Ok(difference);
    }
    let divisor = f.dim(coefficient)?;
    let one = f.int(1);
    let is_zero = f.builder.ins().icmp_imm_s(IntCC::Equal, divisor, 0);
    let safe = f.builder.ins().select(is_zero, one, divisor);
    // The least integer divided by -1 would trap; no dim comes near it.
    let least = f.int(-i64::MAX);
    let difference = f.builder.ins().smax(difference, least);
    let quotient = f.builder.ins().sdiv(difference, safe);
    let back = f.builder.ins().imul(quotient, safe);
    let exact = f.builder.ins().icmp(IntCC::Equal, back, difference);
    let below = f.builder.ins().iadd(back, rest);
    require(f, report, exact, template, [value, below, below])?;
    Ok(quotient)
}

fn axis_value(f: &mut FuncCtx, shapes: Value, (tensor, axis): (u32, u32)) -> Value {
    let trusted = MemFlagsData::trusted();
    let shape = f.builder.ins().load(types::I64, trusted, shapes, 8 * tensor as i32);
    f.builder.ins().load(types::I64, trusted, shape, 8 * axis as i32)
}

fn axis_template(f: &FuncCtx, place: (u32, u32), dim: &Dim) -> Template {
    let program = f.unit.program;
    let symbol = dim.as_symbol().and_then(|symbol| program.symbols.iter().position(|known| known == symbol));
    Template {
        place: Some(place),
        symbol: symbol.map(|idx| idx as u32),
        symbol_name: Some(dim.to_string()),
        tensor_name: Some(program.inputs[place.0 as usize].name.clone()),
        ..Template::default()
    }
}

/// Leaves the function with the template's error where `good` does not hold; `numbers`: value, lo, hi.
pub(super) fn require(
    f: &mut FuncCtx,
    report: Value,
    good: Value,
    template: &Template,
    numbers: [Value; 3],
) -> Result<()> {
    let (bad, next) = (f.builder.create_block(), f.builder.create_block());
    f.builder.set_cold_block(bad);
    f.builder.ins().brif(good, next, &[], bad, &[]);
    f.builder.switch_to_block(bad);
    f.builder.seal_block(bad);
    let [value, lo, hi] = numbers;
    fail::emit(f, report, template, value, lo, hi)?;
    let code = f.builder.ins().iconst(types::I32, template.code as i64);
    f.builder.ins().return_(&[code]);
    f.builder.switch_to_block(next);
    f.builder.seal_block(next);
    Ok(())
}

/// Emits the comparison of a symbol's value with its declaration.
fn check_symbol(
    f: &mut FuncCtx,
    report: Value,
    symbol: &Symbol,
    value: Value,
    place: Option<(u32, u32)>,
) -> Result<()> {
    let Some(declaration) = f.unit.program.facts.declaration(symbol).cloned() else { return Ok(()) };
    let name = symbol.name();
    let idx = f.unit.program.symbols.iter().position(|known| known == symbol);
    let mut template = Template {
        place,
        symbol: idx.map(|idx| idx as u32),
        symbol_name: Some(name.into()),
        tensor_name: place.map(|(tensor, _)| f.unit.program.inputs[tensor as usize].name.clone()),
        why: Some(format!("{name} is declared {declaration}")),
        ..Template::default()
    };
    let (lo, hi) = range(symbol, &declaration)?;
    let (lo_value, hi_value) = (f.int(lo), f.int(hi));
    let numbers = [value, lo_value, hi_value];
    let not_below = f.builder.ins().icmp(IntCC::SignedGreaterThanOrEqual, value, lo_value);
    let not_above = f.builder.ins().icmp(IntCC::SignedLessThanOrEqual, value, hi_value);
    let inside = f.builder.ins().band(not_below, not_above);
    require(f, report, inside, &template, numbers)?;
    template.code = Code::NotAllowed;
    match (&declaration.values, declaration.step.to_i64()) {
        (Some(values), _) => {
            let values: Vec<i64> = values.iter().filter_map(ToPrimitive::to_i64).collect();
            let table = f.unit.table(&format!("values_{}", idx.unwrap_or_default()), &values)?;
            let found = is_listed(f, table, values.len(), value);
            require(f, report, found, &template, numbers)
        }
        (None, Some(step)) if step > 1 => {
            // Both are in range, so the difference is not negative.
            let distance = f.builder.ins().isub(value, lo_value);
            let step = f.int(step);
            let over = f.builder.ins().urem(distance, step);
            let allowed = f.builder.ins().icmp_imm_s(IntCC::Equal, over, 0);
            require(f, report, allowed, &template, numbers)
        }
        _ => Ok(()),
    }
}

/// The declared range in machine integers.
pub(super) fn range(symbol: &Symbol, declaration: &Declaration) -> Result<(i64, i64)> {
    let name = symbol.name();
    let Some(hi) = &declaration.hi else {
        let message = format!("{name} has no upper bound; declare one with --dim {name}=LO..HI");
        return Err(Error::new(ErrorKind::Contract, message));
    };
    match (declaration.lo.to_i64(), hi.to_i64()) {
        (Some(lo), Some(hi)) => Ok((lo, hi)),
        _ => Err(Error::new(ErrorKind::Limit, format!("the range of {name} does not fit in 64 bits"))),
    }
}

/// Whether a value is among the `len` ones of a table.
fn is_listed(f: &mut FuncCtx, table: cranelift_module::DataId, len: usize, value: Value) -> Value {
    let global = f.global(table);
    let base = f.builder.ins().symbol_value(types::I64, global);
    let (head, after) = (f.builder.create_block(), f.builder.create_block());
    let at = f.builder.append_block_param(head, types::I64);
    let found = f.builder.append_block_param(after, types::I8);
    let end = f.builder.ins().iadd_imm_s(base, 8 * len as i64);
    f.builder.ins().jump(head, &[BlockArg::Value(base)]);
    f.builder.switch_to_block(head);
    let item = f.builder.ins().load(types::I64, MemFlagsData::trusted(), at, 0);
    let equal = f.builder.ins().icmp(IntCC::Equal, item, value);
    let next = f.builder.ins().iadd_imm_s(at, 8);
    let last = f.builder.ins().icmp(IntCC::Equal, next, end);
    let stop = f.builder.ins().bor(equal, last);
    f.builder.ins().brif(stop, after, &[BlockArg::Value(equal)], head, &[BlockArg::Value(next)]);
    f.builder.seal_block(head);
    f.builder.seal_block(after);
    f.builder.switch_to_block(after);
    found
}

/// Emits the comparison of every axis with what the symbols say.
fn check_axes(f: &mut FuncCtx, report: Value, shapes: Value) -> Result<()> {
    let list: Vec<_> = axes(f.unit).collect();
    for (place, dim) in list {
        let (met, expected) = (axis_value(f, shapes, place), f.dim(dim)?);
        let equal = f.builder.ins().icmp(IntCC::Equal, met, expected);
        let template = Template {
            code: Code::Mismatch,
            why: Some(match dim.as_int() {
                Some(_) => format!("declared as {dim}"),
                None => format!("declared as {dim}, whose value the other dims give"),
            }),
            ..axis_template(f, place, dim)
        };
        require(f, report, equal, &template, [met, expected, expected])?;
    }
    Ok(())
}

/// Emits the comparison of the facts about several symbols with their values.
pub(super) fn check_facts(f: &mut FuncCtx, report: Value) -> Result<()> {
    let assumptions: Vec<Assumption> = f.unit.program.facts.assumptions().to_vec();
    for assumption in assumptions {
        let known = |symbol: &Symbol| f.unit.program.symbols.contains(symbol);
        let relation = &assumption.relation;
        if !relation.a.symbols().iter().chain(&relation.b.symbols()).all(known) {
            continue;
        }
        check_fact(f, report, &assumption)?;
    }
    Ok(())
}

/// Emits the comparison of one fact with the symbols' values.
pub(super) fn check_fact(f: &mut FuncCtx, report: Value, assumption: &Assumption) -> Result<()> {
    let relation = &assumption.relation;
    let (a, b) = (f.dim(&relation.a)?, f.dim(&relation.b)?);
    let cc = match relation.comparison {
        Comparison::Eq => IntCC::Equal,
        Comparison::Ne => IntCC::NotEqual,
        Comparison::Lt => IntCC::SignedLessThan,
        Comparison::Le => IntCC::SignedLessThanOrEqual,
        Comparison::Divides => IntCC::Equal,
    };
    let good = match relation.comparison {
        Comparison::Divides => {
            let over = f.dim(&relation.b.modulo(&relation.a))?;
            f.builder.ins().icmp_imm_s(cc, over, 0)
        }
        _ => f.builder.ins().icmp(cc, a, b),
    };
    let template = Template {
        code: Code::FactBroken,
        symbol_name: Some(relation.to_string()),
        why: Some(assumption.origin.to_string()),
        ..Template::default()
    };
    require(f, report, good, &template, [a, b, b])
}
