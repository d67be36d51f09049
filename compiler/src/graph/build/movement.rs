//! Operators that move elements without computing them. Each is one [`Op::View`] unless it must copy.
//!
//! Axes are counted from 0. Starts, lengths and pads may be symbolic; strides and kernel sizes are constants. A view
//! copies nothing, and `opt` merges views of views.

use super::super::{Coord, Graph, Op, Value, axis};
use crate::{
    error::{Error, Result},
    scalar::Scalar,
};
use symshape::{Dim, Relation};

impl Graph {
    /// `out[$k…] = x[index…]` with this shape.
    ///
    /// # Errors
    /// Not one index for each axis of `x`, or one that is outside of it.
    pub fn view(&mut self, x: Value, shape: Vec<Dim>, index: Vec<Dim>) -> Result<Value> {
        self.push(Op::View { shape, index }, &[x])
    }

    /// Axis `k` of the result is axis `perm[k]` of `x`.
    ///
    /// # Errors
    /// `perm` is not a permutation of the axes.
    pub fn transpose(&mut self, x: Value, perm: &[usize]) -> Result<Value> {
        let rank = self.rank(x);
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        if sorted != (0..rank).collect::<Vec<_>>() {
            return Err(Error::invalid(format!("{perm:?} is not a permutation of {rank} axes")));
        }
        if perm == sorted {
            return Ok(x);
        }

        let shape = perm.iter().map(|k| self.shape(x)[*k].clone()).collect();
        let mut index = vec![Dim::zero(); rank];
        for (k, from) in perm.iter().enumerate() {
            index[*from] = axis(k).into();
        }

        self.view(x, shape, index)
    }

    /// `len` elements along axis `k`: `start`, `start + step`, … A negative `step` walks backwards.
    ///
    /// # Errors
    /// No such axis, a step of 0, or elements outside of the axis.
    pub fn slice(&mut self, x: Value, k: usize, start: Dim, len: Dim, step: i64) -> Result<Value> {
        self.check_axis(x, k)?;
        if step == 0 {
            return Err(Error::invalid("a slice has step 0"));
        }

        let mut shape = self.shape(x).to_vec();
        if step == 1 && start.as_i64() == Some(0) && shape[k] == len {
            return Ok(x);
        }

        shape[k] = len;
        let mut index = axes(self.rank(x));
        index[k] = start + Dim::from(axis(k)) * step;

        self.view(x, shape, index)
    }

    /// Inserts axes of size 1 at these positions of the result.
    ///
    /// # Errors
    /// Positions that repeat or don't exist.
    pub fn unsqueeze(&mut self, x: Value, positions: &[usize]) -> Result<Value> {
        let rank = self.rank(x) + positions.len();
        let mut shape = Vec::new();
        let mut index = Vec::new();
        let mut old = self.shape(x).iter().cloned();
        for k in 0..rank {
            if positions.contains(&k) {
                shape.push(Dim::one());
                continue;
            }
            let Some(dim) = old.next() else {
                return Err(Error::invalid(format!(
                    "cannot insert axes at {positions:?} into a result of {rank} axes"
                )));
            };
            shape.push(dim);
            index.push(axis(k).into());
        }

        if old.next().is_some() || index.len() != self.rank(x) {
            return Err(Error::invalid(format!(
                "cannot insert axes at {positions:?} into a result of {rank} axes"
            )));
        }
        if positions.is_empty() { Ok(x) } else { self.view(x, shape, index) }
    }

    /// Removes these axes, which have size 1.
    ///
    /// # Errors
    /// No such axis, or one of another size.
    pub fn squeeze(&mut self, x: Value, gone: &[usize]) -> Result<Value> {
        for k in gone {
            self.check_axis(x, *k)?;
            let dim = self.shape(x)[*k].clone();
            self.require(Relation::eq(dim, 1), &format!("squeeze of axis {k}"))?;
        }

        if gone.is_empty() {
            return Ok(x);
        }
        let mut shape = Vec::new();
        let mut index = Vec::new();
        for (k, dim) in self.shape(x).iter().enumerate() {
            if gone.contains(&k) {
                index.push(Dim::zero());
            } else {
                index.push(axis(shape.len()).into());
                shape.push(dim.clone());
            }
        }
        self.view(x, shape, index)
    }

