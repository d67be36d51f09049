//! Contractions of bytes, of bf16 on tile registers, and of floats whose rows are whole pages apart: their left factor is
//! laid out anew a block of rows at a time, their right one, but for such floats, when compiling.
//!
//! Tiles multiply 32-bit elements. For bytes, an element is a group of neighbours along the reduction: a pair of 16-bit
//! integers, whose products add up in 32 bits without loss, or four bytes where the ISA multiplies these. Rows of the left
//! factor are copied into room that the contraction has for it, dense, whatever nest of loops the reduction was; the
//! packed columns of the right factor become groups with zeros where the last group has no more numbers. On tile registers an
//! element is a pair of bf16, and a row of so many as a register has is the least that is multiplied.

use super::{cut::Rows, plan::Plan};
use crate::{
    codegen::{
        function::FuncCtx,
        lanes::{Args, Stream},
        leaf::{
            LeafKey,
            contract::{PANEL, Product},
            rows::{Form, RowsKey},
        },
        unit::Unit,
        vector::code::{Narrow, TILE_ROW_BYTES, TILE_ROWS},
    },
    error::{Error, Result},
    kernel::{BufferId, Contract, Rhs, Space},
    scalar::{Precision, precision},
    tensor::Tensor,
};
use cranelift_codegen::ir::{InstBuilder, Value};
use cranelift_module::DataId;
use symshape::Dim;
use symshape_runtime::DType;

/// Elements of a cache line.
const LINE_ELEMS: i64 = 16;

/// How a factor becomes elements that tiles multiply.
pub(super) struct Layout {
    pub(super) product: Product,
    /// Where rows are laid out.
    pub(super) room: BufferId,
    /// Elements of a row.
    pub(super) row_elems: i64,
    /// Numbers of a row.
    depth: i64,
    right: BufferId,
    from: Numbers,
}

/// What the left factor's numbers are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Numbers {
    Narrow(Narrow),
    F32,
}

impl Numbers {
    /// Of one.
    fn bytes(self) -> i64 {
        match self {
            Numbers::Narrow(narrow) => narrow.bytes() as i64,
            Numbers::F32 => 4,
        }
    }
}

/// Bf16 of a tile register's row.
const ROW_PAIRS: i64 = (TILE_ROW_BYTES / 2) as i64;

/// The layout by which a right factor is packed anew, unless it stays as other contractions have it.
pub(super) fn repacking(layout: &Option<Layout>) -> Option<&Layout> {
    layout.as_ref().filter(|layout| layout.product != Product::Floats)
}

/// Whether a contraction's rows are laid out, and how.
pub(super) fn layout(f: &FuncCtx, contract: &Contract) -> Option<Layout> {
    let dtype = |buffer: BufferId| f.unit.program.buffers[buffer].dtype;
    let Rhs::Panels { buffer, width, .. } = contract.rhs else { return None };
    let depth = || contract.k.iter().map(|axis| axis.extent.as_i64()).product::<Option<i64>>();
    let on_tiles = f.unit.vector_isa().shape().tiles && f.unit.program.on_tiles(contract);
    if on_tiles && contract.dtype == DType::F32 {
        let (depth, room) = (depth()?, contract.room?);
        let row_elems = (depth + ROW_PAIRS - 1) / ROW_PAIRS * ROW_PAIRS;
        let (product, row_elems) = match contract.precision {
            Precision::Bf16x3 => (Product::Bf16x3, row_elems),
            Precision::Bf16 | Precision::F32 => (Product::Bf16, row_elems / 2),
        };
        return Some(Layout { product, room, row_elems, depth, right: buffer, from: Numbers::F32 });
    }
    if contract.dtype == DType::F32 {
        let (depth, room) = (depth()?, contract.room.filter(|_| contract.precision == Precision::F32)?);
        let (product, from) = (Product::Floats, Numbers::F32);
        return Some(Layout { product, room, row_elems: depth, depth, right: buffer, from });
    }
    let from = match dtype(contract.lhs.buffer) {
        DType::U8 => Narrow::U8,
        DType::I8 => Narrow::I8,
        DType::I16 => Narrow::I16,
        _ => return None,
    };
    let packed = matches!(dtype(buffer), DType::U8 | DType::I8 | DType::I16);
    (contract.dtype == DType::I32 && packed && width as usize == PANEL).then_some(())?;
    // What is not laid out needs no room.
    let room = match from {
        Narrow::I16 => contract.lhs.buffer,
        Narrow::U8 | Narrow::I8 => contract.room?,
    };
    let depth = depth()?;
    let quads = f.unit.vector_isa().shape().quads && dtype(buffer) == DType::I8 && from != Narrow::I16;
    let product = match (on_tiles, quads) {
        (true, _) => Product::Bytes,
        (false, true) => Product::Quads,
        (false, false) => Product::Pairs,
    };
    let row_elems = match product {
        Product::Bytes => (groups(product, depth) + LINE_ELEMS - 1) / LINE_ELEMS * LINE_ELEMS,
        _ => groups(product, depth),
    };
    Some(Layout { product, room, row_elems, depth, right: buffer, from: Numbers::Narrow(from) })
}

