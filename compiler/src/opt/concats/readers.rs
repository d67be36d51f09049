//! Decides which concatenations are divided: those whose copies cost more than work on their operands one by one.
//!
//! The rule has five parts; a concatenation that fails one is filled by copies, which the plan names.
//!
//! - Every reader can work on the operands one by one. Sorts, scans, calls, padding and outputs need the whole.
//! - An operand has a run of at least [`MIN_RUN`] elements in memory, so that strips still fill vectors.
//! - A new kernel saves at least [`MIN_ELEMS`] copied elements.
//! - A sum of contractions does not write and read more partial sums than were copied.
//! - A contraction does not read its other operand again, unless that is small or far smaller than the copies.

use super::pieces::{MovedAxis, moved_axis};
use crate::{
    graph::{Graph, Label, Node, NodeId, Op, Value, axis as axis_symbol},
    scalar::{Precision, ReduceOp},
};
use cranelift_entity::SecondaryMap;
use std::{collections::HashMap, ops::Range};
use symshape::{Dim, Symbol};

/// The number of adjacent elements that an operand must have.
const MIN_RUN: i64 = 8;

/// The number of copied elements that a new kernel must save.
const MIN_ELEMS: i64 = 512;

/// The largest number of elements that a contraction may read again for each operand: half of a second-level cache.
const MAX_REREAD: i64 = 1 << 17;

/// The concatenations and maps whose readers work on the pieces, with a flag for each operand: whether it is copied.
pub(super) type Divided = HashMap<Value, Vec<bool>>;

/// Decides for all concatenations of `graph`.
pub(super) fn divided(graph: &Graph) -> Divided {
    let users = users(graph);
    let mut divided = Divided::new();
    // Later concatenations first: one that is divided takes the operands of those nested in it.
    for (_, node) in graph.nodes.iter().rev() {
        let Op::Concat { axis } = node.op else { continue };
        let value = node.results[0];
        let parts = flattened(graph, &users, &node.operands, axis);
        let is_copied: Vec<bool> = parts.iter().map(|part| is_copied(graph, &users, *part)).collect();
        let n_copied = is_copied.iter().filter(|is_copied| **is_copied).count();
        if n_copied == 0 || parts.iter().any(|part| is_short(graph, *part, axis)) {
            continue;
        }

        let mut web = Web { graph, users: &users, parts: &parts, is_copied, kernels: 0, maps: vec![] };
        if !web.takes_pieces(value, axis, Reach::Concat) {
            continue;
        }
        let more = (web.kernels * parts.len()).saturating_sub(web.kernels + n_copied) as i64;
        if web.copied_elems() < more.saturating_mul(MIN_ELEMS) {
            continue;
        }
        divided.extend(web.maps.iter().map(|map| (*map, vec![])));
        divided.insert(value, web.is_copied);
    }

    for value in divided.keys().copied().collect::<Vec<_>>() {
        divide_nested(graph, &users, value, &mut divided);
    }
    divided
}

/// The nested concatenations whose operands `value` takes, see [`flattened`].
fn divide_nested(graph: &Graph, users: &Users, value: Value, divided: &mut Divided) {
    let Op::Concat { axis } = graph.op(value) else { return };
    for operand in graph.operands(value) {
        if is_nested(graph, users, *operand, *axis) {
            divided.insert(*operand, vec![]);
            divide_nested(graph, users, *operand, divided);
        }
    }
}

fn is_nested(graph: &Graph, users: &Users, value: Value, axis: usize) -> bool {
    matches!(graph.op(value), Op::Concat { axis: inner } if *inner == axis) && users[value].len() == 1
}

/// Consecutive operands as one range each: an operand that is copied alone, others in runs.
pub(super) fn groups(is_copied: &[bool]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for (idx, copied) in is_copied.iter().enumerate() {
        match groups.last_mut() {
            Some(last) if !copied && !is_copied[idx - 1] => last.end = idx + 1,
            _ => groups.push(idx..idx + 1),
        }
    }
    groups
}

type Users = SecondaryMap<Value, Vec<NodeId>>;

