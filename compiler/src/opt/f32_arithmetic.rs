//! Computes with `f32` where a model has `f16` or `bf16`.
//!
//! The result of an arithmetic operator is computed in `f32`. It is rounded where it is stored as a short float: in
//! outputs, in operands of operators that only move elements, and in casts that the model itself has. Every rounding
//! that is left out makes a result more exact. Operators whose results are positions (sorting, the largest element)
//! compare rounded values, as they would without the pass.
//!
//! Constants become `f32` at compile time, but for tables that are only looked up. Inputs are converted where they are
//! read.

use super::rebuild::rebuild;
use crate::{
    error::{Error, Result},
    graph::{Graph, Node, Op, ScatterMode, Value},
    scalar::{Body, Reg, Scalar, Step},
    tensor::Tensor,
};
use std::collections::HashMap;
use symshape::Dim;
use symshape_runtime::DType;

/// Runs the pass.
///
/// # Errors
/// None.
pub(crate) fn f32_arithmetic(graph: &mut Graph) -> Result<()> {
    if !graph.values.values().any(|value| is_short(value.ty.dtype)) {
        return Ok(());
    }

    let mut wide = WideValues::default();
    rebuild(graph, |new, node| wide.rewritten(new, node))?;
    super::dead::dead(graph)
}

fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Whether a view may have fewer elements than its operand.
fn shrinks(graph: &Graph, value: Value) -> bool {
    let elems = |value: Value| graph.shape(value).iter().fold(Dim::one(), |elems, dim| elems * dim);
    let operand = graph.operands(value)[0];
    !graph.facts.prove_le(&elems(operand), &elems(value)).is_yes()
}

/// An operator that moves elements, for `f32`.
fn wide_op(op: &Op) -> Op {
    match op {
        Op::Pad { lo, hi, value } => {
            let value = Scalar::from_f64(DType::F32, value.as_f64());
            Op::Pad { lo: lo.clone(), hi: hi.clone(), value }
        }
        op => op.clone(),
    }
}

/// The `f32` forms of values of the new graph.
#[derive(Default)]
struct WideValues {
    /// The values before rounding.
    computed: HashMap<Value, Value>,
    /// Casts of the values themselves.
    casts: HashMap<Value, Value>,
}

impl WideValues {
    /// The replacement of a node that computes with short floats.
    fn rewritten(&mut self, new: &mut Graph, node: &Node) -> Result<Option<Vec<Value>>> {
        let has_short_operand = node.operands.iter().any(|value| is_short(new.dtype(*value)));
        let result = match &node.op {
            Op::Map(body) if body.types().into_iter().any(is_short) => self.map(new, node, body)?,
            _ if !has_short_operand => return Ok(None),
            Op::Contraction { lhs, rhs, out, dtype, precision } => {
                let (lhs, rhs, out) = (lhs.clone(), rhs.clone(), out.clone());
                let op = Op::Contraction { lhs, rhs, out, dtype: wide_type(*dtype), precision: *precision };
                self.computed(new, op, node, *dtype)?
            }
            Op::Reduce { .. } | Op::Scan { .. } => {
                let dtype = new.dtype(node.operands[0]);
                self.computed(new, node.op.clone(), node, dtype)?
            }
            Op::Scatter { mode, .. } if *mode != ScatterMode::Assign => {
                let dtype = new.dtype(node.operands[0]);
                self.computed(new, node.op.clone(), node, dtype)?
            }
            Op::View { .. } | Op::Pad { .. } | Op::Concat { .. } | Op::Gather { .. } | Op::Scatter { .. } => {
                self.moved(new, node)?
            }
            _ => return Ok(None),
        };
        Ok(Some(vec![result]))
    }

