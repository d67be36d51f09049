//! The IR of a microkernel's body: straight-line code whose memory accesses are numbered streams.
//!
//! Two layers of a model whose code differs only in addresses have equal bodies, so they share a microkernel.
//! The code generator emits a body for one vector of iterations.

use crate::scalar::{BinaryOp, CompareOp, ReduceOp, UnaryOp};
use std::ops::RangeInclusive;

/// The meaning of a lane's 32 bits; a bool is a mask. In memory, integers of one byte and bools are bytes. Elements of
/// 64 bits take two vectors: the first half of the iterations, and the second.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ty {
    /// A float.
    F32,
    /// A signed integer.
    I32,
    /// An integer in 0..256.
    U8,
    /// An integer in -128..128.
    I8,
    /// An integer in -32768..32768.
    I16,
    /// An integer in 0..65536.
    U16,
    /// A signed integer of 64 bits.
    I64,
    /// A double.
    F64,
    /// A bf16, held as the equal `f32`.
    Bf16,
    /// An f16, held as the equal `f32`. Stores round: a cast that only stores read leaves the `f32` as it is.
    F16,
    /// A float that the store rounds to bf16, as [`UnaryOp::RoundBf16`] does. Only ISAs with tile registers have such
    /// stores, and no instruction has a result of this type.
    RoundToBf16,
    /// An integer of 32 bits that the store clamps to the range of `i8`. Only ISAs with `clamping_stores` have such
    /// stores, and no instruction has a result of this type or of the next one.
    ClampToI8,
    /// An integer of 32 bits that the store clamps to the range of `u8`.
    ClampToU8,
    /// A truth value.
    Bool,
}

impl Ty {
    /// Whether a value has 64 bits.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Ty::I64 | Ty::F64)
    }

    /// Whether strips transpose squares of elements of this type, see
    /// [`columns`](crate::codegen::microkernel::strip).
    pub(crate) fn has_squares(self) -> bool {
        matches!(self, Ty::F32 | Ty::I32 | Ty::F16 | Ty::Bf16 | Ty::U8 | Ty::I8)
    }
}

/// How a stream moves with a loop, from element to element or from row to row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamStep {
    /// It does not move: all iterations access the same element.
    Fixed,
    /// By one element.
    Unit,
    /// By two elements of 32 bits.
    Alternate,
    /// By a number of bytes that is an argument.
    Stride,
    /// By this number of elements, see [`GROUP_STREAMS`]; the bytes are an argument too. As many streams share the
    /// pointer. The strip stores an element of each, and these fill the distance. It stores nothing else, and reads
    /// nothing of it.
    Group(u8),
}

/// The numbers of streams of a [`StreamStep::Group`]: bytes of all fit a lane.
pub const GROUP_STREAMS: RangeInclusive<usize> = 2..=4;

/// The sizes of elements of a [`StreamStep::Group`].
pub const GROUP_BYTES: [usize; 2] = [1, 4];

impl StreamStep {
    /// Whether it moves past other elements.
    pub fn is_strided(self) -> bool {
        matches!(self, StreamStep::Alternate | StreamStep::Stride | StreamStep::Group(_))
    }
}

/// A lane of each group of neighbouring lanes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LaneOfGroup {
    /// The number of lanes of a group, one of [`REPEATING_GROUPS`].
    pub group: u8,
    /// The lane in its group.
    pub lane: u8,
}

/// The sizes of groups whose lanes vectors repeat.
pub const REPEATING_GROUPS: [u8; 2] = [4, 8];

/// One instruction. Operands are indices of earlier instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// These bits in all lanes.
    Const(u32),
    /// These bits in all lanes, for a type of 64 bits.
    WideConst(u64),
    /// The next element of a stream.
    Load(u32),
    /// An element of a stream that does not move along the loop. The second operand counts elements from there; it is
    /// an integer of 32 bits that is valid in all lanes, also in those of no iteration.
    Gather(u32, u32),
    /// The first operand as an integer of 32 bits. If it is negative or not below the second one, which is the same in
    /// all lanes, the result is 0, and the microkernel reports a failure if the lane is an iteration. Both operands
    /// have the same type.
    Checked(u32, u32),
    /// One lane of each group of neighbouring lanes, in all lanes of the group. The operand is a load of consecutive
    /// elements that nothing else reads, and the strip has whole groups only.
    Repeat(u32, LaneOfGroup),
    /// The number of the iteration in its loop, an integer of 32 bits.
    Column,
    /// A scalar argument in all lanes: its low 32 bits, or all 64 for a type of 64 bits. The index counts the
    /// microkernel's scalar arguments.
    Splat(u32),
    /// The accumulator of a contraction: the finished sum over `k`.
    Accumulator,
    /// Reads a scalar variable of the microkernel.
    Get(u32),
    /// Sets a scalar variable to a value that is equal in all lanes.
    Set(u32, u32),
    /// See [`UnaryOp`].
    Unary(UnaryOp, u32),
    /// See [`BinaryOp`].
    Binary(BinaryOp, u32, u32),
    /// See [`CompareOp`].
    Compare(CompareOp, u32, u32),
    /// The second operand where the first holds, else the third.
    Select(u32, u32, u32),
    /// Conversion to the type of this instruction.
    Cast(u32),
    /// The same bits as a value of the type of this instruction.
    Bits(u32),
    /// Stores a value as the next element of a stream.
    Store(u32, u32),
    /// Reduces a value over all iterations into a scalar variable.
    Reduce(ReduceOp, u32, u32),
}

