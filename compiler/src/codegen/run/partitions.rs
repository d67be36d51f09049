//! The partitions of a program: a function for each, `begin`, which prepares the frame that they share, and the table.
//!
//! [`super::scheduler`] emits the driver that reads the table.

use super::{
    dispatch::Machine,
    driver,
    entries::{Partitions, Run},
    estimate,
    host::Host,
    kernels::{self, Step},
    scheduler, sizes,
};
use crate::{
    codegen::function::{FuncCtx, ModuleBuilder, frame, table::Table},
    error::Result,
    kernel::{BufferId, Partition, cost, dependences::Footprint, partition::stages},
};
use cranelift_codegen::ir::{InstBuilder, types};
use cranelift_module::{DataId, FuncId, Linkage};
use std::mem::offset_of;
use symshape::{Dim, Symbol};
use symshape_runtime::abi::PartitionDesc;

/// The functions of one partition at one level.
struct Emitted {
    run: FuncId,
    cost: FuncId,
}

/// Emits everything; the function of this name runs all partitions.
pub(crate) fn all(unit: &mut ModuleBuilder, name: &str, linkage: Linkage) -> Result<Run> {
    let mut least = Vec::new();
    for number in 0..unit.program.partitions.len() {
        least.push(partition(unit, number, "")?);
    }
    let wider = unit.levels();
    let mut tiles = None;
    if !wider.is_empty() {
        let mut runs: Vec<Vec<_>> = least.iter().map(|_| Vec::new()).collect();
        for level in wider {
            unit.set_level(level);
            for (number, runs) in runs.iter_mut().enumerate() {
                runs.push((level, partition(unit, number, &format!("_{}", level.suffix()))?.run));
            }
        }
        let machine = Machine::ask(unit)?;
        tiles = machine.tiles;
        for (number, (emitted, runs)) in least.iter_mut().zip(&runs).enumerate() {
            let name = format!("partition_{number}_any");
            let params = [types::I64];
            emitted.run = machine.dispatch(unit, emitted.run, runs, &name, Linkage::Local, &params)?;
        }
    }
    let (begin, arena_slice) = (begin(unit)?, arena_slice(unit)?);
    let table = table(unit, &least)?;
    let function = scheduler::run(unit, table, begin, name, linkage)?;
    let partitions = Some(Partitions { table, begin, arena_slice });
    Ok(Run { function, partitions, tiles })
}

/// Emits `partition(frame) -> code` and `cost(dims, threads) -> work`.
fn partition(unit: &mut ModuleBuilder, number: usize, level: &str) -> Result<Emitted> {
    let kernels = kernels::emit(unit, unit.program.partitions[number].kernels.clone(), level)?;
    let name = format!("partition_{number}{level}");
    let run = unit.define_local(&name, &[types::I64], &[types::I32], |f, params| {
        let frame = params[0];
        f.set_frame(frame);
        let host = Host::of(f, frame);
        let dims = f.load_word(frame, frame::CALLER_DIMS);
        driver::steps(f, frame, &host, dims, &kernels)?;
        f.return_ok();
        Ok(())
    })?;
    let cost = cost_function(unit, &kernels, &format!("cost_{number}{level}"))?;
    Ok(Emitted { run, cost })
}

fn cost_function(unit: &mut ModuleBuilder, kernels: &[Step], name: &str) -> Result<FuncId> {
    unit.define_local(name, &[types::I64, types::I32], &[types::I64], |f, params| {
        f.set_dims(params[0], 0);
        let cost = estimate::on_threads(f, kernels, params[1])?;
        f.ins().return_(&[cost]);
        Ok(())
    })
}

/// Emits `begin(inputs, outputs, dims, arena, exec, frame) -> code`.
fn begin(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("begin");
    let id = unit.declare(&name, Linkage::Export, &[types::I64; 6], &[types::I32])?;
    unit.define(id, |f, params| {
        let [inputs, outputs, dims, arena, exec, frame] = *params else { return Ok(()) };
        driver::open(f, frame, [inputs, outputs, dims, arena, exec])?;
        let program = f.unit.program;
        let zero = f.int(0);
        for partition in 0..program.partitions.len() {
            f.store_at(zero, frame, frame::state_slot(program, partition));
        }
        f.return_ok();
        Ok(())
    })?;
    Ok(id)
}

