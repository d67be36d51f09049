//! Kernels as C functions: each takes the symbols and buffers that it uses.
//!
//! A contraction is done for [`COLUMNS`] columns at a time, or a panel's, whose sums are an array that the C compiler
//! keeps in vector registers.

use super::{
    constants, contract, dims,
    names::{self, SymbolNames},
    scalars,
    text::identifiers,
};
use crate::{
    error::{At, Error, Result},
    kernel::{
        Access, Axis, Check, Contraction, Inst, InstSeq, Kernel, MemorySpace, Program, Rhs, Stmt,
        contract::Failure, walk,
    },
    scalar::{ReduceOp, Reg},
};
use std::{collections::BTreeSet, fmt::Write};
use symshape::{Dim, Facts};
use symshape_runtime::DType;

/// Columns of a contraction that are summed side by side where the right-hand side is not packed.
const COLUMNS: u32 = 16;

/// Longer expressions get a name.
const LONG: usize = 50;

/// How a kernel is called.
pub(super) struct KernelCall {
    /// The call itself.
    pub(super) text: String,
    /// It returns the code of an error.
    pub(super) fails: bool,
}

/// Prints all kernels; the calls of those that steer no others, by the index of the kernel.
pub(super) fn kernels(
    out: &mut String,
    program: &Program,
    names: &SymbolNames,
) -> Result<Vec<Option<KernelCall>>> {
    let mut errors = 0;
    let mut calls = Vec::new();
    for (idx, kernel) in program.kernels.iter().enumerate() {
        if kernel.control.is_some() {
            calls.push(None);
            continue;
        }
        let mut printer = Printer::new(program, names, kernel, errors);
        printer.statements(&kernel.body).at(|| format!("kernel {idx} ({})", kernel.name))?;
        errors = printer.errors;
        calls.push(Some(printer.finish(out, idx)));
    }
    Ok(calls)
}

/// A register: an expression without effects, of values that do not change.
#[derive(Clone)]
struct RegisterText {
    text: String,
    dtype: DType,
    is_name: bool,
}

impl RegisterText {
    fn name(text: String, dtype: DType) -> RegisterText {
        RegisterText { text, dtype, is_name: true }
    }

    /// The expression as an operand.
    fn operand(&self) -> String {
        if self.is_name { self.text.clone() } else { format!("({})", self.text) }
    }
}

struct Printer<'p> {
    program: &'p Program,
    names: &'p SymbolNames,
    kernel: &'p Kernel,
    facts: Facts,
    out: String,
    depth: usize,
    /// SymbolNames given so far.
    numbers: u32,
    /// What the kernel may report, as objects.
    failures: String,
    /// How many there are, those of earlier kernels among them.
    errors: usize,
    fails: bool,
}

