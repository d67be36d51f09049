//! The vector form of the epilogue of a contraction.

use super::{
    builder::{BodyBuilder, ScalarArg, Stream},
    obstacle::Obstacle,
    op::{Body, Ty},
};
use crate::kernel::{Contraction, Kernel, Program};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// The vector form of an epilogue, along the last row axis and the columns.
pub(crate) struct EpilogueForm {
    pub(crate) body: Body,
    pub(crate) streams: Vec<Stream>,
    pub(crate) scalars: Vec<ScalarArg>,
}

/// The type of the accumulators of a contraction. `None` if no microkernel multiplies its elements.
pub(crate) fn accumulator_type(program: &Program, contraction: &Contraction) -> Option<Ty> {
    match (contraction.dtype, program.buffers[contraction.lhs.buffer].dtype) {
        (DType::F32, DType::F32 | DType::BF16) => Some(Ty::F32),
        (DType::I32, DType::U8 | DType::I8 | DType::I16) => Some(Ty::I32),
        _ => None,
    }
}

/// The vector form of an epilogue, or the reason why it has none. `facts` must have the ranges of the contraction's
/// axes.
pub(crate) fn epilogue_form(
    program: &Program,
    kernel: &Kernel,
    facts: &Facts,
    contraction: &Contraction,
) -> Result<EpilogueForm, Obstacle> {
    let (last, outer) = contraction.m.split_last().ok_or(Obstacle::Form)?;
    let mut builder = BodyBuilder::new(program, kernel, facts, Some(&last.var));
    builder.sum = Some(accumulator_type(program, contraction).ok_or(Obstacle::Sum)?);
    builder.has_wide_lanes = false;
    let body = builder.body(&contraction.epilogue, Some(&contraction.n.var))?;
    if !builder.variables.is_empty() {
        return Err(Obstacle::Form);
    }

    let is_fixed = |step: &Dim| outer.iter().all(|axis| !step.contains(&axis.var));
    match builder.streams.iter().find(|stream| !is_fixed(&stream.row) || !is_fixed(&stream.column)) {
        Some(stream) => Err(Obstacle::Address(stream.origin.index.clone())),
        None => Ok(EpilogueForm { body, streams: builder.streams, scalars: builder.scalars }),
    }
}
