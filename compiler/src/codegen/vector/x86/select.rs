//! Steps as instructions: one exhaustive match, its arms short.

use super::allocate::{Allocated, STACK};
use super::asm::{Assembler, Label, Operand};
use super::legalize::Constants;
use super::level::{FIRST_SAVED, INTS, Level};
use crate::codegen::vector::code::{
    Cond, Int, IntOp, Mask, MaskOp, Mem, Narrow, Op1, Operand as Source, ShiftOp, Step, Vector, Width,
};
use crate::{error::Result, scalar::CompareOp};
use iced_x86::{Code, MemoryOperand, Register};

/// Alignment of the innermost loops.
const LOOP_ALIGN: usize = 32;

/// The machine code of allocated leaf code.
pub(super) fn select(allocated: &Allocated, constants: &Constants, level: Level) -> Result<Vec<u8>> {
    let mut s = Selector { allocated, constants, level, asm: Assembler::default(), open: Vec::new() };
    let used = allocated.ints();
    let saved: Vec<Register> =
        (FIRST_SAVED..INTS.len()).filter(|place| used.contains(place)).map(|place| INTS[place]).collect();
    s.enter(&saved);
    let steps = &allocated.code.steps;
    for (idx, step) in steps.iter().enumerate() {
        let innermost = matches!(step, Step::Loop) && is_innermost(&steps[idx + 1..]);
        if innermost {
            s.asm.align(LOOP_ALIGN);
        }
        s.step(step);
    }
    s.leave(&saved);
    s.asm.finish()
}

/// Whether the loop whose inside begins here has no loop in it.
fn is_innermost(inside: &[Step]) -> bool {
    let next = inside.iter().find(|step| matches!(step, Step::Loop | Step::EndLoop(_)));
    matches!(next, Some(Step::EndLoop(_)))
}

struct Selector<'a> {
    allocated: &'a Allocated,
    constants: &'a Constants,
    level: Level,
    asm: Assembler,
    /// Heads of open loops and ends of open branches.
    open: Vec<Label>,
}

