//! Symbolic contents: the elements of small tensors as expressions over the model's symbols.
//!
//! ONNX computes shapes with tensors (`Shape → Gather → Concat → Reshape`). One rule per core operator tracks their
//! elements. An element that can't be tracked exactly is unknown, never wrong. Inside a rule an element is a fraction
//! whose denominator is a power of two, so that detours through floats (`Cast → Mul 0.5 → Floor → Cast`) stay exact.
//! They are tracked only while the float type would also hold the value exactly. Only integers are kept.

use super::{Graph, Op, Type, Value};
use crate::{
    graph::{Coord, ScatterMode, axis},
    scalar::{BinaryOp, Body, CompareOp, ReduceOp, Scalar, Step, UnaryOp},
    tensor::Tensor,
};
use num_bigint::BigInt;
use num_traits::{One, Signed, ToPrimitive, Zero};
use symshape::{Dim, Facts, Node, Symbol};
use symshape_runtime::DType;

/// Tensors with more elements have no contents, because they are not shapes.
pub(crate) const MAX_CONTENTS: usize = 1024;

/// The number of elements that are read for the contents of one value. Float detours are short, so chains stay linear.
const BUDGET: usize = 1 << 16;

/// The elements of the result of `op`, if it holds integers or booleans and they are known as expressions.
pub(crate) fn contents(graph: &Graph, op: &Op, operands: &[Value], ty: &Type) -> Option<Vec<Dim>> {
    if ty.dtype.is_float() {
        return None;
    }
    let mut reader = ContentsTracker { graph, budget: BUDGET };
    let elems = reader.result(op, operands, ty)?;
    elems.into_iter().map(|elem| elem.den.is_one().then_some(elem.num)).collect()
}

/// `num / den`, where `den` is a power of two.
#[derive(Clone, PartialEq, Eq)]
struct Exact {
    num: Dim,
    den: BigInt,
}

impl From<Dim> for Exact {
    fn from(num: Dim) -> Exact {
        Exact { num, den: BigInt::one() }
    }
}

impl From<bool> for Exact {
    fn from(holds: bool) -> Exact {
        Dim::from(i64::from(holds)).into()
    }
}

struct ContentsTracker<'a> {
    graph: &'a Graph,
    budget: usize,
}

