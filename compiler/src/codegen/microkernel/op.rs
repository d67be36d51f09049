//! Straight-line code of a leaf, freed of names: memory is numbered streams, everything else lanes.
//!
//! Two layers of a model whose code differs only in addresses have equal bodies, and so share a leaf.
//! [`Body::emit`] writes a body for one vector of iterations; where values come from and go to is the caller's
//! [`Lanes`].

use super::{
    bf16::{self, Stored},
    math, memory, power,
    rounded::Roundings,
};
use crate::codegen::vector::{
    Builder,
    vcode::{Mask, MaskOp, ShiftOp, VBinary, VUnary, Vector},
};
use crate::scalar::{BinaryOp, CompareOp, ReduceOp, UnaryOp};

/// What the 32 bits of a lane mean; a bool is a mask. Streams hold integers of one byte and bools as bytes.
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
    /// A bf16, as the float that it is.
    Bf16,
    /// A float that becomes the nearest bf16 where it is stored, as of [`UnaryOp::RoundBf16`]; only where there are tile registers,
    /// and of no instruction's result.
    Nearest,
    /// A truth value.
    Bool,
}

/// How a stream moves with a loop, from element to element or from row to row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamStep {
    /// It does not move: all iterations read the same element.
    Fixed,
    /// By one element.
    Unit,
    /// By a number of bytes that is an argument.
    Stride,
}

/// One instruction; operands are numbers of earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// These bits in all lanes.
    Const(u32),
    /// The next element of a stream.
    Load(u32),
    /// 32 bits of the argument block in all lanes, by position among the leaf's scalar arguments.
    Splat(u32),
    /// The sum of a contraction.
    Accumulator,
    /// A scalar variable of the leaf.
    Get(u32),
    /// Sets it; all lanes are equal.
    Set(u32, u32),
    /// See [`UnaryOp`].
    Unary(UnaryOp, u32),
    /// See [`BinaryOp`].
    Binary(BinaryOp, u32, u32),
    /// See [`CompareOp`].
    Compare(CompareOp, u32, u32),
    /// The second where the first holds, else the third.
    Select(u32, u32, u32),
    /// Conversion to this instruction's type.
    Cast(u32),
    /// Puts a value into a stream.
    Store(u32, u32),
    /// Combines a value over all iterations into a scalar variable.
    Reduce(ReduceOp, u32, u32),
}

impl Op {
    /// The registers that it reads.
    fn operands(self) -> impl Iterator<Item = u32> {
        let (x, y, z) = match self {
            Op::Const(_) | Op::Load(_) | Op::Splat(_) | Op::Accumulator | Op::Get(_) => (None, None, None),
            Op::Set(_, x) | Op::Unary(_, x) | Op::Cast(x) | Op::Store(_, x) | Op::Reduce(_, x, _) => {
                (Some(x), None, None)
            }
            Op::Binary(_, x, y) | Op::Compare(_, x, y) => (Some(x), Some(y), None),
            Op::Select(x, y, z) => (Some(x), Some(y), Some(z)),
        };
        [x, y, z].into_iter().flatten()
    }
}

/// Instructions with the types of their results.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Body {
    /// In order.
    pub insts: Vec<(Op, Ty)>,
}

/// A value of a body in registers.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// Floats or integers.
    Lanes(Vector),
    /// Bools.
    Truth(Mask),
    /// Of an instruction without a result.
    Nothing,
}

impl Value {
    /// The vector of an instruction whose type says that it is one.
    fn lanes(self) -> Vector {
        match self {
            Value::Lanes(vector) => vector,
            _ => unreachable!("the body's types were checked when it was made"),
        }
    }

    /// The mask of an instruction whose type says that it is one.
    fn truth(self) -> Mask {
        match self {
            Value::Truth(mask) => mask,
            _ => unreachable!("the body's types were checked when it was made"),
        }
    }
}

