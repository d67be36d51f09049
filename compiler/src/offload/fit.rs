//! Parts that don't fit into the device memory of their target.
//!
//! The need of a part is known only when its kernels are planned. So the pipeline lowers the graph, and where a device
//! overflows it divides the parts that are computed while too much is alive, and lowers the graph again:
//! ```text
//! part of several nodes: cut into pieces of similar size, as many as its need divided by the memory
//! part of one node:      left to the next target
//! ```
//! Each attempt cuts or leaves something, so the attempts end.

use super::{cut, parts::NodeGroup, target::Targets};
use crate::{
    graph::{Graph, NodeId, Value},
    kernel::{Control, Overflow, Policies, Program},
};
use num_traits::ToPrimitive;
use std::collections::{BTreeMap, BTreeSet};

/// After this many attempts, parts are left as a whole.
const MAX_CUTTING_ATTEMPTS: u32 = 12;

/// A node of a graph that is offered to a target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    /// Index of the target.
    target: usize,
    /// Index of the graph among those that are offered to the target: regions, then the graph itself.
    graph: u32,
    node: NodeId,
}

/// A part that a target lowered.
#[derive(Debug)]
pub(crate) struct Part {
    title: String,
    target: usize,
    graph: u32,
    nodes: Vec<NodeId>,
    /// Bytes that each node adds at the upper bounds: its results and its constants.
    bytes: Vec<u64>,
}

impl Part {
    /// The part of these nodes.
    pub(super) fn new(graph: &Graph, group: &NodeGroup, target: usize, graph_number: u32) -> Part {
        let bytes = group.nodes.iter().map(|id| node_bytes(graph, *id)).collect();
        Part {
            title: cut::part_title(graph, group),
            target,
            graph: graph_number,
            nodes: group.nodes.clone(),
            bytes,
        }
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        let place = |node: &NodeId| Place { target: self.target, graph: self.graph, node: *node };
        self.nodes.iter().map(place)
    }

    /// The first nodes of the second and later pieces, if the part is cut into about `count` pieces of similar size.
    fn cuts(&self, count: u64) -> BTreeSet<Place> {
        let total: u128 = self.bytes.iter().map(|bytes| u128::from(*bytes)).sum();
        let places: Vec<Place> = self.places().collect();
        let mut cuts = BTreeSet::new();
        for number in 1..u128::from(count) {
            let wanted = total.saturating_mul(number) / u128::from(count);
            let mut before = 0_u128;
            let mut best = (u128::MAX, 1);
            for (idx, bytes) in self.bytes.iter().enumerate() {
                let distance = before.abs_diff(wanted);
                if idx > 0 && distance < best.0 {
                    best = (distance, idx);
                }
                before += u128::from(*bytes);
            }
            cuts.extend(places.get(best.1));
        }
        cuts
    }
}

/// Bytes of a node's results and constant operands at the upper bounds of the symbols.
fn node_bytes(graph: &Graph, id: NodeId) -> u64 {
    let node = &graph.nodes[id];
    let bytes = |value: &Value| {
        let elems = graph.shape(*value).iter().cloned().fold(symshape::Dim::one(), |a, b| a * b);
        let bytes = elems * graph.dtype(*value).size_bytes() as i64;
        graph.facts.bounds(&bytes).hi.and_then(|hi| hi.to_u64()).unwrap_or(u64::MAX / 2)
    };
    let constants = node.operands.iter().filter(|value| graph.as_constant(**value).is_some());
    constants.chain(&node.results).map(bytes).fold(0, u64::saturating_add)
}

/// How the compiler deals with a part that does not fit.
#[derive(Debug)]
enum Remedy {
    /// Cuts the part at nodes.
    Cut,
    /// Leaves its nodes to the next target.
    Leave,
}

/// A part that did not fit, for messages.
#[derive(Debug)]
struct Misfit {
    title: String,
    places: BTreeSet<Place>,
    remedy: Remedy,
    /// The bytes alive at once, at the upper bounds.
    needed: u64,
    capacity: u64,
    /// The largest buffer alive, and its bytes.
    largest: String,
}

/// The decisions of the attempts so far.
#[derive(Default, Debug)]
pub(crate) struct Fit {
    /// Nodes at which a new piece begins.
    cuts: BTreeSet<Place>,
    /// Nodes that their target does not get.
    left: BTreeSet<Place>,
    /// Targets that take one call at a time, because the buffers of several calls don't fit.
    in_turn: BTreeSet<String>,
    misfits: Vec<Misfit>,
    attempts: u32,
}

impl Fit {
    /// Whether a target may get a node.
    pub(super) fn offers(&self, target: usize, graph: u32, node: NodeId) -> bool {
        !self.left.contains(&Place { target, graph, node })
    }

    /// Cuts groups of nodes at the places that were chosen.
    pub(super) fn cut(&self, groups: Vec<NodeGroup>, target: usize, graph: u32) -> Vec<NodeGroup> {
        if self.cuts.is_empty() {
            return groups;
        }
        let begins = |node: NodeId| self.cuts.contains(&Place { target, graph, node });
        groups.into_iter().flat_map(|group| group.cut_before(&begins)).collect()
    }

    /// Whether the target takes one call at a time, whatever it declares.
    pub(super) fn takes_turns(&self, target: &str) -> bool {
        self.in_turn.contains(target)
    }

