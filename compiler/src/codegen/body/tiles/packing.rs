//! Contractions of bytes, of bf16 on tile registers, and of floats whose rows are whole pages apart: their left factor is
//! laid out anew a block of rows at a time, their right one, but for such floats, when compiling.
//!
//! Tiles multiply 32-bit elements. For bytes, an element is a group of neighbours along the reduction: a pair of 16-bit
//! integers, whose products add up in 32 bits without loss, or four bytes where the ISA multiplies these. Rows of the left
//! factor are copied into room that the contraction has for it, dense, whatever nest of loops the reduction was; the
//! packed columns of the right factor become groups with zeros where the last group has no more numbers. On tile registers an
//! element is a pair of bf16, and a row of so many as a register has is the least that is multiplied.

use super::{
    packed::{bf16, pairs, quads},
    pixel_packing::PixelPacking,
    plan::Plan,
    tiling::Rows,
};
use crate::{
    codegen::{
        body::{
            args::Args,
            body_builder::{Stream, linear_parts},
        },
        function::FuncCtx,
        function::ModuleBuilder,
        microkernel::{
            MicrokernelKey,
            contraction::{DotOp, PANEL},
            op::Ty,
            pack_rows::{PackRowsKey, RowForm},
        },
        vector::vcode::{NarrowInt, TILE_ROW_BYTES},
    },
    error::{Error, Result},
    kernel::{Access, BufferId, Contraction, MemorySpace, Rhs, SlidingWindows, tiles::ROW_BF16},
    scalar::Precision,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC};
use cranelift_module::DataId;
use std::rc::Rc;
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Elements of a cache line.
const LINE_ELEMS: i64 = 16;

/// How a factor becomes elements that tiles multiply.
pub(super) struct Packing {
    pub(super) product: DotOp,
    /// Where rows are laid out.
    pub(super) pack_buffer: BufferId,
    /// Where in it rows begin, behind a right factor that is laid out there too.
    first: Dim,
    /// Elements of one part of a row.
    part_elems: Dim,
    /// Numbers of a row.
    depth: Dim,
    right: RhsForm,
    from: Elements,
    /// The left factor's pixels, where each is laid out once; rows of the room then are those.
    pixels: Option<Rc<SlidingWindows>>,
}

/// Where the right factor comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RhsForm {
    /// A constant, which is packed anew when compiling.
    Packed(BufferId),
    /// It is computed, and laid out a tile of columns at a time.
    Computed,
}

/// What the left factor's numbers are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    Narrow(NarrowInt),
    F32,
    Bf16,
}

impl Elements {
    /// Of one.
    fn bytes(self) -> i64 {
        match self {
            Elements::Narrow(narrow) => narrow.bytes() as i64,
            Elements::F32 => 4,
            Elements::Bf16 => 2,
        }
    }

    /// Those of a left factor of floats.
    fn from_float_dtype(dtype: DType) -> Option<Elements> {
        match dtype {
            DType::F32 => Some(Elements::F32),
            DType::BF16 => Some(Elements::Bf16),
            _ => None,
        }
    }

    /// How rows of floats are read.
    fn lanes(self) -> Ty {
        if self == Elements::Bf16 { Ty::Bf16 } else { Ty::F32 }
    }
}

/// The layout by which a right factor is packed anew, unless it stays as other contractions have it.
pub(super) fn repacking(packing: &Option<Packing>) -> Option<&Packing> {
    packing.as_ref().filter(|packing| packing.product != DotOp::F32)
}

