//! How leaves become code, as far as the kernels around them are made for it.

/// How [`Stmt::Strip`](super::Stmt::Strip) and [`Stmt::Contraction`](super::Stmt::Contraction) are emitted.
///
/// A program means the same either way, and any emitter takes any program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MicrokernelSupport {
    /// They are written as the loops that they stand for, as in C source: nobody lays out rows anew, and what the loops
    /// become is for another compiler to decide.
    Loops,
    /// They are machine code of our own.
    Native {
        /// The machine multiplies four bytes in one step, which it prefers to anything cleverer.
        multiplies_bytes: bool,
        /// There is code for machines with tile registers.
        tiles: bool,
    },
}

impl Default for MicrokernelSupport {
    fn default() -> MicrokernelSupport {
        MicrokernelSupport::Native { multiplies_bytes: false, tiles: false }
    }
}

impl MicrokernelSupport {
    /// Whether there is code of our own for them.
    pub fn is_native(self) -> bool {
        matches!(self, MicrokernelSupport::Native { .. })
    }

    /// Whether that code multiplies four bytes in one step.
    pub fn multiplies_bytes(self) -> bool {
        matches!(self, MicrokernelSupport::Native { multiplies_bytes: true, .. })
    }

    /// Whether some of it is for tile registers.
    pub fn has_tiles(self) -> bool {
        matches!(self, MicrokernelSupport::Native { tiles: true, .. })
    }

    /// As these, with code for tile registers where there is code.
    pub fn with_tiles(self) -> MicrokernelSupport {
        match self {
            MicrokernelSupport::Loops => self,
            MicrokernelSupport::Native { multiplies_bytes, .. } => {
                MicrokernelSupport::Native { multiplies_bytes, tiles: true }
            }
        }
    }
}
