//! The interface of a backend, and the caches of its machines.

use super::{builder::VectorShape, vcode::VCode};
use crate::error::Result;
use cranelift_module::{FuncId, Module};

/// The smallest common caches of the machines that have an ISA. They affect no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caches {
    /// Lines of the first level that addresses a page apart compete for.
    pub l1_ways: usize,
    /// Bytes of the second level.
    pub l2_bytes: i64,
}

impl Caches {
    /// The caches of the smallest machines.
    pub const SMALL: Caches = Caches { l1_ways: 8, l2_bytes: 512 << 10 };
    /// The caches of servers with 512-bit vectors.
    pub const LARGE: Caches = Caches { l1_ways: 8, l2_bytes: 1 << 20 };
    /// The caches of servers with tile registers.
    pub const LARGEST: Caches = Caches { l1_ways: 12, l2_bytes: 2 << 20 };
}

/// A backend.
pub trait VectorIsa {
    /// A readable name, which is part of the symbols of microkernels.
    fn name(&self) -> &'static str;

    /// The properties that microkernels depend on.
    fn shape(&self) -> VectorShape;

    /// The caches that the loops around microkernels are tiled for.
    fn caches(&self) -> Caches;

    /// Whether the configuration of tile registers persists from one microkernel to the next.
    fn keeps_tiles(&self) -> bool;

    /// Defines the declared function `func`, whose signature is `extern "C" fn(args: *const i64)`, and returns its
    /// size in bytes.
    ///
    /// # Errors
    /// `Internal` where the code can't be encoded: a bug.
    fn define(&self, func: FuncId, code: &VCode, module: &mut dyn Module) -> Result<u64>;
}
