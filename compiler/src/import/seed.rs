//! The seed of a model with random operators: an input of the artefact that the model itself lacks.

use crate::{
    error::{At, Error, ErrorKind, Result},
    graph::{Graph, Op},
    import::{
        Model,
        model::{
            domain::same_domain,
            options::ImportOptions,
            proto::{GraphProto, NodeProto},
        },
        scope::Context,
    },
    scalar::Scalar,
    tensor::Tensor,
};
use symshape_runtime::DType;

/// The name of the input, or the second one if the model has an input of the first name.
pub(crate) const SEED_NAMES: [&str; 2] = ["seed", "random_seed"];

/// Operators that may draw random numbers.
const RANDOM: [&str; 7] = [
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
];

/// The name of the seed, if the model has operators that may draw random numbers.
///
/// # Errors
/// The model has inputs of both names.
pub(super) fn seed_name(model: &Model) -> Result<Option<&'static str>> {
    let Some(graph) = &model.proto.graph else { return Ok(None) };
    if !any_node(model, &|_| true) {
        return Ok(None);
    }
    let is_free = |name: &&str| !graph.input.iter().any(|input| input.name == **name);
    let free = SEED_NAMES.into_iter().find(is_free);
    let message =
        || format!("a model with random operators can't have inputs `{}`", SEED_NAMES.join("` and `"));
    free.map(Some).ok_or_else(|| Error::unsupported(message()))
}

/// Whether results of the model are random: another generator gives others. `graph` is the model under `options`.
///
/// Dropout is random in training only. If the node then has no attribute `seed`, the graph has the seed as an input, or
/// the caller has bound it.
pub(crate) fn has_random_results(model: &Model, options: &ImportOptions, graph: &Graph) -> bool {
    let is_seed = |name: &str| SEED_NAMES.contains(&name) && !model.input_names().contains(&name);
    let has_seed = graph.inputs.iter().any(|(name, _)| is_seed(name))
        || options.binds.iter().any(|(name, _)| is_seed(name));
    let trains = |node: &NodeProto| node.input.get(2).is_some_and(|training| !training.is_empty());
    let has_own_seed = |node: &NodeProto| node.attribute.iter().any(|attribute| attribute.name == "seed");
    any_node(model, &|node| node.op_type != "Dropout" || trains(node) && (has_seed || has_own_seed(node)))
}

/// Whether one of the operators that may draw random numbers fulfils `is`.
fn any_node(model: &Model, is: &dyn Fn(&NodeProto) -> bool) -> bool {
    let functions = model.proto.functions.iter().map(|function| &function.node);
    let graphs = model.proto.graph.iter().map(|graph| &graph.node);
    graphs.chain(functions).any(|nodes| any_of(nodes, is))
}

fn any_of(nodes: &[NodeProto], is: &dyn Fn(&NodeProto) -> bool) -> bool {
    let of_graph = |graph: &GraphProto| any_of(&graph.node, is);
    nodes.iter().any(|node| {
        (same_domain(&node.domain, "") && RANDOM.contains(&node.op_type.as_str()) && is(node))
            || node.attribute.iter().any(|attribute| attribute.g.iter().any(of_graph))
    })
}

/// Defines the seed as an input after those of the model, or as the constant that the caller binds it to.
pub(super) fn define_seed(
    g: &mut Graph,
    context: &Context,
    name: &str,
    options: &ImportOptions,
) -> Result<()> {
    let bound = options.binds.iter().rev().find(|(bound, _)| bound == name);
    let value = match bound {
        None => g.input(name, DType::I64, Vec::new())?,
        Some((_, value)) => {
            let place = || format!("--bind {name}");
            let tensor = value.tensor(DType::I64, &[]).at(place)?;
            if tensor.dtype() != DType::I64 || !tensor.shape().is_empty() {
                let message = "the seed must be an i64 of rank 0";
                return Err(Error::new(ErrorKind::Usage, message)).at(place);
            }
            g.constant(tensor)?
        }
    };
    context.seed.value.set(Some(value));
    Ok(())
}

/// Removes the input if no node has used it. It is the last one.
pub(super) fn remove_unused_seed(g: &mut Graph, context: &Context) -> Result<()> {
    let Some(seed) = context.seed.value.get().filter(|_| !context.seed.is_used.get()) else { return Ok(()) };
    if g.inputs.last().is_some_and(|(_, value)| *value == seed) {
        g.inputs.pop();
        let zero = Tensor::from_scalars(DType::I64, Vec::new(), &[Scalar::i64(0)]);
        let zero = zero.ok_or_else(|| Error::internal("rank 0 must hold one element"))?;
        let node = g.values[seed].def;
        g.nodes[node].op = Op::Const(zero);
    }
    Ok(())
}
