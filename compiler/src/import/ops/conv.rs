//! Convolutions: pad, view through a window, contract.

use crate::{
    error::{Error, Result},
    graph::{Graph, Label, Value, axis},
    import::{
        node::{OnnxNode, axes::larger},
        ops::{activation::logistic, conv_padding::WindowAxis, matmul::centred},
    },
    scalar::Scalar,
    tensor::Tensor,
};
use std::ops::Range;
use symshape::{Dim, Relation};

ops! {
    CausalConvWithState 27 causal_conv_with_state,
    "com.microsoft" CausalConvWithState 1 causal_conv_with_state,
    Conv 1 conv,
    ConvInteger 10 conv_integer,
}

/// Labels of the spatial axes of a contraction.
pub(crate) const SPACE: &[Label] = b"xyzw";
/// Labels of the axes of a kernel.
pub(crate) const KERNEL: &[Label] = b"ijkl";

/// The window that a node's attributes describe. All lists have one element per spatial axis.
pub(crate) struct Window {
    pub(crate) kernel: Vec<i64>,
    pub(crate) stride: Vec<i64>,
    pub(crate) dilation: Vec<i64>,
    pub(crate) lo: Vec<Dim>,
    pub(crate) hi: Vec<Dim>,
}

impl Window {
    /// Reads strides, dilations and pads for windows of size `kernel`. The spatial axes are the axes of `x` after the
    /// first two.
    pub(crate) fn read(g: &Graph, n: &OnnxNode, x: Value, kernel: Vec<i64>) -> Result<Window> {
        let count = kernel.len();
        if g.rank(x) != count + 2 {
            return Err(Error::invalid(format!(
                "a window with {count} axes does not fit an input with {} axes",
                g.rank(x)
            )));
        }

        let stride = positive(n, "strides", count)?;
        let dilation = positive(n, "dilations", count)?;
        if kernel.iter().any(|size| !(1..=1 << 31).contains(size)) {
            return Err(Error::invalid(format!("the window {kernel:?} must have positive sizes")));
        }

        let mut window = Window { kernel, stride, dilation, lo: Vec::new(), hi: Vec::new() };
        (window.lo, window.hi) = window.pads(g, n, x)?;
        Ok(window)
    }

    /// The distance from the first to the last element of a window along spatial axis `i`, plus 1.
    pub(crate) fn span(&self, i: usize) -> i64 {
        (self.kernel[i] - 1) * self.dilation[i] + 1
    }

    /// The part of the window along spatial axis `i`: it has one element along the others.
    pub(crate) fn along(&self, i: usize) -> Window {
        let count = self.kernel.len();
        let mut along = Window {
            kernel: vec![1; count],
            stride: vec![1; count],
            dilation: vec![1; count],
            lo: vec![Dim::zero(); count],
            hi: vec![Dim::zero(); count],
        };
        (along.kernel[i], along.stride[i], along.dilation[i]) =
            (self.kernel[i], self.stride[i], self.dilation[i]);
        (along.lo[i], along.hi[i]) = (self.lo[i].clone(), self.hi[i].clone());
        along
    }

    fn pads(&self, g: &Graph, n: &OnnxNode, x: Value) -> Result<(Vec<Dim>, Vec<Dim>)> {
        let count = self.kernel.len();
        let given = n.ints("pads")?;

        let same_upper = match n.string_or("auto_pad", "NOTSET")? {
            "NOTSET" | "" => {
                let pads = given.unwrap_or_else(|| vec![0; 2 * count]);
                if pads.len() != 2 * count {
                    return Err(Error::invalid(format!(
                        "{} pads are given for {count} axes; each axis needs 2",
                        pads.len()
                    )));
                }
                let dims: Vec<Dim> = pads.into_iter().map(Dim::from).collect();
                return Ok((dims[..count].to_vec(), dims[count..].to_vec()));
            }
            "VALID" => return Ok((vec![Dim::zero(); count], vec![Dim::zero(); count])),
            "SAME_UPPER" => true,
            "SAME_LOWER" => false,
            other => return Err(Error::invalid(format!("unknown auto_pad `{other}`"))),
        };

        let mut lo = Vec::new();
        let mut hi = Vec::new();
        for i in 0..count {
            let size = &g.shape(x)[i + 2];
            let windows = size.ceil_div(self.stride[i]);
            let total = g.facts.simplify(&((windows - 1) * self.stride[i] + self.span(i) - size));
            let total = larger(g, &total, &Dim::zero());
            let less = total.floor_div(2);
            let more = total.ceil_div(2);
            let (before, after) = if same_upper { (less, more) } else { (more, less) };
            lo.push(g.facts.simplify(&before));
            hi.push(g.facts.simplify(&after));
        }

        Ok((lo, hi))
    }