/// Where one vector of iterations gets its values and puts them.
pub trait Lanes {
    /// The elements of a stream, which in memory are of this type; bools are 0 or 1.
    fn load(&mut self, b: &mut Builder, stream: u32, ty: Ty) -> Vector;
    /// Puts elements into a stream, which in memory are of this type.
    fn store(&mut self, b: &mut Builder, stream: u32, ty: Ty, value: Vector);
    /// A scalar argument in all lanes.
    fn splat(&mut self, b: &mut Builder, slot: u32) -> Vector;
    /// The sum of a contraction.
    fn sum(&mut self, b: &mut Builder) -> Vector;
    /// A scalar variable.
    fn variable(&mut self, var: u32) -> Vector;
    /// Combines values into a scalar variable.
    fn reduce(&mut self, b: &mut Builder, op: ReduceOp, value: Vector, var: u32);
}

impl Body {
    /// Appends an instruction if leaves can do it, and returns its number.
    pub fn push(&mut self, op: Op, ty: Ty) -> Option<u32> {
        if !self.supports(op, ty) {
            return None;
        }
        self.insts.push((op, ty));
        Some(self.insts.len() as u32 - 1)
    }

    fn ty(&self, reg: u32) -> Ty {
        self.insts[reg as usize].1
    }

    pub(super) fn constant(&self, reg: u32) -> Option<f32> {
        match self.insts[reg as usize] {
            (Op::Const(bits), Ty::F32) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    /// By how far a constant shifts.
    fn distance(&self, reg: u32) -> Option<u8> {
        match self.insts[reg as usize] {
            (Op::Const(bits), Ty::I32) if bits < 32 => Some(bits as u8),
            _ => None,
        }
    }

    /// The exponent of a constant that is a power of two.
    fn power_of_two(&self, reg: u32) -> Option<u8> {
        match self.insts[reg as usize] {
            (Op::Const(bits), Ty::I32) if bits.is_power_of_two() => Some(bits.trailing_zeros() as u8),
            _ => None,
        }
    }

    fn supports(&self, op: Op, ty: Ty) -> bool {
        match op {
            Op::Unary(op, x) => supports_unary(op, self.ty(x)),
            Op::Binary(BinaryOp::Shr, x, y) => self.ty(x) == Ty::I32 && self.distance(y).is_some(),
            Op::Binary(op, x, _) => supports_binary(op, self.ty(x)),
            Op::Compare(_, x, _) => self.ty(x) != Ty::Bool,
            Op::Select(_, x, _) => self.ty(x) != Ty::Bool,
            Op::Reduce(op, x, _) => match self.ty(x) {
                Ty::F32 => true,
                Ty::I32 => op != ReduceOp::Prod,
                Ty::U8 | Ty::I8 | Ty::I16 => matches!(op, ReduceOp::Min | ReduceOp::Max),
                Ty::Bf16 | Ty::Nearest | Ty::Bool => false,
            },
            Op::Set(_, x) => matches!(self.ty(x), Ty::F32 | Ty::I32),
            Op::Splat(_) | Op::Get(_) => matches!(ty, Ty::F32 | Ty::I32),
            // By way of a float, which would round large integers twice.
            Op::Cast(x) if ty == Ty::Bf16 => self.ty(x) != Ty::I32,
            Op::Const(_) | Op::Accumulator | Op::Cast(_) | Op::Load(_) | Op::Store(..) => true,
        }
    }

    /// A rough number of steps for one vector.
    pub fn cost(&self) -> usize {
        let cost = |op: &Op| match op {
            Op::Unary(UnaryOp::Exp | UnaryOp::Log | UnaryOp::Tanh | UnaryOp::Erf, _) => 20,
            Op::Unary(UnaryOp::Expm1 | UnaryOp::Log1p, _) => 40,
            Op::Binary(BinaryOp::Pow, ..) => 80,
            Op::Const(_) => 0,
            _ => 1,
        };
        self.insts.iter().map(|(op, _)| cost(op)).sum()
    }

    /// Most vectors that are alive at once, constants among them, beside the streams that are held anyway.
    pub fn pressure(&self, is_held: &dyn Fn(u32) -> bool) -> usize {
        let mut last = vec![0; self.insts.len()];
        for (idx, (op, _)) in self.insts.iter().enumerate() {
            op.operands().for_each(|reg| last[reg as usize] = idx);
        }
        let (mut constants, mut most) = (Vec::new(), 0);
        let mut alive: Vec<usize> = Vec::new();
        for (idx, (op, _)) in self.insts.iter().enumerate() {
            match op {
                Op::Const(bits) if !constants.contains(bits) => constants.push(*bits),
                Op::Const(_) | Op::Store(..) | Op::Set(..) | Op::Reduce(..) => {}
                Op::Load(stream) if is_held(*stream) => {}
                _ => alive.push(idx),
            }
            most = most.max(alive.len());
            alive.retain(|reg| last[*reg] > idx);
        }
        constants.len() + most
    }

    /// Writes the body for one vector of iterations.
    pub fn emit(&self, b: &mut Builder, lanes: &mut dyn Lanes) {
        let products = if b.shape().fma { self.fusible() } else { vec![false; self.insts.len()] };
        let roundings = Roundings::of(self, b.shape().fma);
        let stored = if b.shape().tiles { Stored::of(self) } else { Stored::default() };
        let mut values: Vec<Value> = Vec::with_capacity(self.insts.len());
        for (idx, &(op, ty)) in self.insts.iter().enumerate() {
            let value = match op {
                _ if products[idx] || roundings.skips(idx) || stored.skips(idx) => Value::Nothing,
                Op::Store(stream, x) if let Some(from) = stored.source(x) => {
                    lanes.store(b, stream, Ty::Nearest, values[from as usize].lanes());
                    Value::Nothing
                }
                _ if let Some(other) = roundings.same(idx) => values[other as usize],
                _ if let Some(value) = roundings.emit(b, idx, |reg| values[reg as usize].lanes()) => {
                    Value::Lanes(value)
                }
                Op::Binary(BinaryOp::Add, x, y) if products[x as usize] || products[y as usize] => {
                    let (product, other) = if products[y as usize] { (y, x) } else { (x, y) };
                    Value::Lanes(self.fused(b, &values, product, other))
                }
                _ => self.emit_inst(b, lanes, &values, op, ty),
            };
            values.push(value);
        }
    }

    /// How many operands each value is.
    pub(super) fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.insts.len()];
        for (op, _) in &self.insts {
            op.operands().for_each(|reg| uses[reg as usize] += 1);
        }
        uses
    }

