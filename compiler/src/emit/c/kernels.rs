//! Kernels as C functions: each takes the symbols and buffers that it uses. Kernels that differ only in their buffers,
//! such as those of repeated layers, share a function.
//!
//! A contraction computes [`COLUMNS`] columns at a time, or the columns of a panel. Their partial sums are an array
//! that the C compiler keeps in vector registers.

use super::{
    code::{self, RegisterText},
    constants,
    context::SourceContext,
    dots,
    few_bits_tiles::FewBitsTiles,
    kernel_printer::{ColumnNames, KernelPrinter},
    names,
    rounded_tiles::RoundedTiles,
    scalars,
    text::{identifiers, renamed},
    tiles::Tiles,
};
use crate::{
    error::{At, Result},
    kernel::{Access, Axis, BufferId, Contraction, FewBitsPanels, Inst, InstSeq, Rhs, Stmt, few_bits, walk},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write,
};
use symshape::Dim;
use symshape_runtime::DType;

/// Columns of a contraction that are computed at once if the right-hand side is not packed.
const COLUMNS: u32 = 16;

/// The call of a kernel's function.
pub(super) struct KernelCall {
    /// The call as an expression.
    pub(super) text: String,
    /// Whether the function returns an error code; it returns nothing otherwise.
    pub(super) can_fail: bool,
}

/// Prints all kernels. Returns their calls, by the index of the kernel; `None` for control markers.
pub(super) fn kernels(out: &mut String, cx: &SourceContext<'_>) -> Result<Vec<Option<KernelCall>>> {
    let program = cx.program;
    let mut n_errors = 0;
    let mut calls = Vec::new();
    let mut functions = Functions::default();
    for (idx, kernel) in program.kernels.iter().enumerate() {
        if kernel.control.is_some() {
            calls.push(None);
            continue;
        }
        let mut printer = KernelPrinter::new(cx, kernel, n_errors);
        printer.statements(&kernel.body).at(|| format!("kernel {idx} ({})", kernel.name))?;
        n_errors = printer.n_errors;
        calls.push(Some(printer.finish(&mut functions, idx)));
    }

    functions.print(out);
    Ok(calls)
}

