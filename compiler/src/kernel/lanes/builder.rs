//! Straight-line kernel code as the bodies of microkernels.
//!
//! Registers become lanes of vectors. An access becomes a numbered stream if it is linear in the microkernel's two loop
//! variables, row and column, either of which may be missing: an origin, which the code around the microkernel
//! computes, and two strides. Values from outside the loops become scalar arguments. The builder returns an
//! [`Obstacle`] for an index that isn't linear, and for types without lanes: scalar loops run that code.

use super::{
    bounds,
    checked::Gathers,
    obstacle::Obstacle,
    op::{Body, Op, Ty},
    repeated::RepeatedAddresses,
};
use crate::{
    kernel::{Access, Axis, BufferId, Inst, InstSeq, Kernel, Local, Program, at_distance::AtDistance},
    scalar::{Reg, Scalar, UnaryOp},
};
use num_bigint::BigInt;
use std::collections::HashMap;
use symshape::{Dim, Facts, Symbol};
use symshape_runtime::DType;

/// An access along the microkernel's loops.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Stream {
    /// The element at row 0 and column 0.
    pub(crate) origin: Access,
    /// Elements from row to row.
    pub(crate) row: Dim,
    /// Elements from column to column.
    pub(crate) column: Dim,
}

/// A scalar argument of a microkernel.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum ScalarArg {
    /// A scalar variable of the kernel.
    Local(Local),
    /// An index, which fits in 32 bits.
    Index(Dim),
}

/// Translates the bodies of one microkernel, and collects the streams and arguments that they refer to.
pub(crate) struct BodyBuilder<'a> {
    pub(crate) program: &'a Program,
    pub(crate) kernel: &'a Kernel,
    pub(crate) facts: &'a Facts,
    /// The variable of the row loop.
    pub(crate) row: Option<&'a Symbol>,
    pub(crate) streams: Vec<Stream>,
    pub(crate) scalars: Vec<ScalarArg>,
    /// The locals that the microkernel's variables hold, in the order of the variables.
    pub(crate) variables: Vec<Local>,
    /// Locals that the microkernel sets somewhere.
    pub(crate) inner: Vec<Local>,
    /// Registers of the current body that hold 64-bit integers in 32-bit lanes.
    pub(crate) wide: Vec<u32>,
    /// Whether the microkernel has lanes of 64 bits.
    pub(crate) has_wide_lanes: bool,
    /// Whether the microkernel can report that a check failed.
    pub(crate) may_fail: bool,
    /// The number of iterations of a strip. `None` for epilogues, whose vectors may begin within a group of iterations.
    pub(crate) extent: Option<Dim>,
    /// The type of a contraction's accumulators, for epilogues.
    pub(crate) sum: Option<Ty>,
    /// The checks of the current body.
    pub(super) gathers: Gathers,
    /// The streams of addresses, by the buffer and the variable of the column loop.
    known_streams: AtDistance<(BufferId, Option<Symbol>), Stream>,
    /// As `known_streams`, for addresses that groups of iterations share.
    known_repeated: RepeatedAddresses<(BufferId, Symbol)>,
}

/// The type of the lanes that hold elements of this type, if there are such lanes.
pub(crate) fn lane_type(dtype: DType) -> Option<Ty> {
    match dtype {
        DType::F32 => Some(Ty::F32),
        DType::I32 => Some(Ty::I32),
        DType::U8 => Some(Ty::U8),
        DType::I8 => Some(Ty::I8),
        DType::I16 => Some(Ty::I16),
        DType::U16 => Some(Ty::U16),
        DType::I64 => Some(Ty::I64),
        DType::F64 => Some(Ty::F64),
        DType::BF16 => Some(Ty::Bf16),
        DType::F16 => Some(Ty::F16),
        DType::Bool => Some(Ty::Bool),
        _ => None,
    }
}

