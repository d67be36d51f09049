//! Rust types that are elements of tensors, and conversions between slices of elements and bytes.

use crate::DType;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type with the memory representation of a tensor's element.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident),*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32, f64 => F64, bool => Bool,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64
}

/// The memory of `elems`.
pub(crate) fn bytes<T: Element>(elems: &[T]) -> &[u8] {
    // SAFETY: the sealed types have no padding, so all their bytes may be read.
    unsafe { core::slice::from_raw_parts(elems.as_ptr().cast(), size_of_val(elems)) }
}

/// The memory of `elems`. Only compiled code writes it, which stores valid elements.
pub(crate) fn bytes_mut<T: Element>(elems: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; every bit pattern is valid except for `bool`, whose bytes no safe code of this crate writes.
    unsafe { core::slice::from_raw_parts_mut(elems.as_mut_ptr().cast(), size_of_val(elems)) }
}

/// The elements in `bytes`; `None` if they are misaligned, incomplete or invalid.
pub(crate) fn elems<T: Element>(bytes: &[u8]) -> Option<&[T]> {
    let fits = bytes.len().is_multiple_of(size_of::<T>()) && bytes.as_ptr().cast::<T>().is_aligned();
    let is_valid = T::DTYPE != DType::Bool || bytes.iter().all(|byte| *byte <= 1);
    // SAFETY: aligned and of the right size, and of the sealed types only `bool` has invalid bit patterns.
    (fits && is_valid)
        .then(|| unsafe { core::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) })
}
