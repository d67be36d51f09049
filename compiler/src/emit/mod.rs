//! Compiled modules into what people use: callable memory, objects, archives, shared objects, and headers.
//!
//! [`jit`] and [`object`] run the same code generator over the same program; the other files wrap an object.
//! An object that would import anything but the functions that its model calls by name is refused here, so that
//! "undefined symbols: none" holds for all models without such calls.

pub mod c;
mod file;
pub mod header;
pub mod jit;
mod link;
pub mod object;
pub mod report;
pub mod rust;
pub mod shared;
mod template;

pub use file::{Staged, archive, stage, write_atomically};
pub use object::Object;
