//! The aarch64 backend: NEON, in words that [`instructions`] and [`transfers`] list.
//!
//! Registers are allocated by the linear scan that all backends share. Then [`select`] turns each step into
//! instructions and [`asm`] these into bytes. The code is position-independent, includes its constants, and refers to
//! nothing outside.

mod asm;
pub mod detect;
pub mod instructions;
mod operands;
mod registers;
mod select;
pub mod transfers;

use super::{
    allocate::{self, RegisterFiles},
    builder::VectorShape,
    isa::{ALIGN_BYTES, Caches, VectorIsa},
    vcode::VCode,
};
use crate::{codegen::vector::MachineCode, error::Result};
use cranelift_codegen::isa::TargetIsa;
use cranelift_module::FuncId;

/// The backend of an aarch64 level.
#[derive(Clone, Copy, Debug)]
pub struct Aarch64 {
    /// Whether the machine multiplies bytes: the extension `dotprod`.
    dots: bool,
    /// Whether it multiplies matrices of bytes: the extension `i8mm`.
    matrices: bool,
    /// Whether it multiplies matrices of bf16: the extension `bf16`.
    bf16: bool,
}

impl Aarch64 {
    /// ARMv8 with NEON: 32 registers of 4 lanes.
    pub const NEON: Aarch64 = Aarch64 { dots: false, matrices: false, bf16: false };
    /// NEON with dot products of bytes.
    pub const DOTPROD: Aarch64 = Aarch64 { dots: true, matrices: false, bf16: false };
    /// NEON with dot products and products of matrices of bytes.
    pub const I8MM: Aarch64 = Aarch64 { dots: true, matrices: true, bf16: false };
    /// NEON with all of these, and products of matrices of bf16.
    pub const BF16: Aarch64 = Aarch64 { dots: true, matrices: true, bf16: true };

    /// The machine code of a microkernel, and the number of vector registers that are spilled.
    ///
    /// # Errors
    /// `Internal` where an instruction can't be encoded: a bug.
    pub fn encode(&self, code: &VCode) -> Result<(Vec<u8>, usize)> {
        let files = RegisterFiles { ints: registers::INTS.len(), vectors: registers::VECTORS, masks: None };
        let code = operands::simplified(code);
        let allocated = allocate::allocate(code, &operands::operands, files)?;
        Ok((select::select(&allocated)?, allocated.spills))
    }
}

impl VectorIsa for Aarch64 {
    fn name(&self) -> &'static str {
        match self {
            Aarch64 { bf16: true, .. } => "neon-bf16",
            Aarch64 { matrices: true, .. } => "neon-i8mm",
            Aarch64 { dots: true, .. } => "neon-dotprod",
            _ => "neon",
        }
    }

    fn shape(&self) -> VectorShape {
        VectorShape {
            lanes: 4,
            registers: 32,
            fma: true,
            fma_lanes: true,
            extrema: true,
            vnni: false,
            byte_quads: false,
            signed_dots: self.dots,
            matrix_dots: self.matrices,
            bf16_matrix_dots: self.bf16,
            byte_pairs: false,
            slow_int_products: false,
            narrow_masks: false,
            clamping_stores: false,
            byte_triples: false,
            interleaving_stores: false,
            masked_stores: true,
            tiles: false,
            f16: true,
            long_ints: false,
        }
    }

    fn caches(&self) -> Caches {
        Caches::SMALL
    }

    fn compile(&self, _: FuncId, code: &VCode, _: &dyn TargetIsa) -> Result<MachineCode> {
        let (bytes, _) = self.encode(code)?;
        Ok(MachineCode::new(bytes, ALIGN_BYTES))
    }
}