impl<'p> Printer<'p> {
    fn new(program: &'p Program, names: &'p SymbolNames, kernel: &'p Kernel, errors: usize) -> Printer<'p> {
        Printer {
            program,
            names,
            kernel,
            facts: program.facts.clone(),
            out: String::new(),
            depth: 1,
            numbers: 0,
            failures: String::new(),
            errors,
            fails: false,
        }
    }

    /// Puts the function around what was printed.
    fn finish(self, out: &mut String, idx: usize) -> KernelCall {
        let used: BTreeSet<&str> = identifiers(&self.out).collect();
        let mut locals = String::new();
        for (local, dtype) in &self.kernel.locals {
            let name = names::local(local);
            // A variable whose only reader was rewritten away is one that compilers warn of.
            if used.contains(name.as_str()) {
                let _ = writeln!(locals, "    {} {name} = 0;", names::value_type(*dtype));
            }
        }
        let (mut params, mut args) = (Vec::new(), Vec::new());
        if self.fails {
            params.push("symshape_error *error".to_string());
            args.push("error".to_string());
        }
        for symbol in self.program.all_symbols() {
            if let Some(name) = self.names.symbol(symbol).filter(|name| used.contains(name)) {
                params.push(format!("int64_t {name}"));
                args.push(name.to_string());
            }
        }
        let mut written = BTreeSet::new();
        walk::accesses(&self.kernel.body, &mut |site| {
            if site.is_store {
                written.insert(site.access.buffer);
            }
        });
        for (id, buffer) in &self.program.buffers {
            let name = names::buffer(self.program, id);
            if matches!(buffer.space, MemorySpace::Const(_)) || !used.contains(name.as_str()) {
                continue;
            }
            let constant = if written.contains(&id) { "" } else { "const " };
            params.push(format!("{constant}{} *restrict {name}", names::memory_type(buffer.dtype)));
            args.push(name);
        }
        let (result, end) = if self.fails { ("int32_t", "    return 0;\n") } else { ("void", "") };
        let params = if params.is_empty() { "void".to_string() } else { params.join(", ") };
        let comment = names::comment(&self.kernel.name);
        let _ = writeln!(
            out,
            "{}/* {comment} */\nstatic {result} kernel_{idx}({params}) {{\n{locals}{}{end}}}\n",
            self.failures, self.out
        );
        KernelCall { text: format!("kernel_{idx}({})", args.join(", ")), fails: self.fails }
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", 4 * self.depth);
    }

    fn dim(&self, dim: &Dim) -> Result<String> {
        dims::term(self.names, &self.facts, dim)
    }

    fn symbol(&self, axis: &Axis) -> Result<String> {
        let name = self.names.symbol(&axis.var);
        name.map(str::to_string).ok_or_else(|| Error::internal(format!("unknown symbol {}", axis.var)))
    }

    fn fresh(&mut self, letter: char) -> String {
        self.numbers += 1;
        format!("{letter}{}", self.numbers)
    }

    fn element(&self, access: &Access) -> Result<String> {
        Ok(format!("{}[{}]", names::buffer(self.program, access.buffer), self.dim(&access.index)?))
    }

    fn dtype(&self, access: &Access) -> DType {
        self.program.buffers[access.buffer].dtype
    }

    /// Prints a loop around what `body` prints.
    fn counted(&mut self, axis: &Axis, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (var, extent) = (self.symbol(axis)?, self.dim(&axis.extent)?);
        self.open(&format!("for (int64_t {var} = 0; {var} < {extent}; {var}++) {{"));
        let outside = self.facts.clone();
        self.facts.declare_index(&axis.var, &axis.extent);
        body(self)?;
        self.facts = outside;
        self.close("}");
        Ok(())
    }

    /// Loops one inside the other.
    fn nested(&mut self, axes: &[Axis], body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        match axes.split_first() {
            None => body(self),
            Some((axis, rest)) => self.counted(axis, |this| this.nested(rest, body)),
        }
    }

    fn open(&mut self, line: &str) {
        self.line(line);
        self.depth += 1;
    }

    fn close(&mut self, line: &str) {
        self.depth -= 1;
        self.line(line);
    }

    fn statements(&mut self, body: &[Stmt]) -> Result<()> {
        body.iter().try_for_each(|stmt| self.statement(stmt))
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::For { axis, body, .. } => self.counted(axis, |this| this.statements(body)),
            Stmt::Block(code) => self.code(code, None, &[]),
            Stmt::Strip { axis, code } => self.strip(axis, code),
            Stmt::Contraction(contraction) => self.contraction(contraction),
            Stmt::If { cond, then, otherwise } => {
                self.open(&format!("if ({}) {{", names::local(*cond)));
                self.statements(then)?;
                if !otherwise.is_empty() {
                    self.close("} else {");
                    self.depth += 1;
                    self.statements(otherwise)?;
                }
                self.close("}");
                Ok(())
            }
            Stmt::While { cond, body } => {
                self.open(&format!("while ({}) {{", names::local(*cond)));
                self.statements(body)?;
                self.close("}");
                Ok(())
            }
        }
    }

