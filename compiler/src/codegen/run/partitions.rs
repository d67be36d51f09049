//! The partitions of a program: a function for each, `begin`, which prepares the frame that they share, and the table.
//!
//! [`super::scheduler`] emits the driver that reads the table. A caller may read it too, and schedule the partitions
//! itself.

use super::{
    arguments::RunArguments,
    dispatch::{LevelDetector, LevelVariants},
    driver,
    entries::{LoadFunctions, PartitionFunctions, RunFunctions},
    estimate,
    host::Host,
    kernels,
    partition_table::state,
    scheduler,
    sizes::{self, ArenaLayout},
    steps::DriverStep,
};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame, table::Table},
    error::{Error, Result},
    kernel::{BufferId, cost, dependences::Footprint, partition::stages},
};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use cranelift_module::{DataId, FuncId, Linkage};
use std::{mem::offset_of, ops::Range};
use symshape::{Dim, Symbol};
use symshape_runtime::abi::PartitionDesc;

/// The functions of one partition.
struct EmittedPartition {
    /// `partition(frame) -> code`.
    run: FuncId,
    /// `cost(dims, threads) -> work`.
    cost: FuncId,
}

/// Emits the partitions and their table; the function of this name runs all of them.
pub(crate) fn run_all(unit: &mut ModuleBuilder, name: &str, linkage: Linkage) -> Result<RunFunctions> {
    let mut emitted = (0..unit.program.partitions.len())
        .map(|idx| emit_partition(unit, idx, ""))
        .collect::<Result<Vec<_>>>()?;
    let load = add_levels(unit, &mut emitted)?;

    let begin = begin(unit)?;
    let arena_slice = arena_slice(unit)?;
    let table = table(unit, &emitted)?;
    let function = scheduler::run(unit, table, begin, name, linkage)?;
    let partitions = Some(PartitionFunctions { table, begin, arena_slice });
    Ok(RunFunctions { function, sequences: None, partitions, load })
}

/// Emits the partitions for the higher levels of the instruction set, and replaces each `run` by a function that calls
/// the one of the best level. Estimates are the same for all levels.
fn add_levels(
    unit: &mut ModuleBuilder,
    partitions: &mut [EmittedPartition],
) -> Result<Option<LoadFunctions>> {
    let levels = unit.levels();
    if levels.is_empty() {
        return Ok(None);
    }

    let mut higher: Vec<Vec<_>> = partitions.iter().map(|_| Vec::new()).collect();
    for level in levels {
        unit.set_level(level);
        for (idx, variants) in higher.iter_mut().enumerate() {
            let emitted = emit_partition(unit, idx, &format!("_{}", level.suffix()))?;
            variants.push((level, emitted.run));
        }
    }

    let detector = LevelDetector::emit(unit)?;
    for (idx, (partition, higher)) in partitions.iter_mut().zip(&higher).enumerate() {
        let name = format!("partition_{idx}_any");
        let variants = LevelVariants { base: partition.run, higher };
        partition.run = detector.dispatch(unit, variants, &name, Linkage::Local, &[types::I64])?;
    }
    Ok(detector.load)
}

/// Emits the functions of one partition for the current level.
fn emit_partition(unit: &mut ModuleBuilder, idx: usize, level: &str) -> Result<EmittedPartition> {
    let steps = kernels::emit(unit, unit.program.partitions[idx].kernels.clone(), level)?;
    let name = format!("partition_{idx}{level}");
    let run = unit.define_local(&name, &[types::I64], &[types::I32], |f, params| {
        let frame = params[0];
        f.set_frame(frame);
        let host = Host::of(f, frame);
        let dims = f.load_word(frame, frame::CALLER_DIMS);
        driver::run_steps(f, frame, &host, dims, &steps)?;
        f.return_ok();
        Ok(())
    })?;

    let cost = cost_function(unit, &steps, &format!("cost_{idx}{level}"))?;
    Ok(EmittedPartition { run, cost })
}

fn cost_function(unit: &mut ModuleBuilder, steps: &[DriverStep], name: &str) -> Result<FuncId> {
    unit.define_local(name, &[types::I64, types::I32], &[types::I64], |f, params| {
        f.set_dims(params[0], 0);
        let work = estimate::on_threads(f, steps, params[1])?;
        f.ins().return_(&[work]);
        Ok(())
    })
}

