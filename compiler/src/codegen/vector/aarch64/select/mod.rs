//! Instruction selection: each step becomes one to fourteen instructions.

mod arithmetic;
mod ints;
mod memory;
mod wide;

use super::{
    asm::{ALWAYS, Assembler, Placed},
    instructions::Op,
    registers::{FIRST_SAVED, INTS, SAVED_VECTORS, STACK_POINTER, TEMP, ZERO},
    transfers::{AddressForm, Transfer},
};
use crate::{
    codegen::vector::{
        allocate::{Allocated, STACK},
        listing::Label,
        steps::SelectSteps,
        vcode::{Cond, Int, IntOperand, Mask, VInst, Vector},
    },
    error::{Error, Result},
    scalar::CompareOp,
};

/// Smallest distance of pages that a system adds to a stack.
const STACK_PAGE_BYTES: i64 = 4096;

/// Alignment of the stack pointer in bytes.
const STACK_ALIGN: i64 = 16;

/// The machine code of a microkernel whose registers are allocated.
pub(super) fn select(allocated: &Allocated) -> Result<Vec<u8>> {
    let mut selector = Selector { allocated, asm: Assembler::default() };
    let saved = SavedRegisters::of(allocated);
    selector.prologue(&saved);
    selector.steps(&allocated.code.steps);
    selector.epilogue(&saved);
    selector.asm.finish()
}

/// The registers that a function must restore, in pairs.
struct SavedRegisters {
    ints: Vec<[i64; 2]>,
    vectors: Vec<[i64; 2]>,
}

impl SavedRegisters {
    fn of(allocated: &Allocated) -> SavedRegisters {
        // Registers of a pair are neighbours, and one that is not in use is saved in vain.
        let pairs = |first: i64, last: i64, used: &dyn Fn(i64) -> bool| {
            (first..last)
                .step_by(2)
                .map(|reg| [reg, reg + 1])
                .filter(|pair| pair.iter().any(|reg| used(*reg)))
                .collect()
        };
        let ints = allocated.ints();
        let vectors = allocated.vectors();
        SavedRegisters {
            ints: pairs(INTS[FIRST_SAVED], INTS[INTS.len() - 1], &|reg| {
                ints.iter().any(|place| INTS[*place] == reg)
            }),
            vectors: pairs(*SAVED_VECTORS.start(), *SAVED_VECTORS.end(), &|reg| {
                vectors.contains(&(reg as usize))
            }),
        }
    }

    /// The instructions that move the registers, with the operands of each.
    fn moves(&self, ints: Op, vectors: Op) -> impl Iterator<Item = (Op, [i64; 4])> {
        let ints = self.ints.iter().map(move |pair| (ints, *pair));
        let vectors = self.vectors.iter().map(move |pair| (vectors, *pair));
        ints.chain(vectors).enumerate().map(|(slot, (op, [first, second]))| {
            (op, [first, second, STACK_POINTER, STACK_ALIGN * slot as i64])
        })
    }

    /// Bytes of the stack that they take.
    fn bytes(&self) -> i64 {
        STACK_ALIGN * (self.ints.len() + self.vectors.len()) as i64
    }
}

struct Selector<'a> {
    allocated: &'a Allocated,
    asm: Assembler,
}

