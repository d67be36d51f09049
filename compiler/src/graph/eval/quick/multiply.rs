//! Products of many matrices at once.
//!
//! Often one matrix is multiplied with several others: the weights of a layer with the activations of each image and
//! of each call. Their lines are copied one after another and multiplied together, so the weights are divided into
//! parts and packed once. An element is the same sum in the same order in any case, whichever thread computes it.

use super::{
    matrix::{Matrix, view},
    parts::{Parts, has_low, is_whole, split},
    threads::run_jobs,
    wide,
};
use crate::{
    error::{Error, Result},
    scalar::Precision,
};
use ndarray::{Array2, ArrayViewMut2, Axis, ShapeBuilder, linalg::general_mat_mul, s};
use std::{borrow::Cow, cmp::Reverse, collections::BTreeMap, ops::Range};

/// Elements of the moving lines of a job.
const JOB_ELEMS: usize = 1 << 18;

/// Moving lines of a job, at least and at most.
const JOB_LINES: [usize; 2] = [256, 1024];

/// Jobs of a product, if each has as many rows as [`MIN_ROWS`].
const JOBS: usize = 4;

/// Fixed lines of a job. With fewer, copying the moving lines takes too long.
const MIN_ROWS: usize = 128;

/// Multiplications of a job that multiplies several small pairs of matrices.
const PAIRS_WORK: usize = 1 << 20;

/// The row-major products of two lists of matrices.
pub(super) struct Multiplication<'m> {
    pub(super) left: &'m Matrix<'m>,
    pub(super) right: &'m Matrix<'m>,
    pub(super) precision: Precision,
    pub(super) product: &'m mut [f32],
}

/// Computes all products.
pub(super) fn multiply(mut list: Vec<Multiplication<'_>>) -> Result<()> {
    list.retain(|one| !one.product.is_empty() && !one.left.depth.is_empty());
    let mut groups = grouped(list);
    let splits: Vec<Vec<(Precision, Fixed)>> = groups.iter().map(Group::splits).collect::<Result<_>>()?;
    let work = groups.iter().flat_map(|group| &group.members).map(Multiplication::work).sum();
    let mut jobs = Vec::new();
    for (group, splits) in groups.iter_mut().zip(&splits) {
        let Some(side) = group.fixed else {
            jobs.extend(group.members.iter_mut().flat_map(pairs));
            continue;
        };
        let mut members: BTreeMap<Precision, Vec<&mut Multiplication>> = BTreeMap::new();
        for one in &mut group.members {
            members.entry(one.precision).or_default().push(one);
        }
        for (precision, fixed) in splits {
            let blocks = blocks(side, members.remove(precision).unwrap_or_default())?;
            jobs.extend(stacked_jobs(*precision, fixed, blocks));
        }
    }
    // Threads take the first ones first: the largest work at the end would keep one of them waiting.
    jobs.sort_by_key(|job| Reverse(job.work()));
    run_jobs(work, jobs, Job::run)
}

impl Multiplication<'_> {
    fn work(&self) -> usize {
        let products = if has_low(self.precision) { 2 } else { 1 };
        products * self.product.len() * self.left.depth.len()
    }

    fn side(&self, side: Side) -> &Matrix<'_> {
        match side {
            Side::Left => self.left,
            Side::Right => self.right,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// Products that have one matrix in common.
struct Group<'m> {
    /// The side of the matrix. `None` if all matrices differ.
    fixed: Option<Side>,
    members: Vec<Multiplication<'m>>,
}

/// Puts products with a common matrix into one group.
fn grouped(list: Vec<Multiplication<'_>>) -> Vec<Group<'_>> {
    let mut groups: Vec<Group> = Vec::new();
    let common = |side: Side| {
        let first = list.first().map(|one| one.side(side));
        first.is_some_and(|first| list.iter().all(|one| one.side(side).is(first)))
    };
    let prefers = if common(Side::Right) && !common(Side::Left) { Side::Right } else { Side::Left };
    for one in list {
        let other = if prefers == Side::Left { Side::Right } else { Side::Left };
        let fixed = [prefers, other].into_iter().find(|side| one.side(*side).is_fixed());
        let has = |group: &&mut Group| {
            group.fixed.zip(fixed).is_some_and(|(a, b)| a == b && group.members[0].side(a).is(one.side(b)))
        };
        match groups.iter_mut().find(has) {
            Some(group) => group.members.push(one),
            None => groups.push(Group { fixed, members: vec![one] }),
        }
    }
    groups
}

/// The common matrix of a group in the parts of a precision.
struct Fixed<'m> {
    n_lines: usize,
    whole: Cow<'m, [f32]>,
    low: Option<Vec<f32>>,
    steps: [usize; 2],
}

