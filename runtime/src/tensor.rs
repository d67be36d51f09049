//! Tensors that the caller lends to a call: an element type, a shape, and dense, row-major memory.

use crate::{DType, Element, element};
use thiserror::Error;

/// The error of memory that can't be a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Memory and shape disagree.
    #[error("the shape needs {expected} bytes; the memory has {got}")]
    WrongSize {
        /// The bytes that the shape needs.
        expected: usize,
        /// The bytes of the memory.
        got: usize,
    },
    /// The shape exceeds the address space or [`MAX_AXES`].
    #[error("the shape is too large")]
    TooLarge,
    /// The memory is not aligned to its elements.
    #[error("memory for {dtype} elements must be aligned to their size")]
    Misaligned {
        /// Type of the elements.
        dtype: DType,
    },
    /// The elements are of another type.
    #[error("the elements are {expected}, not {got}")]
    WrongDType {
        /// Their type.
        expected: DType,
        /// The requested type.
        got: DType,
    },
    /// The array's elements are not dense in row-major order.
    #[error("the array is not in standard layout (dense, row-major)")]
    NotStandardLayout,
}

/// A tensor that a call reads.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    dtype: DType,
    shape: Shape,
    bytes: &'a [u8],
}

/// Memory that a call writes.
#[derive(Debug)]
pub struct TensorMut<'a> {
    dtype: DType,
    shape: Option<Shape>,
    bytes: &'a mut [u8],
}

/// A shape without a heap allocation; a tensor borrows only its elements.
#[derive(Clone, Copy, Debug)]
struct Shape {
    dims: [usize; MAX_AXES],
    rank: usize,
}

/// Largest number of axes of a tensor that is lent to a call.
pub const MAX_AXES: usize = 12;

impl Shape {
    /// A copy of `dims`.
    fn new(dims: &[usize]) -> Result<Shape, TensorError> {
        let mut shape = Shape { dims: [0; MAX_AXES], rank: dims.len() };
        let place = shape.dims.get_mut(..dims.len()).ok_or(TensorError::TooLarge)?;
        place.copy_from_slice(dims);
        Ok(shape)
    }

    fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }
}

/// A tensor without elements.
#[cfg(feature = "alloc")]
pub(crate) const EMPTY: TensorRef<'static> =
    TensorRef { dtype: DType::U8, shape: Shape { dims: [0; MAX_AXES], rank: 1 }, bytes: &[] };

impl<'a> TensorRef<'a> {
    /// The rows `first..first + rows` of a tensor.
    #[cfg(feature = "alloc")]
    pub(crate) fn rows(&self, first: usize, rows: usize) -> TensorRef<'a> {
        let row = self.bytes.len().checked_div(self.shape.dims[0]).unwrap_or(0);
        let mut shape = self.shape;
        shape.dims[0] = rows;
        TensorRef { shape, bytes: &self.bytes[first * row..][..rows * row], ..*self }
    }

    /// The tensor of this shape whose elements are `elems`.
    ///
    /// # Errors
    /// When the shape has another number of elements, or more than 12 axes.
    pub fn new<T: Element>(shape: &[usize], elems: &'a [T]) -> Result<TensorRef<'a>, TensorError> {
        TensorRef::from_bytes(T::DTYPE, shape, element::bytes(elems))
    }

    /// The tensor of this type and shape whose memory is `bytes`, in the machine's byte order.
    ///
    /// # Errors
    /// When the shape needs another number of bytes, or the memory is not aligned to the element's size.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &'a [u8]) -> Result<TensorRef<'a>, TensorError> {
        let expected = size_bytes(dtype, shape).ok_or(TensorError::TooLarge)?;
        if expected != bytes.len() {
            return Err(TensorError::WrongSize { expected, got: bytes.len() });
        }
        aligned(dtype, bytes)?;
        Ok(TensorRef { dtype, shape: Shape::new(shape)?, bytes })
    }

    /// The tensor of an `ndarray` array or view.
    ///
    /// # Errors
    /// When the array is not in standard layout (dense, row-major): [`ndarray::ArrayRef::as_standard_layout`] makes
    /// such a copy.
    #[cfg(feature = "std")]
    pub fn from_array<T: Element, D: ndarray::Dimension>(
        array: &'a ndarray::ArrayRef<T, D>,
    ) -> Result<TensorRef<'a>, TensorError> {
        let elems = array.as_slice().ok_or(TensorError::NotStandardLayout)?;
        TensorRef::new(array.shape(), elems)
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        self.shape.dims()
    }

    /// The memory.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// When they are of another type.
    pub fn elems<T: Element>(&self) -> Result<&'a [T], TensorError> {
        let wrong = TensorError::WrongDType { expected: self.dtype, got: T::DTYPE };
        if self.dtype == T::DTYPE { element::elems(self.bytes).ok_or(wrong) } else { Err(wrong) }
    }

    /// The tensor as an `ndarray` view; up to four axes this allocates nothing.
    ///
    /// # Errors
    /// When the elements are of another type.
    #[cfg(feature = "std")]
    pub fn array<T: Element>(&self) -> Result<ndarray::ArrayViewD<'a, T>, TensorError> {
        let elems = self.elems::<T>()?;
        ndarray::ArrayViewD::from_shape(self.shape(), elems).map_err(|_| TensorError::TooLarge)
    }
}

