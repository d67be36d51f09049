//! Inverses of windows: elements are written or added to the positions that windows read them from.

use crate::{
    error::{Error, Result},
    graph::{Coord, Graph, Op, ScatterMode, Value, axis},
    import::{node::OnnxNode, ops::shared::arithmetic::int},
    scalar::{BinaryOp, CompareOp, ReduceOp, Scalar},
};
use symshape::{Dim, Relation};
use symshape_runtime::DType;

ops! {
    Col2Im 18 col2im,
    MaxUnpool 9 max_unpool,
}

/// Zeros, except at the flat indices in input 1, as `MaxPool` returns them, which hold the elements of the input. The
/// shape follows from `kernel_shape`, `strides` and `pads`, or is input 2.
///
/// `MaxUnpool([[[5]]], i64[[[1]]]; kernel_shape=[2], strides=[2]) = [[[0, 5]]]`
fn max_unpool(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let at = n.input(1)?;

    let kernel = n
        .ints("kernel_shape")?
        .ok_or_else(|| Error::invalid("MaxUnpool needs the attribute `kernel_shape`"))?;
    let count = kernel.len();
    let strides = n.ints("strides")?.unwrap_or_else(|| vec![1; count]);
    let pads = n.ints("pads")?.unwrap_or_else(|| vec![0; 2 * count]);

    let shape = g.shape(x).to_vec();
    if shape.len() != count + 2 || strides.len() != count || pads.len() != 2 * count {
        return Err(Error::invalid("kernel_shape, strides and pads don't fit the input"));
    }

    let mut pooled = shape[..2].to_vec();
    for k in 0..count {
        let all = (&shape[2 + k] - 1) * strides[k] + kernel[k];
        pooled.push(g.facts.simplify(&(all - pads[k] - pads[count + k])));
    }

    let total = g.facts.simplify(&Dim::product(pooled.iter().cloned()));
    let zero = g.scalar(Scalar::from_i64(g.dtype(x), 0))?;
    let zeros = g.broadcast_to(zero, &[total])?;
    let elems = g.facts.simplify(&Dim::product(shape.iter().cloned()));
    let flat = g.reshape(x, vec![elems.clone()])?;

    // Only as many indices are used as there are elements.
    let places = g.facts.simplify(&Dim::product(g.shape(at).iter().cloned()));
    g.require(Relation::le(&elems, &places), "places of MaxUnpool")?;

    let at = g.reshape(at, vec![places])?;
    let at = g.slice(at, 0, Dim::zero(), elems, 1)?;
    let coords = vec![Coord::Load { operand: 2, at: vec![axis(0).into()] }];
    let filled = g.push(Op::Scatter { coords, mode: ScatterMode::Assign }, &[zeros, flat, at])?;

    let whole = g.reshape(filled, pooled.clone())?;
    let Some(_) = n.optional(2) else { return Ok(whole) };
    let sizes = n.elements(g, 2)?;

    let mut hi = Vec::new();
    for (k, (size, have)) in sizes.into_iter().zip(&pooled).enumerate() {
        let size = n.size(g, size, k, None)?;
        hi.push(g.facts.simplify(&(size - have)));
    }

    g.pad(whole, &vec![Dim::zero(); hi.len()], &hi, Scalar::from_i64(g.dtype(x), 0))
}

/// The windows of `Col2Im` in an image.
struct ImageWindows<'a> {
    /// Size of the image.
    image: &'a [Dim],
    /// Size of a window.
    kernel: &'a [Value],
    dilations: Vec<i64>,
    strides: Vec<i64>,
    /// Pads at the start of all axes, then at their end.
    pads: Vec<i64>,
}

