//! The contract as steps: from the shapes of the inputs to the values of the symbols, or to what is wrong with them.
//!
//! First every symbol is bound and held against its declaration, in an order in which nothing can overflow: a dim
//! that is a lone symbol gives its value, a dim that is linear in one symbol yet unbound is solved for it. Then every
//! dim is compared with what the symbols say, and at last the facts about several symbols. Machine code and C source
//! are both made from these steps.

use super::Program;
use crate::error::{Error, ErrorKind, Result};
use num_traits::ToPrimitive;
use std::collections::HashSet;
use symshape::{Assumption, Declaration, Dim, Relation, Symbol};
use symshape_runtime::abi::Code;

/// What is known of an error while compiling, see [`symshape_runtime::abi::Error`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Its code.
    pub code: Code,
    /// Index of the input tensor and of its axis.
    pub place: Option<(u32, u32)>,
    /// Index of the symbol.
    pub symbol: Option<u32>,
    /// Name of the symbol or text of the dim.
    pub symbol_name: Option<String>,
    /// Name of the tensor or node.
    pub tensor_name: Option<String>,
    /// What is declared, and where.
    pub why: Option<String>,
}

impl Default for Failure {
    fn default() -> Failure {
        let code = Code::OutOfRange;
        Failure { code, place: None, symbol: None, symbol_name: None, tensor_name: None, why: None }
    }
}

/// All that is checked before anything is stored, in order.
#[derive(Clone, Debug)]
pub struct Contract {
    /// How each symbol gets its value; each needs only the ones before.
    pub bindings: Vec<SymbolBinding>,
    /// What every axis must be.
    pub axes: Vec<AxisGuard>,
    /// What must hold between symbols.
    pub relations: Vec<RelationGuard>,
}

/// How a symbol gets its value, and what that must fulfil.
#[derive(Clone, Debug)]
pub struct SymbolBinding {
    /// The symbol.
    pub symbol: Symbol,
    /// Where its value comes from.
    pub source: ValueSource,
    /// What is declared about it.
    pub guards: Vec<SymbolGuard>,
}

/// Where a symbol's value comes from.
#[derive(Clone, Debug)]
pub enum ValueSource {
    /// Its declaration allows one value.
    Fixed(i64),
    /// The dim at an input's axis is `coefficient * symbol + rest`.
    Axis {
        /// Index of the input, and the axis.
        place: (u32, u32),
        /// What the symbol is multiplied by; never a symbol that is bound later.
        coefficient: Dim,
        /// What is added.
        rest: Dim,
        /// The symbol's value where the coefficient is zero: the dim says nothing about it then, and any will do.
        free: Option<i64>,
        /// The dim is not of that form.
        inexact: Failure,
    },
}

/// A declaration's guard on a symbol's value; each counts on the ones before.
#[derive(Clone, Debug)]
pub struct SymbolGuard {
    /// What is demanded.
    pub condition: Condition,
    /// The declared range, for the message.
    pub range: (i64, i64),
    /// It is not so.
    pub failure: Failure,
}

/// See [`SymbolGuard`].
#[derive(Clone, Debug)]
pub enum Condition {
    /// The value is in the declared range.
    InRange,
    /// It is one of these, which ascend.
    OneOf(Vec<i64>),
    /// It lies a multiple of this above the range's lowest.
    StepOf(i64),
}

/// What an axis of an input must be.
#[derive(Clone, Debug)]
pub struct AxisGuard {
    /// Index of the input, and the axis.
    pub place: (u32, u32),
    /// Its size.
    pub dim: Dim,
    /// It is another.
    pub failure: Failure,
}

/// A relation that must hold.
#[derive(Clone, Debug)]
pub struct RelationGuard {
    /// The relation.
    pub relation: Relation,
    /// It doesn't.
    pub failure: Failure,
}

impl Contract {
    /// The contract of `program`.
    ///
    /// # Errors
    /// A symbol whose value does not follow from the shapes of the inputs, or whose range is open or too large.
    pub fn of(program: &Program) -> Result<Contract> {
        Ok(Contract {
            bindings: bindings(program)?,
            axes: axis_guards(program),
            relations: relation_guards(program),
        })
    }
}

