//! Which contractions tile registers multiply on machines that have them.
//!
//! The code generator, the room that it needs and what artefacts say of themselves all ask here.

use super::{BufferId, Contraction, MemorySpace, Program, Rhs, Stmt};
use crate::scalar::{
    Precision,
    precision::{MIN_SPLIT_EXTENT, is_bf16},
};
use symshape::Dim;
use symshape_runtime::DType;

/// Columns of the widest tile.
const MOST_COLUMNS: i64 = 64;

/// Bytes of a tile register's row. What tile registers multiply is laid out in whole rows, filled up with zeros.
pub(crate) const ROW_BYTES: i64 = 64;

/// Bf16 of such a row, two bytes each.
pub(crate) const ROW_BF16: i64 = ROW_BYTES / 2;

impl Contraction {
    /// Bf16 that stand for each number of the left factor where tile registers multiply `f32`; a right factor that is
    /// computed has as many.
    fn parts(&self) -> i64 {
        self.precision.parts().map_or(1, |parts| parts.lhs.into())
    }

    /// Bytes of so many numbers one behind the other, as rows of tile registers.
    pub(crate) fn bf16_bytes(&self, numbers: &Dim) -> Dim {
        numbers.ceil_div(ROW_BF16) * (ROW_BYTES * self.parts())
    }
}

impl Program {
    /// Whether tile registers multiply a contraction on machines that have them: one that fits them and has room for rows
    /// laid out anew.
    pub fn on_tiles(&self, contraction: &Contraction) -> bool {
        contraction.pack_buffer.is_some() && self.fits_tiles(contraction)
    }

    /// Whether tile registers can multiply a contraction, given room: `f32` as bf16 where its precision is less, and bytes
    /// with constants, which have a sign. Left factors may be bf16 already where that is all of them that is multiplied.
    pub(crate) fn fits_tiles(&self, contraction: &Contraction) -> bool {
        let dtype = |buffer: BufferId| self.buffers[buffer].dtype;
        let (right, fits) = match &contraction.rhs {
            Rhs::Panels { buffer, width: 16, .. } if self.is_const(*buffer) => (*buffer, true),
            Rhs::Panels { buffer, width: 16, .. } => (*buffer, self.is_worth_laying_out(contraction)),
            Rhs::Panels { .. } => return false,
            Rhs::Indexed(access) => (access.buffer, self.is_worth_laying_out(contraction)),
        };
        let factors = (dtype(contraction.lhs.buffer), dtype(right));
        let types = match contraction.dtype {
            DType::F32 if factors.0 == DType::BF16 => {
                contraction.precision == Precision::Bf16 && self.takes_halves(contraction)
            }
            DType::F32 => contraction.precision != Precision::F32 && factors == (DType::F32, DType::F32),
            DType::I32 => self.is_const(right) && matches!(factors, (DType::U8 | DType::I8, DType::I8)),
            _ => false,
        };
        self.microkernels.has_tiles() && fits && types
    }

    /// Whether tile registers multiply a contraction of `f32` as it is, with nothing left out: its right factor is a constant
    /// of bf16, and large enough.
    pub(crate) fn is_exact(&self, contraction: &Contraction) -> bool {
        let Rhs::Panels { buffer, .. } = &contraction.rhs else { return false };
        let buffer = &self.buffers[*buffer];
        let MemorySpace::Const(tensor) = &buffer.space else { return false };
        let many = |dim: &Dim| dim.as_i64().is_some_and(|extent| extent >= MIN_SPLIT_EXTENT);
        let mut numbers = tensor.bytes().chunks_exact(4);
        self.microkernels.has_tiles()
            && contraction.dtype == DType::F32
            && buffer.dtype == DType::F32
            && many(&contraction.depth())
            && many(&contraction.n.extent)
            && numbers.all(|bytes| is_bf16(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])))
    }

    /// Whether the left factor of a contraction of `f32` may be of bf16: the right one is a constant.
    pub(crate) fn takes_halves(&self, contraction: &Contraction) -> bool {
        let Rhs::Panels { buffer, width: 16, .. } = &contraction.rhs else { return false };
        contraction.dtype == DType::F32 && self.is_const(*buffer) && self.buffers[*buffer].dtype == DType::F32
    }

    /// Whether a right factor that is computed is one that a leaf lays out for tile registers: columns side by side along one
    /// axis of the reduction, and enough rows for what that takes. Symbols decide by the most that they may be, so that a
    /// row's bits don't depend on their values.
    fn is_worth_laying_out(&self, contraction: &Contraction) -> bool {
        let mut facts = self.facts.clone();
        for axis in contraction.m.iter().chain(&contraction.k).chain([&contraction.n]) {
            facts.declare_index(&axis.var, &axis.extent);
        }
        let dense = match &contraction.rhs {
            Rhs::Panels { base, .. } => !contraction.m.iter().any(|axis| base.contains(&axis.var)),
            Rhs::Indexed(access) => {
                let step = facts.linear_in(&access.index, &contraction.n.var);
                contraction.k.len() == 1
                    && step.is_some_and(|(step, _)| step.as_i64() == Some(1))
                    && !contraction.m.iter().any(|axis| access.index.contains(&axis.var))
            }
        };
        let (rows, depth) = (contraction.rows(), contraction.depth());
        let many = |dim: &Dim| self.facts.bounds(dim).hi.is_none_or(|hi| hi >= MIN_SPLIT_EXTENT.into());
        let some = self.facts.prove_le(&Dim::one(), &depth).is_yes();
        dense && some && [&rows, &contraction.n.extent, &depth].into_iter().all(many)
    }

    /// Bytes of a contraction's room that hold its right factor, a tile of columns at a time, in front of its rows.
    pub(crate) fn right_room(&self, contraction: &Contraction) -> Dim {
        match &contraction.rhs {
            Rhs::Panels { buffer, .. } if self.is_const(*buffer) => Dim::zero(),
            Rhs::Panels { .. } | Rhs::Indexed(_) => {
                contraction.bf16_bytes(&contraction.depth()) * MOST_COLUMNS
            }
        }
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
                Stmt::Contraction(contraction) => program.on_tiles(contraction),
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