impl Selector<'_> {
    /// Spill slots, and the leaf's own memory above them.
    fn frame_bytes(&self) -> i32 {
        self.allocated.frame_bytes + self.allocated.code.scratch_bytes as i32
    }

    fn enter(&mut self, saved: &[Register]) {
        for reg in saved {
            self.asm.op(Code::Push_r64, &[(*reg).into()]);
        }
        if self.frame_bytes() > 0 {
            self.asm.op(Code::Sub_rm64_imm32, &[Register::RSP.into(), self.frame_bytes().into()]);
        }
        let args = self.int(Int(0));
        self.move_int(args, INTS[0]);
    }

    fn leave(&mut self, saved: &[Register]) {
        self.asm.op(Code::VEX_Vzeroupper, &[]);
        if self.frame_bytes() > 0 {
            self.asm.op(Code::Add_rm64_imm32, &[Register::RSP.into(), self.frame_bytes().into()]);
        }
        for reg in saved.iter().rev() {
            self.asm.op(Code::Pop_r64, &[(*reg).into()]);
        }
        self.asm.op(Code::Retnq, &[]);
    }

    fn int(&self, int: Int) -> Register {
        if int == STACK { Register::RSP } else { INTS[self.allocated.place(int)] }
    }

    fn vector(&self, vector: Vector) -> Register {
        self.level.vector(self.allocated.place(vector))
    }

    fn low(&self, vector: Vector) -> Register {
        self.level.low(self.allocated.place(vector))
    }

    fn mask(&self, mask: Mask) -> Register {
        self.level.mask(self.allocated.place(mask))
    }

    /// A vector as the last source operand: a register, or the pool.
    fn source(&mut self, vector: Vector) -> Operand {
        match self.constants.get(&vector) {
            None => self.vector(vector).into(),
            Some(bits) => self.splat(*bits),
        }
    }

    fn splat(&mut self, bits: u32) -> Operand {
        match self.level {
            Level::Avx2 => Operand::Pool(self.asm.constant(bits.to_le_bytes().repeat(8))),
            Level::Avx512 => Operand::Splat(self.asm.constant(bits.to_le_bytes().to_vec())),
        }
    }

    fn mem(&self, mem: Mem) -> MemoryOperand {
        let base = self.int(mem.base);
        let (index, scale) = match mem.index {
            Some((index, scale)) => (self.int(index), u32::from(scale)),
            None => (Register::None, 1),
        };
        // Two bases have no form without a displacement.
        let needs = mem.disp != 0 || matches!(base, Register::RBP | Register::R13);
        let disp = i64::from(mem.disp);
        MemoryOperand::new(base, index, scale, disp, u32::from(needs), false, Register::None)
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Imm(dst, value) => self.imm(self.int(*dst), *value),
            Step::Copy(dst, src) => self.move_int(self.int(*dst), self.int(*src)),
            Step::Int(op, dst, a, b) => self.int_op(*op, self.int(*dst), self.int(*a), *b),
            Step::Address(dst, mem) => {
                self.asm.op(Code::Lea_r64_m, &[self.int(*dst).into(), self.mem(*mem).into()]);
            }
            Step::Scratch(dst) => {
                let at = MemoryOperand::with_base_displ(Register::RSP, i64::from(self.allocated.frame_bytes));
                self.asm.op(Code::Lea_r64_m, &[self.int(*dst).into(), at.into()]);
            }
            Step::LoadInt(dst, mem, width) => self.load_int(*dst, *mem, *width),
            Step::StoreInt(mem, src, width) => self.store_int(*mem, *src, *width),
            Step::Constant(..) => {}
            Step::Move(dst, src) => self.move_vector(*dst, *src),
            Step::Fma(dst, a, b, c) => self.fma(*dst, *a, *b, *c),
            Step::DotQuads(dst, a, b, c) => self.dot_quads(*dst, *a, *b, *c),
            Step::Op2(op, dst, a, b) => {
                let b = self.source(*b);
                self.asm.op(self.level.op2(*op), &[self.vector(*dst).into(), self.vector(*a).into(), b]);
            }
            Step::Op1(op, dst, a) => self.op1(*op, *dst, *a),
            Step::Shift(op, dst, a, by) => self.shift(*op, *dst, *a, *by),
            Step::Butterfly(dst, a, distance) => self.butterfly(*dst, *a, *distance),
            Step::Compare(op, dst, a, b) => self.compare(*op, *dst, *a, *b),
            Step::CompareInt(op, dst, a, b) => self.compare_int(*op, *dst, *a, *b),
            Step::Mask(op, dst, a, b) => self.mask_op(*op, *dst, *a, *b),
            Step::MaskFirst(dst, n, temp) => self.mask_first(*dst, *n, *temp),
            Step::Select(dst, mask, a, b) => self.choose(*dst, *mask, *a, *b),
            Step::Loop | Step::EndLoop(_) | Step::If(_) | Step::EndIf => self.control(step),
            _ => self.memory(step),
        }
    }

    fn memory(&mut self, step: &Step) {
        match step {
            Step::Load(dst, mem) => {
                self.asm.op(self.level.load(), &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            Step::LoadFirst(dst, mem, _, mask) => self.load_first(*dst, *mem, *mask),
            Step::LoadLanes(dst, temp, mems) => self.load_lanes(*dst, *temp, mems),
            Step::LoadOne(dst, mem) => self.load_one(self.low(*dst), *mem),
            Step::Broadcast(dst, mem) => {
                self.asm.op(self.level.broadcast(), &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            Step::LoadNarrow(dst, mem, narrow) => {
                let code = self.level.extend(*narrow);
                self.asm.op(code, &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            Step::LoadHalves(dst, mem, narrow) => {
                let code = self.level.extend_to_half(*narrow);
                self.asm.op(code, &[self.vector(*dst).into(), self.mem(*mem).into()]);
            }
            Step::BroadcastNarrow(dst, mem, narrow) => self.broadcast_narrow(*dst, *mem, *narrow),
            Step::StoreNarrow(mem, src, temp, narrow) => self.store_narrow(*mem, *src, *temp, *narrow),
            Step::Store(mem, src) => {
                self.asm.op(self.level.store(), &[self.mem(*mem).into(), self.vector(*src).into()]);
            }
            Step::StoreFirst(mem, src, _, mask) => self.store_first(*mem, *src, *mask),
            Step::StoreLanes(mems, src, temp) => self.store_lanes(mems, *src, *temp),
            Step::StoreOne(mem, src) => self.store_one(*mem, self.low(*src)),
            Step::Prefetch(mem) => self.asm.op(Code::Prefetcht1_m8, &[self.mem(*mem).into()]),
            _ => unreachable!("not a memory step: {step:?}"),
        }
    }

    fn control(&mut self, step: &Step) {
        match step {
            Step::Loop => {
                let head = self.asm.label();
                self.asm.place(head);
                self.open.push(head);
            }
            Step::EndLoop(cond) => {
                let head = self.open.pop().expect("loops are closed where they were opened");
                self.compare_ints(*cond);
                self.asm.branch(jump_if(cond.op), head);
            }
            Step::If(cond) => {
                let end = self.asm.label();
                self.compare_ints(*cond);
                self.asm.branch(jump_if(opposite(cond.op)), end);
                self.open.push(end);
            }
            Step::EndIf => {
                let end = self.open.pop().expect("branches are closed where they were opened");
                self.asm.place(end);
            }
            _ => unreachable!("not a control step: {step:?}"),
        }
    }

    fn compare_ints(&mut self, cond: Cond) {
        let a = self.int(cond.a).into();
        match cond.b {
            Source::Int(b) => self.asm.op(Code::Cmp_rm64_r64, &[a, self.int(b).into()]),
            Source::Imm(b) => self.asm.op(Code::Cmp_rm64_imm32, &[a, b.into()]),
        }
    }

    fn imm(&mut self, dst: Register, value: i64) {
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

    fn move_int(&mut self, dst: Register, src: Register) {
        if dst != src {
            self.asm.op(Code::Mov_r64_rm64, &[dst.into(), src.into()]);
        }
    }

    fn int_op(&mut self, op: IntOp, dst: Register, a: Register, b: Source) {
        match b {
            Source::Imm(value) => self.int_op_imm(op, dst, a, value),
            Source::Int(b) => self.int_op_reg(op, dst, a, self.int(b)),
        }
    }

    fn int_op_imm(&mut self, op: IntOp, dst: Register, a: Register, value: i32) {
        let code = match op {
            IntOp::Mul => {
                self.asm.op(Code::Imul_r64_rm64_imm32, &[dst.into(), a.into(), value.into()]);
                return;
            }
            IntOp::Add => Code::Add_rm64_imm32,
            IntOp::Sub => Code::Sub_rm64_imm32,
            IntOp::And => Code::And_rm64_imm32,
            IntOp::Shl => Code::Shl_rm64_imm8,
            IntOp::Shr => Code::Sar_rm64_imm8,
        };
        self.move_int(dst, a);
        self.asm.op(code, &[dst.into(), value.into()]);
    }

    fn int_op_reg(&mut self, op: IntOp, dst: Register, a: Register, b: Register) {
        let code = match op {
            IntOp::Add => Code::Add_r64_rm64,
            IntOp::Sub => Code::Sub_r64_rm64,
            IntOp::Mul => Code::Imul_r64_rm64,
            IntOp::And => Code::And_r64_rm64,
            IntOp::Shl | IntOp::Shr => unreachable!("leaves shift by constants"),
        };
        // The destination may be the second operand's register.
        let (first, second) = if dst == b { (b, a) } else { (a, b) };
        self.move_int(dst, first);
        self.asm.op(code, &[dst.into(), second.into()]);
        if op == IntOp::Sub && dst == b && a != b {
            self.asm.op(Code::Neg_rm64, &[dst.into()]);
        }
    }

    fn load_int(&mut self, dst: Int, mem: Mem, width: Width) {
        let (dst, mem) = (self.int(dst), self.mem(mem).into());
        match width {
            Width::I64 => self.asm.op(Code::Mov_r64_rm64, &[dst.into(), mem]),
            Width::I32 => self.asm.op(Code::Movsxd_r64_rm32, &[dst.into(), mem]),
            Width::I16 => self.asm.op(Code::Movsx_r64_rm16, &[dst.into(), mem]),
            Width::U8 => self.asm.op(Code::Movzx_r32_rm8, &[low_half(dst).into(), mem]),
            Width::I8 => self.asm.op(Code::Movsx_r64_rm8, &[dst.into(), mem]),
        }
    }

    fn store_int(&mut self, mem: Mem, src: Int, width: Width) {
        let (src, mem) = (self.int(src), self.mem(mem).into());
        match width {
            Width::I64 => self.asm.op(Code::Mov_rm64_r64, &[mem, src.into()]),
            Width::I32 => self.asm.op(Code::Mov_rm32_r32, &[mem, low_half(src).into()]),
            Width::I16 => self.asm.op(Code::Mov_rm16_r16, &[mem, low_word(src).into()]),
            Width::U8 | Width::I8 => self.asm.op(Code::Mov_rm8_r8, &[mem, low_byte(src).into()]),
        }
    }

    fn move_vector(&mut self, dst: Vector, src: Vector) {
        let dst = self.vector(dst);
        match self.constants.get(&src) {
            Some(0) => {
                let code = self.level.op2(crate::codegen::vector::code::Op2::Xor);
                self.asm.op(code, &[dst.into(), dst.into(), dst.into()]);
            }
            Some(bits) => {
                let entry = self.asm.constant(bits.to_le_bytes().to_vec());
                self.asm.op(self.level.broadcast(), &[dst.into(), Operand::Pool(entry)]);
            }
            None => self.copy(dst, self.vector(src)),
        }
    }

    fn copy(&mut self, dst: Register, src: Register) {
        if dst != src {
            self.asm.op(self.level.copy(), &[dst.into(), src.into()]);
        }
    }

    fn fma(&mut self, dst: Vector, a: Vector, b: Vector, c: Vector) {
        let [order132, order213, order231] = self.level.fma();
        let (to, x, y, z) = (self.vector(dst), self.source(a), self.source(b), self.source(c));
        let is_dst = |operand: &Operand| matches!(operand, Operand::Reg(reg) if *reg == to);
        // `a` is never a constant, and `b` and `c` not both: see `legalize`.
        if is_dst(&z) {
            self.asm.op(order231, &[to.into(), x, y]);
        } else if is_dst(&x) && matches!(y, Operand::Reg(_)) {
            self.asm.op(order213, &[to.into(), y, z]);
        } else if is_dst(&x) {
            self.asm.op(order132, &[to.into(), z, y]);
        } else if is_dst(&y) {
            self.asm.op(order213, &[to.into(), x, z]);
        } else if let Operand::Reg(z) = z {
            self.copy(to, z);
            self.asm.op(order231, &[to.into(), x, y]);
        } else {
            let Operand::Reg(x) = x else { unreachable!("made legal") };
            self.copy(to, x);
            self.asm.op(order213, &[to.into(), y, z]);
        }
    }

    fn dot_quads(&mut self, dst: Vector, a: Vector, b: Vector, c: Vector) {
        let (to, from) = (self.vector(dst), self.vector(c));
        self.copy(to, from);
        let code = self.level.dot_quads();
        self.asm.op(code, &[to.into(), self.vector(a).into(), self.vector(b).into()]);
    }

    fn op1(&mut self, op: Op1, dst: Vector, a: Vector) {
        let (code, mode) = self.level.op1(op);
        let (dst, a) = (self.vector(dst).into(), self.vector(a).into());
        match mode {
            Some(mode) => self.asm.op(code, &[dst, a, mode.into()]),
            None => self.asm.op(code, &[dst, a]),
        }
    }

    fn shift(&mut self, op: ShiftOp, dst: Vector, a: Vector, by: u8) {
        let code = self.level.shift(op);
        self.asm.op(code, &[self.vector(dst).into(), self.vector(a).into(), i32::from(by).into()]);
    }

    fn butterfly(&mut self, dst: Vector, a: Vector, distance: u8) {
        use Code::{EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8, EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8};
        let (dst, a): (Operand, Operand) = (self.vector(dst).into(), self.vector(a).into());
        let inside =
            self.level.pick(Code::VEX_Vpermilps_ymm_ymmm256_imm8, EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8);
        match (distance, self.level) {
            (1, _) => self.asm.op(inside, &[dst, a, 0xb1.into()]),
            (2, _) => self.asm.op(inside, &[dst, a, 0x4e.into()]),
            (_, Level::Avx2) => {
                self.asm.op(Code::VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, &[dst, a, a, 1.into()]);
            }
            (4, _) => self.asm.op(EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8, &[dst, a, a, 0xb1.into()]),
            (_, _) => self.asm.op(EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8, &[dst, a, a, 0x4e.into()]),
        }
    }

    fn compare(&mut self, op: CompareOp, dst: Mask, a: Vector, b: Vector) {
        let predicate = match op {
            CompareOp::Eq => 0,
            CompareOp::Lt => 1,
            CompareOp::Le => 2,
            CompareOp::Ne => 4,
            CompareOp::Ge => 13,
            CompareOp::Gt => 14,
        };
        let code = self
            .level
            .pick(Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8, Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae);
        let b = self.source(b);
        self.asm.op(code, &[self.mask(dst).into(), self.vector(a).into(), b, predicate.into()]);
    }

    fn compare_int(&mut self, op: CompareOp, dst: Mask, a: Vector, b: Vector) {
        let (dst, a, b): (Operand, Operand, Operand) =
            (self.mask(dst).into(), self.vector(a).into(), self.vector(b).into());
        if self.level == Level::Avx512 {
            let predicate = match op {
                CompareOp::Eq => 0,
                CompareOp::Lt => 1,
                CompareOp::Le => 2,
                CompareOp::Ne => 4,
                CompareOp::Ge => 5,
                CompareOp::Gt => 6,
            };
            self.asm.op(Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8, &[dst, a, b, predicate.into()]);
            return;
        }
        let (code, x, y, negated) = match op {
            CompareOp::Eq => (Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, a, b, false),
            CompareOp::Ne => (Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, a, b, true),
            CompareOp::Gt => (Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, a, b, false),
            CompareOp::Le => (Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, a, b, true),
            CompareOp::Lt => (Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, b, a, false),
            CompareOp::Ge => (Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, b, a, true),
        };
        self.asm.op(code, &[dst, x, y]);
        if negated {
            let ones = self.splat(u32::MAX);
            self.asm.op(Code::VEX_Vxorps_ymm_ymm_ymmm256, &[dst, dst, ones]);
        }
    }

    fn mask_op(&mut self, op: MaskOp, dst: Mask, a: Mask, b: Mask) {
        let (avx2, avx512) = match op {
            MaskOp::And => (Code::VEX_Vandps_ymm_ymm_ymmm256, Code::VEX_Kandw_kr_kr_kr),
            MaskOp::Or => (Code::VEX_Vorps_ymm_ymm_ymmm256, Code::VEX_Korw_kr_kr_kr),
            MaskOp::Xor => (Code::VEX_Vxorps_ymm_ymm_ymmm256, Code::VEX_Kxorw_kr_kr_kr),
        };
        let code = self.level.pick(avx2, avx512);
        self.asm.op(code, &[self.mask(dst).into(), self.mask(a).into(), self.mask(b).into()]);
    }

    fn mask_first(&mut self, dst: Mask, n: Int, temp: Vector) {
        let lanes: Vec<u8> = (0..self.level.lanes() as u32).flat_map(u32::to_le_bytes).collect();
        let lanes = Operand::Pool(self.asm.constant(lanes));
        let n = low_half(self.int(n)).into();
        let (dst, low, temp) = (self.mask(dst).into(), self.low(temp).into(), self.vector(temp).into());
        match self.level {
            Level::Avx2 => {
                self.asm.op(Code::VEX_Vmovd_xmm_rm32, &[low, n]);
                self.asm.op(Code::VEX_Vpbroadcastd_ymm_xmmm32, &[temp, low]);
                self.asm.op(Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, &[dst, temp, lanes]);
            }
            Level::Avx512 => {
                self.asm.op(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, &[temp, n]);
                self.asm.op(Code::EVEX_Vpcmpgtd_kr_k1_zmm_zmmm512b32, &[dst, temp, lanes]);
            }
        }
    }

    fn choose(&mut self, dst: Vector, mask: Mask, a: Vector, b: Vector) {
        let a = self.source(a);
        let (dst, b, mask) = (self.vector(dst).into(), self.vector(b).into(), self.mask(mask));
        match self.level {
            Level::Avx2 => self.asm.op(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, &[dst, b, a, mask.into()]),
            Level::Avx512 => {
                self.asm.op_masked(Code::EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32, &[dst, b, a], mask, false);
            }
        }
    }

    fn load_first(&mut self, dst: Vector, mem: Mem, mask: Mask) {
        let (dst, mem, mask) = (self.vector(dst).into(), self.mem(mem).into(), self.mask(mask));
        match self.level {
            Level::Avx2 => self.asm.op(Code::VEX_Vmaskmovps_ymm_ymm_m256, &[dst, mask.into(), mem]),
            Level::Avx512 => self.asm.op_masked(self.level.load(), &[dst, mem], mask, true),
        }
    }

    fn store_first(&mut self, mem: Mem, src: Vector, mask: Mask) {
        let (src, mem, mask) = (self.vector(src).into(), self.mem(mem).into(), self.mask(mask));
        match self.level {
            Level::Avx2 => self.asm.op(Code::VEX_Vmaskmovps_m256_ymm_ymm, &[mem, mask.into(), src]),
            Level::Avx512 => self.asm.op_masked(self.level.store(), &[mem, src], mask, false),
        }
    }

    fn load_one(&mut self, dst: Register, mem: Mem) {
        let code = self.level.pick(Code::VEX_Vmovss_xmm_m32, Code::EVEX_Vmovss_xmm_k1z_m32);
        self.asm.op(code, &[dst.into(), self.mem(mem).into()]);
    }

    fn store_one(&mut self, mem: Mem, src: Register) {
        let code = self.level.pick(Code::VEX_Vmovss_m32_xmm, Code::EVEX_Vmovss_m32_k1_xmm);
        self.asm.op(code, &[self.mem(mem).into(), src.into()]);
    }

    fn broadcast_narrow(&mut self, dst: Vector, mem: Mem, narrow: Narrow) {
        let low = self.low(dst).into();
        let spread = match narrow {
            Narrow::U8 | Narrow::I8 => {
                self.level.pick(Code::VEX_Vpbroadcastb_xmm_xmmm8, Code::EVEX_Vpbroadcastb_xmm_k1z_xmmm8)
            }
            Narrow::I16 => {
                self.level.pick(Code::VEX_Vpbroadcastw_xmm_xmmm16, Code::EVEX_Vpbroadcastw_xmm_k1z_xmmm16)
            }
        };
        self.asm.op(spread, &[low, self.mem(mem).into()]);
        // Of an extended half, lanes are the same whichever half of the vector they come from.
        let source = match (narrow, self.level) {
            (Narrow::I16, Level::Avx512) => {
                let half = Register::YMM0 + (self.low(dst) as u32 - Register::XMM0 as u32);
                self.asm.op(Code::EVEX_Vpbroadcastw_ymm_k1z_xmmm16, &[half.into(), low]);
                half.into()
            }
            _ => low,
        };
        self.asm.op(self.level.extend(narrow), &[self.vector(dst).into(), source]);
    }

    fn store_narrow(&mut self, mem: Mem, src: Vector, temp: Vector, narrow: Narrow) {
        let (whole, to) = (self.vector(src), self.mem(mem));
        if self.level == Level::Avx512 {
            let code = match narrow {
                Narrow::U8 | Narrow::I8 => Code::EVEX_Vpmovdb_xmmm128_k1z_zmm,
                Narrow::I16 => Code::EVEX_Vpmovdw_ymmm256_k1z_zmm,
            };
            return self.asm.op(code, &[to.into(), whole.into()]);
        }
        // The low ends of each half's lanes, side by side.
        let (gathered, low) = (self.vector(temp), self.low(temp));
        let (store, bytes) = match narrow {
            Narrow::U8 | Narrow::I8 => {
                let order = self.splat(0x0c08_0400);
                self.asm.op(Code::VEX_Vpshufb_ymm_ymm_ymmm256, &[gathered.into(), whole.into(), order]);
                (Code::VEX_Vmovd_rm32_xmm, 4)
            }
            Narrow::I16 => {
                let pack = Code::VEX_Vpackssdw_ymm_ymm_ymmm256;
                self.asm.op(pack, &[gathered.into(), whole.into(), whole.into()]);
                (Code::VEX_Vmovq_xmmm64_xmm, 8)
            }
        };
        self.asm.op(store, &[to.into(), low.into()]);
        self.asm.op(Code::VEX_Vextracti128_xmmm128_ymm_imm8, &[low.into(), gathered.into(), 1.into()]);
        self.asm.op(store, &[self.mem(mem.plus(bytes)).into(), low.into()]);
    }

    /// Four lanes at a time, each four put into their quarter or half.
    fn load_lanes(&mut self, dst: Vector, temp: Vector, mems: &[Mem]) {
        let insert = self
            .level
            .pick(Code::VEX_Vinsertps_xmm_xmm_xmmm32_imm8, Code::EVEX_Vinsertps_xmm_xmm_xmmm32_imm8);
        let join = self.level.pick(
            Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8,
            Code::EVEX_Vinsertf32x4_zmm_k1z_zmm_xmmm128_imm8,
        );
        for (part, four) in mems.chunks(4).enumerate() {
            let low = if part == 0 { self.low(dst) } else { self.low(temp) };
            for (lane, mem) in four.iter().enumerate() {
                match lane {
                    0 => self.load_one(low, *mem),
                    _ => {
                        let lane = Operand::Imm((lane as i32) << 4);
                        self.asm.op(insert, &[low.into(), low.into(), self.mem(*mem).into(), lane]);
                    }
                }
            }
            if part > 0 {
                let dst: Operand = self.vector(dst).into();
                self.asm.op(join, &[dst, dst, low.into(), (part as i32).into()]);
            }
        }
    }

    fn store_lanes(&mut self, mems: &[Mem], src: Vector, temp: Vector) {
        let extract =
            self.level.pick(Code::VEX_Vextractps_rm32_xmm_imm8, Code::EVEX_Vextractps_rm32_xmm_imm8);
        let split = self
            .level
            .pick(Code::VEX_Vextractf128_xmmm128_ymm_imm8, Code::EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8);
        for (part, four) in mems.chunks(4).enumerate() {
            let low = if part == 0 { self.low(src) } else { self.low(temp) };
            if part > 0 {
                self.asm.op(split, &[low.into(), self.vector(src).into(), (part as i32).into()]);
            }
            for (lane, mem) in four.iter().enumerate() {
                match lane {
                    0 => self.store_one(*mem, low),
                    _ => self.asm.op(extract, &[self.mem(*mem).into(), low.into(), (lane as i32).into()]),
                }
            }
        }
    }
}

/// The conditional jump of a signed comparison.
fn jump_if(op: CompareOp) -> Code {
    match op {
        CompareOp::Eq => Code::Je_rel32_64,
        CompareOp::Ne => Code::Jne_rel32_64,
        CompareOp::Lt => Code::Jl_rel32_64,
        CompareOp::Le => Code::Jle_rel32_64,
        CompareOp::Gt => Code::Jg_rel32_64,
        CompareOp::Ge => Code::Jge_rel32_64,
    }
}

fn opposite(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Eq => CompareOp::Ne,
        CompareOp::Ne => CompareOp::Eq,
        CompareOp::Lt => CompareOp::Ge,
        CompareOp::Le => CompareOp::Gt,
        CompareOp::Gt => CompareOp::Le,
        CompareOp::Ge => CompareOp::Lt,
    }
}

/// The lower half of a 64-bit register.
fn low_half(reg: Register) -> Register {
    Register::EAX + (reg as u32 - Register::RAX as u32)
}

/// The lowest 16 bits of a 64-bit register.
fn low_word(reg: Register) -> Register {
    Register::AX + (reg as u32 - Register::RAX as u32)
}

/// The lowest byte of a 64-bit register.
fn low_byte(reg: Register) -> Register {
    match reg {
        Register::RAX => Register::AL,
        Register::RCX => Register::CL,
        Register::RDX => Register::DL,
        Register::RBX => Register::BL,
        Register::RSI => Register::SIL,
        Register::RDI => Register::DIL,
        Register::RBP => Register::BPL,
        other => Register::R8L + (other as u32 - Register::R8 as u32),
    }
}
