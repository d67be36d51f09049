//! The forms: a basis down and one across a tile. The parts of both are groups of points, whose products need the same
//! number of rows for each filter.

use super::basis::{Basis, Part, scaled};
use crate::{
    kernel::{Inst, InstSeq},
    scalar::{BinaryOp, Reg, Scalar},
};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use symshape_runtime::DType;

/// A part of the basis down a tile and one of the basis across it. Its points are adjacent, those of one filter next to
/// each other.
pub(super) struct Group<'f> {
    pub(super) parts: [Part<'f>; 2],
    /// Its first point of the form.
    pub(super) first_point: usize,
    /// Its first filter of the form.
    pub(super) first_filter: usize,
}

/// The bases down and across a tile.
#[derive(Debug)]
pub(super) struct Form([Basis; 2]);

/// Changes filters to the basis, several at a time.
pub(super) struct FilterChange {
    groups: Vec<GroupChange>,
    /// The number of taps across a window.
    width: usize,
    /// A row of taps whose columns are in the basis already.
    row: Vec<Vec<f64>>,
    /// The values of all lanes of a filter in the basis.
    values: Vec<f64>,
}

/// The change of the filters of a group.
struct GroupChange {
    /// The positions of its taps, down and across.
    taps: [Vec<usize>; 2],
    /// The coefficients of the taps for each filter, down and across.
    matrices: [Vec<Vec<f64>>; 2],
    first_filter: usize,
}

impl FilterChange {
    /// Calls `visit` for each filter in the basis with its values. Each tap has an element for each lane.
    pub(super) fn apply(&mut self, taps: &[&[f32]], mut visit: impl FnMut(usize, &[f64])) {
        let FilterChange { groups, width, row, values } = self;
        for GroupChange { taps: [rows, columns], matrices: [downs, acrosses], first_filter } in groups {
            for (i, down) in downs.iter().enumerate() {
                for (column, sum) in columns.iter().zip(&mut *row) {
                    let lanes = rows.iter().map(|row| taps[row * *width + column].iter());
                    let terms = down.iter().zip(lanes);
                    weighted_sum(
                        sum,
                        terms.map(|(factor, lanes)| (*factor, lanes.map(|tap| f64::from(*tap)))),
                    );
                }
                for (j, across) in acrosses.iter().enumerate() {
                    let terms = across.iter().zip(&*row);
                    weighted_sum(values, terms.map(|(factor, tap)| (*factor, tap.iter().copied())));
                    visit(*first_filter + i * acrosses.len() + j, values);
                }
            }
        }
    }
}

/// Writes the sum of these multiples of lanes.
fn weighted_sum<L: Iterator<Item = f64>>(sum: &mut Vec<f64>, terms: impl Iterator<Item = (f64, L)>) {
    for (idx, (factor, lanes)) in terms.enumerate() {
        if idx == 0 {
            sum.clear();
            sum.extend(lanes.map(|lane| factor * lane));
        } else {
            sum.iter_mut().zip(lanes).for_each(|(sum, lane)| *sum += factor * lane);
        }
    }
}

impl Form {
    /// The forms for windows of floats on both axes.
    pub(super) const FLOATS: [Form; 2] =
        [Form::square(&[1.0], 1, false), Form::square(&[FRAC_1_SQRT_2, SQRT_2], 1, false)];

    /// The forms for windows of integers on both axes.
    pub(super) const INTEGERS: [Form; 2] =
        [Form::square(&[1.0], 1, true), Form::square(&[1.0, 2.0], 1, true)];

    /// The forms for windows of floats down a column.
    pub(super) const COLUMNS_OF_FLOATS: [Form; 2] =
        [Form::column(&[1.0], 1, false), Form::column(&[FRAC_1_SQRT_2, SQRT_2], 1, false)];

    /// The forms for windows of integers down a column.
    pub(super) const COLUMNS_OF_INTEGERS: [Form; 2] =
        [Form::column(&[1.0], 1, true), Form::column(&[1.0, 2.0], 1, true)];

    /// The forms for windows of floats on both axes, at stride 2.
    pub(super) const FLOATS_AT_STRIDE_2: [Form; 2] =
        [Form::square(&[1.0], 2, false), Form::square(&[FRAC_1_SQRT_2, SQRT_2], 2, false)];

    /// The forms for windows of floats down a column, at stride 2.
    pub(super) const COLUMNS_OF_FLOATS_AT_STRIDE_2: [Form; 2] =
        [Form::column(&[1.0], 2, false), Form::column(&[FRAC_1_SQRT_2, SQRT_2], 2, false)];