impl<'a> TensorMut<'a> {
    /// Memory for an output of any shape that fits.
    pub fn new<T: Element>(elems: &'a mut [T]) -> TensorMut<'a> {
        TensorMut { dtype: T::DTYPE, shape: None, bytes: element::bytes_mut(elems) }
    }

    /// Memory for an output of exactly this shape.
    ///
    /// # Errors
    /// When the shape has another number of elements, or more than 12 axes.
    pub fn shaped<T: Element>(shape: &[usize], elems: &'a mut [T]) -> Result<TensorMut<'a>, TensorError> {
        let got = size_of_val(elems);
        match size_bytes(T::DTYPE, shape) {
            Some(expected) if expected == got => {
                Ok(TensorMut { shape: Some(Shape::new(shape)?), ..TensorMut::new(elems) })
            }
            Some(expected) => Err(TensorError::WrongSize { expected, got }),
            None => Err(TensorError::TooLarge),
        }
    }

    /// Memory for an output of this type and of any shape that fits.
    ///
    /// # Errors
    /// When the memory is not aligned to the element's size.
    pub fn from_bytes(dtype: DType, bytes: &'a mut [u8]) -> Result<TensorMut<'a>, TensorError> {
        aligned(dtype, bytes)?;
        Ok(TensorMut { dtype, shape: None, bytes })
    }

    /// An `ndarray` array or view for an output of the same shape.
    ///
    /// # Errors
    /// When the array is not in standard layout (dense, row-major), or has more than 12 axes.
    #[cfg(feature = "std")]
    pub fn from_array<T: Element, D: ndarray::Dimension>(
        array: &'a mut ndarray::ArrayRef<T, D>,
    ) -> Result<TensorMut<'a>, TensorError> {
        let shape = Shape::new(array.shape())?;
        let elems = array.as_slice_mut().ok_or(TensorError::NotStandardLayout)?;
        Ok(TensorMut { dtype: T::DTYPE, shape: Some(shape), bytes: element::bytes_mut(elems) })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The only shape that it accepts; `None` if it accepts any shape that fits.
    pub fn shape(&self) -> Option<&[usize]> {
        self.shape.as_ref().map(Shape::dims)
    }

    /// The memory.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.bytes
    }

    /// Size of the memory.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Bytes of a tensor, unless they exceed the address space.
pub(crate) fn size_bytes(dtype: DType, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size_bytes(), |size, dim| size.checked_mul(*dim))
}

/// Refuses memory that is not aligned to the elements.
fn aligned(dtype: DType, bytes: &[u8]) -> Result<(), TensorError> {
    let is_aligned = bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(dtype.size_bytes());
    if is_aligned { Ok(()) } else { Err(TensorError::Misaligned { dtype }) }
}
