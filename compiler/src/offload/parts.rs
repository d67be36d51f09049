//! Groups claimed nodes into parts.
//!
//! A node joins the part of an operand if the part can still be computed in one step afterwards: no node outside of it
//! may be both a user and an operand of it. So the node can join unless another operand depends on the part:
//! ```text
//! for node in order, if claimed:
//!     for each operand's part P:
//!         if no operand outside of P is reached from P: the node joins P; stop
//!     the node is a part of its own if it joined none
//!     for each operand's part P: the node's part and P become one, if no way leads from one to the other past both
//! ```
//!
//! Nodes that end a call or give a symbol its value are borders that no part crosses.

use crate::graph::{Graph, Node, NodeId, Value};
use cranelift_entity::{EntityRef, SecondaryMap};

/// Nodes that are computed in one step: a part, or one node that no target claimed.
pub(super) struct Unit {
    /// The nodes in topological order.
    pub(super) nodes: Vec<NodeId>,
    pub(super) claimed: bool,
    /// The number of borders before it.
    section: usize,
}

/// All units of a graph, and the unit of each node.
pub(super) struct Units {
    pub(super) list: Vec<Unit>,
    of: SecondaryMap<NodeId, usize>,
}

/// The parts of the claimed nodes, among units in topological order. Empty if no node is claimed.
pub(super) fn of(graph: &Graph, claim: &dyn Fn(&Node) -> bool) -> Vec<Unit> {
    let mut units = Units { list: Vec::new(), of: SecondaryMap::new() };
    let (mut section, mut any) = (0, false);
    for (id, node) in &graph.nodes {
        section += usize::from(node.op.acts());
        let claimed = claim(node);
        any |= claimed;
        match units.part_for(graph, node, section).filter(|_| claimed) {
            Some(part) => {
                units.list[part].nodes.push(id);
                units.of[id] = part;
                units.merge(graph, part, node);
            }
            None => {
                units.of[id] = units.list.len();
                units.list.push(Unit { nodes: vec![id], claimed, section });
            }
        }
        section += usize::from(node.op.acts());
    }
    if any { units.sorted(graph) } else { Vec::new() }
}

impl Units {
    fn unit_of(&self, graph: &Graph, value: Value) -> usize {
        self.of[graph.values[value].def]
    }

    /// The part that a node can join, if there is one.
    fn part_for(&self, graph: &Graph, node: &Node, section: usize) -> Option<usize> {
        let operands: Vec<usize> = node.operands.iter().map(|value| self.unit_of(graph, *value)).collect();
        let open = |part: &&usize| self.list[**part].claimed && self.list[**part].section == section;
        operands
            .iter()
            .filter(open)
            .find(|part| !operands.iter().any(|other| other != *part && self.needs(graph, *other, **part)))
            .copied()
    }

    /// Merges the part that consists of `node` with those of its operands, where all can be computed in one step.
    fn merge(&mut self, graph: &Graph, part: usize, node: &Node) {
        for operand in &node.operands {
            let other = self.unit_of(graph, *operand);
            let open = self.list[other].claimed && self.list[other].section == self.list[part].section;
            if other == part || !open || self.past(graph, part, other) || self.past(graph, other, part) {
                continue;
            }
            let moved = std::mem::take(&mut self.list[other].nodes);
            moved.iter().for_each(|id| self.of[*id] = part);
            self.list[part].nodes.extend(moved);
            self.list[part].nodes.sort_unstable();
        }
    }

    /// Whether a path leads from one unit to another through a third one.
    fn past(&self, graph: &Graph, from: usize, to: usize) -> bool {
        self.before(graph, to).any(|between| between != from && self.needs(graph, between, from))
    }

    /// Whether a unit depends on `part`, directly or not.
    fn needs(&self, graph: &Graph, unit: usize, part: usize) -> bool {
        let mut met = vec![false; self.list.len()];
        let mut open = vec![unit];
        while let Some(unit) = open.pop() {
            if unit == part {
                return true;
            }
            if std::mem::replace(&mut met[unit], true) {
                continue;
            }
            open.extend(self.before(graph, unit));
        }
        false
    }

    /// The units whose results a unit reads.
    fn before<'s>(&'s self, graph: &'s Graph, unit: usize) -> impl Iterator<Item = usize> + 's {
        let nodes = self.list[unit].nodes.iter();
        let operands = nodes.flat_map(|id| &graph.nodes[*id].operands);
        operands.map(|value| self.unit_of(graph, *value)).filter(move |other| *other != unit)
    }

    /// The units in topological order, otherwise in the order of their first nodes.
    fn sorted(self, graph: &Graph) -> Vec<Unit> {
        let mut order = Vec::with_capacity(self.list.len());
        let mut done = vec![false; self.list.len()];
        // Borders separate sections. Within a section, a unit comes after the units that it depends on.
        for first in 0..self.list.len() {
            let mut open = vec![first];
            while let Some(unit) = open.last().copied() {
                let missing = self.before(graph, unit).find(|other| !done[*other]);
                match missing {
                    Some(other) => open.push(other),
                    None => {
                        open.pop();
                        if !std::mem::replace(&mut done[unit], true) {
                            order.push(unit);
                        }
                    }
                }
            }
        }
        let mut units: Vec<Option<Unit>> = self.list.into_iter().map(Some).collect();
        let mut sorted: Vec<Unit> = order.into_iter().filter_map(|unit| units[unit].take()).collect();
        sorted.retain(|unit| !unit.nodes.is_empty());
        sorted.sort_by_key(|unit| unit.section);
        debug_assert!(sorted.iter().map(|unit| unit.nodes.len()).sum::<usize>() == graph.nodes.len());
        debug_assert!(sorted.iter().all(|unit| unit.nodes.is_sorted_by_key(|id| id.index())));
        sorted
    }
}
