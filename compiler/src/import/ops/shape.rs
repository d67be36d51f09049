//! Operators that move elements, and operators that return shapes.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        node::{
            OnnxNode,
            axes::{larger, normal_axes, normal_axis},
        },
        ops::shared::{
            dynamic::{self, may_be},
            zero_dims,
        },
    },
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Concat 1 concat MovesElements,
    DepthToSpace 1 depth_to_space MovesElements,
    Expand 8 expand MovesElements,
    Flatten 1 flatten MovesElements,
    Identity 1 identity MovesElements Elementwise,
    Reshape 1 reshape_attribute MovesElements,
    Reshape 5 reshape MovesElements,
    Shape 1 shape IgnoresElements,
    Size 1 size IgnoresElements,
    Slice 1 slice_attributes MovesElements,
    Slice 10 slice MovesElements,
    SpaceToDepth 1 space_to_depth MovesElements,
    Split 1 split MovesElements,
    Squeeze 1 squeeze MovesElements,
    Tile 1 tile_axis,
    Tile 6 tile,
    Transpose 1 transpose MovesElements,
    Unsqueeze 1 unsqueeze MovesElements,
}

/// The inputs, concatenated along `axis`. All other dims must be equal.
///
/// `Concat([1, 2], [3]; axis=0) = [1, 2, 3]`
fn concat(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let inputs = n.all()?;
    let default = if n.opset < 4 { Some(1) } else { None };
    let axis = n.axis(g, inputs[0], default)?;
    g.concat(&inputs, axis)
}

/// `[N, C, H, W]` to `[N, C/b², H*b, W*b]` for blocks of `blocksize=b`. With `mode="DCR"`, channels are ordered by
/// block row, block column, depth. With `mode="CRD"`, they are ordered by depth, block row, block column.
///
/// `DepthToSpace([[[[1]], [[2]], [[3]], [[4]]]]; blocksize=2) = [[[[1, 2], [3, 4]]]]`
fn depth_to_space(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let (shape, b) = blocks(g, n, x)?;
    let [batch, c, h, w] = shape;
    let depth = c.floor_div(b * b);
    let b = Dim::from(b);

    let (split, perm) = match n.string_or("mode", "DCR")? {
        "DCR" => (
            vec![batch.clone(), b.clone(), b.clone(), depth.clone(), h.clone(), w.clone()],
            [0, 3, 4, 1, 5, 2],
        ),
        "CRD" => (
            vec![batch.clone(), depth.clone(), b.clone(), b.clone(), h.clone(), w.clone()],
            [0, 1, 4, 2, 5, 3],
        ),
        other => return Err(Error::invalid(format!("unknown mode `{other}`"))),
    };

    let x = g.reshape(x, split)?;
    let x = g.transpose(x, &perm)?;
    g.reshape(x, vec![batch, depth, h * &b, w * b])
}

/// `[N, C, H, W]` to `[N, C*b², H/b, W/b]` for blocks of `blocksize=b`. The channels are ordered by block row, block
/// column, depth.
///
/// `SpaceToDepth([[[[1, 2], [3, 4]]]]; blocksize=2) = [[[[1]], [[2]], [[3]], [[4]]]]`
fn space_to_depth(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let (shape, b) = blocks(g, n, x)?;
    let [batch, c, h, w] = shape;
    let rows = h.floor_div(b);
    let columns = w.floor_div(b);
    let block = Dim::from(b);
    let split = vec![batch.clone(), c.clone(), rows.clone(), block.clone(), columns.clone(), block];
    let x = g.reshape(x, split)?;
    let x = g.transpose(x, &[0, 3, 5, 1, 2, 4])?;
    g.reshape(x, vec![batch, c * (b * b), rows, columns])
}

fn blocks(g: &Graph, n: &OnnxNode, x: Value) -> Result<([Dim; 4], i64)> {
    let b = n.int("blocksize")?.filter(|b| (1..=1 << 15).contains(b));
    let b = b.ok_or_else(|| Error::invalid("`blocksize` must be given and positive"))?;
    let shape: Result<[Dim; 4], _> = g.shape(x).to_vec().try_into();
    Ok((shape.map_err(|_| Error::invalid("the input must have 4 axes"))?, b))
}