/// Emits `begin(inputs, outputs, dims, arena, exec, frame) -> code`, which fills the frame and frees all partitions.
fn begin(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("begin");
    let id = unit.declare(&name, Linkage::Export, &[types::I64; 6], &[types::I32])?;
    unit.define(id, |f, params| {
        let frame = params[5];
        driver::open(f, frame, &RunArguments::of(params)?)?;

        let program = f.unit.program;
        let free = f.int(state::FREE);
        for partition in 0..program.partitions.len() {
            f.store_at(free, frame, frame::state_slot(program, partition));
        }
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// Emits `arena_slice(partition, dims, slice) -> code`, which stores the begin and the end of the bytes of the arena
/// that a partition accesses.
fn arena_slice(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("arena_slice");
    let id = unit.declare(&name, Linkage::Export, &[types::I32, types::I64, types::I64], &[types::I32])?;
    unit.define(id, |f, params| {
        let [partition, dims, slice] = *params else {
            return Err(Error::internal("`arena_slice` has three parameters"));
        };
        f.set_dims(dims, 0);
        let layout = sizes::arena_layout(f)?;

        f.switch(partition, f.unit.program.partitions.len(), |f, idx| {
            let (begin, end) = hull(f, &layout, &arena_buffers(f, idx));
            f.store_at(begin, slice, 0);
            f.store_at(end, slice, 8);
            Ok(())
        })
    })?;
    Ok(id)
}

/// The smallest range of the arena that contains all of these buffers.
fn hull(f: &mut FuncCtx, layout: &ArenaLayout, buffers: &[BufferId]) -> (Value, Value) {
    let mut hull: Option<(Value, Value)> = None;
    for id in buffers {
        let (Some(begin), Some(end)) = (layout.begins.get(id), layout.ends.get(id)) else { continue };
        hull = Some(match hull {
            Some((lowest, highest)) => (f.ins().smin(lowest, *begin), f.ins().smax(highest, *end)),
            None => (*begin, *end),
        });
    }
    hull.unwrap_or_else(|| (f.int(0), f.int(0)))
}

/// The buffers of the arena that a partition accesses.
fn arena_buffers(f: &FuncCtx, partition: usize) -> Vec<BufferId> {
    let program = f.unit.program;
    let footprint = Footprint::of(program, program.partitions[partition].kernels.clone());
    footprint.buffers().filter(|id| program.buffers[*id].space.is_planned()).collect()
}

/// The table: an array of [`PartitionDesc`].
fn table(unit: &mut ModuleBuilder, functions: &[EmittedPartition]) -> Result<DataId> {
    let program = unit.program;
    let stages = stages(&program.partitions);
    let mut table = Table::new(size_of::<PartitionDesc>() * program.partitions.len());

    for (idx, (partition, functions)) in program.partitions.iter().zip(functions).enumerate() {
        let base = idx * size_of::<PartitionDesc>();
        let kernels = &program.kernels[partition.kernels.clone()];
        let work = Dim::sum(kernels.iter().map(|kernel| cost::of(program, kernel)));
        let formula = program.facts.simplify(&work).to_string();
        let symbols = symbols_read(unit, partition.kernels.clone());
        let after: Vec<u32> = partition.after.iter().map(|other| *other as u32).collect();

        table.put_text(unit, base + offset_of!(PartitionDesc, name), &partition.name)?;
        table.put_text(unit, base + offset_of!(PartitionDesc, target), &partition.target)?;
        table.put_text(unit, base + offset_of!(PartitionDesc, cost_formula), &formula)?;
        table.functions.push((base + offset_of!(PartitionDesc, run), functions.run));
        table.functions.push((base + offset_of!(PartitionDesc, cost), functions.cost));
        table.put_u32(base + offset_of!(PartitionDesc, n_after), after.len() as u32);
        table.put_u32(base + offset_of!(PartitionDesc, n_symbols), symbols.len() as u32);
        table.put_u32(base + offset_of!(PartitionDesc, stage), stages[idx] as u32);
        table.put_u32(base + offset_of!(PartitionDesc, at_once), program.at_once(&partition.target));

        let after = index_list(unit, &format!("partition_{idx}_after"), &after)?;
        table.data.push((base + offset_of!(PartitionDesc, after), after));
        let symbols = index_list(unit, &format!("partition_{idx}_symbols"), &symbols)?;
        table.data.push((base + offset_of!(PartitionDesc, symbols), symbols));
    }
    let name = unit.symbol("partitions");
    table.define(unit, &name, Linkage::Export)
}

/// Positions among the program's symbols of those that these kernels depend on.
fn symbols_read(unit: &ModuleBuilder, kernels: Range<usize>) -> Vec<u32> {
    let footprint = Footprint::of(unit.program, kernels);
    let is_read = |symbol: &Symbol| footprint.reads().contains(symbol);
    let symbols = unit.program.symbols.iter().enumerate();
    symbols.filter(|(_, symbol)| is_read(symbol)).map(|(idx, _)| idx as u32).collect()
}

/// Emits an array of 32-bit indices.
fn index_list(unit: &mut ModuleBuilder, name: &str, indices: &[u32]) -> Result<DataId> {
    let bytes: Vec<u8> = indices.iter().flat_map(|idx| idx.to_le_bytes()).collect();
    unit.data(name, bytes.into(), 4)
}
