//! Decides which contractions are multiplied as matrices of bf16, on machines whose vector registers hold these.
//!
//! The code generator, the sizes of pack buffers and the descriptions of artefacts all depend on these decisions.

use super::{Contraction, Program, Rhs, Stmt, tiles::PANEL_WIDTH};
use crate::scalar::Precision;
use symshape_runtime::DType;

/// bf16 of a row that one step multiplies. Packed rows are padded to whole steps.
pub(crate) const STEP_BF16: i64 = 8;

impl Program {
    /// Whether machines with products of matrices of bf16 use them for a contraction: it fits, and it has a pack
    /// buffer.
    pub fn on_bf16_matrices(&self, contraction: &Contraction) -> bool {
        contraction.pack_buffer.is_some() && self.fits_bf16_matrices(contraction)
    }

    /// Whether these machines can multiply a contraction as bf16, given a pack buffer: its precision is
    /// [`Precision::Bf16`]. Other precisions would need several products, which take about as long as one of `f32`.
    pub(crate) fn fits_bf16_matrices(&self, contraction: &Contraction) -> bool {
        let is_wanted = self.microkernels.has_bf16_matrices()
            && contraction.dtype == DType::F32
            && contraction.precision == Precision::Bf16;
        let (rhs, is_supported) = match &contraction.rhs {
            Rhs::Panels { buffer, width: PANEL_WIDTH, .. } if self.is_const(*buffer) => (*buffer, true),
            Rhs::Panels { buffer, width: PANEL_WIDTH, .. } => (*buffer, self.is_worth_packing(contraction)),
            Rhs::Panels { .. } | Rhs::FewBits(_) => return false,
            Rhs::Indexed(access) => (access.buffer, self.is_worth_packing(contraction)),
        };
        let has_types = match self.buffers[contraction.lhs.buffer].dtype {
            DType::BF16 => self.accepts_bf16_lhs(contraction),
            DType::F32 => self.buffers[rhs].dtype == DType::F32,
            _ => false,
        };
        is_wanted && is_supported && has_types
    }

    /// Whether a contraction is multiplied as bf16 on some machine of the artefact.
    pub(crate) fn fits_bf16(&self, contraction: &Contraction) -> bool {
        self.fits_tiles(contraction) || self.fits_bf16_matrices(contraction)
    }

    /// Number of kernels with a contraction that is multiplied as matrices of bf16.
    pub fn on_bf16_matrices_count(&self) -> usize {
        self.kernels
            .iter()
            .filter(|kernel| {
                Stmt::has_contraction(&kernel.body, &|contraction| self.on_bf16_matrices(contraction))
            })
            .count()
    }
}
