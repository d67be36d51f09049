//! The properties of a vector ISA that plans depend on.

use crate::codegen::vector::{Caches, VectorIsa, VectorShape};

/// The description of a vector ISA, as far as plans depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isa {
    pub(crate) shape: VectorShape,
    pub(crate) caches: Caches,
}

impl From<&dyn VectorIsa> for Isa {
    fn from(isa: &dyn VectorIsa) -> Isa {
        Isa { shape: isa.shape(), caches: isa.caches() }
    }
}
