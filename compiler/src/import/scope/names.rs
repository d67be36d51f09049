//! Names of values, and their declarations in the model.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        model::{proto::AttributeProto, storage_type::StorageType, types, weights},
        scope::{MAX_DEPTH, NameScope, bounds::DataDependentBounds},
    },
};
use symshape::{Dim, Symbol};

impl<'a> NameScope<'_, 'a> {
    /// Defines the name of `value`.
    pub(crate) fn define(&self, name: &'a str, value: Value) -> Result<()> {
        if self.is_defined(name) {
            return Err(Error::invalid(format!("`{name}` is defined twice")));
        }
        self.values.borrow_mut().insert(name, value);
        Ok(())
    }

    /// Whether this scope itself defines the name.
    pub(crate) fn is_defined(&self, name: &str) -> bool {
        self.initializers.contains_key(name)
            || self.values.borrow().contains_key(name)
            || self.lists.borrow().contains_key(name)
    }

    /// The value `name`.
    pub(crate) fn value(&self, g: &mut Graph, name: &str) -> Result<Value> {
        if let Some(value) = self.values.borrow().get(name) {
            return Ok(*value);
        }
        if let Some((name, proto)) = self.initializers.get_key_value(name) {
            let tensor = weights::tensor(proto, self.files())?;
            let origin = std::mem::replace(&mut g.origin, format!("weight `{name}`"));
            let value = g.constant(tensor);
            g.origin = origin;
            let value = value?;
            self.values.borrow_mut().insert(name, value);
            return Ok(value);
        }
        if self.lists.borrow().contains_key(name) {
            return Err(Error::unsupported(format!("`{name}` is a sequence: a graph can't return it")));
        }

        match (&self.outer, self.parent) {
            (None, Some(parent)) => parent.value(g, name),
            (Some(outer), Some(parent)) => {
                let mut outer = outer.borrow_mut();
                let value = parent.value(&mut outer, name)?;
                self.captured.borrow_mut().take(&outer, g, value)
            }
            (_, None) => Err(Error::invalid(format!("`{name}` is used but not defined"))),
        }
    }

    /// The storage type of the value `name`, if it differs from its element type.
    pub(crate) fn storage_type(&self, name: &str) -> Option<StorageType> {
        if let Some(storage_type) = self.storage_types.borrow().get(name) {
            return Some(*storage_type);
        }
        if let Some(proto) = self.initializers.get(name) {
            return StorageType::from_code(proto.data_type);
        }
        if self.values.borrow().contains_key(name) { None } else { self.parent?.storage_type(name) }
    }

    /// Records the storage type of the value `name`.
    pub(crate) fn set_storage_type(&self, name: &'a str, storage_type: Option<StorageType>) {
        if let Some(storage_type) = storage_type {
            self.storage_types.borrow_mut().insert(name, storage_type);
        }
    }

    /// All names defined here so far, in alphabetical order, and their values.
    pub(crate) fn names(&self) -> Vec<(String, Value)> {
        let mut names: Vec<(String, Value)> =
            self.values.borrow().iter().map(|(name, value)| (name.to_string(), *value)).collect();
        names.sort();
        names
    }

    /// The attribute `proto`, or in a function the attribute of the call that it refers to.
    pub(crate) fn attribute(&self, proto: &'a AttributeProto) -> Option<&'a AttributeProto> {
        match proto.ref_attr_name.as_str() {
            "" => Some(proto),
            name => self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value),
        }
    }

    /// A new symbol whose name begins with `stem`.
    pub(crate) fn fresh(&self, g: &Graph, stem: &str) -> Symbol {
        loop {
            let number = self.context.data_dependent_count.get();
            self.context.data_dependent_count.set(number + 1);
            let symbol = Symbol::new(&format!("{stem}{number}"));
            if g.facts.declaration(&symbol).is_none() {
                return symbol;
            }
        }
    }

    /// The seed of the call: an `i64` of rank 0, an input of the main graph.
    pub(crate) fn seed(&self, g: &mut Graph) -> Result<Value> {
        match (&self.outer, self.enclosing) {
            (None, Some(enclosing)) => enclosing.seed(g),
            (Some(outer), Some(enclosing)) => {
                let mut outer = outer.borrow_mut();
                let value = enclosing.seed(&mut outer)?;
                self.captured.borrow_mut().take(&outer, g, value)
            }
            (_, None) => {
                self.context.seed.is_used.set(true);
                self.context.seed.value.get().ok_or_else(|| Error::internal("a random node needs a seed"))
            }
        }
    }

    /// The number of the next random node.
    pub(crate) fn next_stream(&self) -> Result<u32> {
        let streams = &self.context.seed.streams;
        streams.set(streams.get() + 1);
        Ok(streams.get() - 1)
    }

    /// The counters of the loops around this scope, whose graph is `g`, from the outermost to the innermost.
    pub(crate) fn iterations(&self, g: &Graph) -> Vec<Symbol> {
        match (&self.outer, self.enclosing) {
            (None, Some(enclosing)) => enclosing.iterations(g),
            (Some(outer), Some(enclosing)) => {
                let outer = outer.borrow();
                let is_own = |symbol: &&Symbol| {
                    !outer.symbols.contains(symbol) && !outer.data_dependent.contains(symbol)
                };
                let mut all = enclosing.iterations(&outer);
                all.extend(g.symbols.iter().filter(is_own).cloned());
                all
            }
            (_, None) => Vec::new(),
        }
    }

    /// The bounds of data-dependent sizes.
    pub(crate) fn bounds(&self) -> &DataDependentBounds<'a> {
        &self.context.bounds
    }

    /// The data-dependent symbol that the model declares for axis `axis` of the value `name`.
    pub(crate) fn declared_symbol(&self, g: &Graph, name: &str, axis: usize) -> Option<Symbol> {
        let declared = self.context.declared.get(name).filter(|_| self.parent.is_none())?;
        let dims = &declared.tensor_type.as_ref()?.shape.as_ref()?.dim;
        let symbol = types::plain_symbol(dims.get(axis)?)?;
        g.facts.declaration(&symbol).is_none().then_some(symbol)
    }

    /// The dims that the model declares for the value `name`. `None` for dims that are neither constants nor
    /// expressions over its symbols.
    pub(crate) fn declared(&self, g: &Graph, name: &str) -> Option<Vec<Option<Dim>>> {
        let mut name = name;
        for _ in 0..MAX_DEPTH {
            match self.context.same_shape.get(name) {
                Some(next) if !self.context.declared.contains_key(name) => name = next,
                _ => break,
            }
        }
        let declared = self.context.declared.get(name).filter(|_| self.parent.is_none())?;
        let shape = declared.tensor_type.as_ref()?.shape.as_ref()?;
        Some(shape.dim.iter().map(|dim| types::known_dim(g, dim)).collect())
    }
}
