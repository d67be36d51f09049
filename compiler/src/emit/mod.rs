//! Output of compiled modules: callable memory, objects, archives, shared objects, and headers.
//!
//! [`jit`] and [`object`] run the same code generator over the same program; the other files wrap an object.
//! An object may import only the external functions of its model. Models without external functions have no undefined
//! symbols.

mod batch;
pub(crate) mod c;
mod file;
pub mod header;
pub mod jit;
mod link;
mod max_dim;
pub mod object;
mod ragged;
pub(crate) mod report;
pub(crate) mod rust;
mod seal;
pub mod shared;
mod state;
mod template;
pub mod web;
mod weights;

pub(crate) use file::folder;
pub use file::{Staged, archive, stage, write_atomically};
pub use object::Object;
pub(crate) use seal::COMMAND_LINE;
pub use weights::WeightsFile;
