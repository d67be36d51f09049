//! The state of a verification within one kernel, and the rules about names and addresses.

use crate::{
    error::{Error, Result},
    kernel::{Access, Axis, Kernel, Program},
};
use num_bigint::BigInt;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Answer, Dim, Facts, Relation, Symbol};

/// The symbols and facts at one place of a kernel.
#[derive(Clone)]
pub(super) struct Scope {
    pub(super) facts: Facts,
    pub(super) symbols: BTreeSet<Symbol>,
    /// Whether this place runs under a condition that the facts don't include.
    pub(super) guarded: bool,
    /// Whether an enclosing loop never runs, so that nothing is accessed.
    pub(super) idle: bool,
}

/// The verification of one kernel.
pub(super) struct Checker<'a> {
    pub(super) program: &'a Program,
    pub(super) kernel: &'a Kernel,
    /// All symbols introduced so far.
    seen: BTreeSet<Symbol>,
    /// Positions of instructions of the current code whose accesses are proven.
    pub(super) proven: BTreeSet<usize>,
    /// Statements that are neither proven nor refuted.
    pub(super) unproven: Vec<String>,
}

/// Checks that an expression uses only symbols in scope.
pub(super) fn in_scope(dim: &Dim, scope: &BTreeSet<Symbol>) -> Result<()> {
    match dim.symbols().into_iter().find(|symbol| !scope.contains(symbol)) {
        None => Ok(()),
        Some(symbol) => Err(Error::invalid(format!("symbol {symbol} is not in scope in `{dim}`"))),
    }
}

impl<'a> Checker<'a> {
    /// A checker that has seen the symbols of the program.
    pub(super) fn new(program: &'a Program, kernel: &'a Kernel, symbols: BTreeSet<Symbol>) -> Checker<'a> {
        Checker { program, kernel, seen: symbols, proven: BTreeSet::new(), unproven: Vec::new() }
    }

    /// Adds a symbol to the scope. Its name must be new in the kernel.
    pub(super) fn introduce(&mut self, symbol: &Symbol, scope: &mut Scope) -> Result<()> {
        if !self.seen.insert(symbol.clone()) {
            return Err(Error::invalid(format!("{symbol} is introduced twice")));
        }
        scope.symbols.insert(symbol.clone());
        Ok(())
    }

    /// Adds a loop variable to the scope.
    pub(super) fn axis(&mut self, axis: &Axis, scope: &mut Scope) -> Result<()> {
        in_scope(&axis.extent, &scope.symbols)?;
        self.introduce(&axis.var, scope)?;
        scope.idle |= scope.facts.prove_le(&axis.extent, &Dim::zero()).is_yes();
        scope.facts.declare_index(&axis.var, &axis.extent);
        Ok(())
    }

    /// Checks that an access is within its buffer: `0 <= index < elems`.
    pub(super) fn access(&mut self, access: &Access, scope: &Scope) -> Result<()> {
        in_scope(&access.index, &scope.symbols)?;
        if scope.idle {
            return Ok(());
        }

        let elems = &self.program.buffers[access.buffer].elems;
        let at = scope.facts.simplify(&access.index);
        self.relations(access, [Relation::le(Dim::zero(), &at), Relation::lt(&at, elems)], scope)
    }

    /// Checks that a store to an appended tensor of the state is in the rows that the call appends. Rows of the calls
    /// before are never written.
    pub(super) fn new_rows(&mut self, access: &Access, tensor: usize, scope: &Scope) -> Result<()> {
        let state = self.program.state.as_ref();
        let Some((tensor, rows)) =
            state.and_then(|state| Some((state.tensors.get(tensor)?, state.rows.as_ref()?)))
        else {
            return Ok(());
        };
        let Some(axis) = tensor.axis.filter(|_| !scope.idle) else { return Ok(()) };
        let row_elems = Dim::product(tensor.shape[axis + 1..].iter().cloned());
        let row = access.index.floor_div(&row_elems).modulo(&rows.capacity);
        let row = scope.facts.simplify(&row);
        let length = Dim::from(&rows.length);
        let end = &length + &rows.growth;
        self.relations(access, [Relation::le(&length, &row), Relation::lt(&row, &end)], scope)
    }

    /// Proves both relations about an access.
    fn relations(&mut self, access: &Access, relations: [Relation; 2], scope: &Scope) -> Result<()> {
        for relation in relations {
            match scope.facts.prove(&relation) {
                Answer::Yes(_) => {}
                Answer::No(example) if !scope.guarded => {
                    let values = list(&example.values);
                    return Err(Error::invalid(format!("{access}: not `{relation}` where {values}")));
                }
                Answer::No(_) | Answer::Unknown => self.unproven.push(format!("{access}: `{relation}`")),
            }
        }
        Ok(())
    }
}

/// The values of some symbols as text: `N = 1, S = 8`.
fn list(values: &BTreeMap<Symbol, BigInt>) -> String {
    let texts: Vec<String> = values.iter().map(|(symbol, value)| format!("{symbol} = {value}")).collect();
    texts.join(", ")
}