/// Elements for so many numbers.
fn groups(product: Product, depth: i64) -> i64 {
    let group = match product {
        Product::Floats => 1,
        Product::Pairs | Product::Bf16x3 | Product::Bf16 => 2,
        Product::Quads | Product::Bytes => 4,
    };
    (depth + group - 1) / group
}

impl Layout {
    /// Whether rows can be read as they lie: groups of four bytes without a sign or of two numbers of 16 bits, none of them
    /// cut off.
    pub(super) fn reads(&self, (extent, step, _): &(Dim, Dim, Dim)) -> bool {
        let group = match (self.product, self.from) {
            (Product::Quads, Numbers::Narrow(Narrow::U8)) => 4,
            (Product::Bytes, Numbers::Narrow(Narrow::U8)) => TILE_ROW_BYTES as i64,
            (Product::Pairs, Numbers::Narrow(Narrow::I16)) => 2,
            _ => return false,
        };
        step.as_i64() == Some(1) && extent.as_i64().is_some_and(|extent| extent % group == 0)
    }

    /// Whether rows must be as they lie, since nothing lays them out.
    pub(super) fn is_ready(&self) -> bool {
        self.from == Numbers::Narrow(Narrow::I16)
    }

    /// Bytes of a number of the left factor.
    pub(super) fn number_bytes(&self) -> i64 {
        self.from.bytes()
    }

    /// Elements for so many numbers of a row; rows of tile registers where these multiply.
    pub(super) fn grouped(&self, extent: &Dim) -> Dim {
        let of = |extent: i64| match self.product {
            Product::Bytes => extent / TILE_ROW_BYTES as i64,
            product => groups(product, extent),
        };
        extent.as_i64().map_or_else(Dim::zero, |extent| of(extent).into())
    }

    /// A left factor that is to be laid out.
    pub(super) fn left(&self, stream: Stream, levels: Vec<(Dim, Dim)>) -> Left {
        let (step_elems, plane_bytes) = (self.step_elems(), self.plane_bytes());
        let (room, product, from) = (self.room, self.product, self.from);
        Left { room, step_elems, plane_bytes, from, product, stream, levels }
    }

    /// Bytes of the high bf16 of a row, behind which low ones are.
    pub(super) fn plane_bytes(&self) -> i64 {
        if self.product == Product::Bf16x3 { 2 * self.row_elems } else { 4 * self.row_elems }
    }

    /// Rows of tile registers that a row is.
    pub(super) fn blocks(&self) -> i64 {
        self.plane_bytes() / TILE_ROW_BYTES as i64
    }

    /// Elements from one laid out row to the next: an odd number of cache lines, so that the rows of a tile don't compete
    /// for the same few.
    pub(super) fn step_elems(&self) -> i64 {
        let lines = (self.row_elems + LINE_ELEMS - 1) / LINE_ELEMS;
        (lines | 1) * LINE_ELEMS
    }

    /// The origin of the right factor's panels in elements, given the constant's, and elements of a panel.
    pub(super) fn panels(&self, base: &Dim) -> (Dim, i64) {
        // Panels of bytes begin with a row of sums.
        let rows = self.row_elems + i64::from(matches!(self.product, Product::Quads | Product::Bytes));
        (base.floor_div(self.depth) * rows, rows * PANEL as i64)
    }

