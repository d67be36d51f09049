//! Contractions of `f32` as matrix multiplications.

use super::{
    matrix::Matrix,
    multiply::{Multiplication, multiply},
    offsets::Offsets,
    parts::{all_finite, is_whole},
    source::Source,
    threads::run_jobs,
};
use crate::{
    error::{Error, Result},
    graph::{Label, eval::writer::from_floats},
    scalar::Precision,
    tensor::Tensor,
};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

/// Elements that a job looks at for infinities.
const JOB: usize = 1 << 18;

/// Sums of products at a precision. No operand is a [`Source::Map`].
pub(super) struct Contraction<'c> {
    pub(super) labels: [&'c [Label]; 3],
    pub(super) precision: Precision,
    pub(super) operands: [&'c Source<'c>; 2],
}

/// The sums of products. `None` for operands that are not finite, whose products the definition decides.
pub(super) fn contractions(list: &[Contraction<'_>]) -> Result<Vec<Option<Tensor>>> {
    let all: Vec<(Layout, [Matrix; 2])> = list.iter().map(Contraction::prepared).collect::<Result<_>>()?;
    let is_finite = finite(&all)?;
    let mut products: Vec<Option<Vec<f32>>> = list.iter().map(|_| None).collect();
    let mut multiplications = Vec::new();
    for (idx, ((layout, matrices), product)) in all.iter().zip(&mut products).enumerate() {
        if is_finite[idx] {
            let product = product.insert(vec![0.0; layout.shape().iter().product()]);
            let [left, right] = matrices;
            // Precisions without parts multiply alike.
            let precision = if is_whole(list[idx].precision) { Precision::F32 } else { list[idx].precision };
            multiplications.push(Multiplication { left, right, precision, product });
        }
    }
    multiply(multiplications)?;
    let result = |((_, layout), product): ((usize, &Layout), Option<Vec<f32>>)| {
        product.map(|product| layout.ordered(product)).transpose()
    };
    all.iter().map(|(layout, _)| layout).enumerate().zip(products).map(result).collect()
}

/// Whether all elements of both operands are finite, for each contraction.
fn finite(all: &[(Layout, [Matrix<'_>; 2])]) -> Result<Vec<bool>> {
    let mut checked: Vec<(&[f32], AtomicBool)> = Vec::new();
    let mut places = Vec::new();
    for (_, matrices) in all {
        places.push([0, 1].map(|side| {
            let elems = &matrices[side].elems[..];
            let place = checked.iter().position(|(other, _)| std::ptr::eq(*other, elems));
            place.unwrap_or_else(|| {
                checked.push((elems, AtomicBool::new(true)));
                checked.len() - 1
            })
        }));
    }
    let of_operand = |(elems, flag)| {
        let elems: &[f32] = elems;
        elems.chunks(JOB).map(move |part| (part, flag))
    };
    let jobs: Vec<(&[f32], &AtomicBool)> =
        checked.iter().map(|(elems, flag)| (*elems, flag)).flat_map(of_operand).collect();
    let work = 4 * checked.iter().map(|(elems, _)| elems.len()).sum::<usize>();
    run_jobs(work, jobs, |(part, flag)| {
        if !all_finite(part) {
            flag.store(false, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let is_finite = |place: &usize| checked[*place].1.load(Ordering::Relaxed);
    Ok(places.iter().map(|places| places.iter().all(is_finite)).collect())
}

impl<'c> Contraction<'c> {
    /// The layout of the product, and the left and the right matrices.
    fn prepared(&self) -> Result<(Layout, [Matrix<'c>; 2])> {
        let layout = Layout::of(self.labels, self.operands.map(Source::shape));
        let matrix = |side: usize, lines: &[Label]| {
            let sized = |labels: &[Label]| -> Vec<(Label, usize)> {
                labels.iter().map(|label| (*label, layout.sizes[label])).collect()
            };
            let groups = [&layout.outer[..], lines, &layout.depth].map(sized);
            let groups = groups.each_ref().map(Vec::as_slice);
            let (tensor, offsets) = match self.operands[side] {
                Source::Tensor(tensor) => (tensor, None),
                Source::View(view) => (&view.tensor, Some(&view.offsets)),
                Source::Map(_) => {
                    return Err(Error::internal("an operand of a contraction that is not stored"));
                }
            };
            Ok(match offsets {
                Some(offsets) => Matrix::of(tensor, offsets, self.labels[side], groups),
                None => Matrix::of(tensor, &Offsets::dense(tensor.shape()), self.labels[side], groups),
            })
        };
        let sides = if layout.is_swapped { [1, 0] } else { [0, 1] };
        let left = matrix(sides[0], &layout.rows)?;
        let right = matrix(sides[1], &layout.columns)?;
        Ok((layout, [left, right]))
    }
}

/// How a contraction is a list of products of two matrices.
struct Layout {
    /// Whether the right matrices are of operand 0.
    is_swapped: bool,
    /// One product for each index.
    outer: Vec<Label>,
    /// Labels of the left matrices only.
    rows: Vec<Label>,
    /// Labels of the right matrices only.
    columns: Vec<Label>,
    depth: Vec<Label>,
    /// The labels of the result.
    out: Vec<Label>,
    sizes: BTreeMap<Label, usize>,
}

impl Layout {
    /// Columns are the last axes of the result if possible, so that products are dense there.
    fn of([lhs, rhs, out]: [&[Label]; 3], shapes: [&[usize]; 2]) -> Layout {
        let labelled = lhs.iter().zip(shapes[0]).chain(rhs.iter().zip(shapes[1]));
        let is_swapped = out.last().is_some_and(|last| !rhs.contains(last));
        let [left, right] = if is_swapped { [rhs, lhs] } else { [lhs, rhs] };
        let is_column = |label: &Label| !left.contains(label);
        let n_last = out.iter().rev().take_while(|label| is_column(label)).count();
        let candidates = if n_last == 0 { out } else { &out[out.len() - n_last..] };
        let columns: Vec<Label> = candidates.iter().copied().filter(is_column).collect();
        let rows: Vec<Label> = out.iter().copied().filter(|label| !right.contains(label)).collect();
        let is_outer = |label: &Label| !rows.contains(label) && !columns.contains(label);
        Layout {
            is_swapped,
            outer: out.iter().copied().filter(is_outer).collect(),
            depth: left.iter().copied().filter(|label| !out.contains(label)).collect(),
            rows,
            columns,
            out: out.to_vec(),
            sizes: labelled.map(|(label, size)| (*label, *size)).collect(),
        }
    }

    fn order(&self) -> Vec<Label> {
        [&self.outer[..], &self.rows, &self.columns].concat()
    }

    /// The shape of the products.
    fn shape(&self) -> Vec<usize> {
        self.order().iter().map(|label| self.sizes[label]).collect()
    }

    /// The result, from the products.
    fn ordered(&self, products: Vec<f32>) -> Result<Tensor> {
        let order = self.order();
        let ordered = self.shape();
        let products = from_floats(&ordered, products)?;
        if order == self.out {
            return Ok(products);
        }
        let axis = |label: &Label| order.iter().position(|other| other == label).unwrap_or(0);
        let places = Offsets::dense(&ordered).permuted(&self.out.iter().map(axis).collect::<Vec<_>>());
        let shape: Vec<usize> = self.out.iter().map(|label| self.sizes[label]).collect();
        places.gather(&products, &shape)
    }
}
