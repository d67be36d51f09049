//! Constants, arithmetic, comparisons and masks on 32-bit lanes.

use super::{
    super::{instructions::Op, registers::TEMP},
    Selector,
};
use crate::{
    codegen::vector::vcode::{Int, Mask, MaskOp, ShiftOp, VBinary, VUnary, Vector, VectorHalf},
    scalar::CompareOp,
};

impl Selector<'_> {
    /// The same 32 bits in all lanes.
    pub(super) fn constant(&mut self, dst: i64, bits: u32) {
        if bits == 0 {
            return self.asm.op(Op::MoviZero, &[dst]);
        }
        for (op, bits) in [(Op::Movi, bits), (Op::Mvni, !bits)] {
            // One byte that is not zero.
            let shift = bits.trailing_zeros() / 8 * 8;
            if bits.checked_shr(shift).is_none_or(|byte| byte <= 0xff) {
                let shift = shift.min(24);
                return self.asm.op(op, &[dst, i64::from(bits >> shift), i64::from(shift)]);
            }
        }
        self.lanes(dst, [bits; 4]);
    }

    /// These lanes, from the pool.
    pub(super) fn lanes(&mut self, dst: i64, lanes: [u32; 4]) {
        let mut bytes = [0; 16];
        for (chunk, lane) in bytes.chunks_exact_mut(4).zip(lanes) {
            chunk.copy_from_slice(&lane.to_le_bytes());
        }
        self.asm.load_constant(dst, bytes);
    }

    pub(super) fn count_from(&mut self, dst: Vector, first: Int) {
        let dst = self.vector(dst);
        self.lanes(TEMP, [0, 1, 2, 3]);
        self.asm.op(Op::DupInt, &[dst, self.int(first)]);
        self.asm.op(Op::AddLanes, &[dst, dst, TEMP]);
    }

    pub(super) fn mask_first(&mut self, dst: Mask, n: Int, temp: Vector) {
        let dst = self.mask(dst);
        let temp = self.vector(temp);
        self.lanes(dst, [0, 1, 2, 3]);
        self.asm.op(Op::DupInt, &[temp, self.int(n)]);
        self.asm.op(Op::Cmgt, &[dst, temp, dst]);
    }

    pub(super) fn binary(&mut self, op: VBinary, dst: i64, a: i64, b: i64) {
        let code = match op {
            VBinary::Add => Op::Fadd,
            VBinary::Sub => Op::Fsub,
            VBinary::Mul => Op::Fmul,
            VBinary::Div => Op::Fdiv,
            VBinary::Smallest => Op::Fmin,
            VBinary::Largest => Op::Fmax,
            VBinary::And => Op::And,
            VBinary::Or => Op::Orr,
            VBinary::Xor => Op::Eor,
            VBinary::AddInt => Op::AddLanes,
            VBinary::SubInt => Op::SubLanes,
            VBinary::MulInt => Op::MulLanes,
            VBinary::MinInt => Op::Smin,
            VBinary::MaxInt => Op::Smax,
            VBinary::Exchange { stage: 0, second: false } => Op::Zip1,
            VBinary::Exchange { stage: 0, second: true } => Op::Zip2,
            VBinary::Exchange { stage: 1, second: false } => Op::Zip1Wide,
            VBinary::Exchange { stage: 1, second: true } => Op::Zip2Wide,
            VBinary::ZipBytes(VectorHalf::First) => Op::Zip1Bytes,
            VBinary::ZipBytes(VectorHalf::Second) => Op::Zip2Bytes,
            VBinary::Even => Op::Uzp1,
            VBinary::Odd => Op::Uzp2,
            VBinary::AndNot => return self.asm.op(Op::Bic, &[dst, b, a]),
            // The minimum and maximum of the machine treat NaN and zeros as `Smallest` and `Largest` do.
            VBinary::Min => return self.extremum(Op::Fcmgt, [b, a], dst, [a, b]),
            VBinary::Max => return self.extremum(Op::Fcmgt, [a, b], dst, [a, b]),
            VBinary::EvenThenOdd => {
                self.asm.op(Op::Uzp1, &[TEMP, a, a]);
                self.asm.op(Op::Uzp2, &[dst, b, b]);
                return self.asm.op(Op::Zip1Wide, &[dst, TEMP, dst]);
            }
            VBinary::DotPairs => {
                self.asm.op(Op::Smull, &[TEMP, a, b]);
                self.asm.op(Op::Smull2, &[dst, a, b]);
                return self.asm.op(Op::Addp, &[dst, TEMP, dst]);
            }
            VBinary::Scale
            | VBinary::DotBytePairs
            | VBinary::AddHalves
            | VBinary::Exchange { .. }
            | VBinary::Permute => return self.refuse(&op),
        };
        self.asm.op(code, &[dst, a, b]);
    }

    /// The first of two vectors where a comparison of `x` and `y` holds, else the second.
    pub(super) fn extremum(&mut self, greater: Op, [x, y]: [i64; 2], dst: i64, [a, b]: [i64; 2]) {
        let mask = if dst == a || dst == b { TEMP } else { dst };
        self.asm.op(greater, &[mask, x, y]);
        self.select(dst, mask, a, b);
    }

    /// `a` where the mask holds, else `b`.
    pub(super) fn select(&mut self, dst: i64, mask: i64, a: i64, b: i64) {
        if dst == b {
            self.asm.op(Op::Bit, &[dst, a, mask]);
        } else if dst == a {
            self.asm.op(Op::Bif, &[dst, b, mask]);
        } else if dst == mask {
            self.asm.op(Op::Bsl, &[dst, a, b]);
        } else {
            self.move_vector(dst, b);
            self.asm.op(Op::Bit, &[dst, a, mask]);
        }
    }

    pub(super) fn unary(&mut self, op: VUnary, dst: i64, a: i64) {
        let code = match op {
            VUnary::Sqrt => Op::Fsqrt,
            VUnary::Floor => Op::Frintm,
            VUnary::Ceil => Op::Frintp,
            VUnary::Nearest => Op::Frintn,
            VUnary::Trunc => Op::Frintz,
            VUnary::ToInt => Op::Fcvtzs,
            VUnary::ToNearest => Op::Fcvtns,
            VUnary::ToFloat => Op::Scvtf,
            VUnary::RepeatOfFour(_) | VUnary::ReciprocalEstimate => return self.refuse(&op),
        };
        self.asm.op(code, &[dst, a]);
    }

    pub(super) fn shift(&mut self, op: ShiftOp, dst: i64, a: i64, by: u8) {
        let code = match op {
            ShiftOp::Left => Op::Shl,
            // Shifts right by zero have no encoding.
            _ if by == 0 => return self.move_vector(dst, a),
            ShiftOp::Right => Op::Ushr,
            ShiftOp::RightSigned => Op::Sshr,
        };
        self.asm.op(code, &[dst, a, i64::from(by)]);
    }

    pub(super) fn butterfly(&mut self, dst: i64, a: i64, distance: u8) {
        match distance {
            1 => self.asm.op(Op::Rev64, &[dst, a]),
            2 => self.asm.op(Op::ExtHalf, &[dst, a, a]),
            _ => self.refuse(&distance),
        }
    }

    /// Compares lanes by the instructions for `==`, `>=` and `>`. Other comparisons exchange the operands or negate the
    /// result.
    pub(super) fn compare(&mut self, op: CompareOp, [equal, ge, gt]: [Op; 3], dst: i64, a: i64, b: i64) {
        match op {
            CompareOp::Eq => self.asm.op(equal, &[dst, a, b]),
            CompareOp::Ge => self.asm.op(ge, &[dst, a, b]),
            CompareOp::Gt => self.asm.op(gt, &[dst, a, b]),
            CompareOp::Le => self.asm.op(ge, &[dst, b, a]),
            CompareOp::Lt => self.asm.op(gt, &[dst, b, a]),
            CompareOp::Ne => {
                self.asm.op(equal, &[dst, a, b]);
                self.asm.op(Op::Not, &[dst, dst]);
            }
        }
    }

    pub(super) fn mask_op(&mut self, op: MaskOp, dst: i64, a: i64, b: i64) {
        let code = match op {
            MaskOp::And => Op::And,
            MaskOp::Or => Op::Orr,
            MaskOp::Xor => Op::Eor,
            MaskOp::Join => Op::Uzp1,
        };
        self.asm.op(code, &[dst, a, b]);
    }
}
