//! Data-dependent symbols, whose values are known only at run time, and the upper bounds that memory is sized for.

use crate::error::{Error, Result};
use symshape::{Dim, Facts, Symbol};

/// A data-dependent symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DataDependent {
    /// The symbol, which [`Control::Bind`](super::Control::Bind) binds at run time.
    pub symbol: Symbol,
    /// An upper bound of its value, an expression over the model's symbols.
    pub upper_bound: Dim,
}

/// The value of a dim while one of its data-dependent symbols is unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct UnknownValue {
    /// Indices of the dim's data-dependent symbols.
    pub(crate) symbols: Vec<usize>,
    /// An expression over the model's symbols.
    pub(crate) upper_bound: Dim,
}

/// `dim` with every data-dependent symbol replaced by its upper bound.
pub fn at_upper_bounds(facts: &Facts, entries: &[DataDependent], dim: &Dim) -> Dim {
    let value_of = |symbol: &Symbol| {
        entries.iter().find(|entry| entry.symbol == *symbol).map(|entry| entry.upper_bound.clone())
    };
    facts.simplify(&dim.substitute(&value_of))
}

/// An upper bound of `dim` over the model's symbols alone, as sizes of memory require; never negative if `dim` has a
/// data-dependent symbol. `None` if there is no bound.
pub fn upper_bound(facts: &Facts, entries: &[DataDependent], dim: &Dim) -> Option<Dim> {
    if !entries.iter().any(|entry| dim.contains(&entry.symbol)) {
        return Some(dim.clone());
    }

    // The substitution gives an upper bound only if the dim increases with each symbol.
    let substituted = at_upper_bounds(facts, entries, dim);
    let bound = if facts.prove_le(dim, &substituted).is_yes() {
        substituted
    } else {
        facts.bounds(dim).hi.map(Dim::from)?
    };
    if facts.prove_le(&Dim::zero(), &bound).is_yes() { Some(bound) } else { Some(Dim::max(&bound, 0)) }
}

/// The data-dependent symbols of `dim`, as indices into `entries`, and the value of `dim` while they are unknown, where
/// that is not the value at their upper bounds: `10 - M` is at most 10 and not `10 - max M`. `None` if it is.
///
/// # Errors
/// If `dim` has no upper bound.
pub(crate) fn unknown_value(
    facts: &Facts,
    entries: &[DataDependent],
    dim: &Dim,
) -> Result<Option<UnknownValue>> {
    let upper_bound = upper_bound(facts, entries, dim)
        .ok_or_else(|| Error::unsupported(format!("a size of `{dim}` has no upper bound")))?;
    if upper_bound == at_upper_bounds(facts, entries, dim) || upper_bound == *dim {
        return Ok(None);
    }
    let symbols = (0..entries.len()).filter(|idx| dim.contains(&entries[*idx].symbol)).collect();
    Ok(Some(UnknownValue { symbols, upper_bound }))
}
