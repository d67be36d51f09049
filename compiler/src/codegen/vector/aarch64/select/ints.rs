//! Integers: constants, arithmetic, comparisons and memory.

use super::{
    super::{
        instructions::Op,
        registers::{IMMEDIATE, ZERO},
        transfers::Transfer,
    },
    Selector,
};
use crate::codegen::vector::vcode::{Int, IntOp, IntOperand, IntWidth, Mem};

/// Immediate operands of additions and comparisons are below this.
const IMMEDIATES: i64 = 1 << 12;

impl Selector<'_> {
    /// Sets a register to a constant, 16 bits at a time.
    pub(super) fn imm(&mut self, dst: i64, value: i64) {
        // The parts that differ from those that the first instruction sets.
        let (first, fill) = if value < 0 { (Op::MovN, 0xffff) } else { (Op::MovZ, 0) };
        let part = |shift: i64| value >> shift & 0xffff;
        let mut parts = [0, 16, 32, 48].into_iter().filter(|shift| part(*shift) != fill);

        let shift = parts.next().unwrap_or(0);
        self.asm.op(first, &[dst, part(shift) ^ fill, shift]);
        for shift in parts {
            self.asm.op(Op::MovK, &[dst, part(shift), shift]);
        }
    }

    pub(super) fn move_int(&mut self, dst: i64, src: i64) {
        if dst != src {
            self.asm.op(Op::Mov, &[dst, src]);
        }
    }

    /// `dst = src + value`. Either register may be the stack pointer if the value has at most 24 bits.
    pub(super) fn add_immediate(&mut self, dst: i64, src: i64, value: i64) {
        let [low_op, high_op] =
            if value < 0 { [Op::SubImm, Op::SubImmHigh] } else { [Op::AddImm, Op::AddImmHigh] };
        let [high, low] =
            [value.unsigned_abs() as i64 / IMMEDIATES, value.unsigned_abs() as i64 % IMMEDIATES];
        if high >= IMMEDIATES {
            self.imm(IMMEDIATE, value);
            return self.asm.op(Op::Add, &[dst, src, IMMEDIATE]);
        }

        let mut from = src;
        if high > 0 {
            self.asm.op(high_op, &[dst, from, high]);
            from = dst;
        }
        if low > 0 || from != dst {
            self.asm.op(low_op, &[dst, from, low]);
        }
    }

    pub(super) fn int_op(&mut self, op: IntOp, dst: i64, a: i64, b: IntOperand) {
        let b = match (op, b) {
            (IntOp::Add, IntOperand::Imm(value)) => return self.add_immediate(dst, a, i64::from(value)),
            (IntOp::Sub, IntOperand::Imm(value)) => return self.add_immediate(dst, a, -i64::from(value)),
            (IntOp::Shl, IntOperand::Imm(by)) => {
                return self.asm.op(Op::AddShifted, &[dst, ZERO, a, i64::from(by)]);
            }
            (IntOp::Shr, IntOperand::Imm(by)) => return self.asm.op(Op::Asr, &[dst, a, i64::from(by)]),
            (_, IntOperand::Imm(value)) => {
                self.imm(IMMEDIATE, i64::from(value));
                IMMEDIATE
            }
            (_, IntOperand::Int(b)) => self.int(b),
        };
        let code = match op {
            IntOp::Add => Op::Add,
            IntOp::Sub => Op::Sub,
            IntOp::Mul => Op::Mul,
            IntOp::And => Op::AndInt,
            IntOp::Xor => Op::EorInt,
            IntOp::Shl | IntOp::Shr => return self.refuse(&op),
        };
        self.asm.op(code, &[dst, a, b]);
    }

    /// Compares a register with a constant.
    pub(super) fn compare_immediate(&mut self, a: i64, b: i64) {
        match b {
            0..IMMEDIATES => self.asm.op(Op::CmpImm, &[a, b]),
            _ if (1..IMMEDIATES).contains(&-b) => self.asm.op(Op::CmnImm, &[a, -b]),
            _ => {
                self.imm(IMMEDIATE, b);
                self.asm.op(Op::Cmp, &[a, IMMEDIATE]);
            }
        }
    }

    pub(super) fn load_int(&mut self, dst: Int, mem: Mem, width: IntWidth) {
        let transfer = match width {
            IntWidth::I64 => Transfer::LDR_X,
            IntWidth::I32 => Transfer::LDRSW,
            IntWidth::I16 => Transfer::LDRSH,
            IntWidth::U8 => Transfer::LDRB,
            IntWidth::I8 => Transfer::LDRSB,
        };
        self.access(transfer, self.int(dst), mem);
    }

    pub(super) fn store_int(&mut self, mem: Mem, src: Int, width: IntWidth) {
        let transfer = match width {
            IntWidth::I64 => Transfer::STR_X,
            IntWidth::I32 => Transfer::STR_W,
            IntWidth::I16 => Transfer::STRH,
            IntWidth::U8 | IntWidth::I8 => Transfer::STRB,
        };
        self.access(transfer, self.int(src), mem);
    }
}
