//! Records vector code: one method for each instruction. A method returns its result in a fresh register, unless its
//! name begins with `set`.

mod f16;
mod narrow;
mod tiles;
mod transpose;
mod wide;

use super::{
    coalesce::coalesce,
    vcode::{
        BitsOp, Cond, Int, IntOp, IntOperand, IntWidth, Mask, MaskOp, Mem, ShiftOp, VBinary, VCode, VInst,
        VUnary, Vector,
    },
};
use crate::scalar::CompareOp;
use std::collections::HashMap;

/// The properties of an ISA that microkernels depend on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VectorShape {
    /// 32-bit lanes of a vector.
    pub lanes: usize,
    /// Vector registers.
    pub registers: usize,
    /// Whether `a * b + c` is one instruction with one rounding.
    pub fma: bool,
    /// Whether there is [`VInst::FmaLane`].
    pub fma_lanes: bool,
    /// Whether there are [`VBinary::Smallest`] and [`VBinary::Largest`].
    pub extrema: bool,
    /// Whether there are [`VInst::DotBytes`] and [`VInst::SumDotPairs`].
    pub vnni: bool,
    /// Whether there is [`VInst::InterleaveBytes`].
    pub byte_quads: bool,
    /// Whether there are [`VInst::DotSigned`] and [`VInst::DotSignedLane`].
    pub signed_dots: bool,
    /// Whether there is [`VInst::DotMatrix`].
    pub matrix_dots: bool,
    /// Whether there is [`VInst::DotMatrixBf16`].
    pub bf16_matrix_dots: bool,
    /// Whether there are [`VBinary::DotBytePairs`] and [`VBinary::AddHalves`].
    pub byte_pairs: bool,
    /// Whether [`VBinary::MulInt`] takes twice the time of [`VBinary::DotPairs`] on some machines.
    pub slow_int_products: bool,
    /// Whether there are [`VInst::LoadNarrowFirst`] and [`VInst::StoreNarrowFirst`].
    pub narrow_masks: bool,
    /// Whether stores have [`Narrowing::Clamp`](super::vcode::Narrowing::Clamp), and there is
    /// [`VInst::StorePacked`].
    pub clamping_stores: bool,
    /// Whether there is [`VInst::StoreTriples`].
    pub byte_triples: bool,
    /// Whether there is [`VInst::StoreInterleaved`].
    pub interleaving_stores: bool,
    /// Whether a part of a vector is stored by [`VInst::StoreFirst`], and not by [`VInst::StorePart`].
    pub masked_stores: bool,
    /// Whether there are tile registers.
    pub tiles: bool,
    /// Whether there are instructions that convert f16: [`VInst::LoadF16`] and the next three.
    pub f16: bool,
    /// Whether there are instructions for products and conversions of 64-bit integers: see
    /// [`WideBinary`](super::vcode::WideBinary) and [`WideUnary`](super::vcode::WideUnary).
    pub long_ints: bool,
}

/// Code that is being recorded.
pub struct Builder {
    shape: VectorShape,
    code: VCode,
    /// The register of each constant, by its bits.
    constants: HashMap<u32, Vector>,
    /// The register of each 64-bit constant, by its bits.
    wide_constants: HashMap<u64, Vector>,
    /// The instructions that set the constants, which come before all others.
    hoisted: Vec<VInst>,
}

impl From<Int> for IntOperand {
    fn from(int: Int) -> IntOperand {
        IntOperand::Int(int)
    }
}

impl From<i32> for IntOperand {
    fn from(value: i32) -> IntOperand {
        IntOperand::Imm(value)
    }
}

impl From<Int> for Mem {
    fn from(base: Int) -> Mem {
        Mem { base, index: None, disp: 0 }
    }
}

impl Mem {
    /// The address `bytes` higher.
    pub fn plus(self, bytes: usize) -> Mem {
        Mem { disp: self.disp + i32::try_from(bytes).expect("microkernels address a few KB"), ..self }
    }
}

impl Builder {
    /// Empty code for an ISA of this shape.
    pub fn new(shape: VectorShape) -> Builder {
        let code = VCode { ints: 1, ..VCode::default() };
        Builder {
            shape,
            code,
            constants: HashMap::new(),
            wide_constants: HashMap::new(),
            hoisted: Vec::new(),
        }
    }

