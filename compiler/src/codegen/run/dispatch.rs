//! Which level of the instruction set a call uses: asked once, kept in a word of the artefact.

use super::entries::Tiles;
use crate::{
    codegen::{
        function::{ModuleBuilder, module::internal},
        vector::x86::detect::{self, Grant},
    },
    error::Result,
    target::Level,
};
use cranelift_codegen::ir::{AbiParam, BlockArg, InstBuilder, Type, condcodes::IntCC, types};
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module};

/// Smallest result of [`detect::detect`] with which a level can run.
fn rank(level: Level) -> i64 {
    match level {
        Level::X86V3 => detect::AVX2,
        Level::X86V4 => detect::AVX512,
        Level::X86V4Vnni => detect::AVX512_VNNI,
        Level::X86V4Amx => detect::AVX512_AMX,
        Level::X86V2 | Level::Aarch64 | Level::Riscv64 | Level::Riscv64V => detect::BASE,
    }
}

/// The exported function that says whether calls use tile registers.
pub(crate) const USES_TILES: &str = "uses_tiles";

/// Emits it where there is no code for them, so that it is there for every artefact that might.
pub(crate) fn no_tiles(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol(USES_TILES);
    let uses = unit.declare(&name, Linkage::Export, &[], &[types::I32])?;
    unit.define(uses, |f, _| {
        f.return_ok();
        Ok(())
    })?;
    Ok(uses)
}

/// The function that asks the machine, and the word that keeps its answer.
pub(crate) struct Machine {
    word: DataId,
    ask: FuncId,
    /// Present where there is code for tile registers.
    pub(crate) tiles: Option<Tiles>,
}

impl Machine {
    /// Emits both.
    pub(crate) fn ask(unit: &mut ModuleBuilder) -> Result<Machine> {
        let name = unit.symbol("level");
        let mut data = DataDescription::new();
        data.define(vec![0; 8].into());
        data.set_align(8);
        let word =
            unit.module.declare_data(&name, Linkage::Local, true, false).map_err(|e| internal(&name, e))?;
        unit.module.define_data(word, &data).map_err(|e| internal(&name, e))?;
        let ask = Machine::question(unit, "detect", Grant::Refused)?;
        let has_tiles = unit.levels().iter().any(|level| level.has_tiles());
        let tiles = has_tiles.then(|| Machine::when_loaded(unit, word)).transpose()?;
        Ok(Machine { word, ask, tiles })
    }

    /// Emits a function that returns the level of the machine. It calls the system only if `grant` requires it.
    fn question(unit: &mut ModuleBuilder, name: &str, grant: Grant) -> Result<FuncId> {
        let name = unit.symbol(name);
        let mut signature = unit.module.make_signature();
        signature.returns.push(AbiParam::new(types::I64));
        let declared = unit.module.declare_function(&name, Linkage::Local, &signature);
        let function = declared.map_err(|e| internal(&name, e))?;
        let code = detect::detect(grant)?;
        unit.module.define_function_bytes(function, 16, &code, &[]).map_err(|e| internal(&name, e))?;
        Ok(function)
    }

    /// Emits the load-time function that requests tile registers, and `uses_tiles`.
    fn when_loaded(unit: &mut ModuleBuilder, word: DataId) -> Result<Tiles> {
        let linux = unit.module.isa().triple().operating_system == target_lexicon::OperatingSystem::Linux;
        let request = Machine::question(unit, "request", if linux { Grant::Linux } else { Grant::Free })?;
        let load = unit.define_local("load", &[], &[], |f, _| {
            let place = f.data_address(word);
            if let Some(found) = f.call(request, &[]) {
                f.store_at(found, place, 0);
            }
            f.ins().return_(&[]);
            Ok(())
        })?;
        let name = unit.symbol(USES_TILES);
        let uses = unit.declare(&name, Linkage::Export, &[], &[types::I32])?;
        unit.define(uses, |f, _| {
            let place = f.data_address(word);
            let level = f.load_word(place, 0);
            let wanted = detect::AVX512_AMX;
            let uses = f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, level, wanted);
            let uses = f.ins().uextend(types::I32, uses);
            f.ins().return_(&[uses]);
            Ok(())
        })?;
        Ok(Tiles { load, uses })
    }

    /// The function that jumps to one of `runs`, which are sorted by level, or to `least`.
    pub(crate) fn dispatch(
        &self,
        unit: &mut ModuleBuilder,
        least: FuncId,
        runs: &[(Level, FuncId)],
        name: &str,
        linkage: Linkage,
        params: &[Type],
    ) -> Result<FuncId> {
        let name = unit.symbol(name);
        let id = unit.declare(&name, linkage, params, &[types::I32])?;
        unit.define(id, |f, params| {
            let place = f.data_address(self.word);
            let known = f.load_word(place, 0);
            let (first, next) = (f.create_block(), f.create_block());
            let level = f.builder.append_block_param(next, types::I64);
            f.builder.set_cold_block(first);
            f.ins().brif(known, next, &[BlockArg::Value(known)], first, &[]);
            f.switch_to_block(first);
            let found = f.call(self.ask, &[]).unwrap_or(known);
            f.store_at(found, place, 0);
            f.ins().jump(next, &[BlockArg::Value(found)]);
            f.switch_to_block(next);
            for (wanted, run) in runs.iter().rev() {
                let (this, other) = (f.create_block(), f.create_block());
                let can = f.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, level, rank(*wanted));
                f.ins().brif(can, this, &[], other, &[]);
                f.switch_to_block(this);
                let result = f.call(*run, params);
                f.ins().return_(&Vec::from_iter(result));
                f.switch_to_block(other);
            }
            let result = f.call(least, params);
            f.ins().return_(&Vec::from_iter(result));
            Ok(())
        })?;
        Ok(id)
    }
}