/// The step of `expr` per unit of `symbol`, and its value at `symbol = 0`; `None` if it isn't linear.
pub(crate) fn linear_parts(facts: &Facts, expr: &Dim, symbol: Option<&Symbol>) -> Option<(Dim, Dim)> {
    match symbol {
        Some(symbol) if expr.contains(symbol) => {
            let (step, rest) = facts.linear_in(expr, symbol)?;
            (!rest.contains(symbol) && !step.contains(symbol)).then_some((step, rest))
        }
        _ => Some((Dim::zero(), expr.clone())),
    }
}

/// The steps of `expr` along each axis, and its value where all variables are zero; `None` if it isn't linear.
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
            has_wide_lanes: true,
            may_fail: false,
            extent: None,
            sum: None,
            gathers: Gathers::default(),
            known_streams: AtDistance::new(facts),
            known_repeated: RepeatedAddresses::new(facts),
        }
    }

    /// The body for this code in a loop over `column`, or the reason why microkernels don't support it.
    pub(crate) fn body(&mut self, code: &InstSeq, column: Option<&Symbol>) -> Result<Body, Obstacle> {
        let mut body = Body::default();
        let mut regs = Vec::with_capacity(code.insts.len());
        self.wide.clear();
        self.gathers = Gathers::default();
        let only_cast = only_cast(code);
        for (idx, inst) in code.insts.iter().enumerate() {
            let reg = match inst {
                Inst::Index(dtype, dim) => self.index(&mut body, *dtype, dim, column, only_cast[idx])?,
                _ => self.inst(&mut body, &regs, inst, column)?,
            };
            regs.push(reg);
        }
        let buffers: Vec<BufferId> = self.streams.iter().map(|stream| stream.origin.buffer).collect();
        body.bounded = bounds::bounded(&body, self.program, &buffers);
        body.stores_elsewhere = code.stores_elsewhere();
        Ok(body)
    }

    fn inst(
        &mut self,
        body: &mut Body,
        regs: &[u32],
        inst: &Inst,
        column: Option<&Symbol>,
    ) -> Result<u32, Obstacle> {
        let at = |reg: &Reg| regs[reg.0 as usize];
        let ty_of = |body: &Body, reg: &Reg| body.insts[at(reg) as usize].1;
        if self.has_wide_arithmetic(inst, at) {
            return Err(Obstacle::WideArithmetic);
        }

        let (op, ty) = match inst {
            Inst::Const(scalar) => match self.lane_type(scalar.dtype())? {
                ty if ty.is_wide() => (Op::WideConst(scalar.bits()), ty),
                ty => (Op::Const(lane_bits(*scalar)), ty),
            },
            Inst::Index(..) => unreachable!("`body` translates indices"),
            Inst::Load(access) if self.gathers.moves(&access.index) => {
                return self.gather(body, access, column);
            }
            Inst::Load(access) => match self.stream(access, column) {
                Ok((stream, ty)) => (Op::Load(stream), ty),
                Err(obstacle) => return self.repeated(body, access, column).ok_or(obstacle),
            },
            Inst::Sum => (Op::Accumulator, self.sum.ok_or(Obstacle::Sum)?),
            Inst::Get(local) => return self.get(body, *local),
            Inst::Set(local, x) => {
                let var = position(&mut self.variables, *local);
                (Op::Set(var, at(x)), ty_of(body, x))
            }
            Inst::Unary(op, x) => {
                let is_predicate = matches!(op, UnaryOp::IsNan | UnaryOp::IsInf);
                let ty = if is_predicate { Ty::Bool } else { ty_of(body, x) };
                (Op::Unary(*op, at(x)), ty)
            }
            Inst::Binary(op, x, y) => (Op::Binary(*op, at(x), at(y)), ty_of(body, x)),
            Inst::Compare(op, x, y) => (Op::Compare(*op, at(x), at(y)), Ty::Bool),
            Inst::Select(cond, x, y) => (Op::Select(at(cond), at(x), at(y)), ty_of(body, x)),
            Inst::Cast(dtype, x) => (Op::Cast(at(x)), self.lane_type(*dtype)?),
            Inst::Store(access, _) if self.gathers.moves(&access.index) => {
                return Err(Obstacle::LoadedAddress);
            }
            Inst::Store(access, x) => {
                let (stream, ty) = self.stream(access, column)?;
                if ty_of(body, x) != ty {
                    return Err(Obstacle::Type(self.program.buffers[access.buffer].dtype));
                }
                (Op::Store(stream, at(x)), ty)
            }
            Inst::Reduce(op, x, local) => {
                let var = position(&mut self.variables, *local);
                (Op::Reduce(*op, at(x), var), ty_of(body, x))
            }
            Inst::Check(check) => return self.check(body, check, at(&check.value), column),
            Inst::Bind(symbol, x) => return self.gathers.bind(symbol, at(x)),
            Inst::Bits(dtype, x) => (Op::Bits(at(x)), self.lane_type(*dtype)?),
        };
        body.push(op, ty).ok_or_else(|| Obstacle::of_op(body, op))
    }

    /// Whether the instruction computes with a 64-bit integer, which could overflow in a lane, or keeps it in a local,
    /// which has 64 bits. Comparisons and casts of small values give the same results in 32 bits.
    fn has_wide_arithmetic(&self, inst: &Inst, at: impl Fn(&Reg) -> u32) -> bool {
        let is_wide = |reg: &Reg| self.wide.contains(&at(reg));
        match inst {
            Inst::Set(_, x) | Inst::Reduce(_, x, _) | Inst::Unary(_, x) => is_wide(x),
            Inst::Binary(_, x, y) | Inst::Select(_, x, y) => is_wide(x) || is_wide(y),
            _ => false,
        }
    }

    /// The type of the lanes that hold elements of this type.
    fn lane_type(&self, dtype: DType) -> Result<Ty, Obstacle> {
        let known = lane_type(dtype).filter(|ty| self.has_wide_lanes || !ty.is_wide());
        known.ok_or(Obstacle::Type(dtype))
    }

    /// An index that is the same for the whole loop, as a scalar argument. A 64-bit index whose bounds allow it is
    /// computed in 32 bits if there are no wider lanes, or if it is only cast.
    pub(super) fn index(
        &mut self,
        body: &mut Body,
        dtype: DType,
        dim: &Dim,
        column: Option<&Symbol>,
        only_cast: bool,
    ) -> Result<u32, Obstacle> {
        let varies = [self.row, column].into_iter().flatten().any(|symbol| dim.contains(symbol))
            || self.gathers.moves(dim);
        let may_be_wide = self.has_wide_lanes && dtype == DType::I64;
        let fits_lane = self.fits_lane(dtype, dim);
        if varies || !fits_lane && !may_be_wide {
            return Err(Obstacle::Index(dim.clone()));
        }

        let slot = position(&mut self.scalars, ScalarArg::Index(dim.clone()));
        let is_wide = may_be_wide && !(only_cast && fits_lane);
        let ty = if is_wide { Ty::I64 } else { Ty::I32 };
        let reg = body.push(Op::Splat(slot), ty).ok_or(Obstacle::Type(dtype))?;
        if dtype == DType::I64 && !is_wide {
            self.wide.push(reg);
        }
        Ok(reg)
    }

    pub(super) fn fits_lane(&self, dtype: DType, dim: &Dim) -> bool {
        let bounds = self.facts.bounds(dim);
        let fits = |bound: Option<BigInt>| bound.is_some_and(|bound| i32::try_from(bound).is_ok());
        dtype == DType::I32 || dtype == DType::I64 && fits(bounds.lo) && fits(bounds.hi)
    }

    /// A local: a variable if the microkernel sets it, else a scalar argument.
    fn get(&mut self, body: &mut Body, local: Local) -> Result<u32, Obstacle> {
        let dtype = self.kernel.locals[local];
        let ty = self.lane_type(dtype)?;
        let op = if self.inner.contains(&local) {
            Op::Get(position(&mut self.variables, local))
        } else {
            Op::Splat(position(&mut self.scalars, ScalarArg::Local(local)))
        };
        body.push(op, ty).ok_or(Obstacle::Type(dtype))
    }

    /// A load whose address groups of iterations share. `None` if it has no such form, or if the buffer ends within a
    /// group.
    fn repeated(&mut self, body: &mut Body, access: &Access, column: Option<&Symbol>) -> Option<u32> {
        let (facts, column, extent) = (self.facts, column?, self.extent.as_ref()?);
        let key = (access.buffer, column.clone());
        let address = self.known_repeated.get(key, facts, &access.index, (column, extent))?;
        let group = Dim::from(usize::from(address.place.group));
        if !facts.divides(&group, &self.program.buffers[access.buffer].elems).is_yes() {
            return None;
        }

        let index = address.first_of_group() + Dim::from(column);
        let (stream, ty) = self.stream(&Access { index, ..access.clone() }, Some(column)).ok()?;
        let elements = body.push(Op::Load(stream), ty)?;
        body.push(Op::Repeat(elements, address.place), ty)
    }

    /// The index of the stream for an access, which is added if it is new, and the type of its lanes.
    pub(super) fn stream(&mut self, access: &Access, column: Option<&Symbol>) -> Result<(u32, Ty), Obstacle> {
        let ty = self.lane_type(self.program.buffers[access.buffer].dtype)?;
        let key = (access.buffer, column.cloned());
        let (facts, row) = (self.facts, self.row);
        let linear = || linear_stream(facts, access, row, column);
        let (mut stream, distance) = self.known_streams.get(key, &access.index, linear)?;
        stream.origin.index = &stream.origin.index + distance;
        Ok((position(&mut self.streams, stream), ty))
    }
}

