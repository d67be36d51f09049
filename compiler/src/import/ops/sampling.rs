//! Sampling at computed positions.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, Value, axis},
    import::{
        node::OnnxNode,
        ops::{conv::positive, shared::arithmetic::linear},
    },
    scalar::{CompareOp, ReduceOp, UnaryOp},
};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    AffineGrid 20 affine_grid,
    DeformConv 19 deform_conv,
    GridSample 16 grid_sample,
    "com.microsoft" GridSample 1 grid_sample,
    RoiAlign 10 roi_align,
}

/// Slice `k` of the last axis.
fn entry(g: &mut Graph, x: Value, k: usize) -> Result<Value> {
    let last = g
        .rank(x)
        .checked_sub(1)
        .ok_or_else(|| Error::invalid("the coordinates must have at least 1 axis"))?;
    let slice = g.slice(x, last, Dim::from(k), Dim::one(), 1)?;
    g.squeeze(slice, &[last])
}

/// A neighbour along one axis: its index in the axis, and its weight. Both have the shape of the positions.
struct Tap {
    at: Value,
    weight: Value,
}

/// How positions outside of an axis are read.
#[derive(Clone, Copy, PartialEq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// `x`, reflected at `lo` and `hi` until it is between them.
fn reflect(g: &mut Graph, x: Value, lo: Value, hi: Value) -> Result<Value> {
    let dtype = g.dtype(x);
    let zero = g.number(dtype, 0.0)?;
    let two = g.number(dtype, 2.0)?;

    let range = g.sub(hi, lo)?;
    let period = g.mul(range, two)?;
    let single = g.compare(CompareOp::Le, period, zero)?;
    let one = g.number(dtype, 1.0)?;
    let period = g.select(single, one, period)?;

    let way = g.sub(x, lo)?;
    let turns = g.div(way, period)?;
    let turns = g.floor(turns)?;
    let whole = g.mul(turns, period)?;

    let rest = g.sub(way, whole)?;
    let back = g.sub(period, rest)?;
    let back = g.min(rest, back)?;
    let inside = g.add(lo, back)?;

    g.select(single, lo, inside)
}

/// The positions `at` as indices of an axis of `size`, and whether they are read at all.
fn place(
    g: &mut Graph,
    at: Value,
    size: &Dim,
    outside: Outside,
    corners: bool,
) -> Result<(Value, Option<Value>)> {
    let dtype = g.dtype(at);
    let at = match outside {
        Outside::Reflection => {
            let (lo, hi) = ends(g, dtype, size, corners)?;
            let at = reflect(g, at, lo, hi)?;
            g.trunc(at)?
        }
        _ => at,
    };

    let zero = g.number(dtype, 0.0)?;
    let last = g.dim(dtype, size - 1)?;

    let read = match outside {
        Outside::Zeros => {
            let above = g.compare(CompareOp::Ge, at, zero)?;
            let below = g.compare(CompareOp::Le, at, last)?;
            Some(g.and(above, below)?)
        }
        _ => None,
    };

    let at = g.max(at, zero)?;
    let at = g.min(at, last)?;
    Ok((g.cast(DType::I64, at)?, read))
}

/// The coordinates at which an axis is reflected.
fn ends(g: &mut Graph, dtype: DType, size: &Dim, corners: bool) -> Result<(Value, Value)> {
    let last = g.dim(dtype, size - 1)?;
    if corners {
        Ok((g.number(dtype, 0.0)?, last))
    } else {
        Ok((g.number(dtype, -0.5)?, linear(g, last, 1.0, 0.5)?))
    }
}

