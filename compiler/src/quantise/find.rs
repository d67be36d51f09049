//! Finds the weights that can be stored in fewer bits: large constants of `f32` that products or look-ups read.

use crate::{
    graph::{Coord, Graph, Node, Op, Value, axis},
    opt::fold::SMALL_BYTES,
};
use std::collections::BTreeMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Constants of at most this many elements keep their type: folding makes views of them floats.
const MAX_SMALL_ELEMS: usize = SMALL_BYTES / 4;

/// Shorter axes have no blocks, whose scales would take about as many bytes as the integers.
const MIN_BLOCKED: usize = 8;

/// A weight that can be stored in fewer bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Weight {
    /// The constant.
    pub(super) value: Value,
    /// The name of the ONNX initializer, or of the node that defines the constant.
    pub(super) name: String,
    /// The axis that blocks lie along: that of the reduction, or the last axis of a table.
    pub(super) axis: usize,
}

/// The weights of a graph, without those of its branches and loops, in the order of the graph.
pub(super) fn weights(graph: &Graph) -> Vec<Weight> {
    let mut users = Users::new();
    for node in graph.nodes.values() {
        for (operand, value) in node.operands.iter().enumerate() {
            users.entry(*value).or_default().push(User { node, operand });
        }
    }

    let weight = |node: &Node| {
        let Op::Const(tensor) = &node.op else { return None };
        let is_large = tensor.elems() > MAX_SMALL_ELEMS;
        if !is_large || tensor.dtype() != DType::F32 || tensor.few_bits().is_some() {
            return None;
        }
        let value = node.results[0];
        let uses = Uses::of(graph, &users, value)?;
        let name = node.origin.strip_prefix("weight `").and_then(|rest| rest.strip_suffix('`'));
        let name = name.unwrap_or(&node.origin).to_string();
        let axis = uses.axis(graph, value).filter(|axis| tensor.shape()[*axis] >= MIN_BLOCKED)?;
        Some(Weight { value, name, axis })
    };
    graph.nodes.values().filter_map(weight).collect()
}

/// The uses of each value by nodes.
type Users<'g> = BTreeMap<Value, Vec<User<'g>>>;

/// A use of a value.
struct User<'g> {
    node: &'g Node,
    operand: usize,
}

/// The uses of a constant.
#[derive(Default)]
struct Uses<'g> {
    /// The axes of the constant that products reduce.
    reduced: Vec<usize>,
    /// The coordinates of look-ups.
    looked_up: Vec<&'g [Coord]>,
}

impl<'g> Uses<'g> {
    /// The uses of a constant and of its views. `None` if one needs the floats.
    fn of(graph: &Graph, users: &Users<'g>, constant: Value) -> Option<Uses<'g>> {
        let mut uses = Uses::default();
        // The constant and its views, with the axes of each that are axes of the constant.
        let mut views: Vec<(Value, Vec<Option<usize>>)> =
            vec![(constant, (0..graph.rank(constant)).map(Some).collect())];
        while let Some((value, axes)) = views.pop() {
            if graph.outputs.iter().any(|(_, output)| *output == value) {
                return None;
            }
            for user in users.get(&value).into_iter().flatten() {
                match &user.node.op {
                    Op::View { shape, index } => {
                        let of = |k: usize| {
                            let from = index.iter().position(|expr| *expr == Dim::from(axis(k)))?;
                            axes[from]
                        };
                        views.push((user.node.results[0], (0..shape.len()).map(of).collect()));
                    }
                    Op::Contraction { lhs, rhs, out, dtype: DType::F32, .. } => {
                        let labels = if user.operand == 0 { lhs } else { rhs };
                        let reduced = labels
                            .iter()
                            .zip(graph.shape(value))
                            .zip(&axes)
                            .filter(|((label, dim), _)| !out.contains(label) && dim.as_i64() != Some(1));
                        let reduced: Vec<Option<usize>> = reduced.map(|(_, axis)| *axis).collect();
                        let [Some(axis)] = reduced[..] else { return None };
                        uses.reduced.push(axis);
                    }
                    // Tables are read as they are stored.
                    Op::Gather { coords, .. } if user.operand == 0 && value == constant => {
                        uses.looked_up.push(coords);
                    }
                    _ => return None,
                }
            }
        }
        Some(uses)
    }

    /// The axis that blocks lie along. `None` if uses need different ones.
    fn axis(&self, graph: &Graph, value: Value) -> Option<usize> {
        let axis = match self.reduced.first() {
            Some(axis) => *axis,
            None if self.looked_up.is_empty() => return None,
            None => graph.rank(value).checked_sub(1)?,
        };
        let fits = self.reduced.iter().all(|other| *other == axis)
            && self.looked_up.iter().all(|coords| matches!(coords[axis], Coord::At(_)));
        fits.then_some(axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Result, tensor::Tensor};

    #[test]
    fn long_chains_of_views_are_followed() -> Result<()> {
        let mut g = Graph::default();
        let x = g.input("x", DType::F32, vec![3.into(), 40.into()])?;
        let elems = [0.5; 40 * 40];
        let mut w = g.constant(Tensor::from_f32(vec![40, 40], &elems).expect("all elements"))?;
        for _ in 0..20_000 {
            w = g.transpose(w, &[1, 0])?;
        }
        let y = g.matmul(x, w)?;
        g.output("y", y)?;

        let found = weights(&g);
        assert_eq!(found.iter().map(|weight| weight.axis).collect::<Vec<_>>(), [0]);
        Ok(())
    }
}
