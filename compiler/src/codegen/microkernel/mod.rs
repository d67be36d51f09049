//! Microkernels: the hot loops of kernels as functions `fn(args: *const i64)`, written once over the vector
//! ISA.
//!
//! A [`MicrokernelKey`] is everything that the code depends on. Equal keys share one function, across kernels and
//! layers. The argument block has the values that differ from call to call: addresses, strides, counts and scalars.

mod bf16;
mod body;
mod body_value;
mod byte_quads;
mod cast;
pub mod contraction;
pub mod distribution;
mod exponential;
mod f16;
mod formulas;
mod lane_access;
pub mod logistic;
mod matches;
pub mod math;
mod memory;
mod narrow_products;
pub(crate) mod pack_panels;
pub mod pack_rows;
pub mod power;
mod quantise;
pub mod quotient;
mod remainder;
pub mod strip;
mod trigonometry;
pub(crate) mod unpack_panels;
mod wide;

pub use crate::kernel::lanes::op;

use super::vector::{VectorIsa, convention::machine_code_signature, vcode::VCode};
use crate::error::{Error, Result};
use cranelift_codegen::ir::types;
use cranelift_module::{FuncId, Linkage, Module};

/// The key of a microkernel; equal keys are one function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MicrokernelKey {
    /// Tiles of a contraction.
    Tile(contraction::TileKey),
    /// A strip, or several in a row loop.
    Strip(strip::StripKey),
    /// Packs rows of lhs for tiles.
    PackRows(pack_rows::PackRowsKey),
    /// Packs columns of rhs for tile registers.
    PackPanels(pack_panels::PackPanelsKey),
    /// Makes columns of few bits floats.
    UnpackPanels(unpack_panels::UnpackPanelsKey),
    /// Releases the tile registers; takes no arguments.
    ReleaseTiles,
}

impl MicrokernelKey {
    /// A readable name, which is part of the function's symbol.
    pub fn name(&self) -> String {
        match self {
            MicrokernelKey::Tile(key) => {
                let rest = if key.tail { "_rest" } else { "" };
                format!("tile_{}x{}{rest}", key.rows, key.vectors)
            }
            MicrokernelKey::Strip(key) => format!("strip_{}", key.phases.len()),
            MicrokernelKey::PackRows(key) => format!("rows_{}", key.levels),
            MicrokernelKey::PackPanels(_) => "panels".to_string(),
            MicrokernelKey::UnpackPanels(key) => format!("unpack_{}", key.code.bits),
            MicrokernelKey::ReleaseTiles => "release".to_string(),
        }
    }

    /// The code before instruction selection.
    pub fn code(&self, isa: &dyn VectorIsa) -> VCode {
        match self {
            MicrokernelKey::Tile(key) => contraction::emit(key, isa.shape()),
            MicrokernelKey::Strip(key) => strip::emit(key, isa.shape()),
            MicrokernelKey::PackRows(key) => pack_rows::emit(key, isa.shape()),
            MicrokernelKey::PackPanels(key) => pack_panels::emit(key, isa.shape()),
            MicrokernelKey::UnpackPanels(key) => unpack_panels::emit(key, isa.shape()),
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
            MicrokernelKey::UnpackPanels(_) => unpack_panels::UnpackPanelsKey::SLOTS,
            MicrokernelKey::ReleaseTiles => 0,
        }
    }
}

/// Declares and defines the microkernel as a local function of this name; also returns its size in bytes.
///
/// # Errors
/// `Internal` if the module refuses the function: a bug.
pub fn emit(
    key: &MicrokernelKey,
    name: &str,
    isa: &dyn VectorIsa,
    module: &mut dyn Module,
) -> Result<(FuncId, u64)> {
    let func = declare(name, module)?;
    let code = isa.compile(func, &key.code(isa), module.isa())?;
    code.define(func, module).map_err(|error| Error::internal(format!("microkernel {name}: {error:?}")))?;
    Ok((func, code.len_bytes()))
}

/// Declares a local function of this name with the signature of microkernels.
///
/// # Errors
/// `Internal` if the module has a function of this name: a bug.
pub(crate) fn declare(name: &str, module: &mut dyn Module) -> Result<FuncId> {
    let signature = machine_code_signature(module.isa(), &[types::I64], &[]);
    module
        .declare_function(name, Linkage::Local, &signature)
        .map_err(|error| Error::internal(format!("microkernel {name}: {error}")))
}