    /// `x` with its spatial axes padded with `value`.
    pub(crate) fn pad(&self, g: &mut Graph, x: Value, value: Scalar) -> Result<Value> {
        let none = [Dim::zero(), Dim::zero()];
        g.pad(x, &[&none[..], &self.lo].concat(), &[&none[..], &self.hi].concat(), value)
    }

    /// Drops the taps that see nothing but padding wherever the window is on `x`: their products are zeros. Returns the
    /// kernels `w` without them.
    ///
    /// Kernels that are not constant remain: they may contain infinities, whose products with zeros are NaN.
    fn drop_idle_taps(&mut self, g: &mut Graph, x: Value, w: Value) -> Result<Value> {
        let axis = |i: usize| WindowAxis {
            size: &g.shape(x)[i + 2],
            taps: self.kernel[i],
            stride: self.stride[i],
            dilation: self.dilation[i],
            lo: &self.lo[i],
            hi: &self.hi[i],
        };
        let kept: Vec<Range<i64>> = (0..self.kernel.len()).map(|i| axis(i).seeing_taps(&g.facts)).collect();
        let has_idle = kept.iter().zip(&self.kernel).any(|(kept, taps)| kept.end - kept.start != *taps);
        if !has_idle || !g.as_constant(w).is_some_and(Tensor::is_finite) {
            return Ok(w);
        }

        let mut w = w;
        for (i, Range { start, end }) in kept.into_iter().enumerate() {
            w = g.slice(w, i + 2, start.into(), (end - start).into(), 1)?;
            let after = self.kernel[i] - end;
            self.lo[i] = g.facts.simplify(&(&self.lo[i] - start * self.dilation[i]));
            self.hi[i] = g.facts.simplify(&(&self.hi[i] - after * self.dilation[i]));
            self.kernel[i] = end - start;
        }
        Ok(w)
    }

    /// [`Window::view`] of a tensor, which is required to be at least as large as the window.
    pub(crate) fn checked_view(&self, g: &mut Graph, x: Value) -> Result<Value> {
        for i in 0..self.kernel.len() {
            let size = g.shape(x)[i + 2].clone();
            let span = self.span(i);
            g.require(
                Relation::le(span, &size),
                &format!("axis {} has size {size}, its window {span}", i + 2),
            )?;
        }
        self.view(g, x)
    }

    /// `x`, viewed through the window: its axes, then those of the window.
    pub(crate) fn view(&self, g: &mut Graph, x: Value) -> Result<Value> {
        let axes: Vec<usize> = (2..2 + self.kernel.len()).collect();
        g.window(x, &axes, &self.kernel, &self.stride, &self.dilation)
    }
}

/// An attribute with one positive integer for each of `count` axes, by default 1.
pub(crate) fn positive(n: &OnnxNode, name: &str, count: usize) -> Result<Vec<i64>> {
    let list = n.ints(name)?.unwrap_or_else(|| vec![1; count]);
    if list.len() == count && list.iter().all(|value| (1..=1 << 31).contains(value)) {
        Ok(list)
    } else {
        Err(Error::invalid(format!("`{name}` is {list:?}, but it needs {count} positive values")))
    }
}

/// The spatial dims of the kernels `w`. They must be constants and equal to `kernel_shape`, if that is given.
pub(crate) fn kernel_of(g: &Graph, n: &OnnxNode, w: Value) -> Result<Vec<i64>> {
    let dims = g.shape(w).get(2..).unwrap_or_default();
    let kernel: Option<Vec<i64>> = dims.iter().map(Dim::as_i64).collect();
    let kernel = kernel.ok_or_else(|| Error::unsupported("a kernel whose size is not a constant"))?;

    match n.ints("kernel_shape")? {
        Some(declared) if declared != kernel => {
            Err(Error::invalid(format!("kernel_shape is {declared:?}, but the weights have {kernel:?}")))
        }
        _ if kernel.is_empty() || kernel.len() > SPACE.len() => {
            Err(Error::unsupported(format!("a convolution over {} axes", kernel.len())))
        }
        _ => Ok(kernel),
    }
}

