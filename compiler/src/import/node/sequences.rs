//! Sequences of tensors whose lengths are known at import time: names for lists of values.
//!
//! Exporters split and join tensors by sequences (`SplitToSequence`, `SequenceAt`, `ConcatFromSequence`). Here a
//! sequence is the list of its elements, so the graph has no trace of it. It can't be an input or output of the model,
//! nor a carried value of a loop.

use crate::{
    error::{Error, Result},
    graph::Value,
    import::node::OnnxNode,
};

impl OnnxNode<'_, '_> {
    /// The elements of input `k`, if that is a sequence.
    pub(crate) fn list_if(&self, k: usize) -> Option<Vec<Value>> {
        let input = self.inputs.get(k)?;
        let list = input.list.clone()?;
        input.read.set(true);
        Some(list)
    }

    /// The elements of input `k`, which must be a sequence.
    pub(crate) fn list(&self, k: usize) -> Result<Vec<Value>> {
        self.list_if(k).ok_or_else(|| Error::invalid(format!("input {k} of {} must be a sequence", self.op)))
    }

    /// Defines output 0 as the sequence of these elements.
    pub(crate) fn set_output_list(&self, list: Vec<Value>) {
        *self.output_list.borrow_mut() = Some(list);
    }

    /// The elements of output 0, if it is a sequence.
    pub(crate) fn take_output_list(&self) -> Option<Vec<Value>> {
        self.output_list.take()
    }

    /// Refuses a sequence input that the operator has not read as a sequence.
    pub(crate) fn refuse_lists(&self) -> Result<()> {
        match self.inputs.iter().find(|input| input.list.is_some() && !input.read.get()) {
            Some(_) => Err(Error::unsupported(format!("{} of a sequence", self.op))),
            None => Ok(()),
        }
    }
}