/// The neighbours of `at` along an axis of `size`.
fn taps(
    g: &mut Graph,
    mut at: Value,
    size: &Dim,
    mode: &str,
    outside: Outside,
    corners: bool,
) -> Result<Vec<Tap>> {
    let dtype = g.dtype(at);
    if mode == "nearest" {
        at = g.unary(UnaryOp::Round, at)?;
    }

    if mode != "cubic" {
        match outside {
            Outside::Zeros => {}
            Outside::Border => {
                let zero = g.number(dtype, 0.0)?;
                let last = g.dim(dtype, size - 1)?;
                at = g.max(at, zero)?;
                at = g.min(at, last)?;
            }
            Outside::Reflection => {
                let (lo, hi) = ends(g, dtype, size, corners)?;
                at = reflect(g, at, lo, hi)?;
            }
        }
    }

    let floor = g.floor(at)?;
    let part = g.sub(at, floor)?;

    let weights = match mode {
        "nearest" => vec![(0.0, g.number(dtype, 1.0)?)],
        "linear" => vec![(0.0, linear(g, part, -1.0, 1.0)?), (1.0, part)],
        _ => {
            let mut list = Vec::new();
            for offset in [-1.0, 0.0, 1.0, 2.0] {
                let distance = linear(g, part, -1.0, offset)?;
                let distance = g.abs(distance)?;
                list.push((offset, cubic(g, distance, offset == 0.0 || offset == 1.0)?));
            }
            list
        }
    };

    let base = if mode == "nearest" { at } else { floor };
    let mut taps = Vec::new();
    for (offset, weight) in weights {
        let neighbour = linear(g, base, 1.0, offset)?;
        let (at, read) = place(g, neighbour, size, outside, corners)?;
        let zero = g.number(dtype, 0.0)?;
        let weight = match read {
            Some(read) => g.select(read, weight, zero)?,
            None => weight,
        };
        taps.push(Tap { at, weight });
    }

    Ok(taps)
}

/// The cubic kernel of Keys with the coefficient -0.75: its part below 1, or its part from 1 to 2.
fn cubic(g: &mut Graph, d: Value, near: bool) -> Result<Value> {
    let a = -0.75;
    let coefficients = if near { [a + 2.0, -(a + 3.0), 0.0, 1.0] } else { [a, -5.0 * a, 8.0 * a, -4.0 * a] };
    let dtype = g.dtype(d);
    let mut sum = g.number(dtype, coefficients[0])?;
    for coefficient in &coefficients[1..] {
        let coefficient = g.number(dtype, *coefficient)?;
        let product = g.mul(sum, d)?;
        sum = g.add(product, coefficient)?;
    }
    Ok(sum)
}

/// `x`, `[N, C, …]`, at positions: the weighted sum over all combinations of the neighbours along each axis.
///
/// The taps of each spatial axis have shape `[N, …]`.
fn sampled(g: &mut Graph, x: Value, taps: &[Vec<Tap>]) -> Result<Value> {
    let dtype = g.dtype(x);
    let batch = g.shape(x)[0].clone();
    let channels = g.shape(x)[1].clone();
    let positions = g.shape(taps[0][0].at).to_vec();
    let shape = [&[batch, channels], &positions[1..]].concat();

    // The indices of the result that address a position.
    let found: Vec<Dim> =
        [Dim::from(axis(0))].into_iter().chain((2..shape.len()).map(|k| axis(k).into())).collect();
    let mut sum: Option<Value> = None;

    let combinations: usize = taps.iter().map(Vec::len).product();
    for combination in 0..combinations {
        let mut rest = combination;
        let mut chosen = Vec::new();
        for list in taps {
            chosen.push(&list[rest % list.len()]);
            rest /= list.len();
        }

        let mut coords = vec![Coord::At(axis(0).into()), Coord::At(axis(1).into())];
        let mut operands = vec![x];

        let mut weight: Option<Value> = None;
        for tap in chosen {
            coords.push(Coord::Load { operand: operands.len(), at: found.clone() });
            operands.push(tap.at);
            weight = Some(match weight {
                None => tap.weight,
                Some(other) => g.mul(other, tap.weight)?,
            });
        }

        let value = g.push(Op::Gather { shape: shape.clone(), coords }, &operands)?;
        let weight = weight.ok_or_else(|| Error::invalid("sampling needs at least 1 spatial axis"))?;
        let weight = g.broadcast_to(weight, &positions)?;
        let weight = g.unsqueeze(weight, &[1])?;
        let weight = g.cast(dtype, weight)?;

        let term = g.mul(value, weight)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => g.add(sum, term)?,
        });
    }

    sum.ok_or_else(|| Error::invalid("sampling needs at least 1 spatial axis"))
}

