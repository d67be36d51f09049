//! The bases: polynomials through a few points, and the straight-line code that changes to them and back.
//!
//! Along one axis, `m` outputs of a filter of three taps are the coefficients of a product of polynomials. Its values
//! at `m + 1` points and its leading coefficient determine it (Toom and Cook). The points are zero and pairs `±p`,
//! which share half of the work. Two axes change their basis one after the other. Rounding errors grow with powers of
//! the points, so the points are as close to one as possible. The error of the larger form is about twice that of
//! plain sums in single precision. An axis without a window keeps its basis.
//!
//! Integers use points that are integers. Filters are multiplied by the least common multiple of their divisors. So
//! sums are `scale` times too large, modulo 2³², and are divided exactly at the end, see [`Form::restored`].

use crate::{
    kernel::{Inst, InstSeq},
    scalar::{BinaryOp, Reg, Scalar, UnaryOp},
};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use symshape_runtime::DType;

/// Taps of a window along one axis.
pub(super) const TAPS: usize = 3;

/// A basis along one axis: the positive points of its pairs. An axis without a window has none, and its
/// change of basis is the identity.
#[derive(Debug)]
pub(super) struct Basis {
    pairs: &'static [f64],
    /// Whether elements are integers.
    whole: bool,
}

/// The bases down and across a tile.
#[derive(Debug)]
pub(super) struct Form([Basis; 2]);

/// Changes filters to the basis, several at a time.
pub(super) struct FilterChange {
    /// The coefficients of the taps for each point, down and across.
    matrices: [Vec<Vec<f64>>; 2],
    /// A row of taps whose columns are in the basis already.
    row: Vec<Vec<f64>>,
    /// The values of all lanes at a point.
    values: Vec<f64>,
}