/// The input, broadcast with the shape in input 1.
///
/// `Expand([[1], [2]], i64[2]) = [[1, 1], [2, 2]]`
fn expand(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    if !n.is_known(g, 1) {
        return dynamic::expand(g, n, x);
    }
    let shape = n.dims(g, 1)?;
    g.expand(x, &shape)
}

/// A matrix. The axes before `axis` become its rows, the other axes its columns.
///
/// `Flatten([[[1, 2], [3, 4]]]; axis=2) = [[1, 2], [3, 4]]`
fn flatten(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let axis = n.int_or("axis", 1)?;
    let rank = g.rank(x);
    let axis = if axis == rank as i64 { rank } else { normal_axis(axis, rank)? };
    g.flatten(x, axis)
}

/// The input, unchanged. It may be a sequence.
///
/// `Identity([1, 2]) = [1, 2]`
fn identity(_: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    if let Some(list) = n.list_if(0) {
        n.set_output_list(list);
        return Ok(Vec::new());
    }
    n.input(0).map(|x| vec![x])
}

/// As in opset 5, with the shape in the attribute `shape`.
///
/// `Reshape([1, 2, 3, 4]; shape=[2, -1]) = [[1, 2], [3, 4]]`
fn reshape_attribute(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let shape = n.ints("shape")?.ok_or_else(|| Error::invalid("Reshape needs the attribute `shape`"))?;
    let shape: Vec<Dim> = shape.into_iter().map(Dim::from).collect();
    reshape_to(g, n.input(0)?, &shape, false)
}

/// The input with the shape in input 1. A dim of -1 is inferred from the other dims. A dim of 0 is the dim of the input
/// at that axis, or with `allowzero=1` 0. A computed dim that is 0 in a call counts too, unless the shape as it is fits
/// all sizes; a shape with -1 must only merge and split axes for that.
///
/// `Reshape([[1, 2, 3], [4, 5, 6]], i64[0, 1, -1]) = [[[1, 2, 3]], [[4, 5, 6]]]`
fn reshape(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let allow_zero = n.flag("allowzero", false)?;
    if !n.is_known(g, 1) {
        return dynamic::reshape(g, n, n.input(0)?, allow_zero);
    }
    let shape = n.dims(g, 1)?;
    reshape_to(g, n.input(0)?, &shape, allow_zero)
}

fn reshape_to(g: &mut Graph, x: Value, shape: &[Dim], allow_zero: bool) -> Result<Value> {
    let from = g.shape(x).to_vec();
    let mut to = Vec::new();

    let mut rest = None;
    for (k, dim) in shape.iter().enumerate() {
        match dim.as_i64() {
            Some(0) if !allow_zero => to.push(from.get(k).cloned().ok_or_else(|| {
                Error::invalid(format!(
                    "dim {k} of the new shape is 0, but the input has {} axes",
                    from.len()
                ))
            })?),
            Some(-1) if rest.is_some() => return Err(Error::invalid("two dims of the new shape are -1")),
            Some(-1) => {
                rest = Some(k);
                to.push(Dim::one());
            }
            Some(size) if size < 0 => {
                return Err(Error::invalid(format!("dim {k} of the new shape is {size}")));
            }
            _ => to.push(dim.clone()),
        }
    }

    if let Some(k) = rest {
        to[k] = quotient(g, &from, &to)?;
    }
    if !allow_zero {
        zero_dims::replace(g, &from, &mut to, rest)?;
    }

    g.reshape(x, to)
}

/// `Π from / Π to`. Equal dims cancel before the division.
fn quotient(g: &Graph, from: &[Dim], to: &[Dim]) -> Result<Dim> {
    let mut above = factors(from);
    let mut below = Vec::new();
    for factor in factors(to) {
        match above.iter().position(|other| *other == factor) {
            Some(k) => drop(above.swap_remove(k)),
            None => below.push(factor),
        }
    }

    let [above, below] = [above, below].map(|dims| g.facts.simplify(&Dim::product(dims)));
    if below.as_i64() == Some(0) {
        return Err(Error::invalid("-1 in the new shape is ambiguous, because another dim is 0"));
    }

    Ok(g.facts.simplify(&above.floor_div(below)))
}

