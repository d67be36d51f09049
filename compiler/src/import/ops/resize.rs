//! Resampling: each axis separately, as a weighted sum of a few gathered neighbours.

mod coordinates;
mod interpolation;
mod resized_axis;

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        constant,
        node::{OnnxNode, axes::normal_axes},
    },
};
use coordinates::{beyond, coordinates};
use interpolation::{clamped, interpolated, nearest};
use num_traits::ToPrimitive;
use resized_axis::{ResizedAxis, Sampling, Scale};
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    Resize 10 resize_by_scales,
    Resize 11 resize,
    Upsample 7 upsample_attribute,
    Upsample 9 resize_by_scales,
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
