//! The formats in which operands are packed into the 32-bit elements that tiles multiply.
//!
//! For bytes, an element is a group of neighbours along the reduction: a pair of 16-bit integers, whose products add
//! up in 32 bits without loss, or four bytes where the ISA multiplies these or 16 bits hold the sums of two products.
//! On tile registers an element is a pair of bf16, or four bytes, and a whole row of a register is the least that is
//! multiplied. Rows of the lhs are packed into the pack buffer at run time, a block at a time and dense, whatever nest
//! of loops the reduction was. A constant rhs is packed at compile time; groups that would be incomplete are padded
//! with zeros.

use super::{
    byte_pairs::pairs_fit,
    bytes_in_place::BytesInPlace,
    isa::Isa,
    packed_constant::PackedConstant,
    packed_lhs::{PackedLhs, PackedPixels, PackedRows},
    reduction::ReductionLoop,
    rounding::Rounding,
};
use crate::{
    codegen::{
        body::body_builder::{Stream, linear_parts},
        microkernel::{
            contraction::{DotOp, PANEL},
            op::Ty,
            pack_rows::RowForm,
        },
        vector::vcode::{NarrowInt, TILE_ROW_BYTES},
    },
    error::{Error, Result},
    kernel::{
        Access, BufferId, Contraction, Program, Rhs, SlidingWindows, bf16_matrices::STEP_BF16,
        tiles::ROW_BF16,
    },
    scalar::Precision,
};
use std::rc::Rc;
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Elements of a cache line.
const LINE_ELEMS: i64 = 16;

/// The formats of both operands of a contraction.
pub(crate) struct Packing {
    /// The multiplication.
    pub(crate) dot: DotOp,
    /// The pack buffer.
    pub(crate) buffer: BufferId,
    /// Byte of the pack buffer where rows begin, after a rhs that is packed there too.
    first_row: Dim,
    /// 32-bit elements of one part of a row, or of a pixel.
    part_elems: Dim,
    /// Operand elements of a row.
    depth: Dim,
    rhs: RhsSource,
    lhs_elements: LhsElements,
    /// How a lhs of `f32` is rounded.
    pub(super) rounding: Option<Rounding>,
    /// The pixels of a lhs whose rows overlap. Each is packed once, in place of rows.
    windows: Option<Rc<SlidingWindows>>,
    /// Bytes that are adjacent along the reduction and that vectors multiply where they are. See [`BytesInPlace`].
    in_place: Option<BytesInPlace>,
}

/// Where a packed rhs comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RhsSource {
    /// A constant, which is packed at compile time.
    Constant(BufferId),
    /// It is computed at run time and packed a tile of columns at a time.
    Computed,
}

/// The types of a lhs that is packed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LhsElements {
    Narrow(NarrowInt),
    F32,
    Bf16,
}

impl LhsElements {
    fn of(dtype: DType) -> Option<LhsElements> {
        match dtype {
            DType::U8 => Some(LhsElements::Narrow(NarrowInt::U8)),
            DType::I8 => Some(LhsElements::Narrow(NarrowInt::I8)),
            DType::I16 => Some(LhsElements::Narrow(NarrowInt::I16)),
            DType::F32 => Some(LhsElements::F32),
            DType::BF16 => Some(LhsElements::Bf16),
            _ => None,
        }
    }

    /// Bytes of one element.
    fn bytes(self) -> i64 {
        match self {
            LhsElements::Narrow(narrow) => narrow.bytes() as i64,
            LhsElements::F32 => 4,
            LhsElements::Bf16 => 2,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, LhsElements::F32 | LhsElements::Bf16)
    }

    /// The type of lanes that floats are read as.
    fn lanes(self) -> Ty {
        if self == LhsElements::Bf16 { Ty::Bf16 } else { Ty::F32 }
    }
}

/// Whether elements are consecutive and form whole groups.
fn is_run(extent: &Dim, step: &Dim, group: i64) -> bool {
    step.as_i64() == Some(1) && extent.as_i64().is_some_and(|extent| extent % group == 0)
}

/// Whether the elements of a row form consecutive runs that are whole rows of tile registers.
fn fills_rows(facts: &Facts, contraction: &Contraction) -> bool {
    contraction.k.last().is_some_and(|axis| {
        let step = linear_parts(facts, &contraction.lhs.index, Some(&axis.var)).map(|(step, _)| step);
        step.is_some_and(|step| is_run(&axis.extent, &step, ROW_BF16))
    })
}

