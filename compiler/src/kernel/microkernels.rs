//! How strips and contractions become code, as far as it affects the kernels around them.

/// How [`Stmt::Strip`](super::Stmt::Strip) and [`Stmt::Contraction`](super::Stmt::Contraction) are emitted.
///
/// A program has the same meaning either way, and every emitter accepts every program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MicrokernelSupport {
    /// As plain loops, as in C source. Operands are not packed, and another compiler vectorises the loops.
    Loops,
    /// As our own machine code.
    Native {
        /// Whether the machine multiplies four bytes in one step. Other methods for bytes are slower then.
        multiplies_bytes: bool,
        /// Whether there is code for machines with tile registers.
        tiles: bool,
        /// Whether all machines convert halves while they read them.
        reads_halves: bool,
    },
}

impl Default for MicrokernelSupport {
    fn default() -> MicrokernelSupport {
        MicrokernelSupport::Native { multiplies_bytes: false, tiles: false, reads_halves: false }
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

    /// Whether all machines convert halves while they read them.
    pub(crate) fn reads_halves(self) -> bool {
        matches!(self, MicrokernelSupport::Native { reads_halves: true, .. })
    }

    /// Whether there is code for tile registers.
    pub(crate) fn has_tiles(self) -> bool {
        matches!(self, MicrokernelSupport::Native { tiles: true, .. })
    }

    /// This support, with code for tile registers unless it is [`MicrokernelSupport::Loops`].
    #[must_use]
    pub fn with_tiles(self) -> MicrokernelSupport {
        match self {
            MicrokernelSupport::Loops => self,
            MicrokernelSupport::Native { multiplies_bytes, reads_halves, .. } => {
                MicrokernelSupport::Native { multiplies_bytes, tiles: true, reads_halves }
            }
        }
    }
}
