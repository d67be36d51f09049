//! The scalar operators that both IRs share: constants, operators, and straight-line bodies of them.
//!
//! `graph` maps a [`Body`] over tensors, and `kernel` runs the same operators inside loops.
//! The meaning of each operator is defined once, bit for bit, in [`eval`].

pub(crate) mod activations;
mod constant;
pub mod eval;
pub mod precision;
mod text;

pub use constant::Scalar;
pub use precision::Precision;
use symshape_runtime::DType;

/// Operators with one operand; the result has the operand's type unless noted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum UnaryOp {
    /// `-x`; wraps on integers.
    Neg,
    /// `|x|`; wraps on integers.
    Abs,
    /// -1, 0 or 1; NaN stays NaN, and a zero keeps its sign.
    Sign,
    /// Largest integer not above; identity on integers.
    Floor,
    /// Smallest integer not below; identity on integers.
    Ceil,
    /// Nearest integer, halves to even; identity on integers.
    Round,
    /// Integer part; identity on integers.
    Trunc,
    /// Square root (floats).
    Sqrt,
    /// `1 / x` (floats).
    Recip,
    /// `e^x` (floats), as are all below up to `Erf`.
    Exp,
    /// `e^x - 1`, accurate near 0.
    Expm1,
    /// Natural logarithm.
    Log,
    /// `ln(1 + x)`, accurate near 0.
    Log1p,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Tangent.
    Tan,
    /// Arc sine.
    Asin,
    /// Arc cosine.
    Acos,
    /// Arc tangent.
    Atan,
    /// Hyperbolic sine.
    Sinh,
    /// Hyperbolic cosine.
    Cosh,
    /// Hyperbolic tangent.
    Tanh,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Inverse hyperbolic cosine.
    Acosh,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// The error function.
    Erf,
    /// The nearest bf16 (`f32`), denormals zero, see [`precision::high`].
    RoundBf16,
    /// Logical not of a bool, bitwise not of an integer.
    Not,
    /// float → bool.
    IsNan,
    /// float → bool: either infinity.
    IsInf,
}

/// Operators with two operands of one type, which is also the result's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum BinaryOp {
    /// Sum; wraps on integers.
    Add,
    /// Difference; wraps on integers.
    Sub,
    /// Product; wraps on integers.
    Mul,
    /// Quotient; truncates on integers, and an integer divided by zero gives 0.
    Div,
    /// Remainder with the dividend's sign (C's `%`, `fmod`); 0 for an integer divisor of 0.
    Rem,
    /// Remainder with the divisor's sign; 0 for an integer divisor of 0.
    Mod,
    /// Power; on integers by repeated multiplication, wrapping.
    Pow,
    /// Smaller one; NaN if either is NaN, and `-0 < 0`.
    Min,
    /// Larger one; NaN if either is NaN, and `-0 < 0`.
    Max,
    /// Logical or bitwise and.
    And,
    /// Logical or bitwise or.
    Or,
    /// Logical or bitwise exclusive or.
    Xor,
    /// Shift left; 0 when the distance reaches the width.
    Shl,
    /// Shift right, arithmetic on signed types; fills when the distance reaches the width.
    Shr,
    /// Angle of the point (second operand, first operand).
    Atan2,
}

/// Comparisons; operands of one type, result bool. Ordered: false with NaN, but `Ne` is true.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum CompareOp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

/// Associative combinations of many values into one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum ReduceOp {
    /// Sum, from 0.
    Sum,
    /// Product, from 1.
    Prod,
    /// Smallest, from the type's largest (+inf); propagates NaN.
    Min,
    /// Largest, from the type's smallest (-inf); propagates NaN.
    Max,
}

impl ReduceOp {
    /// The operator that combines two values.
    pub fn binary(self) -> BinaryOp {
        match self {
            ReduceOp::Sum => BinaryOp::Add,
            ReduceOp::Prod => BinaryOp::Mul,
            ReduceOp::Min => BinaryOp::Min,
            ReduceOp::Max => BinaryOp::Max,
        }
    }

