//! Resampling: each axis separately, as a weighted sum of a few gathered neighbours.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        constant,
        node::{
            OnnxNode,
            axes::{larger, normal_axes},
        },
    },
    scalar::{CompareOp, ReduceOp, Scalar},
};
use num_traits::ToPrimitive;
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    Resize 10 resize_by_scales,
    Resize 11 resize,
    Upsample 7 upsample_attribute,
    Upsample 9 resize_by_scales,
}

/// The largest number of taps that are added term by term.
const MAX_TERMS: i64 = 4;

/// How one axis is resampled.
struct ResizedAxis {
    /// Index of the axis.
    k: usize,
    /// Old size.
    from: Dim,
    to: Dim,
    scale: Scale,
    /// Start and end of the sampled region for `tf_crop_and_resize`, doubles relative to the axis.
    roi: Option<[Value; 2]>,
}

/// The ratio of the new size to the old one, before rounding.
#[derive(Clone, Copy)]
enum Scale {
    /// The ratio of the rounded sizes.
    Sizes,
    Number(f64),
    /// A double of rank 0, known only at run time.
    Found(Value),
}

impl Scale {
    fn number(self) -> Option<f64> {
        match self {
            Scale::Number(scale) => Some(scale),
            Scale::Sizes | Scale::Found(_) => None,
        }
    }
}

/// The attributes of a resampling node.
struct Sampling<'a> {
    mode: &'a str,
    coordinates: &'a str,
    nearest: &'a str,
    cubic: f64,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f64,
}

/// The input, scaled along each axis by the attribute `scales`. `mode` is `nearest` or `linear`.
///
/// `Upsample@8([1, 2]; scales=[2.0], mode="nearest") = [1, 1, 2, 2]`
fn upsample_attribute(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let scales =
        n.floats("scales")?.ok_or_else(|| Error::invalid("Upsample needs the attribute `scales`"))?;
    by_scales(g, n, scales.into_iter().map(|scale| Scale::Number(f64::from(scale))).collect())
}

/// The input, scaled along each axis by the scales in input 1. `mode` is `nearest` or `linear`.
///
/// `Resize@10([1, 2], [1.5]; mode="linear") = [1, 1.6666666, 2]`
fn resize_by_scales(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let scales = scales_of(g, n, n.input(1)?)?;
    by_scales(g, n, scales)
}

/// The elements of a vector of scales.
fn scales_of(g: &mut Graph, n: &OnnxNode, scales: Value) -> Result<Vec<Scale>> {
    if let Some(scales) = constant::value_of(g, scales)? {
        return Ok((0..scales.elems()).map(|k| Scale::Number(scales.get(k).as_f64())).collect());
    }
    Ok(doubles(g, n, scales)?.into_iter().map(Scale::Found).collect())
}

/// The elements of a vector, as doubles of rank 0.
fn doubles(g: &mut Graph, n: &OnnxNode, list: Value) -> Result<Vec<Value>> {
    let count = g.shape(list).first().and_then(Dim::as_i64);
    let count = count
        .ok_or_else(|| Error::unsupported(format!("{}: a list whose length is not a constant", n.op)))?;
    let list = g.cast(DType::F64, list)?;
    (0..count)
        .map(|k| {
            let one = g.slice(list, 0, k.into(), Dim::one(), 1)?;
            g.squeeze(one, &[0])
        })
        .collect()
}

fn by_scales(g: &mut Graph, n: &OnnxNode, scales: Vec<Scale>) -> Result<Value> {
    let x = n.input(0)?;
    let sampling = Sampling {
        mode: n.string_or("mode", "nearest")?,
        coordinates: "asymmetric",
        nearest: "floor",
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        extrapolation: 0.0,
    };

    let axes: Vec<usize> = (0..g.rank(x)).collect();
    let axes = scaled_axes(g, n, x, &axes, &scales)?;
    resample(g, x, &axes, &sampling)
}

