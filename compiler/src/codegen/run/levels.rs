//! `run` for one level of the instruction set or several.
//!
//! With several levels there is a `run` with kernels and microkernels for each, and the exported one goes to the highest that
//! the machine can do. It asks the machine once, at the first call, and keeps the answer in a word of the artefact: the
//! only memory of it that is ever written. Threads that call for the first time at once all write the same. Tile registers
//! have to be granted by the system, which no call may enter: a function that runs when the artefact is loaded asks for
//! them. Where nothing runs it, there are none.

use super::{batch_blocking::Images, dispatch::Machine, driver, entries::Run, kernels, partitions};
use crate::{
    codegen::function::{ModuleBuilder, report_error},
    error::Result,
    kernel::contract::Failure,
    target::Level,
};
use cranelift_codegen::ir::types;
use cranelift_module::{FuncId, Linkage};
use symshape_runtime::abi::Code;

/// Emits `run`. `arena_bytes` is the exported function.
pub(crate) fn run(unit: &mut ModuleBuilder, arena_bytes: FuncId) -> Result<Run> {
    let Some(images) = Images::of(unit.program) else {
        return all(unit, "run", Linkage::Export);
    };
    let inner = all(unit, "run_images", Linkage::Local)?;
    let function = images.run(unit, inner.function, arena_bytes)?;
    Ok(Run { function, ..inner })
}

/// The function of this name that runs all kernels.
fn all(unit: &mut ModuleBuilder, name: &str, linkage: Linkage) -> Result<Run> {
    if !unit.program.partitions.is_empty() {
        return partitions::all(unit, name, linkage);
    }
    let mut wider = unit.levels();
    let range = 0..unit.program.kernels.len();
    let refuses = unit.options.require_tiles && wider.iter().any(|level| level.has_tiles());
    if refuses {
        wider.retain(|level| level.has_tiles());
        let least = refuse(unit)?;
        return dispatched(unit, least, wider, name, linkage);
    }
    let kernels = kernels::emit(unit, range, "")?;
    if wider.is_empty() {
        let function = driver::run(unit, &kernels, name, linkage)?;
        return Ok(Run { function, partitions: None, tiles: None });
    }
    let least = driver::run(unit, &kernels, "run_least", Linkage::Local)?;
    dispatched(unit, least, wider, name, linkage)
}

/// The function that ends every call, since the machine has no tile registers.
fn refuse(unit: &mut ModuleBuilder) -> Result<FuncId> {
    unit.define_local("run_least", &[types::I64; 5], &[types::I32], |f, params| {
        let [inputs, outputs, dims, arena, exec] = *params else { return Ok(()) };
        let frame = driver::frame_on_stack(f);
        driver::open(f, frame, [inputs, outputs, dims, arena, exec])?;
        let why = "this artefact was compiled for tile registers alone (--fallback none), which this machine lacks or its \
                   system refused";
        let failure = Failure { why: Some(why.into()), ..Failure::new(Code::NoTiles) };
        let zero = f.int(0);
        report_error::emit(f, frame, &failure, zero, zero, zero)?;
        f.return_code(Code::NoTiles as i64);
        Ok(())
    })
}

/// The function of this name that runs all kernels at the highest of these levels that the machine can do, or calls `least`.
fn dispatched(
    unit: &mut ModuleBuilder,
    least: FuncId,
    levels: Vec<Level>,
    name: &str,
    linkage: Linkage,
) -> Result<Run> {
    let (mut runs, range) = (Vec::new(), 0..unit.program.kernels.len());
    for level in levels {
        unit.set_level(level);
        let kernels = kernels::emit(unit, range.clone(), &format!("_{}", level.suffix()))?;
        let name = format!("run_{}", level.suffix());
        runs.push((level, driver::run(unit, &kernels, &name, Linkage::Local)?));
    }
    let machine = Machine::ask(unit)?;
    let function = machine.dispatch(unit, least, &runs, name, linkage, &[types::I64; 5])?;
    Ok(Run { function, partitions: None, tiles: machine.tiles })
}
