//! Steps on 64-bit lanes.

use super::{
    super::{instructions::Op, registers::TEMP},
    Selector,
};
use crate::codegen::vector::vcode::{ShiftOp, VInst, VectorHalf, WideBinary, WideUnary};

impl Selector<'_> {
    pub(super) fn wide(&mut self, step: &VInst) {
        match step {
            VInst::WideBinary(op, dst, a, b) => {
                self.wide_binary(*op, self.vector(*dst), self.vector(*a), self.vector(*b));
            }
            VInst::WideUnary(op, dst, a) => self.wide_unary(*op, self.vector(*dst), self.vector(*a)),
            VInst::WideShift(op, dst, a, by) => {
                self.wide_shift(*op, self.vector(*dst), self.vector(*a), *by);
            }
            VInst::WideConstant(dst, bits) => {
                let [low, high] = [*bits as u32, (bits >> 32) as u32];
                self.lanes(self.vector(*dst), [low, high, low, high]);
            }
            VInst::WideBroadcast(dst, mem) => {
                let at = self.plain_address(*mem);
                self.asm.op(Op::Ld1rWide, &[self.vector(*dst), at]);
            }
            VInst::WideCompare(op, dst, a, b) => {
                let ops = [Op::FcmeqWide, Op::FcmgeWide, Op::FcmgtWide];
                self.compare(*op, ops, self.mask(*dst), self.vector(*a), self.vector(*b));
            }
            VInst::WideCompareInt(op, dst, a, b) => {
                let ops = [Op::CmeqWide, Op::CmgeWide, Op::CmgtWide];
                self.compare(*op, ops, self.mask(*dst), self.vector(*a), self.vector(*b));
            }
            VInst::MaskHalf(dst, a, half) => {
                let extend = match half {
                    VectorHalf::First => Op::SxtlLanes,
                    VectorHalf::Second => Op::Sxtl2Lanes,
                };
                self.asm.op(extend, &[self.mask(*dst), self.mask(*a)]);
            }
            VInst::AnyLane(dst, mask) => {
                self.asm.op(Op::Umaxv, &[TEMP, self.mask(*mask)]);
                self.asm.op(Op::MovToInt, &[self.int(*dst), TEMP]);
            }
            _ => self.refuse(step),
        }
    }

    fn wide_binary(&mut self, op: WideBinary, dst: i64, a: i64, b: i64) {
        let code = match op {
            WideBinary::Add => Op::FaddWide,
            WideBinary::Sub => Op::FsubWide,
            WideBinary::Mul => Op::FmulWide,
            WideBinary::Div => Op::FdivWide,
            WideBinary::AddInt => Op::AddWide,
            WideBinary::SubInt => Op::SubWide,
            WideBinary::ShiftLeft => Op::Ushl,
            WideBinary::JoinHalves => Op::Zip1Wide,
            WideBinary::Min => return self.extremum(Op::FcmgtWide, [b, a], dst, [a, b]),
            WideBinary::Max => return self.extremum(Op::FcmgtWide, [a, b], dst, [a, b]),
            // Shifts by negative numbers go to the right.
            WideBinary::ShiftRight => {
                self.asm.op(Op::NegWide, &[TEMP, b]);
                return self.asm.op(Op::Ushl, &[dst, a, TEMP]);
            }
            WideBinary::MulLow => {
                self.asm.op(Op::XtnLanes, &[TEMP, a]);
                self.asm.op(Op::XtnLanes, &[dst, b]);
                return self.asm.op(Op::Umull, &[dst, TEMP, dst]);
            }
            WideBinary::MulInt => return self.refuse(&op),
        };
        self.asm.op(code, &[dst, a, b]);
    }

    fn wide_unary(&mut self, op: WideUnary, dst: i64, a: i64) {
        let (code, next) = match op {
            WideUnary::Sqrt => (Op::FsqrtWide, None),
            WideUnary::Floor => (Op::FrintmWide, None),
            WideUnary::Ceil => (Op::FrintpWide, None),
            WideUnary::Nearest => (Op::FrintnWide, None),
            WideUnary::Trunc => (Op::FrintzWide, None),
            WideUnary::SecondHalf => return self.asm.op(Op::DupWideLane, &[dst, a, 1]),
            WideUnary::ExtendInts => (Op::SxtlLanes, None),
            WideUnary::IntsToDoubles => (Op::SxtlLanes, Some(Op::ScvtfWide)),
            WideUnary::FloatsToDoubles => (Op::FcvtlLanes, None),
            WideUnary::LowInts => (Op::XtnLanes, None),
            WideUnary::DoublesToFloats => (Op::FcvtnLanes, None),
            WideUnary::DoublesToInts => (Op::FcvtzsWide, Some(Op::XtnLanes)),
            WideUnary::LongsToDoubles | WideUnary::LongsToFloats | WideUnary::DoublesToLongs => {
                return self.refuse(&op);
            }
        };
        self.asm.op(code, &[dst, a]);
        if let Some(next) = next {
            self.asm.op(next, &[dst, dst]);
        }
    }

    fn wide_shift(&mut self, op: ShiftOp, dst: i64, a: i64, by: u8) {
        let code = match op {
            ShiftOp::Left => Op::ShlWide,
            // Shifts right by zero have no encoding.
            ShiftOp::Right if by == 0 => return self.move_vector(dst, a),
            ShiftOp::Right => Op::UshrWide,
            ShiftOp::RightSigned => return self.refuse(&op),
        };
        self.asm.op(code, &[dst, a, i64::from(by)]);
    }
}
