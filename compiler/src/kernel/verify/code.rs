//! The rules about instructions: registers, types and places.

use super::checker::{Checker, Scope, in_scope};
use crate::{
    error::{At, Error, Result},
    kernel::{Access, Check, Inst, InstSeq, Local, MemorySpace},
    scalar::{BinaryOp, Reg, UnaryOp},
};
use symshape::Symbol;
use symshape_runtime::DType;

/// The kind of statement that contains a sequence of instructions.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Place {
    Block,
    Strip,
    /// The epilogue of a contraction whose sum has this type.
    Epilogue(DType),
}

impl Checker<'_> {
    /// Checks a sequence of instructions, and adds the symbols that it binds to `scope`.
    pub(super) fn code(&mut self, code: &InstSeq, place: Place, scope: &mut Scope) -> Result<()> {
        let mut types: Vec<Option<DType>> = Vec::new();
        self.proven = self.proven_by_neighbours(code, scope);
        for (idx, inst) in code.insts.iter().enumerate() {
            let dtype = self.inst(code, idx, place, &types, scope).at(|| format!("instruction {idx}"))?;
            debug_assert_eq!(dtype.is_some(), inst.has_result());
            types.push(dtype);
        }
        Ok(())
    }

    pub(super) fn condition(&self, local: Local) -> Result<()> {
        ensure(self.local(local)? == DType::Bool, || format!("the condition {local:?} is not a bool"))
    }

    fn local(&self, local: Local) -> Result<DType> {
        let dtype = self.kernel.locals.get(local).copied();
        dtype.ok_or_else(|| Error::invalid(format!("{local:?} is not declared")))
    }

    fn inst(
        &mut self,
        code: &InstSeq,
        idx: usize,
        place: Place,
        types: &[Option<DType>],
        scope: &mut Scope,
    ) -> Result<Option<DType>> {
        let of = |reg: &Reg| -> Result<DType> {
            let dtype = types.get(reg.0 as usize).copied().flatten();
            dtype.ok_or_else(|| Error::invalid(format!("%{} has no value yet", reg.0)))
        };
        Ok(match &code.insts[idx] {
            Inst::Const(value) => Some(value.dtype()),
            Inst::Index(dtype, dim) => {
                in_scope(dim, &scope.symbols)?;
                ensure(dtype.is_int(), || format!("an index is an integer, not {dtype}"))?;
                Some(*dtype)
            }
            Inst::Load(access) => {
                self.access_at(idx, access, scope)?;
                Some(self.program.buffers[access.buffer].dtype)
            }
            Inst::Bind(symbol, reg) => {
                ensure(of(reg)? == DType::I64, || {
                    format!("{symbol} is bound to a value that is not an i64")
                })?;
                self.bind(symbol, *reg, &code.insts[..idx], scope)?;
                None
            }
            Inst::Sum => match place {
                Place::Epilogue(dtype) => Some(dtype),
                Place::Block | Place::Strip => {
                    return Err(Error::invalid("`sum` outside of an epilogue"));
                }
            },
            Inst::Get(local) => Some(self.local(*local)?),
            Inst::Set(local, reg) => {
                ensure(place == Place::Block, || "`set` outside of a block")?;
                ensure(self.local(*local)? == of(reg)?, || format!("{local:?} has another type"))?;
                None
            }
            Inst::Unary(op, x) => Some(unary(*op, of(x)?)?),
            Inst::Binary(op, x, y) => Some(binary(*op, of(x)?, of(y)?)?),
            Inst::Compare(_, x, y) => {
                ensure(of(x)? == of(y)?, || "the compared values have different types")?;
                Some(DType::Bool)
            }
            Inst::Select(cond, x, y) => {
                ensure(of(cond)? == DType::Bool, || "the condition is not a bool")?;
                ensure(of(x)? == of(y)?, || "the alternatives have different types")?;
                Some(of(x)?)
            }
            Inst::Cast(dtype, x) => of(x).map(|_| Some(*dtype))?,
            Inst::Bits(dtype, x) => {
                let same = of(x)?.size_bytes() == dtype.size_bytes();
                ensure(same, || "the value has another width")?;
                Some(*dtype)
            }
            Inst::Store(access, reg) => {
                self.store(access, of(reg)?, scope)?;
                self.access_at(idx, access, scope)?;
                None
            }
            Inst::Reduce(_, reg, local) => {
                ensure(place == Place::Strip, || "`reduce` outside of a strip")?;
                ensure(self.local(*local)? == of(reg)?, || format!("{local:?} has another type"))?;
                let others = code.insts[..idx].iter();
                let clash = others.filter(|inst| matches!(inst, Inst::Reduce(_, _, other) if other == local));
                ensure(clash.count() == 0, || format!("{local:?} is reduced into twice"))?;
                None
            }
            Inst::Check(Check { value, lo, end, .. }) => {
                in_scope(lo, &scope.symbols)?;
                in_scope(end, &scope.symbols)?;
                ensure(of(value)?.is_int(), || "the checked value is not an integer")?;
                None
            }
        })
    }

    fn store(&mut self, access: &Access, dtype: DType, scope: &Scope) -> Result<()> {
        let buffer = &self.program.buffers[access.buffer];
        let read_only = matches!(buffer.space, MemorySpace::Input(_) | MemorySpace::Const(_));
        ensure(!read_only, || format!("{:?} is read only", access.buffer))?;
        ensure(buffer.dtype == dtype, || format!("{dtype} is stored as {}", buffer.dtype))?;
        if let MemorySpace::State(tensor) = buffer.space {
            self.new_rows(access, tensor as usize, scope)?;
        }
        Ok(())
    }

    /// Checks the access of the instruction at a position.
    fn access_at(&mut self, idx: usize, access: &Access, scope: &Scope) -> Result<()> {
        if self.proven.contains(&idx) {
            in_scope(&access.index, &scope.symbols)
        } else {
            self.access(access, scope)
        }
    }

    /// Binds a symbol. Earlier checks of the same register bound its value.
    fn bind(&mut self, symbol: &Symbol, reg: Reg, before: &[Inst], scope: &mut Scope) -> Result<()> {
        self.introduce(symbol, scope)?;
        for inst in before {
            if let Inst::Check(Check { value, lo, end, .. }) = inst
                && *value == reg
            {
                scope.facts.declare_between(symbol, lo, &(end - 1));
            }
        }
        Ok(())
    }
}

/// An error with this message, unless the rule holds.
fn ensure<S: Into<String>>(holds: bool, message: impl FnOnce() -> S) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::invalid(message())) }
}

/// The type of the result.
fn unary(op: UnaryOp, dtype: DType) -> Result<DType> {
    use UnaryOp::*;
    let fits = match op {
        Neg | Abs | Sign | Floor | Ceil | Round | Trunc => dtype != DType::Bool,
        Not => !dtype.is_float(),
        RoundBf16 => dtype == DType::F32,
        _ => dtype.is_float(),
    };
    ensure(fits, || format!("`{op}` of {dtype}"))?;
    Ok(if matches!(op, IsNan | IsInf) { DType::Bool } else { dtype })
}

/// The type of the result.
fn binary(op: BinaryOp, x: DType, y: DType) -> Result<DType> {
    use BinaryOp::*;
    let fits = match op {
        Add | Sub | Mul | Div | Rem | Mod | Pow => x != DType::Bool,
        Min | Max => true,
        And | Or | Xor => !x.is_float(),
        Shl | Shr => x.is_int(),
        Atan2 => x.is_float(),
    };
    ensure(fits && x == y, || format!("`{op}` of {x} and {y}"))?;
    Ok(x)
}
