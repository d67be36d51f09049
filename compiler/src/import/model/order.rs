//! The import order of nodes, and their names in messages.

use crate::{
    error::{Error, Result},
    import::model::proto::{GraphProto, NodeProto},
};
use std::collections::{HashMap, HashSet};

/// The nodes in an order in which every name is defined before it is used. It is the order of the file where that is
/// valid.
///
/// `known` are the names that are defined from the start.
///
/// # Errors
/// A name is defined twice, or depends on itself.
pub(crate) fn order<'a>(nodes: &'a [NodeProto], known: &dyn Fn(&str) -> bool) -> Result<Vec<&'a NodeProto>> {
    let mut producers: HashMap<&str, usize> = HashMap::new();
    for (k, node) in nodes.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if producers.insert(name, k).is_some() || known(name) {
                return Err(Error::invalid(format!("`{name}` is defined twice")).at(title(node)));
            }
        }
    }

    let mut order = Vec::new();
    let mut state = vec![Order::New; nodes.len()];
    for root in 0..nodes.len() {
        // A path of nodes, each with its dependencies that are not ordered yet.
        let mut path = vec![(root, needs(&nodes[root], &producers))];
        while let Some((k, waiting)) = path.last_mut() {
            let k = *k;
            if state[k] != Order::Done {
                state[k] = Order::Open;
                if let Some(need) = waiting.pop() {
                    match state[need] {
                        Order::Done => {}
                        Order::New => path.push((need, needs(&nodes[need], &producers))),
                        Order::Open => return Err(cyclic(&nodes[need])),
                    }
                    continue;
                }
                state[k] = Order::Done;
                order.push(&nodes[k]);
            }

            path.pop();
        }
    }

    Ok(order)
}

/// How far a node is on its way into the order.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    New,
    Open,
    Done,
}

/// The nodes that `node` depends on. That of the last input comes first.
fn needs(node: &NodeProto, producers: &HashMap<&str, usize>) -> Vec<usize> {
    let mut names = Vec::new();
    uses(node, &mut names);
    let mut met = HashSet::new();
    let producers = names.iter().filter_map(|name| producers.get(name).copied());
    let mut needs: Vec<usize> = producers.filter(|producer| met.insert(*producer)).collect();
    needs.reverse();
    needs
}

/// The names that `node` and the graphs in its attributes read from the graph around `node`.
fn uses<'a>(node: &'a NodeProto, names: &mut Vec<&'a str>) {
    names.extend(node.input.iter().map(String::as_str).filter(|name| !name.is_empty()));
    for graph in node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs)) {
        outer_uses(graph, names);
    }
}

/// The names that `graph` reads from the graphs around it. A name that it defines itself hides that of a graph around
/// it, as in the branches of an `If` whose outputs are named as the `If` names its own.
fn outer_uses<'a>(graph: &'a GraphProto, names: &mut Vec<&'a str>) {
    let inputs = graph.input.iter().map(|input| &input.name);
    let initializers = graph.initializer.iter().map(|tensor| &tensor.name);
    let outputs = graph.node.iter().flat_map(|node| &node.output);
    let own: HashSet<&str> = inputs.chain(initializers).chain(outputs).map(String::as_str).collect();

    let mut used: Vec<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    graph.node.iter().for_each(|node| uses(node, &mut used));
    names.extend(used.into_iter().filter(|name| !own.contains(name)));
}

fn cyclic(node: &NodeProto) -> Error {
    let output = node.output.iter().find(|name| !name.is_empty()).map_or("", String::as_str);
    Error::invalid(format!("cycle: its inputs depend on its output `{output}`")).at(title(node))
}

/// The name of a node in messages.
pub(crate) fn title(node: &NodeProto) -> String {
    let output = node.output.iter().find(|name| !name.is_empty());
    match (node.name.as_str(), output) {
        ("", Some(output)) => format!("node of `{output}`"),
        (name, _) => format!("node `{name}`"),
    }
}