    /// The products that are computed together with the one sum that they are a term of; of two terms, the second.
    fn fusible(&self) -> Vec<bool> {
        let uses = self.uses();
        let mut fusible = vec![false; self.insts.len()];
        for &(op, ty) in &self.insts {
            let Op::Binary(BinaryOp::Add, x, y) = op else { continue };
            let is_product = |reg: u32| {
                let product = matches!(self.insts[reg as usize].0, Op::Binary(BinaryOp::Mul, ..));
                product && ty == Ty::F32 && uses[reg as usize] == 1
            };
            if let Some(reg) = [y, x].into_iter().find(|reg| is_product(*reg)) {
                fusible[reg as usize] = true;
            }
        }
        fusible
    }

    /// `product + other` with one rounding.
    fn fused(&self, b: &mut Builder, values: &[Value], product: u32, other: u32) -> Vector {
        let Op::Binary(_, x, y) = self.insts[product as usize].0 else { unreachable!("found as a product") };
        let at = |reg: u32| values[reg as usize].lanes();
        b.fma(at(x), at(y), at(other))
    }

    fn emit_inst(&self, b: &mut Builder, lanes: &mut dyn Lanes, values: &[Value], op: Op, ty: Ty) -> Value {
        let at = |reg: u32| values[reg as usize];
        let value = match op {
            // What is a bf16 already is cast as it is.
            Op::Cast(x) if ty == Ty::Bf16 && bf16::is_high(self, x) => at(x).lanes(),
            Op::Const(bits) if ty == Ty::Bool => return constant_truth(b, bits != 0),
            Op::Const(bits) => b.bits(bits),
            Op::Load(stream) if ty == Ty::Bool => {
                let (byte, zero) = (lanes.load(b, stream, ty), b.bits(0));
                return Value::Truth(b.compare_int(CompareOp::Ne, byte, zero));
            }
            Op::Load(stream) => lanes.load(b, stream, ty),
            Op::Splat(slot) => lanes.splat(b, slot),
            Op::Accumulator => lanes.sum(b),
            Op::Get(var) => lanes.variable(var),
            Op::Set(var, x) => {
                let var = lanes.variable(var);
                b.set(var, at(x).lanes());
                return Value::Nothing;
            }
            Op::Unary(op, x) => return unary(b, op, self.ty(x), at(x)),
            Op::Binary(op, x, y) if ty == Ty::Bool => {
                return truth_binary(b, op, at(x).truth(), at(y).truth());
            }
            Op::Binary(BinaryOp::Shr, x, y) => {
                let by = self.distance(y).expect("refused when the body was made");
                b.shift(ShiftOp::RightSigned, at(x).lanes(), by)
            }
            Op::Binary(BinaryOp::Mul, x, y) if ty == Ty::I32 && self.power_of_two(y).is_some() => {
                let by = self.power_of_two(y).expect("just asked");
                b.shift(ShiftOp::Left, at(x).lanes(), by)
            }
            Op::Binary(op, x, y) if ty != Ty::F32 => int_binary(b, op, at(x).lanes(), at(y).lanes()),
            Op::Binary(op, x, y) => self.float_binary(b, op, (x, at(x).lanes()), (y, at(y).lanes())),
            Op::Compare(op, x, y) => return Value::Truth(self.compare(b, op, self.ty(x), at(x), at(y))),
            Op::Select(mask, x, y) => b.select(at(mask).truth(), at(x).lanes(), at(y).lanes()),
            Op::Cast(x) => return cast(b, self.ty(x), ty, at(x)),
            Op::Store(stream, x) => {
                let value = match self.ty(x) {
                    Ty::Bool => cast(b, Ty::Bool, Ty::I32, at(x)).lanes(),
                    _ => at(x).lanes(),
                };
                lanes.store(b, stream, self.ty(x), value);
                return Value::Nothing;
            }
            Op::Reduce(op, x, var) => {
                lanes.reduce(b, op, at(x).lanes(), var);
                return Value::Nothing;
            }
        };
        Value::Lanes(value)
    }

