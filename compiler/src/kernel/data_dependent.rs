//! Sizes that are found while running, and what they may be at most.

use symshape::{Dim, Facts, Symbol};

/// A symbol whose value is found while running.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataDependent {
    /// The symbol; [`super::Control::Bind`] gives it its value.
    pub symbol: Symbol,
    /// It is never larger than this, an expression over the model's symbols.
    pub upper_bound: Dim,
}

/// `dim` with what is found while running at its own bound.
pub fn at_upper_bounds(facts: &Facts, found: &[DataDependent], dim: &Dim) -> Dim {
    let value_of = |symbol: &Symbol| {
        found.iter().find(|found| found.symbol == *symbol).map(|found| found.upper_bound.clone())
    };
    facts.simplify(&dim.substitute(&value_of))
}

/// An upper bound of `dim` over the model's symbols alone, as sizes of memory are: what is found while running stands at
/// its own bound. No less than 0, also where what is required of what is found keeps `dim` from being less. `None` where
/// there is no bound.
pub fn upper_bound(facts: &Facts, found: &[DataDependent], dim: &Dim) -> Option<Dim> {
    if !found.iter().any(|found| dim.contains(&found.symbol)) {
        return Some(dim.clone());
    }
    let bound = at_upper_bounds(facts, found, dim);
    // Putting in the bounds is right where the dim grows with each symbol.
    let bound = match facts.prove_le(dim, &bound).is_yes() {
        true => bound,
        false => facts.bounds(dim).hi.map(Dim::from)?,
    };
    match facts.prove_le(&Dim::zero(), &bound).is_yes() {
        true => Some(bound),
        false => Some(Dim::max(&bound, 0)),
    }
}
