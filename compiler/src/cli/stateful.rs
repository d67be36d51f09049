//! State on the command line: its arguments, its file, and the words about it.

use super::{
    errors::{at_path, usage},
    progress::Progress,
};
use crate::{
    accuracy::{self, StateError},
    error::{At, Error, ErrorKind, Result},
    graph::Graph,
    kernel::Program,
    state::{self, StateRequest},
    tensor::Tensor,
};
use serde_json::{Value as Json, json};
use std::{ffi::OsString, fs, path::Path};
use symshape_runtime::{DType, Model, State};

/// Inputs that are outputs of the call before.
#[derive(clap::Args, Clone, Debug, Default)]
pub(super) struct StateArgs {
    /// Keep this input between calls: it is this output of the call before, with new rows or overwritten. One `*` in
    /// both names stands for any text, as in 'past_key_values.*=present.*'
    #[arg(id = "state_pairs", long = "state", value_name = "IN=OUT")]
    pub pairs: Vec<String>,
    /// Find the inputs that are outputs of the call before, by definitions, names and shapes. Calls of C source and of
    /// WebAssembly take one state
    #[arg(long)]
    pub stateful: bool,
    /// Store the appended rows of f32, such as keys and values, as f16 or bf16. `symc compile` measures the error
    #[arg(long, value_name = "TYPE", value_parser = state::row_type)]
    pub state_type: Option<DType>,
}

impl StateArgs {
    /// Whether a model with state is wanted.
    pub(super) fn is_given(&self) -> bool {
        self.stateful || !self.pairs.is_empty() || self.state_type.is_some()
    }

    /// The request for the compiler.
    pub(super) fn request(&self) -> Result<StateRequest> {
        let request = StateRequest::new(self.pairs.iter().map(String::as_str), self.stateful)?;
        Ok(request.row_type(self.state_type))
    }

    /// The command line of these arguments.
    pub(super) fn command_line(&self) -> impl Iterator<Item = OsString> {
        let pairs = self.pairs.iter().flat_map(|pair| [OsString::from("--state"), pair.into()]);
        let row_type = self.state_type.map(|row_type| format!("--state-type={row_type}").into());
        pairs.chain(self.stateful.then(|| "--stateful".into())).chain(row_type)
    }

    /// Refuses the arguments in a command that calls models without state.
    pub(super) fn refuse(&self, command: &str, instead: &str) -> Result<()> {
        if self.is_given() {
            return Err(usage(format!(
                "{command} takes neither --state nor --stateful nor --state-type: {instead}"
            )));
        }
        Ok(())
    }
}

/// The state of an artefact for its summary.
pub(super) struct StateSummary {
    pairs: Vec<String>,
    length: Option<String>,
    capacity: Option<String>,
    max_bytes: u64,
    formula: String,
    /// The largest number of states of a call, or why it takes one.
    max_states: Result<u64, String>,
    /// The error of rows of 16 bits, if it was measured.
    pub(super) row_error: Option<StateError>,
}

impl StateSummary {
    /// The state of a program, if it has any.
    pub(super) fn of(program: &Program) -> Option<StateSummary> {
        let state = program.state.as_ref()?;
        let bytes = program.state_offsets().pop()?;
        let max_bytes = program.facts.bounds(&bytes).hi.and_then(|bytes| u64::try_from(bytes).ok());
        let rows = state.rows.as_ref();
        let max_states = match &program.sequences {
            Some(Err(cause)) => Err(cause.clone()),
            _ => Ok(program.max_states()),
        };
        Some(StateSummary {
            pairs: state.tensors.iter().map(|tensor| format!("{}={}", tensor.input, tensor.output)).collect(),
            length: rows.map(|rows| rows.length.to_string()),
            capacity: rows.map(|rows| rows.capacity.to_string()),
            max_bytes: max_bytes.unwrap_or(u64::MAX),
            formula: bytes.to_string(),
            max_states,
            row_error: None,
        })
    }

    /// The part of the summary's line.
    pub(super) fn phrase(&self) -> String {
        let names = match &self.pairs[..] {
            [first, .., last] if self.pairs.len() > 4 => {
                format!("{} tensors, {first} to {last}", self.pairs.len())
            }
            pairs => pairs.join(", "),
        };
        let rows = self.length.as_ref().map_or(String::new(), |length| format!(", {length} is its length"));
        let states = match &self.max_states {
            Ok(max) => format!("a call takes up to {max} states"),
            Err(cause) => format!("a call takes one state, because {cause}"),
        };
        let error = self.row_error.as_ref().map_or(String::new(), error_phrase);
        format!("state at most {} B ({names}{rows}; {states}{error})", self.max_bytes)
    }

