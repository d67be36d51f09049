//! Finds the weights that can be stored in fewer bits: large constants of `f32` that products or look-ups read.

use crate::graph::{Coord, Graph, Node, Op, Value, axis};
use std::collections::BTreeMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Smaller constants keep their type.
const MIN_ELEMS: usize = 1024;

/// A weight that can be stored in fewer bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Weight {
    /// The constant.
    pub(super) value: Value,
    /// The name of the ONNX initializer, or of the node that defines the constant.
    pub(super) name: String,
    /// The axis that blocks lie along: that of the reduction, or the last axis of a table.
    pub(super) axis: usize,
    /// Whether products read it.
    pub(super) is_multiplied: bool,
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
        let is_large =
            tensor.dtype() == DType::F32 && tensor.elems() >= MIN_ELEMS && tensor.few_bits().is_none();
        if !is_large {
            return None;
        }
        let value = node.results[0];
        let axes = (0..graph.rank(value)).map(Some).collect();
        let mut uses = Uses::default();
        uses.collect(graph, &users, value, axes)?;
        let name = node.origin.strip_prefix("weight `").and_then(|rest| rest.strip_suffix('`'));
        let name = name.unwrap_or(&node.origin).to_string();
        Some(Weight { value, name, axis: uses.axis(graph, value)?, is_multiplied: !uses.reduced.is_empty() })
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
    /// Adds the uses of `value`, a view of the constant. `axes` are the axes of `value` that are axes of the constant.
    /// `None` for a use that needs the floats.
    fn collect(
        &mut self,
        graph: &Graph,
        users: &Users<'g>,
        value: Value,
        axes: Vec<Option<usize>>,
    ) -> Option<()> {
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
                    let axes = (0..shape.len()).map(of).collect();
                    self.collect(graph, users, user.node.results[0], axes)?;
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
                    self.reduced.push(axis);
                }
                // Tables are read as they are stored.
                Op::Gather { coords, .. } if user.operand == 0 && graph.as_constant(value).is_some() => {
                    self.looked_up.push(coords);
                }
                _ => return None,
            }
        }
        Some(())
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
