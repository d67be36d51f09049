//! Groups claimed nodes into parts.
//!
//! A node joins the part of an operand if the part can still be computed in one step afterwards: no node outside of it
//! may be both a user and an operand of it. So the node can join unless another operand depends on the part:
//! ```text
//! for node in order, if claimed:
//!     for each operand's part P:
//!         if no operand outside of P is reached from P: the node joins P; stop
//!     the node is a new part if it joined none
//!     for each operand's part P:
//!         the node's part and P become one, if no path leads from one to the other through a third
//! ```
//!
//! Nodes that end a call or give a symbol its value are borders that no part crosses.

use crate::graph::{Graph, Node, NodeId, Value};
use cranelift_entity::{EntityRef, SecondaryMap};

/// Nodes that are computed in one step: a part, or one node that no target claimed.
pub(super) struct NodeGroup {
    /// The nodes in topological order.
    pub(super) nodes: Vec<NodeId>,
    pub(super) claimed: bool,
    /// The number of borders before it.
    section: usize,
}

impl NodeGroup {
    /// Cuts a part before the nodes for which `begins` holds. Nodes are in topological order, so every piece depends
    /// only on earlier ones.
    pub(super) fn cut_before(self, begins: &dyn Fn(NodeId) -> bool) -> Vec<NodeGroup> {
        let mut pieces: Vec<NodeGroup> = Vec::new();
        for id in self.nodes {
            match pieces.last_mut() {
                Some(piece) if !begins(id) => piece.nodes.push(id),
                _ => pieces.push(NodeGroup { nodes: vec![id], claimed: self.claimed, section: self.section }),
            }
        }
        pieces
    }
}

/// All groups of a graph, and the group of each node.
pub(super) struct NodeGroups {
    pub(super) list: Vec<NodeGroup>,
    of: SecondaryMap<NodeId, usize>,
}

/// The parts of the claimed nodes, among groups in topological order. Empty if no node is claimed.
pub(super) fn group(graph: &Graph, claim: &dyn Fn(NodeId, &Node) -> bool) -> Vec<NodeGroup> {
    let mut groups = NodeGroups { list: Vec::new(), of: SecondaryMap::new() };
    let mut section = 0;
    let mut any_claimed = false;

    for (id, node) in &graph.nodes {
        section += usize::from(node.op.acts());
        let claimed = claim(id, node);
        any_claimed |= claimed;

        match groups.part_for(graph, node, section).filter(|_| claimed) {
            Some(part) => {
                groups.list[part].nodes.push(id);
                groups.of[id] = part;
                groups.merge(graph, part, node);
            }
            None => {
                groups.of[id] = groups.list.len();
                groups.list.push(NodeGroup { nodes: vec![id], claimed, section });
            }
        }

        section += usize::from(node.op.acts());
    }
    if any_claimed { groups.sorted(graph) } else { Vec::new() }
}

impl NodeGroups {
    fn group_of(&self, graph: &Graph, value: Value) -> usize {
        self.of[graph.values[value].def]
    }

    /// The part that a node can join, if there is one.
    fn part_for(&self, graph: &Graph, node: &Node, section: usize) -> Option<usize> {
        let operands: Vec<usize> = node.operands.iter().map(|value| self.group_of(graph, *value)).collect();
        let open = |part: &&usize| self.list[**part].claimed && self.list[**part].section == section;
        operands
            .iter()
            .filter(open)
            .find(|part| {
                !operands.iter().any(|other| other != *part && self.depends_on(graph, *other, **part))
            })
            .copied()
    }

    /// Merges the part that consists of `node` with those of its operands, where all can be computed in one step.
    fn merge(&mut self, graph: &Graph, part: usize, node: &Node) {
        for operand in &node.operands {
            let other = self.group_of(graph, *operand);
            let open = self.list[other].claimed && self.list[other].section == self.list[part].section;
            if other == part
                || !open
                || self.has_path_between(graph, part, other)
                || self.has_path_between(graph, other, part)
            {
                continue;
            }

            let moved = std::mem::take(&mut self.list[other].nodes);
            moved.iter().for_each(|id| self.of[*id] = part);
            self.list[part].nodes.extend(moved);
            self.list[part].nodes.sort_unstable();
        }
    }

    /// Whether a path leads from one group to another through a third one.
    fn has_path_between(&self, graph: &Graph, from: usize, to: usize) -> bool {
        self.operands_of(graph, to).any(|between| between != from && self.depends_on(graph, between, from))
    }

    /// Whether a group depends on `part`, directly or not.
    fn depends_on(&self, graph: &Graph, group: usize, part: usize) -> bool {
        let mut visited = vec![false; self.list.len()];
        let mut open = vec![group];
        while let Some(group) = open.pop() {
            if group == part {
                return true;
            }
            if std::mem::replace(&mut visited[group], true) {
                continue;
            }
            open.extend(self.operands_of(graph, group));
        }

        false
    }

    /// The groups whose results a group reads.
    fn operands_of<'s>(&'s self, graph: &'s Graph, group: usize) -> impl Iterator<Item = usize> + 's {
        let nodes = self.list[group].nodes.iter();
        let operands = nodes.flat_map(|id| &graph.nodes[*id].operands);
        operands.map(|value| self.group_of(graph, *value)).filter(move |other| *other != group)
    }

    /// The groups in topological order, otherwise in the order of their first nodes.
    fn sorted(self, graph: &Graph) -> Vec<NodeGroup> {
        let mut order = Vec::with_capacity(self.list.len());
        let mut done = vec![false; self.list.len()];

        // Borders separate sections. Within a section, a group comes after the groups that it depends on.
        for first in 0..self.list.len() {
            let mut open = vec![first];
            while let Some(group) = open.last().copied() {
                let missing = self.operands_of(graph, group).find(|other| !done[*other]);
                match missing {
                    Some(other) => open.push(other),
                    None => {
                        open.pop();
                        if !std::mem::replace(&mut done[group], true) {
                            order.push(group);
                        }
                    }
                }
            }
        }

        let mut groups: Vec<Option<NodeGroup>> = self.list.into_iter().map(Some).collect();
        let mut sorted: Vec<NodeGroup> = order.into_iter().filter_map(|group| groups[group].take()).collect();
        sorted.retain(|group| !group.nodes.is_empty());
        sorted.sort_by_key(|group| group.section);
        debug_assert!(sorted.iter().map(|group| group.nodes.len()).sum::<usize>() == graph.nodes.len());
        debug_assert!(sorted.iter().all(|group| group.nodes.is_sorted_by_key(|id| id.index())));
        sorted
    }
}