    /// The entry of the summary's object.
    pub(super) fn json(&self) -> Json {
        let row_error = self.row_error.as_ref().map(|error| {
            json!({ "type": error.row_type.to_string(), "max_error": error.max_error, "at": error.at })
        });
        json!({
            "pairs": self.pairs, "length": self.length, "capacity": self.capacity, "max_bytes": self.max_bytes,
            "bytes": self.formula, "max_states": *self.max_states.as_ref().unwrap_or(&1),
            "one_state": self.max_states.as_ref().err(), "row_error": row_error,
        })
    }
}

/// The words about the error of rows of 16 bits.
fn error_phrase(StateError { row_type, max_error, at }: &StateError) -> String {
    let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
    format!("; rows as {row_type} move an output by at most {max_error:.1e} of its largest element{at}")
}

/// The error of the rows that the request rounds. Where it can't be measured, standard error says why.
pub(super) fn row_error(
    path: &Path,
    graph: &Graph,
    request: &StateRequest,
    progress: &Progress,
) -> Result<Option<StateError>> {
    if request.row_type.is_none() {
        return Ok(None);
    }
    progress.say("measuring the error of the state");
    match accuracy::state_error(graph, request) {
        Err(error) if error.kind() == ErrorKind::Usage => Err(error),
        Err(error) => {
            eprintln!("symc: {}: the error of the state is not measured: {error}", path.display());
            Ok(None)
        }
        measured => measured,
    }
}

/// The largest capacity that the model allows; 0 if its state has no rows.
pub(super) fn max_capacity(model: &Model) -> usize {
    let hi = model.capacity_symbol().map_or(0, |at| model.symbols()[at].hi());
    usize::try_from(hi).unwrap_or(0)
}

/// Capacity and length of the state at these dims; zeros if it has no rows.
pub(super) fn rows(model: &Model, dims: &[i64]) -> (usize, usize) {
    let value = |symbol: Option<usize>| symbol.and_then(|at| usize::try_from(dims[at]).ok()).unwrap_or(0);
    (value(model.capacity_symbol()), value(model.length_symbol()))
}

/// The other sizes of a state, from the dims of a call.
pub(super) fn sizes<'m>(model: &'m Model, dims: &[i64]) -> Vec<(&'m str, i64)> {
    let is_size = |name: &str| {
        let is_rows = |axis: usize, tensor: &symshape_runtime::StateInfo| Some(axis) == tensor.axis();
        model.state().iter().any(|tensor| {
            let mut dims = tensor.dims().iter().enumerate();
            dims.any(|(axis, dim)| !is_rows(axis, tensor) && contains(dim, name))
        })
    };
    let symbols = model.symbols().iter().zip(dims);
    symbols.filter(|(symbol, _)| is_size(symbol.name())).map(|(symbol, dim)| (symbol.name(), *dim)).collect()
}

/// The other sizes of a state, from the inputs of its first call.
pub(super) fn sizes_of_inputs<'m>(model: &'m Model, inputs: &[Tensor]) -> Vec<(&'m str, i64)> {
    let value = |name: &str| {
        let axes = model
            .inputs()
            .iter()
            .zip(inputs)
            .flat_map(|(info, tensor)| info.dims().iter().zip(tensor.shape()));
        axes.into_iter().find_map(|(dim, size)| (dim == name).then_some(*size as i64))
    };
    let found: Vec<Option<i64>> = model.symbols().iter().map(|symbol| value(symbol.name())).collect();
    let dims: Vec<i64> = found.iter().map(|size| size.unwrap_or(i64::MIN)).collect();
    sizes(model, &dims).into_iter().filter(|(_, size)| *size != i64::MIN).collect()
}

/// Whether the text of a dim contains a symbol.
fn contains(dim: &str, symbol: &str) -> bool {
    dim.parse::<symshape::Dim>().is_ok_and(|dim| dim.contains(&symshape::Symbol::new(symbol)))
}

/// The state in a file, or a new one if there is no such file.
pub(super) fn open(model: &Model, path: &Path, sizes: &[(&str, i64)]) -> Result<State> {
    if model.state().is_empty() {
        return Err(usage("the model has no state: compile it with --stateful or --state IN=OUT"));
    }
    let place = || path.display().to_string();
    let state = if path.exists() {
        State::load(model, &at_path(fs::read(path), path)?)
    } else {
        State::with_dims(model, max_capacity(model), sizes)
    };
    state.map_err(|error| Error::new(ErrorKind::Usage, error.to_string())).at(place)
}

/// Writes a state to a file.
pub(super) fn save(state: &State, path: &Path) -> Result<()> {
    crate::emit::write_atomically(path, &state.save())
}
