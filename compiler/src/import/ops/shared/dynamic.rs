//! Operators of `shape` and `pad` whose shapes, positions or pads are known only at run time.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::{
            OnnxNode,
            axes::{by_axis, normal_axes, normal_position},
        },
        ops::shared::arithmetic::int,
    },
    scalar::{BinaryOp, CompareOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

fn equals(g: &mut Graph, x: Value, value: i64) -> Result<Value> {
    let value = int(g, value)?;
    g.compare(CompareOp::Eq, x, value)
}

/// `⌈a / b⌉` for a positive `b`.
fn ceil_div(g: &mut Graph, a: Value, b: Value) -> Result<Value> {
    let one = int(g, 1)?;
    let above = g.sub(b, one)?;
    let sum = g.add(a, above)?;
    floor_div(g, sum, b)
}

/// `⌊a / b⌋` for a positive `b`.
fn floor_div(g: &mut Graph, a: Value, b: Value) -> Result<Value> {
    let rest = g.binary(BinaryOp::Mod, a, b)?;
    let even = g.sub(a, rest)?;
    g.binary(BinaryOp::Div, even, b)
}

/// `x` with the shape in input 1.
pub(crate) fn reshape(g: &mut Graph, n: &OnnxNode, x: Value, allow_zero: bool) -> Result<Value> {
    let given = n.elements(g, 1)?;
    let from = g.shape(x).to_vec();
    let total = g.facts.simplify(&Dim::product(from.iter().cloned()));
    let one = int(g, 1)?;
    let elems = g.dim(DType::I64, total.clone())?;

    let mut product = one;
    let mut sizes = Vec::new();
    for (k, size) in given.iter().enumerate() {
        let mut size = *size;
        if let (false, Some(old)) = (allow_zero, from.get(k)) {
            let zero = equals(g, size, 0)?;
            let old = g.dim(DType::I64, old.clone())?;
            size = g.select(zero, old, size)?;
        }
        let open = equals(g, size, -1)?;
        let factor = g.select(open, one, size)?;
        product = g.mul(product, factor)?;
        sizes.push((open, size));
    }

    let product = g.max(product, one)?;
    let rest = g.binary(BinaryOp::Div, elems, product)?;

    let mut to = Vec::new();
    for (k, (open, size)) in sizes.into_iter().enumerate() {
        let size = g.select(open, rest, size)?;
        to.push(n.size(g, size, k, Some(total.clone()))?);
    }

    g.require(Relation::eq(Dim::product(to.iter().cloned()), &total), "elements of the new shape")?;
    g.reshape(x, to)
}

/// `x` broadcast with the shape in input 1.
pub(crate) fn expand(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let given = n.elements(g, 1)?;
    let from = g.shape(x).to_vec();
    let rank = from.len().max(given.len());

    let mut to = Vec::new();
    for k in 0..rank {
        let old = (k + from.len()).checked_sub(rank).map(|k| from[k].clone());
        let asked = (k + given.len()).checked_sub(rank).map(|k| given[k]);
        to.push(match (old, asked) {
            (Some(old), None) => old,
            (None, Some(asked)) => n.size(g, asked, k, None)?,
            (Some(old), Some(asked)) => {
                // A size of 1 is broadcast to the other size.
                let single = equals(g, asked, 1)?;
                let own = g.dim(DType::I64, old.clone())?;
                let size = g.select(single, own, asked)?;
                let fixed = g.facts.prove_ne(&old, &Dim::one()).is_yes();
                if fixed { n.data_dependent(g, size, old.clone(), old)? } else { n.size(g, size, k, None)? }
            }
            (None, None) => return Err(Error::internal("an axis of neither shape")),
        });
    }

    g.broadcast_to(x, &to)
}

/// The shape in input `k`, as the shape of output 0.
pub(crate) fn shape(g: &mut Graph, n: &OnnxNode, k: usize) -> Result<Vec<Dim>> {
    let given = n.elements(g, k)?;
    given.into_iter().enumerate().map(|(axis, size)| n.size(g, size, axis, None)).collect()
}

/// A slice by the starts, ends, axes and steps in inputs 1 to 4.
pub(crate) fn slice(g: &mut Graph, n: &OnnxNode, mut x: Value) -> Result<Value> {
    let rank = g.rank(x);
    let starts = n.elements(g, 1)?;
    let ends = n.elements(g, 2)?;
    let axes = axis_values(g, n, 3, starts.len(), rank)?;

    let steps = match n.optional(4) {
        Some(_) => n.elements(g, 4)?,
        None => (0..starts.len()).map(|_| int(g, 1)).collect::<Result<_>>()?,
    };

    if [ends.len(), axes.len(), steps.len()].iter().any(|count| *count != starts.len()) {
        return Err(Error::invalid("starts, ends, axes and steps must have the same length"));
    }

    let zero = int(g, 0)?;
    let one = int(g, 1)?;
    let sizes: Vec<Value> =
        g.shape(x).to_vec().into_iter().map(|dim| g.dim(DType::I64, dim)).collect::<Result<_>>()?;
    let starts = by_axis(g, rank, &axes, &starts, &vec![zero; rank])?;
    let ends = by_axis(g, rank, &axes, &ends, &sizes)?;
    let steps = by_axis(g, rank, &axes, &steps, &vec![one; rank])?;

    for k in 0..rank {
        // Known axes that are not sliced stay unchanged.
        if [starts[k], ends[k], steps[k]] == [zero, sizes[k], one] {
            continue;
        }
        let dim = g.shape(x)[k].clone();
        let [start, len] = span(g, [starts[k], ends[k], steps[k]], sizes[k])?;
        let len = n.size(g, len, k, Some(dim))?;
        let place = g.index(DType::I64, vec![len], axis(0).into())?;
        let way = g.mul(place, steps[k])?;
        let at = g.add(start, way)?;
        x = g.gather(x, at, k)?;
    }

    Ok(x)
}

/// The first index of a slice and its length, along an axis of this size.
fn span(g: &mut Graph, [start, end, step]: [Value; 3], size: Value) -> Result<[Value; 2]> {
    let zero = int(g, 0)?;
    let one = int(g, 1)?;
    let minus = int(g, -1)?;

    let last = g.sub(size, one)?;
    let forward = g.compare(CompareOp::Gt, step, zero)?;
    let low = g.select(forward, zero, minus)?;
    let high = g.select(forward, size, last)?;

    let inside = |g: &mut Graph, at: Value, low: Value| {
        let at = normal_position(g, at, size)?;
        let at = g.max(at, low)?;
        g.min(at, high)
    };

    let start = inside(g, start, zero)?;
    let end = inside(g, end, low)?;
    let up = g.sub(end, start)?;
    let down = g.sub(start, end)?;
    let way = g.select(forward, up, down)?;
    let way = g.max(way, zero)?;

    let stride = g.abs(step)?;
    let stride = g.max(stride, one)?;

    Ok([start, ceil_div(g, way, stride)?])
}

/// Padding by the sizes in input 1, for the axes in input 3. `fill` is the value of mode `constant`.
pub(crate) fn pad(g: &mut Graph, n: &OnnxNode, mut x: Value, mode: &str, fill: Value) -> Result<Value> {
    let rank = g.rank(x);
    let pads = n.elements(g, 1)?;

    let axes = axis_values(g, n, 3, pads.len() / 2, rank)?;
    if pads.len() != 2 * axes.len() {
        return Err(Error::invalid(format!(
            "{} pads are given for {} axes; each axis needs 2",
            pads.len(),
            axes.len()
        )));
    }

    let zero = int(g, 0)?;
    let (before, after) = pads.split_at(axes.len());
    let before = by_axis(g, rank, &axes, before, &vec![zero; rank])?;
    let after = by_axis(g, rank, &axes, after, &vec![zero; rank])?;

    for k in 0..rank {
        if [before[k], after[k]] == [zero, zero] {
            continue;
        }

        let dim = g.shape(x)[k].clone();
        let size = g.dim(DType::I64, dim)?;

        let sum = g.add(before[k], after[k])?;
        let sum = g.add(sum, size)?;
        let new = n.size(g, sum, k, None)?;
        let place = g.index(DType::I64, vec![new], axis(0).into())?;
        let at = g.sub(place, before[k])?;

        let one = int(g, 1)?;
        let last = g.sub(size, one)?;

        let source = match mode {
            "constant" | "edge" => at,
            "wrap" => g.binary(BinaryOp::Mod, at, size)?,
            "reflect" => {
                let twice = g.add(last, last)?;
                let period = g.max(twice, one)?;
                let around = g.binary(BinaryOp::Mod, at, period)?;
                let back = g.sub(twice, around)?;
                g.min(around, back)?
            }
            other => return Err(Error::invalid(format!("unknown mode `{other}`"))),
        };

        let source = g.max(source, zero)?;
        let source = g.min(source, last)?;
        x = g.gather(x, source, k)?;

        if mode == "constant" {
            let above = g.compare(CompareOp::Ge, at, zero)?;
            let below = g.compare(CompareOp::Lt, at, size)?;
            let inside = g.and(above, below)?;
            let inside = g.unsqueeze(inside, &(1..rank - k).collect::<Vec<_>>())?;
            x = g.select(inside, x, fill)?;
        }
    }

    Ok(x)
}

/// `x`, repeated along each axis by the count in input 1.
pub(crate) fn tile(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let repeats = n.elements(g, 1)?;
    let shape = g.shape(x).to_vec();
    if repeats.len() != shape.len() {
        return Err(Error::invalid(format!("{} repeats are given for {} axes", repeats.len(), shape.len())));
    }

    let mut to = Vec::new();
    let mut index = Vec::new();
    for (k, (times, dim)) in repeats.into_iter().zip(shape).enumerate() {
        let own = g.dim(DType::I64, dim.clone())?;
        let size = g.mul(times, own)?;
        to.push(n.size(g, size, k, None)?);
        let at = Dim::from(axis(k));
        index.push(if g.is_one(&dim) { Dim::zero() } else { at.modulo(dim) });
    }

    g.view(x, to, index)
}

/// The parts along axis `k` with the sizes in input 1.
pub(crate) fn split(g: &mut Graph, n: &OnnxNode, x: Value, k: usize) -> Result<Vec<Value>> {
    let given = n.elements(g, 1)?;
    let dim = g.shape(x)[k].clone();
    let mut sizes = Vec::new();
    for (i, size) in given.into_iter().enumerate() {
        sizes.push(match n.declared_dim(g, i, k) {
            Some(declared) => n.data_dependent(g, size, declared.clone(), declared)?,
            None => n.data_dependent(g, size, 0, dim.clone())?,
        });
    }
    g.split(x, k, &sizes)
}

/// `x` without the axes in input 1.
pub(crate) fn squeeze(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let shape = g.shape(x).to_vec();
    let declared = n.declared(g, 0);

    let fits = |g: &Graph, axes: &[usize]| {
        let left: Vec<Dim> =
            (0..shape.len()).filter(|k| !axes.contains(k)).map(|k| shape[k].clone()).collect();
        let may_go = |dim: &Dim| {
            !g.facts.prove_ne(dim, &Dim::one()).is_yes() && g.facts.prove_le(&Dim::one(), dim).is_yes()
        };
        axes.iter().all(|k| may_go(&shape[*k])) && may_be(g, &left, declared.as_deref())
    };

    let y = n.by_axes(g, 1, shape.len(), fits, |g, axes| {
        // The size of the chosen axes is checked below.
        let axes = axes.unwrap_or_default();
        let firsts = axes.iter().try_fold(x, |x, k| g.slice(x, *k, Dim::zero(), Dim::one(), 1))?;
        g.squeeze(firsts, &axes)
    })?;

    let sizes = g.dims(&shape)?;
    let rank = int(g, shape.len() as i64)?;

    for axis in n.elements(g, 1)? {
        let axis = normal_position(g, axis, rank)?;
        let size = g.gather(sizes, axis, 0)?;
        n.data_dependent(g, size, 1, 1)?;
    }

    Ok(y)
}

/// The values from `start` to `limit` (exclusive) in steps of `step`.
pub(crate) fn range(g: &mut Graph, n: &OnnxNode, [start, limit, step]: [Value; 3]) -> Result<Value> {
    let dtype = g.dtype(start);
    let [start, limit, step] =
        [g.reshape(start, vec![])?, g.reshape(limit, vec![])?, g.reshape(step, vec![])?];

    let count = if dtype.is_float() {
        let limit = g.cast(DType::F64, limit)?;
        let start = g.cast(DType::F64, start)?;
        let way = g.sub(limit, start)?;
        let step = g.cast(DType::F64, step)?;
        let count = g.div(way, step)?;
        let count = g.ceil(count)?;
        g.cast(DType::I64, count)?
    } else {
        let limit = g.cast(DType::I64, limit)?;
        let start = g.cast(DType::I64, start)?;
        let step = g.cast(DType::I64, step)?;
        let way = g.sub(limit, start)?;

        let zero = int(g, 0)?;
        let back = g.compare(CompareOp::Lt, step, zero)?;
        let minus = g.neg(way)?;
        let way = g.select(back, minus, way)?;

        let stride = g.abs(step)?;
        let one = int(g, 1)?;
        let stride = g.max(stride, one)?;

        ceil_div(g, way, stride)?
    };

    let zero = int(g, 0)?;
    let count = g.max(count, zero)?;
    let count = n.size(g, count, 0, None)?;
    let place = g.index(DType::I64, vec![count], axis(0).into())?;
    let place = g.cast(dtype, place)?;
    let way = g.mul(place, step)?;

    g.add(start, way)
}

/// The axes in input `k` as values. Without this input, the first `count` axes.
fn axis_values(g: &mut Graph, n: &OnnxNode, k: usize, count: usize, rank: usize) -> Result<Vec<Value>> {
    if n.optional(k).is_some() && !n.is_known(g, k) {
        return n.elements(g, k);
    }
    let axes = match n.optional(k) {
        Some(_) => normal_axes(&n.numbers(g, k)?, rank)?,
        None => (0..count).collect(),
    };
    axes.into_iter().map(|axis| g.scalar(Scalar::i64(axis as i64))).collect()
}

/// Whether a shape can be the declared one.
pub(crate) fn may_be(g: &Graph, shape: &[Dim], declared: Option<&[Option<Dim>]>) -> bool {
    let Some(declared) = declared else { return true };
    let differs = |(dim, other): (&Dim, &Option<Dim>)| {
        other.as_ref().is_some_and(|other| dim != other && !g.facts.prove_eq(dim, other).is_yes())
    };
    shape.len() == declared.len() && !shape.iter().zip(declared).any(differs)
}
