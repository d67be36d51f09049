//! Memory of arrays, which the package's Python code owns.

use crate::errors::exception;
use pyo3::prelude::*;
use symshape_runtime::{DType, TensorError, TensorMut, TensorRef};

/// Memory of an array: its address, the code of its element type, and its shape.
#[derive(FromPyObject)]
pub(crate) struct Array(usize, u32, Vec<usize>);

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

    pub(crate) fn overlaps(&self, other: &Array) -> PyResult<bool> {
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

/// The elements of the arrays that a native function got.
pub(crate) fn views(arrays: &[Array]) -> PyResult<Vec<TensorRef<'_>>> {
    // SAFETY: the package's Python code holds the arrays during the native call. As in NumPy, other threads must not
    // write to them.
    arrays.iter().map(|array| unsafe { array.view() }).collect()
}

/// The memory of the outputs of a call. No two of the arrays of the call may overlap if one is an output.
pub(crate) fn views_mut(arrays: &[Array]) -> PyResult<Vec<TensorMut<'_>>> {
    // SAFETY: as in `views`, and the caller has checked that the arrays don't overlap.
    arrays.iter().map(|array| unsafe { array.view_mut() }).collect()
}

fn refused(error: TensorError) -> PyErr {
    exception("CallError", &error)
}
