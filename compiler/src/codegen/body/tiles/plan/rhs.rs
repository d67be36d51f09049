//! The right operand, as tiles read it.

use super::packing::Packing;
use crate::{
    codegen::{
        body::body_builder::{Stream, linear_parts, linear_steps},
        microkernel::{
            contraction::{self, FewBitsCode, PANEL},
            op::Ty,
        },
    },
    kernel::{self, Access, BufferId, Contraction, FewBitsPanels, Program},
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// The right operand, as tiles read it.
pub(crate) struct RhsPlan {
    /// Its format.
    pub(crate) form: contraction::Rhs,
    /// Its first element, at column 0 and reduction index 0. `column` is the step from panel to panel or from column to
    /// column, `row` that of the innermost reduction loop.
    pub(crate) stream: Stream,
    /// The element type of panels of floats, see [`TileKey::rhs_element`](contraction::TileKey::rhs_element).
    pub(crate) element: Ty,
    /// The rhs in memory, where it is computed at run time and packed for tile registers.
    pub(crate) computed: Option<ComputedRhs>,
}

/// A rhs that is computed at run time, with consecutive columns.
pub(crate) struct ComputedRhs {
    /// Its first element at column 0.
    pub(crate) origin: Access,
    /// Elements from one reduction index to the next.
    pub(crate) step: Dim,
    /// Elements from panel to panel.
    pub(crate) panel: Dim,
    /// Elements of a column.
    pub(crate) depth: Dim,
}

impl ComputedRhs {
    /// The rhs of a contraction that [`Program::on_tiles`] accepts.
    fn of(facts: &Facts, contraction: &Contraction) -> Option<ComputedRhs> {
        let depth = contraction.depth();
        match &contraction.rhs {
            kernel::Rhs::Panels { buffer, base, width } => {
                let width = i64::from(*width);
                let origin = Access { buffer: *buffer, index: base.clone() };
                Some(ComputedRhs { origin, step: width.into(), panel: &depth * width, depth })
            }
            kernel::Rhs::Indexed(access) => {
                let [k] = &contraction.k[..] else { return None };
                let (step, rest) = linear_parts(facts, &access.index, Some(&k.var))?;
                let (column, index) = linear_parts(facts, &rest, Some(&contraction.n.var))?;
                let is_fixed = |dim: &Dim| !contraction.m.iter().any(|axis| dim.contains(&axis.var));
                let is_dense = column.as_i64() == Some(1) && !step.contains(&contraction.n.var);
                if !is_dense || !is_fixed(&index) || !is_fixed(&step) {
                    return None;
                }
                let origin = Access { buffer: access.buffer, index };
                Some(ComputedRhs { origin, step, panel: (PANEL as i64).into(), depth })
            }
            kernel::Rhs::FewBits(_) => None,
        }
    }
}

impl RhsPlan {
    /// Bytes of an element of the panels, or of an element in memory.
    pub(crate) fn element_bytes(&self) -> i64 {
        match self.element {
            Ty::U8 => 1,
            Ty::F32 => 4,
            _ => 2,
        }
    }

    /// The rhs of a contraction, and its steps along the reduction axes.
    pub(super) fn of(
        program: &Program,
        facts: &Facts,
        contraction: &Contraction,
        packing: Option<&Packing>,
    ) -> Option<(RhsPlan, Vec<Dim>)> {
        // Packed floats leave the rhs as it is.
        let packing = packing.filter(|packing| packing.packs_rhs());
        if let Some(packing) = packing.filter(|packing| packing.is_rhs_computed()) {
            let computed = ComputedRhs::of(facts, contraction)?;
            let panels = panels(packing.buffer, Dim::zero(), packing.panel_elems(), PANEL as u32);
            return Some((RhsPlan { computed: Some(computed), ..panels }, no_steps(contraction)));
        }

        match &contraction.rhs {
            kernel::Rhs::Panels { buffer, base, width } => {
                let rhs = match packing {
                    Some(packing) => panels(*buffer, packing.panels_at(base), packing.panel_elems(), *width),
                    None => panels(*buffer, base.clone(), contraction.depth() * i64::from(*width), *width),
                };
                if packing.is_some() {
                    return Some((rhs, no_steps(contraction)));
                }
                let element = match program.buffers[*buffer].dtype {
                    DType::F32 => Ty::F32,
                    DType::F16 => Ty::F16,
                    DType::BF16 => Ty::Bf16,
                    _ => return None,
                };
                let is_whole_panels = (*width as usize).is_multiple_of(PANEL);
                is_whole_panels.then(|| (RhsPlan { element, ..rhs }, no_steps(contraction)))
            }
            kernel::Rhs::FewBits(panels) => Some((few_bits(contraction, panels)?, no_steps(contraction))),
            kernel::Rhs::Indexed(access) => in_memory(program, facts, contraction, access),
        }
    }
}

/// Packed panels just run on through all loops of the reduction.
fn no_steps(contraction: &Contraction) -> Vec<Dim> {
    vec![Dim::zero(); contraction.k.len()]
}

/// Packed panels of `width` columns and `panel_elems` elements each.
fn panels(buffer: BufferId, index: Dim, panel_elems: Dim, width: u32) -> RhsPlan {
    let stream = Stream { origin: Access { buffer, index }, row: Dim::zero(), column: panel_elems };
    RhsPlan { form: contraction::Rhs::Panels(width), stream, element: Ty::F32, computed: None }
}

/// Panels of few bits, whose strides count bytes. The step of the reduction is the size of a block.
fn few_bits(contraction: &Contraction, panels: &FewBitsPanels) -> Option<RhsPlan> {
    let form = panels.form;
    let column = panels.panel_bytes(contraction)?.into();
    let origin = Access { buffer: panels.buffer, index: panels.base.clone() };
    let scale = match form.scale {
        DType::F32 => Ty::F32,
        DType::F16 => Ty::F16,
        DType::BF16 => Ty::Bf16,
        _ => return None,
    };
    let form =
        contraction::Rhs::FewBits(FewBitsCode { bits: form.bits as u8, scale, has_zeros: form.has_zeros });
    let stream = Stream { origin, row: i64::from(panels.form.block).into(), column };
    Some(RhsPlan { form, stream, element: Ty::U8, computed: None })
}

/// A rhs of `f32` that is read in place; no row moves it.
fn in_memory(
    program: &Program,
    facts: &Facts,
    contraction: &Contraction,
    access: &Access,
) -> Option<(RhsPlan, Vec<Dim>)> {
    let (steps, rest) = linear_steps(facts, &access.index, &contraction.k)?;
    let (column, index) = linear_parts(facts, &rest, Some(&contraction.n.var))?;
    let is_moved = |dim: &Dim| contraction.m.iter().any(|axis| dim.contains(&axis.var));
    let is_f32 = program.buffers[access.buffer].dtype == DType::F32;
    if !is_f32 || is_moved(&index) || is_moved(&column) || steps.iter().any(is_moved) {
        return None;
    }

    let form = match column.as_i64() {
        Some(1) => contraction::Rhs::Rows,
        _ => contraction::Rhs::Scattered,
    };

    let row = steps.last()?.clone();
    let stream = Stream { origin: Access { buffer: access.buffer, index }, row, column };
    Some((RhsPlan { form, stream, element: Ty::F32, computed: None }, steps))
}
