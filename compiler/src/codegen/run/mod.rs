//! One call: the functions that an artefact exports, and the code between a call and its kernels.
//!
//! `check` binds the symbols ([`contract`]), `arena_bytes` and `output_shape` evaluate sizes ([`sizes`]), and `run`
//! calls the kernels ([`driver`]). Three layers may surround the driver, from the inside out: a scheduler of
//! partitions ([`partitions`], [`scheduler`]), a dispatcher over levels of the instruction set ([`levels`],
//! [`dispatch`]), and a loop over blocks of the batch ([`batch_blocking`]). Kernel bodies are emitted by
//! [`super::body`].
//!
//! No exported function allocates memory, and `run` guards the dims itself: a caller may skip `check`.

mod arguments;
mod batch_blocking;
mod calls;
pub(crate) mod contract;
mod control;
pub(crate) mod dispatch;
mod driver;
pub(crate) mod entries;
mod estimate;
mod external;
mod host;
mod kernels;
pub(crate) mod levels;
mod offsets;
mod partition_table;
mod partitions;
mod ragged;
mod schedule_estimate;
mod scheduler;
mod sequence_frame;
mod sequences;
mod share;
pub(crate) mod sizes;
pub(crate) mod state;
mod state_header;
mod states;
mod steps;
pub(crate) mod weights;
mod workers;
