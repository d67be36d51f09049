//! The tables of the artefact as data objects: [`abi::ModelDesc`], which loaders look for, and the tables it points to.
//!
//! This is the last step of [`super::generate`]: all functions are emitted, and the descriptor refers to them.

use super::{
    function::{
        ModuleBuilder, frame,
        module::{FunctionSummary, ModuleKind},
        table::Table,
        weights::WeightsLayout,
    },
    run::{
        dispatch,
        entries::{PartitionFunctions, RunFunctions},
        state::StateFunctions,
    },
};
use crate::{
    error::Result,
    kernel::{Policies, Port, Ragged, RepeatedWeight, StateBlock, contract::DeclaredSymbol},
    plan,
    tensor::Bytes,
};
use cranelift_module::{DataId, FuncId, Linkage};
use num_traits::ToPrimitive;
use std::mem::{self, offset_of};
use symshape::{Dim, Symbol};
use symshape_runtime::abi::{
    self, ModelDesc, RaggedDesc, StateDesc, StateTensorDesc, SymbolDesc, TensorDesc,
};

/// Summary of the generated code.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The descriptor, see [`symshape_runtime::abi::ModelDesc`].
    pub desc: DataId,
    /// The exported functions and their symbols, `check`, `arena_bytes`, `output_shape` and `run` first.
    pub exports: Vec<(String, FuncId)>,
    /// Function that runs when the artefact is loaded, before any call.
    pub load: Option<FuncId>,
    /// All functions in the order in which they were emitted.
    pub functions: Vec<FunctionSummary>,
    /// Bytes of machine code of all functions.
    pub code_bytes: u64,
    /// Bytes of constants.
    pub const_bytes: u64,
    /// Weights that are stored in two forms or more.
    pub repeated_weights: Vec<RepeatedWeight>,
    /// Large weights. The module declares each and holds one byte of it; the object writer adds the bytes.
    pub lent: Vec<(DataId, Bytes)>,
    /// The constants of the weights file, and the data object of its [`symshape_runtime::abi::WeightsDesc`]; `None` if
    /// the artefact contains its constants. The object writer fills in the description.
    pub weights: Option<(DataId, WeightsLayout)>,
    /// Number of kernels.
    pub kernels: usize,
    /// CLIF of all functions, if the options request a listing.
    pub clif: String,
}

impl Summary {
    /// Bytes of machine code outside of kernels: the guards, the functions for sizes, the driver.
    pub fn driver_bytes(&self) -> u64 {
        let is_kernel = |name: &str| KERNEL_NAMES.iter().any(|part| name.contains(part));
        let driver = self.functions.iter().filter(|function| !is_kernel(&function.name));
        driver.map(|function| function.code_bytes).sum()
    }
}

/// Parts of the symbols of kernels and of the functions that kernels call.
const KERNEL_NAMES: [&str; 3] = ["_kernel_", "_microkernel_", "_math_"];

/// The functions that an artefact exports.
pub(crate) struct ExportedFunctions {
    pub(crate) check: FuncId,
    pub(crate) arena_bytes: FuncId,
    pub(crate) output_shape: FuncId,
    pub(crate) run: RunFunctions,
    pub(crate) state: Option<StateFunctions>,
}

/// Emits the tables and summarizes the generated code.
pub(crate) fn summary(unit: &mut ModuleBuilder, functions: &ExportedFunctions) -> Result<Summary> {
    let mut arena_max = Table::new(8);
    arena_max.put_i64(0, unit.plan.arena_max as i64);
    let name = unit.symbol("arena_max");
    arena_max.define(unit, &name, Linkage::Export)?;

    let uses_tiles = match functions.run.load.and_then(|functions| functions.uses_tiles) {
        Some(uses) => Some(uses),
        None if unit.program.may_use_tiles() => Some(dispatch::uses_no_tiles(unit)?),
        None => None,
    };
    let desc_name = desc_name(unit);
    let desc = model(unit, &desc_name, functions, uses_tiles)?;
    unit.define_pending()?;
    Ok(Summary {
        desc,
        exports: exports(unit, functions, uses_tiles),
        code_bytes: unit.functions.iter().map(|function| function.code_bytes).sum(),
        load: functions.run.load.map(|functions| functions.load),
        functions: mem::take(&mut unit.functions),
        const_bytes: unit.data_pool.const_bytes(),
        repeated_weights: unit.program.repeated_weights(&unit.data_pool.forms),
        lent: mem::take(&mut unit.data_pool.lent),
        weights: unit.data_pool.weights_desc.map(|desc| (desc, mem::take(&mut unit.data_pool.file))),
        kernels: unit.program.kernels.len(),
        clif: mem::take(&mut unit.clif),
    })
}

