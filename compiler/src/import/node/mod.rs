//! An ONNX node as operator functions see it: typed inputs and attributes, and a record of those that were read.
//!
//! An attribute or input that no operator function reads is an error. Otherwise it could change the result unnoticed.
//! Inputs such as shapes, axes and pads are read as the symbolic contents of their value.

mod attributes;
pub(crate) mod axes;
mod contents;
mod data_dependent;
mod sequences;
pub(crate) mod traits;

use crate::{
    error::{At, Error, Result},
    graph::{Graph, Value},
    import::{
        model::{
            proto::{AttributeProto, NodeProto},
            storage_type::StorageType,
        },
        scope::{
            NameScope,
            regions::{Origin, Region},
        },
    },
};
use std::cell::{Cell, RefCell};
use symshape::{Dim, Symbol};
use traits::Trait;

/// Attributes without an effect: an optimisation hint of operator set 1.
const IGNORED: [&str; 1] = ["consumed_inputs"];

/// An argument of a function call. `None` is a missing argument.
pub(crate) type CallArgument = Option<(Value, Option<StorageType>)>;

/// A node being imported.
pub(crate) struct OnnxNode<'s, 'a> {
    /// The operator's name.
    pub(crate) op: &'a str,
    /// The opset version of the node's domain.
    pub(crate) opset: i64,
    /// The scope of the node, for its subgraphs.
    pub(crate) scope: &'s NameScope<'s, 'a>,
    inputs: Vec<NodeInput>,
    outputs: &'a [String],
    attributes: Vec<Attribute<'a>>,
    output_type: Cell<Option<StorageType>>,
    /// The elements of output 0, if it is a sequence.
    output_list: RefCell<Option<Vec<Value>>>,
}

struct NodeInput {
    value: Option<Value>,
    /// The elements, if it is a sequence.
    list: Option<Vec<Value>>,
    read: Cell<bool>,
    /// The ONNX element type, where the value stores it in another type.
    storage_type: Option<StorageType>,
    /// The operator has read that type, and so handles it.
    is_checked: Cell<bool>,
}

struct Attribute<'a> {
    name: &'a str,
    proto: &'a AttributeProto,
    read: Cell<bool>,
}

impl<'s, 'a> OnnxNode<'s, 'a> {
    /// The node `proto` in `scope`. All its names are looked up.
    pub(crate) fn new(
        proto: &'a NodeProto,
        opset: i64,
        scope: &'s NameScope<'s, 'a>,
        g: &mut Graph,
    ) -> Result<OnnxNode<'s, 'a>> {
        let mut inputs = Vec::new();
        for name in &proto.input {
            let list = scope.list(g, name)?;
            let is_tensor = !name.is_empty() && list.is_none();
            let value = if is_tensor { Some(scope.value(g, name)?) } else { None };
            let storage_type = value.and_then(|_| scope.storage_type(name));
            inputs.push(NodeInput {
                value,
                list,
                read: Cell::new(false),
                storage_type,
                is_checked: Cell::new(false),
            });
        }

        while inputs.last().is_some_and(|input| input.value.is_none() && input.list.is_none()) {
            inputs.pop();
        }

        let mut attributes: Vec<Attribute> = Vec::new();
        for proto in &proto.attribute {
            // In a function, an attribute may refer to an attribute of the call. If the call lacks it, it is absent.
            let Some(value) = scope.attribute(proto) else { continue };
            if attributes.iter().any(|other| other.name == proto.name) {
                return Err(Error::invalid(format!("attribute `{}` is given twice", proto.name)));
            }
            let read = IGNORED.contains(&proto.name.as_str());
            attributes.push(Attribute { name: &proto.name, proto: value, read: Cell::new(read) });
        }

        let outputs = &proto.output;
        let output_type = Cell::new(None);
        let output_list = RefCell::new(None);

        Ok(OnnxNode {
            op: &proto.op_type,
            opset,
            scope,
            inputs,
            outputs,
            attributes,
            output_type,
            output_list,
        })
    }

    /// Checks that every attribute and input was read, and sets the element types of the outputs.
    pub(crate) fn finish(&self, traits: &[Trait]) -> Result<()> {
        if let Some(attribute) = self.attributes.iter().find(|attribute| !attribute.read.get()) {
            return Err(Error::invalid(format!(
                "unknown attribute `{}` for {} (opset {})",
                attribute.name, self.op, self.opset
            )));
        }

        self.refuse_lists()?;
        let unread = |input: &NodeInput| input.value.is_some() && !input.read.get();
        if let Some(k) = self.inputs.iter().position(unread) {
            return Err(self.surplus_input(k));
        }

        self.pass_storage_type(traits)
    }

    /// The error for input `k`, the first one that the operator has not read.
    fn surplus_input(&self, k: usize) -> Error {
        let op = self.op;
        let opset = self.opset;
        let count = self.inputs.len();
        let rest_is_unread = self.inputs[k..].iter().all(|input| input.value.is_none() || !input.read.get());

        if rest_is_unread {
            let inputs = if k == 1 { "input" } else { "inputs" };
            Error::invalid(format!("{op} (opset {opset}) takes at most {k} {inputs}, got {count}"))
        } else {
            Error::invalid(format!("{op} (opset {opset}) does not take an input {k} here"))
        }
    }

