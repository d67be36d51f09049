//! Tile registers in memory, as Cranelift IR: an emulation for machines without them.
//!
//! Sums are added up in the order and with the roundings that [`TileDot`] tells, so results are bit by bit those of a
//! machine that has the registers, but for sums that are denormal on the way.

use super::Ctx;
use crate::codegen::vector::vcode::{
    Mem, TILE_CONFIG, TILE_ROW_BYTES, TILE_ROWS, TILES, TileDot, TileReg, VInst, Vector,
};
use cranelift_codegen::ir::{
    BlockArg, Endianness, InstBuilder, MemFlagsData, StackSlot, StackSlotData, StackSlotKind, Type, Value,
    condcodes::{FloatCC, IntCC},
    types,
};
use cranelift_frontend::FunctionBuilder;

impl Ctx<'_> {
    /// A step of tile registers.
    pub(super) fn tile(&mut self, step: &VInst) {
        let registers = *self.tiles.get_or_insert_with(|| Registers::new(&mut self.b));
        match step {
            VInst::TileConfig(mem) => {
                let at = self.place(*mem);
                registers.configure(&mut self.b, at);
            }
            VInst::TileRelease => {}
            VInst::TileZero(tile) => registers.zero(&mut self.b, *tile),
            VInst::TileLoad(tile, mem) => {
                let (at, stride) = self.rows(*mem);
                registers.load(&mut self.b, *tile, at, stride);
            }
            VInst::TileStore(mem, tile) => {
                let (at, stride) = self.rows(*mem);
                registers.store(&mut self.b, at, stride, *tile);
            }
            VInst::TileDot(product, sum, x, y) => registers.dot(&mut self.b, *product, *sum, [*x, *y]),
            _ => unreachable!("not a step of tiles: {step:?}"),
        }
    }

    /// The lanes of `x`, or 0 where `y` is infinite.
    pub(super) fn unless_infinite(&mut self, x: Vector, y: Vector) -> Value {
        let (bits, other) = (self.ints_of(x), self.ints_of(y));
        let [sign, infinite] =
            [1 << 31, 0x7f80_0000_u32].map(|bits| splat(&mut self.b, types::I32X4, bits as i32));
        let size = self.b.ins().band_not(other, sign);
        let is_infinite = self.b.ins().icmp(IntCC::Equal, size, infinite);
        self.b.ins().band_not(bits, is_infinite)
    }

    /// The nearest bf16 of each lane as the lane's high half, ties to even; denormals become zeros.
    pub(super) fn bf16(&mut self, x: Vector) -> Value {
        let bits = self.ints_of(x);
        let above = self.b.ins().ushr_imm_u(bits, 16);
        let [one, half, high, sign, least, nan] =
            [1, 0x7fff, 0xffff_0000, 1 << 31, 0x0080_0000, 0x7fc0_0000_u32]
                .map(|bits| splat(&mut self.b, types::I32X4, bits as i32));
        let even = self.b.ins().band(above, one);
        let moved = self.b.ins().iadd(bits, half);
        let moved = self.b.ins().iadd(moved, even);
        let rounded = self.b.ins().band(moved, high);
        let size = self.b.ins().band_not(bits, sign);
        let zero = self.b.ins().band(bits, sign);
        let is_small = self.b.ins().icmp(IntCC::UnsignedLessThan, size, least);
        let rounded = self.b.ins().bitselect(is_small, zero, rounded);
        let value = cast(&mut self.b, types::F32X4, bits);
        let is_nan = self.b.ins().fcmp(FloatCC::Unordered, value, value);
        self.b.ins().bitselect(is_nan, nan, rounded)
    }

    fn place(&mut self, mem: Mem) -> Value {
        let (base, disp) = self.address(mem);
        self.b.ins().iadd_imm_s(base, i64::from(disp))
    }

    /// The first row of a tile in memory, and the distance of rows.
    fn rows(&mut self, mem: Mem) -> (Value, Value) {
        let stride = mem.index.map_or(mem.base, |(stride, _)| stride);
        (self.place(Mem { index: None, ..mem }), self.int(stride))
    }
}

/// Bytes of a register.
const BYTES: usize = TILE_ROWS * TILE_ROW_BYTES;

/// Vectors of a row.
const VECTORS: usize = TILE_ROW_BYTES / 16;