    /// The code, which begins with the constants.
    pub fn finish(mut self) -> VCode {
        let mut steps = coalesce(self.code.steps, self.code.vectors);
        self.hoisted.append(&mut steps);
        self.code.steps = self.hoisted;
        self.code
    }

    /// The ISA's shape.
    pub fn shape(&self) -> VectorShape {
        self.shape
    }

    /// Lanes of a vector.
    pub fn lanes(&self) -> usize {
        self.shape.lanes
    }

    /// The pointer to the argument block.
    pub fn args(&self) -> Int {
        Int(0)
    }

    fn int(&mut self) -> Int {
        self.code.ints += 1;
        Int(self.code.ints - 1)
    }

    /// A fresh register, which is not set yet.
    pub fn vector(&mut self) -> Vector {
        self.code.vectors += 1;
        Vector(self.code.vectors - 1)
    }

    fn mask(&mut self) -> Mask {
        self.code.masks += 1;
        Mask(self.code.masks - 1)
    }

    fn push(&mut self, step: VInst) {
        self.code.steps.push(step);
    }

    /// A constant.
    pub fn imm(&mut self, value: i64) -> Int {
        let dst = self.int();
        self.push(VInst::Imm(dst, value));
        dst
    }

    /// A fresh register with the value of another.
    pub fn copy(&mut self, src: Int) -> Int {
        let dst = self.int();
        self.push(VInst::Copy(dst, src));
        dst
    }

    /// Sets a register to another's value.
    pub(crate) fn set_copy(&mut self, dst: Int, src: Int) {
        self.push(VInst::Copy(dst, src));
    }

    /// Integer arithmetic.
    pub(crate) fn int_op(&mut self, op: IntOp, a: Int, b: impl Into<IntOperand>) -> Int {
        let dst = self.int();
        self.push(VInst::Int(op, dst, a, b.into()));
        dst
    }

    /// `dst = dst op b`.
    pub(crate) fn set_int_op(&mut self, op: IntOp, dst: Int, b: impl Into<IntOperand>) {
        self.push(VInst::Int(op, dst, dst, b.into()));
    }

    /// `dst += b`.
    pub fn advance(&mut self, dst: Int, b: impl Into<IntOperand>) {
        self.set_int_op(IntOp::Add, dst, b);
    }

    /// The argument in slot `slot`.
    pub fn arg(&mut self, slot: usize) -> Int {
        let mem = self.arg_mem(slot);
        self.load_int(mem, IntWidth::I64)
    }

    /// The address of the argument in slot `slot`.
    pub fn arg_mem(&self, slot: usize) -> Mem {
        Mem::from(self.args()).plus(8 * slot)
    }

    /// An address as an integer.
    pub fn address(&mut self, mem: Mem) -> Int {
        let dst = self.int();
        self.push(VInst::Address(dst, mem));
        dst
    }

    /// The addresses of a vector's lanes, which are `stride` bytes apart.
    pub(crate) fn lane_addresses(&mut self, first: Int, stride: Int) -> Vec<Mem> {
        self.addresses(first, stride, self.lanes())
    }

    /// This number of addresses, a multiple of four, which are `stride` bytes apart.
    ///
    /// Each group of four shares a base. The index is the stride or its triple, so that few registers are live.
    pub(crate) fn addresses(&mut self, first: Int, stride: Int, count: usize) -> Vec<Mem> {
        let thrice = self.address(Mem { base: stride, index: Some((stride, 2)), disp: 0 });
        let mut base = first;
        let mut addresses = Vec::with_capacity(count);
        for place in (0..count).step_by(4) {
            if place > 0 {
                base = self.address(Mem { base, index: Some((stride, 4)), disp: 0 });
            }
            let with_index = |index| Mem { base, index, disp: 0 };
            addresses.extend([None, Some((stride, 1)), Some((stride, 2)), Some((thrice, 1))].map(with_index));
        }
        addresses
    }

    /// The address of `bytes` bytes of scratch memory. All calls return the same memory.
    pub fn scratch(&mut self, bytes: usize) -> Int {
        let start = self.scratch_start(4 * self.lanes() + bytes);
        self.address(Mem::from(start).plus(4 * self.lanes()))
    }

