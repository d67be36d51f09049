//! Memory aligned as that of tensors between kernels.

use symshape_compiler::target::LINE_BYTES;

/// Values that begin at a cache line.
pub struct Line<T> {
    memory: Vec<T>,
    first: usize,
}

impl<T: Copy + Default> Line<T> {
    /// Copies the values to aligned memory.
    pub fn new(values: &[T]) -> Line<T> {
        let mut memory: Vec<T> = Vec::with_capacity(values.len() + LINE_BYTES as usize / size_of::<T>());
        let first = memory.as_ptr().align_offset(LINE_BYTES as usize);
        memory.resize(first, T::default());
        memory.extend_from_slice(values);
        Line { memory, first }
    }

    /// The values.
    pub fn values(&self) -> &[T] {
        &self.memory[self.first..]
    }
}
