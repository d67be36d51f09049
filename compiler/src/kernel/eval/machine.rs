//! The state of the interpreter, and one method for each kind of statement.

use super::{accumulator::Accumulator, index::Env};
use crate::{
    error::{At, Error, Result},
    kernel::{
        Access, Argument, Axis, BufferId, Check, Contraction, ExternalCall, FewBitsPanels, Inst, InstSeq,
        Kernel, Local, MemorySpace, Program, Rhs, Stmt, few_bits,
    },
    scalar::{ReduceOp, Reg, Scalar, activations::RoundedBlock, eval as scalar},
    tensor::Tensor,
};
use cranelift_entity::{EntityRef, SecondaryMap};
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

#[derive(Clone)]
enum Memory {
    Const(Tensor),
    /// `None` for an element that was never written.
    Cells(Vec<Option<Scalar>>),
}

impl Default for Memory {
    fn default() -> Self {
        Memory::Cells(Vec::new())
    }
}

pub(super) struct Machine<'a> {
    program: &'a Program,
    memory: SecondaryMap<BufferId, Memory>,
    env: Env,
    dtypes: Vec<DType>,
    locals: SecondaryMap<Local, Option<Scalar>>,
    /// Number of enclosing parallel loops.
    parallel_depth: usize,
}

/// The values that are local to a sequence of instructions.
#[derive(Default)]
struct Frame {
    regs: Vec<Option<Scalar>>,
    /// The sum, in an epilogue.
    sum: Option<Scalar>,
    /// One for each `reduce` of a strip, in the order of the instructions.
    accumulators: Vec<(Local, Accumulator)>,
}

impl<'a> Machine<'a> {
    pub(super) fn new(program: &'a Program, dims: &[i64]) -> Self {
        let mut env = Env::default();
        program.symbols.iter().zip(dims).for_each(|(symbol, value)| env.set(symbol, *value));
        Machine {
            program,
            memory: SecondaryMap::new(),
            env,
            dtypes: Vec::new(),
            locals: SecondaryMap::new(),
            parallel_depth: 0,
        }
    }

    pub(super) fn allocate(&mut self, id: BufferId, elems: usize) {
        self.memory[id] = match &self.program.buffers[id].space {
            MemorySpace::Const(tensor) => Memory::Const(tensor.clone()),
            _ => Memory::Cells(vec![None; elems]),
        };
    }

    pub(super) fn fill(&mut self, id: BufferId, elems: impl Iterator<Item = Scalar>) -> Result<()> {
        let filled: Vec<Option<Scalar>> = elems.map(Some).collect();
        match &mut self.memory[id] {
            Memory::Cells(cells) if cells.len() == filled.len() => *cells = filled,
            _ => return Err(Error::invalid("its buffer and its shape differ in size")),
        }
        Ok(())
    }

    /// The first `count` elements of a buffer.
    pub(super) fn read_all(&self, id: BufferId, count: usize) -> Result<Vec<Scalar>> {
        match &self.memory[id] {
            Memory::Const(tensor) => Ok((0..count.min(tensor.elems())).map(|idx| tensor.get(idx)).collect()),
            Memory::Cells(cells) => {
                let unwritten = |idx| Error::invalid(format!("element {idx} was never written"));
                let cells = cells.iter().take(count).enumerate();
                cells.map(|(idx, cell)| cell.ok_or_else(|| unwritten(idx))).collect()
            }
        }
    }

    /// The value of an expression over symbols.
    pub(super) fn eval(&mut self, dim: &Dim) -> Result<i64> {
        self.env.eval(dim)
    }

    /// Runs a function outside of the compiler.
    pub(super) fn call(&mut self, call: &ExternalCall) -> Result<()> {
        let operands = call.operands.iter().map(|argument| {
            let (dtype, shape, first) = self.extent(argument)?;
            let elems = (0..shape.iter().product::<usize>() as i64)
                .map(|idx| self.load_at(argument.first.buffer, first + idx))
                .collect::<Result<Vec<_>>>()
                .at(|| format!("argument {}", argument.first))?;
            Tensor::from_scalars(dtype, shape, &elems)
                .ok_or_else(|| Error::internal("an operand of a call has a wrong number of elements"))
        });

        let operands = operands.collect::<Result<Vec<_>>>()?;
        let results = call.results.iter().map(|argument| self.extent(argument));
        let results = results.collect::<Result<Vec<_>>>()?;
        let types: Vec<_> = results.iter().map(|(dtype, shape, _)| (*dtype, shape.clone())).collect();

        let scratch = match call.scratch {
            Some(id) => self.env.eval(&self.program.buffers[id].bytes())?,
            None => 0,
        };

        let tensors = call.callee.call(&operands, &types, usize::try_from(scratch).unwrap_or(0))?;
        for ((argument, (_, _, first)), tensor) in call.results.iter().zip(&results).zip(&tensors) {
            for idx in 0..tensor.elems() {
                let at = Dim::from(first + idx as i64);
                self.store(&Access { buffer: argument.first.buffer, index: at }, tensor.get(idx))?;
            }
        }

        Ok(())
    }

