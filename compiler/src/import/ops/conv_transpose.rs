//! Transposed convolutions: one convolution for each phase of the stride.

use crate::{
    error::{Error, Result},
    graph::{Graph, Label, Value},
    import::{
        node::OnnxNode,
        ops::conv::{KERNEL, SPACE, Window, grouped, in_groups, kernel_of, positive, with_bias},
    },
    scalar::Scalar,
};
use std::ops::Range;
use symshape::Dim;

ops! {
    ConvTranspose 1 conv_transpose,
}

/// Columns of a vector.
const LANES: i64 = 16;

/// The time divided by this must be saved by separate convolutions, because each reads the input.
const MIN_GAIN: i64 = 5;

/// Labels of the phases of an output along each axis.
const PHASE: &[Label] = b"pqrs";

/// Transposed convolution of `X`, `[N, C, …]`, with the kernels `W`, `[C, M/group, …]`, plus the optional bias `B`.
///
/// Along each axis, `Y[stride·a + r] = Σ X[a - j] W[stride·j + r]`. The outputs of one phase `r` are a convolution with
/// every `stride`-th element of the reversed kernel. Kernels are padded with zeros to a multiple of the stride, unless
/// separate convolutions for phases with fewer elements are faster.
///
/// Limits: kernel sizes are constants; 1 to 4 spatial axes.
///
/// `ConvTranspose([[[1, 2]]], [[[1, 10]]]; strides=[2]) = [[[1, 10, 2, 20]]]`
/// `ConvTranspose([[[1, 2]]], [[[1, 10]]]; strides=[3]) = [[[1, 10, 0, 2, 20]]]`
/// `ConvTranspose([[[1, 2]]], [[[1, 10]]]; pads=[1, 0]) = [[[12, 20]]]`
/// `ConvTranspose([[[1, 2]]], [[[1, 10, 100]]]; strides=[2], pads=[1, 0]) = [[[10, 102, 20, 200]]]`
fn conv_transpose(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let mut x = n.input(0)?;
    let w = n.input(1)?;
    let kernel = kernel_of(g, n, w)?;

    let count = kernel.len();
    if g.rank(x) != count + 2 || kernel.contains(&0) {
        return Err(Error::invalid(format!(
            "the kernel {kernel:?} does not fit an input with {} axes",
            g.rank(x)
        )));
    }

    let mut stride = positive(n, "strides", count)?;
    let dilation = positive(n, "dilations", count)?;
    let window = Window { kernel, stride: vec![1; count], dilation, lo: Vec::new(), hi: Vec::new() };
    let TransposedPads { cut_lo, cut_hi, extra } = transposed_pads(g, n, x, &window, &stride)?;

    let size = |i: usize| {
        let full = (&g.shape(x)[i + 2] - 1) * stride[i] + window.span(i) + &extra[i];
        g.facts.simplify(&(full - &cut_lo[i] - &cut_hi[i]))
    };

    let sizes: Vec<Dim> = (0..count).map(size).collect();
    for (i, (stride, dilation)) in stride.iter_mut().zip(&window.dilation).enumerate() {
        // With a dilated kernel, the phases of a stride don't use the same kernel elements everywhere.
        if *stride > 1 && *dilation > 1 {
            x = with_gaps(g, x, i + 2, *stride)?;
            *stride = 1;
        }
    }

    let group = n.int_or("group", 1)?;
    let mut windows = window;

    // The phases of the stride that the kernel reaches.
    let sizes_of_kernel = windows.kernel.clone();
    let reached: Vec<i64> =
        stride.iter().zip(&windows.kernel).map(|(stride, size)| *stride.min(size)).collect();
    windows.kernel.iter_mut().zip(&stride).for_each(|(size, stride)| *size = (*size + stride - 1) / stride);

    let mut begin = Vec::new();
    for i in 0..count {
        let first = cut_lo[i].floor_div(stride[i]);
        let end = (&cut_lo[i] + &sizes[i]).ceil_div(stride[i]);
        begin.push(g.facts.simplify(&(&cut_lo[i] - &first * stride[i])));
        windows.lo.push(g.facts.simplify(&(Dim::from(windows.span(i) - 1) - first)));
        windows.hi.push(g.facts.simplify(&(end - &g.shape(x)[i + 2])));
    }

    let x = windows.pad(g, x, Scalar::from_i64(g.dtype(x), 0))?;
    let w = kernel_phases(g, w, &windows.kernel, &reached, group)?;

    let phases = Phases { sizes: &sizes_of_kernel, reached: &reached, stride: &stride };
    let mut y = interleaved_phases(g, x, w, &windows, &phases, group)?;
    for (i, (begin, size)) in begin.into_iter().zip(sizes).enumerate() {
        y = g.slice(y, i + 2, begin, size, 1)?;
    }

    with_bias(g, y, n.optional(2))
}