/// The exported functions and their symbols.
fn exports(
    unit: &ModuleBuilder,
    functions: &ExportedFunctions,
    uses_tiles: Option<FuncId>,
) -> Vec<(String, FuncId)> {
    let mut exports = vec![
        ("check", functions.check),
        ("arena_bytes", functions.arena_bytes),
        ("output_shape", functions.output_shape),
        ("run", functions.run.function),
    ];
    if let Some(partitions) = &functions.run.partitions {
        exports.extend([("begin", partitions.begin), ("arena_slice", partitions.arena_slice)]);
    }
    if let Some(state) = &functions.state {
        exports.extend([
            ("state_bytes", state.bytes),
            ("state_place", state.place),
            ("run_stateful", state.run),
        ]);
    }
    exports.extend(uses_tiles.map(|uses| (dispatch::USES_TILES, uses)));
    exports.into_iter().map(|(name, id)| (unit.symbol(name), id)).collect()
}

fn desc_name(unit: &ModuleBuilder) -> String {
    if unit.form.kind == ModuleKind::SharedObject { abi::DESC_SYMBOL.into() } else { unit.symbol("model") }
}

/// Emits the descriptor, see [`ModelDesc`].
fn model(
    unit: &mut ModuleBuilder,
    name: &str,
    functions: &ExportedFunctions,
    uses_tiles: Option<FuncId>,
) -> Result<DataId> {
    let program = unit.program;
    let symbols = symbols(unit)?;
    let inputs = tensors(unit, "inputs", &program.inputs)?;
    let outputs = tensors(unit, "outputs", &program.outputs)?;

    let mut table = Table::new(size_of::<ModelDesc>());
    table.put_i64(offset_of!(ModelDesc, magic), abi::MAGIC as i64);
    table.put_u32(offset_of!(ModelDesc, abi_version), abi::ABI_VERSION);
    table.put_u32(offset_of!(ModelDesc, n_symbols), program.symbols.len() as u32);
    table.put_u32(offset_of!(ModelDesc, n_inputs), program.inputs.len() as u32);
    table.put_u32(offset_of!(ModelDesc, n_outputs), program.outputs.len() as u32);
    table.put_text(unit, offset_of!(ModelDesc, name), &program.name)?;
    table.data.push((offset_of!(ModelDesc, symbols), symbols));
    table.data.push((offset_of!(ModelDesc, inputs), inputs));
    table.data.push((offset_of!(ModelDesc, outputs), outputs));
    table.put_i64(offset_of!(ModelDesc, n_data_dependent), program.data_dependent.len() as i64);
    table.put_i64(offset_of!(ModelDesc, flags), flags(unit) as i64);

    if let Some(partitions) = &functions.run.partitions {
        put_partitions(unit, &mut table, partitions);
    }
    put_precision(unit, &mut table);
    if let Some(uses) = uses_tiles {
        table.functions.push((offset_of!(ModelDesc, uses_tiles), uses));
    }

    if let (Some(block), Some(functions)) = (&program.state, &functions.state) {
        let state = state(unit, block, functions)?;
        table.data.push((offset_of!(ModelDesc, state), state));
    }

    if unit.has_weights_file() {
        let weights = unit.weights_desc()?;
        table.data.push((offset_of!(ModelDesc, weights), weights));
    }
    if let (Some(description), Some(length)) = (&program.ragged, &unit.contract.length) {
        let ragged = ragged(unit, description, length)?;
        table.data.push((offset_of!(ModelDesc, ragged), ragged));
    }

    table.put_i64(offset_of!(ModelDesc, arena_max), unit.plan.arena_max as i64);
    table.put_text(unit, offset_of!(ModelDesc, arena_formula), &plan::arena_formula(program, unit.plan))?;
    table.functions.push((offset_of!(ModelDesc, check), functions.check));
    table.functions.push((offset_of!(ModelDesc, arena_bytes), functions.arena_bytes));
    table.functions.push((offset_of!(ModelDesc, output_shape), functions.output_shape));
    table.functions.push((offset_of!(ModelDesc, run), functions.run.function));
    table.define(unit, name, Linkage::Export)
}

/// The flags of the descriptor.
fn flags(unit: &ModuleBuilder) -> u64 {
    let has_any_order = unit.program.policies == Policies::Any && !unit.program.partitions.is_empty();
    let mut flags = 0;
    if unit.options.dynamic_memory {
        flags |= abi::GROWS;
    }
    if has_any_order {
        flags |= abi::ANY_ORDER;
    }
    if unit.plan.is_monotone {
        flags |= abi::MONOTONE;
    }
    flags
}

