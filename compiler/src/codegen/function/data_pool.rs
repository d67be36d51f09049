//! The pool of a module's read-only data objects.

use super::weights::{ConstantPlace, WeightsLayout};
use crate::{
    kernel::{BufferId, StoredForm},
    tensor::Bytes,
};
use cranelift_module::DataId;
use std::collections::HashMap;

/// The data objects that are defined so far.
#[derive(Default)]
pub(crate) struct DataPool {
    /// All constants in their stored forms.
    pub(crate) forms: Vec<StoredForm>,
    /// The constants that the writer of the object file adds.
    pub(crate) lent: Vec<(DataId, Bytes)>,
    /// The constants in the weights file, if the artefact has one.
    pub(crate) file: WeightsLayout,
    pub(super) constants: HashMap<BufferId, ConstantPlace>,
    /// Constants in other forms, by name.
    pub(super) packed: HashMap<String, ConstantPlace>,
    pub(super) strings: HashMap<String, DataId>,
    /// Arrays by name.
    pub(super) tables: HashMap<String, DataId>,
    /// The description of the weights file.
    pub(crate) weights_desc: Option<DataId>,
}

impl DataPool {
    /// Bytes of all constants.
    pub(crate) fn const_bytes(&self) -> u64 {
        self.forms.iter().map(|form| form.bytes).sum()
    }

    /// Adds a stored form of a constant.
    pub(super) fn add_form(&mut self, buffer: BufferId, packed: Option<String>, bytes: usize) {
        self.forms.push(StoredForm { buffer, packed, bytes: bytes as u64 });
    }
}
