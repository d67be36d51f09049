//! Chooses where a program is cut. Pieces have similar work and exchange few bytes, and the longest chain stays short.

use super::{
    count::Count,
    depend::{Atom, Graph},
};
use std::collections::{BTreeMap, BTreeSet};

/// The smallest work of a piece, a few microseconds: less does not justify an entry of the table.
const MIN_WORK: f64 = 100_000.0;

/// The smallest work of a piece, as a fraction of all work.
const MIN_SHARE: f64 = 0.005;

/// If the longest chain is this fraction of all work, parallel branches gain nothing.
const NO_GAIN: f64 = 0.95;

/// With more pieces than this, merging ignores its effect on the longest chain.
const MANY: usize = 200;

/// Weight of the bytes exchanged, relative to balance.
const BYTES_WEIGHT: f64 = 0.25;

/// The atoms of each piece, in ascending order. The order of the pieces respects the dependencies; among ready pieces,
/// the one with the longest path to the end comes first.
pub(super) fn pieces(graph: &Graph, count: Count) -> Vec<Vec<usize>> {
    if graph.atoms.is_empty() {
        return vec![Vec::new()];
    }

    let mut pieces = Pieces::of(graph);
    pieces.join_parts();
    pieces.join_chains();

    match count {
        Count::Auto => pieces.merge_small(),
        Count::Of(count) => {
            pieces.merge_isolated();
            pieces.merge_to(count.get() as usize);
            pieces.split_to(count.get() as usize);
        }
    }

    pieces.take_turns();
    pieces.in_order()
}

struct Piece {
    atoms: Vec<usize>,
    work: f64,
}

/// Dependencies between pieces, with the bytes exchanged.
type Edges = BTreeMap<(usize, usize), f64>;

struct Pieces<'g> {
    graph: &'g Graph,
    list: BTreeMap<usize, Piece>,
    edges: Edges,
    total: f64,
}

