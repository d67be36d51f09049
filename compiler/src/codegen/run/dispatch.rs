//! The choice among levels of the instruction set at run time.
//!
//! The first call detects the machine's level, and stores it in a word of the artefact: the only memory of an artefact
//! that is ever written. Threads whose first calls overlap all store the same value, so the word needs no lock.
//!
//! On Linux, the system must grant tile registers to a process, and it tells the level of an aarch64 machine. No call
//! may enter the system, so a function that runs when the artefact is loaded asks it.

use super::entries::LoadFunctions;
use crate::{
    codegen::{
        function::{FuncCtx, ModuleBuilder, module::internal, pending::Body},
        vector::{
            MachineCode, aarch64,
            convention::machine_code_signature,
            x86::detect::{self, Grant},
        },
    },
    error::Result,
    target::Level,
};
use cranelift_codegen::ir::{BlockArg, InstBuilder, Type, Value, condcodes::IntCC, types};
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module};
use target_lexicon::{Architecture, OperatingSystem};

/// Smallest level that is detected with which a level can run.
fn rank(level: Level) -> i64 {
    match level {
        Level::X86V3 | Level::X86V3Vnni => detect::AVX2,
        Level::X86V4 => detect::AVX512,
        Level::X86V4Vnni => detect::AVX512_VNNI,
        Level::X86V4Amx => detect::AVX512_AMX,
        Level::Aarch64 => aarch64::detect::NEON,
        Level::Aarch64Dotprod => aarch64::detect::DOTPROD,
        Level::Aarch64I8mm => aarch64::detect::I8MM,
        Level::Aarch64Bf16 => aarch64::detect::BF16,
        Level::X86V2 | Level::Riscv64 | Level::Riscv64V => detect::BASE,
    }
}

/// Name of the exported function that returns whether calls use tile registers.
pub(crate) const USES_TILES: &str = "uses_tiles";

/// Emits a `uses_tiles` that returns 0, for an artefact without code for tile registers. Callers may then rely on the
/// symbol for every program that could use them.
pub(crate) fn uses_no_tiles(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol(USES_TILES);
    let uses = unit.declare(&name, Linkage::Export, &[], &[types::I32])?;
    unit.define(uses, |f, _| {
        f.return_ok();
        Ok(())
    })?;
    Ok(uses)
}

/// A function of the base level, and its variants for higher levels.
pub(crate) struct LevelVariants<'v> {
    pub(crate) base: FuncId,
    /// Sorted by level, lowest first.
    pub(crate) higher: &'v [(Level, FuncId)],
}

/// The function that detects the machine's level, and the word that caches its result.
pub(crate) struct LevelDetector {
    /// 0 until the first call.
    word: DataId,
    detect: FuncId,
    /// Present if the system is asked when the artefact is loaded.
    pub(crate) load: Option<LoadFunctions>,
}

impl LevelDetector {
    /// Emits the function, the word, and the functions for tile registers if a level has them.
    pub(crate) fn emit(unit: &mut ModuleBuilder) -> Result<LevelDetector> {
        let name = unit.symbol("level");
        let mut data = DataDescription::new();
        data.define(vec![0; 8].into());
        data.set_align(8);
        let word =
            unit.module.declare_data(&name, Linkage::Local, true, false).map_err(|e| internal(&name, e))?;
        unit.module.define_data(word, &data).map_err(|e| internal(&name, e))?;

        if let Architecture::Aarch64(_) = unit.module.isa().triple().architecture {
            let detect = emit_code(unit, "detect", &aarch64::detect::least()?)?;
            let request = emit_code(unit, "request", &aarch64::detect::detect()?)?;
            let load = emit_load(unit, word, request)?;
            return Ok(LevelDetector { word, detect, load: Some(LoadFunctions { load, uses_tiles: None }) });
        }

        let detect = emit_code(unit, "detect", &detect::detect(Grant::Refused)?)?;
        let has_tiles = unit.levels().iter().any(|level| level.has_tiles());
        let load = has_tiles.then(|| tile_functions(unit, word)).transpose()?;
        Ok(LevelDetector { word, detect, load })
    }

