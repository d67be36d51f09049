//! Padding.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value},
    import::{
        constant::value_of,
        node::{
            OnnxNode,
            axes::{normal_axes, smaller},
        },
        ops::shared::dynamic,
    },
    scalar::Scalar,
};
use symshape::{Dim, Relation};

ops! {
    CenterCropPad 18 center_crop_pad,
    Pad 1 pad_attributes,
    Pad 11 pad,
    "com.microsoft" Pad 1 pad,
}

/// As in opset 11, with attributes instead of inputs.
///
/// `Pad([1, 2]; pads=[1, 0], value=9.0) = [9, 1, 2]`
fn pad_attributes(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let pads = n.ints("pads")?.or(n.ints("paddings")?);
    let pads = pads.ok_or_else(|| Error::invalid("Pad needs the attribute `pads`"))?;
    let value = Scalar::from_f64(g.dtype(x), n.float_or("value", 0.0)?);
    let pads: Vec<Dim> = pads.into_iter().map(Dim::from).collect();
    let axes: Vec<usize> = (0..g.rank(x)).collect();
    let mode = n.string_or("mode", "constant")?;
    pad_by(g, x, mode, &axes, &pads, Fill::Known(value))
}

/// The input with padding. `pads` (input 1) holds the size of the padding at the start of each axis, then at the end of
/// each axis. Negative sizes remove elements. `axes` (input 3) defaults to all axes. `mode` is `constant` (with the
/// value in input 2, by default 0), `edge`, `reflect` or `wrap`.
///
/// `Pad([1, 2], i64[1, 2], 9) = [9, 1, 2, 9, 9]`
/// `Pad([1, 2, 3], i64[2, 1]; mode="reflect") = [3, 2, 1, 2, 3, 2]`
/// `Pad([1, 2], i64[3, 0]; mode="reflect") = [2, 1, 2, 1, 2]`
/// `Pad([1, 2, 3], i64[1, 2]; mode="edge") = [1, 1, 2, 3, 3, 3]`
/// `Pad([1, 2, 3], i64[1, 1]; mode="wrap") = [3, 1, 2, 3, 1]`
fn pad(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    if !n.is_known(g, 1) || !n.is_known(g, 3) {
        let fill = match n.optional(2) {
            Some(value) => g.reshape(value, Vec::new())?,
            None => g.scalar(Scalar::from_i64(g.dtype(x), 0))?,
        };
        return dynamic::pad(g, n, x, n.string_or("mode", "constant")?, fill);
    }

    let pads = n.dims(g, 1)?;
    let axes = match n.optional(3) {
        Some(_) => normal_axes(&n.numbers(g, 3)?, g.rank(x))?,
        None => (0..g.rank(x)).collect(),
    };

    let dtype = g.dtype(x);
    let fill = match n.optional(2) {
        None => Fill::Known(Scalar::from_i64(dtype, 0)),
        Some(value) => match value_of(g, value)? {
            Some(tensor) if tensor.elems() == 1 && tensor.dtype() == dtype => Fill::Known(tensor.get(0)),
            Some(_) => {
                return Err(Error::invalid("the padding value is not one element of the input's type"));
            }
            None => Fill::Computed(value),
        },
    };

    let mode = n.string_or("mode", "constant")?;
    pad_by(g, x, mode, &axes, &pads, fill)
}

/// The values of the padding.
enum Fill {
    Known(Scalar),
    Computed(Value),
}

fn pad_by(g: &mut Graph, x: Value, mode: &str, axes: &[usize], pads: &[Dim], fill: Fill) -> Result<Value> {
    if pads.len() != 2 * axes.len() {
        return Err(Error::invalid(format!(
            "{} pads are given for {} axes; each axis needs 2",
            pads.len(),
            axes.len()
        )));
    }

    let mut lo = vec![Dim::zero(); g.rank(x)];
    let mut hi = vec![Dim::zero(); g.rank(x)];
    for (i, axis) in axes.iter().enumerate() {
        lo[*axis] = pads[i].clone();
        hi[*axis] = pads[axes.len() + i].clone();
    }

    match (mode, fill) {
        ("constant", Fill::Known(value)) => g.pad(x, &lo, &hi, value),
        ("constant", Fill::Computed(value)) => {
            let yes = g.scalar(Scalar::bool(true))?;
            let shape = g.shape(x).to_vec();
            let inside = g.broadcast_to(yes, &shape)?;
            let inside = g.pad(inside, &lo, &hi, Scalar::bool(false))?;
            let padded = g.pad(x, &lo, &hi, Scalar::from_i64(g.dtype(x), 0))?;
            let value = g.reshape(value, Vec::new())?;
            g.select(inside, padded, value)
        }
        (mode, _) => mirror(g, x, mode, &lo, &hi),
    }
}

