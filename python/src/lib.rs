//! The native part of the Python package `symshape`: the compiler, and calls of compiled models.
//!
//! The package's Python code checks arrays and owns their memory; see `symshape/model.py`. This module passes addresses
//! and shapes on to the runtime.

mod array;
mod compile;
mod context;
mod errors;
mod model;
mod state;

use pyo3::prelude::*;

/// The native part of the package. Its interface is private.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("steps", compile::step_count())?;
    module.add_class::<model::Model>()?;
    module.add_class::<context::Context>()?;
    module.add_class::<state::State>()?;
    module.add_function(wrap_pyfunction!(compile::compile, module)?)?;
    module.add_function(wrap_pyfunction!(compile::profile, module)?)
}