impl Op {
    /// The instructions whose values it reads.
    pub(crate) fn operands(self) -> impl Iterator<Item = u32> {
        let (x, y, z) = match self {
            Op::Const(_)
            | Op::WideConst(_)
            | Op::Load(_)
            | Op::Column
            | Op::Splat(_)
            | Op::Accumulator
            | Op::Get(_) => (None, None, None),
            Op::Set(_, x)
            | Op::Unary(_, x)
            | Op::Cast(x)
            | Op::Bits(x)
            | Op::Repeat(x, _)
            | Op::Gather(_, x)
            | Op::Store(_, x)
            | Op::Reduce(_, x, _) => (Some(x), None, None),
            Op::Binary(_, x, y) | Op::Compare(_, x, y) | Op::Checked(x, y) => (Some(x), Some(y), None),
            Op::Select(x, y, z) => (Some(x), Some(y), Some(z)),
        };
        [x, y, z].into_iter().flatten()
    }
}

/// About the number of machine instructions that take the time of a gather.
const GATHER_COST: usize = 16;

/// Instructions with the types of their results, in order of execution.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Body {
    /// Each instruction reads earlier ones only.
    pub insts: Vec<(Op, Ty)>,
    /// Float instructions that [`UnaryOp::Round`] reads and whose values are known to be smaller than 2³⁰ in magnitude,
    /// and not NaN.
    pub bounded: Vec<u32>,
    /// Whether no buffer that it stores to is one that it loads from. Then loads may move to before stores.
    pub stores_elsewhere: bool,
}

impl Body {
    /// Appends an instruction and returns its index, or `None` if microkernels don't support it.
    pub fn push(&mut self, op: Op, ty: Ty) -> Option<u32> {
        if !self.supports(op, ty) {
            return None;
        }
        self.insts.push((op, ty));
        Some(self.insts.len() as u32 - 1)
    }

    pub(crate) fn op(&self, reg: u32) -> Op {
        self.insts[reg as usize].0
    }

    pub(crate) fn ty(&self, reg: u32) -> Ty {
        self.insts[reg as usize].1
    }