/// The input, resampled along `axes` (by default all) by the scales in input 2 or to the sizes in input 3. All modes,
/// coordinate transformations, nearest modes and aspect ratio policies of ONNX.
///
/// Limits: no `keep_aspect_ratio_policy` other than `stretch` with symbolic sizes.
///
/// `Resize([1, 2], _, [2.0]) = [1, 1, 2, 2]`
/// `Resize([1, 2], _, [2.0]; mode="linear") = [1, 1.25, 1.75, 2]`
/// `Resize([1, 2, 3, 4], _, _, i64[2]; mode="linear", coordinate_transformation_mode="align_corners") = [1, 4]`
fn resize(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let sampling = Sampling {
        mode: n.string_or("mode", "nearest")?,
        coordinates: n.string_or("coordinate_transformation_mode", "half_pixel")?,
        nearest: n.string_or("nearest_mode", "round_prefer_floor")?,
        cubic: n.float_or("cubic_coeff_a", -0.75)?,
        exclude_outside: n.flag("exclude_outside", false)?,
        antialias: n.flag("antialias", false)?,
        extrapolation: n.float_or("extrapolation_value", 0.0)?,
    };

    let which = match n.ints("axes")? {
        Some(axes) => normal_axes(&axes, g.rank(x))?,
        None => (0..g.rank(x)).collect(),
    };

    let policy = n.string_or("keep_aspect_ratio_policy", "stretch")?;
    let scales = match n.optional(2) {
        Some(scales) if g.shape(scales).first().is_none_or(|dim| dim.as_i64() != Some(0)) => {
            Some(scales_of(g, n, scales)?)
        }
        _ => None,
    };

    let mut axes = match scales {
        Some(scales) => scaled_axes(g, n, x, &which, &scales)?,
        None if n.is_known(g, 3) => sized_axes(g, x, &which, n.dims(g, 3)?, policy)?,
        None => found_axes(g, n, x, &which, policy)?,
    };

    let roi = n.optional(1);
    if sampling.coordinates == "tf_crop_and_resize" {
        let roi = roi.ok_or_else(|| Error::invalid("tf_crop_and_resize needs the input `roi`"))?;
        let roi = doubles(g, n, roi)?;
        if roi.len() != 2 * axes.len() {
            return Err(Error::invalid("`roi` must have 2 elements per axis"));
        }
        let count = axes.len();
        for (i, axis) in axes.iter_mut().enumerate() {
            axis.roi = Some([roi[i], roi[count + i]]);
        }
    }

    resample(g, x, &axes, &sampling)
}

fn scaled_axes(
    g: &mut Graph,
    n: &OnnxNode,
    x: Value,
    which: &[usize],
    scales: &[Scale],
) -> Result<Vec<ResizedAxis>> {
    if scales.len() != which.len() {
        return Err(Error::invalid(format!("{} scales are given for {} axes", scales.len(), which.len())));
    }

    let axis = |(k, scale): (&usize, &Scale)| {
        let from = g.shape(x)[*k].clone();
        let number = match scale {
            Scale::Found(value) => {
                let size = g.dim(DType::F64, from.clone())?;
                let size = g.mul(size, *value)?;
                let size = g.floor(size)?;
                let size = g.cast(DType::I64, size)?;
                let to = n.size(g, size, *k, None)?;
                return Ok(ResizedAxis { k: *k, from, to, scale: *scale, roi: None });
            }
            Scale::Number(number) => number,
            Scale::Sizes => return Err(Error::internal("scales must be resolved before sizes")),
        };

        let scale = number;

        // A float is a fraction whose denominator is a power of two, so the size is exact.
        let den = (0..40).map(|bits| 1_i64 << bits).find(|den| (scale * *den as f64).fract() == 0.0);
        let num = den.map(|den| scale * den as f64).filter(|num| (1.0..1e15).contains(num));
        let (Some(num), Some(den)) = (num, den) else {
            return Err(Error::invalid(format!("the scale {scale} is out of range")));
        };
        let to = g.facts.simplify(&(&from * (num as i64)).floor_div(den));

        Ok(ResizedAxis { k: *k, from, to, scale: Scale::Number(*scale), roi: None })
    };

    which.iter().zip(scales).map(axis).collect()
}

