//! Pooling: reductions over windows, or over all spatial axes.

use crate::{
    error::{Error, Result},
    graph::{Graph, Value, axis},
    import::{
        node::{OnnxNode, axes::larger},
        ops::conv::Window,
    },
    scalar::{BinaryOp, ReduceOp, Scalar, UnaryOp},
};
use num_traits::ToPrimitive;
use symshape::Dim;
use symshape_runtime::DType;

ops! {
    AveragePool 1 average_pool,
    GlobalAveragePool 1 global_average_pool,
    GlobalLpPool 1 global_lp_pool,
    GlobalMaxPool 1 global_max_pool,
    LpPool 1 lp_pool,
    MaxPool 1 max_pool,
}

/// The window of a pooling node, and the extra padding at the end of each axis that `ceil_mode` needs.
fn pool_window(g: &Graph, n: &OnnxNode, x: Value) -> Result<(Window, Vec<Dim>)> {
    let kernel = n
        .ints("kernel_shape")?
        .ok_or_else(|| Error::invalid(format!("{} needs the attribute `kernel_shape`", n.op)))?;
    let count = kernel.len();
    let window = Window::read(g, n, x, kernel)?;

    // Automatic padding needs no extra elements.
    let ceil =
        n.flag("ceil_mode", false)? && matches!(n.string_or("auto_pad", "NOTSET")?, "NOTSET" | "" | "VALID");

    let mut over = vec![Dim::zero(); count];
    for (i, over) in over.iter_mut().enumerate().filter(|_| ceil) {
        let stride = window.stride[i];
        let span = window.span(i);
        let before = &g.shape(x)[i + 2] + &window.lo[i];
        let padded = &before + &window.hi[i];
        let rounded = g.facts.simplify(&((&padded - span).ceil_div(stride) + 1));
        // A window that would start in the padding at the end is dropped.
        let starts = g.facts.simplify(&before.ceil_div(stride));
        let windows =
            if g.facts.prove_le(&rounded, &starts).is_yes() { rounded } else { Dim::min(&rounded, starts) };
        let more = g.facts.simplify(&((windows - 1) * stride + span - padded));
        *over = larger(g, &more, &Dim::zero());
    }

    Ok((window, over))
}

/// `x`, padded with `value` and viewed through the window of the node.
fn padded_windows(g: &mut Graph, x: Value, window: &Window, over: &[Dim], value: Scalar) -> Result<Value> {
    let none = [Dim::zero(), Dim::zero()];
    let mut hi: Vec<Dim> =
        window.hi.iter().zip(over).map(|(hi, over)| g.facts.simplify(&(hi + over))).collect();
    for (i, hi) in hi.iter_mut().enumerate() {
        let padded = g.facts.simplify(&(&g.shape(x)[i + 2] + &window.lo[i] + &*hi));
        if g.facts.prove_le(&window.span(i).into(), &padded).is_yes() {
            continue;
        }
        // The number of windows is `(padded - span) / stride + 1`, where the quotient is rounded towards zero: there is
        // one window in an axis that lacks less than a stride, and none in a shorter one.
        let none = window.span(i) - window.stride[i];
        let count = Dim::min(&Dim::max(&(&padded - none), 0), 1);
        let missing = count * window.stride[i] + none - padded;
        let missing = larger(g, &g.facts.simplify(&missing), &Dim::zero());
        *hi = g.facts.simplify(&(&*hi + missing));
    }

    let padded = g.pad(x, &[&none[..], &window.lo].concat(), &[&none[..], &hi].concat(), value)?;
    window.view(g, padded)
}

/// The smallest ratio of the taps of a window to those of windows along one axis after another.
const MIN_TAPS_RATIO: i64 = 2;

