//! Ragged batches: a padded model becomes one whose calls take sequences of different lengths without padding.
//!
//! The padded model has a batch axis and a length axis, and mostly a mask input. A call of the ragged model gives each
//! sequence the results that the padded model gives to this sequence alone, at a batch of 1 and with a mask of ones.
//!
//! The stage has two steps:
//!
//! 1. [`declare`] replaces the graph by that of one sequence. It refuses models whose padded results could depend on
//!    padding or on other sequences of the batch, see [`padding`].
//! 2. `divide` divides the scheduled kernels into those that run once over the rows of all sequences and those that
//!    run once for each sequence, see [`crate::kernel::Ragged`].

mod at_padding;
mod batch;
mod contents;
mod divide;
mod origin;
mod padding;
mod request;
mod token_input;

pub(crate) use batch::Batch;
pub(crate) use divide::divide;
pub use request::RaggedRequest;

use crate::{
    error::{Error, ErrorKind, Result},
    graph::Graph,
};
use padding::Padded;
use symshape::{Dim, Symbol};
use token_input::TokenInput;

/// Replaces `graph`, which must be optimised, by that of one sequence, whose length is the symbol `name`.
///
/// # Errors
/// A model for which the request can't be met, with the value and the reason.
pub(crate) fn declare(graph: &mut Graph, name: &str, request: &RaggedRequest) -> Result<Batch> {
    let length = symbol(graph, name)?;
    let batch = match &request.batch {
        Some(name) => symbol(graph, name)?,
        None => batch_of(graph, &length)?,
    };
    if batch == length {
        return Err(usage(format!("--ragged {name}: the batch and the length are the same symbol")));
    }
    let mask = token_input(graph, request, &batch, &length)?;
    let call = Batch::of(graph, request, &batch, &length, mask)?;
    batch::fix(graph, &batch, &length, mask)?;
    Ok(call)
}

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

fn symbol(graph: &Graph, name: &str) -> Result<Symbol> {
    let found = graph.symbols.iter().find(|symbol| symbol.name() == name);
    found.cloned().ok_or_else(|| {
        let names: Vec<&str> = graph.symbols.iter().map(Symbol::name).collect();
        usage(format!("--ragged: the model has no symbol {name}; it has {}", names.join(", ")))
    })
}

/// The symbol that is the first axis of all inputs that have the length as another axis.
fn batch_of(graph: &Graph, length: &Symbol) -> Result<Symbol> {
    let is_length = |dim: &Dim| dim.as_symbol() == Some(length);
    let mut found: Vec<Symbol> = Vec::new();
    for (_, value) in &graph.inputs {
        let shape = graph.shape(*value);
        if shape.iter().skip(1).any(is_length)
            && let Some(symbol) = shape[0].as_symbol()
            && !found.contains(symbol)
        {
            found.push(symbol.clone());
        }
    }
    match found.as_slice() {
        [symbol] => Ok(symbol.clone()),
        [] => Err(usage(format!(
            "--ragged {length}: no input has a batch axis before {length}; name the batch with --ragged-batch"
        ))),
        several => {
            let names: Vec<&str> = several.iter().map(Symbol::name).collect();
            let names = names.join(" or ");
            Err(usage(format!("--ragged {length}: the batch is {names}; choose one with --ragged-batch")))
        }
    }
}

/// The mask or the lengths, with the proof that padding does not reach the outputs. `None` if there is no such input
/// and none is necessary.
fn token_input(
    graph: &Graph,
    request: &RaggedRequest,
    batch: &Symbol,
    length: &Symbol,
) -> Result<Option<TokenInput>> {
    let prove = |mask: Option<TokenInput>| padding::prove(Padded { graph, batch, length, mask });
    if let Some(name) = &request.mask {
        let mask = Some(named_input(graph, name, batch, length)?);
        prove(mask).map_err(|unproven| unproven.error)?;
        return Ok(mask);
    }

    // The proof that comes furthest has the reason that the user can act on: other inputs are no masks.
    let Err(mut furthest) = prove(None) else { return Ok(None) };
    let mut found = Vec::new();
    for input in (0..graph.inputs.len()).filter_map(|idx| candidate(graph, idx, batch, length)) {
        match prove(Some(input)) {
            Ok(()) => found.push(input),
            Err(unproven) if unproven.position > furthest.position => furthest = unproven,
            Err(_) => {}
        }
    }
    match found.as_slice() {
        [input] => Ok(Some(*input)),
        [] => Err(furthest.error),
        several => {
            let names: Vec<&str> =
                several.iter().map(|input| graph.inputs[input.input()].0.as_str()).collect();
            let names = names.join(" or ");
            Err(usage(format!("--ragged {length}: the mask is {names}; choose one with --mask")))
        }
    }
}

/// The input as a mask or as lengths, if it has their shape.
fn candidate(graph: &Graph, idx: usize, batch: &Symbol, length: &Symbol) -> Option<TokenInput> {
    let value = graph.inputs[idx].1;
    match graph.shape(value) {
        [n, s] if n.as_symbol() == Some(batch) && s.as_symbol() == Some(length) => {
            Some(TokenInput::Mask(idx))
        }
        [n] if n.as_symbol() == Some(batch) && graph.dtype(value).is_int() => Some(TokenInput::Lengths(idx)),
        _ => None,
    }
}

/// The mask or the lengths that the request names.
fn named_input(graph: &Graph, name: &str, batch: &Symbol, length: &Symbol) -> Result<TokenInput> {
    let Some(idx) = graph.inputs.iter().position(|(other, _)| other == name) else {
        let names: Vec<&str> = graph.inputs.iter().map(|(name, _)| name.as_str()).collect();
        return Err(usage(format!(
            "--mask {name}: the model has no such input; it has {}",
            names.join(", ")
        )));
    };
    if let Some(input) = candidate(graph, idx, batch, length) {
        return Ok(input);
    }
    let dims: Vec<String> = graph.shape(graph.inputs[idx].1).iter().map(ToString::to_string).collect();
    let dims = dims.join(", ");
    Err(usage(format!(
        "--mask {name}: its shape is [{dims}]; expected a mask [{batch}, {length}], or integers [{batch}], the lengths"
    )))
}