    fn compare(&self, b: &mut Builder, op: CompareOp, ty: Ty, x: Value, y: Value) -> Mask {
        match ty {
            Ty::F32 | Ty::Bf16 => b.compare(op, x.lanes(), y.lanes()),
            _ => b.compare_int(op, x.lanes(), y.lanes()),
        }
    }

    fn float_binary(
        &self,
        b: &mut Builder,
        op: BinaryOp,
        (x_reg, x): (u32, Vector),
        (y_reg, y): (u32, Vector),
    ) -> Vector {
        let number = |reg: u32| self.constant(reg).filter(|value| !value.is_nan());
        match (op, number(x_reg), number(y_reg)) {
            (BinaryOp::Add, ..) => b.binary(VBinary::Add, x, y),
            (BinaryOp::Sub, ..) => b.binary(VBinary::Sub, x, y),
            (BinaryOp::Mul, ..) => b.binary(VBinary::Mul, x, y),
            (BinaryOp::Div, ..) => b.binary(VBinary::Div, x, y),
            (BinaryOp::Min, _, Some(bound)) => math::min_constant(b, x, bound),
            (BinaryOp::Min, Some(bound), _) => math::min_constant(b, y, bound),
            (BinaryOp::Max, _, Some(bound)) => math::max_constant(b, x, bound),
            (BinaryOp::Max, Some(bound), _) => math::max_constant(b, y, bound),
            (BinaryOp::Min, ..) => math::min(b, x, y),
            (BinaryOp::Max, ..) => math::max(b, x, y),
            (BinaryOp::Pow, _, Some(power)) if is_easy_power(power) => easy_power(b, x, power),
            (BinaryOp::Pow, ..) => power::pow(b, x, y),
            _ => unreachable!("refused when the body was made: {op:?}"),
        }
    }
}