fn sized_axes(
    g: &Graph,
    x: Value,
    which: &[usize],
    sizes: Vec<Dim>,
    policy: &str,
) -> Result<Vec<ResizedAxis>> {
    if sizes.len() != which.len() {
        return Err(Error::invalid(format!("{} sizes are given for {} axes", sizes.len(), which.len())));
    }

    let common = match policy {
        "stretch" => None,
        "not_larger" | "not_smaller" => {
            let ratio =
                |(k, size): (&usize, &Dim)| Some(size.as_i64()? as f64 / g.shape(x)[*k].as_i64()? as f64);
            let ratios: Option<Vec<f64>> = which.iter().zip(&sizes).map(ratio).collect();
            let ratios = ratios.ok_or_else(|| {
                Error::unsupported(format!("keep_aspect_ratio_policy `{policy}` with symbolic sizes"))
            })?;
            let pick = if policy == "not_larger" { f64::min } else { f64::max };
            ratios.into_iter().reduce(pick)
        }
        other => return Err(Error::invalid(format!("unknown keep_aspect_ratio_policy `{other}`"))),
    };

    let axis = |(k, to): (&usize, Dim)| {
        let from = g.shape(x)[*k].clone();
        match (common, from.as_i64()) {
            (Some(scale), Some(size)) => {
                let to = (scale * size as f64 + 0.5).floor() as i64;
                ResizedAxis { k: *k, from, to: to.into(), scale: Scale::Number(scale), roi: None }
            }
            _ => ResizedAxis { k: *k, from, to, scale: Scale::Sizes, roi: None },
        }
    };

    Ok(which.iter().zip(sizes).map(axis).collect())
}

/// Axes whose new sizes, in input 3, are known only at run time.
fn found_axes(
    g: &mut Graph,
    n: &OnnxNode,
    x: Value,
    which: &[usize],
    policy: &str,
) -> Result<Vec<ResizedAxis>> {
    let sizes = n.elements(g, 3)?;
    if sizes.len() != which.len() {
        return Err(Error::invalid(format!("{} sizes are given for {} axes", sizes.len(), which.len())));
    }

    let mut common: Option<Value> = None;
    if policy != "stretch" {
        for (k, size) in which.iter().zip(&sizes) {
            let size = g.cast(DType::F64, *size)?;
            let from = g.dim(DType::F64, g.shape(x)[*k].clone())?;
            let ratio = g.div(size, from)?;
            common = Some(match (common, policy) {
                (None, _) => ratio,
                (Some(other), "not_larger") => g.min(other, ratio)?,
                (Some(other), "not_smaller") => g.max(other, ratio)?,
                _ => return Err(Error::invalid(format!("unknown keep_aspect_ratio_policy `{policy}`"))),
            });
        }
    }

    let mut axes = Vec::new();
    for (k, size) in which.iter().zip(sizes) {
        let from = g.shape(x)[*k].clone();
        let size = match common {
            None => size,
            Some(scale) => {
                let from = g.dim(DType::F64, from.clone())?;
                let half = g.number(DType::F64, 0.5)?;
                let size = g.mul(scale, from)?;
                let size = g.add(size, half)?;
                let size = g.floor(size)?;
                g.cast(DType::I64, size)?
            }
        };

        let to = n.size(g, size, *k, None)?;
        axes.push(ResizedAxis {
            k: *k,
            from,
            to,
            scale: common.map_or(Scale::Sizes, Scale::Found),
            roi: None,
        });
    }

    Ok(axes)
}

