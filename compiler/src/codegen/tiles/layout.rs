//! Contractions of bytes: their left factor is laid out anew a block of rows at a time, their right one when compiling.
//!
//! Tiles multiply 32-bit elements. For bytes, an element is a group of neighbours along the reduction: a pair of 16-bit
//! integers, whose products add up in 32 bits without loss, or four bytes where the ISA multiplies these. Rows of the left
//! factor are copied into room that the contraction has for it, dense, whatever nest of loops the reduction was; the
//! packed columns of the right factor become groups with zeros where the last group has no more numbers.

use super::{cut::Rows, plan::Plan};
use crate::{
    codegen::{
        function::FuncCtx,
        lanes::{Args, Stream},
        leaf::{
            LeafKey,
            contract::{PANEL, Product},
            rows::RowsKey,
        },
        unit::Unit,
        vector::code::Narrow,
    },
    error::{Error, Result},
    kernel::{BufferId, Contract, Rhs, Space},
    tensor::Tensor,
};
use cranelift_codegen::ir::{InstBuilder, Value};
use cranelift_module::DataId;
use symshape::Dim;
use symshape_runtime::DType;

/// Elements of a cache line.
const LINE_ELEMS: i64 = 16;

/// How a factor of bytes becomes elements that tiles multiply.
pub(super) struct Layout {
    pub(super) product: Product,
    /// Where rows are laid out.
    pub(super) room: BufferId,
    /// Elements of a row.
    pub(super) row_elems: i64,
    /// Numbers of a row.
    depth: i64,
    right: BufferId,
    from: Narrow,
}

/// Whether an integer contraction can be laid out, and how.
pub(super) fn layout(f: &FuncCtx, contract: &Contract) -> Option<Layout> {
    let dtype = |buffer: BufferId| f.unit.program.buffers[buffer].dtype;
    let Rhs::Panels { buffer, width, .. } = contract.rhs else { return None };
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
    let depth: i64 = contract.k.iter().map(|axis| axis.extent.as_i64()).product::<Option<_>>()?;
    let product = match f.unit.vector_isa().shape().quads && dtype(buffer) == DType::I8 && from != Narrow::I16
    {
        true => Product::Quads,
        false => Product::Pairs,
    };
    Some(Layout { product, room, row_elems: groups(product, depth), depth, right: buffer, from })
}

/// Elements for so many numbers.
fn groups(product: Product, depth: i64) -> i64 {
    let group = match product {
        Product::Floats => 1,
        Product::Pairs => 2,
        Product::Quads => 4,
    };
    (depth + group - 1) / group
}

impl Layout {
    /// Whether rows can be read as they lie: groups of four bytes without a sign or of two numbers of 16 bits, none of them
    /// cut off.
    pub(super) fn reads(&self, (extent, step, _): &(Dim, Dim, Dim)) -> bool {
        let group = match (self.product, self.from) {
            (Product::Quads, Narrow::U8) => 4,
            (Product::Pairs, Narrow::I16) => 2,
            _ => return false,
        };
        step.as_i64() == Some(1) && extent.as_i64().is_some_and(|extent| extent % group == 0)
    }

    /// Whether rows must be as they lie, since nothing lays them out.
    pub(super) fn is_ready(&self) -> bool {
        self.from == Narrow::I16
    }

    /// Bytes of a number of the left factor.
    pub(super) fn number_bytes(&self) -> i64 {
        self.from.bytes() as i64
    }

    /// Elements for so many numbers of a row.
    pub(super) fn grouped(&self, extent: &Dim) -> Dim {
        extent.as_i64().map_or_else(Dim::zero, |extent| groups(self.product, extent).into())
    }

    /// A left factor that is to be laid out.
    pub(super) fn left(&self, stream: Stream, levels: Vec<(Dim, Dim)>) -> Left {
        let (quads, step_elems) = (self.product == Product::Quads, self.step_elems());
        Left { room: self.room, step_elems, from: self.from, quads, stream, levels }
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
        let rows = self.row_elems + i64::from(self.product == Product::Quads);
        (base.floor_div(self.depth) * rows, rows * PANEL as i64)
    }

    /// The right factor as groups.
    pub(super) fn right(&self, unit: &mut Unit) -> Result<DataId> {
        let (buffer, depth) = (self.right.as_u32(), self.depth as usize);
        let Space::Const(tensor) = &unit.program.buffers[self.right].space else {
            return Err(Error::internal("panels that are no constant"));
        };
        match (self.product, self.from) {
            (Product::Quads, Narrow::U8) => {
                unit.constant_as(&format!("const_{buffer}_quads"), || quads(tensor, depth, 0))
            }
            (Product::Quads, Narrow::I8 | Narrow::I16) => {
                unit.constant_as(&format!("const_{buffer}_shifted"), || quads(tensor, depth, 128))
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
/// of the left factor adds.
fn quads(tensor: &Tensor, depth: usize, shift: i32) -> Vec<u8> {
    let all = numbers(tensor);
    let mut bytes = Vec::with_capacity(all.len() + 8 * all.len() / depth.max(1));
    for panel in all.chunks_exact((depth * PANEL).max(1)) {
        let number = |k: usize, column: usize| panel.get(k * PANEL + column).copied().unwrap_or(0);
        for column in 0..PANEL {
            let sum: i32 = (0..depth).map(|k| i32::from(number(k, column))).sum();
            bytes.extend(sum.wrapping_mul(-shift).to_le_bytes());
        }
        for first in (0..depth).step_by(4) {
            for column in 0..PANEL {
                bytes.extend((first..first + 4).map(|k| number(k, column) as u8));
            }
        }
    }
    bytes
}

/// The left factor as it lies in memory.
pub(super) struct Left {
    room: BufferId,
    step_elems: i64,
    from: Narrow,
    quads: bool,
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
        let step = f.dim(&self.stream.row)?;
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
        let key = RowsKey { from: self.from, quads: self.quads, dense, levels };
        let mut args = Args::new(key.slots());
        args.set(RowsKey::FROM, from);
        args.set(RowsKey::FROM_ROW, f.dim(&self.stream.row)?);
        let room = f.address(&crate::kernel::Access { buffer: self.room, at: Dim::zero() })?;
        args.set(RowsKey::TO, f.builder.ins().iadd(room, distance));
        args.set(RowsKey::TO_ROW, f.int(self.step_bytes()));
        args.set(RowsKey::ROWS, count);
        for (level, (extent, step)) in self.levels.iter().enumerate() {
            let slot = RowsKey::level(level as u8);
            args.set(slot, f.dim(extent)?);
            args.set(slot + 1, f.dim(step)?);
        }
        let block = args.place(f);
        let leaf = f.unit.leaf(LeafKey::Rows(key))?;
        f.call(leaf, &[block]);
        Ok(())
    }
}
