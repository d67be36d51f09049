//! Integers: arithmetic on general registers, loads and stores.

use super::Selector;
use crate::codegen::vector::{
    vcode::{Int, IntOp, IntOperand, IntWidth, Mem},
    x86::{
        asm::{Operand, by_imm_width},
        registers::{low_byte, low_half, low_word},
    },
};
use iced_x86::{Code, Register};

impl Selector<'_> {
    pub(super) fn imm(&mut self, dst: Register, value: i64) {
        match i32::try_from(value) {
            Ok(0) => {
                let low = low_half(dst);
                self.asm.op(Code::Xor_rm32_r32, &[low.into(), low.into()]);
            }
            Ok(value) => self.asm.op(Code::Mov_rm64_imm32, &[dst.into(), value.into()]),
            Err(_) => {
                let bytes = self.asm.constant(value.to_le_bytes().to_vec());
                self.asm.op(Code::Mov_r64_rm64, &[dst.into(), Operand::Pool(bytes)]);
            }
        }
    }

    pub(super) fn move_int(&mut self, dst: Register, src: Register) {
        if dst != src {
            self.asm.op(Code::Mov_r64_rm64, &[dst.into(), src.into()]);
        }
    }

    pub(super) fn int_op(&mut self, op: IntOp, dst: Register, a: Register, b: IntOperand) {
        match b {
            IntOperand::Imm(value) => self.int_op_imm(op, dst, a, value),
            IntOperand::Int(b) => self.int_op_reg(op, dst, a, self.int(b)),
        }
    }

    pub(super) fn int_op_imm(&mut self, op: IntOp, dst: Register, a: Register, value: i32) {
        let code = match op {
            IntOp::Mul => {
                let code = by_imm_width(value, Code::Imul_r64_rm64_imm8, Code::Imul_r64_rm64_imm32);
                self.asm.op(code, &[dst.into(), a.into(), value.into()]);
                return;
            }
            IntOp::Add => by_imm_width(value, Code::Add_rm64_imm8, Code::Add_rm64_imm32),
            IntOp::Sub => by_imm_width(value, Code::Sub_rm64_imm8, Code::Sub_rm64_imm32),
            IntOp::And => by_imm_width(value, Code::And_rm64_imm8, Code::And_rm64_imm32),
            IntOp::Xor => by_imm_width(value, Code::Xor_rm64_imm8, Code::Xor_rm64_imm32),
            IntOp::Shl => Code::Shl_rm64_imm8,
            IntOp::Shr => Code::Sar_rm64_imm8,
        };

        self.move_int(dst, a);
        self.asm.op(code, &[dst.into(), value.into()]);
    }

    pub(super) fn int_op_reg(&mut self, op: IntOp, dst: Register, a: Register, b: Register) {
        let code = match op {
            IntOp::Add => Code::Add_r64_rm64,
            IntOp::Sub => Code::Sub_r64_rm64,
            IntOp::Mul => Code::Imul_r64_rm64,
            IntOp::And => Code::And_r64_rm64,
            IntOp::Xor => Code::Xor_r64_rm64,
            IntOp::Shl | IntOp::Shr => unreachable!("microkernels shift by constants"),
        };

        // The instruction overwrites its first operand. If the destination is the register of `b`, the operands are
        // exchanged, and a difference is negated.
        let (first, second) = if dst == b { (b, a) } else { (a, b) };
        self.move_int(dst, first);
        self.asm.op(code, &[dst.into(), second.into()]);

        if op == IntOp::Sub && dst == b && a != b {
            self.asm.op(Code::Neg_rm64, &[dst.into()]);
        }
    }

    pub(super) fn load_int(&mut self, dst: Int, mem: Mem, width: IntWidth) {
        let dst = self.int(dst);
        let mem = self.mem(mem).into();
        match width {
            IntWidth::I64 => self.asm.op(Code::Mov_r64_rm64, &[dst.into(), mem]),
            IntWidth::I32 => self.asm.op(Code::Movsxd_r64_rm32, &[dst.into(), mem]),
            IntWidth::I16 => self.asm.op(Code::Movsx_r64_rm16, &[dst.into(), mem]),
            IntWidth::U8 => self.asm.op(Code::Movzx_r32_rm8, &[low_half(dst).into(), mem]),
            IntWidth::I8 => self.asm.op(Code::Movsx_r64_rm8, &[dst.into(), mem]),
        }
    }

    pub(super) fn store_int(&mut self, mem: Mem, src: Int, width: IntWidth) {
        let src = self.int(src);
        let mem = self.mem(mem).into();
        match width {
            IntWidth::I64 => self.asm.op(Code::Mov_rm64_r64, &[mem, src.into()]),
            IntWidth::I32 => self.asm.op(Code::Mov_rm32_r32, &[mem, low_half(src).into()]),
            IntWidth::I16 => self.asm.op(Code::Mov_rm16_r16, &[mem, low_word(src).into()]),
            IntWidth::U8 | IntWidth::I8 => self.asm.op(Code::Mov_rm8_r8, &[mem, low_byte(src).into()]),
        }
    }
}