/// Padding with copies of other elements. It is a view.
fn mirror(g: &mut Graph, x: Value, mode: &str, lo: &[Dim], hi: &[Dim]) -> Result<Value> {
    let mut shape = Vec::new();
    let mut index = Vec::new();
    for (k, dim) in g.shape(x).to_vec().into_iter().enumerate() {
        let position = Dim::from(crate::graph::axis(k)) - &lo[k];
        shape.push(&dim + &lo[k] + &hi[k]);
        if (lo[k].as_i64(), hi[k].as_i64()) == (Some(0), Some(0)) {
            index.push(position);
            continue;
        }

        g.require(Relation::le(Dim::one(), &dim), &format!("axis {k}, of which elements are repeated"))?;
        index.push(match mode {
            "edge" => Dim::min(&Dim::max(&position, 0), dim - 1),
            "wrap" => position.modulo(dim),
            "reflect" => reflected(g, k, position, &dim, [&lo[k], &hi[k]])?,
            _ => return Err(Error::invalid(format!("unknown mode `{mode}`"))),
        });
    }

    g.view(x, shape, index)
}

/// The index in axis `k` of the element at `position`. Positions outside of the axis are reflected at its first and
/// last element.
fn reflected(g: &mut Graph, k: usize, position: Dim, dim: &Dim, pads: [&Dim; 2]) -> Result<Dim> {
    let last = &(dim - 1);
    if pads.iter().any(|pad| g.facts.prove_le(dim, pad).is_yes()) {
        // Large pads reflect several times. An axis of one element repeats it.
        let period = Dim::max(&(last * 2), 1);
        let around = position.modulo(period);
        return Ok(Dim::min(&around, last * 2 - &around));
    }

    for pad in pads {
        g.require(Relation::le(pad + 1, dim), &format!("axis {k}, of which {pad} elements are mirrored"))?;
    }

    let from_start = Dim::max(&position, -&position);
    let from_end = last - from_start;
    Ok(last - Dim::max(&from_end, -&from_end))
}

/// The input, cropped or padded with zeros to the `shape` in input 1, along `axes`. Both sides are cropped and padded
/// equally; an odd element is at the end.
///
/// `CenterCropPad([1, 2, 3, 4], i64[2]) = [2, 3]`
/// `CenterCropPad([1, 2], i64[5]) = [0, 1, 2, 0, 0]`
fn center_crop_pad(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut x = n.input(0)?;
    let rank = g.rank(x);

    let axes = match n.ints("axes")? {
        Some(axes) => normal_axes(&axes, rank)?,
        None => (0..rank).collect(),
    };

    let sizes = n.elements(g, 1)?;
    if sizes.len() != axes.len() {
        return Err(Error::invalid(format!("{} sizes are given for {} axes", sizes.len(), axes.len())));
    }

    for (size, k) in sizes.into_iter().zip(axes) {
        let have = g.shape(x)[k].clone();
        let want = n.size(g, size, k, None)?;

        // Cropped to the smaller size, then padded to the wanted size. One of both has no effect.
        let keep = g.facts.simplify(&smaller(g, &have, &want));
        let start = g.facts.simplify(&(&have - &keep).floor_div(2));
        x = g.slice(x, k, start, keep.clone(), 1)?;

        let missing = g.facts.simplify(&(&want - &keep));
        let before = g.facts.simplify(&missing.floor_div(2));

        let mut lo = vec![Dim::zero(); rank];
        let mut hi = vec![Dim::zero(); rank];
        hi[k] = g.facts.simplify(&(missing - &before));
        lo[k] = before;
        x = g.pad(x, &lo, &hi, Scalar::from_i64(g.dtype(x), 0))?;
    }

    Ok(x)
}
