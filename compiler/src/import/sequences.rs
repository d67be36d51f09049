//! Sequences of tensors, as long as their lengths are known while importing: names for lists of values.
//!
//! Exporters take tensors apart and put them together by way of sequences (`SplitToSequence`, `SequenceAt`,
//! `ConcatFromSequence`). Here a sequence is nothing but the list of its elements, so that nothing is left of it in the
//! graph. It can't be an input or output of the model, nor be handed from round to round of a loop.

use super::{node::OnnxNode, scope::Scope};
use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
};

impl<'a> Scope<'_, 'a> {
    /// Gives the sequence of these elements a name.
    pub(super) fn define_list(&self, name: &'a str, list: Vec<Value>) -> Result<()> {
        if self.is_defined(name) {
            return Err(Error::invalid(format!("`{name}` is defined twice")));
        }
        self.lists.borrow_mut().insert(name, list);
        Ok(())
    }

    /// The elements of what is called `name`, if it is a sequence.
    pub(super) fn list(&self, g: &mut Graph, name: &str) -> Result<Option<Vec<Value>>> {
        if let Some(list) = self.lists.borrow().get(name) {
            return Ok(Some(list.clone()));
        }
        if self.is_defined(name) {
            return Ok(None);
        }
        match (&self.outer, self.parent) {
            (_, None) => Ok(None),
            (None, Some(parent)) => parent.list(g, name),
            (Some(outer), Some(parent)) => {
                let mut outer = outer.borrow_mut();
                let Some(list) = parent.list(&mut outer, name)? else { return Ok(None) };
                let mut captured = self.captured.borrow_mut();
                list.into_iter().map(|value| captured.take(&outer, g, value)).collect::<Result<_>>().map(Some)
            }
        }
    }
}

impl OnnxNode<'_, '_> {
    /// The elements of input `k`, if that is a sequence.
    pub(super) fn list_if(&self, k: usize) -> Option<Vec<Value>> {
        let input = self.inputs.get(k)?;
        let list = input.list.clone()?;
        input.read.set(true);
        Some(list)
    }

    /// The elements of input `k`, which must be a sequence.
    pub(super) fn list(&self, k: usize) -> Result<Vec<Value>> {
        self.list_if(k).ok_or_else(|| Error::invalid(format!("input {k} of {} must be a sequence", self.op)))
    }

    /// Output 0 is the sequence of these elements.
    pub(super) fn make_list(&self, list: Vec<Value>) {
        *self.makes_list.borrow_mut() = Some(list);
    }

    /// The elements of output 0, if it is a sequence.
    pub(super) fn made_list(&self) -> Option<Vec<Value>> {
        self.makes_list.take()
    }

    /// An input that is a sequence, and that nobody has asked for as such, is an error.
    pub(super) fn refuse_lists(&self) -> Result<()> {
        match self.inputs.iter().find(|input| input.list.is_some() && !input.read.get()) {
            Some(_) => Err(Error::unsupported(format!("{} of a sequence", self.op))),
            None => Ok(()),
        }
    }
}
