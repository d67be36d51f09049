//! Weights in several forms: one constant of the model may be packed for one kernel and row-major for another.

use super::{BufferId, Control, Program, walk};
use std::collections::{BTreeMap, BTreeSet};

/// A form of a weight in an artefact.
pub(crate) struct StoredForm {
    /// The buffer that is stored, or that the stored form is made from.
    pub(crate) buffer: BufferId,
    /// The form that code generation packs the buffer to, if it does.
    pub(crate) packed: Option<String>,
    /// Bytes of this form.
    pub(crate) bytes: u64,
}

/// A weight that an artefact holds in two forms or more, since its kernels are faster so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepeatedWeight {
    /// Name of the weight in the model.
    pub name: String,
    /// Each form and its bytes.
    pub forms: Vec<(String, u64)>,
}

impl RepeatedWeight {
    /// Bytes beyond those of the largest form.
    pub(crate) fn repeated_bytes(&self) -> u64 {
        let bytes = self.forms.iter().map(|(_, bytes)| *bytes);
        bytes.clone().sum::<u64>() - bytes.max().unwrap_or(0)
    }
}

impl Program {
    /// The constants that kernels use.
    pub(crate) fn used_constants(&self) -> BTreeSet<BufferId> {
        let mut used = BTreeSet::new();
        for kernel in &self.kernels {
            walk::accesses(&kernel.body, &mut |site| {
                used.insert(site.access.buffer);
            });
            used.extend(kernel.control.as_ref().map(Control::touched).unwrap_or_default().0);
        }

        used.retain(|buffer| self.is_const(*buffer));
        used
    }

    /// The name of a constant in messages: that of its weight, or else that of its buffer.
    pub(crate) fn weight_name(&self, buffer: BufferId) -> String {
        let own = &self.buffers[buffer].name;
        let name = self.weights.get(&buffer).map_or(own, |known| &known.weight);
        if name.is_empty() { format!("constant {}", buffer.as_u32()) } else { name.clone() }
    }

    /// The weights with two stored forms or more, by name.
    pub(crate) fn repeated_weights(&self, stored: &[StoredForm]) -> Vec<RepeatedWeight> {
        let mut forms: BTreeMap<&str, Vec<(String, u64)>> = BTreeMap::new();
        for StoredForm { buffer, packed, bytes } in stored {
            let Some(known) = self.weights.get(buffer) else { continue };
            let form = packed.clone().unwrap_or_else(|| known.form.to_string());
            forms.entry(&known.weight).or_default().push((form, *bytes));
        }

        forms.retain(|_, forms| forms.len() > 1);
        forms.into_iter().map(|(name, forms)| RepeatedWeight { name: name.to_string(), forms }).collect()
    }

    /// The stored forms of a program whose constants are not packed further.
    pub(crate) fn stored_constants(&self) -> Vec<StoredForm> {
        let form = |buffer: BufferId| {
            let bytes = self.buffers[buffer].bytes().as_i64().unwrap_or(0) as u64;
            StoredForm { buffer, packed: None, bytes }
        };
        self.used_constants().into_iter().map(form).collect()
    }
}
