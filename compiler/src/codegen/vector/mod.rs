//! The vector ISA that microkernels are written for, and the backends that compile it to machine code.
//!
//! A [`builder::Builder`] records a microkernel once as [`vcode::VCode`]. It knows the [`VectorShape`] of the ISA:
//! lanes, registers, fused multiply-add. A [`VectorIsa`] then defines the microkernel as
//! `fn(args: *const i64)` in the same Cranelift module as all other functions, for the JIT and for objects
//! alike.

pub mod aarch64;
mod allocate;
pub mod builder;
mod clif;
mod coalesce;
pub(crate) mod convention;
mod isa;
mod listing;
mod machine_code;
mod operands;
mod reg_map;
mod steps;
mod text;
pub mod vcode;
pub mod x86;

pub use aarch64::Aarch64;
pub use builder::{Builder, VectorShape};
pub use clif::Portable;
pub use isa::{Caches, VectorIsa};
pub use machine_code::MachineCode;
pub(crate) use machine_code::compilation;
pub use x86::X86;

use crate::target::Level;
use cranelift_codegen::isa::TargetIsa;
use target_lexicon::Architecture;

/// The widest backend for a target, whose level may be unknown.
pub fn for_target(level: Option<Level>, isa: &dyn TargetIsa) -> Box<dyn VectorIsa> {
    let has =
        |name: &str| isa.isa_flags().iter().any(|flag| flag.name == name && flag.as_bool() == Some(true));

    if ["has_avx512f", "has_avx512dq", "has_avx512vl"].into_iter().all(has) {
        return match level {
            Some(Level::X86V4Vnni) => Box::new(X86::AVX512_VNNI),
            _ => Box::new(X86::AVX512),
        };
    }

    if has("has_avx2") && has("has_fma") {
        return match level {
            Some(Level::X86V3Vnni) => Box::new(X86::AVX2_VNNI),
            _ => Box::new(X86::AVX2),
        };
    }

    match isa.triple().architecture {
        Architecture::Aarch64(_) => for_level(level.unwrap_or(Level::Aarch64), isa),
        _ => Box::new(Portable::new(isa)),
    }
}

/// The backend of a level, which may be above the module's.
pub(crate) fn for_level(level: Level, isa: &dyn TargetIsa) -> Box<dyn VectorIsa> {
    match level {
        Level::X86V3 => Box::new(X86::AVX2),
        Level::X86V3Vnni => Box::new(X86::AVX2_VNNI),
        Level::X86V4 => Box::new(X86::AVX512),
        Level::X86V4Vnni => Box::new(X86::AVX512_VNNI),
        Level::X86V4Amx => Box::new(X86::AVX512_AMX),
        Level::Aarch64 => Box::new(Aarch64::NEON),
        Level::Aarch64Dotprod => Box::new(Aarch64::DOTPROD),
        Level::Aarch64I8mm => Box::new(Aarch64::I8MM),
        Level::Aarch64Bf16 => Box::new(Aarch64::BF16),
        Level::X86V2 | Level::Riscv64 | Level::Riscv64V => Box::new(Portable::new(isa)),
    }
}