/// `x`, padded with `value` and reduced over the windows of the node: along one axis after another if that takes much
/// fewer steps than all taps of the windows.
fn reduced_windows(
    g: &mut Graph,
    op: ReduceOp,
    x: Value,
    window: &Window,
    over: &[Dim],
    value: Scalar,
) -> Result<Value> {
    if !is_separable(g, x, window) {
        let through = padded_windows(g, x, window, over, value)?;
        return g.reduce(op, through, &window_axes(window), false);
    }
    let mut reduced = x;
    for i in 0..window.kernel.len() {
        let mut of_axis = vec![Dim::zero(); over.len()];
        of_axis[i] = over[i].clone();
        let along = window.along(i);
        let through = padded_windows(g, reduced, &along, &of_axis, value)?;
        reduced = g.reduce(op, through, &window_axes(&along), false)?;
    }
    Ok(reduced)
}

/// Whether reductions along one axis after another take much fewer steps for each result, at the largest sizes. The
/// first ones have as many results along later axes as there are elements.
fn is_separable(g: &Graph, x: Value, window: &Window) -> bool {
    let mut steps = 0i64;
    let mut results = 1i64;
    let mut taps = 1i64;
    for (i, kernel) in window.kernel.iter().enumerate().rev() {
        steps = steps.saturating_add(kernel.saturating_mul(results));
        results = results.saturating_mul(elements_per_window(g, x, window, i));
        taps = taps.saturating_mul(*kernel);
    }
    steps.saturating_mul(MIN_TAPS_RATIO) <= taps
}

/// The ratio of elements to windows along spatial axis `i`, rounded up.
fn elements_per_window(g: &Graph, x: Value, window: &Window, i: usize) -> i64 {
    let size = &g.shape(x)[i + 2];
    let windows = (size + &window.lo[i] + &window.hi[i] - window.span(i)).floor_div(window.stride[i]) + 1;
    let largest = |dim: &Dim| g.facts.bounds(dim).hi.and_then(|hi| hi.to_i64());
    match (largest(size), largest(&g.facts.simplify(&windows))) {
        (Some(size), Some(windows)) if windows > 0 => (size + windows - 1) / windows,
        _ => window.stride[i],
    }
}

/// The axes of the window in a tensor that is viewed through it.
fn window_axes(window: &Window) -> Vec<usize> {
    let count = window.kernel.len();
    (2 + count..2 + 2 * count).collect()
}

/// Mean of each window of `kernel_shape` over the spatial axes of `[N, C, D1, …]`. Padding does not count as elements,
/// unless `count_include_pad=1`. All attributes of ONNX: `auto_pad`, `ceil_mode`, `dilations`, `pads`, `strides`.
///
/// `AveragePool([[[1, 2, 3]]]; kernel_shape=[2]) = [[[1.5, 2.5]]]`
/// `AveragePool([[[1, 2, 3]]]; kernel_shape=[2], pads=[1, 0]) = [[[1, 1.5, 2.5]]]`
/// `AveragePool([[[1, 2, 3]]]; kernel_shape=[2], pads=[1, 0], count_include_pad=1) = [[[0.5, 1.5, 2.5]]]`
/// `AveragePool([[[1, 2, 3]]]; kernel_shape=[2], strides=[2], ceil_mode=1) = [[[1.5, 3]]]`
fn average_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    average(g, n, n.input(0)?)
}

/// The means of the windows of `x` that the node's attributes describe.
pub(crate) fn average(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let (window, over) = pool_window(g, n, x)?;
    let with_pads = n.flag("count_include_pad", false)?;
    let zero = Scalar::from_i64(g.dtype(x), 0);
    let sum = reduced_windows(g, ReduceOp::Sum, x, &window, &over, zero)?;

    let count = counts(g, &g.shape(x)[2..], &g.shape(sum)[2..], &window, with_pads);
    if let Some(count) = count.as_i64() {
        let count = g.number(g.dtype(x), count as f64)?;
        return g.div(sum, count);
    }
    let count = g.index(DType::I64, g.shape(sum)[2..].to_vec(), count)?;
    let count = g.cast(g.dtype(x), count)?;
    if g.dtype(x) != DType::F32 {
        return g.div(sum, count);
    }
    // One quotient for all channels.
    let scale = g.unary(UnaryOp::Recip, count)?;
    g.mul(sum, scale)
}

