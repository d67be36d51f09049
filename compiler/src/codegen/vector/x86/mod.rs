//! The x86 backends: AVX2 with FMA, and AVX-512 (F, BW, DQ, VL), encoded by iced-x86.
//!
//! Leaf code goes through [`legalize`] (constants where memory operands may be), [`allocate`] (linear scan) and
//! [`select`] (one to ten instructions a step, from the tables of [`level`]) into the list of [`asm`]. The bytes are
//! position-independent, constants included, and refer to nothing outside.

mod allocate;
mod asm;
pub mod detect;
mod legalize;
mod level;
mod operands;
mod select;

use super::{Caches, Shape, VectorIsa, code::Code};
use crate::error::{Error, Result};
use cranelift_module::{FuncId, Module};
use level::Level;

/// A backend of this architecture.
#[derive(Clone, Copy, Debug)]
pub struct X86 {
    level: Level,
    /// The machine multiplies bytes: VNNI.
    quads: bool,
    /// It has tile registers: AMX.
    tiles: bool,
}

impl X86 {
    /// AVX2 and FMA: 16 registers of 8 lanes.
    pub const AVX2: X86 = X86 { level: Level::Avx2, quads: false, tiles: false };
    /// AVX-512: 32 registers of 16 lanes, masks of their own.
    pub const AVX512: X86 = X86 { level: Level::Avx512, quads: false, tiles: false };
    /// AVX-512 with VNNI.
    pub const AVX512_VNNI: X86 = X86 { level: Level::Avx512, quads: true, tiles: false };
    /// AVX-512 with VNNI and AMX.
    pub const AVX512_AMX: X86 = X86 { level: Level::Avx512, quads: true, tiles: true };

    /// The machine code of a leaf, and how many of its vector registers live in memory.
    ///
    /// # Errors
    /// `Internal` where an instruction can't be encoded: a bug.
    pub fn encode(&self, code: &Code) -> Result<(Vec<u8>, usize)> {
        let (code, constants) = legalize::legalize(code);
        let allocated = allocate::allocate(code, &constants, self.level.files())?;
        let bytes = select::select(&allocated, &constants, self.level)?;
        Ok((bytes, allocated.spills))
    }
}

impl VectorIsa for X86 {
    fn name(&self) -> &'static str {
        match (self.tiles, self.quads) {
            (true, _) => "avx512-amx",
            (false, true) => "avx512-vnni",
            (false, false) => self.level.name(),
        }
    }

    fn shape(&self) -> Shape {
        let (lanes, registers) = (self.level.lanes(), self.level.files().vectors);
        Shape { lanes, registers, fma: true, quads: self.quads, tiles: self.tiles }
    }

    fn caches(&self) -> Caches {
        match self.level {
            Level::Avx2 => Caches::SMALL,
            Level::Avx512 if self.tiles => Caches::LARGEST,
            Level::Avx512 => Caches::LARGE,
        }
    }

    fn keeps_tiles(&self) -> bool {
        self.tiles
    }

    fn define(&self, func: FuncId, code: &Code, module: &mut dyn Module) -> Result<u64> {
        let (bytes, _) = self.encode(code)?;
        let defined = module.define_function_bytes(func, 64, &bytes, &[]);
        defined.map_err(|error| Error::internal(format!("leaf: {error:?}")))?;
        Ok(bytes.len() as u64)
    }
}