impl ContentsTracker<'_> {
    /// The elements of an operand.
    fn value(&mut self, value: Value) -> Option<Vec<Exact>> {
        if let Some(dims) = self.graph.contents(value) {
            return Some(dims.iter().cloned().map(Exact::from).collect());
        }
        // Integers without contents have none; this was decided when they were pushed.
        let ty = self.graph.ty(value);
        if !ty.dtype.is_float() || self.graph.nodes[self.graph.values[value].def].results[0] != value {
            return None;
        }
        self.result(self.graph.op(value), self.graph.operands(value), ty)
    }

    fn result(&mut self, op: &Op, operands: &[Value], ty: &Type) -> Option<Vec<Exact>> {
        let shape = known_shape(&ty.shape)?;
        self.budget = self.budget.checked_sub(1 + shape.iter().product::<usize>())?;

        match op {
            Op::Input(_) | Op::ArgReduce { .. } | Op::Contraction { .. } | Op::Sort { .. } => None,
            Op::If { .. } | Op::Loop { .. } | Op::Call { .. } | Op::Fail { .. } => None,
            Op::Bind { symbol, .. } => Some(vec![self.graph.facts.simplify(&symbol.into()).into()]),
            Op::Const(tensor) => constant(tensor),
            Op::Index { expr, dtype, .. } => positions(&shape)
                .map(|at| Some(self.at(expr, &at)).filter(|num| self.holds(*dtype, num)).map(Exact::from))
                .collect(),
            Op::Map(body) => self.map(body, operands),
            Op::View { index, .. } => {
                let x = self.operand(operands[0])?;
                positions(&shape).map(|at| x.get(&self.coords(index, &at)?)).collect()
            }
            Op::Pad { lo, value, .. } => self.pad(operands[0], &shape, lo, *value),
            Op::Concat { axis } => self.concat(operands, &shape, *axis),
            Op::Gather { coords, .. } => {
                let all = self.operands(operands)?;
                positions(&shape).map(|at| all[0].get(&self.loaded(coords, &all, &at)?)).collect()
            }
            Op::Scatter { coords, mode } => self.scatter(operands, coords, *mode),
            Op::Reduce { op, axes } => self.reduce(operands[0], &shape, *op, axes),
            Op::Scan { op, axis, exclusive, reverse } => {
                self.scan(operands[0], *op, *axis, *exclusive, *reverse)
            }
        }
    }

    fn operand(&mut self, value: Value) -> Option<Known> {
        let shape = known_shape(self.graph.shape(value))?;
        Some(Known { shape, elems: self.value(value)? })
    }

    fn operands(&mut self, values: &[Value]) -> Option<Vec<Known>> {
        values.iter().map(|value| self.operand(*value)).collect()
    }

    /// `expr` at these indices.
    fn at(&self, expr: &Dim, at: &[usize]) -> Dim {
        let value_of = |symbol: &Symbol| {
            at.iter().enumerate().find(|(k, _)| axis(*k) == *symbol).map(|(_, idx)| Dim::from(*idx))
        };
        self.graph.facts.simplify(&expr.substitute(&value_of))
    }

    fn coords(&self, index: &[Dim], at: &[usize]) -> Option<Vec<usize>> {
        index.iter().map(|expr| self.at(expr, at).as_int()?.to_usize()).collect()
    }

    fn loaded(&self, coords: &[Coord], all: &[Known], at: &[usize]) -> Option<Vec<usize>> {
        let coord = |coord: &Coord| match coord {
            Coord::At(expr) => self.at(expr, at).as_int()?.to_usize(),
            Coord::Load { operand, at: inner } => {
                all[*operand].get(&self.coords(inner, at)?)?.num.as_int()?.to_usize()
            }
        };
        coords.iter().map(coord).collect()
    }

    fn map(&mut self, body: &Body, operands: &[Value]) -> Option<Vec<Exact>> {
        let all = self.operands(operands)?;
        let types = body.types();
        let count = all[0].elems.len();
        let facts = &self.graph.facts;

        (0..count)
            .map(|i| {
                let mut regs: Vec<Exact> = all.iter().map(|operand| operand.elems[i].clone()).collect();
                for step in &body.steps {
                    let value = self::step(facts, step, &regs, &types)?;
                    regs.push(value);
                }
                Some(regs[body.result.0 as usize].clone())
            })
            .collect()
    }

    fn pad(&mut self, x: Value, shape: &[usize], lo: &[Dim], fill: Scalar) -> Option<Vec<Exact>> {
        let x = self.operand(x)?;
        let fill = exact(fill)?;
        let lo: Vec<usize> = lo.iter().map(|dim| dim.as_int()?.to_usize()).collect::<Option<_>>()?;
        let inner = |at: &[usize]| -> Option<Vec<usize>> {
            at.iter().zip(&lo).map(|(idx, lo)| idx.checked_sub(*lo)).collect()
        };
        Some(
            positions(shape).map(|at| inner(&at).and_then(|at| x.get(&at)).unwrap_or(fill.clone())).collect(),
        )
    }

    fn concat(&mut self, operands: &[Value], shape: &[usize], axis: usize) -> Option<Vec<Exact>> {
        let all = self.operands(operands)?;
        let pick = |mut at: Vec<usize>| {
            for operand in &all {
                if at[axis] < operand.shape[axis] {
                    return operand.get(&at);
                }
                at[axis] -= operand.shape[axis];
            }
            None
        };
        positions(shape).map(pick).collect()
    }

    fn scatter(&mut self, operands: &[Value], coords: &[Coord], mode: ScatterMode) -> Option<Vec<Exact>> {
        let mut all = self.operands(operands)?;
        let dtype = self.graph.dtype(operands[0]);
        let mut out = all[0].elems.clone();

        let updates = all[1].shape.clone();
        for (i, at) in positions(&updates).enumerate() {
            let at = all[0].flat(&self.loaded(coords, &all, &at)?)?;
            let new = &all[1].elems[i];
            out[at] = match mode {
                ScatterMode::Assign => new.clone(),
                ScatterMode::Combine(op) => self.combined(dtype, op, &out[at], new)?,
            };
        }

        all.clear();
        Some(out)
    }

    fn reduce(&mut self, x: Value, shape: &[usize], op: ReduceOp, axes: &[usize]) -> Option<Vec<Exact>> {
        let (x, dtype) = (self.operand(x)?, self.graph.dtype(x));
        let out = Known { shape: shape.to_vec(), elems: Vec::new() };

        let mut elems: Vec<Option<Exact>> = vec![None; shape.iter().product()];
        for (i, at) in positions(&x.shape).enumerate() {
            let kept: Vec<usize> =
                at.iter().enumerate().filter(|(k, _)| !axes.contains(k)).map(|(_, idx)| *idx).collect();
            let slot = &mut elems[out.flat(&kept)?];
            *slot = Some(match slot.take() {
                None => x.elems[i].clone(),
                Some(acc) => self.combined(dtype, op, &acc, &x.elems[i])?,
            });
        }

        elems.into_iter().map(|elem| elem.or_else(|| neutral(op))).collect()
    }

    fn scan(
        &mut self,
        x: Value,
        op: ReduceOp,
        axis: usize,
        exclusive: bool,
        reverse: bool,
    ) -> Option<Vec<Exact>> {
        let (x, dtype) = (self.operand(x)?, self.graph.dtype(x));
        let len = x.shape[axis];

        let sum_to = |at: Vec<usize>| {
            let end = at[axis] + usize::from(!exclusive);
            let range: Vec<usize> = if reverse {
                (end - usize::from(!exclusive)..len).rev().collect()
            } else {
                (0..end).collect()
            };

            let mut acc = None;
            for idx in range.into_iter().filter(|idx| !(exclusive && *idx == at[axis])) {
                let mut from = at.clone();
                from[axis] = idx;
                let elem = x.get(&from)?;
                acc = Some(match acc {
                    None => elem,
                    Some(acc) => self.combined(dtype, op, &acc, &elem)?,
                });
            }

            acc.or_else(|| neutral(op))
        };

        positions(&x.shape).map(sum_to).collect()
    }

    /// Combines two elements, unless the type would not hold the result exactly.
    fn combined(&self, dtype: DType, op: ReduceOp, x: &Exact, y: &Exact) -> Option<Exact> {
        combine(op, x, y).filter(|value| holds(&self.graph.facts, dtype, &value.num, &value.den))
    }

    fn holds(&self, dtype: DType, num: &Dim) -> bool {
        holds(&self.graph.facts, dtype, num, &BigInt::one())
    }
}