/// The stream of an address that is linear in the rows and columns.
fn linear_stream(
    facts: &Facts,
    access: &Access,
    row: Option<&Symbol>,
    column: Option<&Symbol>,
) -> Result<Stream, Obstacle> {
    let not_linear = || Obstacle::Address(access.index.clone());
    let (column, rest) = linear_parts(facts, &access.index, column).ok_or_else(not_linear)?;
    let (step, origin) = linear_parts(facts, &rest, row).ok_or_else(not_linear)?;
    // The strides are arguments, which are the same for all rows.
    if row.is_some_and(|symbol| column.contains(symbol)) {
        return Err(not_linear());
    }
    Ok(Stream { origin: Access { buffer: access.buffer, index: origin }, row: step, column })
}

/// For each instruction whether only casts read it.
fn only_cast(code: &InstSeq) -> Vec<bool> {
    let mut only_cast = vec![true; code.insts.len()];
    for inst in code.insts.iter().filter(|inst| !matches!(inst, Inst::Cast(..))) {
        for reg in inst.operands() {
            only_cast[reg.0 as usize] = false;
        }
    }
    only_cast
}

/// A constant as the bits of a lane.
fn lane_bits(scalar: Scalar) -> u32 {
    match scalar.dtype() {
        DType::I8 | DType::I16 => scalar.as_i64() as u32,
        DType::BF16 => (scalar.bits() as u32) << 16,
        DType::F16 => (scalar.as_f64() as f32).to_bits(),
        _ => scalar.bits() as u32,
    }
}

/// The index of an item in the list, to which it is added if it is new.
fn position<T: PartialEq>(list: &mut Vec<T>, item: T) -> u32 {
    let idx = list.iter().position(|other| *other == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    });
    idx as u32
}

/// The number of reads of each local.
pub(crate) fn reads<'a>(insts: impl Iterator<Item = &'a Inst>) -> HashMap<Local, usize> {
    let mut reads = HashMap::new();
    for inst in insts {
        if let Inst::Get(local) = inst {
            *reads.entry(*local).or_default() += 1;
        }
    }
    reads
}
