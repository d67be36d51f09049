//! Whether the arena never shrinks as one symbol grows: then a budget can be bisected.

use super::arena::Plan;
use crate::kernel::Program;
use num_traits::Signed;
use std::collections::HashSet;
use symshape::{Declaration, Dim, Facts, Symbol};

/// Whether `arena_bytes` provably never decreases as one symbol grows within its declaration and the others stay.
///
/// The arena is the longest path of a fixed order, so it is monotone if every buffer is. Relations between symbols
/// hold in calls, but not on the way from one call to a larger one: a program that has any is not proven.
pub(crate) fn is_monotone(program: &Program, plan: &Plan) -> bool {
    if !program.facts.assumptions().is_empty() {
        return false;
    }
    let mut facts = Facts::new();
    for symbol in &program.symbols {
        let Some(declared) = program.facts.declaration(symbol) else { return false };
        if facts.declare(symbol, declared.clone()).is_err() {
            return false;
        }
    }

    // Many buffers have the same size.
    let sizes: HashSet<Dim> =
        plan.placements.iter().map(|placement| program.bytes(placement.buffer)).collect();
    sizes.iter().all(|bytes| size_is_monotone(&facts, bytes))
}

fn size_is_monotone(facts: &Facts, bytes: &Dim) -> bool {
    let mut symbols = bytes.symbols().into_iter();
    symbols.all(|symbol| match facts.declaration(&symbol) {
        Some(declared) => never_decreases(facts, bytes, &symbol, declared),
        None => false,
    })
}

/// Whether no step from one allowed value of the symbol to the next decreases `bytes`.
fn never_decreases(facts: &Facts, bytes: &Dim, symbol: &Symbol, declared: &Declaration) -> bool {
    let at = |value: &Dim| bytes.substitute(&|other| (other == symbol).then(|| value.clone()));
    let is_step = |from: &Dim, to: &Dim| {
        let growth = facts.simplify(&(at(to) - at(from)));
        facts.bounds(&growth).lo.is_some_and(|lo| !lo.is_negative())
    };

    match &declared.values {
        Some(values) => {
            values.windows(2).all(|pair| is_step(&Dim::from(pair[0].clone()), &Dim::from(pair[1].clone())))
        }
        None => {
            let value = Dim::from(symbol);
            is_step(&value, &(&value + Dim::from(declared.step.clone())))
        }
    }
}