    /// Merges the axes before `k` into one axis, and those from `k` on into another.
    ///
    /// # Errors
    /// `k` exceeds the rank.
    pub fn flatten(&mut self, x: Value, k: usize) -> Result<Value> {
        if k > self.rank(x) {
            return Err(Error::invalid(format!("flatten at axis {k} of a tensor of {} axes", self.rank(x))));
        }
        let (rows, columns) = self.shape(x).split_at(k);
        let shape = [rows, columns].map(|part| Dim::product(part.iter().cloned()));
        self.reshape(x, shape.to_vec())
    }

    /// NumPy's broadcasting of `x` with a tensor of this shape. Unlike in [`Graph::broadcast_to`], a 1 in `shape`
    /// keeps the size of `x`.
    ///
    /// # Errors
    /// Shapes that don't broadcast.
    pub fn expand(&mut self, x: Value, shape: &[Dim]) -> Result<Value> {
        let both = self.broadcast_shapes(&[self.shape(x).to_vec(), shape.to_vec()])?;
        self.broadcast_to(x, &both)
    }

    /// Reverses the elements along axis `k`.
    ///
    /// # Errors
    /// No such axis.
    pub fn reverse(&mut self, x: Value, k: usize) -> Result<Value> {
        self.check_axis(x, k)?;
        let len = self.shape(x)[k].clone();
        self.slice(x, k, &len - 1, len, -1)
    }

    /// `x` with `lo[k]` elements before and `hi[k]` after it along axis `k`. A negative pad removes elements.
    ///
    /// # Errors
    /// Not one pad for each axis, more elements removed than exist, or another type of `value`.
    pub fn pad(&mut self, x: Value, lo: &[Dim], hi: &[Dim], value: Scalar) -> Result<Value> {
        if lo.len() != self.rank(x) || hi.len() != self.rank(x) {
            return Err(Error::invalid(format!(
                "{} and {} pads for {} axes",
                lo.len(),
                hi.len(),
                self.rank(x)
            )));
        }

        let mut x = x;
        let mut before = Vec::new();
        let mut after = Vec::new();
        for k in 0..lo.len() {
            let (take_lo, put_lo) = self.split_pad(&lo[k]);
            let (take_hi, put_hi) = self.split_pad(&hi[k]);
            let len = &self.shape(x)[k] - &take_lo - take_hi;
            x = self.slice(x, k, take_lo, self.facts.simplify(&len), 1)?;
            before.push(put_lo);
            after.push(put_hi);
        }

        if before.iter().chain(&after).all(|n| n.as_i64() == Some(0)) {
            return Ok(x);
        }
        self.push(Op::Pad { lo: before, hi: after, value }, &[x])
    }

    /// The number of removed and of added elements for a pad of `n`.
    fn split_pad(&self, n: &Dim) -> (Dim, Dim) {
        if self.facts.prove_le(&Dim::zero(), n).is_yes() {
            (Dim::zero(), n.clone())
        } else if self.facts.prove_le(n, &Dim::zero()).is_yes() {
            (self.facts.simplify(&-n), Dim::zero())
        } else {
            let taken = Dim::max(&-n, 0);
            let put = Dim::max(n, 0);
            (self.facts.simplify(&taken), self.facts.simplify(&put))
        }
    }

