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
//!
//! On request, appended rows of `f32` are rounded to 16 bits before ([`round_rows`]).

mod find;
mod id;
mod pairs;
mod pattern;
mod prove;
mod request;
mod round_rows;

pub use pattern::PairPattern;
pub use request::{StateRequest, row_type};
pub use round_rows::round_rows;

use crate::{
    error::{Error, Result},
    graph::{Graph, State, StateRows},
};
use prove::Proof;
use symshape::{Declaration, Dim, Relation, Symbol};

/// The name of the symbol that is the number of rows that a state has memory for.
const CAPACITY: &str = "capacity";

/// Declares the requested state of `graph`, which must be optimised.
///
/// # Errors
/// A requested pair that can't be state, with the cause; or a request to find state in a graph without any.
pub fn declare(graph: &mut Graph, request: &StateRequest) -> Result<()> {
    if request.is_empty() {
        return Ok(());
    }

    let proofs = pairs::proofs(graph, request)?;
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
