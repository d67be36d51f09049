//! The pool of a module's read-only data objects.

use crate::{kernel::BufferId, tensor::Bytes};
use cranelift_module::DataId;
use std::collections::HashMap;

/// The data objects that are defined so far.
#[derive(Default)]
pub(crate) struct DataPool {
    /// Bytes of all constants.
    pub(crate) const_bytes: u64,
    /// The constants that the writer of the object file adds.
    pub(crate) lent: Vec<(DataId, Bytes)>,
    pub(super) constants: HashMap<BufferId, DataId>,
    pub(super) strings: HashMap<String, DataId>,
    /// Arrays, and constants in other forms, by name.
    pub(super) tables: HashMap<String, DataId>,
}
