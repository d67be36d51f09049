//! Determinants and inverses of matrices.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, Value, axis, build::LoopBody},
    import::node::OnnxNode,
    scalar::{CompareOp, ReduceOp},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Det 11 det,
    "com.microsoft" Inverse 1 inverse,
}

/// The largest matrix whose determinant is expanded; larger ones are eliminated.
const MAX_EXPANDED: i64 = 3;

/// The determinants of the square matrices in the last two axes. Up to 3 rows are expanded along the first row. Larger
/// matrices are eliminated with partial pivoting in double precision.
///
/// `Det([[1, 2], [3, 4]]) = -2`
/// `Det([[0, 2, 0, 0], [3, 0, 0, 0], [0, 0, 1, 4], [0, 0, 1, 2]]) = 12`
fn det(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let rank = g.rank(x);
    if rank < 2 {
        return Err(Error::invalid("the input must have at least 2 axes"));
    }
    let [rows, size] = [2, 1].map(|k| g.shape(x)[rank - k].clone());
    g.require(Relation::eq(rows, &size), "rows of Det")?;
    match size.as_i64().filter(|size| (1..=MAX_EXPANDED).contains(size)) {
        Some(size) => minor(g, x, 0, &(0..size).collect::<Vec<i64>>()),
        None => eliminated(g, n, x, &size),
    }
}

/// The determinants of matrices with `size` rows by Gaussian elimination.
///
/// Each round swaps the largest element of a column to the diagonal and subtracts multiples of its row from the rows
/// below.
fn eliminated(g: &mut Graph, n: &OnnxNode, x: Value, size: &Dim) -> Result<Value> {
    let dtype = g.dtype(x);
    let outer = g.shape(x)[..g.rank(x) - 2].to_vec();
    let batch = g.facts.simplify(&Dim::product(outer.iter().cloned()));
    let x = g.reshape(x, vec![batch.clone(), size.clone(), size.clone()])?;
    let x = g.cast(DType::F64, x)?;

    let one = g.number(DType::F64, 1.0)?;
    let det = g.broadcast_to(one, &[batch])?;

    let counter = n.fresh(g);
    let rounds = g.iterate(&counter, size, [&[x, det], &[]], |g, carried, _| {
        let now = Dim::from(&counter);
        let Pivoted { x, place, here, largest } = pivoted(g, carried[0], &now)?;
        let row = g.slice(x, 1, now.clone(), Dim::one(), 1)?;
        let column = g.slice(x, 2, now.clone(), Dim::one(), 1)?;
        let pivot = g.slice(row, 2, now, Dim::one(), 1)?;

        let zero = g.number(DType::F64, 0.0)?;
        let one = g.number(DType::F64, 1.0)?;
        let is_zero = g.compare(CompareOp::Eq, pivot, zero)?;
        let divisor = g.select(is_zero, one, pivot)?;
        let factor = g.div(column, divisor)?;

        let below = g.compare(CompareOp::Gt, place, here)?;
        let below = g.unsqueeze(below, &[1])?;
        let factor = g.select(below, factor, zero)?;
        let taken = g.mul(factor, row)?;
        let next = g.sub(x, taken)?;

        let pivot = g.squeeze(pivot, &[1, 2])?;
        let largest = g.squeeze(largest, &[1])?;
        let stays = g.compare(CompareOp::Eq, largest, here)?;
        let minus = g.neg(pivot)?;
        let pivot = g.select(stays, pivot, minus)?;

        Ok(LoopBody { next: vec![next, g.mul(carried[1], pivot)?], ..LoopBody::default() })
    })?;

    let det = g.reshape(rounds.carried[1], outer)?;
    g.cast(dtype, det)
}

/// Matrices whose row `here` was swapped with the row of the pivot.
struct Pivoted {
    x: Value,
    /// The index of each row.
    place: Value,
    here: Value,
    /// The former index of the pivot's row, `[B, 1]`.
    largest: Value,
}