/// The dims, with products of dims split into their factors.
fn factors(dims: &[Dim]) -> Vec<Dim> {
    let mut out = Vec::new();
    for dim in dims {
        match dim.node() {
            symshape::Node::Mul(_) => out.extend(dim.node().operands().into_iter().cloned()),
            _ => out.push(dim.clone()),
        }
    }
    out
}

/// The dims of the input from axis `start` to axis `end` (exclusive).
///
/// `Shape([[1, 2, 3]]) = i64[1, 3]`
/// `Shape([[1, 2, 3]]; start=-1) = i64[3]`
fn shape(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let rank = g.rank(x) as i64;
    let clamp = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let start = clamp(n.int_or("start", 0)?);
    let end = clamp(n.int_or("end", rank)?);
    let dims = g.shape(x)[start..end.max(start)].to_vec();
    g.dims(&dims)
}

/// The number of elements of the input.
///
/// `Size([[1, 2, 3]]) = i64:3`
fn size(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let dims = g.shape(n.input(0)?).to_vec();
    let product = g.facts.simplify(&Dim::product(dims));
    g.dim(DType::I64, product)
}

/// As in opset 10, with attributes instead of inputs.
///
/// `Slice([1, 2, 3, 4]; starts=[1], ends=[-1]) = [2, 3]`
fn slice_attributes(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let dims = |name: &str| -> Result<Vec<Dim>> {
        let list =
            n.ints(name)?.ok_or_else(|| Error::invalid(format!("Slice needs the attribute `{name}`")))?;
        Ok(list.into_iter().map(Dim::from).collect())
    };

    let starts = dims("starts")?;
    let ends = dims("ends")?;
    let x = n.input(0)?;

    let axes = match n.ints("axes")? {
        Some(axes) => normal_axes(&axes, g.rank(x))?,
        None => (0..starts.len()).collect(),
    };

    let steps = vec![1; starts.len()];
    slice_by(g, x, &starts, &ends, &axes, &steps)
}

/// The elements from `starts` (input 1) to `ends` (input 2, exclusive) along `axes` (input 3) in `steps` (input 4).
/// Negative positions count from the end. Positions out of range are clamped.
///
/// `Slice([1, 2, 3, 4], i64[1], i64[9]) = [2, 3, 4]`
/// `Slice([1, 2, 3, 4], i64[-1], i64[-9], i64[0], i64[-2]) = [4, 2]`
fn slice(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    if (1..5).any(|k| !n.is_known(g, k)) {
        return dynamic::slice(g, n, x);
    }

    let starts = n.dims(g, 1)?;
    let ends = n.dims(g, 2)?;

    let axes = match n.optional(3) {
        Some(_) => normal_axes(&n.numbers(g, 3)?, g.rank(x))?,
        None => (0..starts.len()).collect(),
    };

    let steps = match n.optional(4) {
        Some(_) => n.numbers(g, 4)?,
        None => vec![1; starts.len()],
    };

    slice_by(g, x, &starts, &ends, &axes, &steps)
}

fn slice_by(
    g: &mut Graph,
    mut x: Value,
    starts: &[Dim],
    ends: &[Dim],
    axes: &[usize],
    steps: &[i64],
) -> Result<Value> {
    let count = starts.len();
    if ends.len() != count || axes.len() != count || steps.len() != count || count > g.rank(x) {
        return Err(Error::invalid("starts, ends, axes and steps must have the same length"));
    }

    for i in 0..count {
        let dim = g.shape(x)[axes[i]].clone();
        let step = steps[i];
        if step == 0 || step == i64::MIN {
            return Err(Error::invalid(format!("the step of a slice must not be {step}")));
        }

        // With a negative step, positions run from the last element to just before the first.
        let (low, high) = if step > 0 { (Dim::zero(), dim.clone()) } else { (Dim::from(-1), &dim - 1) };
        let start = inside(g, &starts[i], &dim, &if step > 0 { low.clone() } else { Dim::zero() }, &high);
        let end = inside(g, &ends[i], &dim, &low, &high);

        let span = if step > 0 { &end - &start } else { &start - &end };
        let span = larger(g, &g.facts.simplify(&span), &Dim::zero());
        let len = g.facts.simplify(&span.ceil_div(step.abs()));
        x = g.slice(x, axes[i], start, len, step)?;
    }

    Ok(x)
}