/// Kernels `[C, M/group, …]` as `[group, C/group, M/group, …]`. Each spatial axis is split into the reversed window and
/// the phase.
fn kernel_phases(g: &mut Graph, w: Value, kernel: &[i64], reached: &[i64], group: i64) -> Result<Value> {
    in_groups(g, w, group)?;
    let lo = vec![Dim::zero(); g.rank(w)];

    let mut hi = vec![Dim::zero(); g.rank(w)];
    let mut shape = g.shape(w)[..2].to_vec();
    for (i, (size, reached)) in kernel.iter().zip(reached).enumerate() {
        hi[i + 2] = g.facts.simplify(&(Dim::from(size * reached) - &g.shape(w)[i + 2]));
        shape.extend([Dim::from(*size), Dim::from(*reached)]);
    }

    let w = g.pad(w, &lo, &hi, Scalar::from_i64(g.dtype(w), 0))?;
    let mut w = g.reshape(w, shape)?;
    for i in 0..kernel.len() {
        w = g.reverse(w, 2 * i + 2)?;
    }

    grouped(g, w, 0, group)
}

/// The phases of an output between two elements of the input, along each axis.
struct Phases<'a> {
    /// Elements of the kernel.
    sizes: &'a [i64],
    /// Phases that the kernel reaches. The others are zero.
    reached: &'a [i64],
    /// All phases.
    stride: &'a [i64],
}

/// Phases along an axis that have the same number of kernel elements.
#[derive(Clone)]
struct Part {
    phases: Range<i64>,
    taps: i64,
}

impl Part {
    fn len(&self) -> i64 {
        self.phases.end - self.phases.start
    }
}

impl Phases<'_> {
    /// The parts along each axis that are computed by separate convolutions. A part of an axis that is not divided has
    /// all phases, and kernel elements that are zero.
    ///
    /// Fewer products are computed if more axes are divided, but the columns of a part, `channels` for each phase, fill
    /// fewer vectors. Groups with few channels are strips along channels or planes, which have no columns.
    fn parts(&self, channels: Option<i64>, group: i64) -> Vec<Vec<Part>> {
        let count = self.stride.len();
        let choices = (0..1usize << count).map(|divided| -> Vec<Vec<Part>> {
            (0..count).map(|i| self.parts_along(i, divided >> i & 1 == 1)).collect()
        });
        let mut best = self.whole();
        let is_free = |channels: &i64| group == 1 || *channels >= LANES;
        let Some(channels) = channels.filter(is_free) else { return best };
        let whole = cost(&best, channels);
        let mut least = whole - whole / MIN_GAIN;
        for parts in choices {
            let cost = cost(&parts, channels);
            if cost < least {
                (least, best) = (cost, parts);
            }
        }
        best
    }

    /// All phases of each axis together.
    fn whole(&self) -> Vec<Vec<Part>> {
        (0..self.stride.len()).map(|i| self.parts_along(i, false)).collect()
    }

    /// The parts along axis `i`: one, or those with the most and with one kernel element less.
    fn parts_along(&self, i: usize, is_divided: bool) -> Vec<Part> {
        let (size, stride, reached) = (self.sizes[i], self.stride[i], self.reached[i]);
        let longer = size % stride;
        let most = (size + stride - 1) / stride;
        if !is_divided || longer == 0 || most == 1 {
            return vec![Part { phases: 0..reached, taps: most }];
        }
        vec![Part { phases: 0..longer, taps: most }, Part { phases: longer..stride, taps: most - 1 }]
    }
}

