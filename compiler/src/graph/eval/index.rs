//! Compiles index expressions for one binding: affine ones to coefficients, others to a small postfix program.
//!
//! Walking an expression tree of big integers once per element would be too slow on real models, even for the reference
//! evaluator.

use super::binding::Binding;
use crate::{
    error::{Error, Result},
    graph::axis,
};
use num_traits::ToPrimitive;
use symshape::{Dim, Node, Symbol};

/// An index expression over the axes, with the model's symbols bound.
pub(super) enum Index {
    /// `base + Σ coefficient * $axis`
    Affine { base: i64, coefs: Vec<i64> },
    /// Any other expression.
    Program(Vec<Inst>),
}

/// One instruction on a stack of integers.
pub(super) enum Inst {
    Push(i64),
    Axis(usize),
    Add,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

impl Index {
    pub(super) fn new(dim: &Dim, rank: usize, binding: &Binding) -> Result<Index> {
        let bound = dim.substitute(&|symbol| binding.get(symbol).map(|value| Dim::from(*value)));
        if let Some((base, coefs)) = affine(&bound, rank) {
            return Ok(Index::Affine { base, coefs });
        }
        let mut program = Vec::new();
        compile(&bound, rank, &mut program)?;
        Ok(Index::Program(program))
    }

    pub(super) fn at(&self, at: &[usize], stack: &mut Vec<i64>) -> Result<i64> {
        match self {
            Index::Affine { base, coefs } => {
                Ok(coefs.iter().zip(at).fold(*base, |sum, (coef, idx)| sum + coef * *idx as i64))
            }
            Index::Program(program) => run(program, at, stack),
        }
    }
}

fn axis_index(symbol: &Symbol, rank: usize) -> Option<usize> {
    (0..rank).find(|k| axis(*k) == *symbol)
}

fn affine(dim: &Dim, rank: usize) -> Option<(i64, Vec<i64>)> {
    match dim.node() {
        Node::Int(value) => Some((value.to_i64()?, vec![0; rank])),
        Node::Symbol(symbol) => {
            let mut coefs = vec![0; rank];
            coefs[axis_index(symbol, rank)?] = 1;
            Some((0, coefs))
        }
        Node::Add(terms) => {
            let mut sum = (0i64, vec![0i64; rank]);
            for term in terms {
                let (base, coefs) = affine(term, rank)?;
                sum.0 = sum.0.checked_add(base)?;
                sum.1 = sum.1.iter().zip(&coefs).map(|(a, b)| a.checked_add(*b)).collect::<Option<_>>()?;
            }
            Some(sum)
        }
        Node::Mul(factors) => {
            let mut product = (1i64, vec![0i64; rank]);
            for factor in factors {
                let (base, coefs) = affine(factor, rank)?;
                let is_number = |coefs: &[i64]| coefs.iter().all(|coef| *coef == 0);
                let (scale, (base, coefs)) = match (is_number(&product.1), is_number(&coefs)) {
                    (true, _) => (product.0, (base, coefs)),
                    (_, true) => (base, product),
                    _ => return None,
                };
                let scaled = coefs.iter().map(|coef| coef.checked_mul(scale)).collect::<Option<_>>()?;
                product = (base.checked_mul(scale)?, scaled);
            }

            Some(product)
        }
        Node::FloorDiv(..) | Node::Mod(..) | Node::Min(_) | Node::Max(_) => None,
    }
}

fn compile(dim: &Dim, rank: usize, out: &mut Vec<Inst>) -> Result<()> {
    match dim.node() {
        Node::Int(value) => {
            let value =
                value.to_i64().ok_or_else(|| Error::invalid(format!("{value} does not fit in 64 bits")))?;
            out.push(Inst::Push(value));
        }
        Node::Symbol(symbol) => match axis_index(symbol, rank) {
            Some(k) => out.push(Inst::Axis(k)),
            None => return Err(Error::invalid(format!("the symbol {dim} has no value"))),
        },
        Node::Add(list) => fold(list, || Inst::Add, rank, out)?,
        Node::Mul(list) => fold(list, || Inst::Mul, rank, out)?,
        Node::Min(list) => fold(list, || Inst::Min, rank, out)?,
        Node::Max(list) => fold(list, || Inst::Max, rank, out)?,
        Node::FloorDiv(a, b) => pair(a, b, Inst::FloorDiv, rank, out)?,
        Node::Mod(a, b) => pair(a, b, Inst::Mod, rank, out)?,
    }
    Ok(())
}

fn fold(list: &[Dim], inst: fn() -> Inst, rank: usize, out: &mut Vec<Inst>) -> Result<()> {
    for (i, dim) in list.iter().enumerate() {
        compile(dim, rank, out)?;
        if i > 0 {
            out.push(inst());
        }
    }
    Ok(())
}

fn pair(a: &Dim, b: &Dim, inst: Inst, rank: usize, out: &mut Vec<Inst>) -> Result<()> {
    compile(a, rank, out)?;
    compile(b, rank, out)?;
    out.push(inst);
    Ok(())
}

fn run(program: &[Inst], at: &[usize], stack: &mut Vec<i64>) -> Result<i64> {
    stack.clear();
    for inst in program {
        let value = match inst {
            Inst::Push(value) => *value,
            Inst::Axis(k) => at[*k] as i64,
            _ => {
                let b = stack.pop().unwrap_or(0);
                let a = stack.pop().unwrap_or(0);
                apply(inst, a, b).ok_or_else(|| Error::invalid("an index divides by zero or overflows"))?
            }
        };
        stack.push(value);
    }

    Ok(stack.pop().unwrap_or(0))
}

fn apply(inst: &Inst, a: i64, b: i64) -> Option<i64> {
    match inst {
        Inst::Push(_) | Inst::Axis(_) => None,
        Inst::Add => a.checked_add(b),
        Inst::Mul => a.checked_mul(b),
        Inst::FloorDiv => (b != 0 && b != -1).then(|| num_integer::Integer::div_floor(&a, &b)),
        Inst::Mod => (b != 0 && b != -1).then(|| num_integer::Integer::mod_floor(&a, &b)),
        Inst::Min => Some(a.min(b)),
        Inst::Max => Some(a.max(b)),
    }
}

/// Calls `visit` with every index of a tensor of this shape, in row-major order.
pub(super) fn each(shape: &[usize], mut visit: impl FnMut(&[usize]) -> Result<()>) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }

    let mut at = vec![0; shape.len()];
    loop {
        visit(&at)?;
        let mut k = shape.len();
        loop {
            if k == 0 {
                return Ok(());
            }
            k -= 1;
            at[k] += 1;
            if at[k] < shape[k] {
                break;
            }
            at[k] = 0;
        }
    }
}

/// Elements from one index to the next along each axis of a dense tensor.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for k in (1..shape.len()).rev() {
        strides[k - 1] = strides[k] * shape[k];
    }
    strides
}