/// A position of a slice, counted from the start and clamped to `low..=high`.
fn inside(g: &Graph, at: &Dim, dim: &Dim, low: &Dim, high: &Dim) -> Dim {
    let from_start = if g.facts.prove_le(&Dim::zero(), at).is_yes() {
        at.clone()
    } else if g.facts.prove_lt(at, &Dim::zero()).is_yes() {
        g.facts.simplify(&(at + dim))
    } else {
        let is_negative = Dim::min(&Dim::max(&-at, 0), 1);
        g.facts.simplify(&(at + dim * is_negative))
    };

    let at_least = larger(g, &from_start, low);
    let inside = if g.facts.prove_le(&at_least, high).is_yes() {
        at_least
    } else if g.facts.prove_le(high, &at_least).is_yes() {
        high.clone()
    } else {
        Dim::min(&at_least, high.clone())
    };

    g.facts.simplify(&inside)
}

/// The parts of the input along `axis`. Their sizes are the attribute `split` or input 1. Without sizes there are
/// `num_outputs` equal parts, by default one for each output.
///
/// `Split([1, 2, 3], i64[1, 2]) = [1], [2, 3]`
/// `Split([1, 2, 3]; num_outputs=2) = [1, 2], [3]`
fn split(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let axis = n.axis(g, x, Some(0))?;
    if !n.is_known(g, 1) {
        return dynamic::split(g, n, x, axis);
    }

    let sizes = match (n.ints("split")?, n.optional(1)) {
        (Some(sizes), None) => Some(sizes.into_iter().map(Dim::from).collect()),
        (None, Some(_)) => Some(n.dims(g, 1)?),
        (None, None) => None,
        (Some(_), Some(_)) => {
            return Err(Error::invalid("split is given both as an attribute and as an input"));
        }
    };

    let asked = n.int("num_outputs")?;
    let sizes = match sizes {
        Some(sizes) => sizes,
        None => equal_parts(
            g,
            &g.shape(x)[axis].clone(),
            asked.unwrap_or(n.output_count() as i64),
            asked.is_some(),
        )?,
    };

    g.split(x, axis, &sizes)
}

/// The sizes of `count` equal parts of `dim`. If `uneven`, the last part may be smaller.
fn equal_parts(g: &mut Graph, dim: &Dim, count: i64, uneven: bool) -> Result<Vec<Dim>> {
    if !(1..=1 << 16).contains(&count) {
        return Err(Error::invalid(format!("the number of parts must be positive, but it is {count}")));
    }
    if !uneven {
        g.require(Relation::divides(count, dim), &format!("a split into {count} equal parts"))?;
    }
    let part = g.facts.simplify(&if uneven { dim.ceil_div(count) } else { dim.floor_div(count) });
    let mut parts = vec![part.clone(); count as usize - 1];
    let last = if uneven { g.facts.simplify(&(dim - part * (count - 1))) } else { part };
    parts.push(last);
    Ok(parts)
}

/// The input without `axes`, an attribute or input 1, which must have size 1. Without `axes`, all axes of size 1 are
/// removed. An axis that has other sizes in its range is kept, and calls in which it has size 1 are refused.
///
/// `Squeeze([[[1], [2]]], i64[0]) = [[1], [2]]`
/// `Squeeze([[[1], [2]]]) = [1, 2]`
fn squeeze(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    if n.optional(1).is_some() && !n.is_known(g, 1) {
        return dynamic::squeeze(g, n, x);
    }
    match n.axes(g, 1, g.rank(x))? {
        Some(axes) => g.squeeze(x, &axes),
        None => {
            let axes = axes_of_size_one(g, x)?;
            g.squeeze(x, &axes)
        }
    }
}

