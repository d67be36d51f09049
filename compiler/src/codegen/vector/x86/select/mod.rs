//! Instruction selection: each step becomes one to ten instructions.

mod ints;
mod memory;
mod tiles;
mod wide;

use super::{
    asm::{Assembler, Operand, Placed, by_imm_width},
    legalize::{Constants, Splat},
    registers::{FIRST_SAVED, INTS, low_half},
    simd::Simd,
};
use crate::{
    codegen::vector::{
        allocate::{Allocated, STACK},
        listing::Label,
        steps::SelectSteps,
        vcode::{BitsOp, Cond, Int, IntOperand, Mask, MaskOp, Mem, ShiftOp, VBinary, VInst, VUnary, Vector},
    },
    error::Result,
    scalar::CompareOp,
};
use iced_x86::{Code, MemoryOperand, Register};

/// Smallest distance of pages that a system adds to a stack.
const STACK_PAGE_BYTES: i32 = 4096;

/// The machine code of a microkernel whose registers are allocated.
pub(super) fn select(allocated: &Allocated, constants: &Constants, simd: Simd) -> Result<Vec<u8>> {
    let mut selector = Selector { allocated, constants, simd, asm: Assembler::default() };
    let used = allocated.ints();
    let saved: Vec<Register> =
        (FIRST_SAVED..INTS.len()).filter(|place| used.contains(place)).map(|place| INTS[place]).collect();

    selector.prologue(&saved);
    selector.steps(&allocated.code.steps);
    selector.epilogue(&saved);
    selector.asm.finish()
}

struct Selector<'a> {
    allocated: &'a Allocated,
    constants: &'a Constants,
    simd: Simd,
    asm: Assembler,
}

