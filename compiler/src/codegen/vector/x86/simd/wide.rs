//! The codes of operations on 64-bit lanes.

use super::Simd;
use crate::codegen::vector::vcode::{ShiftOp, WideBinary, WideUnary};
use iced_x86::Code;

impl Simd {
    /// The code of an operation on two vectors. That of `JoinHalves` has an immediate.
    pub(crate) fn wide_binary(self, op: WideBinary) -> Code {
        use Code::*;
        let (avx2, avx512) = match op {
            WideBinary::Add => (VEX_Vaddpd_ymm_ymm_ymmm256, EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er),
            WideBinary::Sub => (VEX_Vsubpd_ymm_ymm_ymmm256, EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er),
            WideBinary::Mul => (VEX_Vmulpd_ymm_ymm_ymmm256, EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er),
            WideBinary::Div => (VEX_Vdivpd_ymm_ymm_ymmm256, EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er),
            WideBinary::Min => (VEX_Vminpd_ymm_ymm_ymmm256, EVEX_Vminpd_zmm_k1z_zmm_zmmm512b64_sae),
            WideBinary::Max => (VEX_Vmaxpd_ymm_ymm_ymmm256, EVEX_Vmaxpd_zmm_k1z_zmm_zmmm512b64_sae),
            WideBinary::AddInt => (VEX_Vpaddq_ymm_ymm_ymmm256, EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64),
            WideBinary::SubInt => (VEX_Vpsubq_ymm_ymm_ymmm256, EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64),
            // AVX2 has no such instruction: its shape has no `long_ints`.
            WideBinary::MulInt => (INVALID, EVEX_Vpmullq_zmm_k1z_zmm_zmmm512b64),
            WideBinary::MulLow => (VEX_Vpmuludq_ymm_ymm_ymmm256, EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64),
            WideBinary::ShiftLeft => (VEX_Vpsllvq_ymm_ymm_ymmm256, EVEX_Vpsllvq_zmm_k1z_zmm_zmmm512b64),
            WideBinary::ShiftRight => (VEX_Vpsrlvq_ymm_ymm_ymmm256, EVEX_Vpsrlvq_zmm_k1z_zmm_zmmm512b64),
            WideBinary::JoinHalves => {
                (VEX_Vinsertf128_ymm_ymm_xmmm128_imm8, EVEX_Vinsertf64x4_zmm_k1z_zmm_ymmm256_imm8)
            }
        };
        self.pick(avx2, avx512)
    }

    /// The code of an operation on one vector, and its immediate, which is 0 where it has none.
    pub(crate) fn wide_unary(self, op: WideUnary) -> (Code, i32) {
        use Code::*;

        // The rounding mode, in which bit 3 suppresses the inexact exception; the half; or the even lanes of four.
        let immediate = match op {
            WideUnary::Nearest => 8,
            WideUnary::Floor => 9,
            WideUnary::Ceil => 10,
            WideUnary::Trunc => 11,
            WideUnary::SecondHalf => 1,
            WideUnary::LowInts => 0b10_00_10_00,
            _ => 0,
        };

        let (avx2, avx512) = match op {
            WideUnary::Sqrt => (VEX_Vsqrtpd_ymm_ymmm256, EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er),
            WideUnary::Floor | WideUnary::Ceil | WideUnary::Nearest | WideUnary::Trunc => {
                (VEX_Vroundpd_ymm_ymmm256_imm8, EVEX_Vrndscalepd_zmm_k1z_zmmm512b64_imm8_sae)
            }
            WideUnary::SecondHalf => {
                (VEX_Vextractf128_xmmm128_ymm_imm8, EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8)
            }
            WideUnary::ExtendInts => (VEX_Vpmovsxdq_ymm_xmmm128, EVEX_Vpmovsxdq_zmm_k1z_ymmm256),
            WideUnary::IntsToDoubles => (VEX_Vcvtdq2pd_ymm_xmmm128, EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er),
            WideUnary::FloatsToDoubles => (VEX_Vcvtps2pd_ymm_xmmm128, EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae),
            WideUnary::LowInts => (VEX_Vpshufd_ymm_ymmm256_imm8, EVEX_Vpmovqd_ymmm256_k1z_zmm),
            WideUnary::DoublesToFloats => (VEX_Vcvtpd2ps_xmm_ymmm256, EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er),
            WideUnary::LongsToDoubles => (INVALID, EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er),
            WideUnary::LongsToFloats => (INVALID, EVEX_Vcvtqq2ps_ymm_k1z_zmmm512b64_er),
            WideUnary::DoublesToLongs => (INVALID, EVEX_Vcvttpd2qq_zmm_k1z_zmmm512b64_sae),
            WideUnary::DoublesToInts => (VEX_Vcvttpd2dq_xmm_ymmm256, EVEX_Vcvttpd2dq_ymm_k1z_zmmm512b64_sae),
        };
        (self.pick(avx2, avx512), immediate)
    }

    /// The code of a shift by a constant. Not all ISAs have signed ones.
    pub(crate) fn wide_shift(self, op: ShiftOp) -> Code {
        use Code::*;
        match op {
            ShiftOp::Left => self.pick(VEX_Vpsllq_ymm_ymm_imm8, EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8),
            ShiftOp::Right => self.pick(VEX_Vpsrlq_ymm_ymm_imm8, EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8),
            ShiftOp::RightSigned => unreachable!("the builder composes signed shifts of 64-bit lanes"),
        }
    }

    /// One 64-bit element from memory in all lanes.
    pub(crate) fn wide_broadcast(self) -> Code {
        self.pick(Code::VEX_Vbroadcastsd_ymm_m64, Code::EVEX_Vbroadcastsd_zmm_k1z_xmmm64)
    }
}
