//! Names of sequences.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::scope::NameScope,
};

impl<'a> NameScope<'_, 'a> {
    /// Defines `name` as the sequence of these elements.
    pub(crate) fn define_list(&self, name: &'a str, list: Vec<Value>) -> Result<()> {
        if self.is_defined(name) {
            return Err(Error::invalid(format!("`{name}` is defined twice")));
        }
        self.lists.borrow_mut().insert(name, list);
        Ok(())
    }

    /// The elements of the value `name`, if it is a sequence.
    pub(crate) fn list(&self, g: &mut Graph, name: &str) -> Result<Option<Vec<Value>>> {
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
