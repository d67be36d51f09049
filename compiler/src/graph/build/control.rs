//! Data-dependent symbols, and the nested graphs of branches and loops.

use crate::{
    error::{Error, Result},
    graph::{Graph, Op, Type, Value},
    scalar::Scalar,
};
use num_bigint::BigInt;
use symshape::{Declaration, Dim, Facts, Symbol};
use symshape_runtime::DType;

/// Declares a data-dependent symbol between `lo` and `hi`. It has a constant upper bound if the symbols in `hi` have
/// one.
///
/// # Errors
/// The symbol is declared already.
pub fn declare_data_dependent(facts: &mut Facts, symbol: &Symbol, lo: &Dim, hi: &Dim) -> Result<()> {
    let min = facts.bounds(lo).lo.unwrap_or(BigInt::ZERO);
    let declaration = match facts.bounds(hi).hi {
        Some(max) => Declaration::range(min.clone(), max.max(min)),
        None => Declaration::at_least(min),
    };
    let declared = facts.declare(symbol, declaration);
    declared.map_err(|error| Error::invalid(error.to_string()))?;
    facts.declare_between(symbol, lo, hi);
    Ok(())
}

impl Graph {
    /// The value of `value`, an integer of one element, as a dim. The dim is `symbol`, which is data-dependent and in
    /// `lo..=hi`, or another expression if the value is known.
    ///
    /// # Errors
    /// The symbol is in use, or the value is not a single integer.
    pub fn bind(
        &mut self,
        symbol: &Symbol,
        value: Value,
        lo: impl Into<Dim>,
        hi: impl Into<Dim>,
    ) -> Result<Dim> {
        if let Some([dim]) = self.contents(value) {
            return Ok(dim.clone());
        }
        let value = self.reshape(value, Vec::new())?;
        let value = self.cast(DType::I64, value)?;
        let lo = self.facts.simplify(&lo.into());
        let hi = self.facts.simplify(&hi.into());
        if self.facts.prove_eq(&lo, &hi).is_yes() {
            declare_data_dependent(&mut self.facts, symbol, &lo, &hi)?;
            self.data_dependent.push(symbol.clone());
            self.push(Op::Bind { symbol: symbol.clone(), lo: lo.clone(), hi }, &[value])?;
            return Ok(lo);
        }

        // After the check, the range is not empty.
        let above =
            if self.facts.prove_le(&lo, &hi).is_yes() { hi.clone() } else { Dim::max(&lo, hi.clone()) };
        declare_data_dependent(&mut self.facts, symbol, &lo, &above)?;
        self.data_dependent.push(symbol.clone());
        self.push(Op::Bind { symbol: symbol.clone(), lo, hi }, &[value])?;
        Ok(self.facts.simplify(&Dim::from(symbol)))
    }

    /// An upper bound of `dim` over the model's symbols only, with each data-dependent symbol at its own bound. `None`
    /// if it has none.
    pub fn upper_bound(&self, dim: &Dim) -> Option<Dim> {
        let mut bound = dim.clone();
        // Bounds can refer to symbols that were bound before.
        for node in self.nodes.values().rev() {
            if let Op::Bind { symbol, hi, .. } = &node.op
                && bound.contains(symbol)
            {
                bound = bound.substitute(&|other| (other == symbol).then(|| hi.clone()));
            }
        }

        if bound == *dim {
            return Some(bound);
        }
        let bound = self.facts.simplify(&bound);

        // Substituting the bounds is valid if the dim grows with each symbol.
        if self.facts.prove_le(dim, &bound).is_yes() {
            Some(bound)
        } else {
            self.facts.bounds(dim).hi.map(Dim::from)
        }
    }

    /// An empty graph for a region of this one, with the same symbols and facts.
    pub fn region(&self, name: &str) -> Graph {
        Graph {
            name: name.to_string(),
            symbols: self.symbols.iter().chain(&self.data_dependent).cloned().collect(),
            facts: self.facts.clone(),
            origin: self.origin.clone(),
            ..Graph::default()
        }
    }

    /// Adds an input to a region that takes values of this type, whose elements may be known.
    pub fn region_input(&mut self, ty: Type, contents: Option<Vec<Dim>>) -> Value {
        let number = self.inputs.len() as u32;
        let name = format!("in{number}");
        let value = self.define(Op::Input(number), Vec::new(), vec![ty], contents)[0];
        self.inputs.push((name, value));
        value
    }