/// The registers of one function.
#[derive(Clone, Copy)]
pub(super) struct Registers {
    all: StackSlot,
    config: StackSlot,
}

impl Registers {
    /// Their memory.
    pub(super) fn new(b: &mut FunctionBuilder) -> Registers {
        let mut slot = |bytes: usize| {
            b.create_sized_stack_slot(StackSlotData::new(StackSlotKind::ExplicitSlot, bytes as u32, 4))
        };
        Registers { all: slot(TILES * BYTES), config: slot(TILE_CONFIG.0) }
    }

    /// Takes over how many rows the registers have.
    pub(super) fn configure(&self, b: &mut FunctionBuilder, at: Value) {
        for idx in 0..TILE_CONFIG.0 / 8 {
            let word = b.ins().load(types::I64, flags(), at, 8 * idx as i32);
            b.ins().stack_store(types::I64, word, self.config, 8 * idx as i32);
        }
    }

    fn place(&self, b: &mut FunctionBuilder, tile: TileReg) -> Value {
        b.ins().stack_addr(types::I64, self.all, (usize::from(tile) * BYTES) as i32)
    }

    fn rows(&self, b: &mut FunctionBuilder, tile: TileReg) -> Value {
        let at = b.ins().stack_addr(types::I64, self.config, (TILE_CONFIG.2 + usize::from(tile)) as i32);
        b.ins().uload8(types::I64, flags(), at, 0)
    }

    pub(super) fn zero(&self, b: &mut FunctionBuilder, tile: TileReg) {
        let (place, rows) = (self.place(b, tile), self.rows(b, tile));
        let zero = splat(b, types::I32X4, 0);
        each(b, rows, |b, row| {
            let at = step(b, place, row, TILE_ROW_BYTES);
            for vector in 0..VECTORS {
                b.ins().store(flags(), zero, at, 16 * vector as i32);
            }
        });
    }

    pub(super) fn load(&self, b: &mut FunctionBuilder, tile: TileReg, from: Value, stride: Value) {
        let (place, rows) = (self.place(b, tile), self.rows(b, tile));
        let bytes = b.ins().iconst(types::I64, TILE_ROW_BYTES as i64);
        copy(b, rows, (from, stride), (place, bytes));
    }

    pub(super) fn store(&self, b: &mut FunctionBuilder, to: Value, stride: Value, tile: TileReg) {
        let (place, rows) = (self.place(b, tile), self.rows(b, tile));
        let bytes = b.ins().iconst(types::I64, TILE_ROW_BYTES as i64);
        copy(b, rows, (place, bytes), (to, stride));
    }

    /// Adds the product of two registers to a third.
    pub(super) fn dot(&self, b: &mut FunctionBuilder, product: TileDot, sum: TileReg, factors: [TileReg; 2]) {
        let [x, y] = factors.map(|tile| self.place(b, tile));
        let (to, rows) = (self.place(b, sum), self.rows(b, sum));
        let elems = b.ins().iconst(types::I64, TILE_ROWS as i64);
        let parts = match product {
            TileDot::Bf16 => 2,
            TileDot::Bytes => 1,
        };
        each(b, rows, |b, row| {
            let (x, to) = (step(b, x, row, TILE_ROW_BYTES), step(b, to, row, TILE_ROW_BYTES));
            let dtype = if product == TileDot::Bf16 { types::F32X4 } else { types::I32X4 };
            let zero = splat(b, types::I32X4, 0);
            let zero = cast(b, dtype, zero);
            let sums: Vec<_> = (0..parts * VECTORS).map(|_| b.declare_var(dtype)).collect();
            sums.iter().for_each(|sum| b.def_var(*sum, zero));
            each(b, elems, |b, k| {
                let at = step(b, x, k, 4);
                let x = b.ins().load(types::I32, flags(), at, 0);
                let x = b.ins().splat(types::I32X4, x);
                let row = step(b, y, k, TILE_ROW_BYTES);
                for vector in 0..VECTORS {
                    let y = b.ins().load(types::I32X4, flags(), row, 16 * vector as i32);
                    for part in 0..parts {
                        let variable = sums[part * VECTORS + vector];
                        let before = b.use_var(variable);
                        let after = match product {
                            TileDot::Bf16 => bf16(b, before, [x, y], part),
                            TileDot::Bytes => bytes(b, before, [x, y]),
                        };
                        b.def_var(variable, after);
                    }
                }
            });
            for vector in 0..VECTORS {
                let before = b.ins().load(dtype, flags(), to, 16 * vector as i32);
                let first = b.use_var(sums[vector]);
                let after = match product {
                    TileDot::Bf16 => {
                        let second = b.use_var(sums[VECTORS + vector]);
                        let both = b.ins().fadd(first, second);
                        b.ins().fadd(before, both)
                    }
                    TileDot::Bytes => b.ins().iadd(before, first),
                };
                b.ins().store(flags(), after, to, 16 * vector as i32);
            }
        });
    }
}