fn resample(g: &mut Graph, mut x: Value, axes: &[ResizedAxis], how: &Sampling) -> Result<Value> {
    let mut outside = None;
    for along in axes {
        let same = match along.scale {
            Scale::Sizes => true,
            Scale::Number(scale) => scale == 1.0,
            Scale::Found(_) => false,
        };

        if along.from == along.to && same && how.coordinates != "tf_crop_and_resize" {
            continue;
        }
        if let Some(times) = whole_repeats(g, along, how) {
            let mut shape = g.shape(x).to_vec();
            shape[along.k] = along.to.clone();
            let mut index: Vec<Dim> = (0..shape.len()).map(|k| axis(k).into()).collect();
            index[along.k] = Dim::from(axis(along.k)).floor_div(times);
            x = g.view(x, shape, index)?;
            continue;
        }

        let at = coordinates(g, along, how)?;
        if how.coordinates == "tf_crop_and_resize" {
            let out = beyond(g, at, along, g.rank(x))?;
            outside = Some(match outside {
                None => out,
                Some(others) => g.or(others, out)?,
            });
        }

        x = match how.mode {
            "nearest" => {
                let at = nearest(g, at, how.nearest)?;
                let at = clamped(g, at, along)?;
                g.gather(x, at, along.k)?
            }
            "linear" | "cubic" => interpolated(g, x, at, along, how)?,
            other => return Err(Error::invalid(format!("unknown mode `{other}`"))),
        };
    }

    let Some(outside) = outside else { return Ok(x) };
    let value = g.number(g.dtype(x), how.extrapolation)?;
    g.select(outside, value, x)
}

/// The number of repetitions of each element, if nearest sampling repeats each element equally often. Then it is an
/// index map.
fn whole_repeats(g: &Graph, along: &ResizedAxis, how: &Sampling) -> Option<i64> {
    let upper_bound = |dim: &Dim| g.facts.bounds(dim).hi?.to_i64();
    let times = match along.scale {
        Scale::Found(_) => return None,
        Scale::Number(scale) => (scale.fract() == 0.0).then_some(scale as i64)?,
        Scale::Sizes => upper_bound(&along.to)?.checked_div(upper_bound(&along.from)?)?,
    };

    let exact = times >= 1 && g.facts.prove_eq(&along.to, &(&along.from * times)).is_yes();
    let repeats = matches!(
        (how.coordinates, how.nearest),
        ("asymmetric", "floor")
            | ("half_pixel" | "pytorch_half_pixel", "round_prefer_floor" | "round_prefer_ceil")
    );

    (exact && repeats && how.mode == "nearest").then_some(times)
}

/// The coordinate in the old axis of each index of the new one, as doubles.
fn coordinates(g: &mut Graph, along: &ResizedAxis, how: &Sampling) -> Result<Value> {
    let position = g.index(DType::I64, vec![along.to.clone()], axis(0).into())?;
    let position = g.cast(DType::F64, position)?;
    let from = g.dim(DType::F64, along.from.clone())?;
    let to = g.dim(DType::F64, along.to.clone())?;

    let scale = match along.scale {
        Scale::Number(scale) => g.number(DType::F64, scale)?,
        Scale::Found(scale) => scale,
        Scale::Sizes => g.div(to, from)?,
    };

    let one = g.number(DType::F64, 1.0)?;
    let half = g.number(DType::F64, 0.5)?;

    let centre = |g: &mut Graph| -> Result<Value> {
        let shifted = g.add(position, half)?;
        let scaled = g.div(shifted, scale)?;
        g.sub(scaled, half)
    };

    // An axis of one element has no steps.
    let single = g.compare(CompareOp::Le, to, one)?;

    // The new size before rounding. ONNX's reference divides the axis into that many steps.
    let exact = g.mul(scale, from)?;
    let exact = if matches!(along.scale, Scale::Sizes) { to } else { exact };
    let last = g.sub(from, one)?;
    let steps = g.sub(exact, one)?;

    match how.coordinates {
        "half_pixel" => centre(g),
        "asymmetric" => g.div(position, scale),
        "pytorch_half_pixel" => {
            let at = centre(g)?;
            let zero = g.number(DType::F64, 0.0)?;
            g.select(single, zero, at)
        }
        "align_corners" => {
            let way = g.mul(position, last)?;
            let at = g.div(way, steps)?;
            let zero = g.number(DType::F64, 0.0)?;
            g.select(single, zero, at)
        }
        "half_pixel_symmetric" => {
            let full = g.mul(scale, from)?;
            let part = g.div(to, full)?;
            let rest = g.sub(one, part)?;
            let middle = g.mul(from, half)?;
            let offset = g.mul(middle, rest)?;
            let at = centre(g)?;
            g.add(offset, at)
        }
        "tf_crop_and_resize" => {
            let [start, end] = along.roi.ok_or_else(|| Error::internal("each axis must have a region"))?;
            let span = g.sub(end, start)?;
            let first = g.mul(start, last)?;
            let span = g.mul(span, last)?;
            let way = g.mul(position, span)?;
            let walked = g.div(way, steps)?;
            let at = g.add(first, walked)?;
            let middle = g.add(start, end)?;
            let middle = g.mul(middle, half)?;
            let middle = g.mul(middle, last)?;
            g.select(single, middle, at)
        }
        other => Err(Error::invalid(format!("unknown coordinate_transformation_mode `{other}`"))),
    }
}

