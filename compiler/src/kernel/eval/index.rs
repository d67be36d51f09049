//! Index expressions, compiled for repeated evaluation.

use crate::error::{Error, Result};
use std::{collections::HashMap, rc::Rc};
use symshape::{Dim, Node, Symbol};

/// A compiled [`Dim`]: its symbols are slots of a list of values.
pub(super) enum Index {
    Int(i64),
    Slot(usize),
    Add(Vec<Index>),
    Mul(Vec<Index>),
    FloorDiv(Box<[Index; 2]>),
    Mod(Box<[Index; 2]>),
    Min(Vec<Index>),
    Max(Vec<Index>),
}

impl Index {
    /// The value. `None` for a symbol without a value, an overflow, or a division by zero.
    fn eval(&self, values: &[Option<i64>]) -> Option<i64> {
        let of = |index: &Index| index.eval(values);
        match self {
            Index::Int(value) => Some(*value),
            Index::Slot(slot) => values[*slot],
            Index::Add(list) => list.iter().try_fold(0i64, |sum, index| sum.checked_add(of(index)?)),
            Index::Mul(list) => list.iter().try_fold(1i64, |product, index| product.checked_mul(of(index)?)),
            Index::FloorDiv(pair) => floor_div(of(&pair[0])?, of(&pair[1])?),
            Index::Mod(pair) => {
                let a = of(&pair[0])?;
                let b = of(&pair[1])?;
                a.checked_sub(floor_div(a, b)?.checked_mul(b)?)
            }
            Index::Min(list) => list.iter().try_fold(i64::MAX, |min, index| Some(min.min(of(index)?))),
            Index::Max(list) => list.iter().try_fold(i64::MIN, |max, index| Some(max.max(of(index)?))),
        }
    }
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    let rem = a.checked_rem(b)?;
    Some(if rem != 0 && (rem < 0) != (b < 0) { quotient - 1 } else { quotient })
}

/// Values of symbols, and the expressions compiled so far.
#[derive(Default)]
pub(super) struct Env {
    slots: HashMap<Symbol, usize>,
    values: Vec<Option<i64>>,
    compiled: HashMap<Dim, Rc<Index>>,
}

impl Env {
    fn slot(&mut self, symbol: &Symbol) -> usize {
        let next = self.values.len();
        let slot = *self.slots.entry(symbol.clone()).or_insert(next);
        if slot == next {
            self.values.push(None);
        }
        slot
    }

    pub(super) fn set(&mut self, symbol: &Symbol, value: i64) {
        let slot = self.slot(symbol);
        self.values[slot] = Some(value);
    }

    /// Compiles an expression. The result stays valid when values change.
    fn compile(&mut self, dim: &Dim) -> Result<Rc<Index>> {
        if let Some(index) = self.compiled.get(dim) {
            return Ok(index.clone());
        }
        let index = Rc::new(self.build(dim)?);
        self.compiled.insert(dim.clone(), index.clone());
        Ok(index)
    }

    fn build(&mut self, dim: &Dim) -> Result<Index> {
        let mut list = |list: &[Dim]| list.iter().map(|dim| self.build(dim)).collect::<Result<Vec<_>>>();
        Ok(match dim.node() {
            Node::Int(_) => Index::Int(dim.as_i64().ok_or_else(|| failed(dim))?),
            Node::Add(terms) => Index::Add(list(terms)?),
            Node::Mul(terms) => Index::Mul(list(terms)?),
            Node::Min(terms) => Index::Min(list(terms)?),
            Node::Max(terms) => Index::Max(list(terms)?),
            Node::FloorDiv(a, b) => Index::FloorDiv(Box::new([self.build(a)?, self.build(b)?])),
            Node::Mod(a, b) => Index::Mod(Box::new([self.build(a)?, self.build(b)?])),
            Node::Symbol(symbol) => Index::Slot(self.slot(symbol)),
        })
    }

    /// The value of a compiled expression; `dim` is its source, for the error.
    pub(super) fn eval_compiled(&self, index: &Index, dim: &Dim) -> Result<i64> {
        index.eval(&self.values).ok_or_else(|| failed(dim))
    }

    pub(super) fn eval(&mut self, dim: &Dim) -> Result<i64> {
        let index = self.compile(dim)?;
        self.eval_compiled(&index, dim)
    }
}

fn failed(dim: &Dim) -> Error {
    Error::invalid(format!("`{dim}` has no value in 64 bits here"))
}