fn supports_unary(op: UnaryOp, ty: Ty) -> bool {
    use UnaryOp::*;
    match ty {
        Ty::F32 => matches!(
            op,
            Neg | Abs
                | Sign
                | Floor
                | Ceil
                | Round
                | Trunc
                | Sqrt
                | Recip
                | Exp
                | Expm1
                | Log
                | Log1p
                | Tanh
                | Erf
                | IsNan
                | IsInf
                | RoundBf16
        ),
        Ty::I32 => matches!(op, Neg | Abs | Floor | Ceil | Round | Trunc | Not),
        // What leaves the range would have to be wrapped.
        Ty::U8 | Ty::I8 | Ty::I16 => matches!(op, Floor | Ceil | Round | Trunc),
        Ty::Bf16 | Ty::Nearest => false,
        Ty::Bool => op == Not,
    }
}

fn supports_binary(op: BinaryOp, ty: Ty) -> bool {
    use BinaryOp::*;
    match ty {
        Ty::F32 => matches!(op, Add | Sub | Mul | Div | Pow | Min | Max),
        Ty::I32 => matches!(op, Add | Sub | Mul | Min | Max | And | Or | Xor),
        Ty::U8 | Ty::I8 | Ty::I16 => matches!(op, Min | Max | And | Or | Xor),
        Ty::Bf16 | Ty::Nearest => false,
        Ty::Bool => matches!(op, And | Or | Xor),
    }
}

/// Powers that are a multiplication or a root.
fn is_easy_power(power: f32) -> bool {
    [2.0, 3.0, 1.0, -1.0].contains(&power)
}

fn easy_power(b: &mut Builder, x: Vector, power: f32) -> Vector {
    if power == 1.0 {
        return x;
    }
    if power == -1.0 {
        let one = b.float(1.0);
        return b.binary(VBinary::Div, one, x);
    }
    let square = b.binary(VBinary::Mul, x, x);
    if power == 2.0 { square } else { b.binary(VBinary::Mul, square, x) }
}

fn constant_truth(b: &mut Builder, value: bool) -> Value {
    let zero = b.bits(0);
    let op = if value { CompareOp::Eq } else { CompareOp::Ne };
    Value::Truth(b.compare_int(op, zero, zero))
}

fn unary(b: &mut Builder, op: UnaryOp, ty: Ty, x: Value) -> Value {
    match ty {
        Ty::Bool => Value::Truth(math::not(b, x.truth())),
        Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16 => Value::Lanes(int_unary(b, op, x.lanes())),
        Ty::F32 | Ty::Bf16 | Ty::Nearest => match op {
            UnaryOp::IsNan => Value::Truth(math::is_nan(b, x.lanes())),
            UnaryOp::IsInf => Value::Truth(math::is_inf(b, x.lanes())),
            _ => Value::Lanes(float_unary(b, op, x.lanes())),
        },
    }
}

fn float_unary(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    match op {
        UnaryOp::Neg => math::neg(b, x),
        UnaryOp::Abs => math::abs(b, x),
        UnaryOp::Sign => math::sign(b, x),
        UnaryOp::Floor => b.unary(VUnary::Floor, x),
        UnaryOp::Ceil => b.unary(VUnary::Ceil, x),
        UnaryOp::Round => b.unary(VUnary::Nearest, x),
        UnaryOp::Trunc => b.unary(VUnary::Trunc, x),
        UnaryOp::Sqrt => b.unary(VUnary::Sqrt, x),
        UnaryOp::Recip => {
            let one = b.float(1.0);
            b.binary(VBinary::Div, one, x)
        }
        UnaryOp::Exp => math::exp(b, x),
        UnaryOp::Expm1 => math::expm1(b, x),
        UnaryOp::Log => math::log(b, x),
        UnaryOp::Log1p => math::log1p(b, x),
        UnaryOp::Tanh => math::tanh(b, x),
        UnaryOp::Erf => math::erf(b, x),
        UnaryOp::RoundBf16 => bf16::high(b, x),
        _ => unreachable!("refused when the body was made: {op:?}"),
    }
}