/// `X`, `[N, C, …]`, at the positions in `grid`, `[N, …, axes]`. Positions run from -1 to 1 over each axis, in the
/// order last axis first. `mode` is `nearest`, `linear` or `cubic`. `padding_mode` is `zeros`, `border` or
/// `reflection`.
///
/// Limits: 1 to 3 spatial axes.
///
/// `GridSample([[[[1, 2], [3, 4]]]], [[[[0, 0], [-1, -1]]]]; align_corners=1) = [[[[2.5, 1]]]]`
fn grid_sample(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let grid = n.input(1)?;

    let mode = match n.string_or("mode", "linear")? {
        "bilinear" | "linear" => "linear",
        "bicubic" | "cubic" => "cubic",
        "nearest" => "nearest",
        other => return Err(Error::invalid(format!("unknown mode `{other}`"))),
    };

    let outside = match n.string_or("padding_mode", "zeros")? {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection,
        other => return Err(Error::invalid(format!("unknown padding_mode `{other}`"))),
    };

    let corners = n.flag("align_corners", false)?;
    let count = g.rank(x).checked_sub(2).filter(|count| (1..=3).contains(count) && g.rank(grid) == count + 2);
    let count = count.ok_or_else(|| Error::unsupported("GridSample with other than 1 to 3 spatial axes"))?;

    let mut all = Vec::new();
    for k in 0..count {
        let at = entry(g, grid, count - 1 - k)?;
        let at = if g.dtype(at) == DType::F64 { at } else { g.cast(DType::F32, at)? };
        let size = g.shape(x)[2 + k].clone();
        let dtype = g.dtype(at);

        let at = linear(g, at, 1.0, 1.0)?;
        let at = if corners {
            let last = g.dim(dtype, &size - 1)?;
            let half = linear(g, at, 0.5, 0.0)?;
            g.mul(half, last)?
        } else {
            let own = g.dim(dtype, size.clone())?;
            let at = g.mul(at, own)?;
            linear(g, at, 0.5, -0.5)?
        };

        all.push(taps(g, at, &size, mode, outside, corners)?);
    }

    sampled(g, x, &all)
}