/// The number of elements that count in the window at `$0, $1, …`.
///
/// Along each axis, these are the taps inside the tensor, or with `with_pads` inside the tensor and its padding. A
/// window of `ceil_mode` may extend beyond both.
fn counts(g: &Graph, size: &[Dim], windows: &[Dim], window: &Window, with_pads: bool) -> Dim {
    let facts = g.index_facts(windows);
    let mut product = Dim::one();
    for (i, size) in size.iter().enumerate() {
        let start = Dim::from(axis(i)) * window.stride[i];
        let taps = window.kernel[i];
        let step = window.dilation[i];

        let (first, end) = if with_pads {
            (Dim::zero(), size + &window.lo[i] + &window.hi[i])
        } else {
            (window.lo[i].clone(), size + &window.lo[i])
        };

        // Tap `t` is at `start + t * step`. `bound` is the first tap that is not before `edge`.
        let bound = |edge: Dim| {
            let tap = facts.simplify(&(edge - &start).ceil_div(step));
            Dim::max(&Dim::min(&tap, taps), 0)
        };

        product = product * (bound(end) - bound(first));
    }

    facts.simplify(&product)
}

/// Mean over all spatial axes of `[N, C, D1, …]`.
///
/// `GlobalAveragePool([[[1, 2, 6]]]) = [[[3]]]`
fn global_average_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    g.mean(x, &space(g, x)?, true)
}

/// Maximum over all spatial axes of `[N, C, D1, …]`.
///
/// `GlobalMaxPool([[[1, 2, 6]]]) = [[[6]]]`
fn global_max_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    g.reduce(ReduceOp::Max, x, &space(g, x)?, true)
}

/// The spatial axes: all after the first two.
pub(crate) fn space(g: &Graph, x: Value) -> Result<Vec<usize>> {
    match g.rank(x) {
        0 | 1 => Err(Error::invalid("global pooling needs at least 2 axes")),
        rank => Ok((2..rank).collect()),
    }
}

/// `(Σ |X|^p)^(1/p)` over all spatial axes of `[N, C, D1, …]`.
///
/// `GlobalLpPool([[[3, -4]]]) = [[[5]]]`
fn global_lp_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let p = n.int_or("p", 2)?;
    let axes = space(g, x)?;
    norm(g, x, &axes, p, true)
}

/// `(Σ |X|^p)^(1/p)` of each window of `kernel_shape`. The other attributes are as in `AveragePool`.
///
/// `LpPool([[[3, -4, 0]]]; kernel_shape=[2], p=2) = [[[5, 4]]]`
fn lp_pool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let p = n.int_or("p", 2)?;
    let (window, over) = pool_window(g, n, x)?;
    let through = padded_windows(g, x, &window, &over, Scalar::from_i64(g.dtype(x), 0))?;
    norm(g, through, &window_axes(&window), p, false)
}

/// `(Σ |x|^p)^(1/p)` over `axes`.
pub(crate) fn norm(g: &mut Graph, x: Value, axes: &[usize], p: i64, keep: bool) -> Result<Value> {
    let dtype = g.dtype(x);
    let powers = match p {
        1 => g.abs(x)?,
        2 => g.mul(x, x)?,
        p => {
            let size = g.abs(x)?;
            let p = g.number(dtype, p as f64)?;
            g.pow(size, p)?
        }
    };

    let sum = g.reduce(ReduceOp::Sum, powers, axes, keep)?;
    match p {
        1 => Ok(sum),
        2 => g.sqrt(sum),
        p => {
            let root = g.number(dtype, 1.0 / p as f64)?;
            g.pow(sum, root)
        }
    }
}

