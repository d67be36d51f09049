//! Straight-line kernel code as the bodies of microkernels: addresses become numbered streams, outer values scalar arguments.
//!
//! A stream is an access that is linear in the microkernel's two loop variables (row and column, either of which may be
//! missing): an origin, which the code around computes, and two strides. What is not linear, or of a type that lanes
//! don't have, is refused by `None`: the scalar loops take it.

use crate::{
    codegen::microkernel::op::{Body, Op, Ty},
    kernel::{Access, Axis, Inst, InstSeq, Kernel, Local, Program},
    scalar::{Reg, UnaryOp},
};
use std::collections::HashMap;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// An access along the microkernel's loops; strides are in elements.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Stream {
    /// At row 0 and column 0.
    pub(crate) origin: Access,
    /// From row to row.
    pub(crate) row: Dim,
    /// From column to column.
    pub(crate) column: Dim,
}

/// A scalar argument of a microkernel.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ScalarArg {
    /// A scalar variable of the kernel.
    Local(Local),
    /// An integer.
    Index(Dim),
}

/// Collects what the bodies of one microkernel refer to.
pub(crate) struct BodyBuilder<'a> {
    pub(crate) program: &'a Program,
    pub(crate) kernel: &'a Kernel,
    pub(crate) facts: &'a Facts,
    /// The variable of the row loop.
    pub(crate) row: Option<&'a Symbol>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) scalars: Vec<ScalarArg>,
    /// The locals that live inside the microkernel, by the number of their variable.
    pub(crate) variables: Vec<Local>,
    /// Locals that the microkernel sets somewhere.
    pub(crate) inner: Vec<Local>,
    /// Registers of the body at hand that stand for 64-bit integers.
    pub(crate) wide: Vec<u32>,
    /// The type of a contraction's sums.
    pub(crate) sum: Option<Ty>,
}

/// The type of lanes that hold elements of this type.
pub(crate) fn lane_type(dtype: DType) -> Option<Ty> {
    match dtype {
        DType::F32 => Some(Ty::F32),
        DType::I32 => Some(Ty::I32),
        DType::U8 => Some(Ty::U8),
        DType::I8 => Some(Ty::I8),
        DType::I16 => Some(Ty::I16),
        DType::BF16 => Some(Ty::Bf16),
        DType::Bool => Some(Ty::Bool),
        _ => None,
    }
}

/// What `expr` moves by when `symbol` grows by one, and its value where the symbol is zero; `None` if it isn't linear.
pub(crate) fn linear_parts(facts: &Facts, expr: &Dim, symbol: Option<&Symbol>) -> Option<(Dim, Dim)> {
    match symbol {
        Some(symbol) if expr.contains(symbol) => {
            let (step, rest) = facts.linear_in(expr, symbol)?;
            (!rest.contains(symbol) && !step.contains(symbol)).then_some((step, rest))
        }
        _ => Some((Dim::zero(), expr.clone())),
    }
}

/// The steps of `expr` along each axis, and its value where all of them are zero; `None` if it isn't linear.
pub(crate) fn linear_steps(facts: &Facts, expr: &Dim, axes: &[Axis]) -> Option<(Vec<Dim>, Dim)> {
    let mut rest = expr.clone();
    let mut steps = Vec::new();
    for axis in axes {
        let (step, origin) = linear_parts(facts, &rest, Some(&axis.var))?;
        steps.push(step);
        rest = origin;
    }
    let is_fixed = |step: &Dim| axes.iter().all(|axis| !step.contains(&axis.var));
    steps.iter().all(is_fixed).then_some((steps, rest))
}

