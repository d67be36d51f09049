//! Violations of the contract that an artefact reports, and names of tensors for messages.

use crate::{SymbolInfo, abi::Error, descriptor::Desc};
use alloc::sync::Arc;
use core::{
    ffi::{CStr, c_char},
    fmt,
};

/// A violation of the contract that the artefact reported. Creating one allocates nothing.
#[derive(Clone)]
pub struct Violation {
    model: Arc<Desc>,
    error: Error,
}

// SAFETY: the pointers of the error point to constant data of the artefact, which `model` keeps loaded.
unsafe impl Send for Violation {}
// SAFETY: as above.
unsafe impl Sync for Violation {}

impl Violation {
    /// The violation that `model` reported as `error`.
    pub(crate) fn new(model: &Arc<Desc>, error: Error) -> Violation {
        Violation { model: model.clone(), error }
    }

    /// One of [`crate::abi::Code`], as a number.
    pub fn code(&self) -> i32 {
        self.error.code
    }

    /// The name of the symbol, or the text of the derived dim.
    pub fn symbol(&self) -> Option<&str> {
        let info = self.model.symbols.get(self.error.symbol as usize);
        self.text(self.error.symbol_name).or(info.map(|info| info.name.as_str()))
    }

    /// The declaration of the symbol, if the violation concerns one.
    pub fn declared(&self) -> Option<&SymbolInfo> {
        self.model.symbols.get(self.error.symbol as usize)
    }

    /// The actual value.
    pub fn value(&self) -> i64 {
        self.error.value
    }

    /// Smallest value allowed.
    pub fn lo(&self) -> i64 {
        self.error.lo
    }

    /// Largest value allowed.
    pub fn hi(&self) -> i64 {
        self.error.hi
    }

    /// Name of the tensor, or of the node that failed.
    pub fn tensor(&self) -> Option<&str> {
        let info = self.model.inputs.get(self.error.tensor as usize);
        self.text(self.error.tensor_name).or(info.map(|info| info.name.as_str()))
    }

    /// The axis of that tensor, if it is an input.
    pub fn axis(&self) -> Option<usize> {
        let is_input = self.error.tensor != u32::MAX && self.error.axis != u32::MAX;
        is_input.then_some(self.error.axis as usize)
    }

    /// The index of the state, if the violation concerns one of several.
    pub fn state(&self) -> Option<usize> {
        let is_state =
            self.error.tensor == u32::MAX && self.text(self.error.tensor_name) == Some("the state");
        is_state.then(|| (self.error.axis as usize).checked_sub(1)).flatten()
    }

    /// One more line of explanation: the declaration and its place.
    pub fn why(&self) -> Option<&str> {
        self.text(self.error.why)
    }

    /// A string of the artefact.
    fn text(&self, at: *const c_char) -> Option<&str> {
        // SAFETY: by the ABI the strings of an error are null or live as long as the artefact, which `model` keeps.
        (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_str().unwrap_or("?"))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tensor) = self.tensor() {
            // The place of an error inside the model contains a quoted name.
            if let Some(idx) = self.state() {
                write!(f, "state {idx} ")?;
            } else if tensor.contains('`') || tensor == "the state" {
                write!(f, "{tensor} ")?;
            } else {
                write!(f, "`{tensor}` ")?;
            }

            if let Some(axis) = self.axis() {
                write!(f, "axis {axis} ")?;
            }
        }

        let symbol = self.symbol().unwrap_or("the dim");
        let value = self.value();
        let why = self.why();
        match (self.code(), why) {
            (1 | 2, Some(why)) => return write!(f, "gives {symbol} = {value}; {why}"),
            (1 | 2, None) => write!(f, "gives {symbol} = {value}; {symbol} is ")?,
            (3, _) => write!(f, "is {value}; {} is expected", self.lo())?,
            (4, _) => write!(f, "the sizes break {symbol}")?,
            // The value of a data-dependent symbol.
            (5, _) if !self.error.symbol_name.is_null() => {
                write!(f, "gives {symbol} = {value}, outside {}..={}", self.lo(), self.hi())?;
            }
            (5, _) => write!(f, "has the index {value}, outside {}..={}", self.lo(), self.hi())?,
            (6, _) => f.write_str("can't be computed at these sizes")?,
            (7, _) => write!(f, "calls {symbol}, which fails with code {value}")?,
            (8, _) => f.write_str(
                "partitions can't run at once: the arena is not planned for it; use another policy",
            )?,
            (9, _) => f.write_str("no tile registers")?,
            (11, _) => {
                let capacity = self.hi();
                return write!(f, "has memory for {capacity} rows; there would be {value} after the call");
            }
            (10, Some(why)) => return write!(f, "does not fit the call: {why}"),
            (code, _) => write!(f, "failed with code {code}")?,
        }

        match (self.code(), self.declared(), why) {
            (1 | 2, Some(declared), _) => write!(f, "declared {declared}"),
            (1 | 2, None, _) => write!(f, "to be {}..={}", self.lo(), self.hi()),
            (_, _, Some(why)) => write!(f, " ({why})"),
            (_, _, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Violation({self})")
    }
}

/// The name of an input or output of a model, which it keeps loaded.
#[derive(Clone)]
pub struct TensorName {
    model: Arc<Desc>,
    is_output: bool,
    idx: usize,
}

impl TensorName {
    /// The name of input `idx`.
    pub(crate) fn input(model: &Arc<Desc>, idx: usize) -> TensorName {
        TensorName { model: model.clone(), is_output: false, idx }
    }

    /// The name of output `idx`.
    pub(crate) fn output(model: &Arc<Desc>, idx: usize) -> TensorName {
        TensorName { model: model.clone(), is_output: true, idx }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let table = if self.is_output { &self.model.outputs } else { &self.model.inputs };
        table[self.idx].name()
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