    /// The address of scratch memory for one vector of narrow elements, disjoint from `scratch`.
    pub(crate) fn narrow_scratch(&mut self) -> Int {
        self.scratch_start(4 * self.lanes())
    }

    /// The start of the scratch memory. Its first vector is [`Builder::narrow_scratch`].
    fn scratch_start(&mut self, bytes: usize) -> Int {
        self.code.scratch_bytes = self.code.scratch_bytes.max(bytes as u32);
        let dst = self.int();
        self.push(VInst::Scratch(dst));
        dst
    }

    /// An integer from memory.
    pub(crate) fn load_int(&mut self, mem: impl Into<Mem>, width: IntWidth) -> Int {
        let dst = self.int();
        self.push(VInst::LoadInt(dst, mem.into(), width));
        dst
    }

    /// The same 32 bits in all lanes. There is one register for each value, set once at the start.
    pub fn bits(&mut self, bits: u32) -> Vector {
        if let Some(&known) = self.constants.get(&bits) {
            return known;
        }
        let dst = self.vector();
        self.hoisted.push(VInst::Constant(dst, bits));
        self.constants.insert(bits, dst);
        dst
    }

    /// `first` in lane 0, and one more in each further lane.
    pub(crate) fn count_from(&mut self, first: Int) -> Vector {
        let dst = self.vector();
        self.push(VInst::CountFrom(dst, first));
        dst
    }

    /// A float in all lanes.
    pub fn float(&mut self, value: f32) -> Vector {
        self.bits(value.to_bits())
    }

    /// `dst = src`.
    pub fn set(&mut self, dst: Vector, src: Vector) {
        self.push(VInst::Move(dst, src));
    }

    /// A fresh register with the value of another.
    pub fn variable(&mut self, src: Vector) -> Vector {
        let dst = self.vector();
        self.set(dst, src);
        dst
    }

    /// All lanes from memory.
    pub fn load(&mut self, mem: impl Into<Mem>) -> Vector {
        let dst = self.vector();
        self.push(VInst::Load(dst, mem.into()));
        dst
    }

    /// The first `n` lanes from memory, the others zero. `mask` is that of the first `n` lanes.
    pub(crate) fn load_first(&mut self, mem: impl Into<Mem>, n: Int, mask: Mask) -> Vector {
        let dst = self.vector();
        self.push(VInst::LoadFirst(dst, mem.into(), n, mask));
        dst
    }

    /// Lane by lane from memory.
    pub(crate) fn load_lanes(&mut self, mems: Vec<Mem>) -> Vector {
        let dst = self.vector();
        let temp = self.vector();
        self.push(VInst::LoadLanes(dst, temp, mems));
        dst
    }

    /// Lane `i` from `mem` plus four times lane `i` of `offsets`.
    pub(crate) fn gather(&mut self, mem: Mem, offsets: Vector) -> Vector {
        let dst = self.vector();
        let mask = self.mask();
        self.push(VInst::Gather(dst, mask, mem, offsets));
        dst
    }

    /// Lane 0 from memory, the others zero.
    pub(crate) fn load_one(&mut self, mem: impl Into<Mem>) -> Vector {
        let dst = self.vector();
        self.push(VInst::LoadOne(dst, mem.into()));
        dst
    }

    /// One element in all lanes.
    pub fn broadcast(&mut self, mem: impl Into<Mem>) -> Vector {
        let dst = self.vector();
        self.push(VInst::Broadcast(dst, mem.into()));
        dst
    }

    /// An integer to memory.
    pub fn store_int(&mut self, mem: impl Into<Mem>, src: Int, width: IntWidth) {
        self.push(VInst::StoreInt(mem.into(), src, width));
    }

    /// All lanes to memory.
    pub fn store(&mut self, mem: impl Into<Mem>, src: Vector) {
        self.push(VInst::Store(mem.into(), src));
    }

    /// Prefetches memory that will be read soon.
    pub fn prefetch(&mut self, mem: impl Into<Mem>) {
        self.push(VInst::Prefetch(mem.into()));
    }

    /// Prefetches memory that will be written soon.
    pub fn prefetch_write(&mut self, mem: impl Into<Mem>) {
        self.push(VInst::PrefetchWrite(mem.into()));
    }

