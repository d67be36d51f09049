//! Builds a [`Graph`]: appends nodes, infers their types, and expresses broadcasting as views.
//!
//! [`Graph::push`] takes any core operator, and all other methods are composed of it. An operator requires relations
//! between its operands' dims, such as equality. A relation that can be proven is dropped. One that cannot be decided
//! is assumed and added to [`Graph::constraints`], so that the contract check of the artefact enforces it. A
//! contradiction is an error that names both sides. The resulting graph is well-formed in the sense of
//! [`super::verify`].

mod compose;
mod control;
mod elementwise;
mod movement;
mod reshape;

pub use control::{Captured, LoopBody, LoopResults, declare_counter, declare_data_dependent};
pub(crate) use elementwise::shape_text;

use super::{Graph, MAX_RANK, Node, Op, Type, Value, ValueData, axis, infer};
use crate::{
    error::{At, Error, ErrorKind, Result},
    scalar::Scalar,
    tensor::Tensor,
};
use symshape::{Assumption, Declaration, Dim, Facts, Relation};
use symshape_runtime::DType;

/// Rejects tensors of more than [`MAX_RANK`] axes.
pub(crate) fn check_rank(rank: usize) -> Result<()> {
    if rank <= MAX_RANK {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Limit, format!("a tensor of {rank} axes; the limit is {MAX_RANK}")))
}

impl Graph {
    /// Appends a node and returns its first result.
    ///
    /// # Errors
    /// The operands don't fit the operator. The error is located at [`Graph::origin`].
    pub fn push(&mut self, op: Op, operands: &[Value]) -> Result<Value> {
        Ok(self.push_multi(op, operands)?[0])
    }

    /// Appends a node and returns all its results.
    ///
    /// # Errors
    /// As [`Graph::push`].
    pub fn push_multi(&mut self, op: Op, operands: &[Value]) -> Result<Vec<Value>> {
        let origin = self.origin.clone();
        let name = op.name();
        let located = |error: Error| {
            if origin.is_empty() { error.at(name) } else { error.at(origin.clone()) }
        };
        self.try_push(op, operands).map_err(located)
    }

    fn try_push(&mut self, op: Op, operands: &[Value]) -> Result<Vec<Value>> {
        let op = self.simplify_op(op);
        self.require_all(infer::requirements(self, &op, operands)?)?;

        let types = infer::types(self, &op, operands)?;
        types.iter().try_for_each(|ty| check_rank(ty.shape.len()))?;
        self.require_all(infer::size_requirements(self, &op, operands, &types))?;
        self.require_all(infer::address_requirements(self, &op, operands))?;

        let contents = infer::contents(self, &op, operands, &types[0]);
        Ok(self.define(op, operands.to_vec(), types, contents))
    }

    pub(crate) fn define(
        &mut self,
        op: Op,
        operands: Vec<Value>,
        types: Vec<Type>,
        contents: Option<Vec<Dim>>,
    ) -> Vec<Value> {
        let def = self.nodes.next_key();
        let mut contents = Some(contents);
        let results: Vec<Value> = types
            .into_iter()
            .map(|ty| self.values.push(ValueData { ty, def, contents: contents.take().flatten() }))
            .collect();
        self.nodes.push(Node { op, operands, results: results.clone(), origin: self.origin.clone() });
        results
    }

    /// The operator with its sizes and index expressions simplified by the facts.
    fn simplify_op(&self, mut op: Op) -> Op {
        for size in op.sizes_mut() {
            *size = self.facts.simplify(size);
        }

        match &mut op {
            Op::Index { shape, expr, .. } => *expr = self.index_facts(shape).simplify(expr),
            Op::View { shape, index } => {
                // Each is simplified alone, because a view is recognised by the form of each expression.
                let facts = self.index_facts(shape);
                *index = index.iter().map(|expr| facts.simplify(expr)).collect();
            }
            _ => {}
        }
        op
    }

    /// The facts inside a tensor of this shape, where `$k` is an index along axis `k`.
    pub fn index_facts(&self, shape: &[Dim]) -> Facts {
        let mut facts = self.facts.clone();
        for (k, extent) in shape.iter().enumerate() {
            facts.declare_index(&axis(k), extent);
        }
        facts
    }

    /// Whether `relation` is known to hold: it is proven, or it was assumed or required in this form.
    pub fn holds(&self, relation: &Relation) -> bool {
        let mut stated = self.facts.assumptions().iter().chain(&self.constraints);
        self.facts.prove(relation).is_yes() || stated.any(|assumed| assumed.relation == *relation)
    }

    /// Ensures that `relation` holds: proves it, or assumes it and adds it to [`Graph::constraints`].
    ///
    /// A requirement on a data-dependent symbol is checked when the symbol is bound, and does not become a fact. The
    /// code that runs before, and the memory plan, must not rely on it.
    ///
    /// # Errors
    /// It contradicts a fact; `context` describes the relation.
    pub fn require(&mut self, relation: Relation, context: &str) -> Result<()> {
        if self.holds(&relation) {
            return Ok(());
        }
        let origin =
            if self.origin.is_empty() { context.to_string() } else { format!("{}: {context}", self.origin) };

        // A rejected assumption must not change the facts.
        let mut facts = self.facts.clone();
        facts.assume(relation.clone(), &origin).map_err(|error| Error::invalid(error.to_string()))?;
        if !self.is_data_dependent(&relation.a) && !self.is_data_dependent(&relation.b) {
            self.facts = facts;
        }
        self.constraints.push(Assumption { relation, origin: origin.into() });
        Ok(())
    }

