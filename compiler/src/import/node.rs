//! One ONNX node as operator functions see it: typed inputs and attributes, and a record of what was read.
//!
//! An attribute or input that is there and that nobody reads is an error: it would change the meaning unnoticed.
//! Inputs of which an operator needs the value (shapes, axes, pads) are read as the symbolic contents of the value.

use super::{
    proto::{AttributeProto, GraphProto, NodeProto},
    scope::{Origin, Region, Scope},
    storage_type::Narrow,
    weights,
};
use crate::{
    error::{At, Error, Result},
    graph::{Graph, Value},
    tensor::Tensor,
};
use std::cell::{Cell, RefCell};
use symshape::{Dim, Symbol};

/// The kinds of attributes by ONNX's codes, with the words for messages.
const KINDS: [&str; 9] =
    ["nothing", "a float", "an integer", "a string", "a tensor", "a graph", "floats", "integers", "strings"];
const FLOAT: i32 = 1;
const INT: i32 = 2;
const STRING: i32 = 3;
const TENSOR: i32 = 4;
const GRAPH: i32 = 5;
const FLOATS: i32 = 6;
const INTS: i32 = 7;
const STRINGS: i32 = 8;

/// Attributes that say nothing: an optimisation hint of operator set 1.
const IGNORED: [&str; 1] = ["consumed_inputs"];

/// Operators that move elements, whatever type they have: the results are of the inputs' type.
const MOVERS: [&str; 15] = [
    "Concat",
    "DepthToSpace",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
];
/// Operators that don't look at elements at all.
const SHAPES: [&str; 2] = ["Shape", "Size"];

/// What a call is given: a value, if there is one, and the type of its elements if they are stored only.
pub(super) type Given = Option<(Value, Option<Narrow>)>;

/// A node being imported.
pub(super) struct OnnxNode<'s, 'a> {
    /// The operator's name.
    pub op: &'a str,
    /// Version of the operator set of the node's domain.
    pub opset: i64,
    /// The names around the node, for its subgraphs.
    pub(super) scope: &'s Scope<'s, 'a>,
    pub(super) inputs: Vec<Input>,
    outputs: &'a [String],
    attributes: Vec<Attribute<'a>>,
    makes: Cell<Option<Narrow>>,
    /// The elements of output 0, if it is a sequence.
    pub(super) makes_list: RefCell<Option<Vec<Value>>>,
}

pub(super) struct Input {
    value: Option<Value>,
    /// The elements, if it is a sequence.
    pub(super) list: Option<Vec<Value>>,
    pub(super) read: Cell<bool>,
    /// The type of what the value holds, where that is not its own.
    narrow: Option<Narrow>,
    /// The operator has asked for that.
    known: Cell<bool>,
}

struct Attribute<'a> {
    name: &'a str,
    proto: &'a AttributeProto,
    read: Cell<bool>,
}

impl<'s, 'a> OnnxNode<'s, 'a> {
    /// The node `proto` inside `scope`, all of whose names are looked up.
    pub(super) fn new(
        proto: &'a NodeProto,
        opset: i64,
        scope: &'s Scope<'s, 'a>,
        g: &mut Graph,
    ) -> Result<OnnxNode<'s, 'a>> {
        let mut inputs = Vec::new();
        for name in &proto.input {
            let list = scope.list(g, name)?;
            let is_tensor = !name.is_empty() && list.is_none();
            let value = if is_tensor { Some(scope.value(g, name)?) } else { None };
            let narrow = value.and_then(|_| scope.narrow(name));
            inputs.push(Input { value, list, read: Cell::new(false), narrow, known: Cell::new(false) });
        }
        while inputs.last().is_some_and(|input| input.value.is_none() && input.list.is_none()) {
            inputs.pop();
        }
        let mut attributes: Vec<Attribute> = Vec::new();
        for proto in &proto.attribute {
            // Inside a function, an attribute may stand for one of the call's; if the call lacks it, it is absent.
            let Some(value) = scope.attribute(proto) else { continue };
            if attributes.iter().any(|other| other.name == proto.name) {
                return Err(Error::invalid(format!("two attributes are called `{}`", proto.name)));
            }
            let read = IGNORED.contains(&proto.name.as_str());
            attributes.push(Attribute { name: &proto.name, proto: value, read: Cell::new(read) });
        }
        let outputs = &proto.output;
        let (makes, makes_list) = (Cell::new(None), RefCell::new(None));
        Ok(OnnxNode { op: &proto.op_type, opset, scope, inputs, outputs, attributes, makes, makes_list })
    }