/// Elements with a constant shape.
struct Known {
    shape: Vec<usize>,
    elems: Vec<Exact>,
}

impl Known {
    fn flat(&self, at: &[usize]) -> Option<usize> {
        let mut flat = 0;
        for (idx, size) in at.iter().zip(&self.shape) {
            if idx >= size {
                return None;
            }
            flat = flat * size + idx;
        }
        Some(flat)
    }

    fn get(&self, at: &[usize]) -> Option<Exact> {
        self.elems.get(self.flat(at)?).cloned()
    }
}

fn known_shape(shape: &[Dim]) -> Option<Vec<usize>> {
    let shape: Vec<usize> = shape.iter().map(|dim| dim.as_int()?.to_usize()).collect::<Option<_>>()?;
    let elems = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
    (elems <= MAX_CONTENTS).then_some(shape)
}

/// All indices of a tensor of this shape in row-major order.
fn positions(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let count: usize = shape.iter().product();
    (0..count).map(move |flat| {
        let mut rest = flat;
        let mut at = vec![0; shape.len()];
        for (idx, size) in at.iter_mut().zip(shape).rev() {
            *idx = rest % size;
            rest /= size;
        }
        at
    })
}

fn constant(tensor: &Tensor) -> Option<Vec<Exact>> {
    (0..tensor.elems()).map(|i| exact(tensor.get(i))).collect()
}