/// The vectors of products for each element of an input channel.
fn cost(parts: &[Vec<Part>], channels: i64) -> i64 {
    let mut combined = vec![(1, 1)];
    for along in parts {
        let with = |(taps, phases): (i64, i64)| {
            along.iter().map(move |part| (taps.saturating_mul(part.taps), phases.saturating_mul(part.len())))
        };
        combined = combined.into_iter().flat_map(with).collect();
    }
    let vectors = |phases: i64| phases.saturating_mul(channels).saturating_add(LANES - 1) / LANES;
    combined
        .into_iter()
        .map(|(taps, phases)| taps.saturating_mul(vectors(phases)))
        .fold(0, i64::saturating_add)
}

/// The outputs of all phases, interleaved.
fn interleaved_phases(
    g: &mut Graph,
    x: Value,
    w: Value,
    windows: &Window,
    phases: &Phases,
    group: i64,
) -> Result<Value> {
    let Phases { reached, stride, .. } = *phases;
    let count = stride.len();
    let seen = windows.checked_view(g, x)?;
    let seen = grouped(g, seen, 1, group)?;

    let parts = phases.parts(g.shape(w)[2].as_i64(), group);
    let y = joined_parts(g, [seen, w], windows, &parts, &mut Vec::new())?;
    let lo = vec![Dim::zero(); g.rank(y)];

    let mut hi = vec![Dim::zero(); g.rank(y)];
    (0..count).for_each(|i| hi[3 + i] = (stride[i] - reached[i]).into());

    let y = g.pad(y, &lo, &hi, Scalar::from_i64(g.dtype(y), 0))?;
    let paired = (0..count).flat_map(|i| [3 + count + i, 3 + i]);
    let y = g.transpose(y, &(0..3).chain(paired).collect::<Vec<_>>())?;
    let axes = g.shape(y).to_vec();
    let mut shape = vec![axes[0].clone(), &axes[1] * &axes[2]];
    shape.extend((0..count).map(|i| &axes[2 * i + 3] * stride[i]));
    let shape = shape.iter().map(|dim| g.facts.simplify(dim)).collect();

    g.reshape(y, shape)
}

/// The outputs `[n, group, m, phases, …, x, …]` of all combinations of `parts`, a list for each spatial axis. Those of
/// the first axes are `chosen`.
fn joined_parts(
    g: &mut Graph,
    operands: [Value; 2],
    windows: &Window,
    parts: &[Vec<Part>],
    chosen: &mut Vec<Part>,
) -> Result<Value> {
    let at = chosen.len();
    if at == parts.len() {
        return part(g, operands, windows, chosen);
    }
    let mut values = Vec::new();
    for part in &parts[at] {
        chosen.push(part.clone());
        values.push(joined_parts(g, operands, windows, parts, chosen)?);
        chosen.pop();
    }
    match values[..] {
        [value] => Ok(value),
        _ => g.concat(&values, 3 + at),
    }
}

/// The outputs of one part along each axis: the contraction of the windows `seen` with the kernels `w` of all phases.
fn part(g: &mut Graph, [mut seen, mut w]: [Value; 2], windows: &Window, parts: &[Part]) -> Result<Value> {
    let count = parts.len();
    for (i, part) in parts.iter().enumerate() {
        let Part { phases, taps } = part;
        // The window is reversed, so phases with fewer taps do not have its first ones.
        let first = Dim::from(windows.kernel[i] - taps);
        seen = g.slice(seen, 3 + count + i, first.clone(), (*taps).into(), 1)?;
        w = g.slice(w, 3 + 2 * i, first, (*taps).into(), 1)?;
        w = g.slice(w, 4 + 2 * i, phases.start.into(), part.len().into(), 1)?;
    }

    let lhs = [b"ngc", &SPACE[..count], &KERNEL[..count]].concat();
    let of_kernel = KERNEL.iter().zip(PHASE).take(count).flat_map(|(tap, phase)| [*tap, *phase]);
    let rhs: Vec<Label> = b"gcm".iter().copied().chain(of_kernel).collect();
    g.contract(seen, &lhs, w, &rhs, &[b"ngm", &PHASE[..count], &SPACE[..count]].concat())
}