/// Whether a contraction's rows are laid out, and how.
pub(super) fn select_packing(f: &FuncCtx, facts: &Facts, contraction: &Contraction) -> Option<Packing> {
    let dtype = |buffer: BufferId| f.unit.program.buffers[buffer].dtype;
    let (depth, first) = (contraction.depth(), Dim::zero());
    let on_tiles = f.unit.vector_isa().shape().tiles && f.unit.program.on_tiles(contraction);
    if on_tiles && contraction.dtype == DType::F32 {
        let pack_buffer = contraction.pack_buffer?;
        let product = DotOp::AmxBf16(contraction.precision.parts()?);
        let right = match contraction.rhs {
            Rhs::Panels { buffer, .. } if is_const(f, buffer) => RhsForm::Packed(buffer),
            Rhs::Panels { .. } | Rhs::Indexed(_) => RhsForm::Computed,
        };
        let (first, from) = (
            f.unit.program.packed_rhs_bytes(contraction),
            Elements::from_float_dtype(dtype(contraction.lhs.buffer))?,
        );
        // What lies in whole rows of registers is read from there.
        let pixels = match from == Elements::Bf16 && fills_rows(facts, contraction) {
            true => None,
            false => SlidingWindows::of(f.unit.program, contraction).map(Rc::new),
        };
        let part_elems = match &pixels {
            None => depth.ceil_div(ROW_BF16) * (ROW_BF16 / 2),
            Some(pixels) => (pixels.padded_run() / 2).into(),
        };
        return Some(Packing { product, pack_buffer, first, part_elems, depth, right, from, pixels });
    }
    let Rhs::Panels { buffer, width, .. } = contraction.rhs else { return None };
    let right = RhsForm::Packed(buffer);
    if contraction.dtype == DType::F32 {
        // Others have room for tile registers, which this level lacks.
        let from = Elements::from_float_dtype(dtype(contraction.lhs.buffer))?;
        let is_copied = |_: &BufferId| from == Elements::Bf16 || contraction.precision == Precision::F32;
        let pack_buffer = contraction.pack_buffer.filter(is_copied)?;
        (is_const(f, buffer) && depth.as_i64().is_some()).then_some(())?;
        let product = DotOp::F32;
        let part_elems = depth.clone();
        return Some(Packing { product, pack_buffer, first, part_elems, depth, right, from, pixels: None });
    }
    let from = match dtype(contraction.lhs.buffer) {
        DType::U8 => NarrowInt::U8,
        DType::I8 => NarrowInt::I8,
        DType::I16 => NarrowInt::I16,
        _ => return None,
    };
    let packed = matches!(dtype(buffer), DType::U8 | DType::I8 | DType::I16);
    (contraction.dtype == DType::I32 && packed && width as usize == PANEL).then_some(())?;
    // What is not laid out needs no room.
    let pack_buffer = match from {
        NarrowInt::I16 => contraction.lhs.buffer,
        NarrowInt::U8 | NarrowInt::I8 => contraction.pack_buffer?,
    };
    depth.as_i64()?;
    let quads = f.unit.vector_isa().shape().vnni && dtype(buffer) == DType::I8 && from != NarrowInt::I16;
    let product = match (on_tiles, quads) {
        (true, _) => DotOp::AmxBytes,
        (false, true) => DotOp::Vnni,
        (false, false) => DotOp::I16Pairs,
    };
    let groups = depth.ceil_div(product.group());
    let part_elems = match product {
        DotOp::AmxBytes => groups.ceil_div(LINE_ELEMS) * LINE_ELEMS,
        _ => groups,
    };
    Some(Packing {
        product,
        pack_buffer,
        first,
        part_elems,
        depth,
        right,
        from: Elements::Narrow(from),
        pixels: None,
    })
}

/// Whether the numbers of a row lie in runs that are whole rows of tile registers.
fn fills_rows(facts: &Facts, contraction: &Contraction) -> bool {
    contraction.k.last().is_some_and(|axis| {
        let step = linear_parts(facts, &contraction.lhs.index, Some(&axis.var)).map(|(step, _)| step);
        step.is_some_and(|step| is_run(&axis.extent, &step, ROW_BF16))
    })
}

/// Whether numbers lie side by side, and are whole groups of so many.
fn is_run(extent: &Dim, step: &Dim, group: i64) -> bool {
    step.as_i64() == Some(1) && extent.as_i64().is_some_and(|extent| extent % group == 0)
}

fn is_const(f: &FuncCtx, buffer: BufferId) -> bool {
    matches!(f.unit.program.buffers[buffer].space, MemorySpace::Const(_))
}

impl Packing {
    /// Whether rows can be read as they lie: groups of four bytes without a sign or of two numbers of 16 bits, none of them
    /// cut off.
    pub(super) fn reads(&self, (extent, step, _): &(Dim, Dim, Dim)) -> bool {
        let group = match (self.product, self.from) {
            (DotOp::Vnni, Elements::Narrow(NarrowInt::U8)) => 4,
            (DotOp::AmxBytes, Elements::Narrow(NarrowInt::U8)) => TILE_ROW_BYTES as i64,
            (DotOp::AmxBf16(_), Elements::Bf16) => ROW_BF16,
            (DotOp::I16Pairs, Elements::Narrow(NarrowInt::I16)) => 2,
            _ => return false,
        };
        is_run(extent, step, group)
    }

