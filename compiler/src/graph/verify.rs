//! The definition of a well-formed graph. The verifier runs after every pass in debug builds and in tests.
//!
//! 1. Nodes are in topological order: operands are defined by earlier nodes.
//! 2. A value is a result of exactly the node that it names, at one position.
//! 3. Input `i` is the only node `Input(i)`, outputs are values of the graph, and names are unique.
//! 4. The relations between dims that an operator needs hold under the graph's facts and constraints.
//! 5. Types equal the inferred types.
//! 6. Nested graphs are well-formed, and bound symbols are declared as data-dependent.
//! 7. Known contents have one element for each element of the shape.

use super::{Graph, Node, NodeId, Op, Value, infer};
use crate::error::{At, Error, Result};
use cranelift_entity::EntityRef;
use symshape::{Dim, Relation};

/// Checks that `graph` is well-formed.
///
/// # Errors
/// The first violation, with the node concerned.
pub fn verify(graph: &Graph) -> Result<()> {
    ports(graph)?;
    let mut defined = vec![false; graph.values.len()];
    for (id, node) in &graph.nodes {
        let located = || format!("{id:?} ({} {})", node.op.name(), node.origin);
        verify_node(graph, id, node, &defined).at(located)?;
        for result in &node.results {
            defined[result.index()] = true;
        }
    }
    Ok(())
}

fn ports(graph: &Graph) -> Result<()> {
    let known = |value: Value| graph.values.is_valid(value);
    for (index, (name, value)) in graph.inputs.iter().enumerate() {
        let fits = known(*value) && matches!(graph.op(*value), Op::Input(i) if *i as usize == index);
        ensure(fits, || format!("input `{name}` is not defined by the node of input {index}"))?;
    }

    for (name, value) in &graph.outputs {
        ensure(known(*value), || format!("output `{name}` is not a value of the graph"))?;
    }

    for ports in [&graph.inputs, &graph.outputs] {
        let mut names: Vec<&str> = ports.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        ensure(names.windows(2).all(|pair| pair[0] != pair[1]), || "two ports have the same name".into())?;
    }

    Ok(())
}

fn verify_node(graph: &Graph, id: NodeId, node: &Node, defined: &[bool]) -> Result<()> {
    for operand in &node.operands {
        let earlier = defined.get(operand.index()).is_some_and(|defined| *defined);
        ensure(earlier, || format!("operand {operand:?} is not defined by an earlier node"))?;
    }

    if let Op::Input(index) = &node.op {
        let own = graph.inputs.get(*index as usize).is_some_and(|(_, value)| node.results == [*value]);
        ensure(own, || format!("input {index} has two nodes"))?;
    }

    for (_, region) in node.op.regions() {
        verify(region).at(|| format!("region {}", region.name))?;
    }
    if let Op::Bind { symbol, .. } = &node.op {
        ensure(graph.data_dependent.contains(symbol), || {
            format!("{symbol} is not declared as data-dependent")
        })?;
    }
    for required in infer::requirements(graph, &node.op, &node.operands)? {
        let message = || format!("{} cannot be proven ({})", required.relation, required.context);
        ensure(holds(graph, &required.relation), message)?;
    }

    let types = infer::types(graph, &node.op, &node.operands)?;
    ensure(types.len() == node.results.len(), || {
        format!("{} results, not {}", node.results.len(), types.len())
    })?;
    for (result, want) in node.results.iter().zip(&types) {
        ensure(graph.values.is_valid(*result), || format!("result {result:?} is not a value of the graph"))?;
        let data = &graph.values[*result];
        ensure(data.def == id, || format!("result {result:?} says that {:?} defines it", data.def))?;
        let same = data.ty.dtype == want.dtype && same_shape(graph, &data.ty.shape, &want.shape);
        ensure(same, || format!("result {result:?} has type {:?}, inferred is {want:?}", data.ty))?;
        let count = data.contents.as_ref().map(|elems| Dim::from(elems.len()));
        let elems = Dim::product(data.ty.shape.iter().cloned());
        let fits = count.is_none_or(|count| count == elems);
        ensure(fits, || format!("result {result:?} has contents of another size"))?;
    }
    Ok(())
}

fn same_shape(graph: &Graph, a: &[Dim], b: &[Dim]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a == b || holds(graph, &Relation::eq(a, b)))
}

/// Whether `relation` follows from the facts and from the constraints on data-dependent symbols.
fn holds(graph: &Graph, relation: &Relation) -> bool {
    if graph.holds(relation) {
        return true;
    }
    let mut facts = graph.facts.clone();
    let mut required = graph.constraints.iter();
    // Contradictory constraints are never satisfied, so the code after them is unreachable.
    let contradict =
        required.any(|required| facts.assume(required.relation.clone(), &required.origin).is_err());
    contradict || facts.prove(relation).is_yes()
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::internal(message())) }
}
