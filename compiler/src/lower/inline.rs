//! Emits the value of a definition at an index as straight-line code. All values between roots are inlined this way.

use super::{
    buffers,
    index::substitute,
    lowering::{KernelScope, Lowering, node_name},
    storage::Storage,
};
use crate::{
    Error, Result,
    graph::{Coord, Graph, Op, Value},
    kernel::{Access, Check, Inst, InstSeq},
    scalar::{Body, Reg, Scalar, Step},
};
use std::collections::HashMap;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// Writes the code of one kernel body.
pub(super) struct Inliner<'l, 'g> {
    pub(super) lowering: &'l mut Lowering<'g>,
    pub(super) scope: &'l mut KernelScope,
    pub(super) code: InstSeq,
    /// The contraction whose epilogue this code is.
    pub(super) sum: Option<Value>,
    memo: HashMap<(Value, Vec<Dim>), Reg>,
    /// The registers that are checked to be below an extent, and the symbols that they are bound to.
    bound: Vec<(Reg, Dim, Symbol)>,
}

impl<'l, 'g> Inliner<'l, 'g> {
    pub(super) fn new(lowering: &'l mut Lowering<'g>, scope: &'l mut KernelScope) -> Self {
        let code = InstSeq::default();
        Inliner { lowering, scope, code, sum: None, memo: HashMap::new(), bound: Vec::new() }
    }

    /// The element of `value` at `index`: loaded if it is in memory, otherwise computed.
    pub(super) fn load(&mut self, value: Value, index: &[Dim]) -> Result<Reg> {
        match self.stored(value) {
            Some(storage) => Ok(self.memoised(value, index, |this| Ok(this.fetch(&storage, index)))?),
            None => self.define(value, index),
        }
    }

    /// The element of `value` at `index`, computed even if `value` is a root. This is the body of its kernel.
    pub(super) fn define(&mut self, value: Value, index: &[Dim]) -> Result<Reg> {
        self.memoised(value, index, |this| this.compute(value, index))
    }

    fn memoised(
        &mut self,
        value: Value,
        index: &[Dim],
        make: impl FnOnce(&mut Self) -> Result<Reg>,
    ) -> Result<Reg> {
        let key = (value, index.to_vec());
        if let Some(reg) = self.memo.get(&key) {
            return Ok(*reg);
        }
        let reg = make(self)?;
        self.memo.insert(key, reg);
        Ok(reg)
    }

    /// The memory of `value`, if it has memory and is already written.
    fn stored(&mut self, value: Value) -> Option<Storage> {
        if let Some(storage) = self.lowering.storage.get(&value) {
            return Some(storage.clone());
        }
        let tensor = self.lowering.graph.as_constant(value)?;
        if splat(tensor).is_some() {
            return None;
        }
        buffers::constant(self.lowering, value)
    }

    fn fetch(&mut self, storage: &Storage, index: &[Dim]) -> Reg {
        let access = self.simplified(storage.at(index));
        self.code.push(Inst::Load(access))
    }

    /// Stores `reg` at `index` of `storage`.
    pub(super) fn store(&mut self, storage: &Storage, index: &[Dim], reg: Reg) {
        let access = self.simplified(storage.at(index));
        self.code.push(Inst::Store(access, reg));
    }

    /// Stores `reg`, element `index` of `value`, in every tensor that contains `value`; in its own memory last.
    pub(super) fn store_everywhere(&mut self, value: Value, index: &[Dim], reg: Reg) {
        for place in buffers::take_further_places(self.lowering, value) {
            self.store(&place, index, reg);
        }
        let own = self.lowering.storage[&value].clone();
        self.store(&own, index, reg);
    }

    fn simplified(&self, access: Access) -> Access {
        Access { index: self.scope.facts.simplify(&access.index), ..access }
    }

