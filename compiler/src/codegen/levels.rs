//! `run` for one level of the instruction set or several.
//!
//! With several levels there is a `run` with kernels and leaves for each, and the exported one goes to the highest that
//! the machine can do. It asks the machine once, at the first call, and keeps the answer in a word of the artefact: the
//! only memory of it that is ever written. Threads that call for the first time at once all write the same. Tile registers
//! have to be granted by the system, which no call may enter: a function that runs when the artefact is loaded asks for
//! them. Where nothing runs it, there are none.

use super::{
    batch_blocking::Images,
    driver,
    partitions::{self, Partitions},
    report_error,
    unit::{Unit, internal},
    vector::x86::detect::{self, Grant},
};
use crate::{error::Result, kernel::contract::Failure, target::Level};
use cranelift_codegen::ir::{AbiParam, BlockArg, InstBuilder, MemFlagsData, Type, condcodes::IntCC, types};
use cranelift_module::{DataDescription, DataId, FuncId, Linkage, Module};
use symshape_runtime::abi::Code;

/// Emits `run`; also the number of kernels, and the table where there is one. `arena_bytes` is the exported function.
pub(super) fn run(unit: &mut Unit, arena_bytes: FuncId) -> Result<(FuncId, usize, Option<Partitions>)> {
    let n_kernels = unit.program.kernels.len();
    match Images::of(unit.program) {
        None => {
            let (run, partitions) = all(unit, "run", Linkage::Export)?;
            Ok((run, n_kernels, partitions))
        }
        Some(images) => {
            let (inner, partitions) = all(unit, "run_images", Linkage::Local)?;
            Ok((images.run(unit, inner, arena_bytes)?, n_kernels, partitions))
        }
    }
}

/// The function of this name that runs all kernels.
fn all(unit: &mut Unit, name: &str, linkage: Linkage) -> Result<(FuncId, Option<Partitions>)> {
    if !unit.program.partitions.is_empty() {
        let (run, partitions) = partitions::all(unit, name, linkage)?;
        return Ok((run, Some(partitions)));
    }
    let (mut wider, range) = (unit.levels(), 0..unit.program.kernels.len());
    let refuses = unit.options.require_tiles && wider.iter().any(|level| level.has_tiles());
    if refuses {
        wider.retain(|level| level.has_tiles());
        let least = refuse(unit)?;
        return dispatched(unit, least, wider, name, linkage).map(|run| (run, None));
    }
    let kernels = driver::kernels(unit, range.clone(), "")?;
    if wider.is_empty() {
        return Ok((driver::run(unit, &kernels, name, linkage)?, None));
    }
    let least = driver::run(unit, &kernels, "run_least", Linkage::Local)?;
    dispatched(unit, least, wider, name, linkage).map(|run| (run, None))
}

/// The function that ends every call, since the machine has no tile registers.
fn refuse(unit: &mut Unit) -> Result<FuncId> {
    unit.define_local("run_least", &[types::I64; 5], &[types::I32], |f, params| {
        let [inputs, outputs, dims, arena, exec] = *params else { return Ok(()) };
        let frame = driver::frame_on_stack(f);
        driver::open(f, frame, [inputs, outputs, dims, arena, exec])?;
        let why = "this artefact was compiled for tile registers alone (--fallback none), which this machine lacks or its \
                   system refused";
        let failure = Failure { code: Code::NoTiles, why: Some(why.into()), ..Failure::default() };
        let zero = f.int(0);
        report_error::emit(f, frame, &failure, zero, zero, zero)?;
        let code = f.builder.ins().iconst(types::I32, Code::NoTiles as i64);
        f.builder.ins().return_(&[code]);
        Ok(())
    })
}

/// The function of this name that runs all kernels at the highest of these levels that the machine can do, or calls `least`.
fn dispatched(
    unit: &mut Unit,
    least: FuncId,
    levels: Vec<Level>,
    name: &str,
    linkage: Linkage,
) -> Result<FuncId> {
    let (mut runs, range) = (Vec::new(), 0..unit.program.kernels.len());
    for level in levels {
        unit.set_level(level);
        let kernels = driver::kernels(unit, range.clone(), &format!("_{}", level.suffix()))?;
        let name = format!("run_{}", level.suffix());
        runs.push((level, driver::run(unit, &kernels, &name, Linkage::Local)?));
    }
    Machine::ask(unit)?.dispatch(unit, least, &runs, name, linkage, &[types::I64; 5])
}

/// What [`detect::detect`] must say at least for a level to run.
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
pub(super) const USES_TILES: &str = "uses_tiles";

