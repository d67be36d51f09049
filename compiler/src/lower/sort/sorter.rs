//! The state of one lowering: the row, the buffers of entries, and the code that is emitted.

use super::key::Key;
use crate::{
    Error, Result,
    graph::{Op, Value},
    kernel::{Access, Axis, Buffer, BufferId, Check, Inst, InstSeq, Kernel, Local, MemorySpace, Stmt},
    lower::{
        inline::Inliner,
        lowering::{KernelScope, Lowering, node_name},
        nest::axes_of,
        reduce::interleave,
    },
    scalar::{Reg, Scalar},
};
use symshape::Dim;
use symshape_runtime::DType;

/// The elements that are sorted together.
pub(super) struct Row {
    pub(super) operand: Value,
    /// The bound of the sorted elements, if there is one.
    pub(super) bound: Option<Value>,
    /// The loops over the other axes.
    pub(super) outer: Vec<Axis>,
    /// The index along the other axes.
    pub(super) rest: Vec<Dim>,
    pub(super) axis: usize,
    /// Elements of a row.
    pub(super) len: Dim,
    /// Elements that are wanted.
    pub(super) wanted: Dim,
    pub(super) key: Key,
}

impl Row {
    pub(super) fn new(lowering: &Lowering, scope: &mut KernelScope, value: Value) -> Result<Row> {
        let graph = lowering.graph;
        let Op::Sort { axis, descending, first } = graph.op(value) else {
            return Err(Error::internal("not a sort"));
        };
        let operand = graph.operands(value)[0];
        let key = Key { dtype: graph.dtype(operand), descending: *descending, nan_first: false };
        let wanted = first.clone().unwrap_or_else(|| graph.shape(operand)[*axis].clone());
        let row = Row::along(lowering, scope, operand, *axis, key, wanted);
        Ok(Row { bound: graph.operands(value).get(1).copied(), ..row })
    }

    /// The rows of `operand` along `axis`.
    pub(super) fn along(
        lowering: &Lowering,
        scope: &mut KernelScope,
        operand: Value,
        axis: usize,
        key: Key,
        wanted: Dim,
    ) -> Row {
        let shape = lowering.graph.shape(operand);
        let len = shape[axis].clone();
        let mut others = shape.to_vec();
        others.remove(axis);
        let (outer, rest) = axes_of(scope, &others);
        Row { operand, bound: None, outer, rest, axis, len, wanted, key }
    }

    /// The index of the element at `at`.
    pub(super) fn index(&self, at: &Dim) -> Vec<Dim> {
        interleave(self.rest.len() + 1, &[self.axis], &self.rest, std::slice::from_ref(at))
    }
}

/// Entries in scratch memory: two buffers with as many elements.
#[derive(Clone, Copy)]
pub(super) struct Entries {
    pub(super) keys: BufferId,
    pub(super) positions: BufferId,
}

/// The state of one lowering.
pub(super) struct Sorter<'l, 'g> {
    pub(super) lowering: &'l mut Lowering<'g>,
    pub(super) scope: KernelScope,
    pub(super) kernel: Kernel,
    pub(super) row: Row,
    /// The candidates, and memory for the passes of a radix sort.
    pub(super) entries: [Entries; 2],
    /// Elements of each buffer of entries: one more than there are entries.
    pub(super) capacity: Dim,
    /// The number of candidates; `None` if it is the number of elements.
    pub(super) found: Option<Local>,
}

impl<'l, 'g> Sorter<'l, 'g> {
    pub(super) fn new(
        lowering: &'l mut Lowering<'g>,
        scope: KernelScope,
        row: Row,
    ) -> Result<Sorter<'l, 'g>> {
        let entries = [Entries { keys: BufferId::from_u32(0), positions: BufferId::from_u32(0) }; 2];
        let capacity = Dim::zero();
        let mut sorter =
            Sorter { lowering, scope, kernel: Kernel::default(), row, entries, capacity, found: None };
        let elems = sorter.max_entries() + 1;
        let elems = sorter.scope.around.simplify(&elems);
        sorter.capacity = sorter.lowering.upper_bound_elems(&elems)?;
        let key_type = sorter.row.key.lane();
        let capacity = sorter.capacity.clone();
        for idx in 0..2 {
            sorter.entries[idx] = Entries {
                keys: sorter.scratch("keys", key_type, &capacity)?,
                positions: sorter.scratch("positions", DType::I64, &capacity)?,
            };
        }
        Ok(sorter)
    }