    /// The identity of the operator, which is the result of an empty reduction.
    pub fn neutral(self, dtype: DType) -> Scalar {
        match self {
            ReduceOp::Sum => Scalar::from_i64(dtype, 0),
            ReduceOp::Prod => Scalar::from_i64(dtype, 1),
            ReduceOp::Min => Scalar::highest(dtype),
            ReduceOp::Max => Scalar::lowest(dtype),
        }
    }
}

/// Position of a value inside a [`Body`]: parameters first, then one per instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Reg(pub u32);

/// One step of a [`Body`]; operands are earlier registers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// A constant.
    Const(Scalar),
    /// See [`UnaryOp`].
    Unary(UnaryOp, Reg),
    /// See [`BinaryOp`].
    Binary(BinaryOp, Reg, Reg),
    /// See [`CompareOp`].
    Compare(CompareOp, Reg, Reg),
    /// The second operand if the first (a bool) is true, otherwise the third.
    Select(Reg, Reg, Reg),
    /// Conversion. Float → int truncates toward zero and saturates (NaN → 0); int → int wraps; to bool is `!= 0`.
    Cast(DType, Reg),
    /// The same bits as a value of another type of the same width. Only the lowest bit of a bool counts.
    Bits(DType, Reg),
}

impl Step {
    /// The registers that the step reads, in order.
    pub fn operands(&self) -> Vec<Reg> {
        match self {
            Step::Const(_) => Vec::new(),
            Step::Unary(_, x) | Step::Cast(_, x) | Step::Bits(_, x) => vec![*x],
            Step::Binary(_, x, y) | Step::Compare(_, x, y) => vec![*x, *y],
            Step::Select(x, y, z) => vec![*x, *y, *z],
        }
    }

    /// The same step with these registers as operands, if their number fits.
    pub fn with(&self, regs: &[Reg]) -> Option<Step> {
        Some(match (self, regs) {
            (Step::Const(value), []) => Step::Const(*value),
            (Step::Unary(op, _), [x]) => Step::Unary(*op, *x),
            (Step::Cast(to, _), [x]) => Step::Cast(*to, *x),
            (Step::Bits(to, _), [x]) => Step::Bits(*to, *x),
            (Step::Binary(op, ..), [x, y]) => Step::Binary(*op, *x, *y),
            (Step::Compare(op, ..), [x, y]) => Step::Compare(*op, *x, *y),
            (Step::Select(..), [x, y, z]) => Step::Select(*x, *y, *z),
            _ => return None,
        })
    }
}

/// A pure function of scalars, with several parameters and one result.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Body {
    /// The types of the parameters, which are registers `0..params.len()`.
    pub params: Vec<DType>,
    /// The steps. Step `i` defines register `params.len() + i`.
    pub steps: Vec<Step>,
    /// The register that is returned.
    pub result: Reg,
}

impl Body {
    /// The type of each register.
    ///
    /// # Panics
    /// If a step refers to a later register; [`crate::graph::verify`] rejects such bodies.
    pub fn types(&self) -> Vec<DType> {
        let mut types = self.params.clone();
        for step in &self.steps {
            let of = |reg: &Reg| types[reg.0 as usize];
            let dtype = match step {
                Step::Const(value) => value.dtype(),
                Step::Unary(UnaryOp::IsNan | UnaryOp::IsInf, _) | Step::Compare(..) => DType::Bool,
                Step::Unary(_, x) | Step::Binary(_, x, _) | Step::Select(_, x, _) => of(x),
                Step::Cast(to, _) | Step::Bits(to, _) => *to,
            };
            types.push(dtype);
        }

        types
    }

    /// The type of the result.
    pub fn dtype(&self) -> DType {
        self.types()[self.result.0 as usize]
    }
}