/// `before` plus the product of the first or second bf16 of each lane: exact before it is added, as 8 bits times 8 are.
fn bf16(b: &mut FunctionBuilder, before: Value, factors: [Value; 2], part: usize) -> Value {
    let [x, y] = factors.map(|pairs| {
        let bits = match part {
            0 => b.ins().ishl_imm_u(pairs, 16),
            _ => {
                let mask = splat(b, types::I32X4, 0xffff_0000_u32 as i32);
                b.ins().band(pairs, mask)
            }
        };
        let value = cast(b, types::F32X4, bits);
        let size = b.ins().fabs(value);
        let least = b.ins().f32const(f32::MIN_POSITIVE);
        let least = b.ins().splat(types::F32X4, least);
        let denormal = b.ins().fcmp(FloatCC::LessThan, size, least);
        let bits = b.ins().band_not(bits, denormal);
        cast(b, types::F32X4, bits)
    });
    let product = b.ins().fmul(x, y);
    b.ins().fadd(before, product)
}

/// `before` plus the products of the four bytes of each lane.
fn bytes(b: &mut FunctionBuilder, before: Value, [x, y]: [Value; 2]) -> Value {
    (0..4).fold(before, |sum, byte| {
        let up = 24 - 8 * byte;
        let x = b.ins().ishl_imm_u(x, up);
        let x = b.ins().ushr_imm_u(x, 24);
        let y = b.ins().ishl_imm_u(y, up);
        let y = b.ins().sshr_imm_u(y, 24);
        let product = b.ins().imul(x, y);
        b.ins().iadd(sum, product)
    })
}

fn flags() -> MemFlagsData {
    MemFlagsData::new().with_notrap()
}

fn cast(b: &mut FunctionBuilder, dtype: Type, value: Value) -> Value {
    match b.func.dfg.value_type(value) == dtype {
        true => value,
        false => b.ins().bitcast(dtype, MemFlagsData::new().with_endianness(Endianness::Little), value),
    }
}

fn splat(b: &mut FunctionBuilder, dtype: Type, bits: i32) -> Value {
    let lane = b.ins().iconst(types::I32, i64::from(bits as u32));
    b.ins().splat(dtype, lane)
}

/// `base + number * bytes`.
fn step(b: &mut FunctionBuilder, base: Value, number: Value, bytes: usize) -> Value {
    let skipped = b.ins().imul_imm_s(number, bytes as i64);
    b.ins().iadd(base, skipped)
}

/// Copies rows of a register's length.
fn copy(b: &mut FunctionBuilder, rows: Value, from: (Value, Value), to: (Value, Value)) {
    each(b, rows, |b, row| {
        let [from, to] = [from, to].map(|(first, stride)| {
            let skipped = b.ins().imul(row, stride);
            b.ins().iadd(first, skipped)
        });
        for vector in 0..VECTORS {
            let value = b.ins().load(types::I32X4, flags(), from, 16 * vector as i32);
            b.ins().store(flags(), value, to, 16 * vector as i32);
        }
    });
}

/// A loop that runs at least once; blocks are sealed with the function's.
fn each(b: &mut FunctionBuilder, count: Value, body: impl FnOnce(&mut FunctionBuilder, Value)) {
    let (head, after) = (b.create_block(), b.create_block());
    let number = b.append_block_param(head, types::I64);
    let zero = b.ins().iconst(types::I64, 0);
    b.ins().jump(head, &[BlockArg::Value(zero)]);
    b.switch_to_block(head);
    body(b, number);
    let next = b.ins().iadd_imm_s(number, 1);
    let more = b.ins().icmp(IntCC::SignedLessThan, next, count);
    b.ins().brif(more, head, &[BlockArg::Value(next)], after, &[]);
    b.switch_to_block(after);
}