    /// A scratch buffer of `elems` elements; `content` is a part of its name.
    pub(super) fn scratch(&mut self, content: &str, dtype: DType, elems: &Dim) -> Result<BufferId> {
        let elems = self.lowering.upper_bound_elems(elems)?;
        let name = format!("{} ({content})", node_name(self.lowering.graph, self.row.operand));
        Ok(self.lowering.program.buffers.push(Buffer { name, dtype, elems, space: MemorySpace::Scratch }))
    }

    pub(super) fn local(&mut self, dtype: DType) -> Local {
        self.kernel.locals.push(dtype)
    }

    /// A loop, one iteration after another.
    pub(super) fn repeat(
        &mut self,
        extent: &Dim,
        body: impl FnOnce(&mut Self, &Dim) -> Result<Vec<Stmt>>,
    ) -> Result<Stmt> {
        let axis = self.axis(extent);
        let at = Dim::from(&axis.var);
        Ok(Stmt::For { axis, parallel: false, body: body(self, &at)? })
    }

    pub(super) fn axis(&mut self, extent: &Dim) -> Axis {
        let var = self.scope.fresh("i");
        self.scope.facts.declare_index(&var, extent);
        Axis { var, extent: extent.clone() }
    }

    /// Straight-line code.
    pub(super) fn block(&mut self, emit: impl FnOnce(&mut Code<'_, 'g>) -> Result<()>) -> Result<Stmt> {
        Ok(Stmt::Block(self.code(emit)?))
    }

    pub(super) fn code(&mut self, emit: impl FnOnce(&mut Code<'_, 'g>) -> Result<()>) -> Result<InstSeq> {
        let inliner = Inliner::new(self.lowering, &mut self.scope);
        let mut code = Code { inliner, row: &self.row, capacity: &self.capacity };
        emit(&mut code)?;
        Ok(code.inliner.code)
    }

    /// A strip over straight-line code.
    pub(super) fn strip(
        &mut self,
        extent: &Dim,
        emit: impl FnOnce(&mut Code<'_, 'g>, &Dim) -> Result<()>,
    ) -> Result<Stmt> {
        let axis = self.axis(extent);
        let at = Dim::from(&axis.var);
        let code = self.code(|code| emit(code, &at))?;
        Ok(Stmt::Strip { axis, code })
    }
}

/// The context of the checks of a sort, none of which fails.
pub(super) const CONTEXT: &str = "position of a sorted element";

/// Writes straight-line code.
pub(super) struct Code<'c, 'g> {
    pub(super) inliner: Inliner<'c, 'g>,
    pub(super) row: &'c Row,
    pub(super) capacity: &'c Dim,
}

impl Code<'_, '_> {
    pub(super) fn push(&mut self, inst: Inst) -> Reg {
        self.inliner.code.push(inst)
    }

    pub(super) fn load(&mut self, buffer: BufferId, index: &Dim) -> Reg {
        self.push(Inst::Load(Access { buffer, index: index.clone() }))
    }

    pub(super) fn store(&mut self, buffer: BufferId, index: &Dim, value: Reg) {
        self.push(Inst::Store(Access { buffer, index: index.clone() }, value));
    }

    pub(super) fn index(&mut self, dim: &Dim) -> Reg {
        self.push(Inst::Index(DType::I64, dim.clone()))
    }

    pub(super) fn int(&mut self, dtype: DType, value: i64) -> Reg {
        self.push(Inst::Const(Scalar::from_i64(dtype, value)))
    }

    /// The index of an entry, which has this value.
    pub(super) fn slot(&mut self, reg: Reg) -> Dim {
        let capacity = self.capacity.clone();
        Dim::from(&self.inliner.bind(reg, DType::I64, &capacity, CONTEXT.to_string()))
    }

    /// A number of elements of the row, which has this value.
    pub(super) fn count(&mut self, reg: Reg) -> Dim {
        let end = &self.row.len + 1;
        let context = CONTEXT.to_string();
        self.push(Inst::Check(Check { value: reg, lo: Dim::zero(), end: end.clone(), context }));
        let count = self.slot(reg);
        if let Some(symbol) = count.as_symbol() {
            self.inliner.scope.facts.declare_index(symbol, &end);
        }
        count
    }

    /// The key of the element at `at`.
    pub(super) fn key(&mut self, at: &Dim) -> Result<Reg> {
        let element = self.inliner.load(self.row.operand, &self.row.index(at))?;
        Ok(self.row.key.emit(&mut self.inliner.code, element))
    }
}
