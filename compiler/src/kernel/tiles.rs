//! Which contractions tile registers multiply on machines that have them.
//!
//! The code generator, the room that it needs and what artefacts say of themselves all ask here.

use super::{BufferId, Contract, Program, Rhs, Space, Stmt};
use crate::scalar::Precision;
use symshape_runtime::DType;

impl Program {
    /// Whether tile registers multiply a contraction on machines that have them: one that fits them and has room for rows
    /// laid out anew.
    pub fn on_tiles(&self, contract: &Contract) -> bool {
        contract.room.is_some() && self.fits_tiles(contract)
    }

    /// Whether tile registers can multiply a contraction, given room: `f32` as bf16 where its precision is less, and bytes,
    /// with constants; of bytes those have a sign.
    pub(crate) fn fits_tiles(&self, contract: &Contract) -> bool {
        let dtype = |buffer: BufferId| self.buffers[buffer].dtype;
        let Rhs::Panels { buffer, width: 16, .. } = contract.rhs else { return false };
        let constant = matches!(self.buffers[buffer].space, Space::Const(_));
        let factors = (dtype(contract.lhs.buffer), dtype(buffer));
        let fits = match contract.dtype {
            DType::F32 => contract.precision != Precision::F32 && factors == (DType::F32, DType::F32),
            DType::I32 => matches!(factors, (DType::U8 | DType::I8, DType::I8)),
            _ => false,
        };
        self.leaves.have_tiles() && constant && fits
    }

    /// Whether tile registers multiply any of its contractions on machines that have them.
    pub fn uses_tiles(&self) -> bool {
        self.on_tiles_count() > 0
    }

    /// The number of kernels with such contractions.
    pub fn on_tiles_count(&self) -> usize {
        fn of(program: &Program, body: &[Stmt]) -> bool {
            body.iter().any(|stmt| match stmt {
                Stmt::For { body, .. } | Stmt::While { body, .. } => of(program, body),
                Stmt::If { then, otherwise, .. } => of(program, then) || of(program, otherwise),
                Stmt::Contract(contract) => program.on_tiles(contract),
                Stmt::Block(_) | Stmt::Strip { .. } => false,
            })
        }
        self.kernels.iter().filter(|kernel| of(self, &kernel.body)).count()
    }

    /// Whether artefacts say if they use tile registers: where a precision asks for them, or something is made for them.
    pub fn may_use_tiles(&self) -> bool {
        self.precision != Precision::F32 || self.uses_tiles()
    }
}