    const fn square(pairs: &'static [f64], stride: usize, whole: bool) -> Form {
        Form([Basis { pairs, stride, whole }, Basis { pairs, stride, whole }])
    }

    const fn column(pairs: &'static [f64], stride: usize, whole: bool) -> Form {
        Form([Basis { pairs, stride, whole }, Basis { pairs: &[], stride: 1, whole }])
    }

    /// The basis down or across a tile.
    pub(super) const fn axis(&self, axis: usize) -> &Basis {
        &self.0[axis]
    }

    /// The number of outputs of a tile down and across.
    pub(super) const fn outputs(&self) -> [usize; 2] {
        [self.0[0].outputs(), self.0[1].outputs()]
    }

    /// The number of points, which is that of the inputs of a tile.
    pub(super) const fn point_count(&self) -> usize {
        self.0[0].inputs() * self.0[1].inputs()
    }

    /// The number of filters in the basis for each pair of channels.
    pub(super) fn filter_count(&self) -> usize {
        self.0[0].filter_count() * self.0[1].filter_count()
    }

    /// The parts of both bases, each with each.
    pub(super) fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        let (mut first_point, mut first_filter) = (0, 0);
        for down in self.0[0].parts() {
            for across in self.0[1].parts() {
                let group = Group { parts: [down, across], first_point, first_filter };
                first_point += group.filter_count() * group.points_of_filter();
                first_filter += group.filter_count();
                groups.push(group);
            }
        }
        groups
    }

    /// The number of taps of a window.
    pub(super) const fn taps(&self) -> usize {
        self.0[0].taps() * self.0[1].taps()
    }

    /// The change of filters to the basis.
    pub(super) fn filter_change(&self) -> FilterChange {
        let change = |group: &Group<'_>| GroupChange {
            taps: group.parts.map(|part| part.taps()),
            matrices: group.parts.map(|part| part.filter_matrix()),
            first_filter: group.first_filter,
        };
        let width = self.0[1].taps();
        FilterChange {
            groups: self.groups().iter().map(change).collect(),
            width,
            row: vec![Vec::new(); width],
            values: Vec::new(),
        }
    }

    /// The scale of integer sums.
    const fn scale(&self) -> i64 {
        self.0[0].scale() * self.0[1].scale()
    }

    /// The largest magnitude of a sum that [`Form::restored`] restores.
    pub(super) const fn max_sum(&self) -> i64 {
        (1 << (31 - self.scale().trailing_zeros())) - 1
    }

    /// Divides a sum by its scale, modulo 2³². It multiplies by the inverse of the odd part, and shifts by the power of
    /// two.
    pub(super) fn restored(&self, code: &mut InstSeq, sum: Reg) -> Reg {
        let scale = self.scale();
        if scale == 1 {
            return sum;
        }
        let twos = scale.trailing_zeros();
        let odd = (scale >> twos) as u32;

        // Newton's iteration doubles the correct bits. An odd integer is its own inverse in the three lowest bits.
        let inverse = (0..5)
            .fold(odd, |inverse, _| inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse))));
        let sum = if odd == 1 {
            sum
        } else {
            scaled(code, Scalar::from_i64(DType::I32, i64::from(inverse as i32)), sum)
        };

        let twos = code.push(Inst::Const(Scalar::from_i64(DType::I32, i64::from(twos))));
        code.push(Inst::Binary(BinaryOp::Shr, sum, twos))
    }
}

impl Group<'_> {
    /// The number of its filters.
    pub(super) fn filter_count(&self) -> usize {
        self.parts.iter().map(|part| part.filter_count()).product()
    }

    /// The number of points at which each filter is multiplied.
    pub(super) fn points_of_filter(&self) -> usize {
        self.parts.iter().map(|part| part.points_of_filter()).product()
    }

    /// The filter of the form for these points of the parts, and the index of the point among those of the filter.
    pub(super) fn place(&self, points: [usize; 2]) -> (usize, usize) {
        let [(down, down_point), (across, across_point)] = [0, 1].map(|axis| {
            let points_of_filter = self.parts[axis].points_of_filter();
            (points[axis] / points_of_filter, points[axis] % points_of_filter)
        });
        let filter = down * self.parts[1].filter_count() + across;
        (filter, down_point * self.parts[1].points_of_filter() + across_point)
    }
}
