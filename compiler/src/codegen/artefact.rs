//! The tables of the artefact: [`abi::ModelDesc`] and what it points to, as data objects.

use super::{
    function::{
        ModuleBuilder, frame,
        module::{FunctionSummary, ModuleKind},
        table::Table,
    },
    run::{
        dispatch,
        entries::{Partitions, Run},
    },
};
use crate::{
    error::Result,
    kernel::{Policies, Port},
    plan,
    tensor::Bytes,
};
use cranelift_module::{DataId, FuncId, Linkage};
use num_traits::ToPrimitive;
use std::mem::offset_of;
use symshape_runtime::abi::{self, ModelDesc, SymbolDesc, TensorDesc};

/// Summary of the generated code.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The descriptor, see [`symshape_runtime::abi::ModelDesc`].
    pub desc: DataId,
    /// Name of the descriptor.
    pub desc_name: String,
    /// The exported functions and their names: check, arena_bytes, output_shape, run.
    pub exports: Vec<(String, FuncId)>,
    /// Function that runs when the artefact is loaded, before any call.
    pub load: Option<FuncId>,
    /// All functions in the order in which they were emitted.
    pub functions: Vec<FunctionSummary>,
    /// Sum of their sizes.
    pub code_bytes: u64,
    /// Bytes of constants.
    pub const_bytes: u64,
    /// Weights that are declared, of which the module has a byte only: who makes a file of it puts them there.
    pub lent: Vec<(DataId, Bytes)>,
    /// Number of kernels.
    pub kernels: usize,
    /// Text of all functions, when it was asked for.
    pub clif: String,
}

impl Summary {
    /// Bytes of code that is there whatever the kernels are: the contract's check, the functions for sizes, the driver.
    pub fn driver_bytes(&self) -> u64 {
        let works =
            |name: &str| ["_kernel_", "_microkernel_", "_math_"].iter().any(|kind| name.contains(kind));
        self.functions
            .iter()
            .filter(|function| !works(&function.name))
            .map(|function| function.code_bytes)
            .sum()
    }
}

/// The functions that an artefact exports.
pub(crate) struct Functions {
    pub(crate) check: FuncId,
    pub(crate) arena_bytes: FuncId,
    pub(crate) output_shape: FuncId,
    pub(crate) run: Run,
}

/// Emits the tables and sums up what was generated.
pub(crate) fn summary(unit: &mut ModuleBuilder, functions: &Functions) -> Result<Summary> {
    let mut arena_max = Table::new(8);
    arena_max.put_i64(0, unit.plan.arena_max as i64);
    let name = unit.symbol("arena_max");
    arena_max.define(unit, &name, Linkage::Export)?;
    let uses_tiles = match functions.run.tiles {
        Some(tiles) => Some(tiles.uses),
        None if unit.program.may_use_tiles() => Some(dispatch::no_tiles(unit)?),
        None => None,
    };
    let (desc, desc_name) = model(unit, functions, uses_tiles)?;
    let mut exports = vec![
        ("check", functions.check),
        ("arena_bytes", functions.arena_bytes),
        ("output_shape", functions.output_shape),
        ("run", functions.run.function),
    ];
    if let Some(partitions) = &functions.run.partitions {
        exports.extend([("begin", partitions.begin), ("arena_slice", partitions.arena_slice)]);
    }
    exports.extend(uses_tiles.map(|uses| (dispatch::USES_TILES, uses)));
    Ok(Summary {
        desc,
        desc_name,
        exports: exports.into_iter().map(|(name, id)| (unit.symbol(name), id)).collect(),
        code_bytes: unit.functions.iter().map(|function| function.code_bytes).sum(),
        load: functions.run.tiles.map(|tiles| tiles.load),
        functions: std::mem::take(&mut unit.functions),
        const_bytes: unit.data_pool.const_bytes,
        lent: std::mem::take(&mut unit.data_pool.lent),
        kernels: unit.program.kernels.len(),
        clif: std::mem::take(&mut unit.clif),
    })
}

fn desc_name(unit: &ModuleBuilder) -> String {
    if unit.form.kind == ModuleKind::SharedObject { abi::DESC_SYMBOL.into() } else { unit.symbol("model") }
}

