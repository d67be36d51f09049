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
use symshape::Dim;

ops! {
    ConvTranspose 1 conv_transpose,
}

/// Labels of the phases of an output along each axis.
const PHASE: &[Label] = b"pqrs";

/// Transposed convolution of `X`, `[N, C, …]`, with the kernels `W`, `[C, M/group, …]`, plus the optional bias `B`.
///
/// Along each axis, `Y[stride·a + r] = Σ X[a - j] W[stride·j + r]`. The outputs of one phase `r` are a convolution with
/// every `stride`-th element of the reversed kernel. Kernels are padded with zeros to a multiple of the stride.
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

    let phases = Phases { reached: &reached, stride: &stride };
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
    /// Phases that the kernel reaches. The others are zero.
    reached: &'a [i64],
    /// All phases.
    stride: &'a [i64],
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
    let Phases { reached, stride } = *phases;
    let count = stride.len();
    let seen = windows.checked_view(g, x)?;
    let seen = grouped(g, seen, 1, group)?;

    let paired = |one: &[Label], other: &[Label]| -> Vec<Label> {
        one.iter().zip(other).take(count).flat_map(|(one, other)| [*one, *other]).collect()
    };
    let lhs = [b"ngc", &SPACE[..count], &KERNEL[..count]].concat();
    let rhs = [&b"gcm"[..], &paired(KERNEL, PHASE)].concat();
    let y = g.contract(seen, &lhs, w, &rhs, &[&b"ngm"[..], &paired(SPACE, PHASE)].concat())?;
    let lo = vec![Dim::zero(); g.rank(y)];

    let mut hi = vec![Dim::zero(); g.rank(y)];
    (0..count).for_each(|i| hi[2 * i + 4] = (stride[i] - reached[i]).into());

    let y = g.pad(y, &lo, &hi, Scalar::from_i64(g.dtype(y), 0))?;
    let axes = g.shape(y).to_vec();
    let mut shape = vec![axes[0].clone(), &axes[1] * &axes[2]];
    shape.extend((0..count).map(|i| &axes[2 * i + 3] * stride[i]));
    let shape = shape.iter().map(|dim| g.facts.simplify(dim)).collect();

    g.reshape(y, shape)
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