    /// Everything that the node says has been read.
    pub(super) fn finish(&self) -> Result<()> {
        if let Some(attribute) = self.attributes.iter().find(|attribute| !attribute.read.get()) {
            return Err(Error::invalid(format!(
                "attribute `{}` means nothing to {} (opset {})",
                attribute.name, self.op, self.opset
            )));
        }
        self.refuse_lists()?;
        let unread = |input: &Input| input.value.is_some() && !input.read.get();
        if let Some(k) = self.inputs.iter().position(unread) {
            return Err(Error::invalid(format!(
                "{} (opset {}) has no use for its input {k}; it has {} inputs",
                self.op,
                self.opset,
                self.inputs.len()
            )));
        }
        self.pass_narrow()
    }

    /// Results of operators that move elements are of the inputs' type; others must have asked for it.
    fn pass_narrow(&self) -> Result<()> {
        let unknown =
            || self.inputs.iter().filter(|input| !input.known.get()).filter_map(|input| input.narrow);
        let Some(first) = unknown().next() else { return Ok(()) };
        let moves = MOVERS.contains(&self.op);
        if !moves && !SHAPES.contains(&self.op) {
            return Err(Error::unsupported(format!("{} of {}", self.op, first.name())));
        }
        if unknown().any(|narrow| narrow != first) {
            return Err(Error::invalid(format!("{} of two element types", self.op)));
        }
        if moves {
            self.makes.set(Some(first));
        }
        Ok(())
    }

    /// The type of input `k` if its elements are stored in another form than they are computed with.
    pub(super) fn narrow(&self, k: usize) -> Option<Narrow> {
        let input = self.inputs.get(k)?;
        input.known.set(true);
        input.narrow
    }

    /// The results hold elements of this type.
    pub(super) fn make(&self, narrow: Narrow) {
        self.makes.set(Some(narrow));
    }

    /// The type that the results hold, if it is not their own.
    pub(super) fn made(&self) -> Option<Narrow> {
        self.makes.get()
    }

    /// The attributes as they stand, for calls of functions; they count as read.
    pub(super) fn take_attributes(&self) -> Vec<(&'a str, &'a AttributeProto)> {
        self.attributes
            .iter()
            .inspect(|attribute| attribute.read.set(true))
            .map(|a| (a.name, a.proto))
            .collect()
    }

    /// The inputs as they stand, for calls of functions; they count as read.
    pub(super) fn take_inputs(&self) -> Result<Vec<Given>> {
        self.refuse_lists()?;
        Ok((0..self.inputs.len()).map(|k| Some((self.optional(k)?, self.narrow(k)))).collect())
    }

    /// Input `k`, which must be there.
    pub(super) fn input(&self, k: usize) -> Result<Value> {
        let missing = || match self.refuse_lists() {
            Ok(()) => Error::invalid(format!("{} needs an input {k}", self.op)),
            Err(refused) => refused,
        };
        self.optional(k).ok_or_else(missing)
    }

    /// Input `k` if it is there.
    pub(super) fn optional(&self, k: usize) -> Option<Value> {
        let input = self.inputs.get(k)?;
        input.read.set(input.list.is_none());
        input.value
    }

    /// All inputs, at least one and each there.
    pub(super) fn all(&self) -> Result<Vec<Value>> {
        (0..self.inputs.len().max(1)).map(|k| self.input(k)).collect()
    }

    /// Number of inputs up to the last one that is there.
    pub(super) fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// Number of outputs that the node lists, unused ones included.
    pub(super) fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// Whether the node names its output `k`.
    pub(super) fn wants(&self, k: usize) -> bool {
        self.outputs.get(k).is_some_and(|name| !name.is_empty())
    }