    /// The `f32` form of a value; other types stay.
    fn of(&mut self, new: &mut Graph, value: Value) -> Result<Value> {
        if !is_short(new.dtype(value)) {
            return Ok(value);
        }
        if let Some(wide) = self.computed.get(&value).or(self.casts.get(&value)) {
            return Ok(*wide);
        }
        let wide = match new.op(value) {
            Op::Const(tensor) => {
                let elems: Vec<f32> =
                    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64() as f32).collect();
                let tensor = Tensor::from_f32(tensor.shape().to_vec(), &elems);
                new.constant(tensor.ok_or_else(|| Error::internal("a constant of another size"))?)?
            }
            // Fewer elements are converted before they are padded and repeated, for instance by windows.
            Op::Pad { .. } | Op::View { .. }
                if new.viewed_constant(value).is_some() || !shrinks(new, value) =>
            {
                let op = wide_op(new.op(value));
                let operand = new.operands(value)[0];
                let operand = self.of(new, operand)?;
                new.push(op, &[operand])?
            }
            _ => new.cast(DType::F32, value)?,
        };
        self.casts.insert(value, wide);
        Ok(wide)
    }

    /// The result of `op` on the `f32` forms of the operands, as a value of type `dtype`.
    fn computed(&mut self, new: &mut Graph, op: Op, node: &Node, dtype: DType) -> Result<Value> {
        let operands: Vec<Value> =
            node.operands.iter().map(|value| self.of(new, *value)).collect::<Result<_>>()?;
        let wide = new.push(op, &operands)?;
        self.rounded(new, wide, dtype)
    }

    fn rounded(&mut self, new: &mut Graph, wide: Value, dtype: DType) -> Result<Value> {
        if new.dtype(wide) == dtype {
            return Ok(wide);
        }
        let short = new.cast(dtype, wide)?;
        self.computed.insert(short, wide);
        Ok(short)
    }

    /// Moves the elements. If those of all operands have an unrounded form, that form is moved too.
    fn moved(&mut self, new: &mut Graph, node: &Node) -> Result<Value> {
        let short = new.push(node.op.clone(), &node.operands)?;
        let form = |value: &Value| match self.computed.get(value) {
            None if is_short(new.dtype(*value)) => None,
            wide => Some(*wide.unwrap_or(value)),
        };
        let Some(operands) = node.operands.iter().map(form).collect::<Option<Vec<Value>>>() else {
            return Ok(short);
        };

        let wide = new.push(wide_op(&node.op), &operands)?;
        self.computed.insert(short, wide);
        Ok(short)
    }

    /// The map whose registers hold `f32` in place of short floats.
    fn map(&mut self, new: &mut Graph, node: &Node, body: &Body) -> Result<Value> {
        let operands: Vec<Value> =
            node.operands.iter().map(|value| self.of(new, *value)).collect::<Result<_>>()?;
        let types = body.types();
        let dtype = types[body.result.0 as usize];
        let mut wide = WideBody::new(&types, body.params.len());
        for (step, dtype) in body.steps.iter().zip(&types[body.params.len()..]) {
            wide.push(step, *dtype);
        }

        let (value, result) = wide.result(body.result);
        let steps = wide.steps;
        let params = body.params.iter().map(|dtype| wide_type(*dtype)).collect();
        let is_rounded = result == Rounding::Rounded;
        let value = new.push(Op::Map(Body { params, steps, result: value }), &operands)?;
        // The value is a cast that the model has.
        if is_rounded { Ok(value) } else { self.rounded(new, value, dtype) }
    }
}

fn wide_type(dtype: DType) -> DType {
    if is_short(dtype) { DType::F32 } else { dtype }
}

/// Whether the result of a map has been rounded to its type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// The result is a short float.
    Rounded,
    /// The result is an `f32`, or its type is not a short float.
    Unrounded,
}

/// A body under construction, and the form of each register of the old one.
struct WideBody {
    types: Vec<DType>,
    n_params: usize,
    steps: Vec<Step>,
    /// The register that holds the value in `f32`, or in its own type if that is not a short float.
    regs: Vec<Reg>,
    /// The register that holds the value rounded to its type, if the old body rounds it by a cast.
    short: Vec<Option<Reg>>,
}

impl WideBody {
    fn new(types: &[DType], n_params: usize) -> WideBody {
        let regs = (0..n_params as u32).map(Reg).collect();
        WideBody { types: types.to_vec(), n_params, steps: Vec::new(), regs, short: vec![None; n_params] }
    }

    fn emit(&mut self, step: Step) -> Reg {
        self.steps.push(step);
        Reg((self.n_params + self.steps.len() - 1) as u32)
    }

    /// The register that holds a short float in its own type.
    fn short(&mut self, reg: Reg) -> Reg {
        let idx = reg.0 as usize;
        if !is_short(self.types[idx]) {
            return self.regs[idx];
        }
        match self.short[idx] {
            Some(short) => short,
            None => {
                let wide = self.regs[idx];
                self.emit(Step::Cast(self.types[idx], wide))
            }
        }
    }

    /// Appends a step of the old body whose result has this type.
    fn push(&mut self, step: &Step, dtype: DType) {
        let wide = |reg: &Reg, regs: &[Reg]| regs[reg.0 as usize];
        let short = match step {
            Step::Const(value) if is_short(dtype) => {
                let reg = self.emit(Step::Const(Scalar::from_f64(DType::F32, value.as_f64())));
                self.regs.push(reg);
                self.short.push(None);
                return;
            }
            Step::Cast(to, x) if is_short(*to) && *to != self.types[x.0 as usize] => {
                let x = wide(x, &self.regs);
                Some(self.emit(Step::Cast(*to, x)))
            }
            Step::Bits(to, x) => {
                let x = self.short(*x);
                let bits = self.emit(Step::Bits(*to, x));
                if !is_short(*to) {
                    self.regs.push(bits);
                    self.short.push(None);
                    return;
                }
                Some(bits)
            }
            _ => None,
        };

        let reg = match (short, step) {
            (Some(short), _) => self.emit(Step::Cast(DType::F32, short)),
            // The value is an `f32` already.
            (None, Step::Cast(to, x)) if wide_type(*to) == wide_type(self.types[x.0 as usize]) => {
                wide(x, &self.regs)
            }
            (None, step) => {
                let operands: Vec<Reg> = step.operands().iter().map(|reg| wide(reg, &self.regs)).collect();
                let step = step.with(&operands).expect("as many operands as before");
                self.emit(step)
            }
        };
        self.regs.push(reg);
        self.short.push(short);
    }

    /// The register of the result and its form.
    fn result(&self, reg: Reg) -> (Reg, Rounding) {
        match self.short[reg.0 as usize] {
            Some(short) => (short, Rounding::Rounded),
            None => (self.regs[reg.0 as usize], Rounding::Unrounded),
        }
    }
}
