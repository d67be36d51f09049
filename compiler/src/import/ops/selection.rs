//! Elements that are selected by their values. Their count is data-dependent and has an upper bound.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, ScatterMode, Value, axis, build::LoopBody},
    import::{
        node::{
            OnnxNode,
            axes::{larger, normal_axis},
        },
        ops::shared::arithmetic::{int, positions},
    },
    scalar::{CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Compress 9 compress,
    NonMaxSuppression 10 non_max_suppression,
    NonZero 9 non_zero,
    Unique 11 unique,
    "com.microsoft" Unique 1 unique_in_order,
}

/// The number of elements of `x`.
fn elems(g: &Graph, x: Value) -> Dim {
    g.facts.simplify(&Dim::product(g.shape(x).iter().cloned()))
}

fn flat(g: &mut Graph, x: Value) -> Result<Value> {
    let count = elems(g, x);
    g.reshape(x, vec![count])
}

/// The positions at which the vector `mask` is true, in ascending order. There are at most `max`.
fn places(g: &mut Graph, n: &OnnxNode, mask: Value, max_count: Option<Dim>) -> Result<Value> {
    let size = g.shape(mask)[0].clone();
    let ones = g.cast(DType::I64, mask)?;
    let count = g.reduce(ReduceOp::Sum, ones, &[0], false)?;
    let before = g.scan(ReduceOp::Sum, ones, 0, true, false)?;

    // Elements that are not selected are written to an extra position at the end.
    let end = g.dim(DType::I64, size.clone())?;
    let to = g.select(mask, before, end)?;
    let own = positions(g, mask, 0)?;
    let zero = int(g, 0)?;
    let zeros = g.broadcast_to(zero, &[g.facts.simplify(&(&size + 1))])?;
    let found = put(g, zeros, to, own)?;

    let max_count = match max_count {
        Some(max_count) => Dim::min(&size, max_count),
        None => size,
    };

    let count = n.data_dependent(g, count, 0, max_count)?;
    g.slice(found, 0, Dim::zero(), count, 1)
}

/// The vector `x` with the elements of `values` at the positions `to`.
fn put(g: &mut Graph, x: Value, to: Value, values: Value) -> Result<Value> {
    let coords = vec![Coord::Load { operand: 2, at: vec![axis(0).into()] }];
    g.push(Op::Scatter { coords, mode: ScatterMode::Assign }, &[x, values, to])
}

fn is_not_zero(g: &mut Graph, x: Value) -> Result<Value> {
    if g.dtype(x) == DType::Bool {
        return Ok(x);
    }
    let zero = g.scalar(Scalar::from_i64(g.dtype(x), 0))?;
    g.compare(CompareOp::Ne, x, zero)
}

/// The indices of all elements that are not zero, `[rank, count]`: one column per element, in row-major order.
///
/// `NonZero([[1, 0], [2, 3]]) = i64[[0, 1, 1], [0, 0, 1]]`
fn non_zero(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let shape = g.shape(x).to_vec();
    let mask = is_not_zero(g, x)?;
    let mask = flat(g, mask)?;
    let places = places(g, n, mask, None)?;
    if shape.is_empty() {
        let count = g.shape(places)[0].clone();
        return g.reshape(places, vec![Dim::zero(), count]);
    }
    unravel(g, places, &shape, 0)
}

/// The coordinates in `shape` of flat positions, stacked along axis `k` of the result.
fn unravel(g: &mut Graph, places: Value, shape: &[Dim], k: usize) -> Result<Value> {
    let mut rows = Vec::new();
    for (i, dim) in shape.iter().enumerate() {
        let stride = g.facts.simplify(&Dim::product(shape[i + 1..].iter().cloned()));
        let one = int(g, 1)?;
        let stride = g.dim(DType::I64, stride)?;
        let stride = g.max(stride, one)?;
        let mut row = g.div(places, stride)?;
        if i > 0 {
            let dim = g.dim(DType::I64, dim.clone())?;
            let dim = g.max(dim, one)?;
            row = g.binary(crate::scalar::BinaryOp::Mod, row, dim)?;
        }
        rows.push(g.unsqueeze(row, &[k])?);
    }

    g.concat(&rows, k)
}

