//! ONNX → graph: reads a model, applies the caller's declarations, and builds every operator from core operators.
//!
//! The input is a model file or its bytes, and the caller's declarations of symbols and inputs ([`ImportOptions`]). The
//! output is a [`Graph`] whose dims are expressions over declared symbols. Initializers are constants, mapped from the
//! file where possible. Functions are inlined, and branches decided at compile time are gone. [`proto`] is the wire
//! format, [`ops`] the table of operators, one documented function each.

mod constant;
mod custom;
mod model;
mod node;
mod ops;
mod relations;
mod scope;
pub(crate) mod seed;

pub use custom::declaration::Custom;
pub use model::{
    Model,
    options::{
        Bounds, ImportOptions, InputConstant, parse_bind, parse_bounds, parse_dim, parse_dims, parse_input,
        parse_relation,
    },
    proto, read_tensor,
};
pub use relations::notes;

use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::{Graph, Value},
    tensor::Tensor,
};
use model::{
    given_inputs,
    proto::GraphProto,
    storage_type::StorageType,
    types::{self, ModelInput},
};
use node::traits::Trait;
use scope::{Context, NameScope, Seed, bounds::DataDependentBounds};
use seed::{define_seed, remove_unused_seed, seed_name};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
};
use symshape::{Comparison, Facts};

/// The graph of `model` under the call contract that its inputs and `options` declare.
///
/// A symbol without a declaration is replaced by an expression over other symbols if the model's operators require its
/// equality with one; [`notes`] lists these symbols.
///
/// # Errors
/// The model is malformed, contradictory or not supported, or the call contract is incomplete.
pub fn import(model: &Model, options: &ImportOptions) -> Result<Graph> {
    import_named(model, options).map(|(graph, _)| graph)
}

/// A value of a model's main graph.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// The name in the model.
    pub name: String,
    /// The value.
    pub value: Value,
    /// ONNX's name of the element type.
    pub dtype: &'static str,
}

/// As [`import`], with all values of the main graph that were imported, in alphabetical order of their names.
///
/// # Errors
/// As [`import`].
pub(crate) fn import_named(model: &Model, options: &ImportOptions) -> Result<(Graph, Vec<Named>)> {
    let undeclared = types::undeclared(model.proto.graph.as_ref(), options);
    if undeclared.is_empty() || options.unbounded || options.cap.is_some() {
        return build(model, options, options.unbounded);
    }

    // If this import fails, the one below reports the error.
    let unbounded = ImportOptions { unbounded: true, ..options.clone() };
    let mut options = options.clone();
    if let Ok((graph, _)) = build(model, &unbounded, false) {
        options.relations.extend(relations::find(&graph, &undeclared));
    }
    build(model, &options, false)
}

/// The graph of `model`, and its named values. A wrong number of axes in a declared type is an error if `is_strict`.
fn build(model: &Model, options: &ImportOptions, is_strict: bool) -> Result<(Graph, Vec<Named>)> {
    let proto = model.proto.graph.as_ref().ok_or_else(|| Error::invalid("the model has no graph"))?;
    let name = identifier(options.name.as_deref().unwrap_or(&model.name));
    let keeps_state = options.keeps_state;
    let mut g = Graph { name, facts: Facts::new().remembering(), keeps_state, ..Graph::default() };
    let seed = seed_name(model)?;
    let redeclared = is_redeclared(options, seed);

    let context = Context {
        files: &model.files,
        functions: &model.proto.functions,
        customs: &options.customs,
        declared: if redeclared { HashMap::new() } else { declared_types(proto) },
        strict: is_strict,
        same_shape: same_shape(proto),
        node_count: Cell::new(0),
        data_dependent_count: Cell::new(0),
        bounds: DataDependentBounds {
            declared: &options.dims,
            looked_up: RefCell::default(),
            default_max: options.data_dependent_max.or(options.unbounded.then_some(i64::from(i32::MAX))),
        },
        seed: Seed::default(),
        needs_split: Cell::new(false),
        refusals: RefCell::default(),
    };

    let scope = NameScope::new(&context, &model.proto.opset_import, proto)?;
    define_inputs(&mut g, &scope, proto, options, seed)?;
    if let Some(seed) = seed {
        define_seed(&mut g, &context, seed, options)?;
    }
    if proto.output.is_empty() {
        return Err(Error::invalid("the model has no outputs"));
    }

    let outputs: Vec<&str> = proto.output.iter().map(|info| info.name.as_str()).collect();
    let values = scope.sequence(&mut g, &scope.order(&proto.node)?, &outputs)?;
    types::refuse_unknown(&g, options, &context.bounds.looked_up.borrow())?;
    g.origin.clear();

    for (info, value) in proto.output.iter().zip(values) {
        if let Some(declared) = info.ty.as_ref().filter(|_| !redeclared) {
            let storage_type = scope.storage_type(&info.name);
            types::check(&g, value, storage_type, declared, is_strict)
                .at(|| format!("output `{}`", info.name))?;
        }
        g.output(&info.name, value)?;
    }

    remove_unused_seed(&mut g, &context)?;
    let named = |(name, value): (String, Value)| {
        let dtype = scope.storage_type(&name).map_or(g.dtype(value).numpy_name(), StorageType::name);
        Named { name, value, dtype }
    };

    let names = scope.names().into_iter().map(named).collect();
    // Later stages read each weight when they pack it.
    model.files.release();
    Ok((g, names))
}

