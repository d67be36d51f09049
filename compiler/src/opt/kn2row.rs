//! Computes convolutions with a few columns as a matrix multiplication whose columns are the taps too.
//!
//! A convolution to three channels fills three lanes of each vector. All pixels are multiplied with the weights of each
//! tap instead, and the products of the taps are added at their distances:
//!
//! ```text
//! y[p, o] = sum over j, c of x[p + j, c] w[o, c, j]
//! ⇒  z[q, o, j] = sum over c of x[q, c] w[o, c, j]    y[p, o] = sum over j of z[p + j, o, j]
//! ```
//!
//! Either the taps along the outermost axes of the image become columns, or all of them, because `z` is in memory. With
//! a stride, `z` also has the elements between the positions.
//!
//! The method is `kn2row` of Vasudevan, Anderson and Gregg, "Parallel Multi Channel Convolution using General Matrix
//! Multiplication", ASAP 2017.

use super::{dead::dead, rebuild::rebuild, views::compose};
use crate::{
    error::{Error, Result},
    graph::{Graph, Label, Node, Op, Value, axis},
    tensor::points,
};
use num_bigint::BigInt;
use std::ops::RangeInclusive;
use symshape::{Bounds, Dim, Facts};
use symshape_runtime::DType;

/// Elements of a vector. Narrower vectors have fewer empty lanes without the pass, and gain less.
const LANES: i64 = 16;

/// An element of `z` takes as long as this many multiply-adds: it is stored, loaded and added.
const ELEMENT_COST: i64 = 5;

/// The time divided by this must be saved, because `z` takes memory.
const MIN_GAIN: i64 = 5;

/// The most terms of the sum of an element.
const MAX_TERMS: i64 = 64;

/// The numbers of taps along an axis.
const TAPS: RangeInclusive<i64> = 2..=MAX_TERMS;

/// The largest distance of taps and of positions.
const MAX_STEP: i64 = 64;

/// An axis of the image has this many elements for each one that the taps add to it, so a quarter of the time is lost.
const ELEMENTS_PER_ADDED: i64 = 4;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn kn2row(graph: &mut Graph) -> Result<()> {
    if !graph.nodes.values().any(|node| Convolution::of(graph, node).is_some()) {
        return Ok(());
    }
    rebuild(graph, |new, node| {
        let Some(convolution) = Convolution::of(new, node) else { return Ok(None) };
        Ok(Some(vec![convolution.build(new, node)?]))
    })?;
    dead(graph)
}

/// A convolution with constant weights, and the taps that should become columns.
struct Convolution {
    /// The operand that is the image, and the value that it is a view of.
    side: usize,
    base: Value,
    image: Vec<Label>,
    weights: Vec<Label>,
    out: Vec<Label>,
    /// The sizes of the image, and its coordinates in `base`.
    shape: Vec<Dim>,
    index: Vec<Dim>,
    taps: Vec<Taps>,
}

/// An axis of the image with taps.
#[derive(Clone)]
struct Taps {
    axis: usize,
    count: i64,
    /// The coordinate that the taps move, and the only other axis that moves it.
    coordinate: usize,
    position: usize,
    /// Elements from one tap to the next.
    step: i64,
    /// Elements from one position to the next.
    stride: i64,
    /// The coordinate of the first tap at the first position.
    start: Dim,
}

impl Taps {
    /// Elements from the first tap to the last.
    fn span(&self) -> i64 {
        self.step * (self.count - 1)
    }

    /// The elements of the image that the taps meet along `positions` positions.
    fn met(&self, positions: &Dim) -> Dim {
        (positions - 1) * self.stride + 1 + self.span()
    }

    /// Whether there are few positions that only some of the taps meet. A range counts by the geometric mean of its
    /// ends.
    fn adds_little(&self, positions: &Bounds) -> bool {
        let added = BigInt::from(ELEMENTS_PER_ADDED * self.span());
        let Bounds { lo: Some(fewest), hi } = positions else { return false };
        hi.as_ref().is_none_or(|most| fewest * most * self.stride * self.stride >= added.pow(2))
    }
}