impl<'m> Group<'m> {
    /// The common matrix in the parts of each precision.
    fn splits(&self) -> Result<Vec<(Precision, Fixed<'m>)>> {
        let Some(side) = self.fixed else { return Ok(Vec::new()) };
        let mut precisions: Vec<Precision> = self.members.iter().map(|one| one.precision).collect();
        precisions.sort_unstable();
        precisions.dedup();
        let first = &self.members[0];
        let matrix: &'m Matrix<'m> = match side {
            Side::Left => first.left,
            Side::Right => first.right,
        };
        precisions.into_iter().map(|precision| Ok((precision, Fixed::of(matrix, precision)?))).collect()
    }
}

/// The moving lines of these products in blocks, which are copied one after another.
fn blocks<'j>(side: Side, members: Vec<&'j mut Multiplication<'_>>) -> Result<Vec<Vec<Piece<'j>>>> {
    let mut blocks: Vec<Vec<Piece>> = Vec::new();
    let mut block = Vec::new();
    let mut room = 0;
    for one in members {
        let moving = if side == Side::Left { one.right } else { one.left };
        let shape = (one.left.lines.len(), one.right.lines.len());
        for (outer, product) in one.product.chunks_exact_mut(shape.0 * shape.1).enumerate() {
            let mut target = ArrayViewMut2::from_shape(shape, product).map_err(wrong)?;
            if side == Side::Right {
                target = target.reversed_axes();
            }
            let mut start = 0;
            while start < moving.lines.len() {
                if room == 0 {
                    blocks.push(std::mem::take(&mut block));
                    room = (JOB_ELEMS / moving.depth.len()).clamp(JOB_LINES[0], JOB_LINES[1]);
                }
                let n_lines = room.min(moving.lines.len() - start);
                let (now, later) = target.split_at(Axis(1), n_lines);
                block.push(Piece { moving, outer, lines: start..start + n_lines, target: now });
                target = later;
                start += n_lines;
                room -= n_lines;
            }
        }
    }
    blocks.push(block);
    blocks.retain(|block| !block.is_empty());
    Ok(blocks)
}

/// The jobs of the products of a common matrix with these blocks.
fn stacked_jobs<'j>(precision: Precision, fixed: &'j Fixed<'_>, blocks: Vec<Vec<Piece<'j>>>) -> Vec<Job<'j>> {
    let n_parts = (JOBS / blocks.len().max(1)).min(fixed.n_lines / MIN_ROWS).max(1);
    let n_rows = fixed.n_lines.div_ceil(n_parts).max(1);
    let jobs = blocks.into_iter().flat_map(|block| by_rows(block, fixed.n_lines, n_rows));
    jobs.map(|(rows, pieces)| Job::Stacked { precision, fixed, rows, pieces }).collect()
}

/// The jobs of products whose matrices all differ.
fn pairs<'j>(one: &'j mut Multiplication<'_>) -> Vec<Job<'j>> {
    let (left, right, precision) = (one.left, one.right, one.precision);
    let size = left.lines.len() * right.lines.len();
    let n_pairs = (PAIRS_WORK / (size * left.depth.len())).max(1);
    let chunks = one.product.chunks_mut(n_pairs * size).enumerate();
    let job = |(idx, product)| Job::Pairs { left, right, precision, first: idx * n_pairs, product };
    chunks.map(job).collect()
}

