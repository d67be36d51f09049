//! Tile registers in stack memory: an emulation for machines without them.
//!
//! The emulation adds in the order and with the roundings that [`TileDot`] documents. Results are therefore bit by bit
//! those of a machine with tile registers, except where an intermediate sum is denormal.

use super::lanes::{cast, no_trap, splat};
use crate::codegen::vector::vcode::{
    TILE_BYTES, TILE_CONFIG, TILE_ROW_BYTES, TILE_ROWS, TILES, TileConfigLayout, TileDot, TileReg,
};
use cranelift_codegen::ir::{
    BlockArg, InstBuilder, StackSlot, StackSlotData, StackSlotKind, Type, Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use cranelift_frontend::{FunctionBuilder, Variable};

/// Bytes of a Cranelift vector.
const VECTOR_BYTES: i32 = 16;

/// Vectors of a row.
const ROW_VECTORS: usize = TILE_ROW_BYTES / VECTOR_BYTES as usize;

/// Rows in memory: the address of the first one, and the distance between rows in bytes.
#[derive(Clone, Copy)]
pub(super) struct RowAddresses {
    pub(super) first: Value,
    pub(super) stride: Value,
}

impl RowAddresses {
    fn row(self, b: &mut FunctionBuilder, row: Value) -> Value {
        let offset = b.ins().imul(row, self.stride);
        b.ins().iadd(self.first, offset)
    }
}

/// The tile registers of one function.
#[derive(Clone, Copy)]
pub(super) struct TileRegisters {
    registers: StackSlot,
    config: StackSlot,
}

impl TileRegisters {
    /// Reserves stack memory for the registers and their configuration.
    pub(super) fn new(b: &mut FunctionBuilder) -> TileRegisters {
        let mut slot = |bytes: usize| {
            b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes as u32, 4))
        };
        TileRegisters { registers: slot(TILES * TILE_BYTES), config: slot(TILE_CONFIG.bytes) }
    }

    /// Copies the configuration at `address`.
    pub(super) fn configure(&self, b: &mut FunctionBuilder, address: Value) {
        for offset in (0..TILE_CONFIG.bytes as i32).step_by(8) {
            let word = b.ins().load(types::I64, no_trap(), address, offset);
            b.ins().stack_store(types::I64, word, self.config, offset);
        }
    }

    fn address(&self, b: &mut FunctionBuilder, tile: TileReg) -> Value {
        b.ins().stack_addr(types::I64, self.registers, (usize::from(tile) * TILE_BYTES) as i32)
    }

    /// The configured number of rows.
    fn row_count(&self, b: &mut FunctionBuilder, tile: TileReg) -> Value {
        let TileConfigLayout { row_counts, .. } = TILE_CONFIG;
        let address = b.ins().stack_addr(types::I64, self.config, (row_counts + usize::from(tile)) as i32);
        b.ins().uload8(types::I64, no_trap(), address, 0)
    }

    pub(super) fn zero(&self, b: &mut FunctionBuilder, tile: TileReg) {
        let address = self.address(b, tile);
        let rows = self.row_count(b, tile);
        let zero = splat(b, types::I32X4, 0);
        for_each(b, rows, |b, row| {
            let row_address = element_address(b, address, row, TILE_ROW_BYTES);
            for vector in 0..ROW_VECTORS {
                b.ins().store(no_trap(), zero, row_address, vector_offset(vector));
            }
        });
    }

    pub(super) fn load(&self, b: &mut FunctionBuilder, tile: TileReg, from: RowAddresses) {
        let first = self.address(b, tile);
        let rows = self.row_count(b, tile);
        let stride = b.ins().iconst(types::I64, TILE_ROW_BYTES as i64);
        copy_rows(b, rows, from, RowAddresses { first, stride });
    }

    pub(super) fn store(&self, b: &mut FunctionBuilder, to: RowAddresses, tile: TileReg) {
        let first = self.address(b, tile);
        let rows = self.row_count(b, tile);
        let stride = b.ins().iconst(types::I64, TILE_ROW_BYTES as i64);
        copy_rows(b, rows, RowAddresses { first, stride }, to);
    }

    /// Adds the product of `lhs` and `rhs` to `accumulator`.
    pub(super) fn dot(
        &self,
        b: &mut FunctionBuilder,
        op: TileDot,
        accumulator: TileReg,
        lhs: TileReg,
        rhs: TileReg,
    ) {
        let lhs = self.address(b, lhs);
        let rhs = self.address(b, rhs);
        let accumulators = self.address(b, accumulator);
        let rows = self.row_count(b, accumulator);
        let depth = b.ins().iconst(types::I64, TILE_ROWS as i64);

        for_each(b, rows, |b, row| {
            let lhs_row = element_address(b, lhs, row, TILE_ROW_BYTES);
            let accumulator_row = element_address(b, accumulators, row, TILE_ROW_BYTES);
            let sums = RowSums::zero(b, op);
            for_each(b, depth, |b, k| {
                let lhs_address = element_address(b, lhs_row, k, 4);
                let lhs_element = b.ins().load(types::I32, no_trap(), lhs_address, 0);
                let lhs_lanes = b.ins().splat(types::I32X4, lhs_element);
                let rhs_row = element_address(b, rhs, k, TILE_ROW_BYTES);
                sums.accumulate(b, lhs_lanes, rhs_row);
            });
            sums.add_to(b, accumulator_row);
        });
    }
}

/// The sums of one row of a product, before they are added to the accumulators.
struct RowSums {
    op: TileDot,
    ty: Type,
    /// For bf16, the sums of the first elements of all pairs, then those of the second ones.
    parts: Vec<[Variable; ROW_VECTORS]>,
}