impl FilterChange {
    /// Calls `visit` for each point with the filters' values, row by row of points. Each tap has an element for each
    /// lane.
    pub(super) fn apply(&mut self, taps: &[&[f32]], mut visit: impl FnMut(usize, &[f64])) {
        let FilterChange { matrices: [downs, acrosses], row, values } = self;
        let width = row.len();
        for (i, down) in downs.iter().enumerate() {
            for (j, row) in row.iter_mut().enumerate() {
                let column = down.iter().zip(taps[j..].iter().step_by(width));
                weighted_sum(
                    row,
                    column.map(|(factor, tap)| (*factor, tap.iter().map(|tap| f64::from(*tap)))),
                );
            }
            for (j, across) in acrosses.iter().enumerate() {
                weighted_sum(
                    values,
                    across.iter().zip(&*row).map(|(factor, tap)| (*factor, tap.iter().copied())),
                );
                visit(i * acrosses.len() + j, values);
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
        [Form::square(&[1.0], false), Form::square(&[FRAC_1_SQRT_2, SQRT_2], false)];

    /// The forms for windows of integers on both axes.
    pub(super) const INTEGERS: [Form; 2] = [Form::square(&[1.0], true), Form::square(&[1.0, 2.0], true)];

    /// The forms for windows of floats down a column.
    pub(super) const COLUMNS_OF_FLOATS: [Form; 2] =
        [Form::column(&[1.0], false), Form::column(&[FRAC_1_SQRT_2, SQRT_2], false)];

    /// The forms for windows of integers down a column.
    pub(super) const COLUMNS_OF_INTEGERS: [Form; 2] =
        [Form::column(&[1.0], true), Form::column(&[1.0, 2.0], true)];

    const fn square(pairs: &'static [f64], whole: bool) -> Form {
        Form([Basis { pairs, whole }, Basis { pairs, whole }])
    }

    const fn column(pairs: &'static [f64], whole: bool) -> Form {
        Form([Basis { pairs, whole }, Basis { pairs: &[], whole }])
    }

    /// The basis down or across a tile.
    pub(super) const fn axis(&self, axis: usize) -> &Basis {
        &self.0[axis]
    }

    /// The number of outputs of a tile down and across.
    pub(super) const fn outputs(&self) -> [usize; 2] {
        [self.0[0].outputs(), self.0[1].outputs()]
    }

    /// The number of inputs of a tile down and across.
    pub(super) const fn inputs(&self) -> [usize; 2] {
        [self.0[0].inputs(), self.0[1].inputs()]
    }

    /// The number of points, which is that of the inputs of a tile.
    pub(super) const fn point_count(&self) -> usize {
        self.0[0].inputs() * self.0[1].inputs()
    }

    /// The number of taps of a window.
    pub(super) const fn taps(&self) -> usize {
        self.0[0].taps() * self.0[1].taps()
    }

    /// The change of filters to the basis.
    pub(super) fn filter_change(&self) -> FilterChange {
        FilterChange {
            matrices: [0, 1].map(|axis| self.0[axis].filter_matrix()),
            row: vec![Vec::new(); self.0[1].taps()],
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

impl Basis {
    /// Whether the axis has no window.
    const fn is_identity(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The number of outputs of a tile.
    pub(super) const fn outputs(&self) -> usize {
        if self.is_identity() { 1 } else { 2 * self.pairs.len() }
    }

    /// The number of inputs of a tile, which is the number of points.
    pub(super) const fn inputs(&self) -> usize {
        self.outputs() + self.taps() - 1
    }

    /// The number of taps of the window.
    pub(super) const fn taps(&self) -> usize {
        if self.is_identity() { 1 } else { TAPS }
    }

    /// The finite points in the order of the basis. The point at infinity comes last and is not included.
    fn points(&self) -> Vec<f64> {
        let pairs = self.pairs.iter().flat_map(|point| [*point, -point]);
        [0.0].into_iter().chain(pairs).collect()
    }

    /// The coefficients of the taps for each point.
    fn filter_matrix(&self) -> Vec<Vec<f64>> {
        if self.is_identity() {
            return vec![vec![1.0]];
        }
        let points = self.points();
        let at = |(idx, point): (usize, &f64)| {
            let others = points.iter().enumerate().filter(|(other, _)| *other != idx);
            let scale: f64 = others.map(|(_, other)| point - other).product();
            vec![1.0 / scale, point / scale, point * point / scale]
        };

        let finite = points.iter().enumerate().map(at);
        let whole = self.scale() as f64;

        // Filters have 16 bits, so half of the scale at infinity is multiplied after the contraction.
        let last = if self.whole { whole / 2.0 } else { 1.0 };
        let mut matrix: Vec<_> = finite.chain([vec![0.0, 0.0, last]]).collect();
        if self.whole {
            let (_, finite) = matrix.split_last_mut().expect("there is a point at infinity");
            finite.iter_mut().flatten().for_each(|tap| *tap = (*tap * whole).round());
        }
        matrix
    }

    /// The scale of integer sums: an even multiple of the divisors of the filters.
    const fn scale(&self) -> i64 {
        match (self.whole, self.pairs.len()) {
            (false, _) | (_, 0) => 1,
            (true, 1) => 2,
            (true, _) => 24,
        }
    }

    /// A constant of the type in which the change of basis runs.
    pub(super) fn constant(&self, value: f64) -> Scalar {
        if self.whole { Scalar::from_i64(DType::I32, value as i64) } else { Scalar::f32(value as f32) }
    }

    /// The inputs along one axis in the basis. `None` means zero.
    pub(super) fn change_inputs(&self, code: &mut InstSeq, inputs: &[Option<Reg>]) -> Vec<Option<Reg>> {
        if self.is_identity() {
            return inputs.to_vec();
        }
        let combine = |code: &mut InstSeq, terms: &[(f64, Option<Reg>)]| self.combine(code, terms);
        // The polynomial of a point is zero at all other points. For zero and infinity it is a polynomial in x².
        let all = even_product(self.pairs);
        let spread = |code: &mut InstSeq, polynomial: &[f64], from: usize, scale: f64| {
            let terms = polynomial.iter().enumerate();
            let terms: Vec<_> = terms.map(|(k, factor)| (scale * factor, inputs[from + 2 * k])).collect();
            combine(code, &terms)
        };

        let mut values = vec![spread(code, &all, 0, 1.0)];
        for (idx, point) in self.pairs.iter().enumerate() {
            let others: Vec<f64> =
                self.pairs.iter().enumerate().filter(|(other, _)| *other != idx).map(|(_, p)| *p).collect();
            let rest = even_product(&others);
            let even = spread(code, &rest, 2, 1.0);
            let odd = spread(code, &rest, 1, *point);
            values.push(combine(code, &[(1.0, even), (1.0, odd)]));
            values.push(combine(code, &[(1.0, even), (-1.0, odd)]));
        }

        values.push(spread(code, &all, 1, 1.0));
        values
    }

    /// The first `count` outputs along one axis, from the products at each point.
    pub(super) fn change_outputs(&self, code: &mut InstSeq, products: &[Reg], count: usize) -> Vec<Reg> {
        if self.is_identity() {
            return products.to_vec();
        }
        let mut halves = Vec::new();
        for (idx, point) in self.pairs.iter().enumerate() {
            let plus = products[1 + 2 * idx];
            let minus = products[2 + 2 * idx];
            let even = code.push(Inst::Binary(BinaryOp::Add, plus, minus));
            let odd = code.push(Inst::Binary(BinaryOp::Sub, plus, minus));
            halves.push((*point, even, odd));
        }

        let output = |code: &mut InstSeq, k: usize| {
            let mut terms = Vec::new();
            if k == 0 {
                terms.push((1.0, Some(products[0])));
            }

            if k + 1 == self.outputs() {
                // The filters' matrix has half of the scale at infinity.
                let factor = if self.whole { 2.0 } else { 1.0 };
                terms.push((factor, products.last().copied()));
            }

            for (point, even, odd) in &halves {
                terms.push((point.powi(k as i32), Some(if k.is_multiple_of(2) { *even } else { *odd })));
            }

            self.combine(code, &terms).expect("every output has a term")
        };
        (0..count).map(|k| output(code, k)).collect()
    }
}

/// Coefficients of `Π (x² - p²)` in powers of `x²`.
fn even_product(points: &[f64]) -> Vec<f64> {
    points.iter().fold(vec![1.0], |product, point| {
        let mut next = vec![0.0; product.len() + 1];
        for (k, factor) in product.iter().enumerate() {
            next[k] -= point * point * factor;
            next[k + 1] += factor;
        }
        next
    })
}

impl Basis {
    /// A factor, rounded to the type of the elements.
    fn rounded(&self, factor: f64) -> f64 {
        if self.whole { factor } else { f64::from(factor as f32) }
    }

    /// The sum of these multiples. `None` if all of them are zero.
    fn combine(&self, code: &mut InstSeq, terms: &[(f64, Option<Reg>)]) -> Option<Reg> {
        let mut terms: Vec<(f64, Reg)> =
            terms.iter().filter_map(|(factor, reg)| Some((self.rounded(*factor), (*reg)?))).collect();
        terms.retain(|(factor, _)| *factor != 0.0);

        // A term without a multiplication begins the sum.
        terms.sort_by_key(|(factor, _)| match *factor {
            1.0 => 0,
            -1.0 => 2,
            _ => 1,
        });

        let mut sum = None;
        for (factor, reg) in terms {
            sum = Some(match (sum, factor) {
                (None, 1.0) => reg,
                (None, -1.0) => code.push(Inst::Unary(UnaryOp::Neg, reg)),
                (None, _) => scaled(code, self.constant(factor), reg),
                (Some(sum), 1.0) => code.push(Inst::Binary(BinaryOp::Add, sum, reg)),
                (Some(sum), -1.0) => code.push(Inst::Binary(BinaryOp::Sub, sum, reg)),
                (Some(sum), _) => {
                    let product = scaled(code, self.constant(factor), reg);
                    code.push(Inst::Binary(BinaryOp::Add, sum, product))
                }
            });
        }
        sum
    }
}

fn scaled(code: &mut InstSeq, factor: Scalar, reg: Reg) -> Reg {
    let factor = code.push(Inst::Const(factor));
    code.push(Inst::Binary(BinaryOp::Mul, reg, factor))
}
