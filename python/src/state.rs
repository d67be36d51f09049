//! States: the memory that a model keeps from call to call.

use crate::{
    array::{self, Array},
    errors::exception,
    model::Model,
};
use pyo3::{prelude::*, types::PyBytes};
use std::sync::{Mutex, MutexGuard};
use symshape_runtime as runtime;
use symshape_runtime::StateError;

/// The state of one sequence, or of a batch of sequences of one length. One call at a time may use it.
#[pyclass(frozen, module = "symshape._native")]
pub(crate) struct State(Mutex<runtime::State>);

#[pymethods]
impl State {
    /// An empty state. `sizes` are the values of other symbols than the capacity.
    #[new]
    fn new(model: &Model, capacity: usize, sizes: Vec<(String, i64)>) -> PyResult<State> {
        State::made(runtime::State::with_dims(&model.0, capacity, &by_name(&sizes)))
    }

    /// The state that `save` wrote.
    #[staticmethod]
    fn load(model: &Model, bytes: &[u8]) -> PyResult<State> {
        State::made(runtime::State::load(&model.0, bytes))
    }

    /// The largest capacity of a state of at most `bytes` bytes, if one fits.
    #[staticmethod]
    fn max_capacity(model: &Model, bytes: usize, sizes: Vec<(String, i64)>) -> PyResult<Option<usize>> {
        runtime::State::max_capacity(&model.0, bytes, &by_name(&sizes)).map_err(refused)
    }

    /// Length, capacity and bytes of the block.
    fn sizes(&self) -> PyResult<(usize, usize, usize)> {
        let state = self.lock()?;
        Ok((state.length(), state.capacity(), state.bytes()))
    }

    fn reset(&self) -> PyResult<()> {
        self.lock()?.reset();
        Ok(())
    }

    fn truncate(&self, length: usize) -> PyResult<()> {
        self.lock()?.truncate(length).map_err(refused)
    }

    fn fork(&self) -> PyResult<State> {
        State::made(self.lock()?.fork())
    }

    fn save<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.lock()?.save()))
    }

    /// The shape and the valid elements of a tensor, in row-major order.
    fn tensor<'py>(&self, py: Python<'py>, idx: usize) -> PyResult<(Vec<usize>, Bound<'py, PyBytes>)> {
        let state = self.lock()?;
        if idx >= state.model().state().len() {
            return Err(exception("UsageError", &format!("the state has no tensor {idx}")));
        }
        Ok((state.shape(idx), PyBytes::new(py, &state.tensor_bytes(idx))))
    }

    /// Sets all tensors, and with them the length.
    fn set(&self, tensors: Vec<Array>) -> PyResult<()> {
        self.lock()?.set(&array::views(&tensors)?).map_err(refused)
    }
}

impl State {
    fn made(state: Result<runtime::State, StateError>) -> PyResult<State> {
        state.map(|state| State(Mutex::new(state))).map_err(refused)
    }

    /// The state, if no other thread uses it.
    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, runtime::State>> {
        let used = |_| exception("CallError", &"another thread uses this state; keep a fork for each thread");
        self.0.try_lock().map_err(used)
    }
}

fn by_name(sizes: &[(String, i64)]) -> Vec<(&str, i64)> {
    sizes.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

fn refused(error: StateError) -> PyErr {
    let class = if matches!(error, StateError::Reserve { .. }) { "LimitError" } else { "StateError" };
    exception(class, &error)
}