impl Selector<'_> {
    /// Bytes of the spill slots and of the scratch memory above them.
    fn frame_bytes(&self) -> i32 {
        self.allocated.frame_bytes + self.allocated.code.scratch_bytes as i32
    }

    fn prologue(&mut self, saved: &[Register]) {
        for reg in saved {
            self.asm.op(Code::Push_r64, &[(*reg).into()]);
        }
        // Systems add pages to a stack one at a time, so none may be skipped.
        for page in 1..=i64::from(self.frame_bytes() / STACK_PAGE_BYTES) {
            let below = -page * i64::from(STACK_PAGE_BYTES);
            let probe = MemoryOperand::with_base_displ(Register::RSP, below);
            self.asm.op(Code::Test_rm64_r64, &[probe.into(), Register::RSP.into()]);
        }
        if self.frame_bytes() > 0 {
            self.asm.op(Code::Sub_rm64_imm32, &[Register::RSP.into(), self.frame_bytes().into()]);
        }
        // The allocator may have given the argument another register than the one it is passed in.
        let args = self.int(Int(0));
        self.move_int(args, INTS[0]);
    }

    fn epilogue(&mut self, saved: &[Register]) {
        // The caller may use SSE instructions, which are slow while upper halves are not zero.
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
        self.simd.vector(self.allocated.place(vector))
    }

    fn low(&self, vector: Vector) -> Register {
        self.simd.low(self.allocated.place(vector))
    }

    fn mask(&self, mask: Mask) -> Register {
        self.simd.mask(self.allocated.place(mask))
    }

    /// A vector as the last source operand: a register or a pool entry.
    fn source(&mut self, vector: Vector) -> Operand {
        match self.constants.get(vector) {
            None => self.vector(vector).into(),
            Some(Splat::Lanes(bits)) => self.splat(*bits),
            Some(Splat::WideLanes(bits)) => {
                let bytes = bits.to_le_bytes().repeat(self.simd.lanes() / 2);
                Operand::Pool(self.asm.constant(bytes))
            }
        }
    }

    fn splat(&mut self, bits: u32) -> Operand {
        match self.simd {
            Simd::Avx2 => Operand::Pool(self.asm.constant(bits.to_le_bytes().repeat(8))),
            Simd::Avx512 => Operand::Splat(self.asm.constant(bits.to_le_bytes().to_vec())),
        }
    }

    fn mem(&self, mem: Mem) -> MemoryOperand {
        let base = self.int(mem.base);
        let (index, scale) = match mem.index {
            Some((index, scale)) => (self.int(index), u32::from(scale)),
            None => (Register::None, 1),
        };
        // The base registers `rbp` and `r13` have no encoding without a displacement.
        let has_disp = mem.disp != 0 || matches!(base, Register::RBP | Register::R13);
        let disp = i64::from(mem.disp);
        MemoryOperand::new(base, index, scale, disp, u32::from(has_disp), false, Register::None)
    }

    fn move_vector(&mut self, dst: Vector, src: Vector) {
        let dst = self.vector(dst);
        match self.constants.get(src) {
            Some(Splat::Lanes(0) | Splat::WideLanes(0)) => {
                let (code, _) = self.simd.binary(VBinary::Xor);
                self.asm.op(code, &[dst.into(), dst.into(), dst.into()]);
            }
            Some(Splat::Lanes(bits)) => {
                let entry = self.asm.constant(bits.to_le_bytes().to_vec());
                self.asm.op(self.simd.broadcast(), &[dst.into(), Operand::Pool(entry)]);
            }
            Some(Splat::WideLanes(bits)) => {
                let entry = self.asm.constant(bits.to_le_bytes().to_vec());
                self.asm.op(self.simd.wide_broadcast(), &[dst.into(), Operand::Pool(entry)]);
            }
            None => self.copy(dst, self.vector(src)),
        }
    }

    fn copy(&mut self, dst: Register, src: Register) {
        if dst != src {
            self.asm.op(self.simd.copy(), &[dst.into(), src.into()]);
        }
    }

    fn fma(&mut self, dst: Vector, a: Vector, b: Vector, c: Vector) {
        let [order132, order213, order231] = self.simd.fma();
        let to = self.vector(dst);
        let x = self.source(a);
        let y = self.source(b);
        let z = self.source(c);
        let is_dst = |operand: &Operand| matches!(operand, Operand::Reg(reg) if *reg == to);

        // The order decides which operand the result overwrites, and the last operand may be a constant. `a` is never
        // one, and `b` and `c` are not both: see `legalize`.
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
            let Operand::Reg(x) = x else { unreachable!("`legalize` moved the constant") };
            self.copy(to, x);
            self.asm.op(order213, &[to.into(), y, z]);
        }
    }

    fn bits(&mut self, op: BitsOp, dst: Vector, [a, b, c]: [Vector; 3]) {
        // Bit `4a + 2b + c` of the table is the result.
        let table = match op {
            BitsOp::AndOr => 0b1110_1010,
            BitsOp::Majority => 0b1110_1000,
        };
        let to = self.vector(dst);
        let from = self.vector(a);
        self.copy(to, from);
        let b = self.vector(b).into();
        let c = self.source(c);
        self.asm.op(Code::EVEX_Vpternlogd_zmm_k1z_zmm_zmmm512b32_imm8, &[to.into(), b, c, table.into()]);
    }

    /// `dst = a · b + c`, where the instruction adds to its destination.
    fn accumulate(&mut self, code: Code, dst: Vector, [a, b, c]: [Vector; 3]) {
        let to = self.vector(dst);
        let from = self.vector(c);
        self.copy(to, from);
        self.asm.op(code, &[to.into(), self.vector(a).into(), self.vector(b).into()]);
    }

    fn binary(&mut self, op: VBinary, dst: Vector, a: Vector, b: Vector) {
        if matches!(op, VBinary::EvenThenOdd | VBinary::Even | VBinary::Odd) {
            return self.alternate(op, dst, a, b);
        }
        let (code, groups) = self.simd.binary(op);
        let dst = self.vector(dst).into();
        let a = self.vector(a).into();
        // Words in memory can't be repeated for operations on lanes of 8 and of 16 bits.
        let is_narrow = matches!(op, VBinary::DotPairs | VBinary::DotBytePairs | VBinary::AddHalves);
        let b = match self.constants.get(b) {
            Some(Splat::Lanes(bits)) if is_narrow => {
                Operand::Pool(self.asm.constant(bits.to_le_bytes().repeat(self.simd.lanes())))
            }
            _ => self.source(b),
        };
        match groups {
            Some(groups) => self.asm.op(code, &[dst, a, b, groups.into()]),
            None => self.asm.op(code, &[dst, a, b]),
        }
    }

    /// Moves the words of the same lanes of all quarters to one quarter, and exchanges their bytes there.
    fn interleave_bytes(&mut self, dst: Vector, src: Vector) {
        let quads = |number: fn(u32, u32) -> u32| (0..16).map(move |at| number(at / 4, at % 4));
        let words = quads(|quarter, word| 4 * word + quarter).flat_map(u32::to_le_bytes).collect();
        let bytes: Vec<u8> = quads(|word, byte| 4 * byte + word).map(|number| number as u8).collect();
        let words = Operand::Pool(self.asm.constant(words));
        let bytes = Operand::Pool(self.asm.constant(bytes.repeat(4)));
        let src = self.vector(src).into();
        let dst = self.vector(dst).into();
        self.asm.op(self.simd.load(), &[dst, words]);
        self.asm.op(Code::EVEX_Vpermd_zmm_k1z_zmm_zmmm512b32, &[dst, dst, src]);
        self.asm.op(Code::EVEX_Vpshufb_zmm_k1z_zmm_zmmm512, &[dst, dst, bytes]);
    }

    /// Every second lane of two vectors.
    fn alternate(&mut self, op: VBinary, dst: Vector, a: Vector, b: Vector) {
        // The lanes of `a` are the odd ones, and those of `b`.
        let odd = [op == VBinary::Odd, op != VBinary::Even];
        let (code, _) = self.simd.binary(op);
        let b = self.source(b);
        let a = self.vector(a).into();
        let dst = self.vector(dst).into();
        match self.simd {
            Simd::Avx2 => {
                // Within each half, two lanes of `a` precede those of `b`.
                let [from_a, from_b] = odd.map(|odd| if odd { 0b1101 } else { 0b1000 });
                self.asm.op(code, &[dst, a, b, (from_b << 4 | from_a).into()]);
                self.asm.op(Code::VEX_Vpermq_ymm_ymmm256_imm8, &[dst, dst, 0xd8.into()]);
            }
            Simd::Avx512 => {
                let lanes = self.simd.lanes() as u32;
                // The lanes of `b` have the numbers from 16 on.
                let number = |lane: u32| 2 * lane + u32::from(odd[usize::from(lane >= lanes / 2)]);
                let numbers = (0..lanes).flat_map(|lane| number(lane).to_le_bytes()).collect();
                let numbers = Operand::Pool(self.asm.constant(numbers));
                self.asm.op(self.simd.load(), &[dst, numbers]);
                self.asm.op(code, &[dst, a, b]);
            }
        }
    }

    fn unary(&mut self, op: VUnary, dst: Vector, a: Vector) {
        let (code, mode) = self.simd.unary(op);
        let dst = self.vector(dst).into();
        let a = self.vector(a).into();
        match mode {
            Some(mode) => self.asm.op(code, &[dst, a, mode.into()]),
            None => self.asm.op(code, &[dst, a]),
        }
    }

    fn shift(&mut self, op: ShiftOp, dst: Vector, a: Vector, by: u8) {
        let code = self.simd.shift(op);
        self.asm.op(code, &[self.vector(dst).into(), self.vector(a).into(), i32::from(by).into()]);
    }

    fn butterfly(&mut self, dst: Vector, a: Vector, distance: u8) {
        use Code::{EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8, EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8};
        let (dst, a): (Operand, Operand) = (self.vector(dst).into(), self.vector(a).into());
        let inside =
            self.simd.pick(Code::VEX_Vpermilps_ymm_ymmm256_imm8, EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8);

        match (distance, self.simd) {
            (1, _) => self.asm.op(inside, &[dst, a, 0xb1.into()]),
            (2, _) => self.asm.op(inside, &[dst, a, 0x4e.into()]),
            (_, Simd::Avx2) => {
                self.asm.op(Code::VEX_Vperm2f128_ymm_ymm_ymmm256_imm8, &[dst, a, a, 1.into()]);
            }
            (4, _) => self.asm.op(EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8, &[dst, a, a, 0xb1.into()]),
            (_, _) => self.asm.op(EVEX_Vshuff32x4_zmm_k1z_zmm_zmmm512b32_imm8, &[dst, a, a, 0x4e.into()]),
        }
    }

    /// Scales under the mask of the lanes that are not less, so that no other lane has a subnormal result.
    fn scale_unless_less(&mut self, dst: Vector, mask: Mask, [a, n, x, bound]: [Vector; 4]) {
        let bound = self.source(bound);
        let [dst, a, n, x] = [dst, a, n, x].map(|vector| self.vector(vector).into());
        let mask = self.mask(mask);
        let compare = Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;
        self.asm.op(compare, &[mask.into(), x, bound, NOT_LESS.into()]);
        self.asm.op_masked(Code::EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er, &[dst, a, n], mask, true);
    }

    /// Compares floats.
    fn compare(&mut self, op: CompareOp, dst: Mask, a: Vector, b: Vector) {
        let code = self
            .simd
            .pick(Code::VEX_Vcmpps_ymm_ymm_ymmm256_imm8, Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae);
        let b = self.source(b);
        self.asm.op(code, &[self.mask(dst).into(), self.vector(a).into(), b, float_predicate(op).into()]);
    }

    fn compare_int(&mut self, op: CompareOp, dst: Mask, a: Vector, b: Vector) {
        let operands = [self.mask(dst).into(), self.vector(a).into(), self.vector(b).into()];
        if self.simd == Simd::Avx512 {
            let [dst, a, b] = operands;
            let code = Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8;
            return self.asm.op(code, &[dst, a, b, int_predicate(op).into()]);
        }
        let codes = [Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256];
        self.compare_int_avx2(op, operands, codes);
    }

    /// AVX2 compares for `==` and `>` only, by instructions of these codes. The other comparisons exchange the operands
    /// or negate the result.
    fn compare_int_avx2(&mut self, op: CompareOp, [dst, a, b]: [Operand; 3], [equal, greater]: [Code; 2]) {
        let code = if matches!(op, CompareOp::Eq | CompareOp::Ne) { equal } else { greater };
        let is_swapped = matches!(op, CompareOp::Lt | CompareOp::Ge);
        let is_negated = matches!(op, CompareOp::Ne | CompareOp::Le | CompareOp::Ge);
        let (x, y) = if is_swapped { (b, a) } else { (a, b) };
        self.asm.op(code, &[dst, x, y]);
        if is_negated {
            let ones = self.splat(u32::MAX);
            self.asm.op(Code::VEX_Vxorps_ymm_ymm_ymmm256, &[dst, dst, ones]);
        }
    }

    fn mask_op(&mut self, op: MaskOp, dst: Mask, a: Mask, b: Mask) {
        let (avx2, avx512) = match op {
            MaskOp::And => (Code::VEX_Vandps_ymm_ymm_ymmm256, Code::VEX_Kandw_kr_kr_kr),
            MaskOp::Or => (Code::VEX_Vorps_ymm_ymm_ymmm256, Code::VEX_Korw_kr_kr_kr),
            MaskOp::Xor => (Code::VEX_Vxorps_ymm_ymm_ymmm256, Code::VEX_Kxorw_kr_kr_kr),
            MaskOp::Join => return self.join_masks(dst, a, b),
        };
        let code = self.simd.pick(avx2, avx512);
        self.asm.op(code, &[self.mask(dst).into(), self.mask(a).into(), self.mask(b).into()]);
    }

    /// The numbers of the lanes, in the pool.
    fn lane_numbers(&mut self) -> Operand {
        let lanes: Vec<u8> = (0..self.simd.lanes() as u32).flat_map(u32::to_le_bytes).collect();
        Operand::Pool(self.asm.constant(lanes))
    }

    fn count_from(&mut self, dst: Vector, first: Int) {
        let lanes = self.lane_numbers();
        let first = low_half(self.int(first)).into();
        let low = self.low(dst).into();
        let dst = self.vector(dst).into();
        match self.simd {
            Simd::Avx2 => {
                self.asm.op(Code::VEX_Vmovd_xmm_rm32, &[low, first]);
                self.asm.op(Code::VEX_Vpbroadcastd_ymm_xmmm32, &[dst, low]);
                self.asm.op(Code::VEX_Vpaddd_ymm_ymm_ymmm256, &[dst, dst, lanes]);
            }
            Simd::Avx512 => {
                self.asm.op(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, &[dst, first]);
                self.asm.op(Code::EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32, &[dst, dst, lanes]);
            }
        }
    }

    fn mask_first(&mut self, dst: Mask, n: Int, temp: Vector) {
        let lanes = self.lane_numbers();
        let n = low_half(self.int(n)).into();
        let dst = self.mask(dst).into();
        let low = self.low(temp).into();
        let temp = self.vector(temp).into();

        match self.simd {
            Simd::Avx2 => {
                self.asm.op(Code::VEX_Vmovd_xmm_rm32, &[low, n]);
                self.asm.op(Code::VEX_Vpbroadcastd_ymm_xmmm32, &[temp, low]);
                self.asm.op(Code::VEX_Vpcmpgtd_ymm_ymm_ymmm256, &[dst, temp, lanes]);
            }
            Simd::Avx512 => {
                self.asm.op(Code::EVEX_Vpbroadcastd_zmm_k1z_r32, &[temp, n]);
                self.asm.op(Code::EVEX_Vpcmpgtd_kr_k1_zmm_zmmm512b32, &[dst, temp, lanes]);
            }
        }
    }

    fn blend(&mut self, dst: Vector, mask: Mask, a: Vector, b: Vector) {
        let a = self.source(a);
        let dst = self.vector(dst).into();
        let b = self.vector(b).into();
        let mask = self.mask(mask);
        match self.simd {
            Simd::Avx2 => self.asm.op(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, &[dst, b, a, mask.into()]),
            Simd::Avx512 => {
                self.asm.op_masked(Code::EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32, &[dst, b, a], mask, false);
            }
        }
    }
}

