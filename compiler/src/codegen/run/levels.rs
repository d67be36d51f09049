//! `run` for one level of the instruction set or several.
//!
//! With several levels, each has a `run` with kernels and microkernels for that level. The exported `run` calls the
//! one of the highest level that the machine has, see [`super::dispatch`]. An artefact that must not run without tile
//! registers has a `run` for levels with tiles only; on other machines it reports an error.

use super::{
    arguments::{RUN_PARAMS, RunArguments},
    batch_blocking::BatchBlocking,
    calls,
    dispatch::{LevelDetector, LevelVariants},
    driver,
    entries::RunFunctions,
    kernels, partitions, sequences,
};
use crate::{
    codegen::function::{ModuleBuilder, report_error},
    error::Result,
    kernel::{Sequences, contract::Failure},
    target::Level,
};
use cranelift_codegen::ir::types;
use cranelift_module::{FuncId, Linkage};
use symshape_runtime::abi::Code;

/// Emits `run`, and the function for several sequences if the program can run them. `arena_bytes` is the exported
/// function.
pub(crate) fn run(unit: &mut ModuleBuilder, arena_bytes: FuncId) -> Result<RunFunctions> {
    let Some(blocking) = BatchBlocking::of(unit.program)? else {
        return run_all(unit, "run", Linkage::Export);
    };
    let inner = run_all(unit, "run_images", Linkage::Local)?;
    let function = blocking.run(unit, inner.function, arena_bytes)?;
    Ok(RunFunctions { function, ..inner })
}

/// The functions of one level that run all kernels.
#[derive(Clone, Copy)]
struct LevelFunctions {
    run: FuncId,
    /// For several sequences, if the program can run them.
    sequences: Option<FuncId>,
}

/// Emits the function of this name that runs all kernels.
fn run_all(unit: &mut ModuleBuilder, name: &str, linkage: Linkage) -> Result<RunFunctions> {
    if !unit.program.partitions.is_empty() {
        return partitions::run_all(unit, name, linkage);
    }

    let mut levels = unit.levels();
    let requires_tiles = unit.options.require_tiles && levels.iter().any(|level| level.has_tiles());
    if requires_tiles {
        levels.retain(|level| level.has_tiles());
        let run = refuse(unit)?;
        let base = LevelFunctions { run, sequences: sequences(unit).map(|_| run) };
        return run_with_levels(unit, base, levels, name, linkage);
    }

    if levels.is_empty() {
        let only = emit_level(unit, "", name, linkage)?;
        let LevelFunctions { run: function, sequences } = only;
        return Ok(RunFunctions { function, sequences, partitions: None, load: None });
    }
    let base = emit_level(unit, "", "run_least", Linkage::Local)?;
    run_with_levels(unit, base, levels, name, linkage)
}

/// How the program runs several sequences, if it can.
fn sequences<'u>(unit: &ModuleBuilder<'u>) -> Option<&'u Sequences> {
    unit.program.sequences.as_ref()?.as_ref().ok()
}

/// Emits the kernels for the current level, and the functions that run them: `name` runs one batch.
fn emit_level(
    unit: &mut ModuleBuilder,
    suffix: &str,
    name: &str,
    linkage: Linkage,
) -> Result<LevelFunctions> {
    let steps = kernels::emit(unit, 0..unit.program.kernels.len(), suffix)?;
    let run = driver::run(unit, &steps, name, linkage)?;
    let Some(several) = sequences(unit) else { return Ok(LevelFunctions { run, sequences: None }) };
    let steps = sequences::steps(unit, several, &steps, suffix)?;
    let name = format!("run_sequences_least{suffix}");
    let of_sequences = driver::run(unit, &steps, &name, Linkage::Local)?;
    Ok(LevelFunctions { run, sequences: Some(of_sequences) })
}

/// Emits the function that fails every call, because the machine has no tile registers.
fn refuse(unit: &mut ModuleBuilder) -> Result<FuncId> {
    unit.define_local("run_least", &RUN_PARAMS, &[types::I32], |f, params| {
        let frame = calls::frame_on_stack(f);
        driver::open(f, frame, &RunArguments::of(params)?)?;

        let why = "this artefact was compiled for tile registers alone (--fallback none), which this machine lacks or its \
                   system refused";
        let failure = Failure { why: Some(why.into()), ..Failure::new(Code::NoTiles) };
        let zero = f.int(0);
        report_error::emit(f, frame, &failure, zero, zero, zero)?;
        f.return_code(Code::NoTiles as i64);
        Ok(())
    })
}

/// Emits a `run` for each of these levels, and the function of this name that calls the best one, or `base`.
fn run_with_levels(
    unit: &mut ModuleBuilder,
    base: LevelFunctions,
    levels: Vec<Level>,
    name: &str,
    linkage: Linkage,
) -> Result<RunFunctions> {
    let mut higher = Vec::new();
    for level in levels {
        unit.set_level(level);
        let suffix = format!("_{}", level.suffix());
        let name = format!("run{suffix}");
        higher.push((level, emit_level(unit, &suffix, &name, Linkage::Local)?));
    }

    let detector = LevelDetector::emit(unit)?;
    let of_batch: Vec<_> = higher.iter().map(|(level, functions)| (*level, functions.run)).collect();
    let variants = LevelVariants { base: base.run, higher: &of_batch };
    let function = detector.dispatch(unit, variants, name, linkage, &RUN_PARAMS)?;

    let sequences = match base.sequences {
        Some(base) => {
            let own = higher.iter().filter_map(|(level, functions)| Some((*level, functions.sequences?)));
            let higher: Vec<_> = own.collect();
            let variants = LevelVariants { base, higher: &higher };
            Some(detector.dispatch(unit, variants, "run_sequences", Linkage::Local, &RUN_PARAMS)?)
        }
        None => None,
    };
    Ok(RunFunctions { function, sequences, partitions: None, load: detector.load })
}