/// The multiplication of a contraction whose lhs is packed, or whose operands are narrower than 32 bits.
///
/// The pass that reserves pack buffers decides which `f32` and bf16 rows are worth a copy: they have a buffer.
fn select_dot(
    program: &Program,
    contraction: &Contraction,
    isa: &Isa,
    lhs_elements: LhsElements,
) -> Option<DotOp> {
    let on_tiles = isa.shape.tiles && program.on_tiles(contraction);
    if on_tiles && contraction.dtype == DType::F32 {
        return lhs_elements.is_float().then_some(DotOp::AmxBf16(contraction.precision.parts()?));
    }

    if isa.shape.bf16_matrix_dots && program.on_bf16_matrices(contraction) {
        return lhs_elements.is_float().then_some(DotOp::MatrixBf16);
    }

    // Everything else needs constant panels of constant depth.
    let Rhs::Panels { buffer: rhs, width, .. } = contraction.rhs else { return None };
    if !program.is_const(rhs) || contraction.depth().as_i64().is_none() {
        return None;
    }
    if contraction.dtype == DType::F32 {
        // Rows of `f32` at a lower precision have a buffer for bf16, which this level does not multiply.
        let is_copied = match lhs_elements {
            LhsElements::Bf16 => true,
            LhsElements::F32 => contraction.precision == Precision::F32,
            LhsElements::Narrow(_) => false,
        };
        return is_copied.then_some(DotOp::F32);
    }
    let rhs_dtype = program.buffers[rhs].dtype;
    let is_narrow = matches!(rhs_dtype, DType::U8 | DType::I8 | DType::I16) && !lhs_elements.is_float();
    if contraction.dtype != DType::I32 || !is_narrow || width as usize != PANEL {
        return None;
    }
    let has_bytes = rhs_dtype == DType::I8 && lhs_elements != LhsElements::Narrow(NarrowInt::I16);
    Some(if on_tiles {
        DotOp::AmxBytes
    } else if has_bytes && isa.shape.vnni {
        DotOp::Vnni
    } else if has_bytes && isa.shape.matrix_dots {
        DotOp::Matrix
    } else if has_bytes && isa.shape.signed_dots {
        DotOp::Signed
    } else if has_bytes && isa.shape.byte_pairs && pairs_fit(program, contraction, rhs) {
        DotOp::BytePairs
    } else {
        DotOp::I16Pairs
    })
}

/// The 32-bit elements of a row of this depth, which is padded to whole multiplications.
fn padded_groups(dot: DotOp, depth: &Dim) -> Dim {
    depth.ceil_div(dot.depth_step()) * (dot.depth_step() / dot.group())
}

impl Packing {
    /// The packing of a contraction on an ISA, or `None` where both operands are multiplied as they are.
    pub(super) fn of(
        program: &Program,
        facts: &Facts,
        contraction: &Contraction,
        isa: &Isa,
    ) -> Option<Packing> {
        let lhs_elements = LhsElements::of(program.buffers[contraction.lhs.buffer].dtype)?;
        let dot = match contraction.rhs {
            // Rows that have a buffer are copied.
            Rhs::FewBits(_) => DotOp::F32,
            Rhs::Panels { .. } | Rhs::Indexed(_) => select_dot(program, contraction, isa, lhs_elements)?,
        };
        // 16-bit integers are read in place and need no buffer.
        let buffer = match lhs_elements {
            LhsElements::Narrow(NarrowInt::I16) => contraction.lhs.buffer,
            _ => contraction.pack_buffer?,
        };
        let rhs = match contraction.rhs {
            Rhs::Panels { buffer, .. } if program.is_const(buffer) => RhsSource::Constant(buffer),
            Rhs::Panels { .. } | Rhs::Indexed(_) => RhsSource::Computed,
            Rhs::FewBits(ref panels) => RhsSource::Constant(panels.buffer),
        };
        let depth = contraction.depth();
        let mut packing = Packing {
            dot,
            buffer,
            first_row: Dim::zero(),
            part_elems: depth.clone(),
            depth,
            rhs,
            lhs_elements,
            rounding: None,
            windows: None,
            in_place: None,
        };
        if let Some((rounding, words)) = Rounding::of(contraction, isa) {
            packing.rounding = Some(rounding);
            packing.part_elems = words.into();
            packing.first_row = (&packing.depth * 4).ceil_div(LINE_ELEMS * 4) * (LINE_ELEMS * 4);
        }

        match dot {
            DotOp::AmxBf16(_) => {
                packing.first_row = program.packed_rhs_bytes(contraction);
                // Elements that fill whole rows of registers are read in place.
                let is_in_place = lhs_elements == LhsElements::Bf16 && fills_rows(facts, contraction);
                if !is_in_place {
                    packing.windows = SlidingWindows::of(program, contraction).map(Rc::new);
                }
                packing.part_elems = match &packing.windows {
                    None => packing.depth.ceil_div(ROW_BF16) * (ROW_BF16 / 2),
                    Some(windows) => (windows.padded_run() / 2).into(),
                };
            }
            DotOp::MatrixBf16 => {
                packing.first_row = program.packed_rhs_bytes(contraction);
                packing.part_elems = packing.depth.ceil_div(STEP_BF16) * (STEP_BF16 / 2);
            }
            DotOp::AmxBytes => {
                let groups = packing.depth.ceil_div(dot.group());
                packing.part_elems = groups.ceil_div(LINE_ELEMS) * LINE_ELEMS;
            }
            DotOp::Vnni | DotOp::BytePairs | DotOp::Signed | DotOp::Matrix | DotOp::I16Pairs => {
                packing.part_elems = padded_groups(dot, &packing.depth);
            }
            DotOp::F32 => {}
        }
        if matches!(dot, DotOp::Vnni | DotOp::BytePairs)
            && let LhsElements::Narrow(from) = lhs_elements
            && let Some(bytes) = BytesInPlace::of(facts, contraction, from)
        {
            packing.in_place = Some(bytes);
            let groups = padded_groups(dot, &bytes.run.into());
            packing.part_elems = packing.depth.floor_div(bytes.run) * groups;
        }
        Some(packing)
    }

