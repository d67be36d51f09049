//! The names that a node can see: those of its graph, of the graphs around it, and of the function it stands in.
//!
//! Nodes are imported in an order in which every name is defined before it is used, whatever order the file has them
//! in. Initializers become constants when they are first used. Calls of functions are replaced by their bodies.

use super::{
    constant,
    custom::{self, Custom},
    found::FoundBounds,
    narrow::Narrow,
    node::{Given, OnnxNode},
    ops,
    order::{order, title},
    proto::{
        AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    },
    types,
    weights::{self, Files},
};
use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::{Graph, Value, build::Captured},
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};
use symshape::{Dim, Symbol};

/// Graphs and functions inside one another; a function that calls itself would never end.
const MAX_DEPTH: usize = 64;
/// Nodes after functions are replaced by their bodies; a hostile file could double them with every function.
const MAX_NODES: usize = 1 << 20;
/// The newest version of the default operator set that the operator table was checked against.
const NEWEST_OPSET: i64 = 27;

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

    /// Imports nodes in this order; the values called `outputs`.
    pub(super) fn sequence(
        &self,
        g: &mut Graph,
        nodes: &[&'a NodeProto],
        outputs: &[&'a str],
    ) -> Result<Vec<Value>> {
        for (k, node) in nodes.iter().enumerate() {
            g.origin = title(node);
            let made = self.node(g, node);
            if made.is_err() && self.context.diverged.take() {
                return self.apart(g, node, &nodes[k + 1..], outputs).at(|| title(node));
            }
            made.at(|| title(node))?;
        }
        outputs.iter().map(|name| self.value(g, name).at(|| "outputs")).collect()
    }

    /// The nodes with every name defined before it is used.
    pub(super) fn order(&self, nodes: &'a [NodeProto]) -> Result<Vec<&'a NodeProto>> {
        order(nodes, &|name| self.initializers.contains_key(name))
    }

    fn node(&self, g: &mut Graph, proto: &'a NodeProto) -> Result<()> {
        self.context.nodes.set(self.context.nodes.get() + 1);
        if self.context.nodes.get() > MAX_NODES {
            return Err(Error::new(ErrorKind::Limit, format!("more than {MAX_NODES} nodes")));
        }
        let function = |f: &&FunctionProto| {
            same_domain(&f.domain, &proto.domain) && f.name == proto.op_type && f.overload == proto.overload
        };
        let custom =
            self.context.customs.iter().rev().find(|custom| custom.is(&proto.domain, &proto.op_type));
        let outputs = match (custom, self.context.functions.iter().find(function)) {
            (Some(custom), _) => self.custom(g, proto, custom)?,
            (None, Some(function)) => {
                let node = OnnxNode::new(proto, 0, self, g)?;
                let inputs = node.take_inputs()?;
                let attributes = node.take_attributes();
                self.call(g, function, &inputs, attributes)?
            }
            (None, None) => self.operator(g, proto)?,
        };
        if outputs.len() < proto.output.len()
            && proto.output[outputs.len()..].iter().any(|name| !name.is_empty())
        {
            let (has, named) = (outputs.len(), proto.output.len());
            return Err(Error::invalid(format!("{} has {has} outputs, {named} are named", proto.op_type)));
        }
        for (name, made) in proto.output.iter().zip(outputs).filter(|(name, _)| !name.is_empty()) {
            let (value, narrow) = match made {
                Made::Tensor(value, narrow) => (value, narrow),
                Made::List(list) => {
                    self.define_list(name, list)?;
                    continue;
                }
                Made::Nothing => {
                    return Err(Error::unsupported(format!("output `{name}` of {}", proto.op_type)));
                }
            };
            if self.parent.is_none()
                && let Some(declared) = self.context.declared.get(name.as_str())
            {
                types::check(g, value, narrow, declared, self.context.strict).at(|| format!("`{name}`"))?;
            }
            self.define(name, value)?;
            self.hold(name, narrow);
        }
        Ok(())
    }

    fn operator(&self, g: &mut Graph, proto: &'a NodeProto) -> Result<Vec<Made>> {
        let opset = self.opset(&proto.domain)?;
        let Some(import) = ops::find(&proto.domain, &proto.op_type, opset) else {
            let domain = if same_domain(&proto.domain, "") { "" } else { &proto.domain };
            let name = &proto.op_type;
            let what = match domain.is_empty() {
                true => format!("op {name} (opset {opset})"),
                false => format!(
                    "op {domain}::{name} (opset {opset}); --custom \"{domain}:{name}(…) -> … = FUNCTION\" binds it to a \
                     function of yours, see docs/custom-ops.md"
                ),
            };
            return Err(Error::unsupported(what));
        };
        let node = OnnxNode::new(proto, opset, self, g)?;
        let outputs = import(g, &node)?;
        node.finish()?;
        if let Some(list) = node.made_list() {
            return Ok(vec![Made::List(list)]);
        }
        let settled =
            outputs.0.into_iter().map(|value| value.map(|value| constant::settled(g, value)).transpose());
        settled.map(|value| Ok(Made::new(value?, node.made()))).collect()
    }

    fn custom(&self, g: &mut Graph, proto: &'a NodeProto, custom: &Custom) -> Result<Vec<Made>> {
        let node = OnnxNode::new(proto, self.opset(&proto.domain)?, self, g)?;
        let outputs = custom::apply(g, &node, custom)?;
        node.finish()?;
        Ok(outputs.0.into_iter().map(|value| Made::new(value, None)).collect())
    }

    pub(super) fn opset(&self, domain: &str) -> Result<i64> {
        let found = self.opsets.iter().find(|opset| same_domain(&opset.domain, domain));
        match found {
            Some(opset) if same_domain(domain, "") && opset.version > NEWEST_OPSET => Err(
                Error::unsupported(format!("opset {} (the newest known is {NEWEST_OPSET})", opset.version)),
            ),
            Some(opset) => Ok(opset.version),
            // Contrib operators have had one version only, and exporters forget to import their domain.
            None if !same_domain(domain, "") => Ok(1),
            None => Err(Error::invalid("the model imports no version of the default operator set")),
        }
    }

    /// The body of `function` in place of a call.
    fn call(
        &self,
        g: &mut Graph,
        function: &'a FunctionProto,
        inputs: &[Given],
        mut attributes: Vec<(&'a str, &'a AttributeProto)>,
    ) -> Result<Vec<Made>> {
        for default in &function.attribute_proto {
            if !attributes.iter().any(|(name, _)| *name == default.name) {
                attributes.push((&default.name, default));
            }
        }
        if inputs.len() > function.input.len() {
            let (most, have) = (function.input.len(), inputs.len());
            return Err(Error::invalid(format!(
                "function {} takes {most} inputs, not {have}",
                function.name
            )));
        }
        // A body sees nothing of its caller but what it is given.
        let mut scope = Scope { parent: None, attributes, ..self.inner()? };
        if !function.opset_import.is_empty() {
            scope.opsets = &function.opset_import;
        }
        for (name, value) in function.input.iter().zip(inputs) {
            if let Some((value, narrow)) = value {
                scope.define(name, *value)?;
                scope.hold(name, *narrow);
            }
        }
        let outputs = || function.output.iter().map(String::as_str);
        let values = scope.run(g, &function.node, outputs())?;
        let made = |(value, name): (Value, &str)| Made::Tensor(value, scope.narrow(name));
        Ok(values.into_iter().zip(outputs()).map(made).collect())
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

    /// `proto` as a graph of its own; `inputs` makes the values of its inputs there.
    pub(super) fn region(
        &self,
        g: &mut Graph,
        proto: &'a GraphProto,
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Value>>,
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
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let values = inputs(graph)?;
        if values.len() != proto.input.len() {
            let (has, given) = (proto.input.len(), values.len());
            return Err(Error::invalid(format!("a graph of {has} inputs is given {given}")));
        }
        for (info, value) in proto.input.iter().zip(values) {
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

    fn run(
        &self,
        g: &mut Graph,
        nodes: &'a [NodeProto],
        outputs: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<Value>> {
        let outer = g.origin.clone();
        let values = self.sequence(g, &self.order(nodes)?, &outputs.collect::<Vec<_>>());
        g.origin = outer;
        values
    }
}

/// A result of a node.
enum Made {
    /// A tensor, and the type of its elements if they are stored only.
    Tensor(Value, Option<Narrow>),
    List(Vec<Value>),
    /// It was not computed.
    Nothing,
}

impl Made {
    fn new(value: Option<Value>, narrow: Option<Narrow>) -> Made {
        value.map_or(Made::Nothing, |value| Made::Tensor(value, narrow))
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
