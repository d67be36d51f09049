//! Import of the nodes of a scope: operators, function calls and custom operators.
//!
//! Nodes are imported in an order in which every name is defined before it is used, whatever their order in the file.

use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::{Graph, Value},
    import::{
        constant,
        custom::{
            apply::apply,
            declaration::Custom,
            suggest::{self, TensorType},
        },
        model::{
            domain::same_domain,
            order::{order, title},
            proto::{AttributeProto, FunctionProto, NodeProto},
            storage_type::StorageType,
            types, weights,
        },
        node::{CallArgument, OnnxNode},
        ops,
        scope::{NameScope, refusals::Refusals},
    },
};
use symshape::Dim;

/// Maximum number of nodes after functions are inlined. A hostile file could double them with every function.
const MAX_NODES: usize = 1 << 20;
/// The newest opset that the operator table was checked against.
const NEWEST_OPSET: i64 = 27;

/// The domain of convolutions over channels in blocks of one machine's vector length.
const BLOCKED_CHANNELS: &str = "com.microsoft.nchwc";

/// A result of a node.
enum NodeOutput {
    /// A tensor, and its storage type if that differs from its element type.
    Tensor(Value, Option<StorageType>),
    List(Vec<Value>),
    /// Not computed.
    Nothing,
}

impl NodeOutput {
    fn new(value: Option<Value>, storage_type: Option<StorageType>) -> NodeOutput {
        value.map_or(NodeOutput::Nothing, |value| NodeOutput::Tensor(value, storage_type))
    }
}

