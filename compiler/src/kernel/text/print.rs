//! Printing, from the program down to a register.

use crate::{
    kernel::{
        Access, Argument, Axis, BatchBlocks, BlockRows, Buffer, CallLimit, Check, Contraction, Control,
        Device, FewBitsForm, FewBitsPanels, Inst, InstSeq, Kernel, MemorySpace, Padding, Partition, Policies,
        Port, Program, Rhs, StateBlock, StateTensor, Stmt,
    },
    scalar::{Precision, Reg},
    text::{Elems, Name, Quoted, join, write_assumption, write_data_dependent, write_symbol},
};
use std::fmt::{self, Formatter};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {} {{", Name(&self.name))?;
        for symbol in &self.symbols {
            write_symbol(f, symbol, self.facts.declaration(symbol))?;
        }

        for found in &self.data_dependent {
            write_data_dependent(
                f,
                &found.symbol,
                &found.upper_bound,
                self.facts.declaration(&found.symbol),
            )?;
        }

        for assumption in self.facts.assumptions() {
            write_assumption(f, "assume", assumption)?;
        }

        if self.workers > 1 {
            writeln!(f, "  workers {}", self.workers)?;
        }

        for Device { target, bytes } in &self.devices {
            writeln!(f, "  device {} {bytes}", Name(target))?;
        }

        for CallLimit { target, at_once } in &self.call_limits {
            writeln!(f, "  at_once {} {at_once}", Name(target))?;
        }

        for (id, buffer) in &self.buffers {
            write!(f, "  {id:?}")?;
            write_buffer(f, buffer)?;
        }

        for port in &self.inputs {
            write_port(f, "input", port)?;
        }

        for port in &self.outputs {
            write_port(f, "output", port)?;
        }

        if let Some(state) = &self.state {
            write_state(f, state)?;
        }

        if let Some(blocks) = &self.batch_blocks {
            write_blocks(f, blocks)?;
        }

        if self.policies == Policies::Any {
            writeln!(f, "  policies any")?;
        }

        for partition in &self.partitions {
            write_partition(f, partition)?;
        }

        for (idx, kernel) in self.kernels.iter().enumerate() {
            if let Some(reason) = self.ragged.as_ref().and_then(|ragged| ragged.reasons.get(&idx)) {
                writeln!(f, "  ; per sequence: {reason}")?;
            }
            write_kernel(f, kernel, 1)?;
        }

        f.write_str("}\n")
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_kernel(f, self, 0)
    }
}

fn write_buffer(f: &mut Formatter<'_>, buffer: &Buffer) -> fmt::Result {
    if !buffer.name.is_empty() {
        write!(f, " {}", Name(&buffer.name))?;
    }

    write!(f, ": {}[{}] ", buffer.dtype, buffer.elems)?;
    match &buffer.space {
        MemorySpace::Input(idx) => writeln!(f, "input {idx}"),
        MemorySpace::Output(idx) => writeln!(f, "output {idx}"),
        MemorySpace::State(idx) => writeln!(f, "state {idx}"),
        MemorySpace::Arena => writeln!(f, "arena"),
        MemorySpace::Scratch => writeln!(f, "scratch"),
        MemorySpace::Device(number) => writeln!(f, "device {number}"),
        MemorySpace::Const(tensor) => writeln!(f, "const [{}] {}", join(tensor.shape()), Elems(tensor)),
    }
}

fn write_blocks(f: &mut Formatter<'_>, blocks: &BatchBlocks) -> fmt::Result {
    let BatchBlocks { images, block, slices, shared } = blocks;
    write!(f, "  images {images} by {block} slices {slices}")?;
    for input in shared {
        write!(f, " shares {input}")?;
    }
    writeln!(f)
}

fn write_port(f: &mut Formatter<'_>, kind: &str, port: &Port) -> fmt::Result {
    writeln!(f, "  {kind} {}[{}] = {:?}", Name(&port.name), join(&port.shape), port.buffer)
}

fn write_state(f: &mut Formatter<'_>, state: &StateBlock) -> fmt::Result {
    if let Some(BlockRows { length, capacity, growth }) = &state.rows {
        writeln!(f, "  rows {length} of {capacity} grow {growth}")?;
    }
    for tensor in &state.tensors {
        let StateTensor { input, output, shape, axis, buffer } = tensor;
        write!(f, "  state {} = {}[{}]", Name(input), Name(output), join(shape))?;
        if let Some(axis) = axis {
            write!(f, " append {axis}")?;
        }
        writeln!(f, " = {buffer:?}")?;
    }
    Ok(())
}

