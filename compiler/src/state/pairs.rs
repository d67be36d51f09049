//! The pairs of a request, each with its proof.

use super::{
    find,
    prove::{self, Proof},
    request::StateRequest,
};
use crate::{
    error::{Error, Result},
    graph::Graph,
};

/// The proven pairs, in the order of their inputs.
///
/// # Errors
/// A requested pair that can't be state, with the cause; or a request to find state in a graph without any.
pub(super) fn proofs(graph: &Graph, request: &StateRequest) -> Result<Vec<Proof>> {
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
    Ok(proofs)
}