fn exact(value: Scalar) -> Option<Exact> {
    match value.dtype() {
        DType::U64 => Some(Dim::from(value.bits()).into()),
        dtype if dtype.is_float() => {
            let float = value.as_f64();
            let mut den = BigInt::one();

            // 64 halvings reach every fraction that a size computation can contain.
            for _ in 0..64 {
                let scaled = float * den.to_f64()?;
                if scaled == scaled.trunc() && scaled.abs() < 9e15 {
                    // A negative zero would be lost.
                    let lost = float == 0.0 && float.is_sign_negative();
                    return (!lost).then(|| Exact { num: (scaled as i64).into(), den });
                }
                den *= 2;
            }

            None
        }
        _ => Some(Dim::from(value.as_i64()).into()),
    }
}

/// One step of a body; `None` when the result isn't known or the type would not hold it exactly.
fn step(facts: &Facts, step: &Step, regs: &[Exact], types: &[DType]) -> Option<Exact> {
    let dtype = types[regs.len()];
    let of = |reg: &crate::scalar::Reg| &regs[reg.0 as usize];
    let value = match step {
        Step::Const(value) => exact(*value)?,
        Step::Unary(op, x) => unary(facts, *op, of(x), dtype)?,
        Step::Binary(op, x, y) => binary(facts, *op, of(x), of(y), dtype)?,
        Step::Compare(op, x, y) => compare(facts, *op, of(x), of(y))?.into(),
        Step::Select(c, x, y) => match (of(c).num.as_i64(), of(x) == of(y)) {
            (Some(0), _) => of(y).clone(),
            (Some(_), _) | (None, true) => of(x).clone(),
            (None, false) => return None,
        },
        Step::Cast(to, x) => cast(facts, *to, of(x))?,
        Step::Bits(..) => return None,
    };

    let num = facts.simplify(&value.num);
    holds(facts, dtype, &num, &value.den).then_some(Exact { num, den: value.den })
}

/// Whether a value of this type holds `num / den` exactly for all values of the symbols.
fn holds(facts: &Facts, dtype: DType, num: &Dim, den: &BigInt) -> bool {
    let bits = match dtype {
        DType::Bool => return true,
        DType::F64 => 53,
        DType::F32 => 24,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 8 * dtype.size_bytes() as u32 - u32::from(dtype.is_signed_int()),
    };

    let end = BigInt::one() << bits;
    let bounds = facts.bounds(num);
    if dtype == DType::I64 {
        // Sizes fit 64 bits: the contract proves it before anything runs, so only a known overflow counts.
        let outside = |value: &Option<BigInt>| value.as_ref().is_some_and(|value| value.abs() >= end);
        return !(outside(&bounds.lo) || outside(&bounds.hi)) && den.is_one();
    }
    let lowest = if dtype.is_float() || dtype.is_signed_int() { -&end } else { BigInt::zero() };

    // The range of f16's exponent is smaller than its fraction would allow.
    let small = dtype != DType::F16 || *den <= BigInt::from(1 << 10);
    let inside = bounds.lo.is_some_and(|lo| lo >= lowest) && bounds.hi.is_some_and(|hi| hi < end);
    inside && small && (den.is_one() || dtype.is_float())
}