    fn attribute(&self, name: &str, kind: i32) -> Result<Option<&'a AttributeProto>> {
        let Some(attribute) = self.attributes.iter().find(|attribute| attribute.name == name) else {
            return Ok(None);
        };
        attribute.read.set(true);
        // Files of the first IR versions leave the kind out.
        if attribute.proto.kind != kind && attribute.proto.kind != 0 {
            let have = KINDS.get(attribute.proto.kind as usize).copied().unwrap_or("something else");
            return Err(Error::invalid(format!(
                "attribute `{name}` is {have}, not {}",
                KINDS[kind as usize]
            )));
        }
        Ok(Some(attribute.proto))
    }

    /// Whether the attribute is there; this doesn't count as reading it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.attributes.iter().any(|attribute| attribute.name == name)
    }

    /// An integer attribute.
    pub(super) fn int(&self, name: &str) -> Result<Option<i64>> {
        Ok(self.attribute(name, INT)?.map(|proto| proto.i))
    }

    /// An integer attribute with a default.
    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// An integer attribute that is 0 or 1.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.int(name)? {
            None => Ok(default),
            Some(value) => Ok(value != 0),
        }
    }

    /// A float attribute.
    pub(super) fn float(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.attribute(name, FLOAT)?.map(|proto| proto.f))
    }

    /// A float attribute with a default.
    pub(super) fn float_or(&self, name: &str, default: f32) -> Result<f64> {
        Ok(f64::from(self.float(name)?.unwrap_or(default)))
    }

    /// A string attribute with a default.
    pub(super) fn string_or(&self, name: &str, default: &'static str) -> Result<&'a str> {
        match self.attribute(name, STRING)? {
            None => Ok(default),
            Some(proto) => std::str::from_utf8(&proto.s)
                .map_err(|_| Error::invalid(format!("attribute `{name}` is not UTF-8"))),
        }
    }

    /// A string attribute as it stands.
    pub(super) fn bytes(&self, name: &str) -> Result<Option<&'a [u8]>> {
        Ok(self.attribute(name, STRING)?.map(|proto| &proto.s[..]))
    }

    /// An attribute that is a list of integers.
    pub(super) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        Ok(self.attribute(name, INTS)?.map(|proto| proto.ints.clone()))
    }

    /// An attribute that is a list of floats.
    pub(super) fn floats(&self, name: &str) -> Result<Option<Vec<f32>>> {
        Ok(self.attribute(name, FLOATS)?.map(|proto| proto.floats.clone()))
    }

    /// An attribute that is a list of strings.
    pub(super) fn strings(&self, name: &str) -> Result<Option<Vec<String>>> {
        let Some(proto) = self.attribute(name, STRINGS)? else { return Ok(None) };
        let text = |bytes: &prost::bytes::Bytes| String::from_utf8(bytes.to_vec());
        let texts: Result<Vec<String>, _> = proto.strings.iter().map(text).collect();
        texts.map(Some).map_err(|_| Error::invalid(format!("attribute `{name}` is not UTF-8")))
    }

    /// A tensor attribute; what is of its elements is of its type.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(proto) = self.attribute(name, TENSOR)? else { return Ok(None) };
        let proto =
            proto.t.as_ref().ok_or_else(|| Error::invalid(format!("attribute `{name}` holds no tensor")))?;
        self.makes.set(Narrow::from_code(proto.data_type));
        weights::tensor(proto, self.scope.files()).map(Some)
    }

    /// A graph attribute, which must be there.
    pub(super) fn graph(&self, name: &str) -> Result<&'a GraphProto> {
        let proto = self.attribute(name, GRAPH)?.and_then(|proto| proto.g.as_ref());
        proto.ok_or_else(|| Error::invalid(format!("{} needs the graph `{name}`", self.op)))
    }

    /// The attribute `axis` as an axis of `x`.
    pub(super) fn axis(&self, g: &Graph, x: Value, default: Option<i64>) -> Result<usize> {
        let axis = self.int("axis")?.or(default);
        let axis = axis.ok_or_else(|| Error::invalid(format!("{} needs the attribute `axis`", self.op)))?;
        normal_axis(axis, g.rank(x))
    }

    /// Axes of a tensor of `rank` axes from the attribute `axes` or from input `k`, in the given order.
    pub(super) fn axes(&self, g: &Graph, k: usize, rank: usize) -> Result<Option<Vec<usize>>> {
        let axes = match (self.ints("axes")?, self.optional(k)) {
            (Some(axes), None) => axes,
            (None, Some(_)) => self.numbers(g, k)?,
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => return Err(Error::invalid("axes are given twice")),
        };
        normal_axes(&axes, rank).map(Some)
    }

    /// The elements of input `k`, an integer tensor of at most one axis, as expressions.
    ///
    /// # Errors
    /// They are known only at run time.
    pub(super) fn dims(&self, g: &Graph, k: usize) -> Result<Vec<Dim>> {
        let value = self.input(k)?;
        if g.rank(value) > 1 {
            return Err(Error::invalid(format!("input {k} has {} axes where 1 is meant", g.rank(value))));
        }
        g.contents(value).map(<[Dim]>::to_vec).ok_or_else(|| {
            Error::unsupported(format!("{}: the value of input {k} is known only at run time", self.op))
        })
    }

    /// As [`OnnxNode::dims`], for numbers.
    pub(super) fn numbers(&self, g: &Graph, k: usize) -> Result<Vec<i64>> {
        let number = |dim: &Dim| {
            dim.as_i64().ok_or_else(|| {
                Error::unsupported(format!("{}: input {k} holds {dim}, not a number", self.op))
            })
        };
        self.dims(g, k)?.iter().map(number).collect()
    }

    /// The one element of input `k` as an expression.
    pub(super) fn dim(&self, g: &Graph, k: usize) -> Result<Dim> {
        match self.dims(g, k)?.as_slice() {
            [dim] => Ok(dim.clone()),
            other => Err(Error::invalid(format!("input {k} has {} elements where 1 is meant", other.len()))),
        }
    }

    /// The constant tensor that `value` is.
    ///
    /// # Errors
    /// It depends on inputs or symbols.
    pub(super) fn constant(&self, g: &Graph, value: Value, what: &str) -> Result<Tensor> {
        super::constant::value_of(g, value)
            .at(|| what.to_string())?
            .ok_or_else(|| Error::unsupported(format!("{}: {what} is known only at run time", self.op)))
    }

    /// The dims that the model declares for output `k`, see [`Scope::declared`].
    pub(super) fn declared(&self, g: &Graph, k: usize) -> Option<Vec<Option<Dim>>> {
        self.scope.declared(g, self.outputs.get(k)?)
    }

    /// A symbol for what this node finds while running.
    pub(super) fn fresh(&self, g: &Graph) -> Symbol {
        self.scope.fresh(g, self.op)
    }

    /// The symbol that the model names as the size of axis `axis` of output 0, if it is of no other use.
    pub(super) fn declared_symbol(&self, g: &Graph, axis: usize) -> Option<Symbol> {
        self.scope.declared_symbol(g, self.outputs.first()?, axis)
    }

    /// The graph attribute `name` as a region; `inputs` makes the values of its inputs.
    pub(super) fn region(
        &self,
        g: &mut Graph,
        name: &str,
        inputs: impl FnOnce(&mut Graph) -> Result<Vec<Origin>>,
    ) -> Result<Region> {
        self.scope.region(g, self.graph(name)?, inputs).at(|| format!("{name} of {}", self.op))
    }

    /// The result of the graph attribute `name`, a function of one value, in place.
    pub(super) fn applied(&self, g: &mut Graph, name: &str, x: Value) -> Result<Value> {
        let results = self.scope.applied(g, self.graph(name)?, x).at(|| format!("{name} of {}", self.op))?;
        results.first().copied().ok_or_else(|| Error::invalid(format!("`{name}` gives nothing")))
    }

    /// The results of the graph attribute `name`, imported in place.
    pub(super) fn branch(&self, g: &mut Graph, name: &str) -> Result<Vec<Value>> {
        self.scope.branch(g, self.graph(name)?).at(|| format!("{name} of {}", self.op))
    }
}

/// `axis` counted from the start.
///
/// # Errors
/// It is none of `rank` axes.
pub(super) fn normal_axis(axis: i64, rank: usize) -> Result<usize> {
    let from_start = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    let found = from_start.and_then(|axis| usize::try_from(axis).ok()).filter(|axis| *axis < rank);
    found.ok_or_else(|| Error::invalid(format!("axis {axis} of a tensor of {rank} axes")))
}

/// Distinct axes counted from the start, in the given order.
///
/// # Errors
/// One of them is none of `rank` axes, or two are the same.
pub(super) fn normal_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let normal: Vec<usize> = axes.iter().map(|axis| normal_axis(*axis, rank)).collect::<Result<_>>()?;
    match normal.iter().enumerate().find(|(k, axis)| normal[..*k].contains(axis)) {
        None => Ok(normal),
        Some((_, axis)) => Err(Error::invalid(format!("axis {axis} is given twice in {axes:?}"))),
    }
}
