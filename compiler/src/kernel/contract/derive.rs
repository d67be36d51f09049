//! The contract of a program, derived from the shapes of its inputs and the facts about its symbols.

use super::{
    AxisGuard, Condition, Contract, DeclaredSymbol, Failure, InputAxis, RelationGuard, SymbolBinding,
    SymbolGuard, ValueSource,
};
use crate::{
    error::{Error, ErrorKind, Result},
    kernel::{Program, StateBlock},
};
use num_traits::ToPrimitive;
use std::collections::HashSet;
use symshape::{Assumption, Declaration, Dim, Relation, Symbol};
use symshape_runtime::abi::Code;

impl Contract {
    /// The contract of `program`.
    ///
    /// # Errors
    /// A symbol whose value does not follow from the shapes of the inputs, or whose range is open or too large.
    pub(crate) fn of(program: &Program) -> Result<Contract> {
        Ok(Contract {
            bindings: bindings(program)?,
            symbols: symbols(program)?,
            axes: axis_guards(program),
            relations: relation_guards(program),
            length: length(program)?,
            length_relations: length_relations(program),
        })
    }
}

/// The length of a sequence of a ragged batch, with its guards. Their failures name the offsets.
fn length(program: &Program) -> Result<Option<DeclaredSymbol>> {
    let Some(ragged) = &program.ragged else { return Ok(None) };
    let mut declared = declared(program, &ragged.length, None)?;
    let offsets = program.inputs.get(ragged.offsets as usize).map(|port| port.name.clone());
    for guard in &mut declared.guards {
        guard.failure.tensor_name.clone_from(&offsets);
    }
    Ok(Some(declared))
}

/// A guard on every assumption about the length of a sequence.
fn length_relations(program: &Program) -> Vec<RelationGuard> {
    let Some(ragged) = &program.ragged else { return Vec::new() };
    let has_length = |assumption: &&Assumption| {
        let relation = &assumption.relation;
        relation.a.contains(&ragged.length) || relation.b.contains(&ragged.length)
    };
    program.facts.assumptions().iter().filter(has_length).map(RelationGuard::of).collect()
}

/// A binding of every symbol, in an order in which each needs only the ones before it.
///
/// Symbols with one allowed value come first. Then a dim that is a lone symbol gives that symbol's value, and last, a
/// dim that is linear in its only unbound symbol is solved for it.
fn bindings(program: &Program) -> Result<Vec<SymbolBinding>> {
    let mut bound: HashSet<Symbol> = HashSet::new();
    let mut list = Vec::new();

    for symbol in &program.symbols {
        if let Some(value) = program.facts.const_value(&symbol.into()).and_then(|value| value.to_i64()) {
            list.push(SymbolBinding {
                declared: declared(program, symbol, None)?,
                source: ValueSource::Fixed(value),
            });
            bound.insert(symbol.clone());
        }
    }

    // Lone symbols first, as their errors are the clearest.
    for is_lone in [true, false] {
        while let Some((symbol, axis, source)) =
            axes(program).find_map(|(axis, dim)| solve(program, &bound, axis, &dim, is_lone))
        {
            list.push(SymbolBinding { declared: declared(program, &symbol, Some(axis))?, source });
            bound.insert(symbol);
        }
    }

    match program.symbols.iter().find(|symbol| !bound.contains(*symbol)) {
        None => Ok(list),
        Some(symbol) => {
            let name = symbol.name();
            let message = format!(
                "cannot infer {name} from the shapes of the inputs: no dim is `{name}` or linear in `{name}`"
            );
            Err(Error::new(ErrorKind::Contract, message))
        }
    }
}

/// All axes of all inputs, with their dims. The words in the header of the state count as the axes of one more input.
fn axes(program: &Program) -> impl Iterator<Item = (InputAxis, Dim)> + '_ {
    let of_inputs = (0u32..).zip(&program.inputs).flat_map(|(input, port)| {
        (0u32..).zip(&port.shape).map(move |(axis, dim)| (InputAxis { input, axis }, dim.clone()))
    });
    let words = program.state.as_ref().map(StateBlock::words).unwrap_or_default();
    let input = program.inputs.len() as u32;
    let of_state = (0u32..).zip(words);
    let of_state = of_state.map(move |(axis, symbol)| (InputAxis { input, axis }, Dim::from(&symbol)));
    // The header first: its symbols are those of the state, whatever the inputs say.
    of_state.chain(of_inputs)
}

/// The axis for messages, and the name of its tensor.
fn place(program: &Program, axis: InputAxis) -> (Option<InputAxis>, String) {
    match program.inputs.get(axis.input as usize) {
        Some(port) => (Some(axis), port.name.clone()),
        None => (None, "the state".into()),
    }
}

/// The only unbound symbol of `dim`, the size of `axis`, and its value as a function of that size, where the dim can be
/// solved for it.
fn solve(
    program: &Program,
    bound: &HashSet<Symbol>,
    axis: InputAxis,
    dim: &Dim,
    is_lone: bool,
) -> Option<(Symbol, InputAxis, ValueSource)> {
    let mut unbound = dim.symbols().into_iter().filter(|symbol| !bound.contains(symbol));
    let (symbol, None) = (unbound.next()?, unbound.next()) else { return None };
    if is_lone && dim.as_symbol().is_none() {
        return None;
    }

    // The facts may say that a lone symbol equals another one. Its value is still read from its own axis.
    let (coefficient, rest) = match dim.as_symbol() {
        Some(_) => (Dim::one(), Dim::zero()),
        None => program.facts.solvable_for(dim, &symbol, &|symbol| bound.contains(symbol))?,
    };
    let lower_end = program.facts.declaration(&symbol).and_then(|declaration| declaration.lo.to_i64());
    let if_zero = lower_end.filter(|_| coefficient.as_int().is_none());

    let inexact = Failure { why: Some(format!("declared as {dim}")), ..mismatch(program, axis, dim) };
    Some((symbol, axis, ValueSource::Axis { axis, coefficient, rest, if_zero, inexact }))
}

