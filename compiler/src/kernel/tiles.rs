//! Decides which contractions use tile registers on machines that have them.
//!
//! The code generator, the sizes of pack buffers and the descriptions of artefacts all depend on these decisions.

use super::{Contraction, MemorySpace, Program, Rhs, Stmt};
use crate::scalar::{
    Precision,
    precision::{MIN_SPLIT_EXTENT, is_bf16},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Columns of the widest tile.
const MAX_COLUMNS: i64 = 64;

/// Width of the panels that tile registers multiply, in columns.
pub(super) const PANEL_WIDTH: u32 = 16;

/// Bytes of one row of a tile register. Operands are packed into whole rows, padded with zeros.
pub(crate) const ROW_BYTES: i64 = 64;

/// Depth of products of bytes up to which vector registers are faster, whatever the number of columns.
const MAX_SHALLOW_DEPTH: i64 = 16;

/// Multiplications for each row of bytes up to which vector registers are faster.
const MAX_SHALLOW_PRODUCTS: i64 = 1024;

/// Number of bf16 in one row of a tile register.
pub(crate) const ROW_BF16: i64 = ROW_BYTES / 2;

impl Contraction {
    /// Number of bf16 that each `f32` of the left-hand side is split into. A right-hand side that is not a constant is
    /// split into as many.
    fn parts(&self) -> i64 {
        self.precision.parts().map_or(1, |parts| parts.lhs.into())
    }

    /// Whether tile registers may multiply a row of bytes faster than vector registers, which need no packed rows.
    fn is_deep(&self) -> bool {
        let depth = self.depth().as_i64().unwrap_or(i64::MAX);
        let columns = self.n.extent.as_i64().unwrap_or(i64::MAX);
        depth > MAX_SHALLOW_DEPTH && depth.saturating_mul(columns) > MAX_SHALLOW_PRODUCTS
    }

    /// Bytes of `elements` consecutive elements, packed as rows of tile registers.
    pub(crate) fn packed_bytes(&self, elements: &Dim) -> Dim {
        elements.ceil_div(ROW_BF16) * (ROW_BYTES * self.parts())
    }
}

impl Program {
    /// Whether a contraction uses tile registers on machines that have them: it fits, and it has a pack buffer.
    pub fn on_tiles(&self, contraction: &Contraction) -> bool {
        contraction.pack_buffer.is_some() && self.fits_tiles(contraction)
    }

    /// Whether tile registers can multiply a contraction, given a pack buffer. They multiply
    /// - `f32` as bf16, if the precision allows it. The left-hand side may be bf16 already if it is not split.
    /// - bytes by signed constants.
    pub(crate) fn fits_tiles(&self, contraction: &Contraction) -> bool {
        let (rhs, is_supported) = match &contraction.rhs {
            Rhs::Panels { buffer, width: PANEL_WIDTH, .. } if self.is_const(*buffer) => (*buffer, true),
            Rhs::Panels { buffer, width: PANEL_WIDTH, .. } => (*buffer, self.is_worth_packing(contraction)),
            Rhs::Panels { .. } | Rhs::FewBits(_) => return false,
            Rhs::Indexed(access) => (access.buffer, self.is_worth_packing(contraction)),
        };

        let lhs_dtype = self.buffers[contraction.lhs.buffer].dtype;
        let rhs_dtype = self.buffers[rhs].dtype;
        let has_types = match contraction.dtype {
            DType::F32 if lhs_dtype == DType::BF16 => {
                contraction.precision == Precision::Bf16 && self.accepts_bf16_lhs(contraction)
            }
            DType::F32 => {
                contraction.precision != Precision::F32 && lhs_dtype == DType::F32 && rhs_dtype == DType::F32
            }
            DType::I32 => {
                let are_bytes = matches!(lhs_dtype, DType::U8 | DType::I8) && rhs_dtype == DType::I8;
                self.is_const(rhs) && are_bytes && contraction.is_deep()
            }
            _ => false,
        };
        self.microkernels.has_tiles() && is_supported && has_types
    }

    /// Whether tile registers multiply a contraction of `f32` exactly, and it is large enough to gain from it. Its
    /// right-hand side is a constant whose elements all are bf16.
    pub(crate) fn is_exact_in_bf16(&self, contraction: &Contraction) -> bool {
        let Rhs::Panels { buffer, .. } = &contraction.rhs else { return false };
        let buffer = &self.buffers[*buffer];
        let MemorySpace::Const(tensor) = &buffer.space else { return false };

        let is_large = |dim: &Dim| dim.as_i64().is_some_and(|extent| extent >= MIN_SPLIT_EXTENT);
        let is_candidate = self.microkernels.has_tiles()
            && contraction.dtype == DType::F32
            && buffer.dtype == DType::F32
            && is_large(&contraction.depth())
            && is_large(&contraction.n.extent);

        is_candidate && tensor.all_f32s(is_bf16)
    }

    /// Whether the left-hand side of a contraction of `f32` may be stored as bf16, because the other operand is a
    /// constant.
    pub(crate) fn accepts_bf16_lhs(&self, contraction: &Contraction) -> bool {
        let Rhs::Panels { buffer, width: PANEL_WIDTH, .. } = &contraction.rhs else { return false };
        contraction.dtype == DType::F32 && self.is_const(*buffer) && self.buffers[*buffer].dtype == DType::F32
    }

    /// Whether a microkernel packs a right-hand side that is not a constant. Its columns must be adjacent in memory,
    /// with one reduction axis, and there must be enough rows to repay the packing. The upper bounds of symbols
    /// decide, so that the bits of a row don't depend on the values of symbols.
    pub(super) fn is_worth_packing(&self, contraction: &Contraction) -> bool {
        let facts = contraction.facts_inside(&self.facts);
        let is_dense = match &contraction.rhs {
            Rhs::Panels { base, .. } => !contraction.m.iter().any(|axis| base.contains(&axis.var)),
            Rhs::Indexed(access) => {
                let linear = facts.linear_in(&access.index, &contraction.n.var);
                contraction.k.len() == 1
                    && linear.is_some_and(|(step, _)| step.as_i64() == Some(1))
                    && !contraction.m.iter().any(|axis| access.index.contains(&axis.var))
            }
            Rhs::FewBits(_) => false,
        };

        let rows = contraction.rows();
        let depth = contraction.depth();
        let can_be_large =
            |dim: &Dim| self.facts.bounds(dim).hi.is_none_or(|hi| hi >= MIN_SPLIT_EXTENT.into());
        is_dense
            && self.facts.prove_le(&Dim::one(), &depth).is_yes()
            && [&rows, &contraction.n.extent, &depth].into_iter().all(can_be_large)
    }

    /// Bytes of a contraction's pack buffer that hold its right-hand side, one tile of columns at a time. They come
    /// before the packed rows.
    pub(crate) fn packed_rhs_bytes(&self, contraction: &Contraction) -> Dim {
        match &contraction.rhs {
            Rhs::Panels { buffer, .. } if self.is_const(*buffer) => Dim::zero(),
            Rhs::FewBits(_) => Dim::zero(),
            Rhs::Panels { .. } | Rhs::Indexed(_) => {
                contraction.packed_bytes(&contraction.depth()) * MAX_COLUMNS
            }
        }
    }

    /// Whether any contraction uses tile registers on machines that have them.
    pub fn uses_tiles(&self) -> bool {
        self.on_tiles_count() > 0
    }

    /// Number of kernels with a contraction that uses tile registers.
    pub fn on_tiles_count(&self) -> usize {
        self.kernels
            .iter()
            .filter(|kernel| Stmt::has_contraction(&kernel.body, &|contraction| self.on_tiles(contraction)))
            .count()
    }

    /// Whether artefacts report their use of tile registers: a lower precision is requested, or a contraction uses
    /// them.
    pub(crate) fn may_use_tiles(&self) -> bool {
        self.precision != Precision::F32 || self.uses_tiles()
    }
}

impl Stmt {
    /// Whether any contraction of these statements, or of those inside them, has a property.
    pub(crate) fn has_contraction(body: &[Stmt], has: &dyn Fn(&Contraction) -> bool) -> bool {
        body.iter().any(|stmt| match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => Stmt::has_contraction(body, has),
            Stmt::If { then, otherwise, .. } => {
                Stmt::has_contraction(then, has) || Stmt::has_contraction(otherwise, has)
            }
            Stmt::Contraction(contraction) => has(contraction),
            Stmt::Block(_) | Stmt::Strip { .. } => false,
        })
    }
}
