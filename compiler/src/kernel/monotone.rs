//! Sizes that never decrease as a symbol grows.

use super::Program;
use num_traits::Signed;
use symshape::{Declaration, Dim, Facts, Symbol};

/// The declarations of the program's symbols, without the relations between them: those hold in calls, but not on the
/// way from one call to a larger one. `None` if a symbol has no declaration.
pub(crate) fn declarations(program: &Program) -> Option<Facts> {
    let mut facts = Facts::new();
    for symbol in &program.symbols {
        let declared = program.facts.declaration(symbol)?;
        facts.declare(symbol, declared.clone()).ok()?;
    }
    Some(facts)
}

/// Whether `size` provably never decreases as the symbol grows within its declaration and all others stay.
pub(crate) fn never_decreases(facts: &Facts, size: &Dim, symbol: &Symbol) -> bool {
    match facts.declaration(symbol) {
        Some(declared) => never_steps_down(facts, size, symbol, declared),
        None => false,
    }
}

/// Whether no step from one allowed value of the symbol to the next decreases `size`.
fn never_steps_down(facts: &Facts, size: &Dim, symbol: &Symbol, declared: &Declaration) -> bool {
    let at = |value: &Dim| size.substitute(&|other| (other == symbol).then(|| value.clone()));
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
