//! The arithmetic and the memory traffic of kernels at given sizes.

use crate::kernel::{
    Access, Axis, BufferId, Contraction, Control, InstSeq, Kernel, MemorySpace, Program, Ragged, Rhs,
    SequencePart, Stmt, cost, data_dependent, few_bits,
};
use std::{collections::BTreeMap, ops::Range};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// The work of kernels in one call.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Demand {
    /// Multiply-adds of contractions, except those of bytes.
    pub multiplications: f64,
    /// Multiply-adds of contractions whose operands are bytes.
    pub byte_multiplications: f64,
    /// All other arithmetic, in vector multiply-adds that take about the same time.
    pub other_work: f64,
    /// Bytes that are read or written at least once, scratch memory excepted.
    pub bytes: f64,
    /// Whether the number of iterations or the work depends on data, so that the other fields are rough.
    pub depends_on_data: bool,
}

impl Demand {
    /// The demand of consecutive kernels at these dims, one for each symbol of the program. Kernels that run once for
    /// each sequence of a ragged batch run for sequences of these lengths.
    pub(super) fn of(program: &Program, kernels: Range<usize>, dims: &[i64], lengths: &[usize]) -> Demand {
        let values = program.symbols.iter().cloned().zip(dims.iter().copied()).collect();
        let mut count = Count { program, values, depends_on_data: false };
        let mut touched = Touched::new();
        let ragged = program.ragged.as_ref().filter(|ragged| ragged.group_of(kernels.start).is_some());
        let mut demand = match ragged {
            Some(ragged) => count.sequences(ragged, &program.kernels[kernels], lengths, &mut touched),
            None => count.kernels(&program.kernels[kernels], &mut touched),
        };

        demand.bytes = touched.iter().map(|(buffer, elems)| count.bytes(*buffer, *elems)).sum();
        demand.depends_on_data = count.depends_on_data;
        demand
    }

    /// The demand of this many runs.
    pub(super) fn times(self, runs: f64) -> Demand {
        let Demand { multiplications, byte_multiplications, other_work, bytes, depends_on_data } = self;
        Demand {
            multiplications: multiplications * runs,
            byte_multiplications: byte_multiplications * runs,
            other_work: other_work * runs,
            bytes: bytes * runs,
            depends_on_data,
        }
    }

    fn add(&mut self, other: &Demand, times: f64) {
        self.multiplications += other.multiplications * times;
        self.byte_multiplications += other.byte_multiplications * times;
        self.other_work += other.other_work * times;
    }
}

/// The number of elements of each buffer that are accessed; it may exceed the number that the buffer has.
type Touched = BTreeMap<BufferId, f64>;

/// A loop around a statement, with its number of iterations.
struct Loop {
    var: Symbol,
    iterations: f64,
}

struct Count<'p> {
    program: &'p Program,
    /// The values of the symbols, and of the variables of the loops around the current statement.
    values: BTreeMap<Symbol, i64>,
    depends_on_data: bool,
}