/// The predicate of `!(a < b)`.
const NOT_LESS: i32 = 5;

/// The predicate of a comparison of floats: the ordered ones, except that `Ne` holds for NaN.
fn float_predicate(op: CompareOp) -> i32 {
    match op {
        CompareOp::Eq => 0,
        CompareOp::Lt => 1,
        CompareOp::Le => 2,
        CompareOp::Ne => 4,
        CompareOp::Ge => 13,
        CompareOp::Gt => 14,
    }
}

/// The predicate of a comparison of signed integers.
fn int_predicate(op: CompareOp) -> i32 {
    match op {
        CompareOp::Eq => 0,
        CompareOp::Lt => 1,
        CompareOp::Le => 2,
        CompareOp::Ne => 4,
        CompareOp::Ge => 5,
        CompareOp::Gt => 6,
    }
}

impl SelectSteps for Selector<'_> {
    type Instruction = Placed;

    fn listing(&mut self) -> &mut Assembler {
        &mut self.asm
    }

    fn branch_if(&mut self, cond: Cond, to: Label) {
        let a = self.int(cond.a).into();
        match cond.b {
            IntOperand::Int(b) => self.asm.op(Code::Cmp_rm64_r64, &[a, self.int(b).into()]),
            IntOperand::Imm(b) => {
                let code = by_imm_width(b, Code::Cmp_rm64_imm8, Code::Cmp_rm64_imm32);
                self.asm.op(code, &[a, b.into()]);
            }
        }
        self.asm.branch(jump_if(cond.op), to);
    }

    fn step(&mut self, step: &VInst) {
        match step {
            VInst::Imm(dst, value) => self.imm(self.int(*dst), *value),
            VInst::Copy(dst, src) => self.move_int(self.int(*dst), self.int(*src)),
            VInst::Int(op, dst, a, b) => self.int_op(*op, self.int(*dst), self.int(*a), *b),
            VInst::Address(dst, mem) => {
                self.asm.op(Code::Lea_r64_m, &[self.int(*dst).into(), self.mem(*mem).into()]);
            }
            VInst::Scratch(dst) => {
                let scratch =
                    MemoryOperand::with_base_displ(Register::RSP, i64::from(self.allocated.frame_bytes));
                self.asm.op(Code::Lea_r64_m, &[self.int(*dst).into(), scratch.into()]);
            }
            VInst::LoadInt(dst, mem, width) => self.load_int(*dst, *mem, *width),
            VInst::StoreInt(mem, src, width) => self.store_int(*mem, *src, *width),
            VInst::Constant(..) => {}
            VInst::CountFrom(dst, first) => self.count_from(*dst, *first),
            VInst::Move(dst, src) => self.move_vector(*dst, *src),
            VInst::Fma(dst, a, b, c) => self.fma(*dst, *a, *b, *c),
            VInst::ScaleUnlessLess(dst, mask, srcs) => self.scale_unless_less(*dst, *mask, *srcs),
            VInst::Bits(op, dst, a, b, c) => self.bits(*op, *dst, [*a, *b, *c]),
            VInst::InterleaveBytes(dst, src) => self.interleave_bytes(*dst, *src),
            VInst::DotBytes(dst, a, b, c) => self.accumulate(self.simd.dot_bytes(), *dst, [*a, *b, *c]),
            VInst::SumDotPairs(dst, a, b, c) => {
                self.accumulate(self.simd.sum_dot_pairs(), *dst, [*a, *b, *c]);
            }
            VInst::Binary(op, dst, a, b) => self.binary(*op, *dst, *a, *b),
            VInst::Unary(op, dst, a) => self.unary(*op, *dst, *a),
            VInst::Shift(op, dst, a, by) => self.shift(*op, *dst, *a, *by),
            VInst::Butterfly(dst, a, distance) => self.butterfly(*dst, *a, *distance),
            VInst::Compare(op, dst, a, b) => self.compare(*op, *dst, *a, *b),
            VInst::CompareInt(op, dst, a, b) => self.compare_int(*op, *dst, *a, *b),
            VInst::Mask(op, dst, a, b) => self.mask_op(*op, *dst, *a, *b),
            VInst::MaskFirst(dst, n, temp) => self.mask_first(*dst, *n, *temp),
            VInst::LoadMask(dst, mem) => {
                let code = self.simd.pick(self.simd.load(), Code::VEX_Kmovw_kr_km16);
                self.asm.op(code, &[self.mask(*dst).into(), self.mem(*mem).into()]);
            }
            VInst::StoreMask(mem, src) => {
                let code = self.simd.pick(self.simd.store(), Code::VEX_Kmovw_m16_kr);
                self.asm.op(code, &[self.mem(*mem).into(), self.mask(*src).into()]);
            }
            VInst::Select(dst, mask, a, b) => self.blend(*dst, *mask, *a, *b),
            VInst::TileConfig(_)
            | VInst::TileRelease
            | VInst::TileZero(_)
            | VInst::TileLoad(..)
            | VInst::TileStore(..)
            | VInst::TileDot(..) => self.tile(step),
            step if step.is_wide() => self.wide(step),
            VInst::RoundBf16(dst, a) => self.round_bf16(*dst, *a),
            VInst::RoundF16(dst, a) => self.round_f16(*dst, *a),
            VInst::StoreBf16First(mem, src, temp, _, mask) => {
                self.store_bf16_first(*mem, *src, *temp, *mask);
            }
            VInst::PackBf16(dst, a, b) => self.pack_bf16(*dst, *a, *b),
            VInst::UnpackBf16(dst, a, half) => self.unpack_bf16(*dst, *a, *half),
            VInst::UnlessInfinite(dst, a, b) => self.unless_infinite(*dst, *a, *b),
            VInst::StoreBf16(mem, src, temp) => self.store_bf16(*mem, *src, *temp),
            _ => self.memory(step),
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