    /// The right factor as groups.
    pub(super) fn right(&self, unit: &mut Unit) -> Result<DataId> {
        let (buffer, depth) = (self.right.as_u32(), self.depth as usize);
        let Space::Const(tensor) = &unit.program.buffers[self.right].space else {
            return Err(Error::internal("panels that are no constant"));
        };
        match (self.product, self.from) {
            (Product::Bf16x3, _) => {
                unit.constant_as(&format!("const_{buffer}_bf16x3"), || bf16(tensor, depth, true))
            }
            (Product::Bf16, _) => {
                unit.constant_as(&format!("const_{buffer}_bf16"), || bf16(tensor, depth, false))
            }
            (Product::Quads | Product::Bytes, from) => {
                let rows = self.row_elems as usize;
                let (shift, kind) =
                    if from == Numbers::Narrow(Narrow::U8) { (0, "quads") } else { (128, "shifted") };
                let name = format!("const_{buffer}_{kind}_{rows}");
                unit.constant_as(&name, || quads(tensor, depth, rows, shift))
            }
            _ => unit.constant_as(&format!("const_{buffer}_pairs"), || pairs(tensor, depth)),
        }
    }
}

/// The numbers of a tensor of 8 or 16 bits.
fn numbers(tensor: &Tensor) -> Vec<i16> {
    let bytes = tensor.bytes();
    match tensor.dtype() {
        DType::I8 => bytes.iter().map(|byte| i16::from(*byte as i8)).collect(),
        DType::U8 => bytes.iter().map(|byte| i16::from(*byte)).collect(),
        _ => bytes.chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]])).collect(),
    }
}

/// Panels of numbers as panels of pairs of 16-bit numbers.
fn pairs(tensor: &Tensor, depth: usize) -> Vec<u8> {
    let all = numbers(tensor);
    let nothing = [0; PANEL];
    let mut bytes = Vec::with_capacity(2 * all.len() + 2 * all.len() / depth.max(1));
    for panel in all.chunks_exact((depth * PANEL).max(1)) {
        for two in panel.chunks(2 * PANEL) {
            let (first, second) = two.split_at(PANEL);
            let second = if second.is_empty() { &nothing } else { second };
            for (x, y) in first.iter().zip(second) {
                bytes.extend(x.to_le_bytes().into_iter().chain(y.to_le_bytes()));
            }
        }
    }
    bytes
}

/// Panels of numbers as panels of four bytes, each behind a row that takes off again what adding `shift` to each number
/// of the left factor adds; `rows` rows follow, the last ones zero.
fn quads(tensor: &Tensor, depth: usize, rows: usize, shift: i32) -> Vec<u8> {
    let all = numbers(tensor);
    let mut bytes = Vec::with_capacity(all.len() + 8 * all.len() / depth.max(1));
    for panel in all.chunks_exact((depth * PANEL).max(1)) {
        let number = |k: usize, column: usize| panel.get(k * PANEL + column).copied().unwrap_or(0);
        for column in 0..PANEL {
            let sum: i32 = (0..depth).map(|k| i32::from(number(k, column))).sum();
            bytes.extend(sum.wrapping_mul(-shift).to_le_bytes());
        }
        for first in (0..4 * rows).step_by(4) {
            for column in 0..PANEL {
                bytes.extend((first..first + 4).map(|k| number(k, column) as u8));
            }
        }
    }
    bytes
}

/// Panels of `f32` as panels for tile registers: for each row of a register along the reduction 16 rows of pairs of high
/// bf16, a pair for each column, and then, with `low`, as many of low ones.
fn bf16(tensor: &Tensor, depth: usize, low: bool) -> Vec<u8> {
    let numbers: Vec<f32> = tensor
        .bytes()
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
        .collect();
    let mut bytes =
        Vec::with_capacity(4 * numbers.len() + 128 * PANEL * numbers.len() / (depth * PANEL).max(1));
    for panel in numbers.chunks_exact((depth * PANEL).max(1)) {
        let number = |k: usize, column: usize| panel.get(k * PANEL + column).copied().unwrap_or(0.0);
        for first in (0..depth).step_by(2 * TILE_ROWS) {
            for part in [precision::high, precision::low].into_iter().take(1 + usize::from(low)) {
                for pair in 0..TILE_ROWS {
                    for column in 0..PANEL {
                        let both =
                            [0, 1].map(|of| part(number(first + 2 * pair + of, column)).to_bits() >> 16);
                        bytes.extend(both.iter().flat_map(|bits| (*bits as u16).to_le_bytes()));
                    }
                }
            }
        }
    }
    bytes
}