fn write_partition(f: &mut Formatter<'_>, partition: &Partition) -> fmt::Result {
    let Partition { name, kernels, after, target } = partition;
    let begin = kernels.start;
    let end = kernels.end;
    writeln!(f, "  partition {} {begin}..{end} after [{}] on {}", Name(name), join(after), Name(target))
}

/// Two spaces a level.
struct Indent(usize);

impl fmt::Display for Indent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        (0..self.0).try_for_each(|_| f.write_str("  "))
    }
}

fn write_kernel(f: &mut Formatter<'_>, kernel: &Kernel, depth: usize) -> fmt::Result {
    if let Some(control) = &kernel.control {
        return write_control(f, control);
    }
    writeln!(f, "{}kernel {} {{", Indent(depth), Name(&kernel.name))?;
    for (local, dtype) in &kernel.locals {
        writeln!(f, "{}{local:?}: {dtype}", Indent(depth + 1))?;
    }
    write_stmts(f, &kernel.body, depth + 1)?;
    writeln!(f, "{}}}", Indent(depth))
}

fn write_control(f: &mut Formatter<'_>, control: &Control) -> fmt::Result {
    match control {
        Control::If(cell) => writeln!(f, "  if {cell:?}"),
        Control::Else => writeln!(f, "  else"),
        Control::While(cell) => writeln!(f, "  while {cell:?}"),
        Control::End => writeln!(f, "  end"),
        Control::Bind { symbol, from, lo, end, context } => {
            writeln!(f, "  bind {symbol} = {from:?} in {lo}..{end}, {}", Quoted(context))
        }
        Control::Require(assumption) => write_assumption(f, "require", assumption),
        Control::Call(call) => {
            let list = |arguments: &[Argument]| join(arguments.iter().map(Whole));
            write!(f, "  call {} ({}) -> ({})", call.callee, list(&call.operands), list(&call.results))?;
            if let Some(scratch) = call.scratch {
                write!(f, " scratch {scratch:?}")?;
            }
            if let Some(work) = &call.work {
                write!(f, " work [{work}]")?;
            }
            writeln!(f, ", {}", Quoted(&call.context))
        }
        Control::Fail(why) => writeln!(f, "  fail {}", Quoted(why)),
    }
}

/// A tensor that a call is handed.
struct Whole<'a>(&'a Argument);

impl fmt::Display for Whole<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} as [{}]", self.0.first, join(&self.0.shape))
    }
}

fn write_stmts(f: &mut Formatter<'_>, stmts: &[Stmt], depth: usize) -> fmt::Result {
    stmts.iter().try_for_each(|stmt| write_stmt(f, stmt, depth))
}

fn write_stmt(f: &mut Formatter<'_>, stmt: &Stmt, depth: usize) -> fmt::Result {
    let pad = Indent(depth);
    match stmt {
        Stmt::For { axis, parallel, body } => {
            let suffix = if *parallel { " parallel" } else { "" };
            writeln!(f, "{pad}for {}{suffix} {{", Loop(axis))?;
            write_stmts(f, body, depth + 1)?;
        }
        Stmt::Block(code) => {
            writeln!(f, "{pad}block {{")?;
            write_code(f, code, depth + 1)?;
        }
        Stmt::Strip { axis, code } => {
            writeln!(f, "{pad}strip {} {{", Loop(axis))?;
            write_code(f, code, depth + 1)?;
        }
        Stmt::Contraction(contraction) => write_contraction(f, contraction, depth)?,
        Stmt::If { cond, then, otherwise } => {
            writeln!(f, "{pad}if {cond:?} {{")?;
            write_stmts(f, then, depth + 1)?;
            if !otherwise.is_empty() {
                writeln!(f, "{pad}}} else {{")?;
                write_stmts(f, otherwise, depth + 1)?;
            }
        }
        Stmt::While { cond, body } => {
            writeln!(f, "{pad}while {cond:?} {{")?;
            write_stmts(f, body, depth + 1)?;
        }
    }

    writeln!(f, "{pad}}}")
}