fn unary(facts: &Facts, op: UnaryOp, x: &Exact, dtype: DType) -> Option<Exact> {
    let is_integer = x.den.is_one();
    match op {
        UnaryOp::Neg => {
            if dtype.is_float() && !facts.prove_ne(&x.num, &Dim::zero()).is_yes() {
                None
            } else {
                Some(Exact { num: -&x.num, den: x.den.clone() })
            }
        }
        UnaryOp::Abs => Some(Exact { num: Dim::max(&x.num, -&x.num), den: x.den.clone() }),
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc if is_integer => Some(x.clone()),
        UnaryOp::Floor => Some(x.num.floor_div(Dim::from(x.den.clone())).into()),
        UnaryOp::Ceil if facts.prove_le(&Dim::zero(), &x.num).is_yes() => {
            Some(x.num.ceil_div(Dim::from(x.den.clone())).into())
        }
        UnaryOp::Trunc if facts.prove_le(&Dim::zero(), &x.num).is_yes() => {
            Some(x.num.floor_div(Dim::from(x.den.clone())).into())
        }
        UnaryOp::Not if dtype == DType::Bool => Some((Dim::one() - &x.num).into()),
        UnaryOp::Not => Some((-&x.num - 1).into()).filter(|_| dtype.is_signed_int()),
        UnaryOp::IsNan | UnaryOp::IsInf => Some(false.into()),
        UnaryOp::Sqrt => square_root(facts, x),
        UnaryOp::Sign => {
            let sign = |answer: CompareOp| compare(facts, answer, x, &Dim::zero().into());
            match (sign(CompareOp::Gt), sign(CompareOp::Eq), sign(CompareOp::Lt)) {
                (Some(true), ..) => Some(Dim::one().into()),
                (_, Some(true), _) => Some(Dim::zero().into()),
                (.., Some(true)) => Some(Dim::from(-1).into()),
                _ => None,
            }
        }
        _ => None,
    }
}

fn binary(facts: &Facts, op: BinaryOp, x: &Exact, y: &Exact, dtype: DType) -> Option<Exact> {
    let (a, b, den) = aligned(x, y);
    let sum = |num: Dim| Some(Exact { num, den: den.clone() });
    let not_negative = |dim: &Dim| facts.prove_le(&Dim::zero(), dim).is_yes();
    let positive = |dim: &Dim| facts.prove_lt(&Dim::zero(), dim).is_yes();

    match op {
        BinaryOp::Add => sum(a + b),
        BinaryOp::Sub => sum(a - b),
        BinaryOp::Mul => Some(reduced(&x.num * &y.num, &x.den * &y.den)),
        BinaryOp::Min => sum(Dim::min(&a, b)),
        BinaryOp::Max => sum(Dim::max(&a, b)),
        BinaryOp::Div if dtype.is_float() => quotient(facts, &a, &b),
        BinaryOp::Div if not_negative(&a) && positive(&b) => Some(a.floor_div(b).into()),
        BinaryOp::Div if facts.divides(&b, &a).is_yes() && facts.prove_ne(&b, &Dim::zero()).is_yes() => {
            Some(a.floor_div(b).into())
        }
        BinaryOp::Rem if not_negative(&a) && positive(&b) => sum(a.modulo(b)),
        BinaryOp::Mod if facts.prove_ne(&b, &Dim::zero()).is_yes() && !dtype.is_float() => {
            Some(a.modulo(b).into())
        }
        BinaryOp::And if dtype == DType::Bool => Some((a * b).into()),
        BinaryOp::Or if dtype == DType::Bool => Some(Dim::max(&a, b).into()),
        BinaryOp::Pow if y.den.is_one() => power(x, y.num.as_i64()?),
        BinaryOp::Pow if y.num.as_int().is_some_and(One::is_one) && y.den == BigInt::from(2) => {
            square_root(facts, x)
        }
        _ => None,
    }
}

/// `a / b` if `b` is a constant: a power of two, or a divisor of `a`.
fn quotient(facts: &Facts, a: &Dim, b: &Dim) -> Option<Exact> {
    let divisor = b.as_int().filter(|divisor| divisor.is_positive())?;
    if facts.divides(b, a).is_yes() {
        return Some(a.floor_div(b.clone()).into());
    }
    let shift = divisor.trailing_zeros()?;
    (BigInt::one() << shift == *divisor).then(|| reduced(a.clone(), divisor.clone()))
}

fn power(x: &Exact, exponent: i64) -> Option<Exact> {
    if !(0..=16).contains(&exponent) {
        return None;
    }
    let num = Dim::product((0..exponent).map(|_| x.num.clone()));
    Some(Exact { num, den: x.den.pow(exponent as u32) })
}