/// The failure where `axis` has another size than `dim`.
fn mismatch(program: &Program, axis: InputAxis, dim: &Dim) -> Failure {
    let symbol = dim.as_symbol().and_then(|symbol| symbol_index(program, symbol));
    let (place, tensor) = place(program, axis);
    Failure {
        axis: place,
        symbol,
        symbol_name: Some(dim.to_string()),
        tensor_name: Some(tensor),
        ..Failure::new(Code::Mismatch)
    }
}

/// The symbol's place in the ABI's `dims`.
fn symbol_index(program: &Program, symbol: &Symbol) -> Option<u32> {
    program.symbols.iter().position(|known| known == symbol).map(|idx| idx as u32)
}

/// The model's symbols in the order of the ABI's `dims`.
fn symbols(program: &Program) -> Result<Vec<DeclaredSymbol>> {
    program.symbols.iter().map(|symbol| declared(program, symbol, None)).collect()
}

/// A symbol with its guards; its value comes from `axis`, if that is known.
fn declared(program: &Program, symbol: &Symbol, axis: Option<InputAxis>) -> Result<DeclaredSymbol> {
    let Some(declaration) = program.facts.declaration(symbol) else {
        return Ok(DeclaredSymbol {
            symbol: symbol.clone(),
            declaration: None,
            range: None,
            guards: Vec::new(),
        });
    };

    let range = declared_range(symbol, declaration)?;
    let guard = |condition, code| {
        let failure = Failure {
            axis: axis.and_then(|axis| place(program, axis).0),
            symbol: symbol_index(program, symbol),
            symbol_name: Some(symbol.name().into()),
            tensor_name: axis.map(|axis| place(program, axis).1),
            why: Some(format!("{} is declared {declaration}", symbol.name())),
            ..Failure::new(code)
        };
        SymbolGuard { condition, range, failure }
    };

    let mut guards = vec![guard(Condition::InRange, Code::OutOfRange)];
    match (&declaration.values, declaration.step.to_i64()) {
        (Some(values), _) => {
            let values = values.iter().filter_map(ToPrimitive::to_i64).collect();
            guards.push(guard(Condition::OneOf(values), Code::NotAllowed));
        }
        (None, Some(step)) if step > 1 => guards.push(guard(Condition::StepOf(step), Code::NotAllowed)),
        _ => {}
    }
    Ok(DeclaredSymbol {
        symbol: symbol.clone(),
        declaration: Some(declaration.clone()),
        range: Some(range),
        guards,
    })
}

/// The declared range in machine integers, both ends included.
fn declared_range(symbol: &Symbol, declaration: &Declaration) -> Result<(i64, i64)> {
    let name = symbol.name();
    let Some(hi) = &declaration.hi else {
        let message = format!("{name} has no upper bound; declare one with --dim {name}=LO..HI");
        return Err(Error::new(ErrorKind::Contract, message));
    };

    match (declaration.lo.to_i64(), hi.to_i64()) {
        (Some(lo), Some(hi)) => Ok((lo, hi)),
        _ => Err(Error::new(
            ErrorKind::Limit,
            format!(
                "the range of {name} does not fit in 64 bits; declare a smaller one with --dim {name}=LO..HI"
            ),
        )),
    }
}

/// A guard on the size of every axis of every input.
fn axis_guards(program: &Program) -> Vec<AxisGuard> {
    let guard = |(axis, dim): (InputAxis, Dim)| {
        let why = match dim.as_int() {
            Some(_) => format!("declared as {dim}"),
            None => format!("declared as {dim}, whose value follows from the other dims"),
        };
        let failure = Failure { why: Some(why), ..mismatch(program, axis, &dim) };
        AxisGuard { axis, dim, failure }
    };
    axes(program).map(guard).collect()
}

/// The relation that the rows after a call fit in the state.
fn capacity_relation(program: &Program) -> Option<Relation> {
    let rows = program.state.as_ref()?.rows.as_ref()?;
    Some(Relation::le(Dim::from(&rows.length) + &rows.growth, Dim::from(&rows.capacity)))
}

/// A guard on every assumption about the model's symbols. Those about data-dependent symbols are checked where the
/// symbols are bound.
fn relation_guards(program: &Program) -> Vec<RelationGuard> {
    let is_known = |dim: &Dim| dim.symbols().iter().all(|symbol| program.symbols.contains(symbol));
    let is_of_model = |assumption: &&Assumption| {
        let relation = &assumption.relation;
        is_known(&relation.a) && is_known(&relation.b)
    };
    let guard = |assumption: &Assumption| {
        let guard = RelationGuard::of(assumption);
        match capacity_relation(program) {
            Some(relation) if relation == guard.relation => {
                let tensor_name = Some("the state".into());
                let failure = Failure { tensor_name, ..Failure::new(Code::StateFull) };
                RelationGuard { failure, ..guard }
            }
            _ => guard,
        }
    };
    program.facts.assumptions().iter().filter(is_of_model).map(guard).collect()
}