impl Convolution {
    /// `None` if the node is not a convolution, or if its taps should not become columns.
    fn of(graph: &Graph, node: &Node) -> Option<Convolution> {
        let Op::Contraction { lhs, rhs, out, dtype: DType::F32, .. } = &node.op else { return None };
        let has_weights = |side: &usize| {
            let weights = graph.viewed_constant(node.operands[1 - side]);
            weights.is_some_and(|weights| weights.few_bits().is_none())
        };
        let side = (0..2).find(has_weights)?;
        let Op::View { shape, index } = graph.op(node.operands[side]) else { return None };
        let [image, weights] = if side == 0 { [lhs, rhs] } else { [rhs, lhs] };
        let columns = elements(weights, graph.shape(node.operands[1 - side]), |label| out.contains(label))?;
        let terms = elements(image, shape, |label| !out.contains(label))?;
        // Groups have weights for themselves.
        let has_groups = out.iter().any(|label| image.contains(label) && weights.contains(label));
        if has_groups || columns >= LANES {
            return None;
        }
        let mut convolution = Convolution {
            side,
            base: graph.operands(node.operands[side])[0],
            image: image.clone(),
            weights: weights.clone(),
            out: out.clone(),
            shape: shape.clone(),
            index: index.clone(),
            taps: Vec::new(),
        };
        convolution.taps = cheapest(&convolution.all_taps(graph), columns, terms)?;
        Some(convolution)
    }

    /// All axes with taps, in the order of the coordinates that they move.
    fn all_taps(&self, graph: &Graph) -> Vec<Taps> {
        let (facts, base) = (graph.index_facts(&self.shape), graph.shape(self.base));
        let mut found: Vec<Taps> =
            (0..self.shape.len()).filter_map(|k| self.taps_along(&facts, base, k)).collect();
        found.sort_by_key(|taps| taps.coordinate);
        found
    }

    /// The taps along axis `k` of the image, if it has some.
    fn taps_along(&self, facts: &Facts, base: &[Dim], k: usize) -> Option<Taps> {
        let count = self.shape[k].as_i64().filter(|count| TAPS.contains(count))?;
        let is_kept = self.out.contains(&self.image[k]);
        let is_weighted = self.weights.contains(&self.image[k]);
        let coordinate = self.only_coordinate(k).filter(|_| !is_kept && is_weighted)?;
        let at = &self.index[coordinate];
        let position = (0..self.shape.len()).find(|other| *other != k && at.contains(&axis(*other)))?;

        let (step, rest) = facts.linear_in(at, &axis(k))?;
        let (stride, start) = facts.linear_in(&rest, &axis(position))?;
        let is_alone = self.only_coordinate(position).is_some()
            && self.out.contains(&self.image[position])
            && !(0..self.shape.len()).any(|other| start.contains(&axis(other)));
        if !is_alone {
            return None;
        }

        let is_short = |n: &i64| (1..=MAX_STEP).contains(n);
        let [step, stride] = [step, stride].map(|n| n.as_i64().filter(is_short));
        let taps = Taps { axis: k, count, coordinate, position, step: step?, stride: stride?, start };
        let met = taps.met(&self.shape[position]);
        let is_inside = facts.prove_le(&Dim::zero(), &taps.start).is_yes()
            && facts.prove_le(&Dim::zero(), &met).is_yes()
            && facts.prove_le(&(&taps.start + met), &base[coordinate]).is_yes();
        (is_inside && taps.adds_little(&facts.bounds(&self.shape[position]))).then_some(taps)
    }

    /// The coordinate that axis `k` moves, if it moves only one.
    fn only_coordinate(&self, k: usize) -> Option<usize> {
        let mut moved = (0..self.index.len()).filter(|a| self.index[*a].contains(&axis(k)));
        moved.next().filter(|_| moved.next().is_none())
    }