/// The axes of `x` that have size 1 in all calls. The others must have another size in each call, because the number of
/// axes of a result is the same in all calls.
fn axes_of_size_one(g: &mut Graph, x: Value) -> Result<Vec<usize>> {
    let mut found = Vec::new();
    for (k, dim) in g.shape(x).to_vec().into_iter().enumerate() {
        if g.is_one(&dim) {
            found.push(k);
            continue;
        }
        let rule = format!(
            "Squeeze without axes removes axes of size 1, so axis {k} of size {dim} must be 1 in all calls or in none; \
             declare its range from 2 on, or give the node its axes"
        );
        g.require(Relation::ne(&dim, 1), &rule)?;
    }
    Ok(found)
}

/// The input, repeated `tiles` times (input 1) along the axis in input 2.
///
/// `Tile([1, 2], i64:2, i64:0) = [1, 2, 1, 2]`
fn tile_axis(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let mut repeats = vec![Dim::one(); g.rank(x)];
    let axis = n.dim(g, 2)?.as_i64().ok_or_else(|| Error::unsupported("an axis that is not a constant"))?;
    repeats[normal_axis(axis, g.rank(x))?] = n.dim(g, 1)?;
    repeat(g, x, &repeats)
}

/// The input, repeated along each axis by the count in input 1.
///
/// `Tile([[1, 2]], i64[2, 2]) = [[1, 2, 1, 2], [1, 2, 1, 2]]`
fn tile(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    if !n.is_known(g, 1) {
        return dynamic::tile(g, n, x);
    }
    let repeats = n.dims(g, 1)?;
    if repeats.len() != g.rank(x) {
        return Err(Error::invalid(format!("{} repeats are given for {} axes", repeats.len(), g.rank(x))));
    }
    repeat(g, x, &repeats)
}

fn repeat(g: &mut Graph, x: Value, repeats: &[Dim]) -> Result<Value> {
    let shape = g.shape(x).to_vec();
    let unsqueezed = g.unsqueeze(x, &(0..shape.len()).map(|k| 2 * k).collect::<Vec<_>>())?;
    let pairs: Vec<Dim> =
        repeats.iter().zip(&shape).flat_map(|(times, dim)| [times.clone(), dim.clone()]).collect();
    let repeated = g.broadcast_to(unsqueezed, &pairs)?;
    g.reshape(repeated, repeats.iter().zip(&shape).map(|(times, dim)| times * dim).collect())
}

/// The input with its axes in the order `perm`, by default reversed.
///
/// `Transpose([[1, 2], [3, 4]]) = [[1, 3], [2, 4]]`
fn transpose(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let perm = match n.ints("perm")? {
        None => (0..g.rank(x)).rev().collect(),
        Some(perm) => normal_axes(&perm, g.rank(x))?,
    };
    g.transpose(x, &perm)
}

/// The input with new axes of size 1. `axes`, an attribute or input 1, holds their indices in the output shape.
///
/// `Unsqueeze([1, 2], i64[0, -1]) = [[[1], [2]]]`
fn unsqueeze(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let count = match n.optional(1) {
        Some(axes) => match g.shape(axes) {
            [] => 1,
            [count] => count.as_i64().and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX),
            _ => usize::MAX,
        },
        None => n.ints("axes")?.map_or(0, |axes| axes.len()),
    };

    if count > 64 {
        return Err(Error::unsupported("Unsqueeze: the number of axes is known only at run time"));
    }

    let declared = n.declared(g, 0);
    let fits = |g: &Graph, axes: &[usize]| {
        let mut old = g.shape(x).iter().cloned();
        let rank = g.rank(x) + count;
        let shape: Vec<Dim> =
            (0..rank).filter_map(|k| if axes.contains(&k) { Some(Dim::one()) } else { old.next() }).collect();
        may_be(g, &shape, declared.as_deref())
    };

    n.by_axes(g, 1, g.rank(x) + count, fits, |g, axes| {
        let axes = axes.ok_or_else(|| Error::invalid("Unsqueeze needs the attribute `axes`"))?;
        g.unsqueeze(x, &axes)
    })
}
