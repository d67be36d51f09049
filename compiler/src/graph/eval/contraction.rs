//! Contraction: every element is one dot product of a row of each operand.
//!
//! The operand with fewer elements is copied into rows once. The other is copied one row at a time, each row once, so
//! that a convolution's window view (at least nine times its input) is never copied as a whole.

use super::{
    index::{each, strides},
    rounded,
    rounding::Rounding,
    writer::tensor,
};
use crate::{
    error::Result,
    graph::Label,
    scalar::{Precision, Scalar, precision::multiply_parts},
    tensor::Tensor,
};
use std::collections::BTreeMap;
use symshape_runtime::DType;

pub(super) fn contraction(
    [lhs, rhs, out]: [&[Label]; 3],
    (dtype, precision): (DType, Precision),
    operands: &[Tensor],
    shape: &[usize],
    rounding: Rounding,
) -> Result<Tensor> {
    let is_rounded = precision == Precision::Int8 && dtype == DType::F32;
    let converted =
        if is_rounded { Some(rounded::operands([lhs, rhs], out, operands, rounding)?) } else { None };
    let operands = converted.as_ref().map_or(operands, |operands| &operands[..]);
    let a = (&operands[0], lhs);
    let b = (&operands[1], rhs);
    let (streamed, copied) = if a.0.elems() < b.0.elems() { (b, a) } else { (a, b) };
    let space = Space::new(streamed, copied, out, shape)?;

    let is_f32 = dtype == DType::F32;
    let bytes = if !dtype.is_float() {
        space.dot_products::<i64>(streamed.0, copied.0, dtype)
    } else if precision == Precision::Bf16x3 && is_f32 {
        space.dot_products::<Bf16Parts<true>>(streamed.0, copied.0, dtype)
    } else if precision == Precision::Bf16 && is_f32 {
        space.dot_products::<Bf16Parts<false>>(streamed.0, copied.0, dtype)
    } else if rounding == Rounding::Each && dtype != DType::F64 {
        space.dot_products::<f32>(streamed.0, copied.0, dtype)
    } else {
        space.dot_products::<f64>(streamed.0, copied.0, dtype)
    };
    tensor(dtype, shape, bytes)
}

/// The type in which a dot product is accumulated.
trait Accumulator: Copy + Default {
    /// Reads one element of a tensor of this type from its bytes.
    fn reader(dtype: DType) -> fn(&Tensor, usize) -> Self;
    fn multiply_add(self, x: Self, y: Self) -> Self;
    fn scalar(self, dtype: DType) -> Scalar;
}

impl Accumulator for f64 {
    fn reader(dtype: DType) -> fn(&Tensor, usize) -> f64 {
        match dtype {
            DType::F32 => |x, idx| {
                let bytes: [u8; 4] = x.bytes()[4 * idx..][..4].try_into().unwrap_or_default();
                f64::from(f32::from_le_bytes(bytes))
            },
            _ => |x, idx| x.get(idx).as_f64(),
        }
    }

    fn multiply_add(self, x: f64, y: f64) -> f64 {
        self + x * y
    }

    fn scalar(self, dtype: DType) -> Scalar {
        Scalar::from_f64(dtype, self)
    }
}

/// The type for floats of at most 32 bits if every step is rounded.
impl Accumulator for f32 {
    fn reader(_: DType) -> fn(&Tensor, usize) -> f32 {
        |x, idx| x.get(idx).as_f64() as f32
    }

    fn multiply_add(self, x: f32, y: f32) -> f32 {
        self + x * y
    }

    fn scalar(self, dtype: DType) -> Scalar {
        Scalar::from_f64(dtype, self.into())
    }
}

/// An `f32` as its high and low bf16 parts, or as the high part alone. The accumulator is stored in the first element.
#[derive(Clone, Copy, Default)]
struct Bf16Parts<const BOTH: bool>([f64; 2]);

impl<const BOTH: bool> Accumulator for Bf16Parts<BOTH> {
    fn reader(_: DType) -> fn(&Tensor, usize) -> Self {
        |x, idx| {
            let precision = if BOTH { Precision::Bf16x3 } else { Precision::Bf16 };
            Bf16Parts(precision.operand_parts(x.get(idx).as_f64() as f32))
        }
    }

    fn multiply_add(self, x: Self, y: Self) -> Self {
        Bf16Parts([self.0[0] + multiply_parts(x.0, y.0), 0.0])
    }

    fn scalar(self, dtype: DType) -> Scalar {
        Scalar::from_f64(dtype, self.0[0])
    }
}

impl Accumulator for i64 {
    fn reader(_: DType) -> fn(&Tensor, usize) -> i64 {
        |x, idx| x.get(idx).as_i64()
    }

    fn multiply_add(self, x: i64, y: i64) -> i64 {
        self.wrapping_add(x.wrapping_mul(y))
    }

    fn scalar(self, dtype: DType) -> Scalar {
        Scalar::from_i64(dtype, self)
    }
}

