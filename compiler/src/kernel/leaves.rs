//! How leaves become code, as far as the kernels around them are made for it.

/// What emits the two leaves, [`Stmt::Strip`](super::Stmt::Strip) and [`Stmt::Contract`](super::Stmt::Contract).
///
/// A program means the same either way, and any emitter takes any program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaves {
    /// They are written as the loops that they stand for, as in C source: nobody lays out rows anew, and what the loops
    /// become is for another compiler to decide.
    Loops,
    /// They are machine code of our own.
    Code {
        /// The machine multiplies four bytes in one step, which it prefers to anything cleverer.
        multiplies_bytes: bool,
        /// There is code for machines with tile registers.
        tiles: bool,
    },
}

impl Default for Leaves {
    fn default() -> Leaves {
        Leaves::Code { multiplies_bytes: false, tiles: false }
    }
}

impl Leaves {
    /// Whether there is code of our own for them.
    pub fn are_code(self) -> bool {
        matches!(self, Leaves::Code { .. })
    }

    /// Whether that code multiplies four bytes in one step.
    pub fn multiply_bytes(self) -> bool {
        matches!(self, Leaves::Code { multiplies_bytes: true, .. })
    }

    /// Whether some of it is for tile registers.
    pub fn have_tiles(self) -> bool {
        matches!(self, Leaves::Code { tiles: true, .. })
    }

    /// As these, with code for tile registers where there is code.
    pub fn with_tiles(self) -> Leaves {
        match self {
            Leaves::Loops => self,
            Leaves::Code { multiplies_bytes, .. } => Leaves::Code { multiplies_bytes, tiles: true },
        }
    }
}