    /// Whether rows must be as they lie, since nothing lays them out.
    pub(super) fn is_ready(&self) -> bool {
        self.from == Elements::Narrow(NarrowInt::I16)
    }

    /// Bytes of a number of the left factor.
    pub(super) fn element_bytes(&self) -> i64 {
        self.from.bytes()
    }

    /// Elements for so many numbers of a row; rows of tile registers where these multiply.
    pub(super) fn grouped(&self, extent: &Dim) -> Dim {
        match self.product {
            DotOp::AmxBytes => extent.floor_div(TILE_ROW_BYTES as i64),
            DotOp::AmxBf16(_) => extent.floor_div(ROW_BF16),
            product => extent.ceil_div(product.group()),
        }
    }

    /// A left factor that is to be laid out.
    pub(super) fn left(&self, stream: Stream, levels: Vec<(Dim, Dim)>) -> PackedLhs {
        let (step_elems, plane_bytes) = (self.step_elems(), self.plane_bytes());
        if let Some(pixels) = &self.pixels {
            let (pixels, pack_buffer) = (Rc::clone(pixels), self.pack_buffer);
            let form = RowForm::Bf16 { from: self.from.lanes(), parts: self.product.parts().lhs };
            let (element_bytes, step_bytes) = (self.element_bytes(), step_elems * 4);
            return PackedLhs::Pixels(PixelPacking {
                pixels,
                pack_buffer,
                form,
                element_bytes,
                step_bytes,
                plane_bytes,
            });
        }
        let (pack_buffer, first, product, from) =
            (self.pack_buffer, self.first.clone(), self.product, self.from);
        PackedLhs::Rows(PackedRows {
            pack_buffer,
            first,
            step_elems,
            plane_bytes,
            from,
            product,
            stream,
            levels,
        })
    }

    /// The loops of the reduction over what is laid out, innermost first, with what the left factor moves by behind what
    /// the loop inside has moved it: over registers' rows, and over the pixels of a row.
    pub(super) fn levels(&self) -> Vec<(Dim, Dim)> {
        let row = if self.product.is_amx() { self.blocks() } else { self.part_elems.clone() };
        let mut levels = vec![(row, Dim::one())];
        let mut moved = self.plane_bytes().floor_div(4);
        for tap in self.pixels.iter().flat_map(|pixels| &pixels.taps) {
            let step = &tap.step * self.step_elems();
            levels.push((tap.extent.into(), &step - &moved));
            moved = step * tap.extent;
        }
        levels
    }

    /// From row to row of what is laid out, in elements.
    pub(super) fn row_step(&self) -> Dim {
        self.pixels.iter().fold(self.step_elems(), |step, pixels| step * &pixels.row_step)
    }

    /// Bytes of one part of a row, behind which the next one is.
    pub(super) fn plane_bytes(&self) -> Dim {
        &self.part_elems * 4
    }

    /// Where the first laid out row begins.
    pub(super) fn origin(&self) -> Access {
        Access { buffer: self.pack_buffer, index: self.first.clone() }
    }

    /// Rows of tile registers that a row is.
    pub(super) fn blocks(&self) -> Dim {
        self.plane_bytes().floor_div(TILE_ROW_BYTES as i64)
    }

    /// Elements from one laid out row to the next: an odd number of cache lines, so that the rows of a tile don't compete
    /// for the same few.
    pub(super) fn step_elems(&self) -> Dim {
        let lines = (&self.part_elems * i64::from(self.product.parts().lhs)).ceil_div(LINE_ELEMS);
        (lines.floor_div(2) * 2 + 1) * LINE_ELEMS
    }

    /// The origin of the right factor's panels in elements, given the constant's, and elements of a panel.
    pub(super) fn panels(&self, base: &Dim) -> (Dim, Dim) {
        // Panels of bytes begin with a row of sums.
        let taps = self.pixels.as_ref().map_or(1, |pixels| pixels.tap_count());
        let rows = &self.part_elems * (taps * i64::from(self.product.parts().rhs))
            + i64::from(matches!(self.product, DotOp::Vnni | DotOp::AmxBytes));
        (base.floor_div(&self.depth) * &rows, rows * PANEL as i64)
    }

