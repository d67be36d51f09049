//! Stores constant panels in 16 bits where the memory bounds their contractions.
//!
//! A weight of a model in half precision became `f32` for the arithmetic, see `opt/f32_arithmetic`. With few rows, a
//! contraction takes as long as reading its panels. If each element is equal to an f16, or to a bf16, the panels are
//! stored as such, and the microkernels convert them when they read them. The results have the same bits. With many
//! rows, the multiplications take longer than the memory, and the conversions would delay them: such panels are stored
//! in 16 bits only if the caller asks for it ([`Program::half_weights`]).

use crate::{
    Result,
    kernel::{BufferId, Contraction, Control, MemorySpace, Program, Rhs, Stmt, WeightForm, walk},
    tensor::{Bytes, Tensor},
};
use half::{bf16, f16};
use num_traits::ToPrimitive;
use std::collections::BTreeMap;
use symshape_runtime::DType;

/// Largest number of rows that are multiplied with panels while the memory delivers them.
const MAX_ROWS: i64 = 4;

/// Smaller constants stay in a cache.
const MIN_ELEMS: usize = 1 << 16;

/// Smaller constants stay `f32` even on request.
const MIN_REQUESTED_ELEMS: usize = 1 << 10;

/// Rewrites the constants for which it pays.
pub(super) fn store(program: &mut Program) -> Result<()> {
    if !program.microkernels.reads_halves() {
        return Ok(());
    }

    let mut panels: BTreeMap<BufferId, usize> = BTreeMap::new();
    let mut uses: BTreeMap<BufferId, usize> = BTreeMap::new();
    for kernel in &program.kernels {
        count_panels(program, &kernel.body, &mut panels);
        walk::accesses(&kernel.body, &mut |site| *uses.entry(site.access.buffer).or_default() += 1);
        let called = kernel.control.as_ref().map(Control::touched).unwrap_or_default().0;
        called.into_iter().for_each(|buffer| *uses.entry(buffer).or_default() += 1);
    }

    let min_elems = if program.half_weights { MIN_REQUESTED_ELEMS } else { MIN_ELEMS };
    for (buffer, count) in panels {
        let MemorySpace::Const(tensor) = &program.buffers[buffer].space else { continue };
        if uses[&buffer] != count || tensor.elems() < min_elems {
            continue;
        }
        let Some(halves) = in_16_bits(tensor) else { continue };
        if let Some(weight) = program.weights.get(&buffer) {
            let weight = WeightForm { form: "panels of 16 bits", ..weight.clone() };
            program.weights.insert(buffer, weight);
        }
        program.buffers[buffer].dtype = halves.dtype();
        program.buffers[buffer].space = MemorySpace::Const(halves);
    }
    Ok(())
}

/// Counts the contractions that read each buffer as panels, and whose rows the memory bounds. No loop may be around
/// them: its next iteration would find the panels in a cache.
fn count_panels(program: &Program, body: &[Stmt], panels: &mut BTreeMap<BufferId, usize>) {
    for stmt in body {
        let Stmt::Contraction(contraction) = stmt else { continue };
        if let Rhs::Panels { buffer, .. } = contraction.rhs
            && multiplies_floats(program, contraction)
            && (program.half_weights || is_bound_by_memory(program, contraction))
        {
            *panels.entry(buffer).or_default() += 1;
        }
    }
}

/// Whether the microkernels can read the right-hand side in 16 bits.
fn multiplies_floats(program: &Program, contraction: &Contraction) -> bool {
    let lhs = program.buffers[contraction.lhs.buffer].dtype;
    contraction.dtype == DType::F32
        && lhs == DType::F32
        && !program.on_tiles(contraction)
        && !program.on_bf16_matrices(contraction)
}

fn is_bound_by_memory(program: &Program, contraction: &Contraction) -> bool {
    let max_rows = program.facts.bounds(&contraction.rows()).hi.and_then(|rows| rows.to_i64());
    max_rows.is_some_and(|rows| rows <= MAX_ROWS)
}

/// Floats as equal halves: f16 if all have one, else bf16. `None` if some float has neither.
fn in_16_bits(tensor: &Tensor) -> Option<Tensor> {
    let converted = |dtype: DType, half: fn(f32) -> Option<u16>| {
        if !tensor.all_f32s(|x| half(x).is_some()) {
            return None;
        }
        let bytes = tensor.read();
        let floats = bytes.as_chunks::<4>().0;
        let halves: Option<Vec<[u8; 2]>> =
            floats.iter().map(|bytes| Some(half(f32::from_le_bytes(*bytes))?.to_le_bytes())).collect();
        Tensor::new(dtype, tensor.shape().to_vec(), Bytes::Owned(halves?.concat().into()))
    };
    if tensor.dtype() != DType::F32 {
        return None;
    }
    converted(DType::F16, as_f16).or_else(|| converted(DType::BF16, as_bf16))
}

/// The bits of the equal f16.
fn as_f16(x: f32) -> Option<u16> {
    let half = f16::from_f32(x);
    (half.to_f32().to_bits() == x.to_bits()).then(|| half.to_bits())
}

/// The bits of the equal bf16.
fn as_bf16(x: f32) -> Option<u16> {
    let half = bf16::from_f32(x);
    (half.to_f32().to_bits() == x.to_bits()).then(|| half.to_bits())
}
