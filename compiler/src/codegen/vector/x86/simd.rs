//! The differences between AVX2 and AVX-512: register files and instruction codes.

mod wide;

use super::registers::INTS;
use crate::codegen::vector::allocate::RegisterFiles;
use crate::codegen::vector::vcode::{NarrowInt, ShiftOp, VBinary, VUnary, VectorHalf};
use iced_x86::{Code, Register};

/// A set of vector instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Simd {
    Avx2,
    Avx512,
}

impl Simd {
    pub(super) fn name(self) -> &'static str {
        match self {
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
        }
    }

    pub(super) fn lanes(self) -> usize {
        match self {
            Simd::Avx2 => 8,
            Simd::Avx512 => 16,
        }
    }

    pub(super) fn files(self) -> RegisterFiles {
        match self {
            Simd::Avx2 => RegisterFiles { ints: INTS.len(), vectors: 16, masks: None },
            // Mask register 0 encodes that there is no mask.
            Simd::Avx512 => RegisterFiles { ints: INTS.len(), vectors: 32, masks: Some(7) },
        }
    }

    /// The whole vector register.
    pub(super) fn vector(self, place: usize) -> Register {
        match self {
            Simd::Avx2 => Register::YMM0 + place as u32,
            Simd::Avx512 => Register::ZMM0 + place as u32,
        }
    }

    /// The lowest four lanes of a vector register.
    pub(super) fn low(self, place: usize) -> Register {
        Register::XMM0 + place as u32
    }

    /// The half of a vector register at the lower address in memory.
    pub(super) fn first_half(self, place: usize) -> Register {
        match self {
            Simd::Avx2 => self.low(place),
            Simd::Avx512 => Register::YMM0 + place as u32,
        }
    }

    pub(super) fn mask(self, place: usize) -> Register {
        match self {
            Simd::Avx2 => self.vector(place),
            Simd::Avx512 => Register::K1 + place as u32,
        }
    }

    /// The AVX2 code or the AVX-512 code.
    pub(super) fn pick(self, avx2: Code, avx512: Code) -> Code {
        match self {
            Simd::Avx2 => avx2,
            Simd::Avx512 => avx512,
        }
    }

    /// The code of an operation on two vectors, and its immediate where it has one.
    pub(super) fn binary(self, op: VBinary) -> (Code, Option<i32>) {
        use Code::*;

        // The groups of four lanes that the result takes from both operands, for AVX2 and AVX-512.
        let groups = match op {
            VBinary::Exchange { stage: 2.., second: false } => Some([0x20, 0x88]),
            VBinary::Exchange { stage: 2.., second: true } => Some([0x31, 0xdd]),
            _ => None,
        };

        let (avx2, avx512) = match op {
            VBinary::Add => (VEX_Vaddps_ymm_ymm_ymmm256, EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er),
            VBinary::Sub => (VEX_Vsubps_ymm_ymm_ymmm256, EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er),
            VBinary::Mul => (VEX_Vmulps_ymm_ymm_ymmm256, EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er),
            VBinary::Div => (VEX_Vdivps_ymm_ymm_ymmm256, EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er),
            VBinary::Min => (VEX_Vminps_ymm_ymm_ymmm256, EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae),
            VBinary::Max => (VEX_Vmaxps_ymm_ymm_ymmm256, EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae),
            VBinary::Smallest | VBinary::Largest => (INVALID, INVALID),
            VBinary::Scale => (INVALID, EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er),
            VBinary::And => (VEX_Vandps_ymm_ymm_ymmm256, EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32),
            VBinary::AndNot => (VEX_Vandnps_ymm_ymm_ymmm256, EVEX_Vpandnd_zmm_k1z_zmm_zmmm512b32),
            VBinary::Or => (VEX_Vorps_ymm_ymm_ymmm256, EVEX_Vpord_zmm_k1z_zmm_zmmm512b32),
            VBinary::Xor => (VEX_Vxorps_ymm_ymm_ymmm256, EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32),
            VBinary::AddInt => (VEX_Vpaddd_ymm_ymm_ymmm256, EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32),
            VBinary::SubInt => (VEX_Vpsubd_ymm_ymm_ymmm256, EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32),
            VBinary::MulInt => (VEX_Vpmulld_ymm_ymm_ymmm256, EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32),
            VBinary::MinInt => (VEX_Vpminsd_ymm_ymm_ymmm256, EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32),
            VBinary::MaxInt => (VEX_Vpmaxsd_ymm_ymm_ymmm256, EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32),
            VBinary::DotPairs => (VEX_Vpmaddwd_ymm_ymm_ymmm256, EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512),
            VBinary::DotBytePairs => (VEX_Vpmaddubsw_ymm_ymm_ymmm256, EVEX_Vpmaddubsw_zmm_k1z_zmm_zmmm512),
            VBinary::AddHalves => (VEX_Vpaddw_ymm_ymm_ymmm256, EVEX_Vpaddw_zmm_k1z_zmm_zmmm512),
            VBinary::Exchange { stage: 0, second: false } => {
                (VEX_Vunpcklps_ymm_ymm_ymmm256, EVEX_Vunpcklps_zmm_k1z_zmm_zmmm512b32)
            }
            VBinary::Exchange { stage: 0, second: true } => {
                (VEX_Vunpckhps_ymm_ymm_ymmm256, EVEX_Vunpckhps_zmm_k1z_zmm_zmmm512b32)
            }
            VBinary::Exchange { stage: 1, second: false } => {
                (VEX_Vunpcklpd_ymm_ymm_ymmm256, EVEX_Vunpcklpd_zmm_k1z_zmm_zmmm512b64)
            }
            VBinary::Exchange { stage: 1, second: true } => {
                (VEX_Vunpckhpd_ymm_ymm_ymmm256, EVEX_Vunpckhpd_zmm_k1z_zmm_zmmm512b64)
            }
            VBinary::ZipBytes(VectorHalf::First) => {
                (VEX_Vpunpcklbw_ymm_ymm_ymmm256, EVEX_Vpunpcklbw_zmm_k1z_zmm_zmmm512)
            }
            VBinary::ZipBytes(VectorHalf::Second) => {
                (VEX_Vpunpckhbw_ymm_ymm_ymmm256, EVEX_Vpunpckhbw_zmm_k1z_zmm_zmmm512)
            }
            VBinary::EvenThenOdd | VBinary::Even | VBinary::Odd => {
                (VEX_Vshufps_ymm_ymm_ymmm256_imm8, EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32)
            }
            VBinary::Permute => (VEX_Vpermps_ymm_ymm_ymmm256, EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32),
            VBinary::Exchange { .. } => {
                (VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8)
            }
        };

        let groups = groups.map(|[avx2, avx512]| if self == Simd::Avx2 { avx2 } else { avx512 });
        (self.pick(avx2, avx512), groups)
    }

    /// The code of an operation on one vector, and its immediate where it has one.
    pub(super) fn unary(self, op: VUnary) -> (Code, Option<i32>) {
        use Code::*;

        // The rounding mode. Bit 3 suppresses the inexact exception.
        let mode = match op {
            VUnary::Nearest => Some(8),
            VUnary::Floor => Some(9),
            VUnary::Ceil => Some(10),
            VUnary::Trunc => Some(11),
            VUnary::Sqrt | VUnary::ReciprocalEstimate => None,
            VUnary::ToInt | VUnary::ToNearest | VUnary::ToFloat => None,
            // Two bits for each lane of a group.
            VUnary::RepeatOfFour(lane) => Some(0b0101_0101 * i32::from(lane)),
        };

        let (avx2, avx512) = match op {
            VUnary::Sqrt => (VEX_Vsqrtps_ymm_ymmm256, EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er),
            VUnary::ReciprocalEstimate => (INVALID, EVEX_Vrcp14ps_zmm_k1z_zmmm512b32),
            VUnary::ToInt => (VEX_Vcvttps2dq_ymm_ymmm256, EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae),
            VUnary::ToNearest => (VEX_Vcvtps2dq_ymm_ymmm256, EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er),
            VUnary::ToFloat => (VEX_Vcvtdq2ps_ymm_ymmm256, EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er),
            VUnary::Nearest | VUnary::Floor | VUnary::Ceil | VUnary::Trunc => {
                (VEX_Vroundps_ymm_ymmm256_imm8, EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae)
            }
            VUnary::RepeatOfFour(_) => {
                (VEX_Vpermilps_ymm_ymmm256_imm8, EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8)
            }
        };

        (self.pick(avx2, avx512), mode)
    }

    pub(super) fn shift(self, op: ShiftOp) -> Code {
        use Code::*;
        let (avx2, avx512) = match op {
            ShiftOp::Left => (VEX_Vpslld_ymm_ymm_imm8, EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8),
            ShiftOp::Right => (VEX_Vpsrld_ymm_ymm_imm8, EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8),
            ShiftOp::RightSigned => (VEX_Vpsrad_ymm_ymm_imm8, EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8),
        };
        self.pick(avx2, avx512)
    }

    pub(super) fn load(self) -> Code {
        self.pick(Code::VEX_Vmovups_ymm_ymmm256, Code::EVEX_Vmovups_zmm_k1z_zmmm512)
    }

    pub(super) fn store(self) -> Code {
        self.pick(Code::VEX_Vmovups_ymmm256_ymm, Code::EVEX_Vmovups_zmmm512_k1z_zmm)
    }

    pub(super) fn copy(self) -> Code {
        self.pick(Code::VEX_Vmovaps_ymm_ymmm256, Code::EVEX_Vmovaps_zmm_k1z_zmmm512)
    }

    pub(super) fn broadcast(self) -> Code {
        self.pick(Code::VEX_Vbroadcastss_ymm_m32, Code::EVEX_Vbroadcastss_zmm_k1z_xmmm32)
    }

    /// Narrow integers from memory, or from the low end of a register, each extended to a lane.
    pub(super) fn extend(self, narrow: NarrowInt) -> Code {
        use Code::*;
        match narrow {
            NarrowInt::U8 => self.pick(VEX_Vpmovzxbd_ymm_xmmm64, EVEX_Vpmovzxbd_zmm_k1z_xmmm128),
            NarrowInt::I8 => self.pick(VEX_Vpmovsxbd_ymm_xmmm64, EVEX_Vpmovsxbd_zmm_k1z_xmmm128),
            NarrowInt::I16 => self.pick(VEX_Vpmovsxwd_ymm_xmmm128, EVEX_Vpmovsxwd_zmm_k1z_ymmm256),
            NarrowInt::U16 => self.pick(VEX_Vpmovzxwd_ymm_xmmm128, EVEX_Vpmovzxwd_zmm_k1z_ymmm256),
        }
    }

    /// f16 from memory, or from the low half of a register, as floats.
    pub(super) fn floats_from_f16(self) -> Code {
        self.pick(Code::VEX_Vcvtph2ps_ymm_xmmm128, Code::EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae)
    }

    /// Floats as f16 to memory, or to the low half of a register. The immediate is the rounding mode.
    pub(super) fn f16_from_floats(self) -> Code {
        self.pick(Code::VEX_Vcvtps2ph_xmmm128_ymm_imm8, Code::EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae)
    }

    /// Narrow integers from memory, each extended to half a lane.
    pub(super) fn extend_to_half(self, narrow: NarrowInt) -> Code {
        use Code::*;
        match narrow {
            NarrowInt::U8 => self.pick(VEX_Vpmovzxbw_ymm_xmmm128, EVEX_Vpmovzxbw_zmm_k1z_ymmm256),
            NarrowInt::I8 => self.pick(VEX_Vpmovsxbw_ymm_xmmm128, EVEX_Vpmovsxbw_zmm_k1z_ymmm256),
            NarrowInt::I16 | NarrowInt::U16 => self.load(),
        }
    }

    /// Adds the products of four bytes of each lane to the destination. Only machines with VNNI have it.
    pub(super) fn dot_bytes(self) -> Code {
        self.pick(Code::VEX_Vpdpbusd_ymm_ymm_ymmm256, Code::EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32)
    }

    /// Adds the products of two integers of 16 bits of each lane to the destination. Only machines with VNNI have it.
    pub(super) fn sum_dot_pairs(self) -> Code {
        self.pick(Code::VEX_Vpdpwssd_ymm_ymm_ymmm256, Code::EVEX_Vpdpwssd_zmm_k1z_zmm_zmmm512b32)
    }

    /// Fused multiply-add with operands in the orders 132, 213 and 231.
    pub(super) fn fma(self) -> [Code; 3] {
        use Code::*;
        match self {
            Simd::Avx2 => [
                VEX_Vfmadd132ps_ymm_ymm_ymmm256,
                VEX_Vfmadd213ps_ymm_ymm_ymmm256,
                VEX_Vfmadd231ps_ymm_ymm_ymmm256,
            ],
            Simd::Avx512 => [
                EVEX_Vfmadd132ps_zmm_k1z_zmm_zmmm512b32_er,
                EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er,
                EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er,
            ],
        }
    }
}
