//! The names that a node can see: those of its graph, of the graphs around it, and of the function it stands in.
//!
//! Initializers become constants when they are first used. What nodes become is in [`nodes`].

mod nodes;

use super::{
    custom::Custom,
    data_dependent::FoundBounds,
    proto::{AttributeProto, FunctionProto, GraphProto, OperatorSetIdProto, TensorProto, TypeProto},
    storage_type::Narrow,
    types,
    weights::{self, Files},
};
use crate::{
    error::{Error, ErrorKind, Result},
    graph::{Graph, Value, build::Captured},
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};
use symshape::{Dim, Symbol};

/// Graphs and functions inside one another; a function that calls itself would never end.
const MAX_DEPTH: usize = 64;

/// What is the same in all scopes of a model.
pub(super) struct Context<'a> {
    pub files: &'a Files,
    pub functions: &'a [FunctionProto],
    /// Operators of the caller's.
    pub customs: &'a [Custom],
    /// Declared types of intermediate values and outputs of the main graph; empty when inputs are re-declared.
    pub declared: HashMap<&'a str, &'a TypeProto>,
    /// Whether a wrong number of axes in these is an error.
    pub strict: bool,
    /// Nodes imported so far.
    pub nodes: Cell<usize>,
    /// For values that one node turns into another of the same shape: the name of that one.
    pub alike: HashMap<&'a str, &'a str>,
    /// Symbols made so far for what is found while running.
    pub found: Cell<usize>,
    /// The bounds of these.
    pub bounds: FoundBounds<'a>,
    /// A node failed because what its branches give has no common type, see [`super::apart`].
    pub diverged: Cell<bool>,
}

/// The names of one graph or function body.
pub(super) struct Scope<'s, 'a> {
    context: &'s Context<'a>,
    pub(super) parent: Option<&'s Scope<'s, 'a>>,
    opsets: &'a [OperatorSetIdProto],
    /// The attributes of the call, in a function's body.
    attributes: Vec<(&'a str, &'a AttributeProto)>,
    initializers: HashMap<&'a str, &'a TensorProto>,
    values: RefCell<HashMap<&'a str, Value>>,
    /// The types of those whose elements are stored only.
    narrows: RefCell<HashMap<&'a str, Narrow>>,
    /// The elements of those that are sequences, see [`super::sequences`].
    pub(super) lists: RefCell<HashMap<&'a str, Vec<Value>>>,
    depth: usize,
    /// In the graph of a branch or loop: the graph around it, and what is taken from there.
    pub(super) outer: Option<RefCell<Graph>>,
    pub(super) captured: RefCell<Captured>,
}

/// Where an input of a graph attribute comes from.
pub(super) enum Origin {
    /// It is a value in the graph itself.
    Own(Value),
    /// It is one of the graph around it.
    Outer(Value),
}

/// A graph attribute as a region.
pub(super) struct Region {
    pub(super) graph: Graph,
    /// The values of its outputs; the graph's own list is empty yet.
    pub(super) outputs: Vec<Value>,
    /// What it takes from the graph around it, behind the inputs that it was given.
    pub(super) captured: Vec<Value>,
}

impl<'s, 'a> Scope<'s, 'a> {
    /// The scope of the main graph.
    pub(super) fn new(
        context: &'s Context<'a>,
        opsets: &'a [OperatorSetIdProto],
        graph: &'a GraphProto,
    ) -> Result<Scope<'s, 'a>> {
        let scope = Scope {
            context,
            parent: None,
            opsets,
            attributes: Vec::new(),
            initializers: initializers(graph)?,
            values: RefCell::default(),
            narrows: RefCell::default(),
            lists: RefCell::default(),
            depth: 0,
            outer: None,
            captured: RefCell::default(),
        };
        Ok(scope)
    }

