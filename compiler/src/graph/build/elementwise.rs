//! Elementwise operators. Each emits one [`Op::Map`], and views for NumPy's broadcasting.
//!
//! Two dims broadcast if they are equal or one of them is 1. If neither is known to be 1, they are required to be
//! equal (see [`Graph::require`]). A symbolic dim never decides at run time whether it broadcasts, because then the
//! result's size would not be an expression over the symbols. A constant dim may meet a dim that is clamped to a
//! constant, such as the length of a slice; only that dim can then be 1 or the constant.

use super::super::{Graph, Op, Value, axis};
use crate::{
    error::{Error, Result},
    scalar::{BinaryOp, Body, CompareOp, Reg, Step, UnaryOp},
};
use symshape::{Dim, Node, Relation};
use symshape_runtime::DType;

impl Graph {
    /// Applies `body` to each element of the operands, which broadcast against each other.
    ///
    /// # Errors
    /// Shapes that don't broadcast, or types that don't fit the body.
    pub fn map(&mut self, body: Body, operands: &[Value]) -> Result<Value> {
        let operands = self.broadcast(operands)?;
        self.push(Op::Map(body), &operands)
    }

    fn map_step(&mut self, step: Step, operands: &[Value]) -> Result<Value> {
        let params: Vec<DType> = operands.iter().map(|value| self.dtype(*value)).collect();
        let result = Reg(params.len() as u32);
        self.map(Body { params, steps: vec![step], result }, operands)
    }

    /// See [`UnaryOp`].
    ///
    /// # Errors
    /// An element type that the operator doesn't take.
    pub fn unary(&mut self, op: UnaryOp, x: Value) -> Result<Value> {
        self.map_step(Step::Unary(op, Reg(0)), &[x])
    }

    /// See [`BinaryOp`].
    ///
    /// # Errors
    /// Shapes that don't broadcast, or types that differ.
    pub fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Result<Value> {
        self.map_step(Step::Binary(op, Reg(0), Reg(1)), &[a, b])
    }

    /// See [`CompareOp`].
    ///
    /// # Errors
    /// Shapes that don't broadcast, or types that differ.
    pub fn compare(&mut self, op: CompareOp, a: Value, b: Value) -> Result<Value> {
        self.map_step(Step::Compare(op, Reg(0), Reg(1)), &[a, b])
    }

    /// Selects `a` where `condition` holds, and `b` elsewhere.
    ///
    /// # Errors
    /// Shapes that don't broadcast, types of `a` and `b` that differ, or a condition that isn't bool.
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Result<Value> {
        self.map_step(Step::Select(Reg(0), Reg(1), Reg(2)), &[condition, a, b])
    }

    /// Converts `x`, see [`Step::Cast`]. Returns `x` if it has the type already.
    ///
    /// # Errors
    /// None; the signature is that of [`Graph::push`].
    pub fn cast(&mut self, dtype: DType, x: Value) -> Result<Value> {
        if self.dtype(x) == dtype { Ok(x) } else { self.map_step(Step::Cast(dtype, Reg(0)), &[x]) }
    }

    /// The bits of `x` as another type of the same width, see [`Step::Bits`].
    ///
    /// # Errors
    /// The types differ in width.
    pub fn bits(&mut self, dtype: DType, x: Value) -> Result<Value> {
        if self.dtype(x) == dtype { Ok(x) } else { self.map_step(Step::Bits(dtype, Reg(0)), &[x]) }
    }

    /// `max(x, 0)`
    ///
    /// # Errors
    /// `x` is bool.
    pub fn relu(&mut self, x: Value) -> Result<Value> {
        let zero = self.number(self.dtype(x), 0.0)?;
        self.max(x, zero)
    }

    /// Repeats `x` along its axes of size 1 and along new leading axes, so that it has this shape.
    ///
    /// # Errors
    /// Another axis differs in size.
    pub fn broadcast_to(&mut self, x: Value, shape: &[Dim]) -> Result<Value> {
        let from = self.shape(x).to_vec();
        let Some(new) = shape.len().checked_sub(from.len()) else {
            let from = shape_text(&from);
            let to = shape_text(shape);
            return Err(Error::invalid(format!(
                "shape {from} does not broadcast to {to}, which has fewer axes"
            )));
        };

        if from == shape {
            return Ok(x);
        }
        let mut index = Vec::new();
        for (k, dim) in from.iter().enumerate() {
            let to = &shape[new + k];
            let at = Dim::from(axis(new + k));

            let what = || format!("broadcast {} to {}", shape_text(&from), shape_text(shape));
            index.push(if self.is_one(dim) && !self.is_one(to) {
                Dim::zero()
            } else if self.may_stretch(dim, to) {
                self.require(one_or(dim, to), &what())?;
                Dim::min(&at, dim - 1)
            } else {
                self.require(Relation::eq(dim, to), &what())?;
                at
            });
        }
        self.push(Op::View { shape: shape.to_vec(), index }, &[x])
    }