    fn require_all(&mut self, requirements: Vec<infer::Requirement>) -> Result<()> {
        requirements.into_iter().try_for_each(|required| self.require(required.relation, &required.context))
    }

    /// Declares a symbol, for the shapes of inputs.
    ///
    /// # Errors
    /// The declarations of the symbol leave no value.
    pub fn symbol(&mut self, name: &str, declaration: Declaration) -> Result<Dim> {
        let symbol = symshape::Symbol::new(name);
        self.facts.declare(&symbol, declaration).map_err(|error| Error::invalid(error.to_string()))?;
        Ok(Dim::from(&symbol))
    }

    /// Adds an input. New symbols are appended to [`Graph::symbols`], and declared as non-negative unless they have a
    /// declaration.
    ///
    /// # Errors
    /// A second input of this name, or a negative dim.
    pub fn input(&mut self, name: &str, dtype: DType, shape: Vec<Dim>) -> Result<Value> {
        if self.inputs.iter().any(|(other, _)| other == name) {
            return Err(Error::invalid(format!("duplicate input name `{name}`")));
        }

        check_rank(shape.len()).at(|| format!("input `{name}`"))?;
        self.register_symbols(&shape).at(|| format!("input `{name}`"))?;

        // Dims stay as declared, because they define how a call binds the symbols.
        for (k, dim) in shape.iter().enumerate() {
            if dim.as_int().is_some_and(|size| size.sign() == num_bigint::Sign::Minus) {
                return Err(Error::invalid(format!("input `{name}` axis {k} has size {dim}")));
            }
        }

        let index = self.inputs.len() as u32;
        let value = self.define(Op::Input(index), Vec::new(), vec![Type { dtype, shape }], None)[0];
        self.inputs.push((name.to_string(), value));

        Ok(value)
    }

    fn register_symbols(&mut self, shape: &[Dim]) -> Result<()> {
        for symbol in shape.iter().flat_map(Dim::symbols) {
            if !self.symbols.contains(&symbol) {
                self.symbols.push(symbol.clone());
            }
            if self.facts.declaration(&symbol).is_none() {
                let declared = self.facts.declare(&symbol, Declaration::at_least(0));
                declared.map_err(|error| Error::invalid(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Makes `value` an output.
    ///
    /// # Errors
    /// A second output of this name.
    pub fn output(&mut self, name: &str, value: Value) -> Result<()> {
        if self.outputs.iter().any(|(other, _)| other == name) {
            return Err(Error::invalid(format!("duplicate output name `{name}`")));
        }
        self.outputs.push((name.to_string(), value));
        Ok(())
    }

    /// Adds a constant.
    ///
    /// # Errors
    /// None for any tensor; the signature is that of [`Graph::push`].
    pub fn constant(&mut self, tensor: Tensor) -> Result<Value> {
        self.push(Op::Const(tensor), &[])
    }

    /// Adds a constant of rank 0.
    ///
    /// # Errors
    /// As [`Graph::constant`].
    pub fn scalar(&mut self, value: Scalar) -> Result<Value> {
        let tensor = Tensor::from_scalars(value.dtype(), Vec::new(), &[value]);
        self.constant(tensor.expect("rank 0 holds one element"))
    }

    /// Adds `value` as a constant of rank 0 and this type, see [`Scalar::from_f64`].
    ///
    /// # Errors
    /// As [`Graph::constant`].
    pub fn number(&mut self, dtype: DType, value: f64) -> Result<Value> {
        self.scalar(Scalar::from_f64(dtype, value))
    }

    /// `out[$k…] = expr` as integers of type `dtype`.
    ///
    /// # Errors
    /// `dtype` is not an integer type, or `expr` contains an axis that `shape` lacks.
    pub fn index(&mut self, dtype: DType, shape: Vec<Dim>, expr: Dim) -> Result<Value> {
        self.push(Op::Index { dtype, shape, expr }, &[])
    }

    /// The one-dimensional `i64` tensor of these elements.
    ///
    /// # Errors
    /// As [`Graph::push`].
    pub fn dims(&mut self, dims: &[Dim]) -> Result<Value> {
        if dims.is_empty() {
            return self.constant(Tensor::from_i64(vec![0], &[]).expect("no elements"));
        }

        let mut parts = Vec::new();
        for run in dims.chunk_by(|a, b| a.as_i64().is_some() && b.as_i64().is_some()) {
            let constants: Option<Vec<i64>> = run.iter().map(Dim::as_i64).collect();
            let part = match constants {
                Some(elems) => {
                    let tensor = Tensor::from_i64(vec![elems.len()], &elems);
                    self.constant(tensor.expect("the shape has this number of elements"))?
                }
                None => self.index(DType::I64, vec![Dim::one()], run[0].clone())?,
            };
            parts.push(part);
        }

        self.concat(&parts, 0)
    }

    /// `dim` as a tensor of rank 0 and type `dtype`. A float type rounds it.
    ///
    /// # Errors
    /// As [`Graph::push`].
    pub fn dim(&mut self, dtype: DType, dim: Dim) -> Result<Value> {
        if let Some(value) = dim.as_i64() {
            return self.scalar(Scalar::from_i64(dtype, value));
        }
        let value = self.index(DType::I64, Vec::new(), dim)?;
        self.cast(dtype, value)
    }
}