fn model(
    unit: &mut ModuleBuilder,
    functions: &Functions,
    uses_tiles: Option<FuncId>,
) -> Result<(DataId, String)> {
    let program = unit.program;
    let (symbols, inputs) = (symbols(unit)?, tensors(unit, "inputs", &program.inputs)?);
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
    let any = program.policies == Policies::Any && !program.partitions.is_empty();
    let flags = [(unit.options.dynamic_memory, abi::GROWS), (any, abi::ANY_ORDER)];
    let flags = flags.iter().filter(|(is_so, _)| *is_so).fold(0, |all, (_, flag)| all | flag);
    table.put_i64(offset_of!(ModelDesc, flags), flags as i64);
    if let Some(Partitions { table: list, begin, arena_slice }) = functions.run.partitions {
        table.put_i64(offset_of!(ModelDesc, n_partitions), program.partitions.len() as i64);
        table.put_i64(offset_of!(ModelDesc, frame_bytes), i64::from(frame::bytes(program)));
        table.data.push((offset_of!(ModelDesc, partitions), list));
        table.functions.push((offset_of!(ModelDesc, begin), begin));
        table.functions.push((offset_of!(ModelDesc, arena_slice), arena_slice));
    }
    table.put_u32(offset_of!(ModelDesc, precision), program.precision as u32);
    table.put_i64(
        offset_of!(ModelDesc, product_error),
        program.precision.max_product_error().to_bits() as i64,
    );
    if let Some(uses) = uses_tiles {
        table.functions.push((offset_of!(ModelDesc, uses_tiles), uses));
    }
    table.put_i64(offset_of!(ModelDesc, arena_max), unit.plan.arena_max as i64);
    table.put_text(unit, offset_of!(ModelDesc, arena_formula), &plan::arena_formula(program, unit.plan))?;
    table.functions.push((offset_of!(ModelDesc, check), functions.check));
    table.functions.push((offset_of!(ModelDesc, arena_bytes), functions.arena_bytes));
    table.functions.push((offset_of!(ModelDesc, output_shape), functions.output_shape));
    table.functions.push((offset_of!(ModelDesc, run), functions.run.function));
    let name = desc_name(unit);
    Ok((table.define(unit, &name, Linkage::Export)?, name))
}

fn symbols(unit: &mut ModuleBuilder) -> Result<DataId> {
    let contract = unit.contract;
    let mut table = Table::new(size_of::<SymbolDesc>() * contract.symbols.len());
    for (idx, declared) in contract.symbols.iter().enumerate() {
        let base = idx * size_of::<SymbolDesc>();
        table.put_text(unit, base + offset_of!(SymbolDesc, name), declared.symbol.name())?;
        table.put_i64(base + offset_of!(SymbolDesc, step), 1);
        let (Some(declaration), Some((lo, hi))) = (&declared.declaration, declared.range) else { continue };
        table.put_i64(base + offset_of!(SymbolDesc, lo), lo);
        table.put_i64(base + offset_of!(SymbolDesc, hi), hi);
        table.put_i64(base + offset_of!(SymbolDesc, step), declaration.step.to_i64().unwrap_or(1));
        table.put_i64(base + offset_of!(SymbolDesc, offset), declaration.offset.to_i64().unwrap_or(0));
        if let Some(values) = &declaration.values {
            let values: Vec<i64> = values.iter().filter_map(ToPrimitive::to_i64).collect();
            table.put_i64(base + offset_of!(SymbolDesc, n_values), values.len() as i64);
            let list = unit.table(&format!("values_{idx}"), &values)?;
            table.data.push((base + offset_of!(SymbolDesc, values), list));
        }
    }
    let name = unit.symbol("symbols");
    table.define(unit, &name, Linkage::Local)
}

fn tensors(unit: &mut ModuleBuilder, what: &str, ports: &[Port]) -> Result<DataId> {
    let mut table = Table::new(size_of::<TensorDesc>() * ports.len());
    for (idx, port) in ports.iter().enumerate() {
        let base = idx * size_of::<TensorDesc>();
        table.put_text(unit, base + offset_of!(TensorDesc, name), &port.name)?;
        let dtype = unit.program.buffers[port.buffer].dtype;
        table.put_u32(base + offset_of!(TensorDesc, dtype), dtype as u32);
        table.put_u32(base + offset_of!(TensorDesc, rank), port.shape.len() as u32);
        let bound = unit.program.facts.bounds(&unit.program.buffers[port.buffer].bytes()).hi;
        let bound = bound.and_then(|bound| bound.to_i64()).unwrap_or(i64::MAX);
        table.put_i64(base + offset_of!(TensorDesc, max_bytes), bound);
        let mut dims = Table::new(8 * port.shape.len());
        for (axis, dim) in port.shape.iter().enumerate() {
            dims.put_text(unit, 8 * axis, &dim.to_string())?;
        }
        let name = unit.symbol(&format!("{what}_{idx}_dims"));
        let dims = dims.define(unit, &name, Linkage::Local)?;
        table.data.push((base + offset_of!(TensorDesc, dims), dims));
    }
    let name = unit.symbol(what);
    table.define(unit, &name, Linkage::Local)
}