    /// Emits a loop of at most `max_iterations` iterations, which continues while the first value that `body` returns
    /// is true. The `carried` values are passed from one iteration to the next, and each iteration returns slices,
    /// which are collected. In `body`, `counter` is the index of the iteration. The body's arguments are the carried
    /// values and the values `given` here.
    ///
    /// Returns the number of iterations, the carried values, and the slices, with space for `max_iterations`.
    ///
    /// # Errors
    /// Those of `body`, and values whose types change from one iteration to the next.
    pub fn iterate(
        &mut self,
        counter: &Symbol,
        max_iterations: &Dim,
        [carried, given]: [&[Value]; 2],
        body: impl FnOnce(&mut Graph, &[Value], &[Value]) -> Result<LoopBody>,
    ) -> Result<LoopResults> {
        let mut region = self.region("body");
        declare_counter(&mut region, counter, max_iterations)?;
        let inputs: Vec<Value> =
            carried.iter().map(|value| region.region_input(self.ty(*value).clone(), None)).collect();
        let mut captured = Captured::default();
        let given: Vec<Value> =
            given.iter().map(|value| captured.take(self, &mut region, *value)).collect::<Result<_>>()?;
        let round = body(&mut region, &inputs, &given)?;
        let again = match round.again {
            Some(again) => again,
            None => region.scalar(Scalar::bool(true))?,
        };
        for (k, value) in [again].iter().chain(&round.next).chain(&round.slices).enumerate() {
            region.output(&format!("out{k}"), *value)?;
        }
        let count = self.dim(DType::I64, max_iterations.clone())?;
        let yes = self.scalar(Scalar::bool(true))?;
        let operands = [&[count, yes], carried, &captured.operands[..]].concat();
        let count = carried.len();
        let op = Op::Loop {
            counter: counter.clone(),
            max_iterations: max_iterations.clone(),
            carried: count,
            body: Box::new(region),
        };

        let mut results = self.push_multi(op, &operands)?;
        let slices = results.split_off(1 + count);
        let rounds = results.remove(0);
        Ok(LoopResults { rounds, carried: results, slices })
    }
}

/// The results of an iteration.
#[derive(Default)]
pub struct LoopBody {
    /// Whether the loop continues, within the bound. Always, if absent.
    pub again: Option<Value>,
    /// The carried values for the next iteration.
    pub next: Vec<Value>,
    /// The values that are collected.
    pub slices: Vec<Value>,
}

/// The results of a loop.
pub struct LoopResults {
    /// The number of completed iterations.
    pub rounds: Value,
    /// The final carried values.
    pub carried: Vec<Value>,
    /// The collected slices.
    pub slices: Vec<Value>,
}

/// Declares the index of an iteration within a loop's body.
///
/// # Errors
/// The bound has no upper bound.
pub fn declare_counter(region: &mut Graph, counter: &Symbol, max_iterations: &Dim) -> Result<()> {
    declare_data_dependent(&mut region.facts, counter, &Dim::zero(), &(max_iterations - 1))?;
    region.symbols.push(counter.clone());
    Ok(())
}

/// The values that a region uses from the graph around it. Constants are copied, and other values become inputs.
#[derive(Default)]
pub struct Captured {
    known: Vec<(Value, Value)>,
    /// The outer values of the region's inputs, in order.
    pub operands: Vec<Value>,
}

impl Captured {
    /// The counterpart in `inner` of `value` of `outer`.
    ///
    /// # Errors
    /// As [`Graph::push`].
    pub fn take(&mut self, outer: &Graph, inner: &mut Graph, value: Value) -> Result<Value> {
        if let Some((_, known)) = self.known.iter().find(|(known, _)| *known == value) {
            return Ok(*known);
        }
        let own = match outer.op(value) {
            op @ (Op::Const(_) | Op::Index { .. }) => inner.push(op.clone(), &[])?,
            op @ Op::View { .. } if outer.viewed_constant(value).is_some() => {
                let shown = self.take(outer, inner, outer.operands(value)[0])?;
                inner.push(op.clone(), &[shown])?
            }
            _ => {
                self.operands.push(value);
                inner.region_input(outer.ty(value).clone(), outer.contents(value).map(<[Dim]>::to_vec))
            }
        };

        self.known.push((value, own));
        Ok(own)
    }
}