    /// The value of a float constant.
    pub(crate) fn constant(&self, reg: u32) -> Option<f32> {
        match self.insts[reg as usize] {
            (Op::Const(bits), Ty::F32) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    /// The value of a constant that is a valid shift distance.
    pub(crate) fn shift_distance(&self, reg: u32) -> Option<u8> {
        match self.insts[reg as usize] {
            (Op::Const(bits), Ty::I32) if bits < 32 => Some(bits as u8),
            _ => None,
        }
    }

    /// The exponent of a constant that is a power of two.
    pub(crate) fn power_of_two(&self, reg: u32) -> Option<u8> {
        match self.insts[reg as usize] {
            (Op::Const(bits), Ty::I32) if bits.is_power_of_two() => Some(bits.trailing_zeros() as u8),
            _ => None,
        }
    }

    fn supports(&self, op: Op, ty: Ty) -> bool {
        match op {
            Op::Unary(op, x) => supports_unary(op, self.ty(x)),
            Op::Binary(BinaryOp::Shr, x, y) => self.ty(x) == Ty::I32 && self.shift_distance(y).is_some(),
            Op::Binary(op, x, _) => supports_binary(op, self.ty(x)),
            Op::Compare(_, x, _) => self.ty(x) != Ty::Bool,
            Op::Select(..) | Op::Const(_) | Op::WideConst(_) | Op::Accumulator => true,
            Op::Load(_) | Op::Store(..) => true,
            Op::Column => ty == Ty::I32,
            Op::Repeat(x, _) => !self.ty(x).is_wide() && self.ty(x) != Ty::Bool,
            Op::Gather(..) => matches!(ty, Ty::F32 | Ty::I32),
            Op::Checked(x, y) => self.ty(x) == self.ty(y) && matches!(self.ty(x), Ty::I32 | Ty::I64),
            Op::Reduce(op, x, _) => supports_reduction(op, self.ty(x)),
            Op::Set(_, x) => is_variable(self.ty(x)),
            Op::Get(_) => is_variable(ty),
            Op::Splat(_) => matches!(ty, Ty::F32 | Ty::I32 | Ty::F64 | Ty::I64),
            Op::Bits(x) => {
                let both = |known: [Ty; 2]| known.contains(&self.ty(x)) && known.contains(&ty);
                both([Ty::F32, Ty::I32]) || both([Ty::F64, Ty::I64])
            }
            // The cast goes through a float, which would round twice.
            Op::Cast(x) if matches!(ty, Ty::Bf16 | Ty::F16) => {
                !matches!(self.ty(x), Ty::I32 | Ty::I64 | Ty::F64)
            }
            Op::Cast(_) => true,
        }
    }

    /// A rough number of machine instructions for one vector.
    pub(crate) fn cost(&self) -> usize {
        let vectors = |ty: Ty| if ty.is_wide() { 2 } else { 1 };
        let cost = |op: &Op, ty: Ty| match op {
            Op::Unary(op, x) => unary_cost(*op, self.ty(*x)),
            Op::Binary(BinaryOp::Pow, ..) if ty == Ty::F32 => 80,
            Op::Binary(BinaryOp::Pow | BinaryOp::Atan2, ..) => 300,
            Op::Binary(BinaryOp::Rem | BinaryOp::Mod, ..) => 80,
            Op::Binary(BinaryOp::Mul, ..) if ty == Ty::I64 => 16,
            Op::Cast(x) => vectors(self.ty(*x)) * vectors(ty),
            Op::Gather(..) => GATHER_COST,
            Op::Checked(x, _) => 4 * vectors(self.ty(*x)),
            Op::Const(_) | Op::WideConst(_) => 0,
            _ => vectors(ty),
        };
        self.insts.iter().map(|(op, ty)| cost(op, *ty)).sum()
    }

    /// The largest number of vectors that are alive at once, constants included. Instructions that are not counted need
    /// no register.
    pub(crate) fn pressure(&self, is_counted: &dyn Fn(usize, Op) -> bool) -> usize {
        let last_use = self.last_uses();
        let vectors = |reg: &usize| if self.insts[*reg].1.is_wide() { 2 } else { 1 };
        let mut constants = Vec::new();
        let mut alive: Vec<usize> = Vec::new();
        let mut max_alive = 0;

        for (idx, (op, _)) in self.insts.iter().enumerate() {
            match op {
                Op::Const(bits) if !constants.contains(bits) => constants.push(*bits),
                Op::Const(_) | Op::WideConst(_) | Op::Store(..) | Op::Set(..) | Op::Reduce(..) => {}
                op if !is_counted(idx, *op) => {}
                _ => alive.push(idx),
            }
            max_alive = max_alive.max(alive.iter().map(vectors).sum());
            alive.retain(|reg| last_use[*reg] > idx);
        }
        constants.len() + max_alive
    }

    /// For each instruction the last one that reads it, or 0.
    fn last_uses(&self) -> Vec<usize> {
        let mut last = vec![0; self.insts.len()];
        for (idx, (op, _)) in self.insts.iter().enumerate() {
            op.operands().for_each(|reg| last[reg as usize] = idx);
        }
        last
    }

    /// Whether the code checks values, so that its microkernel may report a failure.
    pub(crate) fn may_fail(&self) -> bool {
        self.insts.iter().any(|(op, _)| matches!(op, Op::Checked(..)))
    }

    /// The streams whose elements decide whether a check fails. `None` if scalar variables of the microkernel decide
    /// too.
    pub(crate) fn checked_streams(&self) -> Option<Vec<u32>> {
        let mut decides = vec![false; self.insts.len()];
        let mut streams = Vec::new();
        for (idx, (op, _)) in self.insts.iter().enumerate().rev() {
            if matches!(op, Op::Checked(..)) || decides[idx] {
                op.operands().for_each(|reg| decides[reg as usize] = true);
            }
            match op {
                Op::Load(stream) | Op::Gather(stream, _) if decides[idx] => streams.push(*stream),
                Op::Get(_) if decides[idx] => return None,
                _ => {}
            }
        }
        Some(streams)
    }

    /// For each instruction how often its value is an operand.
    pub(crate) fn use_counts(&self) -> Vec<usize> {
        let mut uses = vec![0; self.insts.len()];
        for (op, _) in &self.insts {
            op.operands().for_each(|reg| uses[reg as usize] += 1);
        }
        uses
    }

    /// For each instruction how often its value is stored.
    pub(crate) fn store_counts(&self) -> Vec<usize> {
        let mut stores = vec![0; self.insts.len()];
        for (op, _) in &self.insts {
            if let Op::Store(_, x) = op {
                stores[*x as usize] += 1;
            }
        }
        stores
    }

    /// The operand of the sum at `idx` that is such a product and has no other use, and the other operand. Of two such
    /// operands, the second one. `uses` are the counts of uses.
    pub(crate) fn term(
        &self,
        idx: usize,
        uses: &[usize],
        is_product: impl Fn(u32) -> bool,
    ) -> Option<(u32, u32)> {
        let Op::Binary(BinaryOp::Add, x, y) = self.insts[idx].0 else { return None };
        let is_term = |reg: u32| uses[reg as usize] == 1 && is_product(reg);
        [(y, x), (x, y)].into_iter().find(|(product, _)| is_term(*product))
    }
}

/// The functions that vectors compute in double precision, as scalar code does.
pub fn is_computed_in_double(op: UnaryOp) -> bool {
    use UnaryOp::*;
    matches!(op, Tan | Sinh | Cosh | Asinh | Acosh | Atanh)
}

/// The functions whose short strips are interchanged (`schedule/narrow_strips.rs`), and whose vectors are not
/// interleaved.
pub(crate) fn takes_long(op: UnaryOp) -> bool {
    use UnaryOp::*;
    is_computed_in_double(op) || matches!(op, Sin | Cos | Asin | Acos | Atan)
}

/// See [`Body::cost`].
fn unary_cost(op: UnaryOp, ty: Ty) -> usize {
    use UnaryOp::*;
    match op {
        _ if is_computed_in_double(op) => 150,
        Exp | Expm1 | Log | Log1p | Tanh | Erf if ty == Ty::F64 => 100,
        Sin | Cos | Asin | Acos | Atan if ty == Ty::F64 => 150,
        Exp | Log | Tanh | Erf | Sin | Cos | Asin | Acos | Atan => 20,
        Expm1 | Log1p => 40,
        _ if ty.is_wide() => 2,
        _ => 1,
    }
}

fn supports_unary(op: UnaryOp, ty: Ty) -> bool {
    use UnaryOp::*;
    match ty {
        Ty::F32 => op != Not,
        Ty::F64 => !matches!(op, Not | RoundBf16),
        Ty::I32 | Ty::I64 => matches!(op, Neg | Abs | Sign | Floor | Ceil | Round | Trunc | Not),
        // Other results outside of the type's range would have to be wrapped.
        Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16 => matches!(op, Sign | Floor | Ceil | Round | Trunc),
        Ty::Bf16 | Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 | Ty::F16 => false,
        Ty::Bool => op == Not,
    }
}

fn supports_binary(op: BinaryOp, ty: Ty) -> bool {
    use BinaryOp::*;
    match ty {
        Ty::F32 if matches!(op, Rem | Mod) => true,
        Ty::F32 | Ty::F64 => matches!(op, Add | Sub | Mul | Div | Pow | Min | Max | Atan2),
        Ty::I32 | Ty::I64 | Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16 => {
            matches!(op, Add | Sub | Mul | Min | Max | And | Or | Xor)
        }
        Ty::Bf16 | Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 | Ty::F16 => false,
        Ty::Bool => matches!(op, And | Or | Xor),
    }
}

/// Whether scalar variables have this type.
fn is_variable(ty: Ty) -> bool {
    matches!(ty, Ty::F32 | Ty::I32 | Ty::F64 | Ty::I64)
}

fn supports_reduction(op: ReduceOp, ty: Ty) -> bool {
    match ty {
        Ty::F32 | Ty::F64 => true,
        Ty::I32 | Ty::I64 => op != ReduceOp::Prod,
        Ty::U8 | Ty::I8 | Ty::I16 | Ty::U16 => matches!(op, ReduceOp::Min | ReduceOp::Max),
        Ty::Bf16 | Ty::RoundToBf16 | Ty::ClampToI8 | Ty::ClampToU8 => false,
        Ty::F16 | Ty::Bool => false,
    }
}