/// The slices along `axis` where the condition (input 1) is true. Without `axis`, the input is flattened.
///
/// `Compress([[1, 2], [3, 4]], i64[0, 1]; axis=0) = [[3, 4]]`
fn compress(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut x = n.input(0)?;
    let condition = n.input(1)?;

    let k = match n.int("axis")? {
        Some(k) => normal_axis(k, g.rank(x))?,
        None => {
            x = flat(g, x)?;
            0
        }
    };

    if g.rank(condition) != 1 {
        return Err(Error::invalid("the condition must have one axis"));
    }

    // The condition may be longer than the axis. Its excess elements have no effect.
    let mask = is_not_zero(g, condition)?;
    let place = positions(g, mask, 0)?;
    let end = g.dim(DType::I64, g.shape(x)[k].clone())?;
    let inside = g.compare(CompareOp::Lt, place, end)?;
    let mask = g.and(mask, inside)?;
    let places = places(g, n, mask, n.declared_dim(g, 0, k))?;

    g.gather(x, places, k)
}

/// The order of the rows of the matrix `x` that sorts them lexicographically.
fn sorted_rows(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let [rows, columns] = [0, 1].map(|k| g.shape(x)[k].clone());
    let order = g.index(DType::I64, vec![rows], axis(0).into())?;

    // Stable sorts from the last column to the first.
    if let Some(columns) = columns.as_i64().filter(|columns| *columns <= MAX_UNROLLED) {
        return (0..columns).rev().try_fold(order, |order, column| sorted_by(g, x, order, column.into()));
    }

    let counter = n.fresh(g);
    let sorted = g.iterate(&counter, &columns, [&[order], &[x]], |g, order, given| {
        let column = &columns - 1 - Dim::from(&counter);
        Ok(LoopBody { next: vec![sorted_by(g, given[0], order[0], column)?], ..LoopBody::default() })
    })?;

    Ok(sorted.carried[0])
}

/// `order`, sorted by the column of `x` that it addresses.
fn sorted_by(g: &mut Graph, x: Value, order: Value, column: Dim) -> Result<Value> {
    let keys = g.slice(x, 1, column, Dim::one(), 1)?;
    let keys = g.squeeze(keys, &[1])?;
    let keys = g.gather(keys, order, 0)?;
    let (_, at) = g.sort(keys, 0, false)?;
    g.gather(order, at, 0)
}

/// More columns are sorted in a loop.
const MAX_UNROLLED: i64 = 8;

/// The distinct elements of the input, or distinct slices along `axis`, sorted, or with `sorted=0` in the order of
/// their first occurrence. Output 1 is the index of their first occurrence. Output 2 maps each input element to its
/// distinct element. Output 3 counts the occurrences.
///
/// `Unique([2, 1, 1]) = [1, 2], i64[1, 0], i64[1, 0, 0], i64[2, 1]`
/// `Unique([2, 1, 1]; sorted=0) = [2, 1], i64[0, 1], i64[0, 1, 1], i64[1, 2]`
fn unique(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let sorted = n.flag("sorted", true)?;
    distinct(g, n, sorted)
}

/// The distinct elements of a vector in the order of their first occurrence. Output 1 maps each element to its position
/// in output 0, and output 2 counts the occurrences.
///
/// Limits: as `Unique`.
///
/// `Unique([2, 1, 2]) = [2, 1], i64[0, 1, 0], i64[2, 1]`
fn unique_in_order(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let mut outputs = distinct(g, n, false)?;
    outputs.remove(1);
    Ok(outputs)
}

