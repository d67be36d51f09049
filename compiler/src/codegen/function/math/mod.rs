//! Mathematical functions as local functions of the artefact, defined on first use. No library is called.
//!
//! All are computed in double precision. For narrower types the result is rounded once, so its error is little more
//! than half an ulp. Vector code has other forms of some, see [`crate::codegen::microkernel::math`].

mod exact;
mod scalar_sink;

use super::FuncCtx;
use crate::{
    codegen::formulas::{self, Formula},
    error::{Error, Result},
    scalar::UnaryOp,
};
use cranelift_codegen::ir::{InstBuilder, Type, Value, types};
use cranelift_module::FuncId;
use scalar_sink::ScalarSink;
use std::cell::RefCell;
use symshape_runtime::DType;

/// A function that is not a machine instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Math {
    /// A function of one argument.
    Unary(UnaryOp),
    /// Power.
    Pow,
    /// Remainder with the sign of the dividend.
    Fmod,
    /// Remainder with the sign of the divisor.
    Mod,
    /// The angle of a point.
    Atan2,
}

impl Math {
    /// The function that an operator calls, if it is not an instruction.
    pub(crate) fn unary(op: UnaryOp) -> Option<Math> {
        use UnaryOp::{
            Acos, Acosh, Asin, Asinh, Atan, Atanh, Cos, Cosh, Erf, Exp, Expm1, Log, Log1p, Sin, Sinh, Tan,
            Tanh,
        };
        matches!(
            op,
            Exp | Expm1
                | Log
                | Log1p
                | Sin
                | Cos
                | Tan
                | Asin
                | Acos
                | Atan
                | Sinh
                | Cosh
                | Tanh
                | Asinh
                | Acosh
                | Atanh
                | Erf
        )
        .then_some(Math::Unary(op))
    }

    fn name(self, ty: Type, signed: bool) -> String {
        let name = match self {
            Math::Unary(op) => format!("{op:?}").to_lowercase(),
            Math::Pow if ty == types::I64 && !signed => "pow_unsigned".into(),
            Math::Pow if ty == types::I64 => "pow_signed".into(),
            Math::Pow => "pow".into(),
            Math::Fmod => "fmod".into(),
            Math::Mod => "mod".into(),
            Math::Atan2 => "atan2".into(),
        };
        format!("math_{name}")
    }
}

impl FuncCtx<'_, '_> {
    /// Calls a mathematical function on registers of this type.
    pub(crate) fn math(&mut self, math: Math, dtype: DType, args: &[Value]) -> Result<Value> {
        let ty = if dtype.is_float() { types::F64 } else { types::I64 };
        let signed = dtype.is_signed_int();
        if ty == types::I64 && math != Math::Pow {
            return Err(Error::internal(format!("{math:?} of {dtype}")));
        }

        let func = self.math_function(math, ty, signed, args.len())?;
        let wide: Vec<Value> = args.iter().map(|arg| self.wide(dtype, *arg)).collect();
        let result = self.call(func, &wide).ok_or_else(|| Error::internal("a function without a result"))?;

        Ok(match (ty, Self::reg_type(dtype)) {
            (from, to) if from == to => result,
            (types::F64, to) => self.ins().fdemote(to, result),
            (_, to) => self.ins().ireduce(to, result),
        })
    }

    fn wide(&mut self, dtype: DType, value: Value) -> Value {
        match Self::reg_type(dtype) {
            types::F64 => value,
            types::F32 => self.ins().fpromote(types::F64, value),
            _ => self.widened(value, types::I64, dtype.is_signed_int()),
        }
    }

    fn math_function(&mut self, math: Math, ty: Type, signed: bool, arity: usize) -> Result<FuncId> {
        let name = math.name(ty, signed);
        if let Some(id) = self.unit.on_demand.get(&name) {
            return Ok(*id);
        }
        let id = self.unit.define_local(&name, &vec![ty; arity], &[ty], |f, params| {
            let result = body(f, math, ty, signed, params)?;
            f.ins().return_(&[result]);
            Ok(())
        })?;
        self.unit.on_demand.insert(name, id);
        Ok(id)
    }
}

fn body(f: &mut FuncCtx, math: Math, ty: Type, signed: bool, params: &[Value]) -> Result<Value> {
    match (math, params) {
        (Math::Pow, [x, y]) if ty == types::I64 => Ok(exact::int_pow(f, *x, *y, signed)),
        (Math::Fmod, [x, y]) => Ok(exact::fmod(f, *x, *y)),
        (Math::Mod, [x, y]) => Ok(exact::modulo(f, *x, *y)),
        (_, [x]) => formula(f, math, *x, *x),
        (_, [x, y]) => formula(f, math, *x, *y),
        _ => Err(Error::internal(format!("{math:?} of {} arguments", params.len()))),
    }
}

fn formula(f: &mut FuncCtx, math: Math, x: Value, y: Value) -> Result<Value> {
    let formula = match math {
        Math::Unary(op) => Formula::Unary(op),
        Math::Pow => Formula::Pow,
        Math::Atan2 => Formula::Atan2,
        Math::Fmod | Math::Mod => return Err(Error::internal(format!("{math:?} has no formula"))),
    };
    let sink = ScalarSink(RefCell::new(f));
    Ok(formulas::emit(formula, &sink, x.into(), y.into())?.into())
}