/// Emits it where there is no code for them, so that it is there for every artefact that might.
pub(super) fn no_tiles(unit: &mut Unit) -> Result<FuncId> {
    let name = unit.symbol(USES_TILES);
    let uses = unit.declare(&name, Linkage::Export, &[], &[types::I32])?;
    unit.define(uses, |f, _| {
        let no = f.builder.ins().iconst(types::I32, 0);
        f.builder.ins().return_(&[no]);
        Ok(())
    })?;
    Ok(uses)
}

/// Functions of an artefact that has code for tile registers.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    /// Runs when the artefact is loaded.
    pub(super) load: FuncId,
    /// Whether calls use tile registers.
    pub(super) uses: FuncId,
}

/// The function that asks the machine, and the word that keeps its answer.
pub(super) struct Machine {
    word: DataId,
    ask: FuncId,
}

impl Machine {
    /// Emits both.
    pub(super) fn ask(unit: &mut Unit) -> Result<Machine> {
        let name = unit.symbol("level");
        let mut data = DataDescription::new();
        data.define(vec![0; 8].into());
        data.set_align(8);
        let word =
            unit.module.declare_data(&name, Linkage::Local, true, false).map_err(|e| internal(&name, e))?;
        unit.module.define_data(word, &data).map_err(|e| internal(&name, e))?;
        let ask = Machine::question(unit, "detect", Grant::Refused)?;
        let machine = Machine { word, ask };
        if unit.levels().iter().any(|level| level.has_tiles()) {
            machine.when_loaded(unit)?;
        }
        Ok(machine)
    }

    /// Emits a function that tells what the machine can do; it asks the system only where `grant` says so.
    fn question(unit: &mut Unit, name: &str, grant: Grant) -> Result<FuncId> {
        let name = unit.symbol(name);
        let mut signature = unit.module.make_signature();
        signature.returns.push(AbiParam::new(types::I64));
        let declared = unit.module.declare_function(&name, Linkage::Local, &signature);
        let function = declared.map_err(|e| internal(&name, e))?;
        let code = detect::detect(grant)?;
        unit.module.define_function_bytes(function, 16, &code, &[]).map_err(|e| internal(&name, e))?;
        Ok(function)
    }

    /// Emits what asks for everything when the artefact is loaded, and `uses_tiles`.
    fn when_loaded(&self, unit: &mut Unit) -> Result<()> {
        let linux = unit.module.isa().triple().operating_system == target_lexicon::OperatingSystem::Linux;
        let request = Machine::question(unit, "request", if linux { Grant::Linux } else { Grant::Free })?;
        let word = self.word;
        let load = unit.define_local("load", &[], &[], |f, _| {
            let place = f.data_address(word);
            if let Some(found) = f.call(request, &[]) {
                f.builder.ins().store(MemFlagsData::trusted(), found, place, 0);
            }
            f.builder.ins().return_(&[]);
            Ok(())
        })?;
        let name = unit.symbol(USES_TILES);
        let uses = unit.declare(&name, Linkage::Export, &[], &[types::I32])?;
        unit.define(uses, |f, _| {
            let place = f.data_address(word);
            let level = f.builder.ins().load(types::I64, MemFlagsData::trusted(), place, 0);
            let wanted = detect::AVX512_AMX;
            let uses = f.builder.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, level, wanted);
            let uses = f.builder.ins().uextend(types::I32, uses);
            f.builder.ins().return_(&[uses]);
            Ok(())
        })?;
        unit.tiles = Some(Tiles { load, uses });
        Ok(())
    }

    /// The function that goes to one of `runs`, which stand from the lowest level to the highest, or to `least`.
    pub(super) fn dispatch(
        &self,
        unit: &mut Unit,
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
            let known = f.builder.ins().load(types::I64, MemFlagsData::trusted(), place, 0);
            let (first, next) = (f.builder.create_block(), f.builder.create_block());
            let level = f.builder.append_block_param(next, types::I64);
            f.builder.set_cold_block(first);
            f.builder.ins().brif(known, next, &[BlockArg::Value(known)], first, &[]);
            f.builder.switch_to_block(first);
            let found = f.call(self.ask, &[]).unwrap_or(known);
            f.builder.ins().store(MemFlagsData::trusted(), found, place, 0);
            f.builder.ins().jump(next, &[BlockArg::Value(found)]);
            f.builder.switch_to_block(next);
            for (wanted, run) in runs.iter().rev() {
                let (this, other) = (f.builder.create_block(), f.builder.create_block());
                let can = f.builder.ins().icmp_imm_s(IntCC::SignedGreaterThanOrEqual, level, rank(*wanted));
                f.builder.ins().brif(can, this, &[], other, &[]);
                f.builder.switch_to_block(this);
                let result = f.call(*run, params);
                f.builder.ins().return_(&Vec::from_iter(result));
                f.builder.switch_to_block(other);
            }
            let result = f.call(least, params);
            f.builder.ins().return_(&Vec::from_iter(result));
            Ok(())
        })?;
        Ok(id)
    }
}