    /// Emits the function that calls the variant of the highest level that the machine has.
    pub(crate) fn dispatch(
        &self,
        unit: &mut ModuleBuilder,
        variants: LevelVariants,
        name: &str,
        linkage: Linkage,
        params: &[Type],
    ) -> Result<FuncId> {
        let name = unit.symbol(name);
        let id = unit.declare(&name, linkage, params, &[types::I32])?;
        unit.define(id, |f, params| {
            let level = self.level(f);
            for (required, variant) in variants.higher.iter().rev() {
                let this = f.create_block();
                let lower = f.create_block();
                let has_level = match required {
                    Level::X86V3Vnni => f.ins().band_imm_s(level, detect::AVX_VNNI),
                    _ => f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, level, rank(*required)),
                };
                f.ins().brif(has_level, this, &[], lower, &[]);

                f.switch_to_block(this);
                f.return_call_result(*variant, params);

                f.switch_to_block(lower);
            }
            f.return_call_result(variants.base, params);
            Ok(())
        })?;
        Ok(id)
    }

    /// The machine's level, which the first call detects.
    fn level(&self, f: &mut FuncCtx) -> Value {
        let word = f.data_address(self.word);
        let cached = f.load_word(word, 0);

        let first_call = f.create_block();
        let next = f.create_block();
        let level = f.builder.append_block_param(next, types::I64);
        f.builder.set_cold_block(first_call);
        f.ins().brif(cached, next, &[BlockArg::Value(cached)], first_call, &[]);

        f.switch_to_block(first_call);
        let detected = f.call(self.detect, &[]).unwrap_or(cached);
        f.store_at(detected, word, 0);
        f.ins().jump(next, &[BlockArg::Value(detected)]);

        f.switch_to_block(next);
        level
    }
}

/// Emits machine code as a function that returns the machine's level.
fn emit_code(unit: &mut ModuleBuilder, name: &str, code: &[u8]) -> Result<FuncId> {
    let name = unit.symbol(name);
    let signature = machine_code_signature(unit.module.isa(), &[], &[types::I64]);
    let declared = unit.module.declare_function(&name, Linkage::Local, &signature);
    let function = declared.map_err(|e| internal(&name, e))?;

    unit.define_later(function, name, Body::Encoded(MachineCode::new(code.to_vec(), 16)))?;
    Ok(function)
}

/// Emits the function that stores the level that `request` returns when the artefact is loaded.
fn emit_load(unit: &mut ModuleBuilder, word: DataId, request: FuncId) -> Result<FuncId> {
    unit.define_local("load", &[], &[], |f, _| {
        let word = f.data_address(word);
        if let Some(level) = f.call(request, &[]) {
            f.store_at(level, word, 0);
        }
        f.ins().return_(&[]);
        Ok(())
    })
}

/// Emits the load-time function that requests tile registers, and `uses_tiles`.
fn tile_functions(unit: &mut ModuleBuilder, word: DataId) -> Result<LoadFunctions> {
    let is_linux = unit.module.isa().triple().operating_system == OperatingSystem::Linux;
    let grant = if is_linux { Grant::Linux } else { Grant::Free };
    let request = emit_code(unit, "request", &detect::detect(grant)?)?;
    let load = emit_load(unit, word, request)?;

    let name = unit.symbol(USES_TILES);
    let uses = unit.declare(&name, Linkage::Export, &[], &[types::I32])?;
    unit.define(uses, |f, _| {
        let word = f.data_address(word);
        let level = f.load_word(word, 0);
        let uses = f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, level, detect::AVX512_AMX);
        let uses = f.ins().uextend(types::I32, uses);
        f.ins().return_(&[uses]);
        Ok(())
    })?;
    Ok(LoadFunctions { load, uses_tiles: Some(uses) })
}
