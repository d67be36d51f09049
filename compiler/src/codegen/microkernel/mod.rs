//! Leaves: the hot loops of kernels as functions `extern "C" fn(args: *const i64)`, written once over the vector ISA.
//!
//! A [`MicrokernelKey`] says everything that a leaf's code depends on; equal keys share one function, across kernels and
//! layers. What differs from call to call (addresses, strides, counts, scalar bits) is the argument block.

mod bf16;
mod body;
pub mod contraction;
pub mod math;
mod memory;
pub mod op;
pub mod pack_panels;
pub mod pack_rows;
pub mod power;
mod quantise;
pub mod strip;

use super::vector::{VectorIsa, vcode::VCode};
use crate::error::{Error, Result};
use cranelift_codegen::ir::{AbiParam, types};
use cranelift_module::{FuncId, Linkage, Module};

/// What a leaf is; equal keys are one function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MicrokernelKey {
    /// Tiles of a contraction.
    Tile(contraction::TileKey),
    /// A strip, or several in a row loop.
    Strip(strip::StripKey),
    /// Rows laid out for tiles.
    PackRows(pack_rows::PackRowsKey),
    /// Columns laid out for tile registers.
    PackPanels(pack_panels::PackPanelsKey),
    /// The end of the use of tile registers, without arguments.
    ReleaseTiles,
}

impl MicrokernelKey {
    /// What it is, for people; part of a symbol.
    pub fn name(&self) -> String {
        match self {
            MicrokernelKey::Tile(key) => {
                let rest = if key.tail { "_rest" } else { "" };
                format!("tile_{}x{}{rest}", key.rows, key.vectors)
            }
            MicrokernelKey::Strip(key) => format!("strip_{}", key.phases.len()),
            MicrokernelKey::PackRows(key) => format!("rows_{}", key.levels),
            MicrokernelKey::PackPanels(_) => "panels".to_string(),
            MicrokernelKey::ReleaseTiles => "release".to_string(),
        }
    }

    /// The leaf's code before it is machine code.
    pub fn code(&self, isa: &dyn VectorIsa) -> VCode {
        match self {
            MicrokernelKey::Tile(key) => contraction::emit(key, isa.shape()),
            MicrokernelKey::Strip(key) => strip::emit(key, isa.shape()),
            MicrokernelKey::PackRows(key) => pack_rows::emit(key, isa.shape()),
            MicrokernelKey::PackPanels(key) => pack_panels::emit(key, isa.shape()),
            MicrokernelKey::ReleaseTiles => contraction::release(isa.shape()),
        }
    }

    /// Slots of the argument block.
    pub fn slots(&self) -> usize {
        match self {
            MicrokernelKey::Tile(key) => key.slots(),
            MicrokernelKey::Strip(key) => key.slots(),
            MicrokernelKey::PackRows(key) => key.slots(),
            MicrokernelKey::PackPanels(_) => pack_panels::PackPanelsKey::SLOTS,
            MicrokernelKey::ReleaseTiles => 0,
        }
    }
}

/// Declares and defines the leaf as a local function of this name; also returns its size in bytes.
///
/// # Errors
/// `Internal` where the module refuses it: a bug.
pub fn emit(
    key: &MicrokernelKey,
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