    fn strip(&mut self, axis: &Axis, code: &InstSeq) -> Result<()> {
        let mut sums = Vec::new();
        for inst in &code.insts {
            let Inst::Reduce(op, _, local) = inst else { continue };
            let (sum, dtype) = (self.fresh('s'), self.kernel.locals[*local]);
            let neutral = constants::literal(op.neutral(dtype));
            self.line(&format!("{} {sum} = {neutral};", names::value_type(dtype)));
            sums.push((sum, *local));
        }
        let accumulators: Vec<String> = sums.iter().map(|(sum, _)| sum.clone()).collect();
        self.counted(axis, |this| this.code(code, None, &accumulators))?;
        for (sum, local) in sums {
            self.line(&format!("{} = {sum};", names::local(local)));
        }
        Ok(())
    }

    fn contraction(&mut self, contraction: &Contraction) -> Result<()> {
        self.nested(&contraction.m, &mut |this| this.columns(contraction))
    }

    /// All columns of one row.
    fn columns(&mut self, contraction: &Contraction) -> Result<()> {
        let width = match &contraction.rhs {
            Rhs::Indexed(_) => COLUMNS,
            Rhs::Panels { width, .. } => *width,
        };
        let (ty, n) = (names::value_type(contraction.dtype), self.symbol(&contraction.n)?);
        let (first, end, sum) = (self.fresh('n'), self.fresh('n'), self.fresh('s'));
        let extent = self.dim(&contraction.n.extent)?;
        self.open(&format!("for (int64_t {first} = 0; {first} < {extent}; {first} += {width}) {{"));
        self.line(&format!("const int64_t {end} = min_i64({first} + {width}, {extent});"));
        self.line(&format!("{ty} {sum}[{width}] = {{0}};"));
        let outside = self.facts.clone();
        self.facts.declare_index(&contraction.n.var, &contraction.n.extent);
        self.products(contraction, [&first, &end, &sum])?;
        self.open(&format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{"));
        let value = RegisterText::name(format!("{sum}[{n} - {first}]"), contraction.dtype);
        self.code(&contraction.epilogue, Some(value), &[])?;
        self.close("}");
        self.facts = outside;
        self.close("}");
        Ok(())
    }

    /// The sums of products of one row and some columns.
    fn products(&mut self, contraction: &Contraction, [first, end, sum]: [&str; 3]) -> Result<()> {
        let (ty, factor) = (names::value_type(contraction.dtype), self.fresh('a'));
        let n = self.symbol(&contraction.n)?;
        let (panel, column, rhs, rhs_type, each) = match &contraction.rhs {
            Rhs::Indexed(access) => {
                let each = format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{");
                (None, format!("{n} - {first}"), None, self.dtype(access), each)
            }
            Rhs::Panels { buffer, base, width } => {
                let (panel, idx) = (self.fresh('p'), self.fresh('j'));
                let buffer_type = self.program.buffers[*buffer].dtype;
                let depth = self.dim(&contraction.depth())?;
                let (name, base) = (names::buffer(self.program, *buffer), self.dim(base)?);
                let memory = names::memory_type(buffer_type);
                self.line(&format!("const {memory} *{panel} = {name} + {base} + {first}*({depth});"));
                let each = format!("for (int {idx} = 0; {idx} < {width}; {idx}++) {{");
                (
                    Some((panel.clone(), *width)),
                    idx.clone(),
                    Some(format!("{panel}[{idx}]")),
                    buffer_type,
                    each,
                )
            }
        };
        self.nested(&contraction.k, &mut |this| {
            let lhs_type = this.dtype(&contraction.lhs);
            let lhs = scalars::load(lhs_type, &this.element(&contraction.lhs)?);
            let lhs = scalars::cast(lhs_type, contraction.dtype, &lhs);
            this.line(&format!("const {ty} {factor} = {lhs};"));
            this.open(&each);
            let rhs = match (&rhs, &contraction.rhs) {
                (Some(rhs), _) => rhs.clone(),
                (None, Rhs::Indexed(access)) => this.element(access)?,
                (None, Rhs::Panels { .. }) => return Err(Error::internal("a panel without a name")),
            };
            let rhs = scalars::cast(rhs_type, contraction.dtype, &scalars::load(rhs_type, &rhs));
            let sum = format!("{sum}[{column}]");
            this.line(&accumulated(contraction.dtype, &sum, &factor, &rhs)?);
            this.close("}");
            if let Some((panel, width)) = &panel {
                this.line(&format!("{panel} += {width};"));
            }
            Ok(())
        })
    }

    /// Straight-line code; `accumulators` are those of its reductions in order.
    fn code(&mut self, code: &InstSeq, sum: Option<RegisterText>, accumulators: &[String]) -> Result<()> {
        let mut accumulators = accumulators.iter();
        let mut regs: Vec<Option<RegisterText>> = Vec::new();
        let mut checked: Vec<(Reg, &Check)> = Vec::new();
        let mut bound: Vec<(String, usize)> = Vec::new();
        for (inst, uses) in code.insts.iter().zip(uses(code)) {
            let of =
                |reg: &Reg| regs[reg.0 as usize].clone().ok_or_else(|| Error::internal("no such register"));
            let value = match inst {
                Inst::Sum => sum.clone(),
                unused if uses == 0 && unused.has_result() => None,
                Inst::Load(access) => {
                    let dtype = self.dtype(access);
                    let text = scalars::load(dtype, &self.element(access)?);
                    Some(self.named(text, dtype))
                }
                Inst::Get(local) => Some(self.named(names::local(*local), self.kernel.locals[*local])),
                Inst::Store(access, x) => {
                    let stored = scalars::store(self.dtype(access), &of(x)?.text);
                    let line = format!("{} = {stored};", self.element(access)?);
                    self.line(&line);
                    None
                }
                Inst::Set(local, x) => {
                    let line = format!("{} = {};", names::local(*local), of(x)?.text);
                    self.line(&line);
                    None
                }
                Inst::Reduce(op, x, _) => {
                    let sum = accumulators.next().ok_or_else(|| Error::internal("no accumulator"))?;
                    let line = reduced(*op, sum, &of(x)?)?;
                    self.line(&line);
                    None
                }
                Inst::Bind(symbol, x) => {
                    let name = self.names.symbol(symbol).unwrap_or_default().to_string();
                    self.line(&format!("const int64_t {name} = {};", of(x)?.text));
                    bound.push((name, self.out.len()));
                    for (_, check) in checked.iter().filter(|(reg, _)| reg == x) {
                        self.facts.declare_between(symbol, &check.lo, &(&check.end - 1));
                    }
                    None
                }
                Inst::Check(check) => {
                    self.check(check, &of(&check.value)?)?;
                    checked.push((check.value, check));
                    None
                }
                pure => Some(self.pure(pure, &regs, uses)?),
            };
            regs.push(value);
        }
        // Where an axis has one element only, its index is checked and nowhere used.
        for (name, from) in bound {
            if !identifiers(&self.out[from..]).any(|word| word == name) {
                self.line(&format!("(void){name};"));
            }
        }
        Ok(())
    }

    /// What an instruction without effects computes, under a name if it is long or used often.
    fn pure(&mut self, inst: &Inst, regs: &[Option<RegisterText>], uses: u32) -> Result<RegisterText> {
        let of = |reg: &Reg| regs[reg.0 as usize].clone().ok_or_else(|| Error::internal("no such register"));
        let (text, dtype) = match inst {
            Inst::Const(value) => {
                let text = constants::literal(*value);
                let is_name = !text.starts_with('-');
                return Ok(RegisterText { text, dtype: value.dtype(), is_name });
            }
            Inst::Index(dtype, dim) => {
                let text = self.dim(dim)?;
                let text = if *dtype == DType::I64 {
                    text
                } else {
                    format!("({})({text})", names::value_type(*dtype))
                };
                return Ok(RegisterText { text, dtype: *dtype, is_name: false });
            }
            Inst::Unary(op, x) => {
                let x = of(x)?;
                let is_bool = matches!(op, crate::scalar::UnaryOp::IsNan | crate::scalar::UnaryOp::IsInf);
                let dtype = if is_bool { DType::Bool } else { x.dtype };
                (scalars::unary(*op, x.dtype, &x.operand())?, dtype)
            }
            Inst::Binary(op, x, y) => {
                let (x, y) = (of(x)?, of(y)?);
                (scalars::binary(*op, x.dtype, &x.operand(), &y.operand())?, x.dtype)
            }
            Inst::Compare(op, x, y) => {
                (scalars::compare(*op, &of(x)?.operand(), &of(y)?.operand()), DType::Bool)
            }
            Inst::Select(cond, x, y) => {
                let (cond, x, y) = (of(cond)?, of(x)?, of(y)?);
                (format!("{} ? {} : {}", cond.operand(), x.operand(), y.operand()), x.dtype)
            }
            Inst::Cast(to, x) => {
                let x = of(x)?;
                (scalars::cast(x.dtype, *to, &x.operand()), *to)
            }
            Inst::Bits(to, x) => {
                let x = of(x)?;
                (scalars::bits(x.dtype, *to, &x.operand()), *to)
            }
            _ => return Err(Error::internal("an instruction with effects")),
        };
        match uses > 1 || text.len() > LONG {
            true => Ok(self.named(text, dtype)),
            false => Ok(RegisterText { text, dtype, is_name: false }),
        }
    }

    /// Gives an expression a name.
    fn named(&mut self, text: String, dtype: DType) -> RegisterText {
        let name = self.fresh('r');
        self.line(&format!("const {} {name} = {text};", names::value_type(dtype)));
        RegisterText::name(name, dtype)
    }

    /// Leaves the kernel where a value is out of its range.
    fn check(&mut self, check: &Check, value: &RegisterText) -> Result<()> {
        let failure = Failure::index_out_of_bounds(&check.context);
        let error = format!("error_{}", self.errors);
        self.errors += 1;
        self.failures.push_str(&contract::object(&error, &failure));
        self.fails = true;
        let (lo, end, value) = (self.dim(&check.lo)?, self.dim(&check.end)?, value.operand());
        // An unsigned comparison would hide negative bounds.
        self.open(&format!("if ((int64_t){value} < {lo} || (int64_t){value} >= {end}) {{"));
        self.line(&format!("return fail(error, &{error}, (int64_t){value}, {lo}, {end} - 1);"));
        self.close("}");
        Ok(())
    }
}

/// How often each result is used, not counting what itself is for nothing.
fn uses(code: &InstSeq) -> Vec<u32> {
    let mut uses = vec![0; code.insts.len()];
    for (idx, inst) in code.insts.iter().enumerate().rev() {
        if uses[idx] > 0 || !inst.has_result() {
            inst.operands().iter().for_each(|reg| uses[reg.0 as usize] += 1);
        }
    }
    uses
}

/// `sum += a*b`, wrapping on integers.
fn accumulated(dtype: DType, sum: &str, a: &str, b: &str) -> Result<String> {
    if dtype.is_float() {
        return Ok(format!("{sum} += {a} * {b};"));
    }
    let product = scalars::binary(crate::scalar::BinaryOp::Mul, dtype, a, &format!("({b})"))?;
    let total = scalars::binary(crate::scalar::BinaryOp::Add, dtype, sum, &product)?;
    Ok(format!("{sum} = {total};"))
}

fn reduced(op: ReduceOp, sum: &str, x: &RegisterText) -> Result<String> {
    match op {
        ReduceOp::Sum if x.dtype.is_float() => Ok(format!("{sum} += {};", x.text)),
        _ => Ok(format!("{sum} = {};", scalars::binary(op.binary(), x.dtype, sum, &x.operand())?)),
    }
}