    fn compute(&mut self, value: Value, index: &[Dim]) -> Result<Reg> {
        if self.sum == Some(value) {
            return Ok(self.code.push(Inst::Sum));
        }

        let graph: &'g Graph = self.lowering.graph;
        let operands = graph.operands(value);

        match graph.op(value) {
            Op::Map(body) => {
                let params = operands.iter().map(|operand| self.load(*operand, index));
                let params = params.collect::<Result<Vec<_>>>()?;
                Ok(self.body(body, &params))
            }
            Op::View { index: map, .. } => {
                let index = self.simplify_all(&substitute(map, index));
                self.load(operands[0], &index)
            }
            Op::Index { dtype, expr, .. } => {
                let expr = self.simplify_all(&substitute(std::slice::from_ref(expr), index)).remove(0);
                Ok(self.code.push(Inst::Index(*dtype, expr)))
            }
            Op::Const(tensor) => {
                let value = splat(tensor).ok_or_else(|| Error::internal("the constant has no memory"))?;
                Ok(self.code.push(Inst::Const(value)))
            }
            Op::Gather { coords, .. } => {
                let index = self.coords(value, coords, index)?;
                self.load(operands[0], &index)
            }
            op => Err(Error::internal(format!("`{}` cannot be inlined", op.name()))),
        }
    }

    fn simplify_all(&self, exprs: &[Dim]) -> Vec<Dim> {
        exprs.iter().map(|expr| self.scope.facts.simplify(expr)).collect()
    }

    /// The coordinates into operand 0 of `value`. Loaded ones are checked against its shape and bound to fresh symbols.
    pub(super) fn coords(&mut self, value: Value, coords: &[Coord], index: &[Dim]) -> Result<Vec<Dim>> {
        let graph: &'g Graph = self.lowering.graph;
        let operands = graph.operands(value);
        let extents = graph.shape(operands[0]);

        let mut result = Vec::with_capacity(coords.len());
        for (axis, coord) in coords.iter().enumerate() {
            result.push(match coord {
                Coord::At(expr) => {
                    self.simplify_all(&substitute(std::slice::from_ref(expr), index)).remove(0)
                }
                Coord::Load { operand, at } => {
                    let at = self.simplify_all(&substitute(at, index));
                    let loaded = self.load(operands[*operand], &at)?;
                    let context = format!("{}, axis {axis}", node_name(graph, value));
                    Dim::from(self.bind(loaded, graph.dtype(operands[*operand]), &extents[axis], context))
                }
            });
        }

        Ok(result)
    }

    /// Returns a symbol for the integer `reg`, after a check that `0 <= reg < extent`.
    pub(super) fn bind(&mut self, reg: Reg, dtype: DType, extent: &Dim, context: String) -> Symbol {
        if let Some(symbol) = self.bound(reg, extent) {
            return symbol;
        }
        let value = if dtype == DType::I64 { reg } else { self.code.push(Inst::Cast(DType::I64, reg)) };
        let symbol = self.scope.fresh("at");
        self.scope.facts.declare_index(&symbol, extent);
        self.code.push(Inst::Check(Check { value, lo: Dim::zero(), end: extent.clone(), context }));
        self.code.push(Inst::Bind(symbol.clone(), value));
        self.bound.push((reg, extent.clone(), symbol.clone()));
        symbol
    }

    /// The symbol that `reg` is bound to after a check with this extent.
    fn bound(&self, reg: Reg, extent: &Dim) -> Option<Symbol> {
        let mut bound = self.bound.iter();
        bound.find(|(of, end, _)| *of == reg && end == extent).map(|(.., symbol)| symbol.clone())
    }

    /// Applies a body to registers.
    pub(super) fn body(&mut self, body: &Body, params: &[Reg]) -> Reg {
        let mut regs = params.to_vec();
        for step in &body.steps {
            let of = |reg: &Reg| regs[reg.0 as usize];
            let inst = match step {
                Step::Const(value) => Inst::Const(*value),
                Step::Unary(op, x) => Inst::Unary(*op, of(x)),
                Step::Binary(op, x, y) => Inst::Binary(*op, of(x), of(y)),
                Step::Compare(op, x, y) => Inst::Compare(*op, of(x), of(y)),
                Step::Select(c, x, y) => Inst::Select(of(c), of(x), of(y)),
                Step::Cast(dtype, x) => Inst::Cast(*dtype, of(x)),
                Step::Bits(dtype, x) => Inst::Bits(*dtype, of(x)),
            };

            let reg = self.code.push(inst);
            regs.push(reg);
        }

        regs[body.result.0 as usize]
    }
}

/// The value of a constant whose elements are all equal. Only small constants are searched.
fn splat(tensor: &crate::tensor::Tensor) -> Option<Scalar> {
    const LARGEST: usize = 4096;
    if tensor.elems() == 0 || tensor.elems() > LARGEST {
        return None;
    }
    let first = tensor.get(0);
    (1..tensor.elems()).all(|idx| tensor.get(idx) == first).then_some(first)
}