    /// Whether rows are read in place in a reduction with this innermost loop: they are [`BytesInPlace`], or consist of
    /// whole groups of four or eight bytes of the right sign, of two 16-bit integers, of whole rows of tile
    /// registers, or of the bf16 of whole steps.
    pub(super) fn reads_in_place(&self, innermost: &ReductionLoop) -> bool {
        let group = match (self.dot, self.lhs_elements) {
            (DotOp::Vnni | DotOp::BytePairs, _) => return self.in_place.is_some(),
            (DotOp::Signed | DotOp::Matrix, LhsElements::Narrow(NarrowInt::I8)) => self.dot.depth_step(),
            (DotOp::AmxBytes, LhsElements::Narrow(NarrowInt::U8)) => TILE_ROW_BYTES as i64,
            (DotOp::AmxBf16(_), LhsElements::Bf16) => ROW_BF16,
            (DotOp::MatrixBf16, LhsElements::Bf16) => STEP_BF16,
            (DotOp::I16Pairs, LhsElements::Narrow(NarrowInt::I16)) => 2,
            _ => return false,
        };
        is_run(&innermost.extent, &innermost.lhs_step, group)
    }

    /// Bytes that the last group of each run shares with the group before.
    pub(super) fn shared_bytes(&self) -> u8 {
        self.in_place.map_or(0, |bytes| bytes.shared)
    }

    /// Whether vectors multiply bytes of the other sign than those of the lhs.
    pub(super) fn has_wrong_sign(&self) -> bool {
        self.lhs_shift() != 0
    }

    /// The value that is added to each element of the lhs: see `ByteForm`.
    fn lhs_shift(&self) -> i32 {
        match self.lhs_elements {
            LhsElements::Narrow(from) => self.dot.byte_form().shift(from),
            LhsElements::F32 | LhsElements::Bf16 => 0,
        }
    }

    /// Whether rows can only be read in place, since no microkernel packs them.
    pub(super) fn needs_in_place(&self) -> bool {
        self.lhs_elements == LhsElements::Narrow(NarrowInt::I16)
    }

    /// Bytes of an element of the lhs in memory.
    pub(super) fn element_bytes(&self) -> i64 {
        self.lhs_elements.bytes()
    }

    /// The groups that this many elements of a row form: 32-bit elements, or rows of tile registers. A group that
    /// shares bytes is not counted.
    pub(super) fn groups(&self, extent: &Dim) -> Dim {
        match self.dot {
            dot @ (DotOp::Vnni | DotOp::BytePairs) if self.shared_bytes() > 0 => {
                extent.floor_div(dot.group())
            }
            DotOp::AmxBytes => extent.floor_div(TILE_ROW_BYTES as i64),
            DotOp::AmxBf16(_) => extent.floor_div(ROW_BF16),
            dot => padded_groups(dot, extent),
        }
    }

    /// How a lhs is packed, given its rows and the loops of its reduction in memory.
    pub(super) fn packed_lhs(&self, stream: Stream, loops: Vec<ReductionLoop>) -> PackedLhs {
        let step_elems = self.step_elems();
        let part_bytes = self.part_bytes();

        if let Some(windows) = &self.windows {
            return PackedLhs::Pixels(PackedPixels {
                windows: Rc::clone(windows),
                buffer: self.buffer,
                form: RowForm::Bf16 { from: self.lhs_elements.lanes(), parts: self.dot.parts().lhs },
                element_bytes: self.element_bytes(),
                step_bytes: step_elems * 4,
                part_bytes,
            });
        }

        let form = match (self.rounding, self.lhs_elements) {
            (Some(Rounding { bits, dot, .. }), _) => RowForm::Rounded { bits, dot },
            (None, LhsElements::Narrow(from)) => RowForm::Bytes { from, to: self.dot.byte_form() },
            (None, from) if self.dot == DotOp::F32 => RowForm::Floats { from: from.lanes() },
            (None, from) => RowForm::Bf16 { from: from.lanes(), parts: self.dot.parts().lhs },
        };

        PackedLhs::Rows(PackedRows {
            buffer: self.buffer,
            first: self.first_row.clone(),
            form,
            element_bytes: self.element_bytes(),
            step_elems,
            part_bytes,
            rounding: self.rounding,
            stream,
            loops,
        })
    }