/// Flat positions, in elements, that the loops visit.
struct Space {
    /// For each index of the labels that all three share: positions in the streamed operand, the copied one, the
    /// result.
    batch: Vec<[usize; 3]>,
    /// For each row of the streamed operand within a batch: its position and that of the result.
    streamed_rows: Vec<[usize; 2]>,
    /// The same for the copied operand.
    copied_rows: Vec<[usize; 2]>,
    /// For each summed index: positions in both operands.
    summed: Vec<[usize; 2]>,
}

impl Space {
    fn new(
        streamed: (&Tensor, &[Label]),
        copied: (&Tensor, &[Label]),
        out: &[Label],
        shape: &[usize],
    ) -> Result<Space> {
        let steps = |labels: &[Label], shape: &[usize]| -> BTreeMap<Label, usize> {
            labels.iter().copied().zip(strides(shape)).collect()
        };
        let in_streamed = streamed.1;
        let in_copied = copied.1;
        let steps =
            [steps(in_streamed, streamed.0.shape()), steps(in_copied, copied.0.shape()), steps(out, shape)];

        let sizes: BTreeMap<Label, usize> = (in_streamed.iter().zip(streamed.0.shape()))
            .chain(in_copied.iter().zip(copied.0.shape()))
            .map(|(label, size)| (*label, *size))
            .collect();

        let pick = |keep: &dyn Fn(&Label) -> bool, from: &[Label]| -> Vec<Label> {
            from.iter().copied().filter(|label| keep(label)).collect()
        };
        let both = |label: &Label| in_streamed.contains(label) && in_copied.contains(label);
        let shared = pick(&both, out);
        let rows = pick(&|label| in_streamed.contains(label) && !both(label), out);
        let columns = pick(&|label| in_copied.contains(label) && !both(label), out);
        let summed = pick(&|label| !out.contains(label), in_streamed);

        Ok(Space {
            batch: positions(&shared, &sizes, [&steps[0], &steps[1], &steps[2]])?,
            streamed_rows: positions(&rows, &sizes, [&steps[0], &steps[2]])?,
            copied_rows: positions(&columns, &sizes, [&steps[1], &steps[2]])?,
            summed: positions(&summed, &sizes, [&steps[0], &steps[1]])?,
        })
    }

    /// All dot products as the bytes of the result.
    fn dot_products<T: Accumulator>(&self, streamed: &Tensor, copied: &Tensor, dtype: DType) -> Vec<u8> {
        let width = dtype.size_bytes();
        let elems = self.batch.len() * self.streamed_rows.len() * self.copied_rows.len();
        let mut bytes = vec![0; elems * width];
        let read_x = T::reader(streamed.dtype());
        let read_y = T::reader(copied.dtype());
        let mut x = vec![T::default(); self.summed.len()];
        let mut panels =
            vec![[T::default(); COLUMNS]; self.summed.len() * self.copied_rows.len().div_ceil(COLUMNS)];

        for [x_batch, y_batch, out_batch] in &self.batch {
            for (j, [from, _]) in self.copied_rows.iter().enumerate() {
                let panel = &mut panels[j / COLUMNS * x.len()..][..x.len()];
                for (interleaved, [_, step]) in panel.iter_mut().zip(&self.summed) {
                    interleaved[j % COLUMNS] = read_y(copied, y_batch + from + step);
                }
            }

            for [x_row, out_row] in &self.streamed_rows {
                for (slot, [step, _]) in x.iter_mut().zip(&self.summed) {
                    *slot = read_x(streamed, x_batch + x_row + step);
                }

                for (p, columns) in self.copied_rows.chunks(COLUMNS).enumerate() {
                    let accumulators = dot(&x, &panels[p * x.len()..][..x.len()]);
                    for ([_, column], accumulator) in columns.iter().zip(accumulators) {
                        let at = (out_batch + out_row + column) * width;
                        let bits = accumulator.scalar(dtype).bits().to_le_bytes();
                        bytes[at..at + width].copy_from_slice(&bits[..width]);
                    }
                }
            }
        }
        bytes
    }
}

/// The position of each index of `labels` for each of `steps`, in row-major order.
fn positions<const N: usize>(
    labels: &[Label],
    sizes: &BTreeMap<Label, usize>,
    steps: [&BTreeMap<Label, usize>; N],
) -> Result<Vec<[usize; N]>> {
    let shape: Vec<usize> = labels.iter().map(|label| sizes[label]).collect();
    let mut all = Vec::with_capacity(shape.iter().product());
    each(&shape, |at| {
        let flat =
            |steps: &BTreeMap<Label, usize>| at.iter().zip(labels).map(|(i, label)| i * steps[label]).sum();
        all.push(steps.map(flat));
        Ok(())
    })?;
    Ok(all)
}

/// The number of rows of the copied operand that are multiplied with the streamed row at once.
const COLUMNS: usize = 16;

/// `x` times a panel of interleaved rows.
fn dot<T: Accumulator>(x: &[T], panel: &[[T; COLUMNS]]) -> [T; COLUMNS] {
    let mut accumulators = [T::default(); COLUMNS];
    for (x, interleaved) in x.iter().zip(panel) {
        for (accumulator, y) in accumulators.iter_mut().zip(interleaved) {
            *accumulator = accumulator.multiply_add(*x, *y);
        }
    }
    accumulators
}