impl KernelPrinter<'_> {
    /// Adds the function with the statements so far as its body.
    fn finish(self, functions: &mut Functions, idx: usize) -> KernelCall {
        let used: BTreeSet<&str> = identifiers(&self.body).collect();
        let mut locals = String::new();
        for (local, dtype) in &self.kernel.locals {
            let name = names::local(local);
            // C compilers warn of variables that are never used.
            if used.contains(name.as_str()) {
                let _ = writeln!(locals, "    {} {name} = 0;", names::value_type(*dtype));
            }
        }

        let parameters = self.parameters(&used);
        let args: Vec<&str> = parameters.iter().map(|parameter| parameter.argument.as_str()).collect();
        let declarations: Vec<String> =
            parameters.iter().map(|Parameter { ty, name, .. }| format!("{ty}{name}")).collect();
        let declarations = if declarations.is_empty() { "void".to_string() } else { declarations.join(", ") };

        let mut own_names: BTreeMap<&str, String> = parameters
            .iter()
            .map(|parameter| (parameter.argument.as_str(), parameter.name.clone()))
            .collect();
        let mut n_loops = 0;
        for name in identifiers(&self.body).filter(|name| self.names.is_loop(name)) {
            own_names.entry(name).or_insert_with(|| {
                n_loops += 1;
                format!("{}{}", names::LOOP_PREFIX, n_loops - 1)
            });
        }
        let body = renamed(&self.body, &own_names);
        let end = if self.can_fail { "    return 0;\n" } else { "" };
        let function = KernelFunction {
            idx,
            comment: names::comment(&self.kernel.name),
            n_twins: 0,
            error_constants: self.error_constants,
            can_fail: self.can_fail,
            text: format!("({declarations}) {{\n{locals}{body}{end}}}\n"),
        };
        let number = functions.add(function);
        KernelCall { text: format!("kernel_{number}({})", args.join(", ")), can_fail: self.can_fail }
    }

    /// The parameters of the function, whose body uses the identifiers `used`. Buffers are numbered, so that equal
    /// functions have equal texts.
    fn parameters(&self, used: &BTreeSet<&str>) -> Vec<Parameter> {
        let mut parameters = Vec::new();
        let plain =
            |ty: &str, name: &str| Parameter { ty: ty.into(), name: name.into(), argument: name.into() };
        if self.can_fail {
            parameters.push(plain("symshape_error *", "error"));
        }
        for symbol in self.program.all_symbols() {
            if let Some(name) = self.names.symbol(symbol).filter(|name| used.contains(name)) {
                parameters.push(plain("int64_t ", name));
            }
        }

        let mut written = BTreeSet::new();
        walk::accesses(&self.kernel.body, &mut |site| {
            if site.is_store {
                written.insert(site.access.buffer);
            }
        });
        let mut n_buffers = 0;
        for (id, buffer) in &self.program.buffers {
            let argument = names::buffer(self.program, id);
            if !used.contains(argument.as_str()) {
                continue;
            }
            let constant = if written.contains(&id) { "" } else { "const " };
            let ty = format!("{constant}{} *restrict ", names::memory_type(buffer.dtype));
            let letter = if self.program.is_const(id) { 'c' } else { 'b' };
            let name = format!("{letter}{n_buffers}");
            n_buffers += 1;
            parameters.push(Parameter { ty, name, argument });
        }
        parameters
    }

    fn statements(&mut self, body: &[Stmt]) -> Result<()> {
        body.iter().try_for_each(|stmt| self.statement(stmt))
    }

    fn statement(&mut self, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::For { axis, body, .. } => self.loop_over(axis, |this| this.statements(body)),
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
        let mut accumulators = Vec::new();
        let mut results = Vec::new();
        for inst in &code.insts {
            let Inst::Reduce(op, _, local) = inst else { continue };
            let accumulator = self.fresh('s');
            let dtype = self.kernel.locals[*local];
            let neutral = constants::literal(op.neutral(dtype));
            self.line(&format!("{} {accumulator} = {neutral};", names::value_type(dtype)));
            accumulators.push(accumulator);
            results.push(*local);
        }

        self.loop_over(axis, |this| this.code(code, None, &accumulators))?;

        for (accumulator, local) in accumulators.iter().zip(results) {
            self.line(&format!("{} = {accumulator};", names::local(local)));
        }
        Ok(())
    }

    fn contraction(&mut self, contraction: &Contraction) -> Result<()> {
        let outer = contraction.m.split_last().map_or(&[][..], |(_, outer)| outer);
        if self.vectors {
            if let Some(tiles) = Tiles::of(self, contraction) {
                return self.nested_loops(outer, &mut |this| this.tiles(&tiles));
            }
            if let Some(tiles) = FewBitsTiles::of(self, contraction) {
                return self.nested_loops(outer, &mut |this| this.few_bits_tiles(&tiles));
            }
            if let Some(tiles) = RoundedTiles::of(contraction) {
                return self.nested_loops(outer, &mut |this| this.rounded_tiles(&tiles));
            }
        }
        self.nested_loops(&contraction.m, &mut |this| this.row(contraction, "0"))
    }

    /// Prints the loop over the columns of one row of the result, from the column `begin` on.
    pub(super) fn row(&mut self, contraction: &Contraction, begin: &str) -> Result<()> {
        let width = match &contraction.rhs {
            Rhs::Indexed(_) => COLUMNS,
            Rhs::Panels { width, .. } => *width,
            Rhs::FewBits(_) => few_bits::WIDTH as u32,
        };
        let ty = names::value_type(contraction.dtype);
        let n = self.symbol(&contraction.n)?;
        let columns = ColumnNames { first: self.fresh('n'), end: self.fresh('n'), sums: self.fresh('s') };
        let ColumnNames { first, end, sums } = &columns;
        let extent = self.dim(&contraction.n.extent)?;
        self.open(&format!("for (int64_t {first} = {begin}; {first} < {extent}; {first} += {width}) {{"));
        self.line(&format!("const int64_t {end} = min_i64({first} + {width}, {extent});"));
        self.line(&format!("{ty} {sums}[{width}] = {{0}};"));

        let outside = self.facts.clone();
        self.facts.declare_index(&contraction.n.var, &contraction.n.extent);
        match &contraction.rhs {
            Rhs::Indexed(rhs) => self.multiply_indexed(contraction, rhs, &columns)?,
            Rhs::Panels { buffer, base, width } => {
                let panels = Panels { buffer: *buffer, base, width: *width };
                self.multiply_panel(contraction, &panels, &columns)?;
            }
            Rhs::FewBits(panels) if panels.form.rounds_lhs => {
                self.multiply_rounded(contraction, panels, &columns)?;
            }
            Rhs::FewBits(panels) => self.multiply_few_bits(contraction, panels, &columns)?,
        }

        self.open(&format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{"));
        let sum = RegisterText::name(format!("{sums}[{n} - {first}]"), contraction.dtype);
        self.code(&contraction.epilogue, Some(sum), &[])?;
        self.close("}");
        self.facts = outside;
        self.close("}");
        Ok(())
    }

    /// Prints the sums of some columns of one row; the right-hand side is read in place.
    fn multiply_indexed(
        &mut self,
        contraction: &Contraction,
        rhs: &Access,
        ColumnNames { first, end, sums }: &ColumnNames,
    ) -> Result<()> {
        let lhs_name = self.fresh('a');
        let n = self.symbol(&contraction.n)?;
        self.nested_loops(&contraction.k, &mut |this| {
            this.load_lhs(contraction, &lhs_name)?;
            this.open(&format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{"));
            let element = this.element(rhs)?;
            let sum = format!("{sums}[{n} - {first}]");
            let rhs = scalars::loaded(this.dtype(rhs), contraction.dtype, &element);
            this.line(&code::accumulated(contraction.dtype, &sum, &lhs_name, &rhs)?);
            this.close("}");
            Ok(())
        })
    }

    /// Prints the sums of some columns of one row; the right-hand side is packed.
    fn multiply_panel(
        &mut self,
        contraction: &Contraction,
        panels: &Panels,
        ColumnNames { first, sums, .. }: &ColumnNames,
    ) -> Result<()> {
        let lhs_name = self.fresh('a');
        let panel = self.fresh('p');
        let column = self.fresh('j');
        let width = panels.width;

        let dtype = self.program.buffers[panels.buffer].dtype;
        let function = dots::function(self.dtype(&contraction.lhs), dtype)
            .filter(|_| !self.vectors && contraction.dtype == DType::I32 && width == dots::WIDTH);
        let memory = names::memory_type(dtype);
        let buffer = names::buffer(self.program, panels.buffer);
        let depth = self.dim(&contraction.depth())?;
        let base = self.dim(panels.base)?;
        self.line(&format!("const {memory} *{panel} = {buffer} + {base} + {first}*({depth});"));

        if let (Some(function), Some((inner, outer))) = (function, contraction.k.split_last())
            && let Some(origin) = self.adjacent_row(contraction)
        {
            let row = names::buffer(self.program, contraction.lhs.buffer);
            let count = self.dim(&inner.extent)?;
            return self.nested_loops(outer, &mut |this| {
                let origin = this.dim(&origin)?;
                this.line(&format!("{function}({sums}, {row} + {origin}, {panel}, {count});"));
                this.line(&format!("{panel} += {width}*({count});"));
                Ok(())
            });
        }
        self.nested_loops(&contraction.k, &mut |this| {
            this.load_lhs(contraction, &lhs_name)?;
            this.open(&format!("for (int {column} = 0; {column} < {width}; {column}++) {{"));
            let sum = format!("{sums}[{column}]");
            let rhs = scalars::loaded(dtype, contraction.dtype, &format!("{panel}[{column}]"));
            this.line(&code::accumulated(contraction.dtype, &sum, &lhs_name, &rhs)?);
            this.close("}");
            this.line(&format!("{panel} += {width};"));
            Ok(())
        })
    }

    /// Prints the sums of some columns of one row; the right-hand side has few bits.
    fn multiply_few_bits(
        &mut self,
        contraction: &Contraction,
        panels: &FewBitsPanels,
        ColumnNames { first, end, sums }: &ColumnNames,
    ) -> Result<()> {
        let place = panels.place(contraction)?;
        let lhs_name = self.fresh('a');
        let rhs_name = self.fresh('w');
        let n = self.symbol(&contraction.n)?;
        self.nested_loops(&contraction.k, &mut |this| {
            this.load_lhs(contraction, &lhs_name)?;
            this.open(&format!("for (int64_t {n} = {first}; {n} < {end}; {n}++) {{"));
            let scale = this.weight_scale(panels, &place)?;
            let integer = this.weight_integer(panels, &place)?;
            this.line(&format!("const float {rhs_name} = (float)({integer}) * {scale};"));
            let sum = format!("{sums}[{n} - {first}]");
            this.line(&code::accumulated(contraction.dtype, &sum, &lhs_name, &rhs_name)?);
            this.close("}");
            Ok(())
        })
    }

    /// The scale of a weight of few bits.
    pub(super) fn weight_scale(
        &self,
        panels: &FewBitsPanels,
        place: &few_bits::ElementPlace,
    ) -> Result<String> {
        let buffer = names::buffer(self.program, panels.buffer);
        let scale = match panels.form.scale {
            DType::F16 => "f16_scale",
            DType::BF16 => "bf16_scale",
            _ => "f32_scale",
        };
        Ok(format!("{scale}({buffer} + {})", self.dim(&place.scale)?))
    }

    /// The integer of a weight of few bits, less its zero point.
    pub(super) fn weight_integer(
        &self,
        panels: &FewBitsPanels,
        place: &few_bits::ElementPlace,
    ) -> Result<String> {
        let buffer = names::buffer(self.program, panels.buffer);
        let bits = panels.form.bits;
        let code = self.dim(&place.code)?;
        let bit = self.dim(&place.bit)?;
        let zero = match &place.zero {
            Some(zero) => format!(" - (int8_t){buffer}[{}]", self.dim(zero)?),
            None => String::new(),
        };
        Ok(match bits {
            8 => format!("(int8_t){buffer}[{code}]{zero}"),
            _ => format!("few_bits({buffer}[{code}], (int)({bit}), {bits}){zero}"),
        })
    }

    /// Defines `name` as the element of the left-hand side.
    pub(super) fn load_lhs(&mut self, contraction: &Contraction, name: &str) -> Result<()> {
        let element = self.element(&contraction.lhs)?;
        let lhs = scalars::loaded(self.dtype(&contraction.lhs), contraction.dtype, &element);
        self.line(&format!("const {} {name} = {lhs};", names::value_type(contraction.dtype)));
        Ok(())
    }
}

/// A parameter of a C function; `ty` ends where the name begins.
struct Parameter {
    ty: String,
    name: String,
    /// The argument of the call.
    argument: String,
}

/// The function of a kernel.
struct KernelFunction {
    /// The index of the first kernel that calls it.
    idx: usize,
    comment: String,
    /// Number of other kernels that call it.
    n_twins: usize,
    /// Constants before the function.
    error_constants: String,
    can_fail: bool,
    /// Parameters and body.
    text: String,
}

/// The functions so far.
#[derive(Default)]
struct Functions {
    list: Vec<KernelFunction>,
    /// The place of each text in the list.
    places: HashMap<String, usize>,
}

impl Functions {
    /// Adds a function, unless there is one with this text. Returns the number in its name.
    fn add(&mut self, function: KernelFunction) -> usize {
        let idx = function.idx;
        // Errors name the node, so functions with errors differ.
        if function.error_constants.is_empty() {
            if let Some(place) = self.places.get(&function.text) {
                let known = &mut self.list[*place];
                known.n_twins += 1;
                return known.idx;
            }
            self.places.insert(function.text.clone(), self.list.len());
        }
        self.list.push(function);
        idx
    }

    fn print(&self, out: &mut String) {
        for KernelFunction { idx, comment, n_twins, error_constants, can_fail, text } in &self.list {
            let result = if *can_fail { "int32_t" } else { "void" };
            let twins = match n_twins {
                0 => String::new(),
                count => format!("; and {count} more with other buffers"),
            };
            let _ =
                writeln!(out, "{error_constants}/* {comment}{twins} */\nstatic {result} kernel_{idx}{text}");
        }
    }
}

/// A packed right-hand side, see [`Rhs::Panels`].
struct Panels<'a> {
    buffer: BufferId,
    base: &'a Dim,
    width: u32,
}
