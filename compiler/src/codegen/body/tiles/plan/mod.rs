//! The decisions about a contraction, before any code is emitted: how its operands are read or packed, how rows,
//! columns and the reduction are divided into tiles, and which microkernels run them.
//!
//! Nothing here emits code or knows Cranelift: a [`TilePlan`] follows from the program, the contraction and the
//! description of the vector ISA. The modules of `emit` turn it into loops around calls of microkernels.

mod byte_pairs;
mod bytes_in_place;
mod division;
mod isa;
mod k_blocking;
mod keys;
mod lhs;
mod line_batch;
mod packed_constant;
mod packed_lhs;
mod packed_panels;
mod packing;
mod reduction;
mod rhs;
mod rounding;
mod text;
mod tile_plan;
mod tiling;
mod zero_taps;

pub(crate) use division::{column_step, row_units};
pub(crate) use isa::Isa;
pub(crate) use keys::MicrokernelVariant;
pub(crate) use line_batch::LineBatch;
pub(crate) use packed_lhs::{PackedLhs, PackedPixels, PackedRows};
pub(crate) use packing::Packing;
pub(crate) use rhs::{ComputedRhs, FewBitsRhs, PanelSource};
pub(crate) use text::plans_text;
pub(crate) use tile_plan::{TilePlan, plan};
pub(crate) use tiling::{AmxChoice, HeightTiling, N_WIDTHS, SMALL_AMX_ROWS};
pub(crate) use zero_taps::ZeroTaps;