    /// Whether the right factor is laid out while running.
    pub(super) fn is_right_computed(&self) -> bool {
        self.right == RhsForm::Computed
    }

    /// The right factor as groups.
    pub(super) fn right(&self, unit: &mut ModuleBuilder) -> Result<DataId> {
        let fixed = |dim: &Dim| dim.as_i64().map(|value| value as usize);
        let (RhsForm::Packed(right), Some(depth), Some(rows)) =
            (self.right, fixed(&self.depth), fixed(&self.part_elems))
        else {
            return Err(Error::internal("a constant of no fixed size"));
        };
        let MemorySpace::Const(tensor) = &unit.program.buffers[right].space else {
            return Err(Error::internal("panels that are no constant"));
        };
        let buffer = right.as_u32();
        match (self.product, self.from) {
            (DotOp::AmxBf16(parts), _) => {
                let low = parts.rhs > 1;
                let run = self.pixels.as_ref().map_or(depth, |pixels| pixels.run as usize);
                let name = format!("const_{buffer}_{}_{run}", if low { "bf16x3" } else { "bf16" });
                unit.constant_as(&name, || bf16(tensor, (depth, run), low))
            }
            (DotOp::Vnni | DotOp::AmxBytes, from) => {
                let (shift, kind) =
                    if from == Elements::Narrow(NarrowInt::U8) { (0, "quads") } else { (128, "shifted") };
                let name = format!("const_{buffer}_{kind}_{rows}");
                unit.constant_as(&name, || quads(tensor, depth, rows, shift))
            }
            _ => unit.constant_as(&format!("const_{buffer}_pairs"), || pairs(tensor, depth)),
        }
    }
}

/// A left factor that is laid out.
pub(super) enum PackedLhs {
    /// Row by row.
    Rows(PackedRows),
    /// Pixel by pixel.
    Pixels(PixelPacking),
}

impl PackedLhs {
    /// Tiles, or iterations of the outer axes, that there is room for.
    pub(super) fn steps(&self, f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
        match self {
            PackedLhs::Rows(packed) => packed.steps(f, plan, rows),
            PackedLhs::Pixels(line) => line.steps(f, plan, rows),
        }
    }

    /// Bytes from one iteration of the innermost outer row axis, with so many rows, to the next.
    pub(super) fn line_bytes(&self, rows: &Dim) -> Option<Dim> {
        match self {
            PackedLhs::Rows(packed) => Some(rows * &packed.step_bytes()),
            PackedLhs::Pixels(line) => Some(line.pixels.outer_steps.last()? * &line.step_bytes),
        }
    }

    /// Lays out the rows of tiles `first..end`, and returns where the row of number 0 would lie, as a distance in bytes from
    /// the room.
    pub(super) fn pack_tiles(
        &self,
        f: &mut FuncCtx,
        rows: &Rows,
        (first, end): (Value, Value),
    ) -> Result<Value> {
        let before = |f: &mut FuncCtx, tile: Value| {
            // Low tiles have one row less.
            let zero = f.int(0);
            let low = f.builder.ins().isub(tile, rows.high);
            let low = f.builder.ins().smax(low, zero);
            let all = f.builder.ins().imul(tile, rows.rows);
            f.builder.ins().isub(all, low)
        };
        let range = (before(f, first), before(f, end));
        match self {
            PackedLhs::Rows(packed) => packed.pack_row_range(f, range),
            PackedLhs::Pixels(line) => line.pack_tiles(f, range),
        }
    }
}

/// The left factor as it lies in memory.
pub(super) struct PackedRows {
    pack_buffer: BufferId,
    first: Dim,
    step_elems: Dim,
    plane_bytes: Dim,
    from: Elements,
    product: DotOp,
    stream: Stream,
    /// Extents of the reduction's loops and what the factor moves by, innermost first.
    levels: Vec<(Dim, Dim)>,
}

impl PackedRows {
    /// Bytes from one laid out row to the next.
    fn step_bytes(&self) -> Dim {
        &self.step_elems * 4
    }