impl<'g> Pieces<'g> {
    /// One for each atom.
    fn of(graph: &'g Graph) -> Pieces<'g> {
        let piece = |(number, atom): (usize, &Atom)| (number, Piece { atoms: vec![number], work: atom.work });
        let list: BTreeMap<usize, Piece> = graph.atoms.iter().enumerate().map(piece).collect();
        let edges = graph.atoms.iter().enumerate();
        let edges = edges.flat_map(|(to, atom)| atom.after.iter().map(move |e| ((e.from, to), e.bytes)));
        let total = list.values().map(|piece| piece.work).sum();
        Pieces { graph, edges: edges.collect(), list, total }
    }

    /// Merges the calls of each part on an exclusive target. They never run at once, and if other parts ran in between,
    /// the operands of several parts would be in the device memory at once.
    fn join_parts(&mut self) {
        let mut last: BTreeMap<u32, usize> = BTreeMap::new();
        for (number, atom) in self.graph.atoms.iter().enumerate() {
            let Some(part) = atom.part.filter(|_| self.graph.is_exclusive(number)) else { continue };
            let before = last.insert(part, number);
            let can_merge =
                |other: &usize| !self.has_detour(*other, number) && !self.has_detour(number, *other);
            if let Some(other) = before.filter(can_merge) {
                self.merge(other, number);
            }
        }
    }

    /// Adds edges between the pieces that call a target with a limit: the piece that could begin first has its turn
    /// first. The order of all pieces by that time respects their dependencies, so the edges form no cycle.
    fn take_turns(&mut self) {
        if self.graph.limits.is_empty() {
            return;
        }
        let order = self.order();
        let begins = self.begins(&order);
        let mut sorted: Vec<usize> = (0..order.len()).collect();
        sorted.sort_by(|a, b| begins[&order[*a]].total_cmp(&begins[&order[*b]]).then(a.cmp(b)));

        let mut callers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for piece in sorted.into_iter().map(|position| order[position]) {
            for limit in self.graph.limits_of(&self.list[&piece].atoms) {
                let at_once = self.graph.limits[limit].at_once.get() as usize;
                let earlier = callers.entry(limit).or_default();
                if let Some(idx) = earlier.len().checked_sub(at_once) {
                    self.edges.entry((earlier[idx], piece)).or_insert(0.0);
                }
                earlier.push(piece);
            }
        }
    }

    /// The time at which each piece could begin if no target had a limit, given an order of the pieces.
    fn begins(&self, order: &[usize]) -> BTreeMap<usize, f64> {
        let mut begins: BTreeMap<usize, f64> = BTreeMap::new();
        for piece in order {
            let ends = self.before(*piece).into_iter().map(|other| begins[&other] + self.list[&other].work);
            begins.insert(*piece, ends.fold(0.0, f64::max));
        }
        begins
    }

    /// Merges a piece into its only predecessor, if it is the only successor of that one.
    fn join_chains(&mut self) {
        let all: Vec<usize> = self.list.keys().copied().collect();
        for to in all {
            if let [from] = self.before(to)[..]
                && self.after(from).len() == 1
                && self.on_one_target(from, to)
            {
                self.merge(from, to);
            }
        }
    }

    /// Whether both run on the same target. Pieces of different targets are never merged.
    fn on_one_target(&self, a: usize, b: usize) -> bool {
        let target =
            |piece: usize| self.list[&piece].atoms.first().map(|atom| &self.graph.atoms[*atom].target);
        target(a) == target(b)
    }

    fn before(&self, piece: usize) -> Vec<usize> {
        self.edges.keys().filter(|(_, to)| *to == piece).map(|(from, _)| *from).collect()
    }

    fn after(&self, piece: usize) -> Vec<usize> {
        self.edges.range((piece, 0)..=(piece, usize::MAX)).map(|((_, to), _)| *to).collect()
    }

    /// A piece that shares a successor with this one, where no path leads from one to the other.
    fn sibling(&self, piece: usize) -> Option<usize> {
        let after = self.after(piece);
        let others = self.edges.keys().filter(|(from, to)| *from != piece && after.contains(to));
        others.map(|(from, _)| *from).find(|other| {
            // Every path counts as a detour here, because no edge connects the two.
            self.on_one_target(piece, *other)
                && !self.has_detour(piece, *other)
                && !self.has_detour(*other, piece)
                && !self.after(piece).contains(other)
                && !self.after(*other).contains(&piece)
        })
    }

    fn is_isolated(&self, piece: usize) -> bool {
        !self.edges.keys().any(|(from, to)| [*from, *to].contains(&piece))
    }

    /// The piece with the largest work, this one excluded.
    fn largest_but(&self, piece: usize) -> Option<usize> {
        let others =
            self.list.iter().filter(|(number, _)| **number != piece && self.on_one_target(**number, piece));
        others.max_by(|a, b| a.1.work.total_cmp(&b.1.work)).map(|(number, _)| *number)
    }

    /// Merges two pieces into `into`.
    fn merge(&mut self, a: usize, b: usize) {
        // The later piece keeps its index, so that chains walked in ascending order keep growing.
        let gone = a.min(b);
        let into = a.max(b);
        let Some(lost) = self.list.remove(&gone) else { return };

        if let Some(piece) = self.list.get_mut(&into) {
            piece.work += lost.work;
            piece.atoms.extend(lost.atoms);
            piece.atoms.sort_unstable();
        }

        let named = |piece: usize| if piece == gone { into } else { piece };
        let mut edges = Edges::new();
        for ((from, to), bytes) in &self.edges {
            let from = named(*from);
            let to = named(*to);
            if from != to {
                *edges.entry((from, to)).or_insert(0.0) += bytes;
            }
        }

        self.edges = edges;
    }

    /// Whether a path leads from one piece to the other besides the edge between them.
    fn has_detour(&self, from: usize, to: usize) -> bool {
        let mut queue: Vec<usize> = self.after(from).into_iter().filter(|next| *next != to).collect();
        let mut seen: BTreeSet<usize> = queue.iter().copied().collect();
        while let Some(piece) = queue.pop() {
            if piece == to {
                return true;
            }
            queue.extend(self.after(piece).into_iter().filter(|next| seen.insert(*next)));
        }
        false
    }

    /// The work of the longest path from each piece to the end, its own included; `joined` counts as one piece.
    fn to_the_end(&self, joined: Option<(usize, usize)>) -> BTreeMap<usize, f64> {
        let named = |piece: usize| match joined {
            Some((gone, into)) if piece == gone => into,
            _ => piece,
        };

        let mut left: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut sources: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (from, to) in self.edges.keys().map(|(from, to)| (named(*from), named(*to))) {
            if from != to {
                left.entry(from).or_default().insert(to);
                sources.entry(to).or_default().insert(from);
            }
        }

        let mut work: BTreeMap<usize, f64> = BTreeMap::new();
        self.list.iter().for_each(|(number, piece)| *work.entry(named(*number)).or_insert(0.0) += piece.work);

        let mut ends: Vec<usize> = work.keys().copied().filter(|piece| !left.contains_key(piece)).collect();
        let mut longest: BTreeMap<usize, f64> = BTreeMap::new();
        while let Some(piece) = ends.pop() {
            let path = longest.get(&piece).copied().unwrap_or(0.0) + work[&piece];
            longest.insert(piece, path);

            for source in sources.get(&piece).into_iter().flatten() {
                let longest_after = longest.entry(*source).or_insert(0.0);
                *longest_after = longest_after.max(path);
                if let Some(open) = left.get_mut(source) {
                    open.remove(&piece);
                    if open.is_empty() {
                        ends.push(*source);
                    }
                }
            }
        }

        longest
    }

    fn longest(&self, joined: Option<(usize, usize)>) -> f64 {
        self.to_the_end(joined).into_values().fold(0.0, f64::max)
    }

    /// Merges pieces that are too small into a neighbour, and all pieces into one where branches gain nothing.
    fn merge_small(&mut self) {
        let min_work = MIN_WORK.max(self.total * MIN_SHARE);
        let mut stuck = BTreeSet::new();
        loop {
            let small =
                self.list.iter().filter(|(number, piece)| piece.work < min_work && !stuck.contains(*number));

            let Some(number) = small.min_by(|a, b| a.1.work.total_cmp(&b.1.work)).map(|(number, _)| *number)
            else {
                break;
            };

            let adjacent = self.edges.iter().filter(|((from, to), _)| [*from, *to].contains(&number));
            let adjacent = adjacent
                .filter(|((from, to), _)| self.on_one_target(*from, *to) && !self.has_detour(*from, *to));
            let key = |from: usize, to: usize, bytes: f64| {
                (self.longest((self.list.len() <= MANY).then_some((from, to))), -bytes)
            };

            // The longest path may grow by no more than the piece itself, or branches would wait for each other.
            let max_path =
                if self.list.len() <= MANY { self.longest(None) + self.list[&number].work } else { f64::MAX };

            let best = adjacent.map(|((from, to), bytes)| (key(*from, *to, *bytes), (*from, *to)));
            match best
                .filter(|((path, _), _)| *path <= max_path)
                .min_by(|(a, _), (b, _)| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)))
            {
                Some((_, (from, to))) => self.merge(from, to),
                None if self.is_isolated(number) => match self.largest_but(number) {
                    Some(other) => self.merge(number, other),
                    None => _ = stuck.insert(number),
                },
                None => match self.sibling(number) {
                    Some(other) if self.longest(Some((number, other))) <= max_path => {
                        self.merge(number, other)
                    }
                    _ => _ = stuck.insert(number),
                },
            }
        }

