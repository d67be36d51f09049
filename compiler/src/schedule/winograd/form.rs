//! The bases: polynomials through a few points, and the straight-line code that changes to them and back.
//!
//! Along one axis, `m` outputs of a filter of three taps are the coefficients of a product of polynomials, which its
//! values at `m + 1` points and its leading coefficient determine (Toom and Cook). The points are zero and pairs `±p`,
//! so that half of the work is shared; two axes are one after the other. The points are as near to one as can be, since
//! their powers are what rounding errors grow by: with them the larger form is about twice as far from the exact
//! convolution as plain sums in single precision are.
//!
//! Integers take points that are integers, and filters times the least common multiple of what they would be divided by:
//! sums come out `scale` times too large, modulo 2³², and are divided exactly, see [`Form::restored`].

use crate::{
    kernel::{Inst, InstSeq},
    scalar::{BinaryOp, Reg, Scalar, UnaryOp},
};
use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2};
use symshape_runtime::DType;

/// Taps of a filter along one axis.
pub(super) const TAPS: usize = 3;

/// A basis: the positive points of its pairs.
#[derive(Debug)]
pub(super) struct Form {
    pairs: &'static [f64],
    /// Numbers are integers.
    whole: bool,
}

/// Changes filters to the basis, some side by side.
pub(super) struct FilterChange {
    /// What each point takes of the taps.
    matrix: Vec<[f64; TAPS]>,
    /// A row of taps, down the columns in the basis already.
    row: [Vec<f64>; TAPS],
}

impl FilterChange {
    /// The filters' values at each point, row by row of points: `see(point, lane, value)`. Each tap has a number for
    /// each lane.
    pub(super) fn apply(&mut self, taps: &[[&[f32]; TAPS]; TAPS], mut see: impl FnMut(usize, usize, f64)) {
        let points = self.matrix.len();
        for (i, down) in self.matrix.iter().enumerate() {
            for (j, row) in self.row.iter_mut().enumerate() {
                row.clear();
                let lanes = taps[0][j].iter().zip(taps[1][j]).zip(taps[2][j]);
                let sum = |((a, b), c): ((&f32, &f32), &f32)| {
                    down[0] * f64::from(*a) + down[1] * f64::from(*b) + down[2] * f64::from(*c)
                };
                row.extend(lanes.map(sum));
            }
            let [a, b, c] = &self.row;
            for (j, across) in self.matrix.iter().enumerate() {
                for (lane, ((a, b), c)) in a.iter().zip(b).zip(c).enumerate() {
                    see(i * points + j, lane, across[0] * a + across[1] * b + across[2] * c);
                }
            }
        }
    }
}

impl Form {
    /// All forms for floats.
    pub(super) const FLOATS: [Form; 2] =
        [Form { pairs: &[1.0], whole: false }, Form { pairs: &[FRAC_1_SQRT_2, SQRT_2], whole: false }];

    /// All forms for integers.
    pub(super) const INTEGERS: [Form; 2] =
        [Form { pairs: &[1.0], whole: true }, Form { pairs: &[1.0, 2.0], whole: true }];

    /// Outputs of a tile along one axis.
    pub(super) const fn outputs(&self) -> usize {
        2 * self.pairs.len()
    }

    /// Inputs of a tile along one axis, and points.
    pub(super) const fn inputs(&self) -> usize {
        self.outputs() + TAPS - 1
    }

    /// The finite points in the order of the basis; what stands for infinity comes last.
    fn points(&self) -> Vec<f64> {
        let pairs = self.pairs.iter().flat_map(|point| [*point, -point]);
        [0.0].into_iter().chain(pairs).collect()
    }

    /// What changes filters to the basis.
    pub(super) fn filter_change(&self) -> FilterChange {
        FilterChange { matrix: self.filter_matrix(), row: Default::default() }
    }