/// The nodes that read each value, once for each operand.
fn users(graph: &Graph) -> Users {
    let mut users = Users::new();
    for (id, node) in &graph.nodes {
        for operand in &node.operands {
            users[*operand].push(id);
        }
    }
    users
}

/// The operands, with those of nested concatenations that have no other reader in their place.
fn flattened(graph: &Graph, users: &Users, operands: &[Value], axis: usize) -> Vec<Value> {
    let mut parts = Vec::new();
    for operand in operands {
        if is_nested(graph, users, *operand, axis) {
            parts.extend(flattened(graph, users, graph.operands(*operand), axis));
        } else {
            parts.push(*operand);
        }
    }
    parts
}

/// Whether a concatenation copies `part`: it is in memory elsewhere, and is not computed for the concatenation.
fn is_copied(graph: &Graph, users: &Users, part: Value) -> bool {
    let mut base = part;
    let mut is_alone = true;
    while let Op::View { .. } = graph.op(base) {
        is_alone &= users[base].len() == 1;
        base = graph.operands(base)[0];
    }

    match graph.op(base) {
        Op::Input(_) => true,
        Op::Const(tensor) => tensor.elems() > 1,
        _ if base == part => false,
        Op::Map(_) | Op::Contraction { .. } | Op::Gather { .. } | Op::Index { .. } => {
            !is_alone || users[base].len() > 1
        }
        _ => true,
    }
}

/// Whether the elements of `part` that are adjacent in a concatenation along `axis` are fewer than a vector.
fn is_short(graph: &Graph, part: Value, axis: usize) -> bool {
    let run = graph.shape(part)[axis..].iter().fold(Dim::one(), |run, dim| run * dim);
    typical(graph, &run) < MIN_RUN
}

/// The number that `dim` is at typical sizes. It is only for choices between right programs.
fn typical(graph: &Graph, dim: &Dim) -> i64 {
    let value = |symbol: &Symbol| {
        let hi = graph.facts.declaration(symbol).and_then(|declared| declared.hi.clone());
        Some(hi.and_then(|hi| i64::try_from(hi).ok()).unwrap_or(64).clamp(1, 1024))
    };
    dim.eval_i64(&value).unwrap_or(i64::MAX)
}

fn elems(graph: &Graph, value: Value) -> i64 {
    typical(graph, &Dim::product(graph.shape(value).iter().cloned()))
}

/// The readers of one concatenation, through views and maps.
struct Web<'g> {
    graph: &'g Graph,
    users: &'g Users,
    parts: &'g [Value],
    is_copied: Vec<bool>,
    /// The number of readers that become several kernels.
    kernels: usize,
    /// The maps whose results are divided too.
    maps: Vec<Value>,
}

/// What is between a concatenation and a reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Nothing.
    Concat,
    /// Views.
    View,
    /// A map, whose results are computed in place.
    Map,
}