impl ImageWindows<'_> {
    /// The row-major position in the image of each element of each window, `[taps, windows]`, and the image's size.
    ///
    /// The position of a padding element is the size of the image.
    fn places(&self, g: &mut Graph, taps: Dim, windows: Dim, one: Value) -> Result<(Value, Dim)> {
        let count = self.image.len();
        let mut tap = g.index(DType::I64, vec![taps, Dim::one()], axis(0).into())?;
        let mut column = g.index(DType::I64, vec![Dim::one(), windows], axis(1).into())?;
        let yes = g.scalar(Scalar::bool(true))?;

        let mut flat = int(g, 0)?;
        let mut inside = yes;
        let mut stride = Dim::one();

        // The last axis runs fastest, in the window and over the windows' positions.
        for k in (0..count).rev() {
            let size = g.max(self.kernel[k], one)?;
            let offset = g.binary(BinaryOp::Mod, tap, size)?;
            tap = g.div(tap, size)?;
            let reach = g.sub(size, one)?;

            let dilation = int(g, self.dilations[k])?;
            let reach = g.mul(reach, dilation)?;
            let last = &self.image[k] + self.pads[k] + self.pads[count + k] - 1;
            let last = g.dim(DType::I64, last)?;
            let free = g.sub(last, reach)?;

            let step = int(g, self.strides[k])?;
            let places = g.div(free, step)?;
            let places = g.add(places, one)?;
            let places = g.max(places, one)?;
            let which = g.binary(BinaryOp::Mod, column, places)?;
            column = g.div(column, places)?;

            let start = g.mul(which, step)?;
            let way = g.mul(offset, dilation)?;
            let at = g.add(start, way)?;
            let before = int(g, self.pads[k])?;
            let at = g.sub(at, before)?;

            let zero = int(g, 0)?;
            let end = g.dim(DType::I64, self.image[k].clone())?;
            let above = g.compare(CompareOp::Ge, at, zero)?;
            let below = g.compare(CompareOp::Lt, at, end)?;
            let within = g.and(above, below)?;
            inside = g.and(inside, within)?;

            let weight = g.dim(DType::I64, stride.clone())?;
            let part = g.mul(at, weight)?;
            flat = g.add(flat, part)?;
            stride = g.facts.simplify(&(stride * &self.image[k]));
        }

        let end = g.dim(DType::I64, stride.clone())?;
        let flat = g.select(inside, flat, end)?;
        Ok((flat, stride))
    }
}

/// Columns `[N, C·taps, L]`, added at the positions of an image from which windows of `block_shape` (input 2) read
/// them. `image_shape` (input 1) is the size of the image.
///
/// `Col2Im([[[1, 2], [3, 4]]], i64[3], i64[2]) = [[[1, 5, 4]]]`
fn col2im(g: &mut Graph, n: &OnnxNode) -> Result<Value> {
    let x = n.input(0)?;
    let sizes = n.elements(g, 1)?;
    let kernel = n.elements(g, 2)?;
    let count = sizes.len();

    let list = |name: &str, default: i64, len: usize| -> Result<Vec<i64>> {
        let list = n.ints(name)?.unwrap_or_else(|| vec![default; len]);
        if list.len() == len {
            Ok(list)
        } else {
            Err(Error::invalid(format!("`{name}` has the wrong length {}", list.len())))
        }
    };

    let dilations = list("dilations", 1, count)?;
    let strides = list("strides", 1, count)?;
    let pads = list("pads", 0, 2 * count)?;
    let shape = g.shape(x).to_vec();
    if kernel.len() != count || shape.len() != 3 || count == 0 {
        return Err(Error::invalid("image_shape and block_shape don't fit the input"));
    }

    let mut image = Vec::new();
    for (k, size) in sizes.into_iter().enumerate() {
        image.push(n.size(g, size, 2 + k, None)?);
    }

    let one = int(g, 1)?;
    let mut taps = one;
    for size in &kernel {
        taps = g.mul(taps, *size)?;
    }

    let channels = match g.contents(taps) {
        Some([taps]) => {
            let taps = taps.clone();
            g.facts.simplify(&shape[1].floor_div(taps))
        }
        _ => {
            let rows = g.dim(DType::I64, shape[1].clone())?;
            let taps = g.max(taps, one)?;
            let channels = g.div(rows, taps)?;
            n.size(g, channels, 1, None)?
        }
    };

    let each = g.facts.simplify(&shape[1].floor_div(&channels));
    let columns = shape[2].clone();
    let x = g.reshape(x, vec![shape[0].clone(), channels.clone(), each.clone(), columns.clone()])?;
    let windows = ImageWindows { image: &image, kernel: &kernel, dilations, strides, pads };
    let (flat, stride) = windows.places(g, each, columns, one)?;

    let zero = g.scalar(Scalar::from_i64(g.dtype(x), 0))?;
    let zeros =
        g.broadcast_to(zero, &[shape[0].clone(), channels.clone(), g.facts.simplify(&(&stride + 1))])?;

    let at = vec![axis(2).into(), axis(3).into()];
    let coords = vec![Coord::At(axis(0).into()), Coord::At(axis(1).into()), Coord::Load { operand: 2, at }];
    let mode = ScatterMode::Combine(ReduceOp::Sum);
    let summed = g.push(Op::Scatter { coords, mode }, &[zeros, x, flat])?;
    let summed = g.slice(summed, 2, Dim::zero(), stride, 1)?;

    g.reshape(summed, [&[shape[0].clone(), channels], &image[..]].concat())
}