    /// Emits the multiplication and the sum of its products.
    fn build(&self, graph: &mut Graph, node: &Node) -> Result<Value> {
        let products = self.products(graph, node)?;
        let mut sum = None;
        let counts: Vec<i64> = self.taps.iter().map(|taps| taps.count).collect();
        for point in points(&counts) {
            let term = self.term(graph, products, &point)?;
            sum = Some(match sum {
                Some(sum) => graph.add(sum, term)?,
                None => term,
            });
        }
        sum.ok_or_else(|| Error::internal("a convolution without taps"))
    }

    /// `z`: the products of all elements of the image that any tap meets. Its last axes are the taps.
    fn products(&self, graph: &mut Graph, node: &Node) -> Result<Value> {
        let is_tap = |k: usize| self.taps.iter().any(|taps| taps.axis == k);
        let (mut labels, mut shape, mut by) = (Vec::new(), Vec::new(), Vec::new());
        for (k, extent) in self.shape.iter().enumerate() {
            if is_tap(k) {
                by.push(Dim::zero());
                continue;
            }
            by.push(Dim::from(axis(shape.len())));
            labels.push(self.image[k]);
            let met = self.taps.iter().find(|taps| taps.position == k).map(|taps| taps.met(extent));
            shape.push(met.map_or_else(|| extent.clone(), |met| graph.facts.simplify(&met)));
        }
        let mut index = compose(&self.index, &by);
        for taps in &self.taps {
            index[taps.coordinate] = &taps.start + &by[taps.position];
        }
        let image = graph.view(self.base, shape, index)?;

        let taps = self.taps.iter().map(|taps| self.image[taps.axis]);
        let out: Vec<Label> = self.out.iter().copied().chain(taps).collect();
        let (mut op, mut operands) = (node.op.clone(), node.operands.clone());
        operands[self.side] = image;
        if let Op::Contraction { lhs, rhs, out: labels_out, .. } = &mut op {
            *[lhs, rhs][self.side] = labels;
            *labels_out = out;
        }
        graph.push(op, &operands)
    }

    /// The products of one tap along each of the axes, for each element of the result.
    fn term(&self, graph: &mut Graph, products: Value, point: &[i64]) -> Result<Value> {
        let mut shape = graph.shape(products)[..self.out.len()].to_vec();
        let mut index: Vec<Dim> = (0..self.out.len()).map(|k| Dim::from(axis(k))).collect();
        for (taps, tap) in self.taps.iter().zip(point) {
            let label = self.image[taps.position];
            if let Some(k) = self.out.iter().position(|other| *other == label) {
                shape[k] = self.shape[taps.position].clone();
                index[k] = &index[k] * taps.stride + taps.step * tap;
            }
        }
        index.extend(point.iter().map(|tap| Dim::from(*tap)));
        graph.view(products, shape, index)
    }
}

/// The number of elements along the axes with such labels, if it is known.
fn elements(labels: &[Label], shape: &[Dim], is_counted: impl Fn(&Label) -> bool) -> Option<i64> {
    let mut counted = labels.iter().zip(shape).filter(|(label, _)| is_counted(label));
    counted.try_fold(1i64, |n, (_, extent)| n.checked_mul(extent.as_i64()?))
}

/// The outermost taps, or all, whichever take the least time as columns. `None` if that does not save enough. A sum has
/// `terms` terms, and its columns are in one vector.
fn cheapest(taps: &[Taps], columns: i64, terms: i64) -> Option<Vec<Taps>> {
    let after = |taps: &[Taps]| {
        let count: i64 = taps.iter().map(|taps| taps.count).product();
        let elements = columns * count;
        let time = terms / count * ((elements + LANES - 1) / LANES) + elements * ELEMENT_COST;
        let rows: i64 = taps.iter().map(|taps| taps.stride).product();
        (count <= MAX_TERMS).then_some(time.saturating_mul(rows))
    };
    let choices = (1..=taps.len()).map(|count| &taps[..count]);
    let (time, cheapest) =
        choices.filter_map(|taps| Some((after(taps)?, taps))).min_by_key(|(time, _)| *time)?;
    (time <= terms - terms / MIN_GAIN).then(|| cheapest.to_vec())
}