        self.join_chains();
        if self.longest(None).max(self.longest_turns()) >= self.total * NO_GAIN {
            self.merge_to(1);
        }
    }

    /// The largest work of a target with a limit, divided by the number of calls at once.
    fn longest_turns(&self) -> f64 {
        let work_of = |limit: usize| -> f64 {
            let calls = self.graph.atoms.iter().filter(|atom| atom.limits.contains(&limit));
            calls.map(|atom| atom.work).sum()
        };
        let limits = self.graph.limits.iter().enumerate();
        limits.map(|(idx, limit)| work_of(idx) / f64::from(limit.at_once.get())).fold(0.0, f64::max)
    }

    /// Merges small pieces without dependencies into the largest piece, because they must not count as pieces.
    fn merge_isolated(&mut self) {
        let min_work = self.total * MIN_SHARE;
        let small =
            self.list.iter().filter(|(number, piece)| piece.work < min_work && self.is_isolated(**number));
        for number in small.map(|(number, _)| *number).collect::<Vec<_>>() {
            if let Some(largest) = self.largest_but(number) {
                self.merge(number, largest);
            }
        }
    }

    /// Merges until at most `count` pieces remain.
    fn merge_to(&mut self, count: usize) {
        while self.list.len() > count {
            let max_bytes = self.edges.values().copied().fold(1.0, f64::max);
            let score = |from: usize, to: usize, bytes: f64| {
                let work = self.list[&from].work + self.list[&to].work;
                let longest = if self.list.len() <= MANY { self.longest(Some((from, to))) } else { 0.0 };
                (work + longest) / self.total - BYTES_WEIGHT * bytes / max_bytes / count as f64
            };

            let near = self
                .edges
                .iter()
                .filter(|((from, to), _)| self.on_one_target(*from, *to) && !self.has_detour(*from, *to));

            let best = near.map(|((from, to), bytes)| (score(*from, *to, *bytes), (*from, *to)));
            let best = best.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, pair)| pair);
            let Some((from, to)) = best.or_else(|| self.two_smallest()) else { return };
            self.merge(from, to);
        }
    }

    /// The two pieces of one target with the smallest work. Without edges, any two can be merged.
    fn two_smallest(&self) -> Option<(usize, usize)> {
        let mut all: Vec<usize> = self.list.keys().copied().filter(|_| self.edges.is_empty()).collect();
        all.sort_by(|a, b| self.list[a].work.total_cmp(&self.list[b].work));
        let pairs = all.iter().enumerate().flat_map(|(k, a)| all[k + 1..].iter().map(move |b| (*a, *b)));
        pairs.into_iter().find(|(a, b)| self.on_one_target(*a, *b))
    }

    /// Divides the largest pieces until there are `count`, or no piece has more than one atom.
    fn split_to(&mut self, count: usize) {
        while self.list.len() < count {
            let divisible = self.list.iter().filter(|(_, piece)| piece.atoms.len() > 1);
            let largest = divisible.max_by(|a, b| a.1.work.total_cmp(&b.1.work)).map(|(number, _)| *number);
            let Some(number) = largest else { return };
            self.split(number);
        }
    }

    /// Divides a piece in two at an atom. The first part can't depend on the second one.
    fn split(&mut self, number: usize) {
        let Some(Piece { atoms, work }) = self.list.remove(&number) else { return };
        let bytes_at = |at: usize| -> f64 {
            let edges = atoms[at..].iter().flat_map(|to| &self.graph.atoms[*to].after);
            edges.filter(|edge| atoms[..at].contains(&edge.from)).map(|edge| edge.bytes).sum()
        };

        let crossing: Vec<f64> = (1..atoms.len()).map(bytes_at).collect();
        let max_bytes = crossing.iter().copied().fold(1.0, f64::max);

        let mut first = 0.0;
        let mut best = (f64::INFINITY, 1);
        for (at, bytes) in (1..atoms.len()).zip(&crossing) {
            first += self.graph.atoms[atoms[at - 1]].work;
            let score = (work - 2.0 * first).abs() / work + BYTES_WEIGHT * bytes / max_bytes;
            if score < best.0 {
                best = (score, at);
            }
        }

        let (head, tail) = atoms.split_at(best.1);
        for part in [head, tail] {
            let work = part.iter().map(|atom| self.graph.atoms[*atom].work).sum();
            let name = part[part.len() - 1];
            self.list.insert(name, Piece { atoms: part.to_vec(), work });
        }

        self.edges = self.edges_between();
    }

    /// Recomputes the edges.
    fn edges_between(&self) -> Edges {
        let mut of = vec![0; self.graph.atoms.len()];
        for (number, piece) in &self.list {
            piece.atoms.iter().for_each(|atom| of[*atom] = *number);
        }
        let mut edges = Edges::new();
        for (to, atom) in self.graph.atoms.iter().enumerate() {
            for edge in atom.after.iter().filter(|edge| of[edge.from] != of[to]) {
                *edges.entry((of[edge.from], of[to])).or_insert(0.0) += edge.bytes;
            }
        }
        edges
    }

    /// The pieces, each after its dependencies. Among the pieces that could come next, the one with the longest path
    /// to the end is chosen.
    fn in_order(mut self) -> Vec<Vec<usize>> {
        self.order().iter().filter_map(|piece| self.list.remove(piece)).map(|piece| piece.atoms).collect()
    }

    /// The order of [`Pieces::in_order`].
    fn order(&self) -> Vec<usize> {
        let paths = self.to_the_end(None);
        let mut left: BTreeSet<usize> = self.list.keys().copied().collect();
        let mut order = Vec::with_capacity(left.len());
        while !left.is_empty() {
            let is_free =
                |piece: &usize| !self.edges.keys().any(|(from, to)| to == piece && left.contains(from));
            let free = left.iter().copied().filter(is_free);
            let Some(next) = free.max_by(|a, b| paths[a].total_cmp(&paths[b]).then(b.cmp(a))) else { break };
            left.remove(&next);
            order.push(next);
        }
        order
    }
}