/// The matrices `x`, `[B, rows, columns]`, with the largest element of column `now` in row `now`. Rows before it do not
/// count.
fn pivoted(g: &mut Graph, x: Value, now: &Dim) -> Result<Pivoted> {
    let rows = g.shape(x)[1].clone();
    let here = g.dim(DType::I64, now.clone())?;
    let place = g.index(DType::I64, vec![rows], axis(0).into())?;
    let open = g.compare(CompareOp::Ge, place, here)?;

    let column = g.slice(x, 2, now.clone(), Dim::one(), 1)?;
    let column = g.squeeze(column, &[2])?;
    let weight = g.abs(column)?;

    let low = g.number(DType::F64, -1.0)?;
    let weight = g.select(open, weight, low)?;
    let largest = g.argreduce(ReduceOp::Max, weight, 1, true, false)?;

    let is_here = g.compare(CompareOp::Eq, place, here)?;
    let is_largest = g.compare(CompareOp::Eq, place, largest)?;
    let from = g.select(is_largest, here, place)?;
    let from = g.select(is_here, largest, from)?;

    let row = Coord::Load { operand: 1, at: vec![axis(0).into(), axis(1).into()] };
    let coords = vec![Coord::At(axis(0).into()), row, Coord::At(axis(2).into())];
    let x = g.push(Op::Gather { shape: g.shape(x).to_vec(), coords }, &[x, from])?;
    Ok(Pivoted { x, place, here, largest })
}

/// The inverses of the square matrices in the last two axes, by elimination with partial pivoting in double precision.
/// A singular matrix gives infinities or NaN.
///
/// `Inverse([[0, 2], [4, 0]]) = [[0, 0.25], [0.5, 0]]`
fn inverse(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let dtype = g.dtype(x);
    let shape = g.shape(x).to_vec();
    let [outer @ .., rows, size] = shape.as_slice() else {
        return Err(Error::invalid("the input must have at least 2 axes"));
    };
    g.require(Relation::eq(rows, size), "rows of Inverse")?;
    let batch = g.facts.simplify(&Dim::product(outer.iter().cloned()));
    let x = g.reshape(x, vec![batch.clone(), size.clone(), size.clone()])?;
    let x = g.cast(DType::F64, x)?;

    // The unit matrix on the right becomes the inverse while the matrix on the left becomes the unit matrix.
    let row = g.index(DType::I64, vec![size.clone(), size.clone()], axis(0).into())?;
    let column = g.index(DType::I64, vec![size.clone(), size.clone()], axis(1).into())?;
    let unit = g.compare(CompareOp::Eq, row, column)?;
    let unit = g.cast(DType::F64, unit)?;
    let unit = g.broadcast_to(unit, &[batch, size.clone(), size.clone()])?;
    let both = g.concat(&[x, unit], 2)?;

    let counter = n.fresh(g);
    let rounds = g.iterate(&counter, size, [&[both], &[]], |g, carried, _| {
        let now = Dim::from(&counter);
        let Pivoted { x, place, here, .. } = pivoted(g, carried[0], &now)?;
        let row = g.slice(x, 1, now.clone(), Dim::one(), 1)?;
        let column = g.slice(x, 2, now.clone(), Dim::one(), 1)?;
        let pivot = g.slice(row, 2, now, Dim::one(), 1)?;
        let row = g.div(row, pivot)?;
        let taken = g.mul(column, row)?;
        let next = g.sub(x, taken)?;
        let is_here = g.compare(CompareOp::Eq, place, here)?;
        let is_here = g.unsqueeze(is_here, &[1])?;
        Ok(LoopBody { next: vec![g.select(is_here, row, next)?], ..LoopBody::default() })
    })?;

    let inverse = g.slice(rounds.carried[0], 2, size.clone(), size.clone(), 1)?;
    let inverse = g.reshape(inverse, shape.clone())?;
    g.cast(dtype, inverse)
}

/// The determinant of the rows from `row` on and `columns`.
fn minor(g: &mut Graph, x: Value, row: i64, columns: &[i64]) -> Result<Value> {
    let rank = g.rank(x);
    let mut sum: Option<Value> = None;
    for (k, column) in columns.iter().enumerate() {
        let entry = g.slice(x, rank - 2, row.into(), Dim::one(), 1)?;
        let entry = g.slice(entry, rank - 1, (*column).into(), Dim::one(), 1)?;
        let entry = g.squeeze(entry, &[rank - 2, rank - 1])?;

        let rest: Vec<i64> = columns.iter().copied().filter(|other| other != column).collect();
        let term = if rest.is_empty() {
            entry
        } else {
            let below = minor(g, x, row + 1, &rest)?;
            g.mul(entry, below)?
        };

        sum = Some(match sum {
            None => term,
            Some(sum) if k % 2 == 0 => g.add(sum, term)?,
            Some(sum) => g.sub(sum, term)?,
        });
    }

    sum.ok_or_else(|| Error::internal("a matrix must have columns"))
}