/// The root of a square: of a constant, or of a product in which each factor occurs an even number of times.
fn square_root(facts: &Facts, x: &Exact) -> Option<Exact> {
    let den = whole_root(&x.den)?;
    let num = match x.num.node() {
        Node::Int(value) => whole_root(value)?.into(),
        Node::Mul(factors) => {
            let mut factors = factors.clone();
            let mut root = Dim::one();
            while let Some(factor) = factors.pop() {
                match factor.as_int() {
                    Some(value) => root = root * Dim::from(whole_root(value)?),
                    None => {
                        let twin = factors.iter().position(|other| *other == factor)?;
                        factors.swap_remove(twin);
                        root = root * factor;
                    }
                }
            }
            root
        }
        _ => return None,
    };
    facts.prove_le(&Dim::zero(), &num).is_yes().then_some(Exact { num, den })
}

/// The root of the square of an integer.
fn whole_root(value: &BigInt) -> Option<BigInt> {
    let root = (!value.is_negative()).then(|| value.sqrt())?;
    (&root * &root == *value).then_some(root)
}

fn compare(facts: &Facts, op: CompareOp, x: &Exact, y: &Exact) -> Option<bool> {
    let (a, b, _) = aligned(x, y);
    let decide = |yes: bool, no: bool| match (yes, no) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };

    let eq = || facts.prove_eq(&a, &b).is_yes();
    let ne = || facts.prove_ne(&a, &b).is_yes();
    let lt = |a: &Dim, b: &Dim| facts.prove_lt(a, b).is_yes();
    let le = |a: &Dim, b: &Dim| facts.prove_le(a, b).is_yes();
    match op {
        CompareOp::Eq => decide(eq(), ne()),
        CompareOp::Ne => decide(ne(), eq()),
        CompareOp::Lt => decide(lt(&a, &b), le(&b, &a)),
        CompareOp::Le => decide(le(&a, &b), lt(&b, &a)),
        CompareOp::Gt => decide(lt(&b, &a), le(&a, &b)),
        CompareOp::Ge => decide(le(&b, &a), lt(&a, &b)),
    }
}

fn cast(facts: &Facts, to: DType, x: &Exact) -> Option<Exact> {
    match to {
        DType::Bool => compare(facts, CompareOp::Ne, x, &Dim::zero().into()).map(Exact::from),
        _ if to.is_float() || x.den.is_one() => Some(x.clone()),
        // Conversion to an integer truncates, which equals the floor of a value that isn't negative.
        _ => unary(facts, UnaryOp::Trunc, x, DType::F64),
    }
}

fn combine(op: ReduceOp, x: &Exact, y: &Exact) -> Option<Exact> {
    let (a, b, den) = aligned(x, y);
    let num = match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Prod => return Some(reduced(&x.num * &y.num, &x.den * &y.den)),
        ReduceOp::Min => Dim::min(&a, b),
        ReduceOp::Max => Dim::max(&a, b),
    };
    Some(Exact { num, den })
}

fn neutral(op: ReduceOp) -> Option<Exact> {
    match op {
        ReduceOp::Sum => Some(Dim::zero().into()),
        ReduceOp::Prod => Some(Dim::one().into()),
        ReduceOp::Min | ReduceOp::Max => None,
    }
}

/// Both numerators over the larger denominator.
fn aligned(x: &Exact, y: &Exact) -> (Dim, Dim, BigInt) {
    let den = (&x.den).max(&y.den).clone();
    let scale = |e: &Exact| match &den / &e.den {
        one if one.is_one() => e.num.clone(),
        by => &e.num * Dim::from(by),
    };
    (scale(x), scale(y), den)
}

/// `num / den` in lowest terms if `num` is a constant.
fn reduced(num: Dim, den: BigInt) -> Exact {
    let Some(value) = num.as_int() else { return Exact { num, den } };
    let by = num_integer::gcd(value.clone(), den.clone());
    if by.is_zero() { Exact { num, den } } else { Exact { num: (value / &by).into(), den: den / by } }
}
