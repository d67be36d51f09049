//! The call contract as data: how the symbols follow from the shapes of the inputs, and the guards on their values.
//!
//! First every symbol is bound and checked against its declaration, in an order in which nothing can overflow. Then
//! every axis is compared with its dim, and at last the relations between symbols are checked. Machine code, C source
//! and headers are all made from one [`Contract`], so that they refuse the same calls with the same messages.

mod derive;
mod failure;

pub(crate) use failure::{Failure, InputAxis};

use symshape::{Assumption, Declaration, Dim, Relation, Symbol};
use symshape_runtime::abi::Code;

/// The call contract: everything that a call checks before it stores anything.
#[derive(Clone, Debug)]
pub(crate) struct Contract {
    /// The model's symbols in the order of the ABI's `dims`. `run` gets their values from the caller and checks these
    /// guards, whose failures name no axis.
    pub symbols: Vec<DeclaredSymbol>,
    /// How `check` derives the value of each symbol; each binding needs only the ones before it. The guards are those
    /// of `symbols`, but their failures name the axis that the value comes from.
    pub bindings: Vec<SymbolBinding>,
    /// The guards of `check` on every axis of every input.
    pub axes: Vec<AxisGuard>,
    /// The guards of `check` and `run` on relations between symbols.
    pub(crate) relations: Vec<RelationGuard>,
    /// The length of a sequence of a ragged batch. `run` gets it from the offsets and checks these guards.
    pub(crate) length: Option<DeclaredSymbol>,
    /// The guards of `run` on relations between the length and other symbols.
    pub(crate) length_relations: Vec<RelationGuard>,
}

/// A symbol of the model with its declaration, and the guards that make sure of the declaration.
#[derive(Clone, Debug)]
pub(crate) struct DeclaredSymbol {
    /// The symbol itself.
    pub symbol: Symbol,
    /// Its declaration; holds once all guards have passed.
    pub declaration: Option<Declaration>,
    /// The declared range, both ends included.
    pub range: Option<(i64, i64)>,
    /// The guards in order; each may rely on those before it.
    pub guards: Vec<SymbolGuard>,
}

/// How `check` gets the value of a symbol.
#[derive(Clone, Debug)]
pub(crate) struct SymbolBinding {
    /// The symbol that is bound.
    pub declared: DeclaredSymbol,
    /// Where its value comes from.
    pub source: ValueSource,
}

/// The source of a symbol's value.
#[derive(Clone, Debug)]
pub(crate) enum ValueSource {
    /// The declaration allows only this value.
    Fixed(i64),
    /// The size of an axis is `coefficient * symbol + rest`, which is solved for the symbol.
    Axis {
        /// The axis that the value is read from.
        axis: InputAxis,
        /// An expression over symbols that are bound earlier.
        coefficient: Dim,
        /// An expression over symbols that are bound earlier.
        rest: Dim,
        /// The symbol's value where the coefficient is zero, as any value fits then; `None` where it is never zero.
        if_zero: Option<i64>,
        /// The failure where the equation has no integer solution.
        inexact: Failure,
    },
}

/// A guard on the value of one symbol.
#[derive(Clone, Debug)]
pub(crate) struct SymbolGuard {
    /// The condition that the value must meet.
    pub condition: Condition,
    /// The declared range, both ends included, for the message.
    pub range: (i64, i64),
    /// The failure where it does not.
    pub failure: Failure,
}

/// A condition on the value of one symbol.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The value is in the guard's range.
    InRange,
    /// The value is in this list, which ascends.
    OneOf(Vec<i64>),
    /// The distance of the value from the range's lower end is a multiple of this step.
    StepOf(i64),
}

/// A guard on the size of an axis.
#[derive(Clone, Debug)]
pub(crate) struct AxisGuard {
    /// The axis that is checked.
    pub axis: InputAxis,
    /// The size that it must have.
    pub dim: Dim,
    /// The failure where it has another one.
    pub failure: Failure,
}

/// A guard on a relation between symbols.
#[derive(Clone, Debug)]
pub(crate) struct RelationGuard {
    /// The relation that must hold.
    pub relation: Relation,
    /// The failure where it does not.
    pub failure: Failure,
}

impl RelationGuard {
    /// The guard that checks an assumption.
    pub(crate) fn of(assumption: &Assumption) -> RelationGuard {
        let relation = assumption.relation.clone();
        let failure = Failure {
            symbol_name: Some(relation.to_string()),
            why: Some(assumption.origin.to_string()),
            ..Failure::new(Code::FactBroken)
        };
        RelationGuard { relation, failure }
    }
}