/// Sets the fields for callers that schedule partitions themselves.
fn put_partitions(unit: &ModuleBuilder, table: &mut Table, partitions: &PartitionFunctions) {
    let program = unit.program;
    table.put_i64(offset_of!(ModelDesc, n_partitions), program.partitions.len() as i64);
    table.put_i64(offset_of!(ModelDesc, frame_bytes), i64::from(frame::bytes(program)));
    table.data.push((offset_of!(ModelDesc, partitions), partitions.table));
    table.functions.push((offset_of!(ModelDesc, begin), partitions.begin));
    table.functions.push((offset_of!(ModelDesc, arena_slice), partitions.arena_slice));
}

/// Sets the precision of multiplications, and the bound of their relative error.
fn put_precision(unit: &ModuleBuilder, table: &mut Table) {
    let precision = unit.program.precision;
    table.put_u32(offset_of!(ModelDesc, precision), precision as u32);
    let error = precision.max_product_error().to_bits();
    table.put_i64(offset_of!(ModelDesc, product_error), error as i64);
}

/// Emits the array of [`SymbolDesc`], in the order of the dims.
fn symbols(unit: &mut ModuleBuilder) -> Result<DataId> {
    let contract = unit.contract;
    let mut table = Table::new(size_of::<SymbolDesc>() * contract.symbols.len());
    for (idx, declared) in contract.symbols.iter().enumerate() {
        put_symbol(unit, &mut table, idx * size_of::<SymbolDesc>(), declared, &format!("values_{idx}"))?;
    }
    let name = unit.symbol("symbols");
    table.define(unit, &name, Linkage::Local)
}

/// Sets the [`SymbolDesc`] at `base`. Listed values become an array of the name `values_name`.
fn put_symbol(
    unit: &mut ModuleBuilder,
    table: &mut Table,
    base: usize,
    declared: &DeclaredSymbol,
    values_name: &str,
) -> Result<()> {
    table.put_text(unit, base + offset_of!(SymbolDesc, name), declared.symbol.name())?;
    table.put_i64(base + offset_of!(SymbolDesc, step), 1);
    let (Some(declaration), Some((lo, hi))) = (&declared.declaration, declared.range) else { return Ok(()) };

    table.put_i64(base + offset_of!(SymbolDesc, lo), lo);
    table.put_i64(base + offset_of!(SymbolDesc, hi), hi);
    table.put_i64(base + offset_of!(SymbolDesc, step), declaration.step.to_i64().unwrap_or(1));
    table.put_i64(base + offset_of!(SymbolDesc, offset), declaration.offset.to_i64().unwrap_or(0));
    if let Some(values) = &declaration.values {
        let values: Vec<i64> = values.iter().filter_map(ToPrimitive::to_i64).collect();
        table.put_i64(base + offset_of!(SymbolDesc, n_values), values.len() as i64);
        let list = unit.table(values_name, &values)?;
        table.data.push((base + offset_of!(SymbolDesc, values), list));
    }
    Ok(())
}

/// Emits the [`RaggedDesc`].
fn ragged(unit: &mut ModuleBuilder, ragged: &Ragged, length: &DeclaredSymbol) -> Result<DataId> {
    let symbols = &unit.program.symbols;
    let index =
        |symbol: &Symbol| symbols.iter().position(|other| other == symbol).map_or(u32::MAX, |idx| idx as u32);
    let mut table = Table::new(size_of::<RaggedDesc>());
    table.put_u32(offset_of!(RaggedDesc, offsets), ragged.offsets);
    table.put_u32(offset_of!(RaggedDesc, sequences), index(&ragged.sequences));
    table.put_u32(offset_of!(RaggedDesc, rows), index(&ragged.rows));
    put_symbol(unit, &mut table, offset_of!(RaggedDesc, length), length, "length_values")?;
    if let Some(mask) = ragged.padded.mask.as_ref().or(ragged.padded.lengths.as_ref()) {
        table.put_text(unit, offset_of!(RaggedDesc, mask), mask)?;
        table.put_u32(offset_of!(RaggedDesc, mask_is_lengths), ragged.padded.lengths.is_some().into());
    }
    let axes = ragged.padded.batch_axes.iter();
    let axes: Vec<i64> = axes.map(|axis| axis.map_or(-1, |axis| axis as i64)).collect();
    let axes = unit.table("batch_axes", &axes)?;
    table.data.push((offset_of!(RaggedDesc, batch_axes), axes));
    let name = unit.symbol("ragged");
    table.define(unit, &name, Linkage::Local)
}

/// Emits the array of [`TensorDesc`] for the inputs or outputs, which `kind` names.
fn tensors(unit: &mut ModuleBuilder, kind: &str, ports: &[Port]) -> Result<DataId> {
    let mut table = Table::new(size_of::<TensorDesc>() * ports.len());
    for (idx, port) in ports.iter().enumerate() {
        let base = idx * size_of::<TensorDesc>();
        put_tensor(unit, &mut table, base, port, &format!("{kind}_{idx}_dims"))?;
    }
    let name = unit.symbol(kind);
    table.define(unit, &name, Linkage::Local)
}