    /// Repeats all values to the shape to which their shapes broadcast.
    ///
    /// # Errors
    /// Shapes that don't broadcast.
    pub fn broadcast(&mut self, values: &[Value]) -> Result<Vec<Value>> {
        let shapes: Vec<Vec<Dim>> = values.iter().map(|value| self.shape(*value).to_vec()).collect();
        let shape = self.broadcast_shapes(&shapes)?;
        values.iter().map(|value| self.broadcast_to(*value, &shape)).collect()
    }

    /// The shape to which these shapes broadcast.
    ///
    /// # Errors
    /// Shapes that don't broadcast.
    pub fn broadcast_shapes(&mut self, shapes: &[Vec<Dim>]) -> Result<Vec<Dim>> {
        let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
        let mut out = vec![Dim::one(); rank];
        for shape in shapes {
            for (k, dim) in shape.iter().enumerate() {
                let slot = rank - shape.len() + k;
                let what = || {
                    let all: Vec<String> = shapes.iter().map(|shape| shape_text(shape)).collect();
                    format!("broadcast {}", all.join(" with "))
                };
                out[slot] = self.broadcast_dim(&out[slot].clone(), dim, &what)?;
            }
        }

        Ok(out)
    }

    fn broadcast_dim(&mut self, a: &Dim, b: &Dim, what: &dyn Fn() -> String) -> Result<Dim> {
        if a == b || self.is_one(b) {
            return Ok(a.clone());
        }
        if self.is_one(a) {
            return Ok(b.clone());
        }

        if self.may_stretch(a, b) {
            self.require(one_or(a, b), &what())?;
        } else if self.may_stretch(b, a) {
            self.require(one_or(b, a), &what())?;
        } else if !self.facts.prove_eq(a, b).is_yes() {
            self.require(Relation::eq(a, b), &what())?;
        }

        Ok(if b.as_int().is_some() { b.clone() } else { a.clone() })
    }

    /// Whether `dim` may be either 1 or `to` at run time, such as the length of a slice that is clamped to a constant.
    /// A lone symbol has a declared range, so it is assumed to equal the other dim.
    fn may_stretch(&self, dim: &Dim, to: &Dim) -> bool {
        matches!(dim.node(), Node::Min(_))
            && to.as_i64().is_some_and(|to| to > 1)
            && !self.facts.prove_ne(dim, &Dim::one()).is_yes()
            && !self.facts.prove_eq(dim, to).is_yes()
            && self.facts.prove_le(&Dim::one(), dim).is_yes()
    }

    pub(crate) fn is_one(&self, dim: &Dim) -> bool {
        dim.as_i64() == Some(1)
            || (dim.as_int().is_none() && self.facts.const_value(dim).is_some_and(|value| value == 1.into()))
    }
}

/// `dim` is 1 or `other`.
fn one_or(dim: &Dim, other: &Dim) -> Relation {
    Relation::eq((dim - 1) * (other - dim), 0)
}

/// A shape as text, such as `[N, 64]`.
pub(crate) fn shape_text(shape: &[Dim]) -> String {
    let dims: Vec<String> = shape.iter().map(Dim::to_string).collect();
    format!("[{}]", dims.join(", "))
}

macro_rules! sugar {
    (unary $($name:ident $op:ident,)*) => {
        impl Graph {$(
            #[doc = concat!("[`UnaryOp::", stringify!($op), "`] of each element.")]
            ///
            /// # Errors
            /// An element type that the operator doesn't take.
            pub fn $name(&mut self, x: Value) -> Result<Value> {
                self.unary(UnaryOp::$op, x)
            }
        )*}
    };
    (binary $($name:ident $op:ident,)*) => {
        impl Graph {$(
            #[doc = concat!("[`BinaryOp::", stringify!($op), "`] of the elements, broadcast.")]
            ///
            /// # Errors
            /// Shapes that don't broadcast, or types that differ.
            pub fn $name(&mut self, a: Value, b: Value) -> Result<Value> {
                self.binary(BinaryOp::$op, a, b)
            }
        )*}
    };
}

sugar! { unary
    neg Neg, abs Abs, sign Sign, floor Floor, ceil Ceil, round Round, trunc Trunc, sqrt Sqrt, recip Recip,
    exp Exp, expm1 Expm1, log Log, log1p Log1p, sin Sin, cos Cos, tanh Tanh, erf Erf, not Not,
}

sugar! { binary
    add Add, sub Sub, mul Mul, div Div, rem Rem, modulo Mod, pow Pow, min Min, max Max, and And, or Or, xor Xor,
}