/// Emits `arena_slice(partition, dims, slice) -> code`.
fn arena_slice(unit: &mut ModuleBuilder) -> Result<FuncId> {
    let name = unit.symbol("arena_slice");
    let params = [types::I32, types::I64, types::I64];
    let id = unit.declare(&name, Linkage::Export, &params, &[types::I32])?;
    unit.define(id, |f, params| {
        f.set_dims(params[1], 0);
        let (begins, ends) = sizes::spans(f)?;
        f.switch(params[0], f.unit.program.partitions.len(), |f, number| {
            let spans = in_arena(f, number).into_iter().filter_map(|id| begins.get(&id).zip(ends.get(&id)));
            let slice = spans
                .map(|(begin, end)| (*begin, *end))
                .collect::<Vec<_>>()
                .into_iter()
                .reduce(|(low, high), (begin, end)| (f.ins().smin(low, begin), f.ins().smax(high, end)));
            let (begin, end) = slice.unwrap_or_else(|| (f.int(0), f.int(0)));
            f.store_at(begin, params[2], 0);
            f.store_at(end, params[2], 8);
            Ok(())
        })
    })?;
    Ok(id)
}

/// The buffers of the arena that a partition touches.
fn in_arena(f: &FuncCtx, number: usize) -> Vec<BufferId> {
    let program = f.unit.program;
    let uses = Footprint::of(program, program.partitions[number].kernels.clone());
    let buffers = uses.buffers();
    buffers.filter(|id| program.buffers[*id].space.is_planned()).collect()
}

/// The table: an array of [`PartitionDesc`].
fn table(unit: &mut ModuleBuilder, functions: &[Emitted]) -> Result<DataId> {
    let program = unit.program;
    let stages = stages(&program.partitions);
    let mut table = Table::new(size_of::<PartitionDesc>() * program.partitions.len());
    for (number, (partition, Emitted { run, cost })) in program.partitions.iter().zip(functions).enumerate() {
        let base = number * size_of::<PartitionDesc>();
        let Partition { name, kernels, after, target } = partition;
        let uses = Footprint::of(program, kernels.clone());
        let work = program.kernels[kernels.clone()].iter().map(|kernel| cost::of(program, kernel));
        let formula = program.facts.simplify(&Dim::sum(work)).to_string();
        let used = |symbol: &&Symbol| uses.reads().contains(*symbol);
        let places = program.symbols.iter().enumerate().filter(|(_, symbol)| used(symbol));
        let symbols: Vec<u32> = places.map(|(idx, _)| idx as u32).collect();
        let after: Vec<u32> = after.iter().map(|other| *other as u32).collect();
        table.put_text(unit, base + offset_of!(PartitionDesc, name), name)?;
        table.put_text(unit, base + offset_of!(PartitionDesc, target), target)?;
        table.put_text(unit, base + offset_of!(PartitionDesc, cost_formula), &formula)?;
        table.functions.push((base + offset_of!(PartitionDesc, run), *run));
        table.functions.push((base + offset_of!(PartitionDesc, cost), *cost));
        table.put_u32(base + offset_of!(PartitionDesc, n_after), after.len() as u32);
        table.put_u32(base + offset_of!(PartitionDesc, n_symbols), symbols.len() as u32);
        table.put_u32(base + offset_of!(PartitionDesc, stage), stages[number] as u32);
        for (at, what, list) in [
            (offset_of!(PartitionDesc, after), "after", after),
            (offset_of!(PartitionDesc, symbols), "symbols", symbols),
        ] {
            let bytes: Vec<u8> = list.iter().flat_map(|number| number.to_le_bytes()).collect();
            let list = unit.data(&format!("partition_{number}_{what}"), bytes.into(), 4)?;
            table.data.push((base + at, list));
        }
    }
    let name = unit.symbol("partitions");
    table.define(unit, &name, Linkage::Export)
}