impl<'a> NameScope<'_, 'a> {
    /// Imports `nodes` in this order and returns the values `outputs`.
    pub(crate) fn sequence(
        &self,
        g: &mut Graph,
        nodes: &[&'a NodeProto],
        outputs: &[&'a str],
    ) -> Result<Vec<Value>> {
        for (k, node) in nodes.iter().enumerate() {
            g.origin = title(node);
            let result = if self.context.refusals.borrow().affect(node) {
                self.context.refusals.borrow_mut().skip(node);
                self.known(g, node)
            } else {
                self.node(g, node)
            };
            if result.is_err() && self.context.needs_split.take() {
                return self.split_at_branch(g, node, &nodes[k + 1..], outputs).at(|| title(node));
            }
            match result {
                Err(error) if self.depth == 0 && Refusals::is_refusal(&error) => {
                    let mut refusals = self.context.refusals.borrow_mut();
                    refusals.skip(node);
                    refusals.add(node, error);
                }
                // After a refusal, another error may be its consequence.
                Err(_) if self.depth == 0 && self.context.refusals.borrow().any() => {
                    self.context.refusals.borrow_mut().skip(node);
                }
                result => result.at(|| title(node))?,
            }
        }

        if self.depth == 0
            && let Some(error) = self.context.refusals.borrow_mut().take_error()
        {
            return Err(error);
        }
        outputs.iter().map(|name| self.value(g, name).at(|| "outputs")).collect()
    }

    /// `nodes` in an order in which every name is defined before it is used.
    pub(crate) fn order(&self, node_count: &'a [NodeProto]) -> Result<Vec<&'a NodeProto>> {
        order(node_count, &|name| self.initializers.contains_key(name))
    }

    fn node(&self, g: &mut Graph, proto: &'a NodeProto) -> Result<()> {
        self.context.node_count.set(self.context.node_count.get() + 1);
        if self.context.node_count.get() > MAX_NODES {
            return Err(Error::new(ErrorKind::Limit, format!("more than {MAX_NODES} nodes")));
        }

        let outputs = match (self.custom_of(proto), self.function_of(proto)) {
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
            let has = outputs.len();
            let named = proto.output.len();
            return Err(Error::invalid(format!(
                "{} has {has} outputs, but the node names {named}",
                proto.op_type
            )));
        }

        for (name, result) in proto.output.iter().zip(outputs).filter(|(name, _)| !name.is_empty()) {
            let (value, storage_type) = match result {
                NodeOutput::Tensor(value, storage_type) => (value, storage_type),
                NodeOutput::List(list) => {
                    self.define_list(name, list)?;
                    continue;
                }
                NodeOutput::Nothing => {
                    return Err(Error::unsupported(format!("output `{name}` of {}", proto.op_type)));
                }
            };

            if self.parent.is_none()
                && let Some(declared) = self.context.declared.get(name.as_str())
            {
                types::check(g, value, storage_type, declared, self.context.strict)
                    .at(|| format!("`{name}`"))?;
            }

            self.define(name, value)?;
            self.set_storage_type(name, storage_type);
        }

        Ok(())
    }

    /// The custom operator that the caller declares for a node.
    fn custom_of(&self, proto: &NodeProto) -> Option<&'a Custom> {
        self.context.customs.iter().rev().find(|custom| custom.is(&proto.domain, &proto.op_type))
    }

    /// The function of the model that a node calls.
    fn function_of(&self, proto: &NodeProto) -> Option<&'a FunctionProto> {
        self.context.functions.iter().find(|function| {
            same_domain(&function.domain, &proto.domain)
                && function.name == proto.op_type
                && function.overload == proto.overload
        })
    }

    fn operator(&self, g: &mut Graph, proto: &'a NodeProto) -> Result<Vec<NodeOutput>> {
        let opset = self.opset(&proto.domain)?;
        let Some(row) = ops::find(&proto.domain, &proto.op_type, opset) else {
            return Err(self.unknown_operator(g, proto, opset));
        };

        let node = OnnxNode::new(proto, opset, self, g)?;
        let outputs = (row.import)(g, &node)?;
        node.finish(row.traits)?;
        if let Some(list) = node.take_output_list() {
            return Ok(vec![NodeOutput::List(list)]);
        }

        let resolved =
            outputs.0.into_iter().map(|value| value.map(|value| constant::resolved(g, value)).transpose());
        resolved.map(|value| Ok(NodeOutput::new(value?, node.output_type()))).collect()
    }

    /// Checks that the operator of a node is known, if the node itself can't be imported.
    fn known(&self, g: &mut Graph, proto: &NodeProto) -> Result<()> {
        let is_declared = self.custom_of(proto).is_some() || self.function_of(proto).is_some();
        let opset = self.opset(&proto.domain)?;
        if is_declared || ops::find(&proto.domain, &proto.op_type, opset).is_some() {
            return Ok(());
        }
        Err(self.unknown_operator(g, proto, opset))
    }

    /// The error for a node of an unknown operator, with a declaration to copy.
    fn unknown_operator(&self, g: &mut Graph, proto: &NodeProto, opset: i64) -> Error {
        let name = &proto.op_type;
        if proto.domain == BLOCKED_CHANNELS {
            return Error::unsupported(format!(
                "op {BLOCKED_CHANNELS}::{name}: ONNX Runtime's optimiser wrote this model for the vectors of one \
                 machine; save it with the optimisation level \"extended\" (ORT_ENABLE_EXTENDED) instead of \"all\""
            ));
        }
        let operator = if same_domain(&proto.domain, "") {
            format!("{name} (opset {opset})")
        } else {
            format!("{}::{name} (opset {opset})", proto.domain)
        };

        let inputs = proto.input.iter().map(|input| self.type_of(g, input));
        let inputs: Vec<Option<TensorType>> = inputs.collect();
        let outputs = proto.output.iter().map(|output| self.declared_type(g, output));
        let outputs: Vec<Option<TensorType>> = outputs.collect();
        let declaration = suggest::declaration(proto, &inputs, &outputs);
        let head =
            if same_domain(&proto.domain, "") { name.clone() } else { format!("{}:{name}", proto.domain) };
        let declaration = declaration.unwrap_or_else(|| format!("{head}(…) -> … = FUNCTION"));
        Error::unsupported(format!(
            "op {operator}; --custom \"{declaration}\" binds it to a function of yours, see docs/custom-ops.md"
        ))
    }

    /// The type of a value, if it is a tensor that is defined or declared.
    fn type_of(&self, g: &mut Graph, name: &str) -> Option<TensorType> {
        if self.storage_type(name).is_some() {
            return None;
        }
        match self.value(g, name) {
            Ok(value) => Some(TensorType { dtype: g.dtype(value), shape: g.shape(value).to_vec() }),
            Err(_) => self.declared_type(g, name),
        }
    }

    /// The type that the model declares for a value, if all its dims are known.
    fn declared_type(&self, g: &Graph, name: &str) -> Option<TensorType> {
        let shape = self.declared(g, name)?.into_iter().collect::<Option<Vec<Dim>>>()?;
        let code = self.context.declared.get(name)?.tensor_type.as_ref()?.elem_type;
        Some(TensorType { dtype: weights::dtype(code).ok()?, shape })
    }

    fn custom(&self, g: &mut Graph, proto: &'a NodeProto, custom: &Custom) -> Result<Vec<NodeOutput>> {
        let node = OnnxNode::new(proto, self.opset(&proto.domain)?, self, g)?;
        let outputs = apply(g, &node, custom)?;
        node.finish(&[])?;
        Ok(outputs.0.into_iter().map(|value| NodeOutput::new(value, None)).collect())
    }

    pub(crate) fn opset(&self, domain: &str) -> Result<i64> {
        let found = self.opsets.iter().find(|opset| same_domain(&opset.domain, domain));
        match found {
            Some(opset) if same_domain(domain, "") && opset.version > NEWEST_OPSET => Err(
                Error::unsupported(format!("opset {} (the newest known is {NEWEST_OPSET})", opset.version)),
            ),
            Some(opset) => Ok(opset.version),
            // Contrib operators have one version, and exporters forget to import their domain.
            None if !same_domain(domain, "") => Ok(1),
            None => Err(Error::invalid("the model imports no version of the default operator set")),
        }
    }

    /// Inlines the body of `function`.
    fn call(
        &self,
        g: &mut Graph,
        function: &'a FunctionProto,
        inputs: &[CallArgument],
        mut attributes: Vec<(&'a str, &'a AttributeProto)>,
    ) -> Result<Vec<NodeOutput>> {
        for default in &function.attribute_proto {
            if !attributes.iter().any(|(name, _)| *name == default.name) {
                attributes.push((&default.name, default));
            }
        }

        if inputs.len() > function.input.len() {
            let max = function.input.len();
            let have = inputs.len();
            return Err(Error::invalid(format!(
                "function {} takes at most {max} inputs, got {have}",
                function.name
            )));
        }

        // A body sees only the arguments of its call.
        let mut scope = NameScope { parent: None, attributes, ..self.inner()? };
        if !function.opset_import.is_empty() {
            scope.opsets = &function.opset_import;
        }

        for (name, value) in function.input.iter().zip(inputs) {
            if let Some((value, storage_type)) = value {
                scope.define(name, *value)?;
                scope.set_storage_type(name, *storage_type);
            }
        }

        let outputs = || function.output.iter().map(String::as_str);
        let values = scope.run(g, &function.node, outputs())?;
        let made = |(value, name): (Value, &str)| NodeOutput::Tensor(value, scope.storage_type(name));
        Ok(values.into_iter().zip(outputs()).map(made).collect())
    }

    /// Imports `nodes` in a valid order and returns the values `outputs`.
    pub(crate) fn run(
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