/// The outputs of `Unique`.
fn distinct(g: &mut Graph, n: &OnnxNode, sorted: bool) -> Result<Vec<Value>> {
    let mut x = n.input(0)?;
    let k = match n.int("axis")? {
        Some(k) => normal_axis(k, g.rank(x))?,
        None => {
            x = flat(g, x)?;
            0
        }
    };
    let size = g.shape(x)[k].clone();
    let perm: Vec<usize> = [k].into_iter().chain((0..g.rank(x)).filter(|i| *i != k)).collect();
    let moved = g.transpose(x, &perm)?;
    let rest = g.facts.simplify(&Dim::product(g.shape(moved)[1..].iter().cloned()));
    let rows = g.reshape(moved, vec![size.clone(), rest])?;
    let order = sorted_rows(g, n, rows)?;
    let rows = g.gather(rows, order, 0)?;

    // A row that differs from the one before it begins a group.
    let place = g.index(DType::I64, vec![size.clone()], axis(0).into())?;
    let zero = int(g, 0)?;
    let one = int(g, 1)?;
    let before = g.sub(place, one)?;
    let before = g.max(before, zero)?;
    let previous = g.gather(rows, before, 0)?;
    let differs = g.compare(CompareOp::Ne, rows, previous)?;
    let differs = g.cast(DType::I64, differs)?;
    let differs = g.reduce(ReduceOp::Max, differs, &[1], false)?;
    let differs = g.compare(CompareOp::Gt, differs, zero)?;
    let first = g.compare(CompareOp::Eq, place, zero)?;
    let begins = g.or(first, differs)?;
    let marks = g.cast(DType::I64, begins)?;
    let group = g.scan(ReduceOp::Sum, marks, 0, false, false)?;
    let group = g.sub(group, one)?;
    let starts = places(g, n, begins, n.declared_dim(g, 0, k))?;
    let mut firsts = g.gather(order, starts, 0)?;

    let zeros = g.broadcast_to(zero, std::slice::from_ref(&size))?;
    let mut inverse = put(g, zeros, order, group)?;
    let ones = g.broadcast_to(one, std::slice::from_ref(&size))?;
    let coords = vec![Coord::Load { operand: 2, at: vec![axis(0).into()] }];
    let mode = ScatterMode::Combine(ReduceOp::Sum);
    let counts = g.push(Op::Scatter { coords, mode }, &[zeros, ones, group])?;
    let count = g.shape(starts)[0].clone();
    let mut counts = g.slice(counts, 0, Dim::zero(), count.clone(), 1)?;
    if !sorted {
        let (_, by_first) = g.sort(firsts, 0, false)?;
        firsts = g.gather(firsts, by_first, 0)?;
        counts = g.gather(counts, by_first, 0)?;
        let own = g.index(DType::I64, vec![count.clone()], axis(0).into())?;
        let zeros = g.broadcast_to(zero, &[count])?;
        let renamed = put(g, zeros, by_first, own)?;
        inverse = g.gather(renamed, inverse, 0)?;
    }
    Ok(vec![g.gather(x, firsts, k)?, firsts, inverse, counts])
}

/// The corners `[y1, x1, y2, x2]` of boxes `[…, 4]`, the smaller coordinate first.
fn corners(g: &mut Graph, boxes: Value, centred: bool) -> Result<[Value; 4]> {
    let last = g.rank(boxes) - 1;
    let part = |g: &mut Graph, k: usize| {
        let part = g.slice(boxes, last, Dim::from(k), Dim::one(), 1)?;
        g.squeeze(part, &[last])
    };

    let [a, b, c, d] = [part(g, 0)?, part(g, 1)?, part(g, 2)?, part(g, 3)?];
    if centred {
        // x, y, width, height
        let half = g.number(g.dtype(boxes), 0.5)?;
        let w = g.mul(c, half)?;
        let h = g.mul(d, half)?;
        return Ok([g.sub(b, h)?, g.sub(a, w)?, g.add(b, h)?, g.add(a, w)?]);
    }

    Ok([g.min(a, c)?, g.min(b, d)?, g.max(a, c)?, g.max(b, d)?])
}