impl Web<'_> {
    /// Elements that the concatenation would copy.
    fn copied_elems(&self) -> i64 {
        let copied = self.parts.iter().zip(&self.is_copied).filter(|(_, is_copied)| **is_copied);
        copied.fold(0i64, |sum, (part, _)| sum.saturating_add(elems(self.graph, *part)))
    }

    /// Whether all readers of `value` can work on its pieces along `axis`.
    fn takes_pieces(&mut self, value: Value, axis: usize, reach: Reach) -> bool {
        let graph = self.graph;
        // A view of a concatenation is copied to an output or into a larger tensor, whole or piece by piece.
        let is_moved = reach == Reach::View;
        if graph.outputs.iter().any(|(_, output)| *output == value) && !is_moved {
            return false;
        }

        let readers = self.users[value].clone();
        let is_read = !readers.is_empty() || is_moved;
        is_read
            && readers.into_iter().all(|reader| {
                let node = &graph.nodes[reader];
                match &node.op {
                    Op::View { shape, index } => {
                        let reach = if reach == Reach::Map { Reach::Map } else { Reach::View };
                        moved_axis(graph, value, shape, index, axis).is_some_and(
                            |MovedAxis { axis, .. }| self.takes_pieces(node.results[0], axis, reach),
                        )
                    }
                    Op::Concat { .. } | Op::Pad { .. } => is_moved,
                    Op::Map(_) => self.map(node, value, axis),
                    Op::Reduce { op, axes } => self.reduce(*op, axes.contains(&axis), value),
                    Op::Contraction { .. } => reach != Reach::Map && self.contraction(node, value, axis),
                    _ => false,
                }
            })
    }

    fn map(&mut self, node: &Node, value: Value, axis: usize) -> bool {
        // The other operand would no longer be finished by this map.
        let is_epilogue = |operand: &Value| *operand != value && finishes(self.graph, self.users, *operand);
        if node.operands.iter().any(is_epilogue) {
            return false;
        }

        let result = node.results[0];
        if self.maps.contains(&result) {
            return true;
        }
        let mark = self.maps.len();
        let kernels = self.kernels;
        self.maps.push(result);
        if !self.takes_pieces(result, axis, Reach::Map) {
            self.maps.truncate(mark);
            self.kernels = kernels + 1;
        }
        true
    }

    fn reduce(&mut self, op: ReduceOp, is_along: bool, value: Value) -> bool {
        self.kernels += 1;
        // Products of floats keep the order of their definition.
        !(is_along && op == ReduceOp::Prod && self.graph.dtype(value).is_float())
    }

    fn contraction(&mut self, node: &Node, value: Value, axis: usize) -> bool {
        let Op::Contraction { lhs, rhs, out, precision, .. } = &node.op else { return false };
        self.kernels += 1;
        let graph = self.graph;
        let labels = [lhs, rhs];
        let [first, second] = [node.operands[0], node.operands[1]];
        if first == second || !self.copied_parts_are_linear() {
            return false;
        }

        let side = usize::from(second == value);
        let label = labels[side][axis];
        let has = |labels: &[Label]| labels.contains(&label);
        let Some(axis) = out.iter().position(|other| *other == label) else {
            if *precision == Precision::Int8 {
                return false;
            }
            let groups = groups(&self.is_copied).len() as i64;
            let partial = elems(graph, node.results[0]).saturating_mul(groups - 1);
            return partial <= self.copied_elems();
        };

        // Unless the axis is one of the batch, the other operand is read for each part.
        let reread = elems(graph, node.operands[1 - side]);
        let is_cheap = reread <= MAX_REREAD || reread.saturating_mul(4) <= self.copied_elems();
        (has(labels[1 - side]) || is_cheap) && self.keeps_epilogue(node.results[0], axis)
    }

    /// Whether each part of a contraction is finished as the whole would be: by maps that take its pieces.
    fn keeps_epilogue(&mut self, sum: Value, axis: usize) -> bool {
        if self.takes_pieces(sum, axis, Reach::Map) {
            self.maps.push(sum);
            return true;
        }
        let is_epilogue =
            |reader: &NodeId| matches!(self.graph.nodes[*reader].op, Op::Map(_) | Op::View { .. });
        !self.users[sum].iter().any(is_epilogue)
    }

    /// Whether a contraction can read the copied parts in place. A view that mirrors, clamps or repeats needs one
    /// address for each multiplication.
    fn copied_parts_are_linear(&self) -> bool {
        let copied = self.parts.iter().zip(&self.is_copied).filter(|(_, is_copied)| **is_copied);
        copied.map(|(part, _)| *part).all(|part| is_linear(self.graph, part))
    }
}

fn is_linear(graph: &Graph, mut value: Value) -> bool {
    while let Op::View { shape, index } = graph.op(value) {
        let facts = graph.index_facts(shape);
        let linear = |expr: &Dim| (0..shape.len()).all(|k| facts.linear_in(expr, &axis_symbol(k)).is_some());
        if !index.iter().all(linear) {
            return false;
        }
        value = graph.operands(value)[0];
    }
    true
}

/// Whether `value` is made of a contraction that has no other reader.
fn finishes(graph: &Graph, users: &Users, value: Value) -> bool {
    match graph.op(value) {
        _ if users[value].len() > 1 => false,
        Op::Contraction { .. } => true,
        Op::Map(_) | Op::View { .. } => {
            graph.operands(value).iter().any(|operand| finishes(graph, users, *operand))
        }
        _ => false,
    }
}