impl Selector<'_> {
    /// Bytes of the spill slots and of the scratch memory above them.
    fn frame_bytes(&self) -> i64 {
        let bytes = i64::from(self.allocated.frame_bytes) + i64::from(self.allocated.code.scratch_bytes);
        (bytes + STACK_ALIGN - 1) / STACK_ALIGN * STACK_ALIGN
    }

    fn prologue(&mut self, saved: &SavedRegisters) {
        self.add_immediate(STACK_POINTER, STACK_POINTER, -saved.bytes());
        for (op, operands) in saved.moves(Op::StorePair, Op::StorePairD) {
            self.asm.op(op, &operands);
        }
        // Systems add pages to a stack one at a time, so none may be skipped.
        for _ in 0..self.frame_bytes() / STACK_PAGE_BYTES {
            self.add_immediate(STACK_POINTER, STACK_POINTER, -STACK_PAGE_BYTES);
            self.asm.transfer(Transfer::STR_X, AddressForm::Offset, [ZERO, STACK_POINTER, 0]);
        }
        self.add_immediate(STACK_POINTER, STACK_POINTER, -(self.frame_bytes() % STACK_PAGE_BYTES));
        // The allocator may have given the argument another register than the one it is passed in.
        self.move_int(self.int(Int(0)), INTS[0]);
    }

    fn epilogue(&mut self, saved: &SavedRegisters) {
        self.add_immediate(STACK_POINTER, STACK_POINTER, self.frame_bytes());
        for (op, operands) in saved.moves(Op::LoadPair, Op::LoadPairD) {
            self.asm.op(op, &operands);
        }
        self.add_immediate(STACK_POINTER, STACK_POINTER, saved.bytes());
        self.asm.op(Op::Ret, &[]);
    }

    fn int(&self, int: Int) -> i64 {
        if int == STACK { STACK_POINTER } else { INTS[self.allocated.place(int)] }
    }

    fn vector(&self, vector: Vector) -> i64 {
        self.allocated.place(vector) as i64
    }

    fn mask(&self, mask: Mask) -> i64 {
        self.allocated.place(mask) as i64
    }

    /// Jumps to a label.
    fn jump(&mut self, to: Label) {
        self.asm.branch(ALWAYS, to);
    }

    /// Remembers that a step has no instructions here: a bug, because the shape of the ISA rules it out.
    fn refuse(&mut self, step: &impl std::fmt::Debug) {
        self.asm.push(Err(Error::internal(format!("NEON has no instructions for {step:?}"))));
    }

    fn move_vector(&mut self, dst: i64, src: i64) {
        if dst != src {
            self.asm.op(Op::MoveVector, &[dst, src]);
        }
    }

    /// `dst = c + product`. The factors are the operands of the instruction after the destination.
    fn multiply_add(&mut self, op: Op, dst: Vector, factors: &[i64], c: Vector) {
        let to = self.vector(dst);
        let from = self.vector(c);
        let overwrites = to != from && factors[..2].contains(&to);
        let sum = if overwrites { TEMP } else { to };
        self.move_vector(sum, from);
        self.asm.op(op, &[&[sum], factors].concat());
        self.move_vector(to, sum);
    }
}

