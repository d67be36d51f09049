//! Values for each column of a constant operand: scales, and sums over the reduced axes.

use crate::{
    error::Result,
    graph::{Graph, Label, Value, axis},
};
use symshape::Dim;

/// The axes of a contraction's constant operand.
pub(super) struct ConstantAxes<'n> {
    /// The labels of all axes of the operand.
    labels: &'n [Label],
    /// The labels of the result.
    out: &'n [Label],
    /// The axes of the operand that are summed over.
    pub(super) reduced: Vec<usize>,
}

impl<'n> ConstantAxes<'n> {
    pub(super) fn new(labels: &'n [Label], out: &'n [Label]) -> ConstantAxes<'n> {
        let reduced = (0..labels.len()).filter(|k| !out.contains(&labels[*k])).collect();
        ConstantAxes { labels, out, reduced }
    }

    /// The axes of the operand that the result has too.
    pub(super) fn kept(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.labels.len()).filter(|k| !self.reduced.contains(k))
    }

    /// Repeats a value that has the kept axes along the other axes of `sum`, the result.
    pub(super) fn spread(&self, new: &mut Graph, value: Value, sum: Value) -> Result<Value> {
        let axis_of_result = |k: usize| {
            let position = self.out.iter().position(|label| *label == self.labels[k]);
            Dim::from(axis(position.expect("kept axes are the result's")))
        };
        let index = self.kept().map(axis_of_result).collect();
        new.view(value, new.shape(sum).to_vec(), index)
    }

    /// A scale of the operand's shape without the reduced axes, along which it is constant.
    pub(super) fn drop_reduced(&self, new: &mut Graph, scale: Value) -> Result<Value> {
        let shape = self.kept().map(|k| new.shape(scale)[k].clone()).collect();
        let mut index = vec![Dim::zero(); new.rank(scale)];
        self.kept().enumerate().for_each(|(at, k)| index[k] = axis(at).into());
        new.view(scale, shape, index)
    }
}