    /// Passes the storage type of the inputs to the outputs, if the operator moves elements. Other operators must have
    /// read it.
    fn pass_storage_type(&self, traits: &[Trait]) -> Result<()> {
        let unknown = || {
            self.inputs.iter().filter(|input| !input.is_checked.get()).filter_map(|input| input.storage_type)
        };
        let Some(first) = unknown().next() else { return Ok(()) };

        let moves = traits.contains(&Trait::MovesElements);
        if !moves && !traits.contains(&Trait::IgnoresElements) {
            return Err(Error::unsupported(format!("{} of {}", self.op, first.name())));
        }
        if unknown().any(|storage_type| storage_type != first) {
            return Err(Error::invalid(format!("the inputs of {} must have the same element type", self.op)));
        }

        if moves {
            self.output_type.set(Some(first));
        }

        Ok(())
    }

    /// The storage type of input `k`, if it differs from the element type of its value.
    pub(crate) fn storage_type(&self, k: usize) -> Option<StorageType> {
        let input = self.inputs.get(k)?;
        input.is_checked.set(true);
        input.storage_type
    }

    /// Sets the storage type of the outputs.
    pub(crate) fn set_output_type(&self, storage_type: StorageType) {
        self.output_type.set(Some(storage_type));
    }

    /// The storage type of the outputs, if it differs from the element type of their values.
    pub(crate) fn output_type(&self) -> Option<StorageType> {
        self.output_type.get()
    }

    /// All attributes, for calls of functions; they count as read.
    pub(crate) fn take_attributes(&self) -> Vec<(&'a str, &'a AttributeProto)> {
        self.attributes
            .iter()
            .inspect(|attribute| attribute.read.set(true))
            .map(|a| (a.name, a.proto))
            .collect()
    }

    /// All inputs, for calls of functions; they count as read.
    pub(crate) fn take_inputs(&self) -> Result<Vec<CallArgument>> {
        self.refuse_lists()?;
        Ok((0..self.inputs.len()).map(|k| Some((self.optional(k)?, self.storage_type(k)))).collect())
    }

    /// Input `k`, which must be present.
    pub(crate) fn input(&self, k: usize) -> Result<Value> {
        let missing = || match self.refuse_lists() {
            Ok(()) => Error::invalid(format!("{} needs input {k}, which is missing", self.op)),
            Err(refused) => refused,
        };
        self.optional(k).ok_or_else(missing)
    }

    /// Input `k`, if it is present.
    pub(crate) fn optional(&self, k: usize) -> Option<Value> {
        let input = self.inputs.get(k)?;
        input.read.set(input.list.is_none());
        input.value
    }

    /// All inputs. There must be at least one, and all must be present.
    pub(crate) fn all(&self) -> Result<Vec<Value>> {
        (0..self.inputs.len().max(1)).map(|k| self.input(k)).collect()
    }

    /// The number of inputs up to the last one that is present.
    pub(crate) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// The number of outputs that the node lists, including unused ones.
    pub(crate) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Whether the node names its output `k`.
    pub(crate) fn wants(&self, k: usize) -> bool {
        self.outputs.get(k).is_some_and(|name| !name.is_empty())
    }

    /// The dims that the model declares for output `k`, see [`NameScope::declared`].
    pub(crate) fn declared(&self, g: &Graph, k: usize) -> Option<Vec<Option<Dim>>> {
        self.scope.declared(g, self.outputs.get(k)?)
    }

    /// A new data-dependent symbol of this node.
    pub(crate) fn fresh(&self, g: &Graph) -> Symbol {
        self.scope.fresh(g, self.op)
    }

    /// The symbol that the model declares as the size of axis `axis` of output 0, if it has no other use.
    pub(crate) fn declared_symbol(&self, g: &Graph, axis: usize) -> Option<Symbol> {
        self.scope.declared_symbol(g, self.outputs.first()?, axis)
    }

    /// The graph attribute `name` as a region. `inputs` creates the values of its inputs.
    pub(crate) fn region(
        &self,
        g: &mut Graph,
        name: &str,
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Origin>>,
    ) -> Result<Region> {
        self.scope.region(g, self.graph(name)?, inputs).at(|| format!("{name} of {}", self.op))
    }

    /// The result of the graph attribute `name`, a function of one value, inlined.
    pub(crate) fn applied(&self, g: &mut Graph, name: &str, x: Value) -> Result<Value> {
        let results = self.scope.applied(g, self.graph(name)?, x).at(|| format!("{name} of {}", self.op))?;
        results
            .first()
            .copied()
            .ok_or_else(|| Error::invalid(format!("the graph `{name}` must have an output")))
    }

    /// The results of the graph attribute `name`, inlined.
    pub(crate) fn branch(&self, g: &mut Graph, name: &str) -> Result<Vec<Value>> {
        self.scope.branch(g, self.graph(name)?).at(|| format!("{name} of {}", self.op))
    }
}