/// Convolution of `X`, `[N, C, D1, …]`, with the kernels `W`, `[M, C/group, k1, …]`, plus the optional bias `B`, `[M]`.
/// The result is `[N, M, …]`. All attributes of ONNX: `auto_pad`, `dilations`, `group`, `kernel_shape`, `pads`,
/// `strides`.
///
/// Limits: kernel sizes are constants; 1 to 4 spatial axes.
///
/// `Conv([[[1, 2, 3]]], [[[1, 10]]]) = [[[21, 32]]]`
/// `Conv([[[1, 2, 3]]], [[[1, 10]]], [5]; pads=[1, 0], strides=[2]) = [[[15, 37]]]`
/// `Conv([[[1, 2], [3, 4]]], [[[1]], [[10]]]; group=2) = [[[1, 2], [30, 40]]]`
fn conv(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    convolution(g, n, n.input(0)?, n.input(1)?)
}

/// The convolution of `x` with `w` that the node's attributes describe, plus the bias in input 2.
pub(crate) fn convolution(g: &mut Graph, n: &OnnxNode, x: Value, w: Value) -> Result<Value> {
    let mut window = Window::read(g, n, x, kernel_of(g, n, w)?)?;
    let w = window.drop_idle_taps(g, x, w)?;
    let zero = Scalar::from_i64(g.dtype(x), 0);
    let x = window.pad(g, x, zero)?;
    let y = convolve(g, x, w, &window, n.int_or("group", 1)?)?;
    with_bias(g, y, n.optional(2))
}

/// Adds the bias, one element per channel.
pub(crate) fn with_bias(g: &mut Graph, y: Value, bias: Option<Value>) -> Result<Value> {
    let Some(bias) = bias else { return Ok(y) };
    let bias = g.unsqueeze(bias, &(1..g.rank(y) - 1).collect::<Vec<_>>())?;
    g.add(y, bias)
}

/// The contraction of the padded `x`, viewed through the window, with the kernels `w`. Groups are a batch label.
pub(crate) fn convolve(g: &mut Graph, x: Value, w: Value, window: &Window, group: i64) -> Result<Value> {
    let count = window.kernel.len();
    if g.rank(w) != count + 2 {
        return Err(Error::invalid(format!(
            "the kernel has {} axes, the input {count} spatial axes",
            g.rank(w)
        )));
    }

    in_groups(g, w, group)?;
    let seen = window.checked_view(g, x)?;
    let space = &SPACE[..count];
    let kernel = &KERNEL[..count];
    if group == 1 {
        let lhs = [b"nc", space, kernel].concat();
        let rhs = [b"mc", kernel].concat();
        return g.contract(seen, &lhs, w, &rhs, &[b"nm", space].concat());
    }

    if let Some(y) = scaled_channels(g, seen, w, window, group)? {
        return Ok(y);
    }
    let seen = grouped(g, seen, 1, group)?;
    let w = grouped(g, w, 0, group)?;

    let lhs = [b"ngc", space, kernel].concat();
    let rhs = [b"gmc", kernel].concat();
    let y = g.contract(seen, &lhs, w, &rhs, &[b"ngm", space].concat())?;
    let mut shape = g.shape(y).to_vec();
    let channels = shape.remove(1) * &shape[1];
    shape[1] = g.facts.simplify(&channels);

    g.reshape(y, shape)
}

/// The product of each channel with its only weight, if each group has one channel and windows one element. It is a
/// sum of one product, and needs no certain order of axes.
fn scaled_channels(
    g: &mut Graph,
    seen: Value,
    w: Value,
    window: &Window,
    group: i64,
) -> Result<Option<Value>> {
    let count = window.kernel.len();
    let is_one = |dim: &Dim, one: i64| dim.as_i64() == Some(one);
    let is_scale = is_one(&g.shape(w)[0], group)
        && is_one(&g.shape(w)[1], 1)
        && is_one(&g.shape(seen)[1], group)
        && window.kernel.iter().all(|size| *size == 1);
    if !is_scale {
        return Ok(None);
    }
    let shape = g.shape(seen)[..2 + count].to_vec();
    let seen = g.reshape(seen, shape)?;
    let w = g.reshape(w, [vec![group.into()], vec![Dim::one(); count]].concat())?;
    g.mul(seen, w).map(Some)
}