    /// The first `n` lanes to memory. The mask is theirs; only shapes with `masked_stores` need it.
    pub(crate) fn store_first(&mut self, mem: impl Into<Mem>, src: Vector, n: Int, mask: Option<Mask>) {
        let step = match mask.filter(|_| self.shape.masked_stores) {
            Some(mask) => VInst::StoreFirst(mem.into(), src, n, mask),
            None => VInst::StorePart(mem.into(), src, self.vector(), n),
        };
        self.push(step);
    }

    /// Lane by lane to memory.
    pub(crate) fn store_lanes(&mut self, mems: Vec<Mem>, src: Vector) {
        let temp = self.vector();
        self.push(VInst::StoreLanes(mems, src, temp));
    }

    /// Lane 0 to memory.
    pub fn store_one(&mut self, mem: impl Into<Mem>, src: Vector) {
        self.push(VInst::StoreOne(mem.into(), src));
    }

    /// `a * b + c`.
    pub fn fma(&mut self, a: Vector, b: Vector, c: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::Fma(dst, a, b, c));
        dst
    }

    /// `dst = a * b + dst`.
    pub fn set_fma(&mut self, dst: Vector, a: Vector, b: Vector) {
        self.push(VInst::Fma(dst, a, b, dst));
    }

    /// `dst = a * b[lane] + dst`. Only if the shape has `fma_lanes`.
    pub fn set_fma_lane(&mut self, dst: Vector, a: Vector, b: Vector, lane: u8) {
        self.push(VInst::FmaLane(dst, a, b, lane, dst));
    }

    /// `dst += a · b`: four unsigned bytes of each lane times four signed ones. Only if the shape has `vnni`.
    pub fn set_dot_bytes(&mut self, dst: Vector, a: Vector, b: Vector) {
        self.push(VInst::DotBytes(dst, a, b, dst));
    }

    /// `dst += a · b`: the products of two signed integers of 16 bits of each lane.
    pub fn add_dot_pairs(&mut self, dst: Vector, a: Vector, b: Vector) {
        if self.shape.vnni {
            return self.push(VInst::SumDotPairs(dst, a, b, dst));
        }
        let products = self.binary(VBinary::DotPairs, a, b);
        self.set_binary(VBinary::AddInt, dst, products);
    }

    /// `dst += a · bᵀ`: two rows of eight signed bytes each, and four sums. Only if the shape has `matrix_dots`.
    pub fn set_dot_matrix(&mut self, dst: Vector, a: Vector, b: Vector) {
        self.push(VInst::DotMatrix(dst, a, b, dst));
    }

    /// `dst += a · bᵀ`: two rows of four bf16 each, and four sums. Only if the shape has `bf16_matrix_dots`.
    pub fn set_dot_matrix_bf16(&mut self, dst: Vector, a: Vector, b: Vector) {
        self.push(VInst::DotMatrixBf16(dst, a, b, dst));
    }

    /// `dst += a · b`: four signed bytes of each lane times four signed ones. Only if the shape has `signed_dots`.
    pub fn set_dot_signed(&mut self, dst: Vector, a: Vector, b: Vector) {
        self.push(VInst::DotSigned(dst, a, b, dst));
    }

    /// `dst += a · b[lane]`: the four signed bytes of each lane of `a` times those of one lane of `b`.
    pub fn set_dot_signed_lane(&mut self, dst: Vector, a: Vector, b: Vector, lane: u8) {
        self.push(VInst::DotSignedLane(dst, a, b, lane, dst));
    }

    /// `(a & b) | c`, bit by bit.
    pub(crate) fn and_or(&mut self, a: Vector, b: Vector, c: Vector) -> Vector {
        if self.shape.registers >= 32 && self.shape.lanes == 16 {
            let dst = self.vector();
            self.push(VInst::Bits(BitsOp::AndOr, dst, a, b, c));
            return dst;
        }
        let both = self.binary(VBinary::And, a, b);
        self.binary(VBinary::Or, both, c)
    }

    /// Each bit that at least two of the operands have. Only on ISAs with 32 registers of 16 lanes.
    pub(crate) fn majority(&mut self, a: Vector, b: Vector, c: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::Bits(BitsOp::Majority, dst, a, b, c));
        dst
    }

    /// `a * 2^n`, as [`VBinary::Scale`]; 0 where `x < bound`. Only on ISAs with 16 lanes.
    pub(crate) fn scale_unless_less(&mut self, a: Vector, n: Vector, x: Vector, bound: Vector) -> Vector {
        let dst = self.vector();
        let mask = self.mask();
        self.push(VInst::ScaleUnlessLess(dst, mask, [a, n, x, bound]));
        dst
    }

    /// Lane by lane arithmetic.
    pub fn binary(&mut self, op: VBinary, a: Vector, b: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::Binary(op, dst, a, b));
        dst
    }

    /// `dst = dst op b`.
    pub fn set_binary(&mut self, op: VBinary, dst: Vector, b: Vector) {
        self.push(VInst::Binary(op, dst, dst, b));
    }

    /// Lane by lane arithmetic.
    pub fn unary(&mut self, op: VUnary, a: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::Unary(op, dst, a));
        dst
    }

    /// Shifts integer lanes.
    pub fn shift(&mut self, op: ShiftOp, a: Vector, by: u8) -> Vector {
        let dst = self.vector();
        self.push(VInst::Shift(op, dst, a, by));
        dst
    }

    /// Lane `i` gets lane `i ^ distance`.
    pub(crate) fn butterfly(&mut self, a: Vector, distance: u8) -> Vector {
        let dst = self.vector();
        self.push(VInst::Butterfly(dst, a, distance));
        dst
    }

    /// Compares floats.
    pub fn compare(&mut self, op: CompareOp, a: Vector, b: Vector) -> Mask {
        let dst = self.mask();
        self.push(VInst::Compare(op, dst, a, b));
        dst
    }

    /// Compares signed integers.
    pub(crate) fn compare_int(&mut self, op: CompareOp, a: Vector, b: Vector) -> Mask {
        let dst = self.mask();
        self.push(VInst::CompareInt(op, dst, a, b));
        dst
    }

    /// Combines masks.
    pub(crate) fn mask_op(&mut self, op: MaskOp, a: Mask, b: Mask) -> Mask {
        let dst = self.mask();
        self.push(VInst::Mask(op, dst, a, b));
        dst
    }

    /// The mask of the first `n` lanes.
    pub(crate) fn mask_first(&mut self, n: Int) -> Mask {
        let dst = self.mask();
        let temp = self.vector();
        self.push(VInst::MaskFirst(dst, n, temp));
        dst
    }

    /// `a` where the mask holds, else `b`.
    pub fn select(&mut self, mask: Mask, a: Vector, b: Vector) -> Vector {
        let dst = self.vector();
        self.push(VInst::Select(dst, mask, a, b));
        dst
    }

    /// Runs `body` for each index below `count` and interleaves the recorded steps, so that their latencies overlap.
    /// An iteration may not read registers that another one sets. Iterations that loop or branch are not interleaved.
    pub(crate) fn interleave(&mut self, count: usize, body: &mut dyn FnMut(&mut Builder, usize)) {
        let start = self.code.steps.len();
        let mut iterations: Vec<std::vec::IntoIter<VInst>> = Vec::new();
        for idx in 0..count {
            body(self, idx);
            iterations.push(self.code.steps.split_off(start).into_iter());
        }

        // The branches of two iterations would be nested.
        if iterations.iter().any(|steps| steps.as_slice().iter().any(VInst::is_control_flow)) {
            return self.code.steps.extend(iterations.into_iter().flatten());
        }
        loop {
            let before = self.code.steps.len();
            let next = iterations.iter_mut().filter_map(Iterator::next);
            self.code.steps.extend(next);
            if self.code.steps.len() == before {
                return;
            }
        }
    }

    /// Runs `body` if the condition holds.
    pub fn when(&mut self, op: CompareOp, a: Int, b: impl Into<IntOperand>, body: impl FnOnce(&mut Builder)) {
        self.push(VInst::If(Cond { op, a, b: b.into() }));
        body(self);
        self.push(VInst::EndIf);
    }

    /// Runs `body` while `count` is at least `by`, and subtracts `by` after each round. `count` keeps the remainder.
    pub fn repeat(&mut self, count: Int, by: i32, body: impl FnOnce(&mut Builder)) {
        self.when(CompareOp::Ge, count, by, |b| {
            b.push(VInst::Loop);
            body(b);
            b.set_int_op(IntOp::Sub, count, by);
            b.push(VInst::EndLoop(Cond { op: CompareOp::Ge, a: count, b: by.into() }));
        });
    }
}