/// The positions for `GridSample` of an affine map: `theta·[x, y, (z,) 1]`, with `theta` `[N, 2, 3]` or `[N, 3, 4]`.
/// Input 1 is the shape of the sampled tensor.
///
/// `AffineGrid([[[1, 0, 0], [0, 1, 0]]], i64[1, 1, 1, 2]) = [[[[-0.5, 0], [0.5, 0]]]]`
fn affine_grid(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let theta = n.input(0)?;
    let corners = n.flag("align_corners", false)?;
    let sizes = n.elements(g, 1)?;
    let count = sizes.len().checked_sub(2).filter(|count| (2..=3).contains(count));
    let count = count.ok_or_else(|| Error::invalid("the size must have 4 or 5 elements"))?;

    let mut spatial = Vec::new();
    for (k, size) in sizes[2..].iter().enumerate() {
        spatial.push(n.size(g, *size, 1 + k, None)?);
    }

    let dtype = g.dtype(theta);

    // `theta[n, j, k]` as `[N, 1, …, J]` for each `k`.
    let mut sum: Option<Value> = None;
    for k in 0..=count {
        let factor = entry(g, theta, k)?;
        let factor = g.unsqueeze(factor, &(1..=count).collect::<Vec<_>>())?;

        let term = match count.checked_sub(1 + k) {
            None => {
                let mut shape = g.shape(factor).to_vec();
                shape[1..=count].clone_from_slice(&spatial);
                g.broadcast_to(factor, &shape)?
            }
            Some(along) => {
                let size = &spatial[along];
                let place = g.index(DType::I64, vec![size.clone()], axis(0).into())?;
                let place = g.cast(DType::F64, place)?;

                let way = if corners {
                    let steps = g.dim(DType::F64, size - 1)?;
                    let twice = linear(g, place, 2.0, 0.0)?;
                    g.div(twice, steps)?
                } else {
                    let steps = g.dim(DType::F64, size.clone())?;
                    let twice = linear(g, place, 2.0, 1.0)?;
                    g.div(twice, steps)?
                };

                let at = linear(g, way, 1.0, -1.0)?;
                let at = g.cast(dtype, at)?;
                let at = g.unsqueeze(at, &(1..=count - along).collect::<Vec<_>>())?;
                g.mul(factor, at)?
            }
        };

        sum = Some(match sum {
            None => term,
            Some(sum) => g.add(sum, term)?,
        });
    }

    sum.ok_or_else(|| Error::internal("a map must have columns"))
}

/// The mean or maximum (`mode`) of bilinear samples in each cell of a grid of `output_height × output_width` per
/// region. Input 1 holds the corners of the regions, which are multiplied by `spatial_scale`. Input 2 holds the batch
/// index of each region.
///
/// Limits: no `sampling_ratio=0`, where the number of samples depends on the region.
///
/// `RoiAlign([[[[1, 2], [3, 4]]]], [[0, 0, 1, 1]], i64[0]; sampling_ratio=1) = [[[[1]]]]`
fn roi_align(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let rois = n.input(1)?;
    let images = n.input(2)?;
    let old = if n.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = n.string_or("coordinate_transformation_mode", old)? == "half_pixel";
    let mode = n.string_or("mode", "avg")?;

    let rows = n.int_or("output_height", 1)?;
    let columns = n.int_or("output_width", 1)?;
    let each = n.int_or("sampling_ratio", 0)?;
    if g.rank(x) != 4 || g.rank(rois) != 2 || g.rank(images) != 1 {
        return Err(Error::invalid(
            "RoiAlign needs an input with 4 axes, regions with 2 axes and 1 batch index per region",
        ));
    }

    let scale = n.float_or("spatial_scale", 1.0)?;
    if each <= 0 {
        return Err(Error::unsupported(
            "RoiAlign whose number of samples depends on the regions (sampling_ratio=0)",
        ));
    }

    let shift = if half { -0.5 } else { 0.0 };

    let mut edges = Vec::new();
    for k in 0..4 {
        let edge = entry(g, rois, k)?;
        edges.push(linear(g, edge, scale, shift)?);
    }

    let shape = g.shape(x).to_vec();
    let count = g.shape(rois)[0].clone();

    let vertical = Regions { start: edges[1], end: edges[3], cells: rows, samples: each, half };
    let vertical = vertical.taps(g, &shape[2])?;
    let horizontal = Regions { start: edges[0], end: edges[2], cells: columns, samples: each, half };
    let horizontal = horizontal.taps(g, &shape[3])?;

    // `[R, C, rows, columns, samples, samples]`
    let out = vec![count, shape[1].clone(), rows.into(), columns.into(), each.into(), each.into()];

    let mut samples: Option<Value> = None;
    for v in &vertical {
        for h in &horizontal {
            let at = |axes: &[usize]| axes.iter().map(|k| Dim::from(axis(*k))).collect::<Vec<_>>();
            let coords = vec![
                Coord::Load { operand: 1, at: at(&[0]) },
                Coord::At(axis(1).into()),
                Coord::Load { operand: 2, at: at(&[0, 2, 4]) },
                Coord::Load { operand: 3, at: at(&[0, 3, 5]) },
            ];

            let value = g.push(Op::Gather { shape: out.clone(), coords }, &[x, images, v.at, h.at])?;
            let down = g.unsqueeze(v.weight, &[1, 3, 5])?;
            let right = g.unsqueeze(h.weight, &[1, 2, 4])?;
            let weight = g.mul(down, right)?;
            let weight = g.cast(g.dtype(x), weight)?;

            let term = g.mul(value, weight)?;
            samples = Some(match (samples, mode) {
                (None, _) => term,
                (Some(other), "max") => g.max(other, term)?,
                (Some(other), _) => g.add(other, term)?,
            });
        }
    }

    let samples = samples.ok_or_else(|| Error::internal("there must be four neighbours"))?;
    match mode {
        "max" => g.reduce(ReduceOp::Max, samples, &[4, 5], false),
        "avg" => g.mean(samples, &[4, 5], false),
        other => Err(Error::invalid(format!("unknown mode `{other}`"))),
    }
}