    /// What each point takes of the taps.
    fn filter_matrix(&self) -> Vec<[f64; TAPS]> {
        let points = self.points();
        let at = |(idx, point): (usize, &f64)| {
            let others = points.iter().enumerate().filter(|(other, _)| *other != idx);
            let scale: f64 = others.map(|(_, other)| point - other).product();
            [1.0 / scale, point / scale, point * point / scale]
        };
        let finite = points.iter().enumerate().map(at);
        let whole = self.axis_scale() as f64;
        // Of what stands for infinity, the rest is multiplied behind the products: filters have 16 bits.
        let last = if self.whole { whole / 2.0 } else { 1.0 };
        match self.whole {
            true => finite
                .map(|row: [f64; TAPS]| row.map(|tap| (tap * whole).round()))
                .chain([[0.0, 0.0, last]])
                .collect(),
            false => finite.chain([[0.0, 0.0, last]]).collect(),
        }
    }

    /// What sums along one axis are multiplied by, where numbers are integers: a multiple of what filters would be divided
    /// by, and even.
    const fn axis_scale(&self) -> i64 {
        match (self.whole, self.pairs.len()) {
            (false, _) => 1,
            (true, 1) => 2,
            (true, _) => 24,
        }
    }

    /// The largest magnitude of a sum that [`Form::restored`] restores.
    pub(super) const fn most_sum(&self) -> i64 {
        let twos = (self.axis_scale() * self.axis_scale()).trailing_zeros();
        (1 << (31 - twos)) - 1
    }

    /// Of a sum that is too large by the square of the axis' scale, modulo 2³², the sum itself: its odd part is divided by
    /// through its inverse, then the power of two shifted out.
    pub(super) fn restored(&self, code: &mut InstSeq, sum: Reg) -> Reg {
        if !self.whole {
            return sum;
        }
        let scale = self.axis_scale() * self.axis_scale();
        let twos = scale.trailing_zeros();
        let odd = (scale >> twos) as u32;
        // Newton's iteration doubles the bits that are right; an odd number is its own inverse in three.
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

    /// A number of the type that the change of basis runs in.
    pub(super) fn number(&self, value: f64) -> Scalar {
        match self.whole {
            true => Scalar::from_i64(DType::I32, value as i64),
            false => Scalar::f32(value as f32),
        }
    }

    /// Inputs along one axis in the basis; `None` stands for zero.
    pub(super) fn change_inputs(&self, code: &mut InstSeq, inputs: &[Option<Reg>]) -> Vec<Option<Reg>> {
        let combine = |code: &mut InstSeq, terms: &[(f64, Option<Reg>)]| self.combine(code, terms);
        // The polynomial of a point vanishes at all others: at zero and infinity it is one in x².
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

    /// The first `count` outputs along one axis, of the products at each point.
    pub(super) fn change_outputs(&self, code: &mut InstSeq, products: &[Reg], count: usize) -> Vec<Reg> {
        let mut halves = Vec::new();
        for (idx, point) in self.pairs.iter().enumerate() {
            let (plus, minus) = (products[1 + 2 * idx], products[2 + 2 * idx]);
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
                // See the filters' matrix.
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

impl Form {
    /// A factor as the type of the numbers has it.
    fn rounded(&self, factor: f64) -> f64 {
        if self.whole { factor } else { f64::from(factor as f32) }
    }

    /// The sum of these multiples; `None` when nothing is left of it.
    fn combine(&self, code: &mut InstSeq, terms: &[(f64, Option<Reg>)]) -> Option<Reg> {
        let mut terms: Vec<(f64, Reg)> =
            terms.iter().filter_map(|(factor, reg)| Some((self.rounded(*factor), (*reg)?))).collect();
        terms.retain(|(factor, _)| *factor != 0.0);
        // What needs no product begins the sum.
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
                (None, _) => scaled(code, self.number(factor), reg),
                (Some(sum), 1.0) => code.push(Inst::Binary(BinaryOp::Add, sum, reg)),
                (Some(sum), -1.0) => code.push(Inst::Binary(BinaryOp::Sub, sum, reg)),
                (Some(sum), _) => {
                    let product = scaled(code, self.number(factor), reg);
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
