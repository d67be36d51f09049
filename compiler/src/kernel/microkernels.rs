//! How strips and contractions become code, as far as it affects the kernels around them.

use crate::scalar::Precision;

/// How [`Stmt::Strip`](super::Stmt::Strip) and [`Stmt::Contraction`](super::Stmt::Contraction) are emitted.
///
/// A program has the same meaning either way, and every emitter accepts every program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MicrokernelSupport {
    /// As plain loops, as in C source. Operands are not packed, and another compiler vectorises the loops.
    Loops,
    /// As our own machine code.
    Native {
        /// Whether the machine multiplies four bytes in one step.
        multiplies_bytes: bool,
        /// Whether such a machine also multiplies two pairs of 16 bits in one step, and adds them to a sum.
        sums_pairs: bool,
        /// Whether there is code for machines with tile registers.
        tiles: bool,
        /// Whether there is code for machines that multiply matrices of bf16 on vector registers.
        bf16_matrices: bool,
        /// Whether all machines convert halves while they read them.
        reads_halves: bool,
        /// The largest number of 32-bit lanes of a vector among the machines.
        lanes: usize,
    },
}

impl Default for MicrokernelSupport {
    fn default() -> MicrokernelSupport {
        MicrokernelSupport::Native {
            multiplies_bytes: false,
            sums_pairs: false,
            tiles: false,
            bf16_matrices: false,
            reads_halves: false,
            lanes: 4,
        }
    }
}

impl MicrokernelSupport {
    /// Whether strips and contractions become our own machine code.
    pub(crate) fn is_native(self) -> bool {
        matches!(self, MicrokernelSupport::Native { .. })
    }

    /// Whether that code multiplies four bytes in one step.
    pub fn multiplies_bytes(self) -> bool {
        matches!(self, MicrokernelSupport::Native { multiplies_bytes: true, .. })
    }

    /// Whether each machine that multiplies four bytes in one step sums pairs of 16 bits in one as well.
    pub(crate) fn sums_pairs(self) -> bool {
        matches!(self, MicrokernelSupport::Native { sums_pairs: true, .. })
    }

    /// Whether all machines convert halves while they read them.
    pub(crate) fn reads_halves(self) -> bool {
        matches!(self, MicrokernelSupport::Native { reads_halves: true, .. })
    }

    /// Whether vectors of some machines hold several groups of this number of lanes.
    pub(crate) fn hold_several(self, group: usize) -> bool {
        matches!(self, MicrokernelSupport::Native { lanes, .. } if lanes > group)
    }

    /// Whether there is code for tile registers.
    pub(crate) fn has_tiles(self) -> bool {
        matches!(self, MicrokernelSupport::Native { tiles: true, .. })
    }

    /// Whether there is code for matrices of bf16.
    pub(crate) fn has_bf16_matrices(self) -> bool {
        matches!(self, MicrokernelSupport::Native { bf16_matrices: true, .. })
    }

    /// Whether there is code that multiplies at this precision. All other code multiplies `f32`.
    pub(crate) fn multiplies(self, precision: Precision) -> bool {
        self.has_tiles() || precision == Precision::Bf16 && self.has_bf16_matrices()
    }

    /// Whether there is code that multiplies bf16 at this precision.
    pub(crate) fn multiplies_bf16(self, precision: Precision) -> bool {
        precision != Precision::F32 && self.multiplies(precision)
    }

    /// This support, with code for tile registers unless it is [`MicrokernelSupport::Loops`].
    #[must_use]
    pub fn with_tiles(self) -> MicrokernelSupport {
        match self {
            MicrokernelSupport::Loops => self,
            MicrokernelSupport::Native {
                multiplies_bytes,
                sums_pairs,
                bf16_matrices,
                reads_halves,
                lanes,
                ..
            } => MicrokernelSupport::Native {
                multiplies_bytes,
                sums_pairs,
                tiles: true,
                bf16_matrices,
                reads_halves,
                lanes,
            },
        }
    }
}