/// Divides the pieces of a block by the lines of the common matrix.
fn by_rows(block: Vec<Piece<'_>>, n_fixed: usize, n_rows: usize) -> Vec<(Range<usize>, Vec<Piece<'_>>)> {
    let mut parts: Vec<(Range<usize>, Vec<Piece>)> =
        (0..n_fixed).step_by(n_rows).map(|start| (start..n_fixed.min(start + n_rows), Vec::new())).collect();
    for Piece { moving, outer, lines, mut target } in block {
        for (rows, pieces) in &mut parts {
            let (now, later) = target.split_at(Axis(0), rows.len());
            pieces.push(Piece { moving, outer, lines: lines.clone(), target: now });
            target = later;
        }
    }
    parts
}

impl<'m> Fixed<'m> {
    fn of(matrix: &'m Matrix<'m>, precision: Precision) -> Result<Fixed<'m>> {
        let n_lines = matrix.lines.len();
        let (elems, steps) = match matrix.even(0) {
            Some((range, steps)) => (Cow::Borrowed(&matrix.elems[range]), steps),
            None => {
                let mut lines = matrix.room(n_lines);
                matrix.copy(0, 0..n_lines, &mut lines, 0);
                let steps = lines.steps([n_lines, matrix.depth.len()]);
                (Cow::Owned(lines.elems), steps)
            }
        };
        if is_whole(precision) {
            return Ok(Fixed { n_lines, whole: elems, low: None, steps });
        }
        let mut whole = elems.into_owned();
        let mut low = has_low(precision).then(|| vec![0.0; whole.len()]);
        let work = 8 * whole.len();
        match &mut low {
            Some(low) => {
                let jobs = whole.chunks_mut(JOB_ELEMS).zip(low.chunks_mut(JOB_ELEMS)).collect();
                run_jobs(work, jobs, |(whole, low): (&mut [f32], &mut [f32])| {
                    split(whole, low, precision);
                    Ok(())
                })?;
            }
            None => split(&mut whole, &mut [], precision),
        }
        Ok(Fixed { n_lines, whole: Cow::Owned(whole), low, steps })
    }
}

/// Lines of one moving matrix, and their products.
struct Piece<'j> {
    moving: &'j Matrix<'j>,
    outer: usize,
    lines: Range<usize>,
    /// By line of the common matrix and by moving line.
    target: ArrayViewMut2<'j, f32>,
}

enum Job<'j> {
    /// Lines of a common matrix with the lines of several others.
    Stacked { precision: Precision, fixed: &'j Fixed<'j>, rows: Range<usize>, pieces: Vec<Piece<'j>> },
    /// Pairs of matrices from the outer index `first` on.
    Pairs {
        left: &'j Matrix<'j>,
        right: &'j Matrix<'j>,
        precision: Precision,
        first: usize,
        product: &'j mut [f32],
    },
}

