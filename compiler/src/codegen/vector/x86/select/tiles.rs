//! Tile registers, one instruction for each step, and conversions to bf16, which machines with tile registers have too.

use super::Selector;
use crate::codegen::vector::{
    vcode::{Mask, Mem, TileDot, TileReg, VInst, Vector, VectorHalf},
    x86::asm::Operand,
};
use iced_x86::{Code, Register};

/// The table of `vfixupimmps`: the replacement of a lane by the class of another lane, four bits for each class. From
/// the lowest bits, the classes are quiet NaN, signalling NaN, zero, one, negative infinity, positive infinity,
/// negative and positive. Replacement 0 keeps the lane, 8 is zero.
const ZERO_OF_INFINITE: u32 = 0x0088_0000;

impl Selector<'_> {
    /// Selects a step that uses tile registers.
    pub(super) fn tile(&mut self, step: &VInst) {
        let tile = |tile: &TileReg| Operand::from(Register::TMM0 + u32::from(*tile));
        match step {
            VInst::TileConfig(mem) => self.asm.op(Code::VEX_Ldtilecfg_m512, &[self.mem(*mem).into()]),
            VInst::TileRelease => self.asm.op(Code::VEX_Tilerelease, &[]),
            VInst::TileZero(dst) => self.asm.op(Code::VEX_Tilezero_tmm, &[tile(dst)]),
            VInst::TileLoad(dst, mem) => {
                self.asm.op(Code::VEX_Tileloadd_tmm_sibmem, &[tile(dst), self.mem(*mem).into()]);
            }
            VInst::TileStore(mem, src) => {
                self.asm.op(Code::VEX_Tilestored_sibmem_tmm, &[self.mem(*mem).into(), tile(src)]);
            }
            VInst::TileDot(op, accumulator, lhs, rhs) => {
                let code = match op {
                    TileDot::Bf16 => Code::VEX_Tdpbf16ps_tmm_tmm_tmm,
                    TileDot::Bytes => Code::VEX_Tdpbusd_tmm_tmm_tmm,
                };
                self.asm.op(code, &[tile(accumulator), tile(lhs), tile(rhs)]);
            }
            _ => unreachable!("not a step of tiles: {step:?}"),
        }
    }

    /// The nearest bf16 of each lane as the high half of the lane.
    pub(super) fn round_bf16(&mut self, dst: Vector, a: Vector) {
        let half = self.half(dst);
        let from = self.vector(a);
        self.asm.op(Code::EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32, &[half.into(), from.into()]);
        self.widen_bf16(dst, half);
    }

    /// The nearest bf16 of each lane that the mask has, to consecutive memory.
    pub(super) fn store_bf16_first(&mut self, mem: Mem, src: Vector, temp: Vector, mask: Mask) {
        let half = self.half(temp);
        let from = self.vector(src);
        let to = self.mem(mem);
        self.asm.op(Code::EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32, &[half.into(), from.into()]);
        let mask = self.mask(mask);
        self.asm.op_masked(Code::EVEX_Vmovdqu16_ymmm256_k1z_ymm, &[to.into(), half.into()], mask, false);
    }

    /// Extends half a register of bf16 to floats.
    fn widen_bf16(&mut self, dst: Vector, half: Register) {
        let whole = self.vector(dst);
        self.asm.op(Code::EVEX_Vpmovzxwd_zmm_k1z_ymmm256, &[whole.into(), half.into()]);
        self.asm.op(Code::EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8, &[whole.into(), whole.into(), 16.into()]);
    }

    /// The nearest bf16 of the lanes of `a`, then those of `b`.
    pub(super) fn pack_bf16(&mut self, dst: Vector, a: Vector, b: Vector) {
        let [dst, a, b] = [dst, a, b].map(|vector| self.vector(vector).into());
        self.asm.op(Code::EVEX_Vcvtne2ps2bf16_zmm_k1z_zmm_zmmm512b32, &[dst, b, a]);
    }

    /// One half of a packed register of bf16 as floats.
    pub(super) fn unpack_bf16(&mut self, dst: Vector, a: Vector, half: VectorHalf) {
        if half == VectorHalf::First {
            return self.widen_bf16(dst, self.half(a));
        }
        let second = self.half(dst);
        let from = self.vector(a);
        self.asm.op(Code::EVEX_Vextracti64x4_ymmm256_k1z_zmm_imm8, &[second.into(), from.into(), 1.into()]);
        self.widen_bf16(dst, second);
    }

    /// The lanes of `a`, or 0 where `b` is infinite.
    pub(super) fn unless_infinite(&mut self, dst: Vector, a: Vector, b: Vector) {
        let [dst, a, b] = [dst, a, b].map(|vector| self.vector(vector));
        self.copy(dst, a);
        let code = Code::EVEX_Vfixupimmps_zmm_k1z_zmm_zmmm512b32_imm8_sae;
        let table = self.splat(ZERO_OF_INFINITE);
        self.asm.op(code, &[dst.into(), b.into(), table, 0.into()]);
    }

    /// The nearest bf16 of each lane, to consecutive memory.
    pub(super) fn store_bf16(&mut self, mem: Mem, src: Vector, temp: Vector) {
        let half = self.half(temp);
        let from = self.vector(src);
        let to = self.mem(mem);
        self.asm.op(Code::EVEX_Vcvtneps2bf16_ymm_k1z_zmmm512b32, &[half.into(), from.into()]);
        self.asm.op(Code::EVEX_Vmovups_ymmm256_k1z_ymm, &[to.into(), half.into()]);
    }

    /// The lower half of a 512-bit register.
    pub(super) fn half(&self, vector: Vector) -> Register {
        Register::YMM0 + (self.low(vector) as u32 - Register::XMM0 as u32)
    }
}
