//! Where data lie.

use crate::tensor::Tensor;
use symshape::Dim;
use symshape_runtime::DType;

/// Where a buffer lives.
#[derive(Clone, Debug)]
pub enum MemorySpace {
    /// The caller's input of this number; read only.
    Input(u32),
    /// The caller's output of this number.
    Output(u32),
    /// In the artefact; read only.
    Const(Tensor),
    /// In the arena, placed by the plan, alive from its first writer to its last reader.
    Arena,
    /// In the arena, one copy for each worker, alive within one kernel only.
    Scratch,
    /// In the memory of the device of this number, placed by the plan there; only calls of its target touch it.
    Device(u32),
}

impl MemorySpace {
    /// Whether the plan says where it is.
    pub fn is_planned(&self) -> bool {
        match self {
            MemorySpace::Arena | MemorySpace::Scratch | MemorySpace::Device(_) => true,
            MemorySpace::Input(_) | MemorySpace::Output(_) | MemorySpace::Const(_) => false,
        }
    }

    /// The device in whose memory it is.
    pub fn device(&self) -> Option<u32> {
        match self {
            MemorySpace::Device(number) => Some(*number),
            MemorySpace::Input(_)
            | MemorySpace::Output(_)
            | MemorySpace::Const(_)
            | MemorySpace::Arena
            | MemorySpace::Scratch => None,
        }
    }
}

/// A flat piece of memory.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// For people.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Their number.
    pub elems: Dim,
    /// Where it lives.
    pub space: MemorySpace,
}

impl Buffer {
    /// Its bytes, or those of one copy.
    pub fn bytes(&self) -> Dim {
        &self.elems * self.dtype.size_bytes() as i64
    }
}

/// A memory that only calls of one target touch: a part of the arena with a plan and a bound of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The target's name.
    pub target: String,
    /// How many bytes there are.
    pub bytes: u64,
}
