//! The buffers of the graph's constants, by the form in which kernels read them.

use crate::{
    graph::{Graph, Value},
    kernel::{BufferId, Program, WeightForm},
    tensor::{ByContent, Tensor},
};
use std::collections::{BTreeMap, HashMap};

/// The key of packed panels: equal keys have equal panels.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PackedForm {
    pub(super) weight: ByContent,
    /// Offsets of the batches in the weight, in elements.
    pub(super) batch: Vec<i64>,
    /// Offsets of the columns.
    pub(super) columns: Vec<i64>,
    /// Offsets of the points of the reduction.
    pub(super) k: Vec<i64>,
    /// Columns of each block.
    pub(super) block_columns: usize,
}

/// The buffers of constants, and the names of the constants.
#[derive(Default)]
pub(super) struct Weights {
    /// Constants that kernels read unpacked.
    pub(super) row_major: HashMap<Value, BufferId>,
    /// Packed constants.
    pub(super) panels: BTreeMap<PackedForm, BufferId>,
    /// Packed constants of few bits, and whether the other operand is rounded.
    pub(super) few_bits: BTreeMap<(PackedForm, bool), BufferId>,
    /// Names of the graph's constants by the address of their bytes.
    names: HashMap<*const u8, String>,
}

impl Weights {
    /// No buffers yet. `name` names the node of a value.
    pub(super) fn new(graph: &Graph, name: impl Fn(Value) -> String) -> Weights {
        let named = graph.values.iter().filter_map(|(value, _)| {
            let tensor = graph.as_constant(value)?;
            Some((tensor.stored().as_ptr(), name(value)))
        });
        Weights { names: named.collect(), ..Weights::default() }
    }

    /// Records in `program` that a buffer holds `weight`, a constant of the graph, in this form.
    pub(super) fn record(
        &self,
        program: &mut Program,
        buffer: BufferId,
        weight: &Tensor,
        form: &'static str,
    ) {
        if let Some(name) = self.names.get(&weight.stored().as_ptr()) {
            program.weights.insert(buffer, WeightForm { weight: name.clone(), form });
        }
    }
}