impl<'a> BodyBuilder<'a> {
    /// A builder without streams and arguments, for code of `kernel` in a loop over `row`.
    pub(crate) fn new(
        program: &'a Program,
        kernel: &'a Kernel,
        facts: &'a Facts,
        row: Option<&'a Symbol>,
    ) -> BodyBuilder<'a> {
        BodyBuilder {
            program,
            kernel,
            facts,
            row,
            streams: Vec::new(),
            scalars: Vec::new(),
            variables: Vec::new(),
            inner: Vec::new(),
            wide: Vec::new(),
            sum: None,
        }
    }

    /// The body for this code, whose loop runs over `column`; `None` where microkernels can't.
    pub(crate) fn body(&mut self, code: &InstSeq, column: Option<&Symbol>) -> Option<Body> {
        let mut body = Body::default();
        let mut regs = Vec::with_capacity(code.insts.len());
        self.wide.clear();
        for inst in &code.insts {
            let reg = self.inst(&mut body, &regs, inst, column)?;
            regs.push(reg);
        }
        Some(body)
    }

    fn inst(&mut self, body: &mut Body, regs: &[u32], inst: &Inst, column: Option<&Symbol>) -> Option<u32> {
        let at = |reg: &Reg| regs[reg.0 as usize];
        let ty_of = |body: &Body, reg: &Reg| body.insts[regs[reg.0 as usize] as usize].1;
        match inst {
            Inst::Const(scalar) => {
                let bits = match scalar.dtype() {
                    DType::I8 | DType::I16 => scalar.as_i64() as u32,
                    DType::BF16 => (scalar.bits() as u32) << 16,
                    _ => scalar.bits() as u32,
                };
                body.push(Op::Const(bits), lane_type(scalar.dtype())?)
            }
            Inst::Index(dtype, dim) => {
                let inside = [self.row, column].into_iter().flatten().any(|symbol| dim.contains(symbol));
                (!inside && self.is_narrow(*dtype, dim)).then_some(())?;
                let slot = position(&mut self.scalars, ScalarArg::Index(dim.clone()));
                let reg = body.push(Op::Splat(slot), Ty::I32)?;
                if *dtype == DType::I64 {
                    self.wide.push(reg);
                }
                Some(reg)
            }
            Inst::Load(access) => {
                let (stream, ty) = self.stream(access, column)?;
                body.push(Op::Load(stream), ty)
            }
            Inst::Sum => body.push(Op::Accumulator, self.sum?),
            Inst::Get(local) => {
                let ty = lane_type(self.kernel.locals[*local])?;
                if self.inner.contains(local) {
                    return body.push(Op::Get(position(&mut self.variables, *local)), ty);
                }
                body.push(Op::Splat(position(&mut self.scalars, ScalarArg::Local(*local))), ty)
            }
            // Locals of the wide type hold more than a lane.
            Inst::Set(_, x) | Inst::Reduce(_, x, _) if self.is_wide(at(x)) => None,
            Inst::Set(local, x) => {
                let var = position(&mut self.variables, *local);
                body.push(Op::Set(var, at(x)), ty_of(body, x))
            }
            Inst::Unary(op, x) => {
                (!self.is_wide(at(x))).then_some(())?;
                let truth = matches!(op, UnaryOp::IsNan | UnaryOp::IsInf);
                let ty = if truth { Ty::Bool } else { ty_of(body, x) };
                body.push(Op::Unary(*op, at(x)), ty)
            }
            Inst::Binary(op, x, y) => {
                (!self.is_wide(at(x)) && !self.is_wide(at(y))).then_some(())?;
                body.push(Op::Binary(*op, at(x), at(y)), ty_of(body, x))
            }
            Inst::Compare(op, x, y) => body.push(Op::Compare(*op, at(x), at(y)), Ty::Bool),
            Inst::Select(_, x, y) if self.is_wide(at(x)) || self.is_wide(at(y)) => None,
            Inst::Select(c, x, y) => body.push(Op::Select(at(c), at(x), at(y)), ty_of(body, x)),
            Inst::Cast(dtype, x) => body.push(Op::Cast(at(x)), lane_type(*dtype)?),
            Inst::Store(access, x) => {
                let (stream, ty) = self.stream(access, column)?;
                (ty_of(body, x) == ty).then_some(())?;
                body.push(Op::Store(stream, at(x)), ty)
            }
            Inst::Reduce(op, x, local) => {
                let var = position(&mut self.variables, *local);
                body.push(Op::Reduce(*op, at(x), var), ty_of(body, x))
            }
            Inst::Bind(..) | Inst::Check(_) | Inst::Bits(..) => None,
        }
    }

    /// Whether the register stands for a 64-bit integer, on which arithmetic could overflow in a lane.
    fn is_wide(&self, reg: u32) -> bool {
        self.wide.contains(&reg)
    }

    /// Whether an index of this type may be computed in 32 bits: of the wide type there are no lanes, but small values
    /// convert and compare in the narrow one just the same; arithmetic on them is refused.
    fn is_narrow(&self, dtype: DType, dim: &Dim) -> bool {
        let bounds = self.facts.bounds(dim);
        let fits =
            |bound: Option<num_bigint::BigInt>| bound.is_some_and(|bound| i32::try_from(bound).is_ok());
        dtype == DType::I32 || dtype == DType::I64 && fits(bounds.lo) && fits(bounds.hi)
    }

    /// The number of the stream that an access is, and the type of its lanes.
    fn stream(&mut self, access: &Access, column: Option<&Symbol>) -> Option<(u32, Ty)> {
        let ty = lane_type(self.program.buffers[access.buffer].dtype)?;
        let (column, rest) = linear_parts(self.facts, &access.index, column)?;
        let (row, origin) = linear_parts(self.facts, &rest, self.row)?;
        // A stride that moves with the row would have to be read anew for each.
        if self.row.is_some_and(|symbol| column.contains(symbol)) {
            return None;
        }
        let origin = Access { buffer: access.buffer, index: origin };
        Some((position(&mut self.streams, Stream { origin, row, column }), ty))
    }
}

/// Where the item stands in the list, to which it is added if need be.
fn position<T: PartialEq>(list: &mut Vec<T>, item: T) -> u32 {
    let known = list.iter().position(|other| *other == item);
    known.unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    }) as u32
}

/// Numbers of reads of each local in a kernel.
pub(crate) fn reads<'a>(insts: impl Iterator<Item = &'a Inst>) -> HashMap<Local, usize> {
    let mut reads = HashMap::new();
    for inst in insts {
        if let Inst::Get(local) = inst {
            *reads.entry(*local).or_default() += 1;
        }
    }
    reads
}
