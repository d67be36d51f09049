//! The properties of a vector ISA that plans depend on.

use crate::{
    codegen::vector::{Caches, VectorIsa, VectorShape},
    kernel::{Contraction, Rhs},
    scalar::Precision,
};
use symshape_runtime::DType;

/// The description of a vector ISA, as far as plans depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isa {
    pub(crate) shape: VectorShape,
    pub(crate) caches: Caches,
    /// The shape of [`VectorIsa::narrower`].
    pub(super) narrower: Option<VectorShape>,
    /// `shape` is that of the narrower ISA.
    pub(crate) is_narrow: bool,
}

impl From<&dyn VectorIsa> for Isa {
    fn from(isa: &dyn VectorIsa) -> Isa {
        let narrower = isa.narrower().map(VectorIsa::shape);
        Isa { shape: isa.shape(), caches: isa.caches(), narrower, is_narrow: false }
    }
}

impl Isa {
    /// The ISA for a contraction: the narrower one if all of its columns fit a vector of it.
    pub(super) fn of_contraction(&self, contraction: &Contraction) -> Isa {
        let is_f32 = contraction.dtype == DType::F32 && contraction.precision == Precision::F32;
        let has_few_bits = matches!(contraction.rhs, Rhs::FewBits(_));
        let columns = contraction.n.extent.as_i64();
        let fits = |shape: &VectorShape| columns.is_some_and(|columns| columns <= shape.lanes as i64);
        match self.narrower.filter(|shape| is_f32 && !has_few_bits && fits(shape)) {
            Some(shape) => Isa { shape, narrower: None, is_narrow: true, ..*self },
            None => *self,
        }
    }
}
