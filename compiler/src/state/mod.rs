//! Declares the state of a graph: which inputs are outputs of the call before.
//!
//! A pair of an input and an output becomes state in one of two ways:
//!
//! - *appended*: the output is the input with new rows after it, along one axis. The number of rows is a symbol.
//! - *overwritten*: both have the same shape, and a call writes the whole tensor.
//!
//! Pairs come from the caller ([`StateRequest::pairs`]) or are found ([`find`]). Each is proven on the optimised graph
//! ([`prove`]). The pass adds the capacity to the graph's symbols, and the fact that the rows after a call fit in it.
//! Later stages give state memory of its own, see [`crate::kernel::StateBlock`].

mod find;
mod id;
mod pattern;
mod prove;

pub use pattern::PairPattern;

use crate::{
    error::{Error, Result},
    graph::{Graph, State, StateRows},
};
use prove::Proof;
use symshape::{Declaration, Dim, Relation, Symbol};

/// The name of the symbol that is the number of rows that a state has memory for.
const CAPACITY: &str = "capacity";

/// The state that a caller wants a model to have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StateRequest {
    /// Pairs of an input and an output, or patterns of them. It is an error if one can't be state.
    pub pairs: Vec<PairPattern>,
    /// Whether to add all pairs that can be found and proven.
    pub find: bool,
}

impl StateRequest {
    /// All pairs that can be found and proven.
    pub fn find() -> StateRequest {
        StateRequest { pairs: Vec::new(), find: true }
    }

    /// These pairs, each as `IN=OUT` with `*` in both for any text; and with `find`, all pairs that can be found.
    ///
    /// # Errors
    /// `Usage` if a pair has another form.
    pub fn new<'t>(pairs: impl IntoIterator<Item = &'t str>, find: bool) -> Result<StateRequest> {
        let pairs = pairs.into_iter().map(str::parse).collect::<Result<_>>()?;
        Ok(StateRequest { pairs, find })
    }

    /// These pairs, and no others.
    ///
    /// # Errors
    /// As [`StateRequest::new`].
    pub fn pairs<'t>(pairs: impl IntoIterator<Item = &'t str>) -> Result<StateRequest> {
        StateRequest::new(pairs, false)
    }

    /// Whether the model keeps no state.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && !self.find
    }
}

/// Declares the requested state of `graph`, which must be optimised.
///
/// # Errors
/// A requested pair that can't be state, with the cause; or a request to find state in a graph without any.
pub fn declare(graph: &mut Graph, request: &StateRequest) -> Result<()> {
    if request.is_empty() {
        return Ok(());
    }

    let mut proofs: Vec<Proof> = Vec::new();
    for pattern in &request.pairs {
        for (input, output) in pattern.matches(graph)? {
            if let Some(other) = proofs.iter().find(|proof| proof.input == input || proof.output == output) {
                let names = other.names(graph);
                return Err(Error::invalid(format!("--state {pattern}: {names} is declared already")));
            }
            let proof = prove::prove(graph, input, output);
            proofs.push(proof.map_err(|cause| Error::invalid(format!("--state {pattern}: {cause}")))?);
        }
    }
    if request.find {
        find::add(graph, &mut proofs);
    }
    if proofs.is_empty() {
        let message = "--stateful: no pair of an input and an output is state: no output is an input with new rows, \
                       and no names and shapes agree; declare pairs with --state IN=OUT";
        return Err(Error::invalid(message));
    }

    proofs.sort_by_key(|proof| proof.input);
    let rows = rows(graph, &proofs)?;
    let pairs: Vec<_> = proofs.into_iter().map(|proof| proof.pair()).collect();
    let id = id::id(graph, &pairs);
    graph.state = Some(State { pairs, rows, id });
    Ok(())
}

/// The rows that all appended pairs share, with a new symbol for the capacity.
fn rows(graph: &mut Graph, proofs: &[Proof]) -> Result<Option<StateRows>> {
    let mut appended = proofs.iter().filter_map(|proof| Some((proof, proof.rows.as_ref()?)));
    let Some((first, rows)) = appended.next() else { return Ok(None) };
    for (other, own) in appended {
        if own.length != rows.length || !graph.facts.prove_eq(&own.growth, &rows.growth).is_yes() {
            let message = format!(
                "{} appends {} rows to {}, but {} appends {} rows to {}: all appended pairs of a state must have one length",
                first.names(graph),
                rows.growth,
                rows.length,
                other.names(graph),
                own.growth,
                own.length,
            );
            return Err(Error::invalid(message));
        }
    }

    let length = rows.length.clone();
    let growth = rows.growth.clone();
    let capacity = capacity(graph, &(Dim::from(&length) + &growth))?;
    Ok(Some(StateRows { length, capacity, growth }))
}

/// The symbol of the capacity. It is at least `rows`, the number of rows after a call.
fn capacity(graph: &mut Graph, rows: &Dim) -> Result<Symbol> {
    let Some(hi) = graph.facts.bounds(rows).hi else {
        let message = format!("the number of rows of the state, {rows}, has no upper bound");
        return Err(Error::invalid(message));
    };

    let is_free = |name: &String| graph.facts.declaration(&Symbol::new(name)).is_none();
    let names = std::iter::once(CAPACITY.to_string()).chain((2..).map(|n| format!("{CAPACITY}_{n}")));
    let name = names.into_iter().find(is_free).unwrap_or_default();
    let origin = "rows that the state has memory for";
    let capacity = Symbol::new(&name);
    let declared = graph.facts.declare(&capacity, Declaration::range(1, hi).origin(origin));
    declared.map_err(|error| Error::invalid(error.to_string()))?;
    let fits = Relation::le(rows.clone(), Dim::from(&capacity));
    graph
        .facts
        .assume(fits, "the rows after a call must fit in the state")
        .map_err(|error| Error::invalid(error.to_string()))?;
    graph.symbols.push(capacity.clone());
    Ok(capacity)
}
