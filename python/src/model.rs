//! Compiled models.

use crate::errors::exception;
use pyo3::prelude::*;
use std::path::PathBuf;
use symshape_runtime as runtime;

/// A symbol: its name, bounds (`None` for no upper bound), number of values and declaration as text.
type Symbol = (String, i64, Option<i64>, u64, String);
/// An input or output: its name, the code of its element type, and its dims as text.
type Tensor = (String, u32, Vec<String>);

/// A tensor of the state: the names of its input and output, the code of its element type, its dims as text, and the
/// axis of its rows if calls append rows.
type StateTensor = (String, String, u32, Vec<String>, Option<usize>);

/// A ragged batch: the indices of the input of offsets and of the symbols of sequences and rows, the length, the mask
/// and the lengths of the padded model, and for each input and each output the axis of the sequences in the padded
/// model.
type Ragged =
    (usize, usize, usize, Symbol, Option<String>, Option<String>, Vec<Option<usize>>, Vec<Option<usize>>);

/// A compiled model.
#[pyclass(frozen, module = "symshape._native")]
pub(crate) struct Model(pub(crate) runtime::Model);

#[pymethods]
impl Model {
    /// Opens the shared object at `path`, with the weights file that was written with it or with another one. Both must
    /// be signed with one of the keys, if there are any: each is the text of a public key or the path of its file.
    #[staticmethod]
    #[pyo3(signature = (path, weights=None, verify=false, public_keys=Vec::new()))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        weights: Option<PathBuf>,
        verify: bool,
        public_keys: Vec<String>,
    ) -> PyResult<Model> {
        let mut options = runtime::OpenOptions::new().verify(verify);
        if let Some(weights) = weights {
            options = options.weights(weights);
        }
        for key in public_keys {
            let key = runtime::TrustedKey::from_argument(&key);
            options = options.trusted_key(key.map_err(|error| exception("UsageError", &error))?);
        }
        let model = py.detach(|| options.open(&path));
        model.map(Model).map_err(|error| exception("ArtefactError", &error))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    /// The name of the weights file that the shared object looks for in its folder.
    fn weights_name(&self) -> Option<&str> {
        self.0.weights_name()
    }

    fn symbols(&self) -> Vec<Symbol> {
        self.0.symbols().iter().map(|info| symbol(info, self.0.grows())).collect()
    }

    /// How calls take sequences of different lengths.
    fn ragged(&self) -> Option<Ragged> {
        self.0.ragged().map(|ragged| {
            (
                ragged.offsets(),
                ragged.sequences(),
                ragged.rows(),
                symbol(ragged.length(), false),
                ragged.mask().map(str::to_string),
                ragged.lengths().map(str::to_string),
                ragged.input_batch_axes().to_vec(),
                ragged.output_batch_axes().to_vec(),
            )
        })
    }

    fn inputs(&self) -> Vec<Tensor> {
        self.0.inputs().iter().map(tensor).collect()
    }

    fn outputs(&self) -> Vec<Tensor> {
        self.0.outputs().iter().map(tensor).collect()
    }

    /// The tensors of the state.
    fn state(&self) -> Vec<StateTensor> {
        self.0.state().iter().map(state_tensor).collect()
    }

    /// The indices of the symbols that are the capacity and the length of the state.
    fn state_symbols(&self) -> (Option<usize>, Option<usize>) {
        (self.0.capacity_symbol(), self.0.length_symbol())
    }

    /// Bytes of the largest state.
    fn state_max(&self) -> usize {
        self.0.state_max()
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

fn symbol(info: &runtime::SymbolInfo, grows: bool) -> Symbol {
    let hi = (!grows || info.hi() < i64::from(i32::MAX)).then(|| info.hi());
    (info.name().to_string(), info.lo(), hi, info.count(), info.to_string())
}

fn tensor(info: &runtime::TensorInfo) -> Tensor {
    (info.name().to_string(), info.dtype() as u32, info.dims().to_vec())
}

fn state_tensor(info: &runtime::StateInfo) -> StateTensor {
    let input = info.input().to_string();
    let output = info.output().to_string();
    (input, output, info.dtype() as u32, info.dims().to_vec(), info.axis())
}
