//! Steps on 64-bit lanes.

use super::{Selector, float_predicate, int_predicate};
use crate::{
    codegen::vector::{
        vcode::{Int, Mask, Mem, VInst, Vector, VectorHalf, WideBinary, WideUnary},
        x86::{asm::Operand, registers::low_half, simd::Simd},
    },
    scalar::CompareOp,
};
use iced_x86::Code;

/// Moves the even 64-bit groups before the odd ones.
const EVEN_THEN_ODD: i32 = 0b11_01_10_00;

impl Selector<'_> {
    pub(super) fn wide(&mut self, step: &VInst) {
        match step {
            VInst::WideBinary(op, dst, a, b) => self.wide_binary(*op, *dst, *a, *b),
            VInst::WideUnary(op, dst, a) => self.wide_unary(*op, *dst, *a),
            VInst::WideShift(op, dst, a, by) => {
                let code = self.simd.wide_shift(*op);
                let by = i32::from(*by);
                self.asm.op(code, &[self.vector(*dst).into(), self.vector(*a).into(), by.into()]);
            }
            VInst::WideConstant(..) => {}
            VInst::WideBroadcast(dst, mem) => self.wide_broadcast(*dst, *mem),
            VInst::WideCompare(op, dst, a, b) => self.wide_compare(*op, *dst, *a, *b),
            VInst::WideCompareInt(op, dst, a, b) => self.wide_compare_int(*op, *dst, *a, *b),
            VInst::WideSelect(dst, mask, a, b) => self.wide_select(*dst, *mask, *a, *b),
            VInst::MaskHalf(dst, a, half) => self.mask_half(*dst, *a, *half),
            VInst::AnyLane(dst, mask) => self.any_lane(*dst, *mask),
            _ => unreachable!("not a step on 64-bit lanes: {step:?}"),
        }
    }

    fn wide_broadcast(&mut self, dst: Vector, mem: Mem) {
        self.asm.op(self.simd.wide_broadcast(), &[self.vector(dst).into(), self.mem(mem).into()]);
    }

    fn wide_binary(&mut self, op: WideBinary, dst: Vector, a: Vector, b: Vector) {
        let code = self.simd.wide_binary(op);
        let to = self.vector(dst).into();
        let x = self.vector(a).into();
        if op == WideBinary::JoinHalves {
            let half = self.simd.first_half(self.allocated.place(b)).into();
            return self.asm.op(code, &[to, x, half, 1.into()]);
        }
        let y = self.source(b);
        self.asm.op(code, &[to, x, y]);
    }

    fn wide_unary(&mut self, op: WideUnary, dst: Vector, a: Vector) {
        let (code, mode) = self.simd.wide_unary(op);
        let whole_dst: Operand = self.vector(dst).into();
        let whole_a: Operand = self.vector(a).into();
        let half_dst: Operand = self.simd.first_half(self.allocated.place(dst)).into();
        let half_a: Operand = self.simd.first_half(self.allocated.place(a)).into();
        match op {
            WideUnary::Sqrt | WideUnary::LongsToDoubles | WideUnary::DoublesToLongs => {
                self.asm.op(code, &[whole_dst, whole_a])
            }
            WideUnary::Floor | WideUnary::Ceil | WideUnary::Nearest | WideUnary::Trunc => {
                self.asm.op(code, &[whole_dst, whole_a, mode.into()]);
            }
            WideUnary::SecondHalf => self.asm.op(code, &[half_dst, whole_a, mode.into()]),
            WideUnary::ExtendInts | WideUnary::IntsToDoubles | WideUnary::FloatsToDoubles => {
                self.asm.op(code, &[whole_dst, half_a]);
            }
            WideUnary::DoublesToFloats | WideUnary::DoublesToInts | WideUnary::LongsToFloats => {
                self.asm.op(code, &[half_dst, whole_a]);
            }
            WideUnary::LowInts if self.simd == Simd::Avx512 => self.asm.op(code, &[half_dst, whole_a]),
            WideUnary::LowInts => {
                // The even lanes of each 128-bit half, then those of both halves.
                self.asm.op(code, &[whole_dst, whole_a, mode.into()]);
                let permute = Code::VEX_Vpermq_ymm_ymmm256_imm8;
                self.asm.op(permute, &[whole_dst, whole_dst, EVEN_THEN_ODD.into()]);
            }
        }
    }

    fn wide_compare(&mut self, op: CompareOp, dst: Mask, a: Vector, b: Vector) {
        let code = self
            .simd
            .pick(Code::VEX_Vcmppd_ymm_ymm_ymmm256_imm8, Code::EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae);
        let b = self.source(b);
        let predicate = float_predicate(op).into();
        self.asm.op(code, &[self.mask(dst).into(), self.vector(a).into(), b, predicate]);
    }

    fn wide_compare_int(&mut self, op: CompareOp, dst: Mask, a: Vector, b: Vector) {
        let operands = [self.mask(dst).into(), self.vector(a).into(), self.vector(b).into()];
        if self.simd == Simd::Avx512 {
            let [dst, a, b] = operands;
            let code = Code::EVEX_Vpcmpq_kr_k1_zmm_zmmm512b64_imm8;
            return self.asm.op(code, &[dst, a, b, int_predicate(op).into()]);
        }
        self.compare_int_avx2(
            op,
            operands,
            [Code::VEX_Vpcmpeqq_ymm_ymm_ymmm256, Code::VEX_Vpcmpgtq_ymm_ymm_ymmm256],
        );
    }

    fn wide_select(&mut self, dst: Vector, mask: Mask, a: Vector, b: Vector) {
        let a = self.source(a);
        let dst = self.vector(dst).into();
        let b = self.vector(b).into();
        let mask = self.mask(mask);
        match self.simd {
            Simd::Avx2 => self.asm.op(Code::VEX_Vblendvpd_ymm_ymm_ymmm256_ymm, &[dst, b, a, mask.into()]),
            Simd::Avx512 => {
                let code = Code::EVEX_Vblendmpd_zmm_k1z_zmm_zmmm512b64;
                self.asm.op_masked(code, &[dst, b, a], mask, false);
            }
        }
    }

    /// The mask of 32-bit lanes of two masks of 64-bit lanes.
    pub(super) fn join_masks(&mut self, dst: Mask, a: Mask, b: Mask) {
        let dst: Operand = self.mask(dst).into();
        let a = self.mask(a).into();
        let b = self.mask(b).into();
        if self.simd == Simd::Avx512 {
            return self.asm.op(Code::VEX_Kunpckbw_kr_kr_kr, &[dst, b, a]);
        }
        // The low half of each 64-bit lane, within 128-bit halves.
        let low_halves: Operand = 0b10_00_10_00.into();
        self.asm.op(Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8, &[dst, a, b, low_halves]);
        self.asm.op(Code::VEX_Vpermpd_ymm_ymmm256_imm8, &[dst, dst, EVEN_THEN_ODD.into()]);
    }

    fn mask_half(&mut self, dst: Mask, a: Mask, half: VectorHalf) {
        if self.simd == Simd::Avx512 {
            let by = if half == VectorHalf::First { 0 } else { self.simd.lanes() as i32 / 2 };
            let operands = [self.mask(dst).into(), self.mask(a).into(), by.into()];
            return self.asm.op(Code::VEX_Kshiftrw_kr_kr_imm8, &operands);
        }
        let low_dst: Operand = self.simd.low(self.allocated.place(dst)).into();
        let mut source: Operand = self.simd.low(self.allocated.place(a)).into();
        if half == VectorHalf::Second {
            let extract = Code::VEX_Vextracti128_xmmm128_ymm_imm8;
            self.asm.op(extract, &[low_dst, self.mask(a).into(), 1.into()]);
            source = low_dst;
        }
        self.asm.op(Code::VEX_Vpmovsxdq_ymm_xmmm128, &[self.mask(dst).into(), source]);
    }

    fn any_lane(&mut self, dst: Int, mask: Mask) {
        let code = self.simd.pick(Code::VEX_Vmovmskps_r32_ymm, Code::VEX_Kmovw_r32_kr);
        self.asm.op(code, &[low_half(self.int(dst)).into(), self.mask(mask).into()]);
    }
}