impl RowSums {
    fn zero(b: &mut FunctionBuilder, op: TileDot) -> RowSums {
        let (ty, n_parts) = match op {
            TileDot::Bf16 => (types::F32X4, 2),
            TileDot::Bytes => (types::I32X4, 1),
        };
        let zero = splat(b, types::I32X4, 0);
        let zero = cast(b, ty, zero);
        let parts: Vec<[Variable; ROW_VECTORS]> =
            (0..n_parts).map(|_| std::array::from_fn(|_| b.declare_var(ty))).collect();
        parts.iter().flatten().for_each(|sum| b.def_var(*sum, zero));
        RowSums { op, ty, parts }
    }

    /// Adds the products of one 32-bit element of lhs, which `lhs` holds in all lanes, with a row of rhs.
    fn accumulate(&self, b: &mut FunctionBuilder, lhs: Value, rhs_row: Value) {
        for vector in 0..ROW_VECTORS {
            let rhs = b.ins().load(types::I32X4, no_trap(), rhs_row, vector_offset(vector));
            for (part, sums) in self.parts.iter().enumerate() {
                let before = b.use_var(sums[vector]);
                let after = match self.op {
                    TileDot::Bf16 => add_bf16_product(b, before, [lhs, rhs], part),
                    TileDot::Bytes => add_byte_products(b, before, lhs, rhs),
                };
                b.def_var(sums[vector], after);
            }
        }
    }

    fn add_to(&self, b: &mut FunctionBuilder, accumulator_row: Value) {
        for vector in 0..ROW_VECTORS {
            let before = b.ins().load(self.ty, no_trap(), accumulator_row, vector_offset(vector));
            let first = b.use_var(self.parts[0][vector]);
            let after = match self.op {
                TileDot::Bf16 => {
                    let second = b.use_var(self.parts[1][vector]);
                    let both = b.ins().fadd(first, second);
                    b.ins().fadd(before, both)
                }
                TileDot::Bytes => b.ins().iadd(before, first),
            };
            b.ins().store(no_trap(), after, accumulator_row, vector_offset(vector));
        }
    }
}

/// `before` plus the product of the first (`part` 0) or second bf16 of each lane. The product of two bf16 is exact in
/// `f32`, so only the addition rounds.
fn add_bf16_product(b: &mut FunctionBuilder, before: Value, operands: [Value; 2], part: usize) -> Value {
    let [x, y] = operands.map(|pairs| {
        let bits = if part == 0 {
            b.ins().ishl_imm_u(pairs, 16)
        } else {
            let high_half = splat(b, types::I32X4, 0xffff_0000_u32 as i32);
            b.ins().band(pairs, high_half)
        };

        // The machine reads denormals as zeros.
        let value = cast(b, types::F32X4, bits);
        let magnitude = b.ins().fabs(value);
        let smallest_normal = b.ins().f32const(f32::MIN_POSITIVE);
        let smallest_normal = b.ins().splat(types::F32X4, smallest_normal);
        let is_denormal = b.ins().fcmp(FloatCC::LessThan, magnitude, smallest_normal);
        let bits = b.ins().band_not(bits, is_denormal);
        cast(b, types::F32X4, bits)
    });
    let product = b.ins().fmul(x, y);
    b.ins().fadd(before, product)
}

/// `before` plus the products of the four bytes of each lane, unsigned in `x` and signed in `y`.
fn add_byte_products(b: &mut FunctionBuilder, before: Value, x: Value, y: Value) -> Value {
    (0..4).fold(before, |sum, byte| {
        let shift = 24 - 8 * byte;
        let x = b.ins().ishl_imm_u(x, shift);
        let x = b.ins().ushr_imm_u(x, 24);
        let y = b.ins().ishl_imm_u(y, shift);
        let y = b.ins().sshr_imm_u(y, 24);
        let product = b.ins().imul(x, y);
        b.ins().iadd(sum, product)
    })
}

fn vector_offset(vector: usize) -> i32 {
    VECTOR_BYTES * vector as i32
}

/// `base + idx * bytes`.
fn element_address(b: &mut FunctionBuilder, base: Value, idx: Value, bytes: usize) -> Value {
    let offset = b.ins().imul_imm_s(idx, bytes as i64);
    b.ins().iadd(base, offset)
}

/// Copies rows of [`TILE_ROW_BYTES`] bytes.
fn copy_rows(b: &mut FunctionBuilder, rows: Value, from: RowAddresses, to: RowAddresses) {
    for_each(b, rows, |b, row| {
        let from_row = from.row(b, row);
        let to_row = to.row(b, row);
        for vector in 0..ROW_VECTORS {
            let value = b.ins().load(types::I32X4, no_trap(), from_row, vector_offset(vector));
            b.ins().store(no_trap(), value, to_row, vector_offset(vector));
        }
    });
}

/// Runs `body` for 0, 1, ... below `count`, which is at least 1. Blocks are sealed when the function is complete.
fn for_each(b: &mut FunctionBuilder, count: Value, body: impl FnOnce(&mut FunctionBuilder, Value)) {
    let head = b.create_block();
    let after = b.create_block();
    let idx = b.append_block_param(head, types::I64);
    let zero = b.ins().iconst(types::I64, 0);
    b.ins().jump(head, &[BlockArg::Value(zero)]);

    b.switch_to_block(head);
    body(b, idx);
    let next = b.ins().iadd_imm_s(idx, 1);
    let again = b.ins().icmp(IntCC::SignedLessThan, next, count);
    b.ins().brif(again, head, &[BlockArg::Value(next)], after, &[]);

    b.switch_to_block(after);
}