    /// Element type, shape and first element of an argument.
    fn extent(&mut self, argument: &Argument) -> Result<(DType, Vec<usize>, i64)> {
        let first = self.env.eval(&argument.first.index)?;
        let dims = argument.shape.iter().map(|dim| {
            let value = self.env.eval(dim)?;
            usize::try_from(value).map_err(|_| Error::invalid(format!("`{dim}` = {value} is negative")))
        });
        let shape = dims.collect::<Result<Vec<_>>>()?;
        Ok((self.program.buffers[argument.first.buffer].dtype, shape, first))
    }

    /// Gives a symbol a value.
    pub(super) fn bind(&mut self, symbol: &Symbol, value: i64) {
        self.env.set(symbol, value);
    }

    pub(super) fn run(&mut self, kernel: &Kernel) -> Result<()> {
        self.dtypes = kernel.locals.values().copied().collect();
        self.locals.clear();
        self.forget_scratch();
        self.stmts(&kernel.body)
    }

    fn forget_scratch(&mut self) {
        for (id, buffer) in &self.program.buffers {
            if let (MemorySpace::Scratch, Memory::Cells(cells)) = (&buffer.space, &mut self.memory[id]) {
                cells.fill(None);
            }
        }
    }

    fn stmts(&mut self, stmts: &[Stmt]) -> Result<()> {
        stmts.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::For { axis, parallel: false, body } => self.each(axis, |machine| machine.stmts(body)),
            Stmt::For { axis, parallel: true, body } => self.parallel(axis, body),
            Stmt::Block(code) => self.code(code, &mut Frame::default()),
            Stmt::Strip { axis, code } => self.strip(axis, code),
            Stmt::Contraction(contraction) => self.contraction(contraction),
            Stmt::If { cond, then, otherwise } => {
                let branch = if self.local(*cond)?.is_true() { then } else { otherwise };
                self.stmts(branch)
            }
            Stmt::While { cond, body } => {
                while self.local(*cond)?.is_true() {
                    self.stmts(body)?;
                }
                Ok(())
            }
        }
    }

    fn each(&mut self, axis: &Axis, mut body: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        for value in 0..self.env.eval(&axis.extent)? {
            self.env.set(&axis.var, value);
            body(self).at(|| format!("{} = {value}", axis.var))?;
        }
        Ok(())
    }

    fn parallel(&mut self, axis: &Axis, body: &[Stmt]) -> Result<()> {
        for value in (0..self.env.eval(&axis.extent)?).rev() {
            if self.parallel_depth == 0 {
                self.forget_scratch();
            }
            self.env.set(&axis.var, value);
            self.parallel_depth += 1;
            let done = self.stmts(body).at(|| format!("{} = {value}", axis.var));
            self.parallel_depth -= 1;
            done?;
        }
        Ok(())
    }

    fn strip(&mut self, axis: &Axis, code: &InstSeq) -> Result<()> {
        let mut frame = Frame::default();
        for inst in &code.insts {
            if let Inst::Reduce(op, _, local) = inst {
                frame.accumulators.push((*local, Accumulator::new(*op, self.dtype_of(*local)?)));
            }
        }
        self.each(axis, |machine| machine.code(code, &mut frame))?;
        for (local, accumulator) in frame.accumulators {
            self.locals[local] = Some(accumulator.finish());
        }
        Ok(())
    }

    fn contraction(&mut self, contraction: &Contraction) -> Result<()> {
        self.rows(contraction, &contraction.m)
    }

    fn rows(&mut self, contraction: &Contraction, axes: &[Axis]) -> Result<()> {
        match axes.split_first() {
            Some((axis, rest)) => self.each(axis, |machine| machine.rows(contraction, rest)),
            None => self.each(&contraction.n, |machine| machine.element(contraction)),
        }
    }

    fn element(&mut self, contraction: &Contraction) -> Result<()> {
        let panel = match &contraction.rhs {
            Rhs::Indexed(_) => None,
            Rhs::Panels { base, width, .. } => Some(self.panel(contraction, base, i64::from(*width))?),
            Rhs::FewBits(panels) => Some(self.few_bits_panel(contraction, panels)?),
        };
        let mut sum = Accumulator::new(ReduceOp::Sum, contraction.dtype);
        if let (Rhs::FewBits(panels), Some(panel)) = (&contraction.rhs, panel)
            && panels.form.rounds_lhs
        {
            self.accumulate_rounded(contraction, panels, panel, &mut sum)?;
        } else {
            let mut position = 0;
            self.accumulate(contraction, &contraction.k, panel, &mut position, &mut sum)?;
        }
        self.code(&contraction.epilogue, &mut Frame { sum: Some(sum.finish()), ..Frame::default() })
    }

    /// Index of the first element of the current column in the panels.
    fn panel(&mut self, contraction: &Contraction, base: &Dim, width: i64) -> Result<i64> {
        let column = self.env.eval(&Dim::from(&contraction.n.var))?;
        let first = self.env.eval(base)?;
        let depth = self.env.eval(&contraction.depth())?;
        let at = column
            .checked_div(width)
            .and_then(|panel| panel.checked_mul(depth)?.checked_mul(width)?.checked_add(first))
            .and_then(|at| at.checked_add(column % width));
        at.ok_or_else(|| Error::invalid("the panels exceed 64 bits"))
    }

    /// The first byte of the panel of the current column.
    fn few_bits_panel(&mut self, contraction: &Contraction, panels: &FewBitsPanels) -> Result<i64> {
        let column = self.env.eval(&Dim::from(&contraction.n.var))?;
        let first = self.env.eval(&panels.base)?;
        let bytes = panels.panel_bytes(contraction);
        let at = bytes.and_then(|bytes| (column / few_bits::WIDTH).checked_mul(bytes)?.checked_add(first));
        at.ok_or_else(|| Error::invalid("panels of few bits of an unknown size"))
    }

    /// The element of a right-hand side of few bits at reduction index `k`.
    fn few_bits(
        &mut self,
        contraction: &Contraction,
        panels: &FewBitsPanels,
        panel: i64,
        k: i64,
    ) -> Result<Scalar> {
        let lane = self.env.eval(&Dim::from(&contraction.n.var))? % few_bits::WIDTH;
        let Memory::Const(tensor) = &self.memory[panels.buffer] else {
            return Err(Error::invalid("weights of few bits are not a constant"));
        };
        let element = panels.form.element(tensor.bytes(), panel, k, lane);
        element.map(Scalar::f32).ok_or_else(|| Error::invalid(format!("element {k} after the last panel")))
    }

    /// Accumulates the products of a left-hand side that is rounded in blocks.
    fn accumulate_rounded(
        &mut self,
        contraction: &Contraction,
        panels: &FewBitsPanels,
        panel: i64,
        sum: &mut Accumulator,
    ) -> Result<()> {
        let mut row = Vec::new();
        self.row(contraction, &contraction.k, &mut row)?;
        let lane = self.env.eval(&Dim::from(&contraction.n.var))? % few_bits::WIDTH;
        let Memory::Const(tensor) = &self.memory[panels.buffer] else {
            return Err(Error::invalid("weights of few bits are not a constant"));
        };
        let block = (panels.form.block as usize).max(1);
        let rounded =
            row.chunks(block).flat_map(|block| RoundedBlock::of(block).values().collect::<Vec<_>>());
        for (k, x) in rounded.enumerate() {
            let parts = panels.form.parts(tensor.bytes(), panel, k as i64, lane);
            let (integer, scale) =
                parts.ok_or_else(|| Error::invalid(format!("element {k} after the last panel")))?;
            sum.push(Scalar::from_f64(DType::F64, x * f64::from(integer) * f64::from(scale)));
        }
        Ok(())
    }

    /// Appends the elements of the left-hand side of all iterations of `axes`.
    fn row(&mut self, contraction: &Contraction, axes: &[Axis], row: &mut Vec<f32>) -> Result<()> {
        let Some((axis, rest)) = axes.split_first() else {
            row.push(self.load(&contraction.lhs)?.as_f64() as f32);
            return Ok(());
        };
        self.each(axis, |machine| machine.row(contraction, rest, row))
    }

    /// Accumulates the multiplications of all iterations of `axes`, and counts them in `position`.
    fn accumulate(
        &mut self,
        contraction: &Contraction,
        axes: &[Axis],
        panel: Option<i64>,
        position: &mut i64,
        sum: &mut Accumulator,
    ) -> Result<()> {
        if let Some((axis, rest)) = axes.split_first() {
            return self.each(axis, |machine| machine.accumulate(contraction, rest, panel, position, sum));
        }

        let lhs = self.load(&contraction.lhs)?;
        let rhs = match (&contraction.rhs, panel) {
            (Rhs::Indexed(access), _) => self.load(access)?,
            (Rhs::Panels { buffer, width, .. }, at) => {
                let at = at.unwrap_or(0).saturating_add(position.saturating_mul(i64::from(*width)));
                self.load_at(*buffer, at)?
            }
            (Rhs::FewBits(panels), at) => self.few_bits(contraction, panels, at.unwrap_or(0), *position)?,
        };

        *position += 1;
        sum.push_product(lhs, rhs, contraction.precision);
        Ok(())
    }

    fn dtype_of(&self, local: Local) -> Result<DType> {
        self.dtypes
            .get(local.index())
            .copied()
            .ok_or_else(|| Error::invalid(format!("{local:?} is not declared")))
    }

    fn local(&self, local: Local) -> Result<Scalar> {
        self.locals[local].ok_or_else(|| Error::invalid(format!("{local:?} was never set")))
    }

    fn load(&mut self, access: &Access) -> Result<Scalar> {
        let at = self.env.eval(&access.index)?;
        self.load_at(access.buffer, at).at(|| format!("load {access}"))
    }

    fn load_at(&self, id: BufferId, at: i64) -> Result<Scalar> {
        let idx = usize::try_from(at).ok();
        let found = match &self.memory[id] {
            Memory::Const(tensor) => {
                idx.filter(|idx| *idx < tensor.elems()).map(|idx| Some(tensor.get(idx))).ok_or(tensor.elems())
            }
            Memory::Cells(cells) => idx.and_then(|idx| cells.get(idx)).copied().ok_or(cells.len()),
        };

        match found {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(Error::invalid(format!("element {at} was never written"))),
            Err(elems) => Err(Error::invalid(format!("element {at} of {elems}"))),
        }
    }

    fn store(&mut self, access: &Access, value: Scalar) -> Result<()> {
        let at = self.env.eval(&access.index)?;
        let outside =
            |elems| Error::invalid(format!("element {at} of {elems}")).at(format!("store {access}"));

        match &mut self.memory[access.buffer] {
            Memory::Const(tensor) => return Err(outside(tensor.elems())),
            Memory::Cells(cells) => {
                let elems = cells.len();
                let cell = usize::try_from(at).ok().and_then(|idx| cells.get_mut(idx));
                *cell.ok_or_else(|| outside(elems))? = Some(value);
            }
        }

        Ok(())
    }

    fn code(&mut self, code: &InstSeq, frame: &mut Frame) -> Result<()> {
        frame.regs.clear();
        let mut reductions = 0;
        for (idx, inst) in code.insts.iter().enumerate() {
            let result = if let Inst::Reduce(_, reg, _) = inst {
                let value = of(frame, *reg)?;
                frame.accumulators[reductions].1.push(value);
                reductions += 1;
                None
            } else {
                self.inst(inst, frame).at(|| format!("instruction {idx}"))?
            };
            frame.regs.push(result);
        }

        Ok(())
    }

    fn inst(&mut self, inst: &Inst, frame: &Frame) -> Result<Option<Scalar>> {
        let of = |reg: &Reg| of(frame, *reg);
        Ok(Some(match inst {
            Inst::Const(value) => *value,
            Inst::Index(dtype, dim) => Scalar::from_i64(*dtype, self.env.eval(dim)?),
            Inst::Load(access) => self.load(access)?,
            Inst::Sum => frame.sum.ok_or_else(|| Error::invalid("`sum` outside of an epilogue"))?,
            Inst::Get(local) => self.local(*local)?,
            Inst::Unary(op, x) => scalar::unary(*op, of(x)?),
            Inst::Binary(op, x, y) => scalar::binary(*op, of(x)?, of(y)?),
            Inst::Compare(op, x, y) => Scalar::bool(scalar::compare(*op, of(x)?, of(y)?)),
            Inst::Select(cond, x, y) => {
                if of(cond)?.is_true() {
                    of(x)?
                } else {
                    of(y)?
                }
            }
            Inst::Cast(dtype, x) => scalar::cast(*dtype, of(x)?),
            Inst::Bits(dtype, x) => scalar::bits(*dtype, of(x)?),
            Inst::Bind(symbol, reg) => {
                self.env.set(symbol, of(reg)?.as_i64());
                return Ok(None);
            }
            Inst::Set(local, reg) => {
                self.locals[*local] = Some(of(reg)?);
                return Ok(None);
            }
            Inst::Store(access, reg) => {
                self.store(access, of(reg)?)?;
                return Ok(None);
            }
            Inst::Check(check) => {
                self.check(check, of(&check.value)?)?;
                return Ok(None);
            }
            Inst::Reduce(..) => return Err(Error::invalid("`reduce` outside of a strip")),
        }))
    }

    fn check(&mut self, check: &Check, value: Scalar) -> Result<()> {
        let lo = self.env.eval(&check.lo)?;
        let end = self.env.eval(&check.end)?;
        if (lo..end).contains(&value.as_i64()) {
            Ok(())
        } else {
            Err(Error::invalid(format!("{value} is not in {lo}..{end}")).at(check.context.clone()))
        }
    }
}

fn of(frame: &Frame, reg: Reg) -> Result<Scalar> {
    let value = frame.regs.get(reg.0 as usize).copied().flatten();
    value.ok_or_else(|| Error::invalid(format!("%{} has no value", reg.0)))
}