/// The selected boxes as rows of batch, class and box index. Boxes of a class are visited in descending order of their
/// scores. A box is dropped if its overlap with a selected box exceeds `iou_threshold` (input 3).
/// `max_output_boxes_per_class` (input 2) limits the count. `score_threshold` (input 4) is the exclusive lower bound of
/// scores.
///
/// `NonMaxSuppression([[[0, 0, 1, 1], [0, 0, 1, 0.9], [5, 5, 6, 6]]], [[[0.9, 0.8, 0.7]]], i64[2], [0.5]) = i64[[0, 0, 0], [0, 0, 2]]`
fn non_max_suppression(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let boxes = n.input(0)?;
    let scores = n.input(1)?;
    if g.rank(boxes) != 3 || g.rank(scores) != 3 {
        return Err(Error::invalid("boxes and scores must have 3 axes"));
    }
    let centred = n.flag("center_point_box", false)?;
    let shape = g.shape(scores).to_vec();
    let batch = shape[0].clone();
    let classes = shape[1].clone();
    let count = shape[2].clone();
    for (have, want) in [(0, &batch), (1, &count)] {
        let have = g.shape(boxes)[have].clone();
        g.require(Relation::eq(have, want), "boxes and scores")?;
    }
    let limit = match n.optional(2) {
        Some(limit) => limit,
        None => int(g, 0)?,
    };
    let each = g.contents(limit).and_then(|limit| limit.first()).cloned();
    let limit = g.reshape(limit, Vec::new())?;
    let limit = g.cast(DType::I64, limit)?;
    let scalar = |g: &mut Graph, k: usize| match n.optional(k) {
        Some(value) => g.reshape(value, Vec::new()).map(Some),
        None => Ok(None),
    };
    let overlap = scalar(g, 3)?;
    let score_threshold = scalar(g, 4)?;
    let overlap = match overlap {
        Some(overlap) => overlap,
        None => g.number(g.dtype(boxes), 0.0)?,
    };

    // By class, in descending order of scores.
    let (sorted, order) = match score_threshold {
        Some(score_threshold) => g.sort_beyond(scores, 2, true, score_threshold)?,
        None => g.sort(scores, 2, true)?,
    };
    let sides = corners(g, boxes, centred)?;
    let wanted = match score_threshold {
        Some(score_threshold) => g.compare(CompareOp::Gt, sorted, score_threshold)?,
        None => {
            let yes = g.scalar(Scalar::bool(true))?;
            g.broadcast_to(yes, &shape)?
        }
    };
    // A class keeps the corners of its selected boxes, and their places in the order.
    let most = each.as_ref().map(|each| larger(g, each, &Dim::zero()));
    let room = match &most {
        Some(most) => g.facts.simplify(&Dim::min(&count, most.clone())),
        None => count.clone(),
    };
    let size = g.dim(DType::I64, count.clone())?;
    let limit = g.min(limit, size)?;
    let least = int(g, 0)?;
    let limit = g.max(limit, least)?;
    let limit = g.cast(DType::I32, limit)?;
    let slots = [batch.clone(), classes.clone(), room];
    let nowhere = g.number(g.dtype(boxes), 0.0)?;
    let nowhere = g.broadcast_to(nowhere, &slots)?;
    let zero = g.scalar(Scalar::from_i64(DType::I32, 0))?;
    let no_places = g.broadcast_to(zero, &slots)?;
    let chosen = g.broadcast_to(zero, &[batch, classes])?;

    let counter = n.fresh(g);
    let given = [&sides[..], &[wanted, overlap, limit, order]].concat();
    let empty = [nowhere, nowhere, nowhere, nowhere, no_places, chosen];
    let rounds = g.iterate(&counter, &count, [&empty, &given], |body, carried, given| {
        choose(body, &counter.clone().into(), carried, given)
    })?;

    let kept = rounds.carried[4];
    let is_kept = is_filled(g, kept, rounds.carried[5])?;
    let is_kept = flat(g, is_kept)?;
    let max_count = most.map(|most| &shape[0] * &shape[1] * most);
    let places = places(g, n, is_kept, n.declared_dim(g, 0, 0).or(max_count))?;
    let coords = vec![
        Coord::At(axis(0).into()),
        Coord::At(axis(1).into()),
        Coord::Load { operand: 1, at: (0..3).map(|k| axis(k).into()).collect() },
    ];
    let index = g.push(Op::Gather { shape: slots.to_vec(), coords }, &[order, kept])?;
    let index = flat(g, index)?;
    let index = g.gather(index, places, 0)?;
    let coordinates = unravel(g, places, &slots, 1)?;
    let head = g.slice(coordinates, 1, Dim::zero(), 2.into(), 1)?;
    let index = g.unsqueeze(index, &[1])?;
    g.concat(&[head, index], 1)
}

