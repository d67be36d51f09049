//! Calls of compiled models.

use crate::{
    array::{self, Array},
    errors::exception,
    model::Model,
    state::State,
};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard};
use symshape_runtime as runtime;

/// Memory for one call at a time.
#[pyclass(frozen, module = "symshape._native")]
pub(crate) struct Context(Mutex<runtime::Context>);

#[pymethods]
impl Context {
    #[new]
    fn new(model: &Model, threads: u32) -> PyResult<Context> {
        let failed = |error: runtime::OpenError| exception("LimitError", &error);
        let mut context = runtime::Context::new(&model.0).map_err(failed)?;
        context.set_threads(threads).map_err(failed)?;
        Ok(Context(Mutex::new(context)))
    }

    /// Checks the contract of a call, and returns the shapes of its outputs. Data-dependent sizes have their upper
    /// bounds.
    fn bind(&self, inputs: Vec<Array>, state: Option<&Bound<'_, State>>) -> PyResult<Vec<Vec<usize>>> {
        let inputs = array::views(&inputs)?;
        let mut context = self.lock()?;
        let bound = match state {
            Some(state) => context.bind_state(&inputs, &*state.get().lock()?),
            None => context.bind(&inputs),
        };
        bound.map_err(|error| exception("CallError", &error))?;
        Ok(output_shapes(&context))
    }

    /// Runs the model, without the interpreter's lock. Returns the shapes of the outputs.
    fn run(
        &self,
        py: Python<'_>,
        inputs: Vec<Array>,
        outputs: Vec<Array>,
        state: Option<&Bound<'_, State>>,
    ) -> PyResult<Vec<Vec<usize>>> {
        for (k, output) in outputs.iter().enumerate() {
            for other in inputs.iter().chain(&outputs[..k]) {
                if output.overlaps(other)? {
                    let text = format!("the memory of output {k} overlaps with another array of the call");
                    return Err(exception("CallError", &text));
                }
            }
        }

        let inputs = array::views(&inputs)?;
        let mut outputs = array::views_mut(&outputs)?;
        let mut context = self.lock()?;
        let context = &mut *context;
        let mut state = state.map(|state| state.get().lock()).transpose()?;
        let state = state.as_deref_mut();
        let result = py.detach(|| match state {
            Some(state) => context.run_stateful(&inputs, &mut outputs, state),
            None => context.run(&inputs, &mut outputs),
        });
        result.map_err(|error| exception("CallError", &error))?;
        Ok(output_shapes(context))
    }
}

impl Context {
    /// The context, if no other thread uses it.
    fn lock(&self) -> PyResult<MutexGuard<'_, runtime::Context>> {
        let used = |_| exception("CallError", &"another thread uses this context; each thread needs its own");
        self.0.try_lock().map_err(used)
    }
}

fn output_shapes(context: &runtime::Context) -> Vec<Vec<usize>> {
    let count = context.model().outputs().len();
    (0..count).map(|output| context.output_shape(output).to_vec()).collect()
}
