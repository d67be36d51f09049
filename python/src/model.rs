//! Compiled models and their calls.

use crate::errors::exception;
use pyo3::prelude::*;
use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard},
};
use symshape_runtime as runtime;
use symshape_runtime::{DType, TensorError, TensorMut, TensorRef};

/// A symbol: its name, bounds (`None` for no upper bound), number of values and declaration as text.
type Symbol = (String, i64, Option<i64>, u64, String);
/// An input or output: its name, the code of its element type, and its dims as text.
type Tensor = (String, u32, Vec<String>);

/// A compiled model.
#[pyclass(frozen, module = "symshape._native")]
pub(crate) struct Model(runtime::Model);

#[pymethods]
impl Model {
    /// Opens the shared object at `path`.
    #[staticmethod]
    fn open(py: Python<'_>, path: PathBuf) -> PyResult<Model> {
        let model = py.detach(|| runtime::Model::open(&path));
        model.map(Model).map_err(|error| exception("ArtefactError", &error))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn symbols(&self) -> Vec<Symbol> {
        let symbol = |symbol: &runtime::SymbolInfo| {
            let hi = (!self.0.grows() || symbol.hi() < i64::from(i32::MAX)).then(|| symbol.hi());
            (symbol.name().to_string(), symbol.lo(), hi, symbol.count(), symbol.to_string())
        };
        self.0.symbols().iter().map(symbol).collect()
    }

    fn inputs(&self) -> Vec<Tensor> {
        self.0.inputs().iter().map(tensor).collect()
    }

    fn outputs(&self) -> Vec<Tensor> {
        self.0.outputs().iter().map(tensor).collect()
    }

    fn arena_max(&self) -> usize {
        self.0.arena_max()
    }

    fn arena_formula(&self) -> &str {
        self.0.arena_formula()
    }

    /// Bytes of arena at these values of all symbols.
    fn arena_bytes(&self, dims: Vec<i64>) -> PyResult<usize> {
        self.0.arena_bytes(&dims).map_err(|error| exception("UsageError", &error))
    }

    /// The largest value of a symbol that fits `bytes`, if one does.
    fn max_dim(&self, symbol: &str, bytes: usize, dims: Vec<i64>) -> PyResult<Option<i64>> {
        self.0.max_dim(symbol, bytes, &dims).map_err(|error| exception("UsageError", &error))
    }

    /// The shape of an output at these values of all symbols.
    fn output_shape(&self, output: usize, dims: Vec<i64>) -> PyResult<Vec<i64>> {
        self.0.output_shape(output, &dims).map_err(|error| exception("UsageError", &error))
    }
}

fn tensor(info: &runtime::TensorInfo) -> Tensor {
    (info.name().to_string(), info.dtype() as u32, info.dims().to_vec())
}

/// Memory of an array: its address, the code of its element type, and its shape.
#[derive(FromPyObject)]
struct Array(usize, u32, Vec<usize>);

impl Array {
    fn dtype(&self) -> PyResult<DType> {
        let unknown = || exception("UsageError", &format!("element type with code {}", self.1));
        DType::from_code(self.1).ok_or_else(unknown)
    }

    /// The number of bytes of the elements.
    fn len_bytes(&self) -> PyResult<usize> {
        let elems = self.2.iter().try_fold(1_usize, |elems, dim| elems.checked_mul(*dim));
        let bytes = elems.and_then(|elems| elems.checked_mul(self.dtype().ok()?.size_bytes()));
        bytes.ok_or_else(|| exception("CallError", &"an array has too many elements"))
    }

    fn overlaps(&self, other: &Array) -> PyResult<bool> {
        let end = self.0.saturating_add(self.len_bytes()?);
        let other_end = other.0.saturating_add(other.len_bytes()?);
        Ok(self.0 < other_end && other.0 < end)
    }

    /// The elements of an input.
    ///
    /// # Safety
    /// The memory is valid, and nothing writes to it while the result is alive.
    unsafe fn view<'a>(&self) -> PyResult<TensorRef<'a>> {
        let bytes = match self.len_bytes()? {
            0 => &[],
            // SAFETY: as the caller promises.
            len => unsafe { std::slice::from_raw_parts(self.0 as *const u8, len) },
        };
        TensorRef::from_bytes(self.dtype()?, &self.2, bytes).map_err(refused)
    }

    /// The memory of an output.
    ///
    /// # Safety
    /// The memory is valid, and nothing else reads or writes it while the result is alive.
    unsafe fn view_mut<'a>(&self) -> PyResult<TensorMut<'a>> {
        let bytes = match self.len_bytes()? {
            0 => &mut [],
            // SAFETY: as the caller promises.
            len => unsafe { std::slice::from_raw_parts_mut(self.0 as *mut u8, len) },
        };
        TensorMut::from_bytes(self.dtype()?, bytes).map_err(refused)
    }
}

fn refused(error: TensorError) -> PyErr {
    exception("CallError", &error)
}

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
    fn bind(&self, inputs: Vec<Array>) -> PyResult<Vec<Vec<usize>>> {
        // SAFETY: the package's Python code holds the arrays during the call. Only shapes are read.
        let inputs =
            inputs.iter().map(|input| unsafe { input.view() }).collect::<PyResult<Vec<TensorRef>>>()?;
        let mut context = self.lock()?;
        context.bind(&inputs).map_err(|error| exception("CallError", &error))?;
        Ok(output_shapes(&context))
    }

    /// Runs the model, without the interpreter's lock. Returns the shapes of the outputs.
    fn run(&self, py: Python<'_>, inputs: Vec<Array>, outputs: Vec<Array>) -> PyResult<Vec<Vec<usize>>> {
        for (k, output) in outputs.iter().enumerate() {
            for other in inputs.iter().chain(&outputs[..k]) {
                if output.overlaps(other)? {
                    let text = format!("the memory of output {k} overlaps with another array of the call");
                    return Err(exception("CallError", &text));
                }
            }
        }

        // SAFETY: the package's Python code holds the arrays during the call, and no two of them overlap if one is an
        // output. As in NumPy, other threads must not write to them.
        let inputs =
            inputs.iter().map(|input| unsafe { input.view() }).collect::<PyResult<Vec<TensorRef>>>()?;
        // SAFETY: as above.
        let outputs = outputs.iter().map(|output| unsafe { output.view_mut() });
        let mut outputs = outputs.collect::<PyResult<Vec<TensorMut>>>()?;
        let mut context = self.lock()?;
        let context = &mut *context;
        py.detach(|| context.run(&inputs, &mut outputs)).map_err(|error| exception("CallError", &error))?;
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