    fn inner<'t>(&'t self) -> Result<Scope<'t, 'a>>
    where
        's: 't,
    {
        if self.depth == MAX_DEPTH {
            let what = format!("graphs and functions nested deeper than {MAX_DEPTH}");
            return Err(Error::new(ErrorKind::Limit, what));
        }
        Ok(Scope {
            context: self.context,
            parent: Some(self),
            opsets: self.opsets,
            attributes: self.attributes.clone(),
            initializers: HashMap::new(),
            values: RefCell::default(),
            narrows: RefCell::default(),
            lists: RefCell::default(),
            depth: self.depth + 1,
            outer: None,
            captured: RefCell::default(),
        })
    }

    /// A scope inside this one with these initializers.
    pub(super) fn within<'t>(
        &'t self,
        initializers: HashMap<&'a str, &'a TensorProto>,
    ) -> Result<Scope<'t, 'a>>
    where
        's: 't,
    {
        Ok(Scope { initializers, ..self.inner()? })
    }

    /// Whether there is a graph around this one.
    pub(super) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Says that the node at hand failed because its branches give values without a common type.
    pub(super) fn diverged(&self) {
        self.context.diverged.set(true);
    }

    /// The files of the model.
    pub(super) fn files(&self) -> &Files {
        self.context.files
    }

    /// Gives `value` a name.
    pub(super) fn define(&self, name: &'a str, value: Value) -> Result<()> {
        if self.is_defined(name) {
            return Err(Error::invalid(format!("`{name}` is defined twice")));
        }
        self.values.borrow_mut().insert(name, value);
        Ok(())
    }

    /// Whether the name is one of this very scope.
    pub(super) fn is_defined(&self, name: &str) -> bool {
        self.initializers.contains_key(name)
            || self.values.borrow().contains_key(name)
            || self.lists.borrow().contains_key(name)
    }

    /// The value called `name`.
    pub(super) fn value(&self, g: &mut Graph, name: &str) -> Result<Value> {
        if let Some(value) = self.values.borrow().get(name) {
            return Ok(*value);
        }
        if let Some((name, proto)) = self.initializers.get_key_value(name) {
            let value = g.constant(weights::tensor(proto, self.files())?)?;
            self.values.borrow_mut().insert(name, value);
            return Ok(value);
        }
        if self.lists.borrow().contains_key(name) {
            return Err(Error::unsupported(format!("`{name}` is a sequence: it can leave no graph")));
        }
        match (&self.outer, self.parent) {
            (None, Some(parent)) => parent.value(g, name),
            (Some(outer), Some(parent)) => {
                let mut outer = outer.borrow_mut();
                let value = parent.value(&mut outer, name)?;
                self.captured.borrow_mut().take(&outer, g, value)
            }
            (_, None) => Err(Error::invalid(format!("`{name}` is used and nowhere defined"))),
        }
    }

    /// The type of the elements of what is called `name`, if they are stored only.
    pub(super) fn narrow(&self, name: &str) -> Option<Narrow> {
        if let Some(narrow) = self.narrows.borrow().get(name) {
            return Some(*narrow);
        }
        if let Some(proto) = self.initializers.get(name) {
            return Narrow::from_code(proto.data_type);
        }
        match self.values.borrow().contains_key(name) {
            true => None,
            false => self.parent?.narrow(name),
        }
    }

    /// Says what the elements of `name` are, if they are stored only.
    pub(super) fn hold(&self, name: &'a str, narrow: Option<Narrow>) {
        if let Some(narrow) = narrow {
            self.narrows.borrow_mut().insert(name, narrow);
        }
    }

    /// All names defined here so far, in alphabetical order, and their values.
    pub(super) fn names(&self) -> Vec<(String, Value)> {
        let mut names: Vec<(String, Value)> =
            self.values.borrow().iter().map(|(name, value)| (name.to_string(), *value)).collect();
        names.sort();
        names
    }

    /// The attribute that `proto` is or, in a function, stands for.
    pub(super) fn attribute(&self, proto: &'a AttributeProto) -> Option<&'a AttributeProto> {
        match proto.ref_attr_name.as_str() {
            "" => Some(proto),
            name => self.attributes.iter().find(|(known, _)| *known == name).map(|(_, value)| *value),
        }
    }

    /// The results of `graph`, a branch without inputs, in place.
    pub(super) fn branch(&self, g: &mut Graph, graph: &'a GraphProto) -> Result<Vec<Value>> {
        self.within(initializers(graph)?)?.results(g, graph)
    }

    /// The results of `graph`, a function of one value, in place.
    pub(super) fn applied(&self, g: &mut Graph, graph: &'a GraphProto, x: Value) -> Result<Vec<Value>> {
        let scope = self.within(initializers(graph)?)?;
        match graph.input.as_slice() {
            [input] => scope.define(&input.name, x)?,
            inputs => return Err(Error::invalid(format!("a graph of {} inputs is given 1", inputs.len()))),
        }
        scope.results(g, graph)
    }

    /// The results of a branch or body.
    pub(super) fn results(&self, g: &mut Graph, graph: &'a GraphProto) -> Result<Vec<Value>> {
        let outputs = || graph.output.iter().map(|output| output.name.as_str());
        let values = self.run(g, &graph.node, outputs())?;
        match outputs().find_map(|name| self.narrow(name)) {
            Some(narrow) => Err(Error::unsupported(format!("a branch or loop that gives {}", narrow.name()))),
            None => Ok(values),
        }
    }

    /// `proto` as a graph of its own; `inputs` makes where its inputs come from.
    pub(super) fn region(
        &self,
        g: &mut Graph,
        proto: &'a GraphProto,
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Origin>>,
    ) -> Result<Region> {
        let own = initializers(proto)?;
        self.enclosed(g, &proto.name, own, |scope, graph| scope.fill(graph, proto, inputs))
    }

    /// What `import` makes in a scope and graph of its own, which takes from here what it needs.
    pub(super) fn enclosed(
        &self,
        g: &mut Graph,
        name: &str,
        initializers: HashMap<&'a str, &'a TensorProto>,
        import: impl FnOnce(&Scope<'_, 'a>, &mut Graph) -> Result<Vec<Value>>,
    ) -> Result<Region> {
        let mut graph = g.region(name);
        let inner = self.inner()?;
        let outer = Some(RefCell::new(std::mem::take(g)));
        let scope = Scope { initializers, outer, ..inner };
        let outputs = import(&scope, &mut graph);
        let Scope { outer, captured, .. } = scope;
        *g = outer.map(RefCell::into_inner).unwrap_or_default();
        Ok(Region { graph, outputs: outputs?, captured: captured.into_inner().operands })
    }

    fn fill(
        &self,
        graph: &mut Graph,
        proto: &'a GraphProto,
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Origin>>,
    ) -> Result<Vec<Value>> {
        let values = inputs(graph)?;
        if values.len() != proto.input.len() {
            let (has, given) = (proto.input.len(), values.len());
            return Err(Error::invalid(format!("a graph of {has} inputs is given {given}")));
        }
        for (info, origin) in proto.input.iter().zip(values) {
            let value = match (origin, &self.outer) {
                (Origin::Own(value), _) => value,
                (Origin::Outer(value), Some(outer)) => {
                    self.captured.borrow_mut().take(&outer.borrow(), graph, value)?
                }
                (Origin::Outer(_), None) => return Err(Error::internal("a graph with none around it")),
            };
            self.define(&info.name, value)?;
        }
        self.results(graph, proto)
    }

    /// A name that no symbol has yet.
    pub(super) fn fresh(&self, g: &Graph, stem: &str) -> Symbol {
        loop {
            let number = self.context.found.get();
            self.context.found.set(number + 1);
            let symbol = Symbol::new(&format!("{stem}{number}"));
            if g.facts.declaration(&symbol).is_none() {
                return symbol;
            }
        }
    }

    /// The bounds of what is found while running.
    pub(super) fn bounds(&self) -> &FoundBounds<'a> {
        &self.context.bounds
    }

    /// The name that the model gives axis `axis` of the value `name`, as a symbol for what is found while running.
    pub(super) fn declared_symbol(&self, g: &Graph, name: &str, axis: usize) -> Option<Symbol> {
        let declared = self.context.declared.get(name).filter(|_| self.parent.is_none())?;
        let dims = &declared.tensor_type.as_ref()?.shape.as_ref()?.dim;
        let symbol = types::plain_symbol(dims.get(axis)?)?;
        g.facts.declaration(&symbol).is_none().then_some(symbol)
    }

    /// The dims that the model declares for the value `name`, where they are numbers or expressions over its symbols.
    pub(super) fn declared(&self, g: &Graph, name: &str) -> Option<Vec<Option<Dim>>> {
        let mut name = name;
        for _ in 0..MAX_DEPTH {
            match self.context.alike.get(name) {
                Some(next) if !self.context.declared.contains_key(name) => name = next,
                _ => break,
            }
        }
        let declared = self.context.declared.get(name).filter(|_| self.parent.is_none())?;
        let shape = declared.tensor_type.as_ref()?.shape.as_ref()?;
        Some(shape.dim.iter().map(|dim| types::known_dim(g, dim)).collect())
    }
}

pub(super) fn initializers(graph: &GraphProto) -> Result<HashMap<&str, &TensorProto>> {
    if !graph.sparse_initializer.is_empty() {
        return Err(Error::unsupported("sparse initializers"));
    }
    let mut found = HashMap::new();
    for tensor in &graph.initializer {
        if found.insert(tensor.name.as_str(), tensor).is_some() {
            return Err(Error::invalid(format!("two initializers are called `{}`", tensor.name)));
        }
    }
    Ok(found)
}

/// Two domains are the same; the default one has two names.
pub(super) fn same_domain(a: &str, b: &str) -> bool {
    let normal = |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_string() };
    normal(a) == normal(b)
}