/// The left factor as it lies in memory.
pub(super) struct Left {
    room: BufferId,
    step_elems: i64,
    plane_bytes: i64,
    from: Numbers,
    product: Product,
    stream: Stream,
    /// Extents of the reduction's loops and what the factor moves by, innermost first.
    levels: Vec<(Dim, Dim)>,
}

impl Left {
    /// Bytes from one laid out row to the next.
    fn step_bytes(&self) -> i64 {
        4 * self.step_elems
    }

    /// Tiles, or iterations of the outer axes, that there is room for.
    pub(super) fn steps(&self, f: &mut FuncCtx, plan: &Plan, rows: &Rows) -> Result<Value> {
        let (last, outer) = plan.contract.m.split_last().expect("checked in plan");
        let height = if outer.is_empty() { rows.rows } else { f.dim(&last.extent)? };
        let bytes = f.builder.ins().imul_imm_s(height, self.step_bytes());
        let one = f.int(1);
        let bytes = f.builder.ins().smax(bytes, one);
        let room = f.unit.program.buffers[self.room].elems.clone();
        let budget = f.dim(&room)?;
        let steps = f.builder.ins().udiv(budget, bytes);
        Ok(f.builder.ins().smax(steps, one))
    }

    /// Lays out the rows of tiles `first..end`, and returns where the row of number 0 would lie, as a distance in bytes from
    /// the room.
    pub(super) fn lay_tiles(
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
        let (first, end) = (before(f, first), before(f, end));
        let count = f.builder.ins().isub(end, first);
        let from = f.address(&self.stream.origin)?;
        let step = f.dim(&(&self.stream.row * self.from.bytes()))?;
        let skipped = f.builder.ins().imul(first, step);
        let from = f.builder.ins().iadd(from, skipped);
        let zero = f.int(0);
        self.lay(f, from, zero, count)?;
        Ok(f.builder.ins().imul_imm_s(first, -self.step_bytes()))
    }

    /// Lays out all rows of the last axis, at this distance from the room.
    pub(super) fn lay_axis(&self, f: &mut FuncCtx, extent: &Dim, distance: Value) -> Result<()> {
        let (from, count) = (f.address(&self.stream.origin)?, f.dim(extent)?);
        self.lay(f, from, distance, count)
    }

    /// Bytes of so many iterations of the outer axes.
    pub(super) fn distance(&self, f: &mut FuncCtx, extent: &Dim, count: Value) -> Result<Value> {
        let bytes = f.dim(&(extent * self.step_bytes()))?;
        Ok(f.builder.ins().imul(count, bytes))
    }

    fn lay(&self, f: &mut FuncCtx, from: Value, distance: Value, count: Value) -> Result<()> {
        let dense = self.levels[0].1.as_i64() == Some(1);
        let levels = self.levels.len() as u8;
        let number_bytes = self.from.bytes();
        let form = match self.from {
            Numbers::Narrow(from) => {
                Form::Bytes { from, quads: matches!(self.product, Product::Quads | Product::Bytes) }
            }
            Numbers::F32 if self.product == Product::Floats => Form::Floats,
            Numbers::F32 => Form::Bf16 { low: self.product == Product::Bf16x3 },
        };
        let key = RowsKey { form, dense, levels };
        let mut args = Args::new(key.slots());
        args.set(RowsKey::FROM, from);
        args.set(RowsKey::FROM_ROW, f.dim(&(&self.stream.row * number_bytes))?);
        let room = f.address(&crate::kernel::Access { buffer: self.room, at: Dim::zero() })?;
        args.set(RowsKey::TO, f.builder.ins().iadd(room, distance));
        args.set(RowsKey::TO_ROW, f.int(self.step_bytes()));
        args.set(RowsKey::ROWS, count);
        if matches!(form, Form::Bf16 { .. }) {
            args.set(RowsKey::PLANE, f.int(self.plane_bytes));
        }
        for (level, (extent, step)) in self.levels.iter().enumerate() {
            let slot = RowsKey::level(level as u8);
            args.set(slot, f.dim(extent)?);
            args.set(slot + 1, f.dim(&(step * number_bytes))?);
        }
        let block = args.place(f);
        let leaf = f.unit.leaf(LeafKey::Rows(key))?;
        f.call(leaf, &[block]);
        Ok(())
    }
}
