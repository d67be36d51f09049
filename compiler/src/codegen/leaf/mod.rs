//! Leaves: the hot loops of kernels as functions `extern "C" fn(args: *const i64)`, written once over the vector ISA.
//!
//! A [`LeafKey`] says everything that a leaf's code depends on; equal keys share one function, across kernels and
//! layers. What differs from call to call (addresses, strides, counts, scalar bits) is the argument block.

mod bf16;
pub mod body;
mod columns;
pub mod contract;
pub mod math;
mod memory;
pub mod panels;
pub mod power;
mod rounded;
pub mod rows;
pub mod strip;
mod sum;

use super::vector::{VectorIsa, code::Code};
use crate::error::{Error, Result};
use cranelift_codegen::ir::{AbiParam, types};
use cranelift_module::{FuncId, Linkage, Module};

/// What a leaf is; equal keys are one function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LeafKey {
    /// Tiles of a contraction.
    Tile(contract::TileKey),
    /// A strip, or several in a row loop.
    Strip(strip::StripKey),
    /// Rows laid out for tiles.
    Rows(rows::RowsKey),
    /// Columns laid out for tile registers.
    Panels(panels::PanelsKey),
    /// The end of the use of tile registers, without arguments.
    Release,
}

impl LeafKey {
    /// What it is, for people; part of a symbol.
    pub fn name(&self) -> String {
        match self {
            LeafKey::Tile(key) => {
                let rest = if key.tail { "_rest" } else { "" };
                format!("tile_{}x{}{rest}", key.rows, key.vectors)
            }
            LeafKey::Strip(key) => format!("strip_{}", key.phases.len()),
            LeafKey::Rows(key) => format!("rows_{}", key.levels),
            LeafKey::Panels(_) => "panels".to_string(),
            LeafKey::Release => "release".to_string(),
        }
    }

    /// The leaf's code before it is machine code.
    pub fn code(&self, isa: &dyn VectorIsa) -> Code {
        match self {
            LeafKey::Tile(key) => contract::emit(key, isa.shape()),
            LeafKey::Strip(key) => strip::emit(key, isa.shape()),
            LeafKey::Rows(key) => rows::emit(key, isa.shape()),
            LeafKey::Panels(key) => panels::emit(key, isa.shape()),
            LeafKey::Release => contract::release(isa.shape()),
        }
    }

    /// Slots of the argument block.
    pub fn slots(&self) -> usize {
        match self {
            LeafKey::Tile(key) => key.slots(),
            LeafKey::Strip(key) => key.slots(),
            LeafKey::Rows(key) => key.slots(),
            LeafKey::Panels(_) => panels::PanelsKey::SLOTS,
            LeafKey::Release => 0,
        }
    }
}

/// Declares and defines the leaf as a local function of this name; also returns its size in bytes.
///
/// # Errors
/// `Internal` where the module refuses it: a bug.
pub fn emit(
    key: &LeafKey,
    name: &str,
    isa: &dyn VectorIsa,
    module: &mut dyn Module,
) -> Result<(FuncId, u64)> {
    let mut signature = module.make_signature();
    signature.params.push(AbiParam::new(types::I64));
    let func = module
        .declare_function(name, Linkage::Local, &signature)
        .map_err(|error| Error::internal(format!("leaf {name}: {error}")))?;
    let code_bytes = isa.define(func, &key.code(isa), module)?;
    Ok((func, code_bytes))
}