impl Job<'_> {
    /// Multiplications at a depth.
    fn work(&self) -> usize {
        match self {
            Job::Stacked { precision, pieces, .. } => {
                let products = if has_low(*precision) { 2 } else { 1 };
                products * pieces.iter().map(|piece| piece.target.len()).sum::<usize>()
            }
            Job::Pairs { product, .. } => product.len(),
        }
    }

    fn run(self) -> Result<()> {
        match self {
            Job::Stacked { precision, fixed, rows, pieces } => stacked(precision, fixed, rows, pieces),
            Job::Pairs { left, right, precision, first, product } => {
                let size = left.lines.len() * right.lines.len();
                for (idx, product) in product.chunks_exact_mut(size).enumerate() {
                    if left.lines.len() == 1 && is_whole(precision) {
                        weighted_sum(left, right, first + idx, product);
                    } else {
                        pair([left, right], first + idx, precision, product)?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// A matrix in parts, by line and depth.
struct Operand<'p> {
    whole: &'p [f32],
    low: Option<&'p [f32]>,
    shape: [usize; 2],
    steps: [usize; 2],
}

/// The products of the lines of two matrices. The three products of `bf16x3` are all of `x̃ * ỹ` but that of the low
/// parts, where `x̃ = high(x) + low(x)` is exact in `f32`.
fn product(left: &Operand<'_>, right: &Operand<'_>, target: &mut ArrayViewMut2<'_, f32>) -> Result<()> {
    let of = |left_elems, right_elems| -> Result<_> {
        Ok((view(left_elems, left.shape, left.steps)?, view(right_elems, right.shape, right.steps)?))
    };
    let (a, b) = of(left.whole, right.whole)?;
    general_mat_mul(1.0, &a, &b.reversed_axes(), 0.0, target);
    if let (Some(left_low), Some(right_low)) = (left.low, right.low) {
        let (a, b) = of(left_low, right_low)?;
        general_mat_mul(-1.0, &a, &b.reversed_axes(), 1.0, target);
    }
    Ok(())
}

/// The products of lines of a common matrix with the lines of all pieces.
fn stacked(
    precision: Precision,
    fixed: &Fixed<'_>,
    rows: Range<usize>,
    mut pieces: Vec<Piece<'_>>,
) -> Result<()> {
    let Some((moving, strides)) = pieces.first().map(|piece| (piece.moving, piece.target.strides().to_vec()))
    else {
        return Ok(());
    };
    let depth = moving.depth.len();
    let n_lines = pieces.iter().map(|piece| piece.lines.len()).sum();
    let mut lines = moving.room(n_lines);
    let mut at = 0;
    for piece in &pieces {
        piece.moving.copy(piece.outer, piece.lines.clone(), &mut lines, at);
        at += piece.lines.len();
    }
    let steps = lines.steps([n_lines, depth]);
    let parts = Parts::of(lines.elems, precision);
    let moving = Operand { whole: &parts.whole, low: parts.low.as_deref(), shape: [n_lines, depth], steps };
    let start = rows.start * fixed.steps[0];
    let fixed = Operand {
        whole: &fixed.whole[start..],
        low: fixed.low.as_deref().map(|low| &low[start..]),
        shape: [rows.len(), depth],
        steps: fixed.steps,
    };
    if let [piece] = &mut pieces[..] {
        return product(&fixed, &moving, &mut piece.target);
    }

    // In the order of the targets, so that their lines are copied as a whole.
    let is_by_row = strides[1] == 1;
    let shape = (rows.len(), n_lines);
    let mut products: Array2<f32> = if is_by_row { Array2::zeros(shape) } else { Array2::zeros(shape.f()) };
    product(&fixed, &moving, &mut products.view_mut())?;
    let mut at = 0;
    for piece in &mut pieces {
        piece.target.assign(&products.slice(s![.., at..at + piece.lines.len()]));
        at += piece.lines.len();
    }
    Ok(())
}

/// The product of the matrices of one outer index.
fn pair(matrices: [&Matrix<'_>; 2], outer: usize, precision: Precision, target: &mut [f32]) -> Result<()> {
    let dense = matrices.map(|matrix| {
        let n_lines = matrix.lines.len();
        let mut lines = matrix.room(n_lines);
        matrix.copy(outer, 0..n_lines, &mut lines, 0);
        let shape = [n_lines, matrix.depth.len()];
        (lines.steps(shape), shape, Parts::of(lines.elems, precision))
    });
    let [left, right] = dense.each_ref().map(|(steps, shape, parts)| Operand {
        whole: &parts.whole,
        low: parts.low.as_deref(),
        shape: *shape,
        steps: *steps,
    });
    let target = ArrayViewMut2::from_shape((left.shape[0], right.shape[0]), target);
    product(&left, &right, &mut target.map_err(wrong)?)
}

/// The product of a left matrix of one row, such as in depthwise convolutions: the sum of the right matrix's lines at
/// each depth, without copies of them.
fn weighted_sum(left: &Matrix<'_>, right: &Matrix<'_>, outer: usize, target: &mut [f32]) {
    let weights = left.depth.iter().map(|depth| left.elems[left.outer[outer] + left.lines[0] + depth]);
    let mut gathered = Vec::new();
    for (weight, depth) in weights.zip(&right.depth) {
        let from = &right.elems[right.outer[outer] + depth..];
        if right.runs.is_empty() {
            gathered.clear();
            gathered.extend(right.lines.iter().map(|line| from[*line]));
            wide::add_scaled(target, &gathered, weight);
            continue;
        }
        for run in &right.runs {
            let start = right.lines[run.start];
            wide::add_scaled(&mut target[run.clone()], &from[start..start + run.len()], weight);
        }
    }
}

fn wrong(_: ndarray::ShapeError) -> Error {
    Error::internal("a matrix has another size than its elements")
}
