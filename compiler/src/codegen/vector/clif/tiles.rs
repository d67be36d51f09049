//! Steps that use tile registers, and conversions to bf16, as Cranelift IR.

use super::{
    Translator,
    lanes::splat,
    tile_registers::{RowAddresses, TileRegisters},
};
use crate::codegen::vector::vcode::{Mem, VInst, Vector};
use cranelift_codegen::ir::{
    InstBuilder, Value,
    condcodes::{FloatCC, IntCC},
    types,
};

impl Translator<'_> {
    /// Translates a step that uses tile registers.
    pub(super) fn tile(&mut self, step: &VInst) {
        let registers = *self.tiles.get_or_insert_with(|| TileRegisters::new(&mut self.b));
        match step {
            VInst::TileConfig(mem) => {
                let address = self.full_address(*mem);
                registers.configure(&mut self.b, address);
            }
            VInst::TileRelease => {}
            VInst::TileZero(tile) => registers.zero(&mut self.b, *tile),
            VInst::TileLoad(tile, mem) => {
                let from = self.row_addresses(*mem);
                registers.load(&mut self.b, *tile, from);
            }
            VInst::TileStore(mem, tile) => {
                let to = self.row_addresses(*mem);
                registers.store(&mut self.b, to, *tile);
            }
            VInst::TileDot(op, accumulator, lhs, rhs) => {
                registers.dot(&mut self.b, *op, *accumulator, *lhs, *rhs);
            }
            _ => unreachable!("not a step of tiles: {step:?}"),
        }
    }

    /// The lanes of `x`, or 0 where `y` is infinite.
    pub(super) fn unless_infinite(&mut self, x: Vector, y: Vector) -> Value {
        let x_bits = self.ints_of(x);
        let y_bits = self.ints_of(y);
        let sign = self.splat_bits(1 << 31);
        let infinity = self.splat_bits(0x7f80_0000);

        let magnitude = self.b.ins().band_not(y_bits, sign);
        let is_infinite = self.b.ins().icmp(IntCC::Equal, magnitude, infinity);
        self.b.ins().band_not(x_bits, is_infinite)
    }

    /// The nearest bf16 of each lane as the lane's high half, ties to even. Denormals become zeros.
    pub(super) fn bf16(&mut self, x: Vector) -> Value {
        let bits = self.ints_of(x);
        let shifted = self.b.ins().ushr_imm_u(bits, 16);
        let one = self.splat_bits(1);
        let almost_half = self.splat_bits(0x7fff);
        let high_half = self.splat_bits(0xffff_0000);
        let sign = self.splat_bits(1 << 31);
        let smallest_normal = self.splat_bits(0x0080_0000);
        let quiet_nan = self.splat_bits(0x7fc0_0000);

        // Round to nearest, ties to even.
        let is_odd = self.b.ins().band(shifted, one);
        let sum = self.b.ins().iadd(bits, almost_half);
        let sum = self.b.ins().iadd(sum, is_odd);
        let rounded = self.b.ins().band(sum, high_half);

        let magnitude = self.b.ins().band_not(bits, sign);
        let signed_zero = self.b.ins().band(bits, sign);
        let is_denormal = self.b.ins().icmp(IntCC::UnsignedLessThan, magnitude, smallest_normal);
        let rounded = self.b.ins().bitselect(is_denormal, signed_zero, rounded);

        let value = self.as_type(types::F32X4, bits);
        let is_nan = self.b.ins().fcmp(FloatCC::Unordered, value, value);
        self.b.ins().bitselect(is_nan, quiet_nan, rounded)
    }

    fn splat_bits(&mut self, bits: u32) -> Value {
        splat(&mut self.b, types::I32X4, bits as i32)
    }

    fn full_address(&mut self, mem: Mem) -> Value {
        let (base, disp) = self.address(mem);
        self.b.ins().iadd_imm_s(base, i64::from(disp))
    }

    /// The rows of a tile in memory. The index register is the distance between rows.
    fn row_addresses(&mut self, mem: Mem) -> RowAddresses {
        let stride = mem.index.map_or(mem.base, |(stride, _)| stride);
        let first = self.full_address(Mem { index: None, ..mem });
        RowAddresses { first, stride: self.int(stride) }
    }
}
