//! Reductions, contractions, and their compositions: matmul, mean, softmax.

use super::super::{Graph, Label, Op, Value};
use crate::{
    error::{Error, Result},
    scalar::{CompareOp, Precision, ReduceOp, UnaryOp},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

impl Graph {
    /// Reduces along `axes`, which are removed or keep size 1.
    ///
    /// # Errors
    /// Axes that repeat or don't exist, or a type that can't be combined.
    pub fn reduce(&mut self, op: ReduceOp, x: Value, axes: &[usize], keep_dims: bool) -> Result<Value> {
        let mut axes = axes.to_vec();
        axes.sort_unstable();
        let reduced =
            if axes.is_empty() { x } else { self.push(Op::Reduce { op, axes: axes.clone() }, &[x])? };
        if keep_dims { self.unsqueeze(reduced, &axes) } else { Ok(reduced) }
    }

    /// The arithmetic mean along `axes` of a float tensor.
    ///
    /// # Errors
    /// As [`Graph::reduce`].
    pub fn mean(&mut self, x: Value, axes: &[usize], keep_dims: bool) -> Result<Value> {
        let sum = self.reduce(ReduceOp::Sum, x, axes, keep_dims)?;
        let count = Dim::product(axes.iter().filter_map(|k| self.shape(x).get(*k).cloned()));
        let count = self.dim(self.dtype(x), self.facts.simplify(&count))?;
        self.div(sum, count)
    }

    /// `e^x` divided by its sum along axis `k`. The largest element is subtracted first to avoid overflow. Powers below
    /// 3e-38 count as zero, see [`Graph::exp_or_zero`].
    ///
    /// # Errors
    /// No such axis, or not a float type.
    pub fn softmax(&mut self, x: Value, k: usize) -> Result<Value> {
        let largest = self.reduce(ReduceOp::Max, x, &[k], true)?;
        let shifted = self.sub(x, largest)?;
        let powers = self.exp_or_zero(shifted)?;
        let sum = self.reduce(ReduceOp::Sum, powers, &[k], true)?;
        let scale = self.unary(UnaryOp::Recip, sum)?;
        self.mul(powers, scale)
    }

    /// `e^x`, and 0 for `x` below -86.5, where `e^x` is 2.7e-38. Masks of attention make `x` about -100. `e^x` is
    /// subnormal then, and each multiplication with it takes over a hundred cycles on some processors.
    ///
    /// # Errors
    /// Not a float type.
    pub fn exp_or_zero(&mut self, x: Value) -> Result<Value> {
        let dtype = self.dtype(x);
        if dtype == DType::F64 {
            return self.exp(x);
        }
        let limit = self.number(dtype, -86.5)?;
        let minus_infinity = self.number(dtype, f64::NEG_INFINITY)?;
        let is_below = self.compare(CompareOp::Lt, x, limit)?;
        let x = self.select(is_below, minus_infinity, x)?;
        self.exp(x)
    }

    /// The position of the largest ([`ReduceOp::Max`]) or smallest element along axis `k`. The axis must not be empty
    /// unless the result is.
    ///
    /// # Errors
    /// No such axis, an empty axis, or another reduction.
    pub fn argreduce(
        &mut self,
        op: ReduceOp,
        x: Value,
        k: usize,
        keep_dims: bool,
        last: bool,
    ) -> Result<Value> {
        let position = self.push(Op::ArgReduce { op, axis: k, last }, &[x])?;
        let size = self.shape(x)[k].clone();
        let n_results = Dim::product(self.shape(position).iter().cloned());
        let min_size = self.facts.simplify(&n_results.min(Dim::one()));
        self.require(Relation::le(min_size, size), &format!("axis {k}, of which an element is chosen"))?;
        if keep_dims { self.unsqueeze(position, &[k]) } else { Ok(position) }
    }

    /// The prefix reduction along axis `k`, see [`Op::Scan`].
    ///
    /// # Errors
    /// No such axis, or a type that can't be combined.
    pub fn scan(
        &mut self,
        op: ReduceOp,
        x: Value,
        k: usize,
        exclusive: bool,
        reverse: bool,
    ) -> Result<Value> {
        self.push(Op::Scan { op, axis: k, exclusive, reverse }, &[x])
    }

    /// The values sorted along axis `k`, and their original positions.
    ///
    /// # Errors
    /// No such axis.
    pub fn sort(&mut self, x: Value, k: usize, descending: bool) -> Result<(Value, Value)> {
        let results = self.push_multi(Op::Sort { axis: k, descending, first: None }, &[x])?;
        Ok((results[0], results[1]))
    }

    /// The elements of [`Graph::sort`] beyond a bound, see [`Op::Sort`].
    ///
    /// # Errors
    /// No such axis, or a bound that is not a scalar of the type of `x`.
    pub fn sort_beyond(
        &mut self,
        x: Value,
        k: usize,
        descending: bool,
        bound: Value,
    ) -> Result<(Value, Value)> {
        let results = self.push_multi(Op::Sort { axis: k, descending, first: None }, &[x, bound])?;
        Ok((results[0], results[1]))
    }

    /// The first `count` elements of [`Graph::sort`]. There must be as many along axis `k`.
    ///
    /// # Errors
    /// No such axis, or a shorter one.
    pub fn sort_first(
        &mut self,
        x: Value,
        k: usize,
        descending: bool,
        count: &Dim,
    ) -> Result<(Value, Value)> {
        let first = Some(count.clone());
        let results = self.push_multi(Op::Sort { axis: k, descending, first }, &[x])?;
        Ok((results[0], results[1]))
    }

    /// A contraction in Einstein's notation, in the operands' type, see [`Op::Contraction`].
    ///
    /// ```
    /// use symshape_compiler::graph::Graph;
    /// use symshape_runtime::DType;
    /// let mut g = Graph::default();
    /// let x = g.input("x", DType::F32, vec!["N".parse().unwrap(), 8.into()])?;
    /// let w = g.input("w", DType::F32, vec![4.into(), 8.into()])?;
    /// let y = g.contract(x, b"nk", w, b"mk", b"nm")?;
    /// assert_eq!(g.shape(y)[1], 4.into());
    /// # Ok::<(), symshape_compiler::Error>(())
    /// ```
    ///
    /// # Errors
    /// Labels or sizes that don't fit.
    pub fn contract(
        &mut self,
        lhs: Value,
        lhs_labels: &[Label],
        rhs: Value,
        rhs_labels: &[Label],
        out_labels: &[Label],
    ) -> Result<Value> {
        let dtype = self.dtype(lhs);
        self.contract_as(dtype, lhs, lhs_labels, rhs, rhs_labels, out_labels)
    }

    /// [`Graph::contract`] that multiplies and adds in type `dtype`.
    ///
    /// # Errors
    /// As [`Graph::contract`].
    pub fn contract_as(
        &mut self,
        dtype: DType,
        lhs: Value,
        lhs_labels: &[Label],
        rhs: Value,
        rhs_labels: &[Label],
        out_labels: &[Label],
    ) -> Result<Value> {
        let [lhs_labels, rhs_labels, out] = [lhs_labels, rhs_labels, out_labels].map(<[Label]>::to_vec);
        let precision = Precision::F32;
        self.push(Op::Contraction { lhs: lhs_labels, rhs: rhs_labels, out, dtype, precision }, &[lhs, rhs])
    }

    /// NumPy's `matmul`. The last two axes are matrices, and the axes before them broadcast. A vector is a row on the
    /// left and a column on the right, and its axis is removed.
    ///
    /// # Errors
    /// A rank of 0, inner sizes that differ, or batch sizes that don't broadcast.
    pub fn matmul(&mut self, a: Value, b: Value) -> Result<Value> {
        let dtype = self.dtype(a);
        self.matmul_as(dtype, a, b)
    }

    /// [`Graph::matmul`] that multiplies and adds in type `dtype`.
    ///
    /// # Errors
    /// As [`Graph::matmul`].
    pub fn matmul_as(&mut self, dtype: DType, a: Value, b: Value) -> Result<Value> {
        let a_rank = self.rank(a);
        let b_rank = self.rank(b);
        if a_rank == 0 || b_rank == 0 {
            return Err(Error::invalid("matmul of a tensor without axes"));
        }

        let a_batch = a_rank.saturating_sub(2);
        let b_batch = b_rank.saturating_sub(2);
        let [a_shape, b_shape] = [self.shape(a)[..a_batch].to_vec(), self.shape(b)[..b_batch].to_vec()];
        let batch = self.broadcast_shapes(&[a_shape, b_shape])?;

        let a_matrix: &[Label] = if a_rank == 1 { b"k" } else { b"mk" };
        let b_matrix: &[Label] = if b_rank == 1 { b"k" } else { b"kn" };
        let (a, a_labels) = self.batch_operand(a, a_batch, &batch, a_matrix)?;
        let (b, b_labels) = self.batch_operand(b, b_batch, &batch, b_matrix)?;
        let mut out = batch_labels(batch.len());
        out.extend(a_matrix.iter().chain(b_matrix).filter(|label| **label != b'k'));

        self.contract_as(dtype, a, &a_labels, b, &b_labels, &out)
    }

    /// `x` without the batch axes along which it repeats, and its labels: those of the remaining batch axes, and
    /// `matrix`.
    fn batch_operand(
        &mut self,
        x: Value,
        x_batch: usize,
        batch: &[Dim],
        matrix: &[Label],
    ) -> Result<(Value, Vec<Label>)> {
        let new = batch.len() - x_batch;
        let shape = self.shape(x).to_vec();
        let repeats = |k: &usize| self.is_one(&shape[*k]) && !self.is_one(&batch[new + k]);
        let gone: Vec<usize> = (0..x_batch).filter(repeats).collect();
        let all = batch_labels(batch.len());
        let kept = (0..x_batch).filter(|k| !gone.contains(k)).map(|k| all[new + k]);
        let labels = kept.chain(matrix.iter().copied()).collect();
        Ok((self.squeeze(x, &gone)?, labels))
    }
}

/// Capital letters label the batch axes; `m`, `k` and `n` label the matrices.
fn batch_labels(count: usize) -> Vec<Label> {
    (b'A'..=b'Z').take(count).collect()
}
