//! The right operand, as tiles read it.

use super::packing::Packing;
use crate::{
    codegen::{
        body::body_builder::{Stream, linear_parts, linear_steps},
        microkernel::{
            contraction::{self, BlockDot, FewBitsCode, PANEL},
            op::Ty,
        },
    },
    kernel::{self, Access, BufferId, Contraction, FewBitsForm, FewBitsPanels, Program},
};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// How tiles read the rhs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RhsReads {
    /// In the form that it has in memory, or that it is packed into.
    Stored,
    /// As panels of floats that few bits were unpacked into.
    Unpacked,
}

/// The right operand, as tiles read it.
pub(crate) struct RhsPlan {
    /// Its format.
    pub(crate) form: contraction::Rhs,
    /// Its first element, at column 0 and reduction index 0. `column` is the step from panel to panel or from column to
    /// column, `row` that of the innermost reduction loop.
    pub(crate) stream: Stream,
    /// The element type of panels of floats or of consecutive columns, see
    /// [`TileKey::rhs_element`](contraction::TileKey::rhs_element).
    pub(crate) element: Ty,
    /// The rhs in memory, where microkernels write the panels at run time, a tile of columns at a time.
    pub(crate) source: Option<PanelSource>,
}

/// A rhs in memory whose panels are written at run time.
pub(crate) enum PanelSource {
    /// It is packed for tile registers.
    Computed(ComputedRhs),
    /// It is unpacked.
    FewBits(FewBitsRhs),
}

/// A rhs of few bits that becomes floats.
pub(crate) struct FewBitsRhs {
    /// The first byte of the first panel.
    pub(crate) origin: Access,
    /// Bytes of a panel.
    pub(crate) panel_bytes: Dim,
    pub(crate) form: FewBitsForm,
    pub(crate) code: FewBitsCode,
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
    /// Whether few bits become floats in memory.
    pub(super) fn is_unpacked(&self) -> bool {
        matches!(self.source, Some(PanelSource::FewBits(_)))
    }

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
        reads: RhsReads,
    ) -> Option<(RhsPlan, Vec<Dim>)> {
        let block_dot = packing.and_then(|packing| packing.rounding).map(|rounding| rounding.dot);
        // Packed floats leave the rhs as it is.
        let packing = packing.filter(|packing| packing.packs_rhs());
        if let Some(packing) = packing.filter(|packing| packing.is_rhs_computed()) {
            let computed = ComputedRhs::of(facts, contraction)?;
            let panels = panels(packing.buffer, Dim::zero(), packing.panel_elems(), PANEL as u32);
            let source = Some(PanelSource::Computed(computed));
            return Some((RhsPlan { source, ..panels }, no_steps(contraction)));
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
                let element = float_element(program, *buffer)?;
                let is_whole_panels = (*width as usize).is_multiple_of(PANEL);
                is_whole_panels.then(|| (RhsPlan { element, ..rhs }, no_steps(contraction)))
            }
            kernel::Rhs::FewBits(panels) => {
                let rhs = match reads {
                    RhsReads::Stored => few_bits(contraction, panels, block_dot)?,
                    RhsReads::Unpacked => unpacked(contraction, panels)?,
                };
                Some((rhs, no_steps(contraction)))
            }
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
    RhsPlan { form: contraction::Rhs::Panels(width), stream, element: Ty::F32, source: None }
}

/// Panels of few bits, whose strides count bytes. The step of the reduction is the size of a block.
fn few_bits(contraction: &Contraction, panels: &FewBitsPanels, dot: Option<BlockDot>) -> Option<RhsPlan> {
    let column = panels.panel_bytes(contraction)?.into();
    let origin = Access { buffer: panels.buffer, index: panels.base.clone() };
    let form = contraction::Rhs::FewBits(FewBitsCode { dot, ..few_bits_code(panels.form)? });
    let stream = Stream { origin, row: i64::from(panels.form.block).into(), column };
    Some(RhsPlan { form, stream, element: Ty::U8, source: None })
}

/// Panels of floats in the unpack buffer.
fn unpacked(contraction: &Contraction, few_bits: &FewBitsPanels) -> Option<RhsPlan> {
    let source = FewBitsRhs {
        origin: Access { buffer: few_bits.buffer, index: few_bits.base.clone() },
        panel_bytes: few_bits.panel_bytes(contraction)?.into(),
        form: few_bits.form,
        code: few_bits_code(few_bits.form)?,
    };
    let panel_elems = contraction.depth() * PANEL as i64;
    let panels = panels(few_bits.unpack_buffer?, Dim::zero(), panel_elems, PANEL as u32);
    Some(RhsPlan { source: Some(PanelSource::FewBits(source)), ..panels })
}

/// The form of few bits for microkernels that multiply floats, if they read scales of its type.
pub(super) fn few_bits_code(form: FewBitsForm) -> Option<FewBitsCode> {
    let scale = match form.scale {
        DType::F32 => Ty::F32,
        DType::F16 => Ty::F16,
        DType::BF16 => Ty::Bf16,
        _ => return None,
    };
    Some(FewBitsCode { bits: form.bits as u8, scale, has_zeros: form.has_zeros, dot: None })
}

/// The type of the elements of a buffer, if they become floats where they are read.
fn float_element(program: &Program, buffer: BufferId) -> Option<Ty> {
    match program.buffers[buffer].dtype {
        DType::F32 => Some(Ty::F32),
        DType::F16 => Some(Ty::F16),
        DType::BF16 => Some(Ty::Bf16),
        _ => None,
    }
}

/// A rhs of floats that is read in place; no row moves it.
fn in_memory(
    program: &Program,
    facts: &Facts,
    contraction: &Contraction,
    access: &Access,
) -> Option<(RhsPlan, Vec<Dim>)> {
    let (steps, rest) = linear_steps(facts, &access.index, &contraction.k)?;
    let (column, index) = linear_parts(facts, &rest, Some(&contraction.n.var))?;
    let is_moved = |dim: &Dim| contraction.m.iter().any(|axis| dim.contains(&axis.var));
    let element = float_element(program, access.buffer)?;
    if is_moved(&index) || is_moved(&column) || steps.iter().any(is_moved) {
        return None;
    }

    let form = match column.as_i64() {
        Some(1) => contraction::Rhs::Rows,
        _ if element == Ty::F32 => contraction::Rhs::Scattered,
        _ => return None,
    };

    let row = steps.last()?.clone();
    let stream = Stream { origin: Access { buffer: access.buffer, index }, row, column };
    Some((RhsPlan { form, stream, element, source: None }, steps))
}