impl Count<'_> {
    fn kernels(&mut self, kernels: &[Kernel], touched: &mut Touched) -> Demand {
        let mut demand = Demand::default();
        for kernel in kernels {
            match &kernel.control {
                None => demand.add(&self.statements(&kernel.body, &mut Vec::new(), touched), 1.0),
                Some(Control::Call(call)) => {
                    self.depends_on_data |= call.work.is_none();
                    demand.other_work += self.size(&cost::call(self.program, call));
                    for argument in call.operands.iter().chain(&call.results) {
                        touched.insert(argument.first.buffer, f64::INFINITY);
                    }
                }
                Some(Control::If(_) | Control::While(_)) => self.depends_on_data = true,
                Some(_) => {}
            }
        }
        demand
    }

    /// Kernels that run once for each sequence. Sequences have parts of some buffers, and share the others.
    fn sequences(
        &mut self,
        ragged: &Ragged,
        kernels: &[Kernel],
        lengths: &[usize],
        touched: &mut Touched,
    ) -> Demand {
        let mut counts: BTreeMap<usize, f64> = BTreeMap::new();
        lengths.iter().for_each(|length| *counts.entry(*length).or_default() += 1.0);

        let mut demand = Demand::default();
        for (length, sequences) in counts {
            self.values.insert(ragged.length.clone(), i64::try_from(length).unwrap_or(i64::MAX));
            let mut own = Touched::new();
            demand.add(&self.kernels(kernels, &mut own), sequences);
            for (buffer, elems) in own {
                let all = touched.entry(buffer).or_default();
                match ragged.parts.get(&buffer) {
                    Some(SequencePart::Rows(row)) => {
                        *all += elems.min(self.size(row) * length as f64) * sequences;
                    }
                    Some(SequencePart::Sequence(part)) => *all += elems.min(self.size(part)) * sequences,
                    None => *all = all.max(elems),
                }
            }
        }
        self.values.remove(&ragged.length);
        demand
    }

    fn statements(&mut self, body: &[Stmt], loops: &mut Vec<Loop>, touched: &mut Touched) -> Demand {
        let mut demand = Demand::default();
        for stmt in body {
            demand.add(&self.statement(stmt, loops, touched), 1.0);
        }
        demand
    }

    fn statement(&mut self, stmt: &Stmt, loops: &mut Vec<Loop>, touched: &mut Touched) -> Demand {
        match stmt {
            Stmt::For { axis, body, .. } => self.iterations(axis, body, loops, touched),
            Stmt::Block(code) => {
                self.touch_code(code, loops, touched);
                Demand { other_work: (cost::steps(code) * cost::IN_BLOCK) as f64, ..Demand::default() }
            }
            Stmt::Strip { axis, code } => {
                let iterations = self.extent(axis);
                loops.push(Loop { var: axis.var.clone(), iterations });
                self.touch_code(code, loops, touched);
                loops.pop();
                Demand { other_work: cost::steps(code) as f64 * iterations, ..Demand::default() }
            }
            Stmt::Contraction(contraction) => self.contraction(contraction, loops, touched),
            Stmt::If { then, otherwise, .. } => {
                self.depends_on_data = true;
                let mut demand = self.statements(then, loops, touched);
                demand.add(&self.statements(otherwise, loops, touched), 1.0);
                demand
            }
            Stmt::While { body, .. } => {
                self.depends_on_data = true;
                self.statements(body, loops, touched)
            }
        }
    }

    /// A loop. Its iterations may differ: the last of several blocks of rows is smaller, those of a triangle grow. All
    /// but the first and the last count as the middle one. That is exact for blocks, and nearly so for triangles.
    fn iterations(
        &mut self,
        axis: &Axis,
        body: &[Stmt],
        loops: &mut Vec<Loop>,
        touched: &mut Touched,
    ) -> Demand {
        let iterations = self.extent(axis);
        let mut demand = Demand::default();
        if iterations < 1.0 {
            return demand;
        }

        loops.push(Loop { var: axis.var.clone(), iterations });
        let count = iterations as i64;
        let others = [(count / 2, count - 2), (count - 1, 1)];
        for (at, times) in others.into_iter().filter(|(at, times)| *at > 0 && *times > 0) {
            self.values.insert(axis.var.clone(), at);
            demand.add(&self.statements(body, loops, &mut Touched::new()), times as f64);
        }
        // The first iteration is rarely the one that is cut short, so its accesses stand for all.
        self.values.insert(axis.var.clone(), 0);
        demand.add(&self.statements(body, loops, touched), 1.0);
        self.values.remove(&axis.var);
        loops.pop();
        demand
    }

    fn contraction(
        &mut self,
        contraction: &Contraction,
        loops: &mut Vec<Loop>,
        touched: &mut Touched,
    ) -> Demand {
        let depth = loops.len();
        let rows_and_columns = contraction.m.iter().chain([&contraction.n]);
        let elems: f64 = rows_and_columns.map(|axis| self.enter(axis, loops)).product();
        self.touch_code(&contraction.epilogue, loops, touched);
        let summed: f64 = contraction.k.iter().map(|axis| self.enter(axis, loops)).product();

        self.touch(&contraction.lhs, loops, touched);
        match &contraction.rhs {
            Rhs::Indexed(access) => self.touch(access, loops, touched),
            Rhs::Panels { buffer, base, .. } => {
                let outer = self.distinct(base, &loops[..depth]);
                let panels = outer * summed * self.extent(&contraction.n);
                *touched.entry(*buffer).or_default() += panels;
            }
            Rhs::FewBits(panels) => {
                let outer = self.distinct(&panels.base, &loops[..depth]);
                let bytes = panels.panel_bytes(contraction).unwrap_or(0) as f64;
                let count = (self.extent(&contraction.n) / few_bits::WIDTH as f64).ceil();
                *touched.entry(panels.buffer).or_default() += outer * bytes * count;
            }
        }
        loops.truncate(depth);

        let other_work = cost::steps(&contraction.epilogue) as f64 * elems;
        let multiplications = elems * summed;
        let rhs = match &contraction.rhs {
            Rhs::Indexed(access) => access.buffer,
            Rhs::Panels { buffer, .. } => *buffer,
            Rhs::FewBits(panels) => panels.buffer,
        };
        if self.program.buffers[rhs].dtype.size_bytes() == 1 && contraction.dtype == DType::I32 {
            Demand { byte_multiplications: multiplications, other_work, ..Demand::default() }
        } else {
            Demand { multiplications, other_work, ..Demand::default() }
        }
    }

    fn enter(&mut self, axis: &Axis, loops: &mut Vec<Loop>) -> f64 {
        let iterations = self.extent(axis);
        loops.push(Loop { var: axis.var.clone(), iterations });
        iterations
    }

    fn touch_code(&self, code: &InstSeq, loops: &[Loop], touched: &mut Touched) {
        for inst in &code.insts {
            if let crate::kernel::Inst::Load(access) | crate::kernel::Inst::Store(access, _) = inst {
                self.touch(access, loops, touched);
            }
        }
    }

    fn touch(&self, access: &Access, loops: &[Loop], touched: &mut Touched) {
        *touched.entry(access.buffer).or_default() += self.distinct(&access.index, loops);
    }

    /// The number of values that an index may take. An index with a symbol that is loaded may take any value.
    fn distinct(&self, index: &Dim, loops: &[Loop]) -> f64 {
        let symbols = index.symbols();
        let moved = loops.iter().filter(|outer| symbols.contains(&outer.var));
        let is_known = |symbol: &Symbol| {
            self.values.contains_key(symbol) || loops.iter().any(|outer| outer.var == *symbol)
        };
        if symbols.iter().all(is_known) {
            moved.map(|outer| outer.iterations).product()
        } else {
            loops.iter().map(|outer| outer.iterations).product()
        }
    }

    /// Bytes of the elements of a buffer that are accessed.
    fn bytes(&mut self, buffer: BufferId, elems: f64) -> f64 {
        let buffer = &self.program.buffers[buffer];
        if matches!(buffer.space, MemorySpace::Scratch) {
            return 0.0;
        }
        let size = buffer.dtype.size_bytes() as f64;
        elems.min(self.size(&buffer.elems)) * size
    }

    fn extent(&mut self, axis: &Axis) -> f64 {
        self.size(&axis.extent).max(0.0)
    }

    /// The value of a dim; with data-dependent symbols at their upper bounds.
    fn size(&mut self, dim: &Dim) -> f64 {
        let value = |symbol: &Symbol| self.values.get(symbol).copied();
        if let Ok(size) = dim.eval_i64(&value) {
            return size as f64;
        }
        let Program { facts, data_dependent, .. } = self.program;
        let size = data_dependent::at_upper_bounds(facts, data_dependent, dim).eval_i64(&value);
        self.depends_on_data = true;
        size.map_or(1.0, |size| size as f64)
    }
}