    /// Sliding windows: along `axes[i]` the result has one index `o` per window, and one appended axis with the index
    /// `k` inside it: `out[…o…, …k…] = x[…o*stride + k*dilation…]`.
    ///
    /// # Errors
    /// No such axis, lists of different lengths, elements below 1, or an axis shorter than its window by more than the
    /// stride. An axis that is shorter by less has no windows.
    pub fn window(
        &mut self,
        x: Value,
        axes_: &[usize],
        kernel: &[i64],
        stride: &[i64],
        dilation: &[i64],
    ) -> Result<Value> {
        let count = axes_.len();
        if kernel.len() != count || stride.len() != count || dilation.len() != count {
            return Err(Error::invalid(
                "kernel, strides and dilations need one element for each windowed axis",
            ));
        }

        let rank = self.rank(x);
        let mut shape = self.shape(x).to_vec();
        let mut index = axes(rank);
        for i in 0..count {
            let k = axes_[i];
            let kernel = kernel[i];

            let stride = stride[i];
            let dilation = dilation[i];
            self.check_axis(x, k)?;
            if kernel < 1 || stride < 1 || dilation < 1 {
                return Err(Error::invalid(format!(
                    "kernel {kernel}, stride {stride}, dilation {dilation}: each must be at least 1"
                )));
            }

            let span = (kernel - 1)
                .checked_mul(dilation)
                .and_then(|span| span.checked_add(1))
                .ok_or_else(|| Error::invalid("a window is too long"))?;

            self.require(
                Relation::le(span - stride, &shape[k]),
                &format!("axis {k} has size {}, its window {span} at stride {stride}", shape[k]),
            )?;
            shape[k] = (&shape[k] - span).floor_div(stride) + 1;
            index[k] = Dim::from(axis(k)) * stride + Dim::from(axis(rank + i)) * dilation;
            shape.push(kernel.into());
        }
        self.view(x, shape, index)
    }

    /// Concatenates the values along axis `k`.
    ///
    /// # Errors
    /// No values, types or ranks that differ, or sizes of other axes that differ.
    pub fn concat(&mut self, values: &[Value], k: usize) -> Result<Value> {
        match values {
            [x] => self.check_axis(*x, k).map(|()| *x),
            _ => self.push(Op::Concat { axis: k }, values),
        }
    }

    /// Splits `x` along axis `k` into slices of these lengths.
    ///
    /// # Errors
    /// No such axis, or lengths whose sum isn't its size.
    pub fn split(&mut self, x: Value, k: usize, lens: &[Dim]) -> Result<Vec<Value>> {
        self.check_axis(x, k)?;
        let total = Dim::sum(lens.iter().cloned());
        self.require(Relation::eq(&self.shape(x)[k], total), &format!("parts of axis {k}"))?;
        let mut start = Dim::zero();
        let mut parts = Vec::new();
        for len in lens {
            parts.push(self.slice(x, k, start.clone(), len.clone(), 1)?);
            start = self.facts.simplify(&(start + len));
        }
        Ok(parts)
    }

    /// Replaces axis `k` by the axes of `idx`, whose elements are indices along axis `k`, as `np.take` does. Indices
    /// must be in `0..size`, which the compiled code checks.
    ///
    /// # Errors
    /// No such axis, or `idx` does not have an integer type.
    pub fn gather(&mut self, x: Value, idx: Value, k: usize) -> Result<Value> {
        self.check_axis(x, k)?;
        let rank = self.rank(x);
        let idx_rank = self.rank(idx);
        let head = &self.shape(x)[..k];
        let tail = &self.shape(x)[k + 1..];
        let shape = [head, self.shape(idx), tail].concat();
        let mut coords: Vec<Coord> = (0..k).map(|i| Coord::At(axis(i).into())).collect();
        coords.push(Coord::Load { operand: 1, at: (k..k + idx_rank).map(|i| axis(i).into()).collect() });
        coords.extend((k + 1..rank).map(|i| Coord::At(axis(i - 1 + idx_rank).into())));
        self.push(Op::Gather { shape, coords }, &[x, idx])
    }

    pub(crate) fn check_axis(&self, x: Value, k: usize) -> Result<()> {
        if k < self.rank(x) {
            Ok(())
        } else {
            Err(Error::invalid(format!("axis {k} of a tensor of {} axes", self.rank(x))))
        }
    }
}

/// The index of each axis: `$0, $1, …`.
pub(super) fn axes(rank: usize) -> Vec<Dim> {
    (0..rank).map(|k| axis(k).into()).collect()
}