    /// Tiles, or iterations of the outer axes, that there is room for.
    fn steps(&self, f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
        let (last, outer) = plan.contraction.m.split_last().expect("checked in plan");
        let height = if outer.is_empty() { rows.rows } else { f.dim(&last.extent)? };
        let step = f.dim(&self.step_bytes())?;
        let bytes = f.builder.ins().imul(height, step);
        let one = f.int(1);
        let bytes = f.builder.ins().smax(bytes, one);
        let capacity = &f.unit.program.buffers[self.pack_buffer].elems - &self.first;
        let budget = f.dim(&capacity)?;
        let steps = f.builder.ins().udiv(budget, bytes);
        let steps = f.builder.ins().smax(steps, one);
        if !outer.is_empty() {
            return Ok(steps);
        }
        // By high tiles, room for just all rows would be counted as too little where some tiles are low.
        let all = rows.all(f);
        let all = f.builder.ins().imul(all, step);
        let has_room = f.builder.ins().icmp(IntCC::SignedLessThanOrEqual, all, budget);
        let tiles = f.builder.ins().smax(rows.tiles, one);
        Ok(f.builder.ins().select(has_room, tiles, steps))
    }

    /// Lays out rows `first..end`, and returns where that of number 0 would lie, as a distance in bytes from the room.
    fn pack_row_range(&self, f: &mut FuncCtx, (first, end): (Value, Value)) -> Result<Value> {
        let count = f.builder.ins().isub(end, first);
        let from = f.address(&self.stream.origin)?;
        let step = f.dim(&(&self.stream.row * self.from.bytes()))?;
        let skipped = f.builder.ins().imul(first, step);
        let from = f.builder.ins().iadd(from, skipped);
        let zero = f.int(0);
        self.pack(f, from, zero, count)?;
        let step = f.dim(&self.step_bytes())?;
        let skipped = f.builder.ins().imul(first, step);
        Ok(f.builder.ins().ineg(skipped))
    }

    /// Lays out all rows of the last axis, at this distance from the room.
    pub(super) fn pack_axis(&self, f: &mut FuncCtx, extent: &Dim, distance: Value) -> Result<()> {
        let (from, count) = (f.address(&self.stream.origin)?, f.dim(extent)?);
        self.pack(f, from, distance, count)
    }

    /// Bytes of so many iterations of the outer axes.
    pub(super) fn distance(&self, f: &mut FuncCtx, extent: &Dim, count: Value) -> Result<Value> {
        let bytes = f.dim(&(extent * &self.step_bytes()))?;
        Ok(f.builder.ins().imul(count, bytes))
    }

    fn pack(&self, f: &mut FuncCtx, from: Value, distance: Value, count: Value) -> Result<()> {
        let dense = self.levels[0].1.as_i64() == Some(1);
        let levels = self.levels.len() as u8;
        let element_bytes = self.from.bytes();
        let form = match self.from {
            Elements::Narrow(from) => {
                RowForm::Bytes { from, quads: matches!(self.product, DotOp::Vnni | DotOp::AmxBytes) }
            }
            from if self.product == DotOp::F32 => RowForm::Floats { from: from.lanes() },
            from => RowForm::Bf16 { from: from.lanes(), parts: self.product.parts().lhs },
        };
        let key = PackRowsKey { form, dense, levels };
        let mut args = Args::new(key.slots());
        args.set(PackRowsKey::FROM, from);
        args.set(PackRowsKey::FROM_ROW, f.dim(&(&self.stream.row * element_bytes))?);
        let pack_buffer = f.address(&Access { buffer: self.pack_buffer, index: self.first.clone() })?;
        args.set(PackRowsKey::TO, f.builder.ins().iadd(pack_buffer, distance));
        args.set(PackRowsKey::TO_ROW, f.dim(&self.step_bytes())?);
        args.set(PackRowsKey::ROWS, count);
        if matches!(form, RowForm::Bf16 { .. }) {
            args.set(PackRowsKey::PLANE, f.dim(&self.plane_bytes)?);
        }
        for (level, (extent, step)) in self.levels.iter().enumerate() {
            let slot = PackRowsKey::level(level as u8);
            args.set(slot, f.dim(extent)?);
            args.set(slot + 1, f.dim(&(step * element_bytes))?);
        }
        let block = args.place(f);
        let microkernel = f.unit.microkernel(MicrokernelKey::PackRows(key))?;
        f.call(microkernel, &[block]);
        Ok(())
    }
}