fn int_unary(b: &mut Builder, op: UnaryOp, x: Vector) -> Vector {
    let zero = b.bits(0);
    match op {
        UnaryOp::Neg => b.binary(VBinary::SubInt, zero, x),
        UnaryOp::Abs => {
            let opposite = b.binary(VBinary::SubInt, zero, x);
            b.binary(VBinary::MaxInt, x, opposite)
        }
        UnaryOp::Not => {
            let all = b.bits(u32::MAX);
            b.binary(VBinary::Xor, x, all)
        }
        _ => x,
    }
}

fn int_binary(b: &mut Builder, op: BinaryOp, x: Vector, y: Vector) -> Vector {
    let op = match op {
        BinaryOp::Add => VBinary::AddInt,
        BinaryOp::Sub => VBinary::SubInt,
        BinaryOp::Mul => VBinary::MulInt,
        BinaryOp::Min => VBinary::MinInt,
        BinaryOp::Max => VBinary::MaxInt,
        BinaryOp::And => VBinary::And,
        BinaryOp::Or => VBinary::Or,
        BinaryOp::Xor => VBinary::Xor,
        _ => unreachable!("refused when the body was made: {op:?}"),
    };
    b.binary(op, x, y)
}

fn truth_binary(b: &mut Builder, op: BinaryOp, x: Mask, y: Mask) -> Value {
    let op = match op {
        BinaryOp::And => MaskOp::And,
        BinaryOp::Or => MaskOp::Or,
        BinaryOp::Xor => MaskOp::Xor,
        _ => unreachable!("refused when the body was made: {op:?}"),
    };
    Value::Truth(b.mask_op(op, x, y))
}

fn cast(b: &mut Builder, from: Ty, to: Ty, x: Value) -> Value {
    match (from, to) {
        _ if from == to => x,
        (_, Ty::Bf16) => {
            let number = cast(b, from, Ty::F32, x).lanes();
            Value::Lanes(bf16::nearest(b, number))
        }
        (Ty::Bf16 | Ty::Nearest, Ty::F32) => x,
        (Ty::Bf16 | Ty::Nearest, _) => cast(b, Ty::F32, to, x),
        (_, Ty::Nearest) => unreachable!("no instruction's result"),
        (Ty::F32, Ty::I32) => Value::Lanes(math::to_int(b, x.lanes())),
        (Ty::F32, Ty::U8) => Value::Lanes(math::to_byte(b, x.lanes(), 0.0, 255.0)),
        (Ty::F32, Ty::I8) => Value::Lanes(math::to_byte(b, x.lanes(), -128.0, 127.0)),
        (Ty::F32, Ty::I16) => Value::Lanes(math::to_byte(b, x.lanes(), -32768.0, 32767.0)),
        (Ty::I32 | Ty::I8 | Ty::I16, Ty::U8) | (Ty::I32 | Ty::U8 | Ty::I16, Ty::I8) | (Ty::I32, Ty::I16) => {
            Value::Lanes(memory::wrapped(b, x.lanes(), to))
        }
        (Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16, Ty::F32) => Value::Lanes(b.unary(VUnary::ToFloat, x.lanes())),
        (Ty::Bool, Ty::F32 | Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16) => {
            let one = if to == Ty::F32 { 1f32.to_bits() } else { 1 };
            let (one, zero) = (b.bits(one), b.bits(0));
            Value::Lanes(b.select(x.truth(), one, zero))
        }
        (Ty::F32 | Ty::I32 | Ty::U8 | Ty::I8 | Ty::I16, Ty::Bool) => {
            let zero = b.bits(0);
            Value::Truth(match from {
                Ty::F32 => b.compare(CompareOp::Ne, x.lanes(), zero),
                _ => b.compare_int(CompareOp::Ne, x.lanes(), zero),
            })
        }
        // Among integers: into one that holds all of the other.
        _ => x,
    }
}