/// Surprises that don't prevent compilation: sizes that calls must not have because of an operator, and wrong
/// declarations of outputs, since exporters get shapes wrong.
///
/// Without the declared inputs of the model nothing is known, so declarations give no warnings if inputs are
/// re-declared.
pub fn warnings(model: &Model, options: &ImportOptions, graph: &Graph) -> Vec<String> {
    let refused_sizes = graph.constraints.iter().filter(|fact| fact.relation.comparison == Comparison::Ne);
    let refused_sizes: Vec<String> =
        refused_sizes.map(|fact| format!("calls need {}: {}", fact.relation, fact.origin)).collect();
    if is_redeclared(options, seed_name(model).ok().flatten()) {
        return refused_sizes;
    }

    let outputs = model.proto.graph.iter().flat_map(|graph| &graph.output).zip(&graph.outputs);
    let warning = |(info, (name, value)): (&proto::ValueInfoProto, &(String, Value))| {
        let declared = info.ty.as_ref()?.tensor_type.as_ref()?;
        let message = types::contradiction(graph, *value, declared)?;
        Some(format!("output `{name}`: {message}"))
    };

    refused_sizes.into_iter().chain(outputs.filter_map(warning)).collect()
}

/// Whether the caller changes inputs of the model, apart from its seed.
fn is_redeclared(options: &ImportOptions, seed: Option<&str>) -> bool {
    !options.inputs.is_empty() || options.binds.iter().any(|(name, _)| Some(name.as_str()) != seed)
}

fn define_inputs<'a>(
    g: &mut Graph,
    scope: &NameScope<'_, 'a>,
    proto: &'a GraphProto,
    options: &ImportOptions,
    seed: Option<&str>,
) -> Result<()> {
    let names: Vec<&str> = given_inputs(proto).map(|info| info.name.as_str()).collect();
    let named = options.inputs.iter().map(|(name, _)| name).chain(options.binds.iter().map(|(name, _)| name));
    for name in named.filter(|name| seed != Some(name.as_str())) {
        if !names.contains(&name.as_str()) {
            let message = format!("the model has no input `{name}`; it has {}", names.join(", "));
            return Err(Error::new(ErrorKind::Usage, message));
        }
    }

    let mut inputs: Vec<ModelInput> =
        given_inputs(proto).map(|info| types::input(info, options)).collect::<Result<_>>()?;
    types::relate(&mut inputs, options)?;
    let bound = |input: &ModelInput| options.binds.iter().rev().find(|(name, _)| name == input.name);
    let (constants, free): (Vec<ModelInput>, Vec<ModelInput>) =
        inputs.into_iter().partition(|input| bound(input).is_some());
    types::declare_symbols(g, &free, options)?;

    for input in free {
        let value = g.input(input.name, input.dtype, input.shape)?;
        scope.define(input.name, value)?;
        scope.set_storage_type(input.name, input.storage_type);
    }

    for input in constants {
        let (_, value) = bound(&input).expect("the partition above found it");
        let tensor = value.tensor(input.dtype, &input.shape).at(|| format!("--bind {}", input.name))?;
        fits(&tensor, &input).at(|| format!("--bind {}", input.name))?;
        let value = g.constant(tensor)?;
        scope.define(input.name, value)?;
        scope.set_storage_type(input.name, input.storage_type);
    }

    Ok(())
}

fn fits(tensor: &Tensor, input: &ModelInput) -> Result<()> {
    if tensor.dtype() != input.dtype {
        let message = format!("the value is {}, the input {}", tensor.dtype(), input.dtype);
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let same = |(have, dim): (&usize, &symshape::Dim)| dim.as_i64().is_none_or(|dim| dim == *have as i64);
    if tensor.shape().len() != input.shape.len() || !tensor.shape().iter().zip(&input.shape).all(same) {
        let message = format!("the value has shape {:?}, the input {:?}", tensor.shape(), input.shape);
        return Err(Error::new(ErrorKind::Usage, message));
    }
    Ok(())
}

fn declared_types(graph: &GraphProto) -> HashMap<&str, &proto::TypeProto> {
    let infos = graph.value_info.iter().chain(&graph.output);
    infos.filter_map(|info| Some((info.name.as_str(), info.ty.as_ref()?))).collect()
}

/// For each input of an elementwise node, the name of its output. The declared shape of the output bounds that of the
/// input, if nothing else does.
fn same_shape(graph: &GraphProto) -> HashMap<&str, &str> {
    let pairs = graph.node.iter().filter_map(|node| {
        let has = |wanted| ops::has_trait(&node.domain, &node.op_type, wanted);
        let inputs = if has(Trait::Elementwise) {
            &node.input[..]
        } else if has(Trait::ElementwiseInFirst) {
            &node.input[..1.min(node.input.len())]
        } else {
            return None;
        };

        let output = node.output.first()?.as_str();
        let given = inputs.iter().map(String::as_str).filter(|name| !name.is_empty());
        Some(given.map(move |input| (input, output)))
    });
    pairs.flatten().collect()
}

/// `name` as a C identifier.
fn identifier(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !out.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        out.insert_str(0, "m_");
    }
    out
}
