//! Buffers and the memories that hold them.

use crate::{error::Error, tensor::Tensor};
use cranelift_entity::entity_impl;
use symshape::Dim;
use symshape_runtime::DType;

/// A buffer of a [`Program`](super::Program).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(u32);
entity_impl!(BufferId, "@");

/// The memory that holds a buffer.
#[derive(Clone, Debug)]
pub enum MemorySpace {
    /// The caller's input with this index; read only.
    Input(u32),
    /// The caller's output with this index.
    Output(u32),
    /// The tensor of the state with this index. A call reads the rows of the calls before and writes new ones.
    State(u32),
    /// The artefact; read only.
    Const(Tensor),
    /// The arena, at an offset that the plan chooses. The buffer is alive from its first writer to its last reader.
    Arena,
    /// The arena, with one copy for each worker. The buffer is alive within one kernel only.
    Scratch,
    /// The memory of the device with this index, at an offset that the plan chooses. Only calls of its target access
    /// it.
    Device(u32),
}

impl MemorySpace {
    /// Whether the plan chooses the offset.
    pub fn is_planned(&self) -> bool {
        match self {
            MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => true,
            MemorySpace::Input(_)
            | MemorySpace::Output(_)
            | MemorySpace::State(_)
            | MemorySpace::Const(_) => false,
        }
    }

    /// The index of the device that owns the memory.
    pub fn device(&self) -> Option<u32> {
        match self {
            MemorySpace::Device(number) => Some(*number),
            MemorySpace::Input(_)
            | MemorySpace::Output(_)
            | MemorySpace::State(_)
            | MemorySpace::Const(_)
            | MemorySpace::Arena
            | MemorySpace::Scratch => None,
        }
    }
}

/// A flat piece of memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// Name for reports and errors; may be empty.
    pub name: String,
    /// Type of the elements.
    pub dtype: DType,
    /// Number of elements.
    pub elems: Dim,
    /// The memory that holds it.
    pub space: MemorySpace,
}

impl Buffer {
    /// Bytes of the buffer; of one copy if it is scratch memory.
    pub fn bytes(&self) -> Dim {
        &self.elems * self.dtype.size_bytes() as i64
    }
}

/// The reason why a device has too little memory.
#[derive(Debug)]
pub(crate) struct Overflow {
    /// Index of the device.
    pub(crate) device: usize,
    /// Bytes that the plan needs, at the upper bounds of the symbols.
    pub(crate) needed: u64,
    /// The use of the device's memory at each kernel.
    pub(crate) steps: Vec<MemoryUse>,
    /// The error, if nothing can be done.
    pub(crate) error: Error,
}

/// The use of a device's memory while a kernel runs, at the upper bounds of the symbols.
#[derive(Clone, Default, Debug)]
pub(crate) struct MemoryUse {
    /// The bytes of all buffers that are alive.
    pub(crate) live: u64,
    /// The largest of these buffers.
    pub(crate) largest: Option<BufferId>,
    pub(crate) largest_bytes: u64,
}

/// The weight that a constant buffer holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WeightForm {
    /// Name of the weight in the model.
    pub weight: String,
    /// The order of its elements in memory.
    pub form: &'static str,
}

/// A memory that only calls of one target access: a part of the arena with a separate plan and size limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Name of the target.
    pub target: String,
    /// Size of the memory in bytes.
    pub bytes: u64,
}