/// The mask of the slots that hold a selected box: as many of each class as are `chosen`.
fn is_filled(g: &mut Graph, slots: Value, chosen: Value) -> Result<Value> {
    let slot = slots_of(g, slots)?;
    let chosen = g.unsqueeze(chosen, &[2])?;
    g.compare(CompareOp::Lt, slot, chosen)
}

fn slots_of(g: &mut Graph, slots: Value) -> Result<Value> {
    let shape = g.shape(slots).to_vec();
    g.index(DType::I32, shape, axis(2).into())
}

/// One iteration: selects the next box of each class, unless it overlaps a selected one.
fn choose(g: &mut Graph, at: &Dim, carried: &[Value], given: &[Value]) -> Result<LoopBody> {
    let [y1, x1, y2, x2] = [carried[0], carried[1], carried[2], carried[3]];
    let places = carried[4];
    let chosen = carried[5];
    let wanted = given[4];
    let overlap = given[5];
    let limit = given[6];
    let own = |g: &mut Graph, x: Value| g.slice(x, 2, at.clone(), Dim::one(), 1);
    let box_here = own(g, given[7])?;
    let side_here = |g: &mut Graph, side: Value| {
        let shape = g.shape(box_here).to_vec();
        let at = (0..3).map(|k| axis(k).into()).collect();
        let coords = vec![Coord::At(axis(0).into()), Coord::Load { operand: 1, at }];
        g.push(Op::Gather { shape, coords }, &[side, box_here])
    };

    let area = |g: &mut Graph, [y1, x1, y2, x2]: [Value; 4]| {
        let h = g.sub(y2, y1)?;
        let w = g.sub(x2, x1)?;
        g.mul(h, w)
    };

    let here =
        [side_here(g, given[0])?, side_here(g, given[1])?, side_here(g, given[2])?, side_here(g, given[3])?];
    let top = g.max(y1, here[0])?;
    let left = g.max(x1, here[1])?;

    let bottom = g.min(y2, here[2])?;
    let right = g.min(x2, here[3])?;

    let zero = g.number(g.dtype(y1), 0.0)?;
    let h = g.sub(bottom, top)?;
    let w = g.sub(right, left)?;
    let h = g.max(h, zero)?;
    let w = g.max(w, zero)?;
    let common = g.mul(h, w)?;

    let all = area(g, [y1, x1, y2, x2])?;
    let mine = area(g, here)?;
    let both = g.add(all, mine)?;
    let union = g.sub(both, common)?;

    // `common / union > overlap`, without a division by the area of empty boxes.
    let share = g.mul(overlap, union)?;
    let overlaps = g.compare(CompareOp::Gt, common, share)?;
    let filled = is_filled(g, places, chosen)?;
    let hit = g.and(overlaps, filled)?;
    let hit = g.cast(DType::U8, hit)?;
    let hit = g.reduce(ReduceOp::Max, hit, &[2], false)?;

    let none = g.scalar(Scalar::from_i64(DType::U8, 0))?;
    let free = g.compare(CompareOp::Eq, hit, none)?;

    let wanted_here = own(g, wanted)?;
    let wanted_here = g.squeeze(wanted_here, &[2])?;
    let has_capacity = g.compare(CompareOp::Lt, chosen, limit)?;
    let open = g.and(wanted_here, has_capacity)?;
    let take = g.and(free, open)?;

    // The box is written to the next slot.
    let slot = slots_of(g, places)?;
    let next = g.unsqueeze(chosen, &[2])?;
    let is_next = g.compare(CompareOp::Eq, slot, next)?;
    let take_here = g.unsqueeze(take, &[2])?;
    let writes = g.and(is_next, take_here)?;
    let now = g.dim(DType::I32, at.clone())?;
    let mut state = Vec::new();
    for (new, old) in here.into_iter().chain([now]).zip([y1, x1, y2, x2, places]) {
        state.push(g.select(writes, new, old)?);
    }

    let one = g.cast(DType::I32, take)?;
    state.push(g.add(chosen, one)?);

    // Scores decrease from iteration to iteration. If no class is open now, none will be later.
    let open = g.cast(DType::U8, open)?;
    let open = g.reduce(ReduceOp::Max, open, &[0, 1], false)?;
    let again = g.compare(CompareOp::Gt, open, none)?;
    Ok(LoopBody { again: Some(again), next: state, slices: Vec::new() })
}