/// Whether coordinates are outside of the old axis, broadcastable with a result of `rank` axes.
fn beyond(g: &mut Graph, at: Value, along: &ResizedAxis, rank: usize) -> Result<Value> {
    let zero = g.number(DType::F64, 0.0)?;
    let last = g.dim(DType::F64, &along.from - 1)?;
    let below = g.compare(CompareOp::Lt, at, zero)?;
    let above = g.compare(CompareOp::Gt, at, last)?;
    let out = g.or(below, above)?;
    g.unsqueeze(out, &(1..rank - along.k).collect::<Vec<_>>())
}

fn nearest(g: &mut Graph, at: Value, how: &str) -> Result<Value> {
    let half = g.number(DType::F64, 0.5)?;
    match how {
        "floor" => g.floor(at),
        "ceil" => g.ceil(at),
        "round_prefer_floor" => {
            let shifted = g.sub(at, half)?;
            g.ceil(shifted)
        }
        "round_prefer_ceil" => {
            let shifted = g.add(at, half)?;
            g.floor(shifted)
        }
        other => Err(Error::invalid(format!("unknown nearest_mode `{other}`"))),
    }
}

/// Coordinates as indices, clamped to the old axis.
fn clamped(g: &mut Graph, at: Value, along: &ResizedAxis) -> Result<Value> {
    let at = g.cast(DType::I64, at)?;
    let zero = g.scalar(Scalar::i64(0))?;
    let last = g.dim(DType::I64, &along.from - 1)?;
    let at = g.max(at, zero)?;
    g.min(at, last)
}

/// The weighted sum of the neighbours of `at`, whose positions and weights are tables `[taps, O]`.
fn interpolated(g: &mut Graph, x: Value, at: Value, along: &ResizedAxis, how: &Sampling) -> Result<Value> {
    let reach = if how.mode == "cubic" { 2 } else { 1 };
    let support: Dim = match (how.antialias, along.scale.number()) {
        (false, _) => reach.into(),
        (true, Some(scale)) => ((reach as f64 / scale.min(1.0)).ceil().min(1e4) as i64).into(),
        // A scale known at run time is at least the ratio of the sizes, so these neighbours suffice.
        (true, None) => {
            let to = larger(g, &along.to, &Dim::one());
            let wide = g.facts.simplify(&(&along.from * reach).ceil_div(to));
            g.facts.simplify(&larger(g, &wide, &reach.into()))
        }
    };

    let taps = g.facts.simplify(&(&support * 2));
    let floor = g.floor(at)?;
    let ratio = g.sub(at, floor)?;
    let floor = g.unsqueeze(floor, &[0])?;
    let ratio = g.unsqueeze(ratio, &[0])?;

    let offset = g.index(DType::I64, vec![taps.clone(), Dim::one()], Dim::from(axis(0)) - (support - 1))?;
    let offset = g.cast(DType::F64, offset)?;
    let place = g.add(floor, offset)?;
    let distance = g.sub(offset, ratio)?;
    let one = g.number(DType::F64, 1.0)?;

    let distance = match along.scale {
        _ if !how.antialias => distance,
        Scale::Number(scale) => {
            let shrink = g.number(DType::F64, scale.min(1.0))?;
            g.mul(distance, shrink)?
        }
        Scale::Found(scale) => {
            let shrink = g.min(scale, one)?;
            g.mul(distance, shrink)?
        }
        Scale::Sizes => {
            let from = g.dim(DType::F64, along.from.clone())?;
            let to = g.dim(DType::F64, along.to.clone())?;
            let ratio = g.div(to, from)?;
            let shrink = g.min(ratio, one)?;
            g.mul(distance, shrink)?
        }
    };

    let distance = g.abs(distance)?;
    let mut weight =
        if how.mode == "cubic" { cubic(g, distance, how.cubic)? } else { triangle(g, distance)? };
    if how.exclude_outside {
        let zero = g.number(DType::F64, 0.0)?;
        let last = g.dim(DType::F64, &along.from - 1)?;
        let above = g.compare(CompareOp::Ge, place, zero)?;
        let below = g.compare(CompareOp::Le, place, last)?;
        let inside = g.and(above, below)?;
        weight = g.select(inside, weight, zero)?;
    }

    if how.exclude_outside || how.antialias {
        let sum = g.reduce(ReduceOp::Sum, weight, &[0], true)?;
        weight = g.div(weight, sum)?;
    }

    let place = clamped(g, place, along)?;
    let dtype = g.dtype(x);
    let wide = if dtype.is_float() { dtype } else { DType::F32 };

    let weight = g.cast(wide, weight)?;
    let x = g.cast(wide, x)?;
    let y = match taps.as_i64() {
        Some(taps) if taps <= MAX_TERMS => sum_of_taps(g, x, place, weight, taps, along.k)?,
        _ => contraction_of_taps(g, x, place, weight, along.k)?,
    };

    g.cast(dtype, y)
}

