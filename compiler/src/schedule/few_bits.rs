//! Makes weights of few bits floats where tile registers multiply them without loss.
//!
//! If all scales are powers of two, as `opt/quantised/exact` leaves them, the elements are bf16. Tile registers then
//! multiply them faster than microkernels compute them from few bits.

use crate::{
    Result,
    kernel::{
        Buffer, BufferId, Contraction, FewBitsPanels, MemorySpace, Program, Rhs, Stmt, WeightForm,
        few_bits::WIDTH,
    },
    scalar::precision::{MIN_SPLIT_EXTENT, is_bf16},
    tensor::{Bytes, Tensor},
};
use std::collections::BTreeMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Rewrites the contractions on machines with tile registers.
pub(super) fn expand(program: &mut Program) -> Result<()> {
    if !program.microkernels.has_tiles() {
        return Ok(());
    }
    let mut floats = BTreeMap::new();
    let mut kernels = std::mem::take(&mut program.kernels);
    for kernel in &mut kernels {
        expand_in(program, &mut kernel.body, &mut floats);
    }
    program.kernels = kernels;
    Ok(())
}

/// `floats` has the new buffer of each buffer of few bits, or `None` for one that stays.
fn expand_in(program: &mut Program, body: &mut [Stmt], floats: &mut BTreeMap<BufferId, Option<BufferId>>) {
    for stmt in body {
        match stmt {
            Stmt::For { body, .. } | Stmt::While { body, .. } => expand_in(program, body, floats),
            Stmt::If { then, otherwise, .. } => {
                expand_in(program, then, floats);
                expand_in(program, otherwise, floats);
            }
            Stmt::Contraction(contraction) => {
                let Rhs::FewBits(panels) = contraction.rhs.clone() else { continue };
                if panels.form.rounds_lhs {
                    continue;
                }
                let buffer = *floats.entry(panels.buffer).or_insert_with(|| {
                    let tensor = as_bf16(program, contraction, &panels)?;
                    let name = program.buffers[panels.buffer].name.clone();
                    let elems = Dim::from(tensor.elems());
                    let space = MemorySpace::Const(tensor);
                    let buffer = program.buffers.push(Buffer { name, dtype: DType::F32, elems, space });
                    if let Some(weight) = program.weights.get(&panels.buffer) {
                        let weight = WeightForm { form: "panels", ..weight.clone() };
                        program.weights.insert(buffer, weight);
                    }
                    Some(buffer)
                });
                if let Some(buffer) = buffer {
                    contraction.rhs = Rhs::Panels { buffer, base: Dim::zero(), width: WIDTH as u32 };
                }
            }
            Stmt::Block(_) | Stmt::Strip { .. } => {}
        }
    }
}

/// The panels as floats, if all are bf16 and there are enough of them for tile registers.
fn as_bf16(program: &Program, contraction: &Contraction, panels: &FewBitsPanels) -> Option<Tensor> {
    let MemorySpace::Const(tensor) = &program.buffers[panels.buffer].space else { return None };
    let columns = contraction.n.extent.as_i64()?;
    let depth = contraction.depth().as_i64()?;
    let panel_bytes = panels.panel_bytes(contraction)?;
    let is_small = columns < MIN_SPLIT_EXTENT || depth < MIN_SPLIT_EXTENT;
    if is_small || panels.base.as_i64() != Some(0) {
        return None;
    }

    let mut bytes = Vec::new();
    for panel in 0..(columns + WIDTH - 1) / WIDTH {
        for k in 0..depth {
            for lane in 0..WIDTH {
                let element = panels.form.element(tensor.bytes(), panel * panel_bytes, k, lane)?;
                if !is_bf16(element) {
                    return None;
                }
                bytes.extend_from_slice(&element.to_le_bytes());
            }
        }
    }
    let elems = bytes.len() / 4;
    Tensor::new(DType::F32, vec![elems], Bytes::Owned(bytes.into()))
}