/// The regions of `RoiAlign` along one axis.
struct Regions {
    /// First coordinate of each region, `[R]`.
    start: Value,
    /// Last coordinate of each region, `[R]`.
    end: Value,
    cells: i64,
    /// Samples per cell.
    samples: i64,
    /// Whether coordinates are those of pixel centres. Otherwise a region has at least size 1.
    half: bool,
}

impl Regions {
    /// The two neighbours of each sample along an axis of `size`: positions and weights `[R, cells, samples]`.
    fn taps(&self, g: &mut Graph, size: &Dim) -> Result<Vec<Tap>> {
        let dtype = g.dtype(self.start);
        let mut span = g.sub(self.end, self.start)?;
        if !self.half {
            let one = g.number(dtype, 1.0)?;
            span = g.max(span, one)?;
        }

        let cell = linear(g, span, 1.0 / self.cells as f64, 0.0)?;
        let cell = g.unsqueeze(cell, &[1, 2])?;
        let start = g.unsqueeze(self.start, &[1, 2])?;

        let samples = self.samples;
        let grid = vec![self.cells.into(), samples.into()];
        let index = g.index(DType::I64, grid, Dim::from(axis(0)) * samples + Dim::from(axis(1)))?;
        let index = g.cast(dtype, index)?;
        let middle = linear(g, index, 1.0 / samples as f64, 0.5 / samples as f64)?;
        let way = g.mul(cell, middle)?;
        let at = g.add(start, way)?;

        let zero = g.number(dtype, 0.0)?;
        let last = g.dim(dtype, size - 1)?;

        // Samples more than one element outside of the axis read 0.
        let low = g.number(dtype, -1.0)?;
        let high = g.dim(dtype, size.clone())?;
        let above = g.compare(CompareOp::Ge, at, low)?;
        let below = g.compare(CompareOp::Le, at, high)?;
        let read = g.and(above, below)?;

        let at = g.max(at, zero)?;
        let at = g.min(at, last)?;
        let floor = g.floor(at)?;
        let part = g.sub(at, floor)?;

        let next = linear(g, floor, 1.0, 1.0)?;
        let next = g.min(next, last)?;
        let rest = linear(g, part, -1.0, 1.0)?;

        let mut taps = Vec::new();
        for (at, weight) in [(floor, rest), (next, part)] {
            let at = g.cast(DType::I64, at)?;
            let weight = g.select(read, weight, zero)?;
            taps.push(Tap { at, weight });
        }

        Ok(taps)
    }
}

