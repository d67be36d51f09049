//! The request of a caller.

use super::pattern::PairPattern;
use crate::error::{Error, ErrorKind, Result};
use symshape_runtime::DType;

/// The state that a caller wants a model to have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StateRequest {
    /// Pairs of an input and an output, or patterns of them. It is an error if one can't be state.
    pub pairs: Vec<PairPattern>,
    /// Whether to add all pairs that can be found and proven.
    pub find: bool,
    /// The type that appended rows of `f32` are stored in, `f16` or `bf16`; `None` keeps them.
    pub row_type: Option<DType>,
}

impl StateRequest {
    /// All pairs that can be found and proven.
    pub fn find() -> StateRequest {
        StateRequest { find: true, ..StateRequest::default() }
    }

    /// These pairs, each as `IN=OUT` with `*` in both for any text; and with `find`, all pairs that can be found.
    ///
    /// # Errors
    /// `Usage` if a pair has another form.
    pub fn new<'t>(pairs: impl IntoIterator<Item = &'t str>, find: bool) -> Result<StateRequest> {
        let pairs = pairs.into_iter().map(str::parse).collect::<Result<_>>()?;
        Ok(StateRequest { pairs, find, row_type: None })
    }

    /// These pairs, and no others.
    ///
    /// # Errors
    /// As [`StateRequest::new`].
    pub fn pairs<'t>(pairs: impl IntoIterator<Item = &'t str>) -> Result<StateRequest> {
        StateRequest::new(pairs, false)
    }

    /// Sets [`StateRequest::row_type`].
    pub fn row_type(self, row_type: impl Into<Option<DType>>) -> StateRequest {
        StateRequest { row_type: row_type.into(), ..self }
    }

    /// Whether the model keeps no state.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty() && !self.find
    }
}

/// The type of this name for [`StateRequest::row_type`].
///
/// # Errors
/// `Usage` if it is neither `f16` nor `bf16`.
pub fn row_type(name: &str) -> Result<DType> {
    match name {
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err(Error::new(
            ErrorKind::Usage,
            format!("type {name} of the rows of a state: expected f16 or bf16"),
        )),
    }
}