/// The pads of a transposed convolution, one element per spatial axis.
struct TransposedPads {
    /// Elements to remove at the start.
    cut_lo: Vec<Dim>,
    /// Elements to remove at the end.
    cut_hi: Vec<Dim>,
    /// Elements to add at the end.
    extra: Vec<Dim>,
}

/// The pads that the attributes describe.
fn transposed_pads(
    g: &Graph,
    n: &OnnxNode,
    x: Value,
    window: &Window,
    stride: &[i64],
) -> Result<TransposedPads> {
    let count = stride.len();
    let list = |name: &str, len: usize| -> Result<Option<Vec<Dim>>> {
        match n.ints(name)? {
            Some(list) if list.len() != len => {
                Err(Error::invalid(format!("`{name}` is {list:?}, but it needs {len} values")))
            }
            list => Ok(list.map(|list| list.into_iter().map(Dim::from).collect())),
        }
    };

    let extra = list("output_padding", count)?.unwrap_or_else(|| vec![Dim::zero(); count]);
    let pads = list("pads", 2 * count)?;

    // Some exporters write all dims instead of the spatial ones.
    let wanted = match n.ints("output_shape")? {
        Some(shape) if shape.len() == count + 2 => Some(shape[2..].iter().copied().map(Dim::from).collect()),
        Some(_) => list("output_shape", count)?,
        None => None,
    };

    let auto = n.string_or("auto_pad", "NOTSET")?;
    let wanted: Vec<Dim> = match (wanted, auto) {
        (Some(wanted), _) => wanted,
        (None, "SAME_UPPER" | "SAME_LOWER") => (0..count).map(|i| &g.shape(x)[i + 2] * stride[i]).collect(),
        (None, "NOTSET" | "" | "VALID") => {
            let pads = pads.filter(|_| auto != "VALID").unwrap_or_else(|| vec![Dim::zero(); 2 * count]);
            let [cut_lo, cut_hi] = [&pads[..count], &pads[count..]].map(<[Dim]>::to_vec);
            return Ok(TransposedPads { cut_lo, cut_hi, extra });
        }
        (None, other) => return Err(Error::invalid(format!("unknown auto_pad `{other}`"))),
    };

    let mut lo = Vec::new();
    let mut hi = Vec::new();
    for i in 0..count {
        let full = (&g.shape(x)[i + 2] - 1) * stride[i] + &extra[i] + window.span(i);
        let total = g.facts.simplify(&(full - &wanted[i]));
        let less = total.floor_div(2);
        let more = total.ceil_div(2);
        let (before, after) = if auto == "SAME_UPPER" { (less, more) } else { (more, less) };
        lo.push(g.facts.simplify(&before));
        hi.push(g.facts.simplify(&after));
    }

    Ok(TransposedPads { cut_lo: lo, cut_hi: hi, extra })
}

/// `x` with `stride - 1` zeros between neighbours along axis `k`.
fn with_gaps(g: &mut Graph, x: Value, k: usize, stride: i64) -> Result<Value> {
    let wide = g.unsqueeze(x, &[k + 1])?;
    let lo = vec![Dim::zero(); g.rank(wide)];
    let mut hi = vec![Dim::zero(); g.rank(wide)];
    hi[k + 1] = (stride - 1).into();
    let wide = g.pad(wide, &lo, &hi, Scalar::from_i64(g.dtype(x), 0))?;
    let mut shape = g.shape(x).to_vec();
    let size = shape[k].clone();
    shape[k] = &size * stride;
    let flat = g.reshape(wide, shape)?;
    g.slice(flat, k, Dim::zero(), (size - 1) * stride + 1, 1)
}
