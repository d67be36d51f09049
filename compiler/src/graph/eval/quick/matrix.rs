//! The operands of a contraction as matrices: lines of elements that are multiplied and added.

use super::offsets::{Offsets, joined};
use crate::{
    error::{Error, Result},
    graph::Label,
    tensor::Tensor,
};
use ndarray::{ArrayView2, ShapeBuilder};
use std::{borrow::Cow, ops::Range};

/// Adjacent lines are copied together if that many are adjacent in the mean.
const MIN_RUN: usize = 4;

/// Matrices of equal size, one for each outer index. An element is at the sum of three offsets.
pub(super) struct Matrix<'m> {
    pub(super) elems: Cow<'m, [f32]>,
    pub(super) outer: Vec<usize>,
    /// The rows of a left matrix, or the columns of a right one.
    pub(super) lines: Vec<usize>,
    pub(super) depth: Vec<usize>,
    /// Lines whose elements are adjacent. Empty if most have no adjacent ones.
    pub(super) runs: Vec<Range<usize>>,
    /// Whether the elements of a line are adjacent.
    is_line_adjacent: bool,
}

/// Dense elements of some lines at all depths: of one line after another, or of one depth after another.
pub(super) struct Lines {
    pub(super) elems: Vec<f32>,
    is_by_line: bool,
}

impl<'m> Matrix<'m> {
    /// The matrices of an operand with the labels and sizes of the outer index, of lines and of the depth.
    pub(super) fn of(
        tensor: &'m Tensor,
        offsets: &Offsets,
        labels: &[Label],
        groups: [&[(Label, usize)]; 3],
    ) -> Matrix<'m> {
        let of_group = |group: &[(Label, usize)]| {
            group.iter().fold(vec![0], |all, (label, size)| {
                match labels.iter().position(|other| other == label) {
                    Some(axis) => joined(&all, offsets.axis(axis)),
                    None => joined(&all, &vec![0; *size]),
                }
            })
        };
        let [mut outer, lines, depth] = groups.map(of_group);
        let base = offsets.base(labels.len());
        outer.iter_mut().for_each(|offset| *offset += base);
        let is_line_adjacent = step(&depth) == Some(1);
        Matrix { elems: tensor.f32s(), outer, runs: runs(&lines), lines, depth, is_line_adjacent }
    }

    /// Whether the matrices are the same for each outer index.
    pub(super) fn is_fixed(&self) -> bool {
        self.outer.iter().all(|offset| *offset == self.outer[0])
    }

    /// Whether two matrices for one outer index have the same elements in memory.
    pub(super) fn is(&self, other: &Matrix<'_>) -> bool {
        std::ptr::eq(&self.elems[..], &other.elems[..])
            && self.outer.first() == other.outer.first()
            && self.lines == other.lines
            && self.depth == other.depth
    }

    /// The part of the elements that the lines of an outer index are in, and the steps of lines and depth, if these are
    /// even and one of them is 1.
    pub(super) fn even(&self, outer: usize) -> Option<(Range<usize>, [usize; 2])> {
        let steps = [step(&self.lines)?, step(&self.depth)?];
        let spans = [self.lines.len() * steps[0], self.depth.len() * steps[1]];
        let is_dense = steps[1] == 1 && steps[0] >= spans[1] || steps[0] == 1 && steps[1] >= spans[0];
        let start = self.outer[outer] + self.lines.first()? + self.depth.first()?;
        let end = self.outer[outer] + self.lines.last()? + self.depth.last()? + 1;
        is_dense.then_some((start..end, steps))
    }

    /// Appends lines of an outer index to those that `lines` has room for, from line `first` of these on.
    pub(super) fn copy(&self, outer: usize, range: Range<usize>, lines: &mut Lines, first: usize) {
        let depth = self.depth.len();
        let n_lines = lines.elems.len() / depth;
        let base = self.outer[outer];
        if lines.is_by_line {
            let targets = lines.elems.chunks_exact_mut(depth).skip(first);
            for (target, line) in targets.zip(&self.lines[range]) {
                let start = base + line + self.depth[0];
                target.copy_from_slice(&self.elems[start..start + depth]);
            }
            return;
        }
        for (target, depth) in lines.elems.chunks_exact_mut(n_lines).zip(&self.depth) {
            let target = &mut target[first..first + range.len()];
            let from = &self.elems[base + depth..];
            if self.runs.is_empty() {
                let lines = &self.lines[range.clone()];
                target.iter_mut().zip(lines).for_each(|(target, line)| *target = from[*line]);
                continue;
            }
            let first_run = self.runs.partition_point(|run| run.end <= range.start);
            for run in self.runs[first_run..].iter().take_while(|run| run.start < range.end) {
                let part = run.start.max(range.start)..run.end.min(range.end);
                let start = self.lines[part.start];
                let target = &mut target[part.start - range.start..part.end - range.start];
                target.copy_from_slice(&from[start..start + part.len()]);
            }
        }
    }

    /// Room for this many lines.
    pub(super) fn room(&self, n_lines: usize) -> Lines {
        Lines { elems: vec![0.0; n_lines * self.depth.len()], is_by_line: self.is_line_adjacent }
    }
}

impl Lines {
    /// The steps from one line to the next, and from one depth to the next.
    pub(super) fn steps(&self, [n_lines, depth]: [usize; 2]) -> [usize; 2] {
        if self.is_by_line { [depth, 1] } else { [1, n_lines] }
    }
}

/// A view by line and depth.
pub(super) fn view(
    elems: &[f32],
    [lines, depth]: [usize; 2],
    steps: [usize; 2],
) -> Result<ArrayView2<'_, f32>> {
    let view = ArrayView2::from_shape((lines, depth).strides(steps.into()), elems);
    view.map_err(|_| Error::internal("a matrix has another size than its elements"))
}

/// The difference of each offset from the one before, if all are equal. 1 for a single offset.
fn step(offsets: &[usize]) -> Option<usize> {
    let mut steps = offsets.windows(2).map(|pair| pair[1].checked_sub(pair[0]));
    let Some(first) = steps.next() else { return Some(1) };
    let first = first.filter(|step| *step > 0)?;
    steps.all(|step| step == Some(first)).then_some(first)
}

/// The runs of adjacent offsets. Empty if most are short.
fn runs(offsets: &[usize]) -> Vec<Range<usize>> {
    let ends = (1..offsets.len()).filter(|idx| offsets[*idx] != offsets[idx - 1] + 1).chain([offsets.len()]);
    let mut start = 0;
    let runs: Vec<Range<usize>> = ends.map(|end| std::mem::replace(&mut start, end)..end).collect();
    if runs.len() * MIN_RUN <= offsets.len() { runs } else { Vec::new() }
}