/// The sum over few taps, term by term.
fn sum_of_taps(g: &mut Graph, x: Value, place: Value, weight: Value, taps: i64, k: usize) -> Result<Value> {
    let after: Vec<usize> = (1..g.rank(x) - k).collect();
    let mut sum = None;
    for tap in 0..taps {
        let row = |g: &mut Graph, table: Value| {
            let row = g.slice(table, 0, tap.into(), Dim::one(), 1)?;
            g.squeeze(row, &[0])
        };
        let place = row(g, place)?;
        let weight = row(g, weight)?;
        let weight = g.unsqueeze(weight, &after)?;
        let near = g.gather(x, place, k)?;
        let term = g.mul(near, weight)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => g.add(sum, term)?,
        });
    }
    sum.ok_or_else(|| Error::internal("resampling without taps"))
}

/// The sum over many taps: `[…, taps, O]` gathered and contracted with the weights.
fn contraction_of_taps(g: &mut Graph, x: Value, place: Value, weight: Value, k: usize) -> Result<Value> {
    let near = g.gather(x, place, k)?;
    let labels: Vec<u8> = (0..g.rank(near) as u8).map(|k| b'A' + k).collect();
    let tap = labels[k];
    let to = labels[k + 1];
    let out: Vec<u8> = labels.iter().copied().filter(|label| *label != tap).collect();
    g.contract(near, &labels, weight, &[tap, to], &out)
}

/// `max(0, 1 - d)`.
fn triangle(g: &mut Graph, distance: Value) -> Result<Value> {
    let one = g.number(DType::F64, 1.0)?;
    let slope = g.sub(one, distance)?;
    g.relu(slope)
}

/// Keys' cubic kernel with the coefficient `a`.
fn cubic(g: &mut Graph, d: Value, a: f64) -> Result<Value> {
    let mut horner = |coefficients: [f64; 4]| -> Result<Value> {
        let mut acc = g.number(DType::F64, coefficients[0])?;
        for coefficient in &coefficients[1..] {
            let product = g.mul(acc, d)?;
            let coefficient = g.number(DType::F64, *coefficient)?;
            acc = g.add(product, coefficient)?;
        }
        Ok(acc)
    };

    let near = horner([a + 2.0, -(a + 3.0), 0.0, 1.0])?;
    let far = horner([a, -5.0 * a, 8.0 * a, -4.0 * a])?;

    let one = g.number(DType::F64, 1.0)?;
    let two = g.number(DType::F64, 2.0)?;
    let zero = g.number(DType::F64, 0.0)?;
    let is_near = g.compare(CompareOp::Le, d, one)?;
    let is_far = g.compare(CompareOp::Lt, d, two)?;
    let far = g.select(is_far, far, zero)?;

    g.select(is_near, near, far)
}
