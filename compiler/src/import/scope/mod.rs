//! The names that a node can see: those of its graph, of the enclosing graphs, and of its function.
//!
//! Initializers become constants when they are first used. Nodes are imported in [`nodes`].

pub(crate) mod bounds;
mod branch_continuation;
mod names;
mod nodes;
mod refusals;
pub(crate) mod regions;
mod sequences;

use crate::{
    error::{Error, ErrorKind, Result},
    graph::{Graph, Value, build::Captured},
    import::{
        custom::declaration::Custom,
        model::{
            proto::{AttributeProto, FunctionProto, GraphProto, OperatorSetIdProto, TensorProto, TypeProto},
            storage_type::StorageType,
            weights::Files,
        },
        scope::{bounds::DataDependentBounds, refusals::Refusals},
    },
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};

/// Maximum nesting of graphs and functions. A recursive function would never end.
const MAX_DEPTH: usize = 64;

/// State that all scopes of a model share.
pub(crate) struct Context<'a> {
    pub(crate) files: &'a Files,
    pub(crate) functions: &'a [FunctionProto],
    /// Custom operators of the caller.
    pub(crate) customs: &'a [Custom],
    /// Declared types of intermediate values and outputs of the main graph; empty when inputs are re-declared.
    pub(crate) declared: HashMap<&'a str, &'a TypeProto>,
    /// Whether a wrong number of axes in `declared` is an error.
    pub(crate) strict: bool,
    /// Nodes imported so far.
    pub(crate) node_count: Cell<usize>,
    /// The name of a value of the same shape: for the input of an elementwise node, its output.
    pub(crate) same_shape: HashMap<&'a str, &'a str>,
    /// Number of data-dependent symbols so far.
    pub(crate) data_dependent_count: Cell<usize>,
    /// The bounds of data-dependent symbols.
    pub(crate) bounds: DataDependentBounds<'a>,
    /// The seed of random numbers.
    pub(crate) seed: Seed,
    /// Whether a node failed because its branches return different types, see `branch_continuation`.
    pub(crate) needs_split: Cell<bool>,
    /// The nodes of the main graph that can't be imported.
    pub(crate) refusals: RefCell<Refusals<'a>>,
}

/// The seed of random numbers, and the nodes that use it.
#[derive(Default)]
pub(crate) struct Seed {
    /// The seed, in the main graph. `None` if the model has no random nodes.
    pub(crate) value: Cell<Option<Value>>,
    /// Whether a node has used it.
    pub(crate) is_used: Cell<bool>,
    /// The number of random nodes so far.
    pub(crate) streams: Cell<u32>,
}

/// The names of one graph or function body.
pub(crate) struct NameScope<'s, 'a> {
    context: &'s Context<'a>,
    /// The scope whose names are visible here.
    parent: Option<&'s NameScope<'s, 'a>>,
    /// The scope around this one: the parent, or in a function's body the scope of the call.
    enclosing: Option<&'s NameScope<'s, 'a>>,
    opsets: &'a [OperatorSetIdProto],
    /// The attributes of the call, in a function's body.
    attributes: Vec<(&'a str, &'a AttributeProto)>,
    initializers: HashMap<&'a str, &'a TensorProto>,
    values: RefCell<HashMap<&'a str, Value>>,
    /// Storage types of values, where they differ from their element types.
    storage_types: RefCell<HashMap<&'a str, StorageType>>,
    /// The elements of sequences, see `sequences`.
    lists: RefCell<HashMap<&'a str, Vec<Value>>>,
    depth: usize,
    /// In the graph of a branch or loop: the enclosing graph, and the values captured from it.
    outer: Option<RefCell<Graph>>,
    captured: RefCell<Captured>,
}

impl<'s, 'a> NameScope<'s, 'a> {
    /// The scope of the main graph.
    pub(crate) fn new(
        context: &'s Context<'a>,
        opsets: &'a [OperatorSetIdProto],
        graph: &'a GraphProto,
    ) -> Result<NameScope<'s, 'a>> {
        let scope = NameScope {
            context,
            parent: None,
            enclosing: None,
            opsets,
            attributes: Vec::new(),
            initializers: initializers(graph)?,
            values: RefCell::default(),
            storage_types: RefCell::default(),
            lists: RefCell::default(),
            depth: 0,
            outer: None,
            captured: RefCell::default(),
        };
        Ok(scope)
    }

    fn inner<'t>(&'t self) -> Result<NameScope<'t, 'a>>
    where
        's: 't,
    {
        if self.depth == MAX_DEPTH {
            let message = format!("graphs and functions nested deeper than {MAX_DEPTH}");
            return Err(Error::new(ErrorKind::Limit, message));
        }
        Ok(NameScope {
            context: self.context,
            parent: Some(self),
            enclosing: Some(self),
            opsets: self.opsets,
            attributes: self.attributes.clone(),
            initializers: HashMap::new(),
            values: RefCell::default(),
            storage_types: RefCell::default(),
            lists: RefCell::default(),
            depth: self.depth + 1,
            outer: None,
            captured: RefCell::default(),
        })
    }

    /// A scope inside this one, with these initializers.
    pub(crate) fn within<'t>(
        &'t self,
        initializers: HashMap<&'a str, &'a TensorProto>,
    ) -> Result<NameScope<'t, 'a>>
    where
        's: 't,
    {
        Ok(NameScope { initializers, ..self.inner()? })
    }

    /// Whether this scope has an enclosing one.
    pub(crate) fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Records that the current node failed because its branches have no common type.
    pub(crate) fn set_needs_split(&self) {
        self.context.needs_split.set(true);
    }

    /// The files of the model.
    pub(crate) fn files(&self) -> &Files {
        self.context.files
    }
}

pub(crate) fn initializers(graph: &GraphProto) -> Result<HashMap<&str, &TensorProto>> {
    if !graph.sparse_initializer.is_empty() {
        return Err(Error::unsupported("sparse initializers"));
    }
    let mut found = HashMap::new();
    for tensor in &graph.initializer {
        if found.insert(tensor.name.as_str(), tensor).is_some() {
            return Err(Error::invalid(format!("initializer `{}` is given twice", tensor.name)));
        }
    }
    Ok(found)
}
