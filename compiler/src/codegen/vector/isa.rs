//! The interface of a backend, and the caches of its machines.

use super::{builder::VectorShape, vcode::VCode};
use crate::{codegen::vector::MachineCode, error::Result};
use cranelift_codegen::isa::TargetIsa;
use cranelift_module::FuncId;

/// Alignment of encoded microkernels in bytes.
pub(super) const ALIGN_BYTES: u64 = 64;

/// The smallest caches that are common among machines with an ISA. They affect speed, not results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caches {
    /// Lines of the first-level cache that addresses a page apart compete for.
    pub(crate) l1_ways: usize,
    /// Size of the second-level cache.
    pub(crate) l2_bytes: i64,
}

impl Caches {
    /// The caches of the smallest machines.
    pub(crate) const SMALL: Caches = Caches { l1_ways: 8, l2_bytes: 512 << 10 };
    /// The caches of servers with 512-bit vectors.
    pub(crate) const LARGE: Caches = Caches { l1_ways: 8, l2_bytes: 1 << 20 };
    /// The caches of servers with tile registers.
    pub(crate) const LARGEST: Caches = Caches { l1_ways: 12, l2_bytes: 2 << 20 };
}

/// A backend: an ISA that microkernels are compiled for.
pub trait VectorIsa: Send + Sync {
    /// A readable name, as filetests show it.
    fn name(&self) -> &'static str;

    /// The properties that microkernels depend on.
    fn shape(&self) -> VectorShape;

    /// The caches that the loops around microkernels are tiled for.
    fn caches(&self) -> Caches;

    /// An ISA of shorter vectors whose code runs on the same machines and has the same bits, if there is one. On some
    /// machines a vector of it takes half the time.
    fn narrower(&self) -> Option<&'static dyn VectorIsa> {
        None
    }

    /// Whether the configuration of tile registers persists after a microkernel returns. Only those of the machine do.
    fn keeps_tiles(&self) -> bool {
        false
    }

    /// The machine code of the declared function `func`. Its signature is `fn(args: *const i64)`, in the System V
    /// convention on x86-64 and in the target's C convention elsewhere.
    ///
    /// # Errors
    /// `Internal` where the code can't be encoded: a bug.
    fn compile(&self, func: FuncId, code: &VCode, target: &dyn TargetIsa) -> Result<MachineCode>;
}
