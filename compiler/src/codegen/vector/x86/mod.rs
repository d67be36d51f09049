//! The x86 backends: AVX2 with FMA, and AVX-512 (F, BW, DQ, VL), encoded by iced-x86.
//!
//! The stages are [`loop_constants`] (constants of loops get registers), [`legalize`] (others become memory operands),
//! [`allocate`] (linear scan), [`select`] (instructions from the tables of [`simd`]) and [`asm`] (bytes). The code is
//! position-independent, includes its constants, and refers to nothing outside.

mod asm;
pub mod detect;
mod legalize;
mod loop_constants;
mod registers;
mod select;
mod simd;

use super::{
    allocate,
    builder::VectorShape,
    isa::{ALIGN_BYTES, Caches, VectorIsa},
    operands::operands,
    vcode::{VCode, VInst},
};
use crate::{codegen::vector::MachineCode, error::Result};
use cranelift_codegen::isa::TargetIsa;
use cranelift_module::FuncId;
use simd::Simd;

/// The backend of an x86 level.
#[derive(Clone, Copy, Debug)]
pub struct X86 {
    simd: Simd,
    /// Whether the machine has VNNI.
    vnni: bool,
    /// Whether the machine has AMX.
    tiles: bool,
}

impl X86 {
    /// AVX2 and FMA: 16 registers of 8 lanes.
    pub const AVX2: X86 = X86 { simd: Simd::Avx2, vnni: false, tiles: false };
    /// AVX2 and FMA with AVX-VNNI.
    pub const AVX2_VNNI: X86 = X86 { simd: Simd::Avx2, vnni: true, tiles: false };
    /// AVX-512: 32 registers of 16 lanes, and mask registers.
    pub const AVX512: X86 = X86 { simd: Simd::Avx512, vnni: false, tiles: false };
    /// AVX-512 with VNNI.
    pub const AVX512_VNNI: X86 = X86 { simd: Simd::Avx512, vnni: true, tiles: false };
    /// AVX-512 with VNNI and AMX.
    pub const AVX512_AMX: X86 = X86 { simd: Simd::Avx512, vnni: true, tiles: true };

    /// The machine code of a microkernel, and the number of vector registers that are spilled.
    ///
    /// # Errors
    /// `Internal` where an instruction can't be encoded: a bug.
    pub fn encode(&self, code: &VCode) -> Result<(Vec<u8>, usize)> {
        let files = self.simd.files();
        let constants = legalize::constants(code);
        // Other constants are operands in memory.
        let in_registers = |step: &VInst| {
            let mut all = operands(step);
            all.reads.retain(|reg| !constants.contains(*reg));
            all
        };
        let kept = loop_constants::keep_constants(code, &constants, &in_registers, files);
        let legal = legalize::legalize(kept.as_ref().unwrap_or(code), &constants);
        let allocated = allocate::allocate(legal, &in_registers, files)?;
        let bytes = select::select(&allocated, &constants, self.simd)?;
        Ok((bytes, allocated.spills))
    }
}

impl VectorIsa for X86 {
    fn name(&self) -> &'static str {
        match (self.tiles, self.vnni) {
            (true, _) => "avx512-amx",
            (false, true) if self.simd == Simd::Avx2 => "avx2-vnni",
            (false, true) => "avx512-vnni",
            (false, false) => self.simd.name(),
        }
    }

    fn narrower(&self) -> Option<&'static dyn VectorIsa> {
        (self.simd == Simd::Avx512).then_some(&X86::AVX2 as &dyn VectorIsa)
    }

    fn shape(&self) -> VectorShape {
        let lanes = self.simd.lanes();
        let registers = self.simd.files().vectors;
        let long_ints = self.simd == Simd::Avx512;
        VectorShape {
            lanes,
            registers,
            fma: true,
            fma_lanes: false,
            extrema: false,
            vnni: self.vnni,
            byte_quads: self.vnni && self.simd == Simd::Avx512,
            signed_dots: false,
            matrix_dots: false,
            bf16_matrix_dots: false,
            byte_pairs: true,
            slow_int_products: true,
            narrow_masks: self.simd == Simd::Avx512,
            clamping_stores: true,
            byte_triples: true,
            interleaving_stores: self.simd == Simd::Avx512,
            masked_stores: self.simd == Simd::Avx512,
            tiles: self.tiles,
            f16: true,
            long_ints,
        }
    }

    fn caches(&self) -> Caches {
        match self.simd {
            Simd::Avx2 => Caches::SMALL,
            Simd::Avx512 if self.tiles => Caches::LARGEST,
            Simd::Avx512 => Caches::LARGE,
        }
    }

    fn keeps_tiles(&self) -> bool {
        self.tiles
    }

    fn compile(&self, _: FuncId, code: &VCode, _: &dyn TargetIsa) -> Result<MachineCode> {
        let (bytes, _) = self.encode(code)?;
        Ok(MachineCode::new(bytes, ALIGN_BYTES))
    }
}