/// Convolution whose taps are moved by offsets (input 2) and weighted by an optional mask (input 4), one for each
/// output position. The input is sampled bilinearly at each tap. The bias (input 3) is optional.
///
/// Limits: 2 spatial axes; the kernel size is a constant.
///
/// `DeformConv([[[[1, 2]]]], [[[[3]]]], [[[[0, 0]], [[0, 0]]]]) = [[[[3, 6]]]]`
fn deform_conv(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let w = n.input(1)?;
    let offsets = n.input(2)?;
    let bias = n.optional(3);
    let mask = n.optional(4);
    if [x, w, offsets].iter().chain(&mask).any(|value| g.rank(*value) != 4) {
        return Err(Error::unsupported("DeformConv with other than 2 spatial axes"));
    }

    let strides = positive(n, "strides", 2)?;
    let dilations = positive(n, "dilations", 2)?;
    let pads = n.ints("pads")?.unwrap_or_else(|| vec![0; 4]);
    if pads.len() != 4 {
        return Err(Error::invalid(format!("pads {pads:?} don't fit 2 axes")));
    }

    let groups = n.int_or("group", 1)?;
    let parts = n.int_or("offset_group", 1)?;
    n.ints("kernel_shape")?;

    let shape = g.shape(x).to_vec();
    let weights = g.shape(w).to_vec();
    let kernel: Option<Vec<i64>> = weights[2..].iter().map(Dim::as_i64).collect();
    let kernel =
        kernel.ok_or_else(|| Error::unsupported("DeformConv with a kernel whose size is not a constant"))?;
    let out = g.shape(offsets)[2..].to_vec();
    let taps_count = kernel[0] * kernel[1];

    let batch = shape[0].clone();
    let channels = shape[1].clone();
    let each = g.facts.simplify(&channels.floor_div(parts));
    let dtype = g.dtype(x);

    // Positions along each axis, `[N * parts, taps, rows, columns]`.
    let folded = g.facts.simplify(&(&batch * parts));
    let tall = vec![folded.clone(), taps_count.into(), 2.into(), out[0].clone(), out[1].clone()];
    let offsets = g.reshape(offsets, tall)?;

    let mut all = Vec::new();
    for k in 0..2 {
        let moved = g.slice(offsets, 2, Dim::from(k), Dim::one(), 1)?;
        let moved = g.squeeze(moved, &[2])?;
        let tap = Dim::from(axis(0));
        let tap = if k == 0 { tap.floor_div(kernel[1]) } else { tap.modulo(kernel[1]) };
        let place = Dim::from(axis(1 + k)) * strides[k] + tap * dilations[k] - pads[k];
        let fixed = g.index(DType::I64, vec![taps_count.into(), out[0].clone(), out[1].clone()], place)?;
        let fixed = g.cast(g.dtype(moved), fixed)?;
        let at = g.add(moved, fixed)?;
        all.push(taps(g, at, &shape[2 + k], "linear", Outside::Zeros, true)?);
    }

    let x = g.reshape(x, vec![folded.clone(), each.clone(), shape[2].clone(), shape[3].clone()])?;
    let mut samples = sampled(g, x, &all)?;
    if let Some(mask) = mask {
        let mask =
            g.reshape(mask, vec![folded, Dim::one(), taps_count.into(), out[0].clone(), out[1].clone()])?;
        let mask = g.cast(dtype, mask)?;
        samples = g.mul(samples, mask)?;
    }

    let inner = g.facts.simplify(&channels.floor_div(groups));
    let split =
        vec![batch.clone(), groups.into(), inner.clone(), taps_count.into(), out[0].clone(), out[1].clone()];
    let samples = g.reshape(samples, split)?;

    let outer = g.facts.simplify(&weights[0].floor_div(groups));
    let w = g.reshape(w, vec![groups.into(), outer, inner, taps_count.into()])?;
    let y = g.contract(samples, b"ngcthw", w, b"goct", b"ngohw")?;
    let y = g.reshape(y, vec![batch, weights[0].clone(), out[0].clone(), out[1].clone()])?;

    match bias {
        None => Ok(y),
        Some(bias) => {
            let bias = g.unsqueeze(bias, &[1, 2])?;
            g.add(y, bias)
        }
    }
}
