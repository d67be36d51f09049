//! The speed of this machine, measured with compiled code: a large contraction, and passes over working sets.

use super::{demand::Demand, measure};
use crate::{
    accuracy::inputs,
    error::Result,
    graph::Graph,
    pipeline,
    scalar::{ReduceOp, Scalar},
    tensor::{self, Tensor},
};
use std::time::Duration;
use symshape::Declaration;
use symshape_runtime::{DType, Model};

/// Rows, columns and depth of the contraction.
const EXTENT: i64 = 384;

/// Elements of the working sets: within the first, second and third level of most caches, and beyond.
const WORKING_SETS: [i64; 4] = [1 << 12, 1 << 17, 1 << 20, 1 << 25];

/// Columns of a working set, which is a matrix.
const COLUMNS: i64 = 1 << 10;

/// How long each figure is measured.
const BUDGET: Duration = Duration::from_millis(40);

/// The resource that a kernel needs longest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoundBy {
    /// The arithmetic units.
    Arithmetic,
    /// The caches or the memory.
    Memory,
}

impl BoundBy {
    /// The name of the resource.
    pub fn name(self) -> &'static str {
        match self {
            BoundBy::Arithmetic => "arithmetic",
            BoundBy::Memory => "memory",
        }
    }
}

/// Lower bound of a time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bound {
    /// Nanoseconds.
    pub ns: f64,
    /// The resource that takes this time.
    pub by: BoundBy,
}

/// Speed of one thread of this machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Multiply-adds of `f32` per nanosecond.
    pub multiplications: f64,
    /// Multiply-adds of bytes per nanosecond.
    pub byte_multiplications: f64,
    /// The size of a working set in bytes, ascending, and the bytes that pass per nanosecond.
    pub bandwidths: Vec<(f64, f64)>,
}

impl Machine {
    /// Measures this machine, in about half a second.
    ///
    /// # Errors
    /// On machines without a code generator, or without 300 MB of memory.
    pub fn measure() -> Result<Machine> {
        let multiplications = contraction(DType::F32, DType::F32)?;
        let byte_multiplications = contraction(DType::U8, DType::I8)?;
        let passes = [pass(true)?, pass(false)?];
        let bandwidth = |elems: i64| -> Result<(f64, f64)> {
            let best = passes.iter().map(|(model, passes)| bytes_per_ns(model, elems, *passes));
            let best = best.collect::<Result<Vec<f64>>>()?.into_iter().fold(0.0, f64::max);
            Ok(((elems * 4) as f64, best))
        };
        let bandwidths = WORKING_SETS.into_iter().map(bandwidth).collect::<Result<_>>()?;
        Ok(Machine { multiplications, byte_multiplications, bandwidths })
    }

    /// Lower bound of the time for this demand.
    pub fn bound(&self, demand: &Demand) -> Bound {
        let arithmetic = (demand.multiplications + demand.other_work) / self.multiplications
            + demand.byte_multiplications / self.byte_multiplications;
        let memory = demand.bytes / self.bandwidth(demand.bytes);
        if memory > arithmetic {
            Bound { ns: memory, by: BoundBy::Memory }
        } else {
            Bound { ns: arithmetic, by: BoundBy::Arithmetic }
        }
    }

    /// Bytes per nanosecond for a working set of this size, between the measured ones.
    fn bandwidth(&self, bytes: f64) -> f64 {
        let above = self.bandwidths.iter().position(|(size, _)| *size >= bytes);
        match above {
            Some(0) => self.bandwidths[0].1,
            None => self.bandwidths[self.bandwidths.len() - 1].1,
            Some(above) => {
                let [(small, fast), (large, slow)] = [self.bandwidths[above - 1], self.bandwidths[above]];
                let position = (bytes / small).ln() / (large / small).ln();
                fast * (slow / fast).powf(position)
            }
        }
    }
}

/// Multiply-adds per nanosecond of a contraction with a constant of these types.
fn contraction(lhs: DType, rhs: DType) -> Result<f64> {
    let mut graph = Graph { name: "contraction".into(), ..Graph::default() };
    let x = graph.input("x", lhs, vec![EXTENT.into(), EXTENT.into()])?;
    // Thirds have no exact form in bf16. Weights that have one would be multiplied on tile registers.
    let divisor = if rhs.is_float() { 3.0 } else { 1.0 };
    let weight = |idx: i64| Scalar::from_f64(rhs, (idx * 7 % 5 - 2) as f64 / divisor);
    let elems: Vec<Scalar> = (0..EXTENT * EXTENT).map(weight).collect();
    let weights = Tensor::from_scalars(rhs, vec![EXTENT as usize; 2], &elems).expect("elements were counted");
    let weights = graph.constant(weights)?;
    let sum = if lhs.is_float() { lhs } else { DType::I32 };
    let y = graph.matmul_as(sum, x, weights)?;
    graph.output("y", y)?;

    let model = pipeline::jit(&graph)?;
    let inputs = inputs::inputs(&model, &[])?;
    let ns = measure::call_ns(&model, &tensor::refs(&inputs)?, BUDGET)?;
    Ok((EXTENT * EXTENT * EXTENT) as f64 / ns)
}

/// A model that passes over a matrix: it writes another one, or only sums of its rows. Also how often it touches an
/// element.
fn pass(writes: bool) -> Result<(Model, f64)> {
    let mut graph = Graph { name: "pass".into(), ..Graph::default() };
    let rows = WORKING_SETS[WORKING_SETS.len() - 1] / COLUMNS;
    let rows = graph.symbol("R", Declaration::range(1, rows))?;
    let x = graph.input("x", DType::F32, vec![rows, COLUMNS.into()])?;
    let y = if writes { graph.relu(x)? } else { graph.reduce(ReduceOp::Max, x, &[1], false)? };
    graph.output("y", y)?;
    Ok((pipeline::jit(&graph)?, if writes { 2.0 } else { 1.0 }))
}

/// Bytes per nanosecond of a pass whose working set has this number of elements.
fn bytes_per_ns(model: &Model, elems: i64, touches: f64) -> Result<f64> {
    let rows = (elems as f64 / touches) as i64 / COLUMNS;
    let rows = rows.max(1);
    let x = Tensor::from_f32(vec![rows as usize, COLUMNS as usize], &vec![0.5; (rows * COLUMNS) as usize])
        .expect("elements were counted");
    let ns = measure::call_ns(model, &tensor::refs(&[x])?, BUDGET)?;
    Ok((rows * COLUMNS * 4) as f64 * touches / ns)
}
