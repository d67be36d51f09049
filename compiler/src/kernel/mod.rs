//! The kernel IR: a small structured language of loops over flat buffers.
//!
//! - A [`Program`] is a list of kernels that run one after another.
//! - A [`Kernel`] has a body of statements: loops with symbolic extents, branches, blocks of scalar instructions, and
//!   two statements that become vector code: [`Stmt::Strip`], one inner loop over a straight-line body, and
//!   [`Stmt::Contraction`], a sum of products with an epilogue.
//! - An element is addressed by a flat index: an expression over the model's symbols, the variables of the enclosing
//!   loops, and symbols that are bound to loaded integers. The variables of a kernel have distinct names.
//! - [`Control`] markers form branches and loops over whole kernels. A [`Partition`] is a run of kernels that is one
//!   entry of the artefact's table.
//!
//! [`verify`] lists the rules of the IR, [`text`] prints and parses it, and [`eval`] interprets it. The interpreter is
//! the reference for every later stage.

pub(crate) mod at_distance;
mod batch_blocks;
pub(crate) mod batch_strides;
pub(crate) mod bf16_matrices;
mod block_program;
mod common_element;
pub(crate) mod contract;
mod control;
mod copies;
pub(crate) mod cost;
pub(crate) mod data_dependent;
pub(crate) mod dependences;
pub mod eval;
pub(crate) mod few_bits;
pub(crate) mod hoist;
pub mod inner_divisions;
mod inst;
pub(crate) mod items;
pub(crate) mod lanes;
mod memory;
mod microkernels;
pub(crate) mod monotone;
pub mod partition;
mod program;
mod ragged;
pub(crate) mod rounded_rows;
mod sequence_parts;
pub mod sequences;
mod sliding_windows;
mod state;
mod stmt;
pub mod text;
pub(crate) mod tiles;
pub mod verify;
pub mod walk;
mod weights;

pub use batch_blocks::BatchBlocks;
pub use control::{Argument, Control, ExternalCall};
pub(crate) use copies::max_bytes;
pub use copies::{Copy, copied_bytes, copies};
pub use data_dependent::{DataDependent, at_upper_bounds, upper_bound};
pub use few_bits::FewBitsForm;
pub use inst::{Access, Check, Inst, InstSeq, Local};
pub use memory::{Buffer, BufferId, Device, MemorySpace, WeightForm};
pub(crate) use memory::{MemoryUse, Overflow};
pub use microkernels::MicrokernelSupport;
pub use partition::{CallLimit, Partition, Policies};
pub use program::{COPY_ALIGN_BYTES, Kernel, Port, Program};
pub use ragged::{PaddedPorts, Ragged, SequencePart};
pub use sequence_parts::{EachKernel, Part, Sequences};
pub(crate) use sliding_windows::SlidingWindows;
pub use state::{BlockRows, STATE_ALIGN_BYTES, StateBlock, StateTensor};
pub use stmt::{Axis, Contraction, FewBitsPanels, Padding, Rhs, Stmt};
pub use weights::RepeatedWeight;
pub(crate) use weights::StoredForm;
