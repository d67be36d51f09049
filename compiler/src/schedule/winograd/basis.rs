//! The bases: polynomials through a few points, and the straight-line code that changes to them and back.
//!
//! Along one axis, `m` outputs of a filter of three taps are the coefficients of a product of polynomials. Its values
//! at `m + 1` points and its leading coefficient determine it (Toom and Cook). The points are zero and pairs `±p`,
//! which share half of the work. Two axes change their basis one after the other. Rounding errors grow with powers of
//! the points, so the points are as close to one as possible. The error of the larger form is about twice that of
//! plain sums in single precision. An axis without a window keeps its basis.
//!
//! At stride 2, the outer taps only meet the inputs at even positions, and the middle tap those at odd ones. So a basis
//! has two parts: a filter of two taps, whose points are pairs and infinity, and one of a single tap, which keeps its
//! inputs. `m` outputs need `2 m + 1` multiplications instead of `3 m`. The middle tap is the same at all of its
//! points.
//!
//! Integers use points that are integers. Filters are multiplied by the least common multiple of their divisors. So
//! sums are `scale` times too large, modulo 2³², and are divided exactly at the end
//! ([`Form::restored`](super::form::Form::restored)).

use crate::{
    kernel::{Inst, InstSeq},
    scalar::{BinaryOp, Reg, Scalar, UnaryOp},
};
use symshape_runtime::DType;

/// Taps of a window along one axis.
pub(super) const TAPS: usize = 3;

/// A basis along one axis: the positive points of its pairs. An axis without a window has none, and its change of basis
/// is the identity.
#[derive(Debug)]
pub(super) struct Basis {
    pub(super) pairs: &'static [f64],
    /// Inputs from one output to the next.
    pub(super) stride: usize,
    /// Whether elements are integers.
    pub(super) whole: bool,
}