    /// Decides how the parts of a device that overflows are divided. Returns whether anything changes: without a part
    /// among the calls at fault, nothing can.
    pub(crate) fn divide(
        &mut self,
        program: &Program,
        parts: &[Part],
        overflow: &Overflow,
        targets: &Targets,
    ) -> bool {
        self.attempts += 1;
        let device = &program.devices[overflow.device];
        let Some(target) = targets.iter().position(|target| target.name() == device.target) else {
            return false;
        };

        // The nodes of the graphs that later targets see change.
        self.cuts.retain(|place| place.target <= target);
        self.left.retain(|place| place.target <= target);
        self.misfits.retain(|misfit| misfit.places.iter().all(|place| place.target <= target));

        let in_order = peak(overflow) <= device.bytes;
        if program.policies == Policies::Any
            && in_order
            && program.at_once(&device.target) != 1
            && self.in_turn.insert(device.target.clone())
        {
            return true;
        }

        let mut changed = false;
        for (number, step) in crowded_parts(program, overflow) {
            if let Some(part) = parts.get(number as usize).filter(|part| part.target == target) {
                changed |= self.divide_part(program, part, overflow, step);
            }
        }
        changed
    }

    fn divide_part(&mut self, program: &Program, part: &Part, overflow: &Overflow, step: usize) -> bool {
        let capacity = program.devices[overflow.device].bytes;
        let memory = &overflow.steps[step];
        let needed = if memory.live > capacity { memory.live } else { overflow.needed };
        let pieces = needed.div_ceil(capacity.max(1)).clamp(2, part.nodes.len().max(2) as u64);
        let cuts = part.cuts(pieces);

        let before = self.cuts.len() + self.left.len();
        let remedy = if cuts.is_empty() || self.attempts > MAX_CUTTING_ATTEMPTS {
            self.left.extend(part.places());
            Remedy::Leave
        } else {
            self.cuts.extend(cuts);
            Remedy::Cut
        };

        let largest = memory.largest.map(|id| {
            let buffer = &program.buffers[id];
            let formula = program.facts.simplify(&program.bytes(id));
            let formula = formula.as_i64().map_or_else(|| format!(" ({formula})"), |_| String::new());
            format!("{}, has up to {}{formula}", buffer.name, memory.largest_bytes)
        });
        self.misfits.push(Misfit {
            title: part.title.clone(),
            places: part.places().collect(),
            remedy,
            needed,
            capacity,
            largest: largest.unwrap_or_default(),
        });
        self.cuts.len() + self.left.len() > before
    }

    /// A sentence for each part that did not fit, and for each node that was left.
    pub(crate) fn warnings(&self, parts: &[Part], targets: &Targets) -> Vec<String> {
        let mut warnings = Vec::new();
        for name in &self.in_turn {
            warnings.push(format!(
                "target {name}: its calls run one at a time, because the buffers of several calls at once don't fit \
                 into the device memory"
            ));
        }
        for (idx, misfit) in self.misfits.iter().enumerate() {
            // A piece of a part that is named already.
            let is_named = |other: &Misfit| misfit.places.is_subset(&other.places);
            if matches!(misfit.remedy, Remedy::Cut) && self.misfits[..idx].iter().any(is_named) {
                continue;
            }
            let Some(target) = misfit.places.first().map(|place| place.target) else { continue };
            let remedy = match misfit.remedy {
                Remedy::Cut => {
                    let is_piece = |part: &&Part| part.places().any(|place| misfit.places.contains(&place));
                    match parts.iter().filter(is_piece).count() {
                        0 => continue,
                        1 => "is cut, and 1 part of it fits".into(),
                        count => format!("is cut into {count} parts"),
                    }
                }
                Remedy::Leave if target + 1 < targets.len() => "is left to the next target or the CPU".into(),
                Remedy::Leave => "is left to the CPU".into(),
            };
            warnings.push(format!(
                "target {}: {} {remedy}: it needs up to {} bytes at once, and the device memory has {}; the largest \
                 buffer, {}",
                targets[target].name(),
                misfit.title,
                misfit.needed,
                misfit.capacity,
                misfit.largest
            ));
        }
        warnings
    }
}

/// The largest number of bytes alive at once, if the kernels run in order.
fn peak(overflow: &Overflow) -> u64 {
    overflow.steps.iter().map(|step| step.live).max().unwrap_or(0)
}

/// The parts that are computed while more is alive than the device has, and for each the kernel with the most alive.
/// If no kernel has too much alive, those with the most: the plan has gaps, or its kernels run in any order.
fn crowded_parts(program: &Program, overflow: &Overflow) -> BTreeMap<u32, usize> {
    let device = &program.devices[overflow.device];
    let limit = device.bytes.saturating_add(1).min(peak(overflow));
    let mut crowded: BTreeMap<u32, usize> = BTreeMap::new();
    for (idx, kernel) in program.kernels.iter().enumerate() {
        let Some(Control::Call(call)) = &kernel.control else { continue };
        let Some(part) = call.callee.part.0.filter(|_| call.callee.target == device.target) else { continue };
        if overflow.steps[idx].live < limit {
            continue;
        }
        let most = crowded.entry(part).or_insert(idx);
        if overflow.steps[idx].live > overflow.steps[*most].live {
            *most = idx;
        }
    }
    crowded
}