    /// The loops of the reduction over a packed lhs, innermost first: over 32-bit elements, rows of tile registers or
    /// rounded elements, and over the pixels of a row.
    pub(super) fn loops(&self) -> Vec<ReductionLoop> {
        let level = |extent, lhs_step| ReductionLoop { extent, lhs_step, rhs_step: Dim::zero() };
        let inner = if self.dot.is_amx() {
            self.register_rows()
        } else if self.rounding.is_some() {
            self.depth.clone()
        } else {
            self.part_elems.clone()
        };
        let mut loops = vec![level(inner, Dim::one())];
        let mut moved_inside = self.part_bytes().floor_div(4);
        for tap in self.windows.iter().flat_map(|windows| &windows.taps) {
            let step = &tap.step * self.step_elems();
            loops.push(level(tap.extent.into(), &step - &moved_inside));
            moved_inside = step * tap.extent;
        }
        loops
    }

    /// 32-bit elements from row to row of a packed lhs.
    pub(super) fn row_step(&self) -> Dim {
        self.windows.iter().fold(self.step_elems(), |step, windows| step * &windows.row_step)
    }

    /// Bytes of one part of a packed row or pixel; the next part follows.
    pub(crate) fn part_bytes(&self) -> Dim {
        &self.part_elems * 4
    }

    /// The first packed row.
    pub(super) fn origin(&self) -> Access {
        Access { buffer: self.buffer, index: self.first_row.clone() }
    }

    /// Rows of tile registers that a packed row or pixel consists of.
    fn register_rows(&self) -> Dim {
        self.part_bytes().floor_div(TILE_ROW_BYTES as i64)
    }

    /// 32-bit elements from one packed row or pixel to the next: an odd number of cache lines, so that the rows of a
    /// tile don't compete for the same few.
    fn step_elems(&self) -> Dim {
        let lines = (&self.part_elems * i64::from(self.dot.parts().lhs)).ceil_div(LINE_ELEMS);
        (lines.floor_div(2) * 2 + 1) * LINE_ELEMS
    }

    /// 32-bit elements of each column of a panel of the packed rhs.
    fn panel_rows(&self) -> Dim {
        let pixels = self.windows.as_ref().map_or(1, |windows| windows.tap_count());
        // Panels of bytes begin with a row of sums.
        let sums = i64::from(self.dot.starts_from_panels());
        &self.part_elems * (pixels * i64::from(self.dot.parts().rhs)) + sums
    }

    /// 32-bit elements of a panel of the packed rhs.
    pub(super) fn panel_elems(&self) -> Dim {
        self.panel_rows() * PANEL as i64
    }

    /// The 32-bit element of the packed constant where its panels begin, given the element of the original constant.
    pub(super) fn panels_at(&self, base: &Dim) -> Dim {
        base.floor_div(&self.depth) * self.panel_rows()
    }

    /// Whether the rhs is packed too. Rows of `f32` are copied alone.
    pub(crate) fn packs_rhs(&self) -> bool {
        self.dot != DotOp::F32
    }

    /// Whether the rhs is packed at run time.
    pub(crate) fn is_rhs_computed(&self) -> bool {
        self.rhs == RhsSource::Computed
    }

    /// The packed form of the constant rhs.
    ///
    /// # Errors
    /// `Internal` where the rhs is not a constant of constant depth.
    pub(crate) fn packed_constant(&self) -> Result<PackedConstant> {
        let RhsSource::Constant(buffer) = self.rhs else {
            return Err(Error::internal("a rhs that is computed has no packed constant"));
        };
        let depth = constant_size(&self.depth)?;
        let run = match (&self.windows, self.in_place) {
            (Some(windows), _) => windows.run as usize,
            (None, Some(bytes)) => bytes.run as usize,
            (None, None) => depth,
        };

        Ok(PackedConstant {
            buffer,
            dot: self.dot,
            depth,
            run,
            rows: constant_size(&self.part_elems)?,
            shared: usize::from(self.shared_bytes()),
            lhs_shift: self.lhs_shift(),
        })
    }
}

fn constant_size(dim: &Dim) -> Result<usize> {
    let size = dim.as_i64().ok_or_else(|| Error::internal("the depth of a constant is symbolic"))?;
    Ok(size as usize)
}