/// The part of a basis for every `stride`-th input and tap.
#[derive(Clone, Copy)]
pub(super) struct Part<'b> {
    basis: &'b Basis,
    /// The first input and tap.
    first: usize,
    /// The number of its taps.
    taps: usize,
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
        self.inputs_of(self.outputs(), self.taps())
    }

    /// The number of inputs that some outputs of a window with some taps read.
    pub(super) const fn inputs_of(&self, outputs: usize, taps: usize) -> usize {
        (outputs - 1) * self.stride + taps
    }

    /// The number of filters in the basis.
    pub(super) fn filter_count(&self) -> usize {
        self.parts().map(|part| part.filter_count()).sum()
    }

    /// The parts, one for each remainder of positions by the stride.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        let taps = |first: usize| (self.taps() - first).div_ceil(self.stride);
        (0..self.stride).map(move |first| Part { basis: self, first, taps: taps(first) })
    }

    /// The number of taps of the window.
    pub(super) const fn taps(&self) -> usize {
        if self.is_identity() { 1 } else { TAPS }
    }

    /// The scale of integer sums: an even multiple of the divisors of the filters.
    pub(super) const fn scale(&self) -> i64 {
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

impl Part<'_> {
    /// The number of its points, which is that of its inputs.
    pub(super) const fn point_count(&self) -> usize {
        self.basis.outputs() + self.taps - 1
    }

    /// The number of its filters: one for each point, or one for all points.
    pub(super) const fn filter_count(&self) -> usize {
        if self.is_identity() { 1 } else { self.point_count() }
    }

    pub(super) const fn points_of_filter(&self) -> usize {
        self.point_count() / self.filter_count()
    }

    /// The positions of its inputs in a tile.
    pub(super) fn inputs(&self) -> impl Iterator<Item = usize> {
        (0..self.point_count()).map(|idx| self.first + idx * self.basis.stride)
    }

    /// Whether it keeps its inputs, because its filter has a single tap.
    const fn is_identity(&self) -> bool {
        self.taps == 1
    }

    /// Whether zero is one of the points.
    const fn has_zero(&self) -> bool {
        self.taps == TAPS
    }

    /// The finite points in the order of the basis. The point at infinity comes last and is not included.
    fn finite_points(&self) -> Vec<f64> {
        let pairs = self.basis.pairs.iter().flat_map(|point| [*point, -point]);
        self.has_zero().then_some(0.0).into_iter().chain(pairs).collect()
    }

    /// The positions of its taps in a window.
    pub(super) fn taps(&self) -> Vec<usize> {
        (0..self.taps).map(|idx| self.first + idx * self.basis.stride).collect()
    }

    /// The coefficients of its taps for each of its filters.
    pub(super) fn filter_matrix(&self) -> Vec<Vec<f64>> {
        if self.is_identity() {
            return vec![vec![1.0]];
        }
        let points = self.finite_points();
        let at = |(idx, point): (usize, &f64)| {
            let others = points.iter().enumerate().filter(|(other, _)| *other != idx);
            let scale: f64 = others.map(|(_, other)| point - other).product();
            (0..self.taps).map(|power| point.powi(power as i32) / scale).collect()
        };

        let finite = points.iter().enumerate().map(at);
        let (is_whole, whole) = (self.basis.whole, self.basis.scale() as f64);

        // Filters have 16 bits, so half of the scale at infinity is multiplied after the contraction.
        let last = if is_whole { whole / 2.0 } else { 1.0 };
        let at_infinity = (1..=self.taps).map(|tap| if tap == self.taps { last } else { 0.0 }).collect();
        let mut matrix: Vec<Vec<f64>> = finite.chain([at_infinity]).collect();
        if is_whole {
            let (_, finite) = matrix.split_last_mut().expect("there is a point at infinity");
            finite.iter_mut().flatten().for_each(|tap| *tap = (*tap * whole).round());
        }
        matrix
    }

    /// Its inputs in the basis. `None` means zero.
    pub(super) fn change_inputs(&self, code: &mut InstSeq, inputs: &[Option<Reg>]) -> Vec<Option<Reg>> {
        if self.is_identity() {
            return inputs.to_vec();
        }
        let pairs = self.basis.pairs;
        let combine = |code: &mut InstSeq, terms: &[(f64, Option<Reg>)]| self.basis.combine(code, terms);
        // The polynomial of a point is zero at all other points. For zero and infinity it is a polynomial in x², times
        // x for infinity if zero is a point.
        let zeros = usize::from(self.has_zero());
        let all = even_product(pairs);
        let spread = |code: &mut InstSeq, polynomial: &[f64], from: usize, scale: f64| {
            let terms = polynomial.iter().enumerate();
            let terms: Vec<_> = terms.map(|(k, factor)| (scale * factor, inputs[from + 2 * k])).collect();
            combine(code, &terms)
        };

        let mut values = Vec::new();
        if self.has_zero() {
            values.push(spread(code, &all, 0, 1.0));
        }
        for (idx, point) in pairs.iter().enumerate() {
            let others: Vec<f64> =
                pairs.iter().enumerate().filter(|(other, _)| *other != idx).map(|(_, p)| *p).collect();
            let rest = even_product(&others);
            let times_x = spread(code, &rest, zeros + 1, 1.0);
            let times_point = spread(code, &rest, zeros, *point);
            values.push(combine(code, &[(1.0, times_x), (1.0, times_point)]));
            values.push(combine(code, &[(1.0, times_x), (-1.0, times_point)]));
        }

        values.push(spread(code, &all, zeros, 1.0));
        values
    }

    /// Its terms of the first `count` outputs along one axis, from the products at each point.
    pub(super) fn change_outputs(&self, code: &mut InstSeq, products: &[Reg], count: usize) -> Vec<Reg> {
        if self.is_identity() {
            return products[..count].to_vec();
        }
        let zeros = usize::from(self.has_zero());
        let mut halves = Vec::new();
        for (idx, point) in self.basis.pairs.iter().enumerate() {
            let plus = products[zeros + 2 * idx];
            let minus = products[zeros + 1 + 2 * idx];
            let even = code.push(Inst::Binary(BinaryOp::Add, plus, minus));
            let odd = code.push(Inst::Binary(BinaryOp::Sub, plus, minus));
            halves.push((*point, even, odd));
        }

        let output = |code: &mut InstSeq, k: usize| {
            let mut terms = Vec::new();
            if k == 0 && self.has_zero() {
                terms.push((1.0, Some(products[0])));
            }

            if k + 1 == self.basis.outputs() {
                // The filters' matrix has half of the scale at infinity.
                let factor = if self.basis.whole { 2.0 } else { 1.0 };
                terms.push((factor, products.last().copied()));
            }

            for (point, even, odd) in &halves {
                terms.push((point.powi(k as i32), Some(if k.is_multiple_of(2) { *even } else { *odd })));
            }

            self.basis.combine(code, &terms).expect("every output has a term")
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

/// A multiple of a register.
pub(super) fn scaled(code: &mut InstSeq, factor: Scalar, reg: Reg) -> Reg {
    let factor = code.push(Inst::Const(factor));
    code.push(Inst::Binary(BinaryOp::Mul, reg, factor))
}
