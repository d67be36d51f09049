//! Determinants of matrices.

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
        let x = carried[0];
        let now = Dim::from(&counter);
        let here = g.dim(DType::I64, now.clone())?;
        let place = g.index(DType::I64, vec![size.clone()], axis(0).into())?;
        let open = g.compare(CompareOp::Ge, place, here)?;

        let column = g.slice(x, 2, now.clone(), Dim::one(), 1)?;
        let column = g.squeeze(column, &[2])?;
        let weight = g.abs(column)?;

        let low = g.number(DType::F64, -1.0)?;
        let weight = g.select(open, weight, low)?;
        let largest = g.argreduce(ReduceOp::Max, weight, 1, true, false)?;

        // Row `here` and the row with the largest element are swapped.
        let is_here = g.compare(CompareOp::Eq, place, here)?;
        let is_largest = g.compare(CompareOp::Eq, place, largest)?;
        let from = g.select(is_largest, here, place)?;
        let from = g.select(is_here, largest, from)?;

        let row = Coord::Load { operand: 1, at: vec![axis(0).into(), axis(1).into()] };
        let coords = vec![Coord::At(axis(0).into()), row, Coord::At(axis(2).into())];
        let x = g.push(Op::Gather { shape: g.shape(x).to_vec(), coords }, &[x, from])?;
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