fn write_contraction(f: &mut Formatter<'_>, contraction: &Contraction, depth: usize) -> fmt::Result {
    let Contraction { m, n, k, lhs, rhs, dtype, precision, padding, pack_buffer, epilogue } = contraction;
    let inner = Indent(depth + 1);

    match precision {
        Precision::F32 => writeln!(f, "{}contraction {dtype} {{", Indent(depth))?,
        _ => writeln!(f, "{}contraction {dtype} by {precision} {{", Indent(depth))?,
    }

    m.iter().try_for_each(|axis| writeln!(f, "{inner}m {}", Loop(axis)))?;
    writeln!(f, "{inner}n {}", Loop(n))?;
    k.iter().try_for_each(|axis| writeln!(f, "{inner}k {}", Loop(axis)))?;
    writeln!(f, "{inner}lhs {lhs}")?;

    match rhs {
        Rhs::Indexed(access) => writeln!(f, "{inner}rhs {access}")?,
        Rhs::Panels { buffer, base, width } => {
            writeln!(f, "{inner}rhs panels {buffer:?}[{base}] width {width}")?;
        }
        Rhs::FewBits(FewBitsPanels { buffer, base, form, unpack_buffer }) => {
            let FewBitsForm { bits, block, scale, has_zeros, rounds_lhs } = form;
            let zeros = if *has_zeros { " zeros" } else { "" };
            let rounds = if *rounds_lhs { " rounds" } else { "" };
            write!(
                f,
                "{inner}rhs few_bits {buffer:?}[{base}] bits {bits} block {block} scale {scale}{zeros}{rounds}"
            )?;
            if let Some(unpack_buffer) = unpack_buffer {
                write!(f, " unpack {unpack_buffer:?}")?;
            }
            writeln!(f)?;
        }
    }

    if let Some(Padding { position, begin, end }) = padding {
        writeln!(f, "{inner}zero unless {position} in {begin}..{end}")?;
    }
    if let Some(pack_buffer) = pack_buffer {
        writeln!(f, "{inner}pack {pack_buffer:?}")?;
    }

    write_code(f, epilogue, depth + 1)
}

/// The head of a loop, without its keyword.
struct Loop<'a>(&'a Axis);

impl fmt::Display for Loop<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} in 0..{}", self.0.var, self.0.extent)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}[{}]", self.buffer, self.index)
    }
}

fn write_code(f: &mut Formatter<'_>, code: &InstSeq, depth: usize) -> fmt::Result {
    for (idx, inst) in code.insts.iter().enumerate() {
        write!(f, "{}", Indent(depth))?;
        if inst.has_result() {
            write!(f, "%{idx} = ")?;
        }
        write_inst(f, inst)?;
        f.write_str("\n")?;
    }
    Ok(())
}

struct R(Reg);

impl fmt::Display for R {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0.0)
    }
}

fn write_inst(f: &mut Formatter<'_>, inst: &Inst) -> fmt::Result {
    match inst {
        Inst::Const(value) => write!(f, "const {} {value}", value.dtype()),
        Inst::Index(dtype, dim) => write!(f, "index {dtype} {dim}"),
        Inst::Load(access) => write!(f, "load {access}"),
        Inst::Bind(symbol, reg) => write!(f, "bind {symbol} = {}", R(*reg)),
        Inst::Sum => f.write_str("sum"),
        Inst::Get(local) => write!(f, "get {local:?}"),
        Inst::Set(local, reg) => write!(f, "set {local:?}, {}", R(*reg)),
        Inst::Unary(op, x) => write!(f, "{op} {}", R(*x)),
        Inst::Binary(op, x, y) => write!(f, "{op} {}, {}", R(*x), R(*y)),
        Inst::Compare(op, x, y) => write!(f, "{op} {}, {}", R(*x), R(*y)),
        Inst::Select(cond, x, y) => write!(f, "select {}, {}, {}", R(*cond), R(*x), R(*y)),
        Inst::Cast(dtype, x) => write!(f, "cast {dtype} {}", R(*x)),
        Inst::Bits(dtype, x) => write!(f, "bits {dtype} {}", R(*x)),
        Inst::Store(access, reg) => write!(f, "store {access}, {}", R(*reg)),
        Inst::Reduce(op, reg, local) => write!(f, "reduce {op} {} -> {local:?}", R(*reg)),
        Inst::Check(Check { value, lo, end, context }) => {
            write!(f, "check {lo} <= {} < {end}", R(*value))?;
            match context.as_str() {
                "" => Ok(()),
                context => write!(f, ", {}", Quoted(context)),
            }
        }
    }
}