/// Requires that `group` divides the number of kernels.
pub(crate) fn in_groups(g: &mut Graph, w: Value, group: i64) -> Result<()> {
    if !(1..=1 << 31).contains(&group) {
        return Err(Error::invalid(format!("`group` must be positive, but it is {group}")));
    }
    let kernels = g.shape(w)[0].clone();
    g.require(Relation::divides(group, &kernels), &format!("{kernels} kernels in {group} groups"))
}

/// `x` with axis `k` split into the group and the index in the group.
pub(crate) fn grouped(g: &mut Graph, x: Value, k: usize, group: i64) -> Result<Value> {
    let mut shape = g.shape(x).to_vec();
    let each = g.facts.simplify(&shape[k].floor_div(group));
    shape.splice(k..=k, [group.into(), each]);
    g.reshape(x, shape)
}

/// Convolution of 8-bit integers after subtraction of their zero points, exact in 32 bits. `x_zero_point` (input 2) is
/// a scalar. `w_zero_point` (input 3) is a scalar or has one element per kernel.
///
/// Limits: as `Conv`.
///
/// `ConvInteger(u8[[[2, 3, 4]]], u8[[[1, 10]]], u8:1) = i32[[[21, 32]]]`
fn conv_integer(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let w = n.input(1)?;
    let window = Window::read(g, n, x, kernel_of(g, n, w)?)?;
    let x = centred(g, x, n.optional(2), 0)?;
    let w = centred(g, w, n.optional(3), 0)?;
    let x = window.pad(g, x, Scalar::from_i64(g.dtype(x), 0))?;
    convolve(g, x, w, &window, n.int_or("group", 1)?)
}

/// A depthwise convolution of `[N, C, T]`, where element `t` depends on elements up to `t` only. The state (input 3)
/// holds the elements before the first, by default zeros. Output 1 is the state for the next call.
///
/// Limits: the kernel size is a constant; with ONNX Runtime's attributes `ndim`, `dilation`, `channels_last` and
/// `state_window` only at their defaults.
///
/// `CausalConvWithState([[[1, 2]]], [[[10, 1]]]) = [[[1, 12]]], [[[2]]]`
fn causal_conv_with_state(g: &mut Graph, n: &OnnxNode) -> Result<Vec<Value>> {
    let x = n.input(0)?;
    let w = n.input(1)?;
    for (name, default) in [("ndim", 1), ("dilation", 1), ("channels_last", 0), ("state_window", 0)] {
        if n.int_or(name, default)? != default {
            return Err(Error::unsupported(format!("{} with {name} other than {default}", n.op)));
        }
    }
    if g.rank(x) != 3 || g.rank(w) != 3 {
        return Err(Error::invalid("input and weights must have 3 axes"));
    }

    let shape = g.shape(x).to_vec();
    let taps = g.shape(w)[2].clone();
    let taps = taps.as_i64().ok_or_else(|| Error::unsupported("a kernel whose size is not a constant"))?;

    let padded = match n.optional(3) {
        Some(state) => g.concat(&[state, x], 2)?,
        None => {
            let lo = [Dim::zero(), Dim::zero(), (taps - 1).into()];
            g.pad(x, &lo, &[Dim::zero(), Dim::zero(), Dim::zero()], Scalar::from_i64(g.dtype(x), 0))?
        }
    };

    let windows = vec![shape[0].clone(), shape[1].clone(), shape[2].clone(), taps.into()];
    let index = vec![axis(0).into(), axis(1).into(), Dim::from(axis(2)) + Dim::from(axis(3))];
    let windows = g.view(padded, windows, index)?;
    let w = g.squeeze(w, &[1])?;

    let mut y = g.contract(windows, b"nctk", w, b"ck", b"nct")?;
    if let Some(bias) = n.optional(2) {
        let bias = g.unsqueeze(bias, &[1])?;
        y = g.add(y, bias)?;
    }

    match n.string_or("activation", "none")? {
        "none" => {}
        "silu" | "swish" => {
            let gate = logistic(g, y)?;
            y = g.mul(y, gate)?;
        }
        other => return Err(Error::invalid(format!("unknown activation `{other}`"))),
    }

    let state = g.slice(padded, 2, shape[2].clone(), (taps - 1).into(), 1)?;
    Ok(vec![y, state])
}