/// Sets the [`TensorDesc`] at `base`. Its dims become an array of the name `dims_name`.
fn put_tensor(
    unit: &mut ModuleBuilder,
    table: &mut Table,
    base: usize,
    port: &Port,
    dims_name: &str,
) -> Result<()> {
    let buffer = &unit.program.buffers[port.buffer];
    let max_bytes = max_bytes(unit, &buffer.bytes());
    table.put_text(unit, base + offset_of!(TensorDesc, name), &port.name)?;
    table.put_u32(base + offset_of!(TensorDesc, dtype), buffer.dtype as u32);
    table.put_u32(base + offset_of!(TensorDesc, rank), port.shape.len() as u32);
    table.put_i64(base + offset_of!(TensorDesc, max_bytes), max_bytes);

    let mut dims = Table::new(8 * port.shape.len());
    for (axis, dim) in port.shape.iter().enumerate() {
        dims.put_text(unit, 8 * axis, &dim.to_string())?;
    }
    let name = unit.symbol(dims_name);
    let dims = dims.define(unit, &name, Linkage::Local)?;
    table.data.push((base + offset_of!(TensorDesc, dims), dims));
    Ok(())
}

/// The upper bound of a number of bytes.
fn max_bytes(unit: &ModuleBuilder, bytes: &Dim) -> i64 {
    let max = unit.program.facts.bounds(bytes).hi;
    max.and_then(|bytes| bytes.to_i64()).unwrap_or(i64::MAX)
}

/// Emits the [`StateDesc`].
fn state(unit: &mut ModuleBuilder, block: &StateBlock, functions: &StateFunctions) -> Result<DataId> {
    let program = unit.program;
    let tensors = state_tensors(unit, block)?;
    let indices: Vec<u32> = block
        .words()
        .iter()
        .filter_map(|word| program.symbols.iter().position(|symbol| symbol == word))
        .map(|idx| idx as u32)
        .collect();
    let mut words = Table::new(4 * indices.len());
    indices.iter().enumerate().for_each(|(at, idx)| words.put_u32(4 * at, *idx));
    let name = unit.symbol("state_words");
    let words = words.define(unit, &name, Linkage::Local)?;

    let bytes = program.state_offsets().pop().unwrap_or_else(Dim::zero);
    let mut table = Table::new(size_of::<StateDesc>());
    table.put_i64(offset_of!(StateDesc, id), block.id as i64);
    table.put_i64(offset_of!(StateDesc, max_bytes), max_bytes(unit, &bytes));
    table.put_u32(offset_of!(StateDesc, n_tensors), block.tensors.len() as u32);
    table.put_u32(offset_of!(StateDesc, n_words), indices.len() as u32);
    table.put_u32(offset_of!(StateDesc, header_bytes), block.header_bytes() as u32);
    table.put_u32(offset_of!(StateDesc, has_rows), u32::from(block.rows.is_some()));
    table.data.push((offset_of!(StateDesc, words), words));
    table.data.push((offset_of!(StateDesc, tensors), tensors));
    table.functions.push((offset_of!(StateDesc, bytes), functions.bytes));
    table.functions.push((offset_of!(StateDesc, place), functions.place));
    table.functions.push((offset_of!(StateDesc, run), functions.run));
    let count = functions.count.as_ref().ok();
    let count = count.and_then(|count| program.symbols.iter().position(|symbol| symbol == count));
    table.put_u32(offset_of!(StateDesc, count), count.map_or(u32::MAX, |idx| idx as u32));
    if let Err(cause) = &functions.count {
        table.put_text(unit, offset_of!(StateDesc, one_state), cause)?;
    }
    let name = unit.symbol("state");
    table.define(unit, &name, Linkage::Local)
}

/// Emits the array of [`StateTensorDesc`].
fn state_tensors(unit: &mut ModuleBuilder, block: &StateBlock) -> Result<DataId> {
    let mut table = Table::new(size_of::<StateTensorDesc>() * block.tensors.len());
    for (idx, tensor) in block.tensors.iter().enumerate() {
        let base = idx * size_of::<StateTensorDesc>();
        let port = Port { name: tensor.input.clone(), shape: tensor.shape.clone(), buffer: tensor.buffer };
        let at = base + offset_of!(StateTensorDesc, tensor);
        put_tensor(unit, &mut table, at, &port, &format!("state_{idx}_dims"))?;
        table.put_text(unit, base + offset_of!(StateTensorDesc, output), &tensor.output)?;
        let axis = tensor.axis.map_or(u32::MAX, |axis| axis as u32);
        table.put_u32(base + offset_of!(StateTensorDesc, axis), axis);
    }
    let name = unit.symbol("state_tensors");
    table.define(unit, &name, Linkage::Local)
}