/// Maximum of each window of `kernel_shape`. Output 1 holds the flat index of the maximum in the input. It is
/// row-major, or with `storage_order=1` column-major over the spatial axes. The other attributes are as in
/// `AveragePool`.
///
/// `MaxPool([[[1, 3, 2]]]; kernel_shape=[2]) = [[[3, 3]]]`
/// `MaxPool([[[1, 3, 2]]]; kernel_shape=[4], strides=[2]) = [[[3]]]`
/// `MaxPool([[[1, 3, 2]]]; kernel_shape=[2], pads=[1, 0], strides=[2]) = [[[1, 3]]], i64[[[0, 1]]]`
fn max_pool(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Option<Value>>> {
    let x = n.input(0)?;
    if !n.wants(1) {
        return Ok(vec![Some(maximum(g, n, x)?)]);
    }
    let (window, over) = pool_window(g, n, x)?;
    let column_major = n.flag("storage_order", false)?;
    let lowest = lowest(g.dtype(x));
    let through = padded_windows(g, x, &window, &over, lowest)?;
    let y = g.reduce(ReduceOp::Max, through, &window_axes(&window), false)?;
    let at = positions_of_max(g, x, through, &window, column_major)?;
    Ok(vec![Some(y), Some(at)])
}

/// The maxima of the windows of `x` that the node's attributes describe.
pub(crate) fn maximum(g: &mut Graph, n: &OnnxNode, x: Value) -> Result<Value> {
    let (window, over) = pool_window(g, n, x)?;
    // The order of positions is irrelevant without them.
    n.flag("storage_order", false)?;
    let lowest = lowest(g.dtype(x));
    reduced_windows(g, ReduceOp::Max, x, &window, &over, lowest)
}

/// The smallest value of the element type.
fn lowest(dtype: DType) -> Scalar {
    match dtype {
        _ if dtype.is_float() => Scalar::from_f64(dtype, f64::NEG_INFINITY),
        _ if dtype.is_signed_int() => Scalar::from_bits(dtype, 1 << (8 * dtype.size_bytes() - 1)),
        _ => Scalar::from_i64(dtype, 0),
    }
}

/// Flat indices in `x` of the maxima of `through`, which is `x` viewed through `window`.
fn positions_of_max(
    g: &mut Graph,
    x: Value,
    through: Value,
    window: &Window,
    column_major: bool,
) -> Result<Value> {
    let count = window.kernel.len();
    let taps: i64 = window.kernel.iter().product();
    let mut flat = g.shape(through)[..2 + count].to_vec();
    flat.push(taps.into());

    let flat = g.reshape(through, flat)?;
    let tap = g.argreduce(ReduceOp::Max, flat, 2 + count, false, false)?;
    let windows = g.shape(tap).to_vec();

    let mut strides = vec![Dim::one(); count];
    let size = g.shape(x)[2..].to_vec();
    let order: Vec<usize> = if column_major { (0..count).collect() } else { (0..count).rev().collect() };

    let mut product = Dim::one();
    for i in order {
        strides[i] = product.clone();
        product = product * &size[i];
    }

    // The index of tap (0, 0, …), then the offset of the tap.
    let plane = (Dim::from(axis(0)) * &g.shape(x)[1] + Dim::from(axis(1))) * product;
    let origin = (0..count).fold(plane, |sum, i| {
        sum + (Dim::from(axis(i + 2)) * window.stride[i] - &window.lo[i]) * &strides[i]
    });

    let mut at = g.index(DType::I64, windows, origin)?;
    let mut inner = 1;
    for i in (0..count).rev() {
        let div = g.scalar(Scalar::i64(inner))?;
        let size = g.scalar(Scalar::i64(window.kernel[i]))?;
        let above = g.div(tap, div)?;
        let own = g.binary(BinaryOp::Mod, above, size)?;
        let step = g.dim(DType::I64, g.facts.simplify(&(&strides[i] * window.dilation[i])))?;
        let added = g.mul(own, step)?;
        at = g.add(at, added)?;
        inner *= window.kernel[i];
    }

    Ok(at)
}