/// How each symbol is found, in an order in which each step needs only the ones before.
fn bindings(program: &Program) -> Result<Vec<SymbolBinding>> {
    let mut bound: HashSet<Symbol> = HashSet::new();
    let mut list = Vec::new();
    for symbol in &program.symbols {
        if let Some(value) = program.facts.const_value(&symbol.into()).and_then(|value| value.to_i64()) {
            let guards = symbol_guards(program, symbol, None)?;
            list.push(SymbolBinding { symbol: symbol.clone(), source: ValueSource::Fixed(value), guards });
            bound.insert(symbol.clone());
        }
    }
    // Lone symbols first: their errors are the clearest.
    for lone in [true, false] {
        while let Some((symbol, place, source)) =
            axes(program).find_map(|(place, dim)| solve(program, &bound, place, dim, lone))
        {
            let guards = symbol_guards(program, &symbol, Some(place))?;
            bound.insert(symbol.clone());
            list.push(SymbolBinding { symbol, source, guards });
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

fn axes(program: &Program) -> impl Iterator<Item = ((u32, u32), &Dim)> {
    program.inputs.iter().enumerate().flat_map(|(tensor, port)| {
        port.shape.iter().enumerate().map(move |(axis, dim)| ((tensor as u32, axis as u32), dim))
    })
}

/// How the one symbol that is still missing in `dim` follows from it, if it can be solved for it.
fn solve(
    program: &Program,
    bound: &HashSet<Symbol>,
    place: (u32, u32),
    dim: &Dim,
    lone: bool,
) -> Option<(Symbol, (u32, u32), ValueSource)> {
    let mut missing = dim.symbols().into_iter().filter(|symbol| !bound.contains(symbol));
    let (symbol, None) = (missing.next()?, missing.next()) else { return None };
    if lone && dim.as_symbol().is_none() {
        return None;
    }
    // What is known of a symbol may be that it equals another one: its own value is still the one of its own axis.
    let (coefficient, rest) = match dim.as_symbol() {
        Some(_) => (Dim::one(), Dim::zero()),
        None => program.facts.solvable_for(dim, &symbol, &|symbol| bound.contains(symbol))?,
    };
    let lowest = program.facts.declaration(&symbol).and_then(|declared| declared.lo.to_i64());
    let free = lowest.filter(|_| coefficient.as_int().is_none());
    let inexact = Failure {
        code: Code::Mismatch,
        why: Some(format!("declared as {dim}")),
        ..axis_failure(program, place, dim)
    };
    Some((symbol, place, ValueSource::Axis { place, coefficient, rest, free, inexact }))
}

fn axis_failure(program: &Program, place: (u32, u32), dim: &Dim) -> Failure {
    let symbol = dim.as_symbol().and_then(|symbol| program.symbols.iter().position(|known| known == symbol));
    Failure {
        place: Some(place),
        symbol: symbol.map(|idx| idx as u32),
        symbol_name: Some(dim.to_string()),
        tensor_name: Some(program.inputs[place.0 as usize].name.clone()),
        ..Failure::default()
    }
}

/// What is declared about a symbol whose value comes from `place`.
///
/// # Errors
/// Its range is open or too large.
pub fn symbol_guards(
    program: &Program,
    symbol: &Symbol,
    place: Option<(u32, u32)>,
) -> Result<Vec<SymbolGuard>> {
    let Some(declaration) = program.facts.declaration(symbol) else { return Ok(Vec::new()) };
    let name = symbol.name();
    let idx = program.symbols.iter().position(|known| known == symbol);
    let failure = |code| Failure {
        code,
        place,
        symbol: idx.map(|idx| idx as u32),
        symbol_name: Some(name.into()),
        tensor_name: place.map(|(tensor, _)| program.inputs[tensor as usize].name.clone()),
        why: Some(format!("{name} is declared {declaration}")),
    };
    let range = declared_range(symbol, declaration)?;
    let guard = |condition, code| SymbolGuard { condition, range, failure: failure(code) };
    let mut guards = vec![guard(Condition::InRange, Code::OutOfRange)];
    match (&declaration.values, declaration.step.to_i64()) {
        (Some(values), _) => {
            let values = values.iter().filter_map(ToPrimitive::to_i64).collect();
            guards.push(guard(Condition::OneOf(values), Code::NotAllowed));
        }
        (None, Some(step)) if step > 1 => guards.push(guard(Condition::StepOf(step), Code::NotAllowed)),
        _ => {}
    }
    Ok(guards)
}

/// The declared range in machine integers.
///
/// # Errors
/// It is open, or too large.
pub fn declared_range(symbol: &Symbol, declaration: &Declaration) -> Result<(i64, i64)> {
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

fn axis_guards(program: &Program) -> Vec<AxisGuard> {
    let guard = |(place, dim): ((u32, u32), &Dim)| {
        let why = match dim.as_int() {
            Some(_) => format!("declared as {dim}"),
            None => format!("declared as {dim}, whose value the other dims give"),
        };
        let failure = Failure { code: Code::Mismatch, why: Some(why), ..axis_failure(program, place, dim) };
        AxisGuard { place, dim: dim.clone(), failure }
    };
    axes(program).map(guard).collect()
}

/// The facts about several symbols, all of them the model's own.
pub fn relation_guards(program: &Program) -> Vec<RelationGuard> {
    let known = |assumption: &&Assumption| {
        let relation = &assumption.relation;
        relation
            .a
            .symbols()
            .iter()
            .chain(&relation.b.symbols())
            .all(|symbol| program.symbols.contains(symbol))
    };
    program.facts.assumptions().iter().filter(known).map(RelationGuard::of).collect()
}

impl RelationGuard {
    /// The guard that checks an assumption.
    pub fn of(assumption: &Assumption) -> RelationGuard {
        let relation = assumption.relation.clone();
        let failure = Failure {
            code: Code::FactBroken,
            symbol_name: Some(relation.to_string()),
            why: Some(assumption.origin.to_string()),
            ..Failure::default()
        };
        RelationGuard { relation, failure }
    }
}

/// What is reported where control gets to code that contradicts the inputs.
pub fn contradiction(why: &str) -> Failure {
    Failure { code: Code::Contradiction, why: Some(why.into()), ..Failure::default() }
}

/// A policy that the arena is not planned for.
pub fn not_planned() -> Failure {
    let why = "the arena of this artefact is planned for partitions that run one after another; \
               compile with --policies any";
    Failure { code: Code::NotPlanned, why: Some(why.into()), ..Failure::default() }
}

/// What is reported where a function outside of the compiler fails.
pub fn callee_failed(call: &super::ExternalCall) -> Failure {
    Failure {
        code: Code::CalleeFailed,
        symbol_name: Some(call.callee.symbol.clone()),
        tensor_name: Some(call.context.clone()),
        why: Some("it is no part of the model, and says what its codes mean".into()),
        ..Failure::default()
    }
}

/// What is reported where a size found while running is out of its bounds; `what` is the node.
pub fn out_of_bounds(symbol: &Symbol, context: &str) -> Failure {
    Failure {
        code: Code::IndexOutOfBounds,
        symbol_name: Some(symbol.name().into()),
        tensor_name: Some(context.into()),
        why: Some(format!("{} is found while running", symbol.name())),
        ..Failure::default()
    }
}