impl SelectSteps for Selector<'_> {
    type Instruction = Placed;

    fn listing(&mut self) -> &mut Assembler {
        &mut self.asm
    }

    fn branch_if(&mut self, cond: Cond, to: Label) {
        let a = self.int(cond.a);
        match cond.b {
            IntOperand::Int(b) => self.asm.op(Op::Cmp, &[a, self.int(b)]),
            IntOperand::Imm(b) => self.compare_immediate(a, i64::from(b)),
        }
        self.asm.branch(condition(cond.op), to);
    }

    fn step(&mut self, step: &VInst) {
        match step {
            VInst::Imm(dst, value) => self.imm(self.int(*dst), *value),
            VInst::Copy(dst, src) => self.move_int(self.int(*dst), self.int(*src)),
            VInst::Int(op, dst, a, b) => self.int_op(*op, self.int(*dst), self.int(*a), *b),
            VInst::Address(dst, mem) => self.set_address(self.int(*dst), *mem),
            VInst::Scratch(dst) => {
                let offset = i64::from(self.allocated.frame_bytes);
                self.add_immediate(self.int(*dst), STACK_POINTER, offset);
            }
            VInst::LoadInt(dst, mem, width) => self.load_int(*dst, *mem, *width),
            VInst::StoreInt(mem, src, width) => self.store_int(*mem, *src, *width),
            VInst::Constant(dst, bits) => self.constant(self.vector(*dst), *bits),
            VInst::CountFrom(dst, first) => self.count_from(*dst, *first),
            VInst::Move(dst, src) => self.move_vector(self.vector(*dst), self.vector(*src)),
            VInst::Fma(dst, a, b, c) => {
                let factors = [self.vector(*a), self.vector(*b)];
                self.multiply_add(Op::Fmla, *dst, &factors, *c);
            }
            VInst::FmaLane(dst, a, b, lane, c) => {
                let factors = [self.vector(*a), self.vector(*b), i64::from(*lane)];
                self.multiply_add(Op::FmlaLane, *dst, &factors, *c);
            }
            VInst::DotSigned(dst, a, b, c) => {
                let factors = [self.vector(*a), self.vector(*b)];
                self.multiply_add(Op::Sdot, *dst, &factors, *c);
            }
            VInst::DotMatrix(dst, a, b, c) => {
                let factors = [self.vector(*a), self.vector(*b)];
                self.multiply_add(Op::Smmla, *dst, &factors, *c);
            }
            VInst::DotMatrixBf16(dst, a, b, c) => {
                let factors = [self.vector(*a), self.vector(*b)];
                self.multiply_add(Op::Bfmmla, *dst, &factors, *c);
            }
            VInst::RoundBf16(dst, a) => {
                let dst = self.vector(*dst);
                self.asm.op(Op::Bfcvtn, &[dst, self.vector(*a)]);
                self.asm.op(Op::ShllHalves, &[dst, dst]);
            }
            VInst::PackBf16(dst, a, b) => {
                let dst = self.vector(*dst);
                self.asm.op(Op::Bfcvtn, &[dst, self.vector(*a)]);
                self.asm.op(Op::Bfcvtn2, &[dst, self.vector(*b)]);
            }
            VInst::DotSignedLane(dst, a, b, lane, c) => {
                let factors = [self.vector(*a), self.vector(*b), i64::from(*lane)];
                self.multiply_add(Op::SdotLane, *dst, &factors, *c);
            }
            VInst::Binary(op, dst, a, b) => {
                self.binary(*op, self.vector(*dst), self.vector(*a), self.vector(*b));
            }
            VInst::Unary(op, dst, a) => self.unary(*op, self.vector(*dst), self.vector(*a)),
            VInst::Shift(op, dst, a, by) => self.shift(*op, self.vector(*dst), self.vector(*a), *by),
            VInst::Butterfly(dst, a, distance) => {
                self.butterfly(self.vector(*dst), self.vector(*a), *distance);
            }
            VInst::Compare(op, dst, a, b) => {
                let ops = [Op::Fcmeq, Op::Fcmge, Op::Fcmgt];
                self.compare(*op, ops, self.mask(*dst), self.vector(*a), self.vector(*b));
            }
            VInst::CompareInt(op, dst, a, b) => {
                let ops = [Op::Cmeq, Op::Cmge, Op::Cmgt];
                self.compare(*op, ops, self.mask(*dst), self.vector(*a), self.vector(*b));
            }
            VInst::Mask(op, dst, a, b) => self.mask_op(*op, self.mask(*dst), self.mask(*a), self.mask(*b)),
            VInst::MaskFirst(dst, n, temp) => self.mask_first(*dst, *n, *temp),
            VInst::Select(dst, mask, a, b) | VInst::WideSelect(dst, mask, a, b) => {
                self.select(self.vector(*dst), self.mask(*mask), self.vector(*a), self.vector(*b));
            }
            VInst::RoundF16(dst, a) => {
                let dst = self.vector(*dst);
                self.asm.op(Op::FcvtnHalves, &[dst, self.vector(*a)]);
                self.asm.op(Op::FcvtlHalves, &[dst, dst]);
            }
            step if step.is_wide() => self.wide(step),
            _ => self.memory(step),
        }
    }
}

/// The number of the condition of a signed comparison.
fn condition(op: CompareOp) -> i64 {
    match op {
        CompareOp::Eq => 0,
        CompareOp::Ne => 1,
        CompareOp::Ge => 10,
        CompareOp::Lt => 11,
        CompareOp::Gt => 12,
        CompareOp::Le => 13,
    }
}
