//! Parses programs down to their statements; [`super::code`] parses instructions.

use super::{
    code::CodeReader,
    operand::{access, axis, buffer_id, local},
};
use crate::{
    error::Result,
    external,
    kernel::{
        Argument, Axis, BatchBlocks, BlockRows, Buffer, BufferId, CallLimit, Contraction, Control,
        DataDependent, Device, ExternalCall, FewBitsForm, FewBitsPanels, InstSeq, Kernel, Local, MemorySpace,
        Padding, Partition, Policies, Port, Program, Rhs, StateTensor, Stmt,
    },
    text::{self, Cursor, TensorReader},
};
use cranelift_entity::PrimaryMap;
use std::collections::BTreeSet;
use symshape::{Assumption, Dim};
use symshape_runtime::DType;

/// The maximum nesting of statements, so that a hostile text cannot exhaust the stack.
const MAX_DEPTH: usize = 64;

pub(super) fn program(text: &str) -> Result<Program> {
    let mut reader =
        Reader { cursor: Cursor::new(text), program: Program::default(), consts: TensorReader::default() };
    reader.cursor.next_line();
    reader.head("program")?;

    while reader.cursor.in_braces()? {
        reader.line()?;
    }

    if reader.cursor.next_line() {
        Err(reader.cursor.error("unexpected text after the program"))
    } else {
        Ok(reader.program)
    }
}

/// The rest of a line that begins with the word `call`.
fn call(cursor: &mut Cursor<'_>, buffers: &PrimaryMap<BufferId, Buffer>) -> Result<ExternalCall> {
    let callee = external::read(cursor)?;
    let operands = arguments(cursor, buffers)?;
    cursor.expect("->")?;
    let results = arguments(cursor, buffers)?;
    let scratch = if cursor.eat_word("scratch") { Some(buffer_id(cursor, buffers)?) } else { None };
    let work = if cursor.eat_word("work") { Some(work(cursor)?) } else { None };
    cursor.expect(",")?;
    Ok(ExternalCall { callee, operands, results, scratch, work, context: cursor.string()? })
}

/// `[DIM]`
fn work(cursor: &mut Cursor<'_>) -> Result<Dim> {
    cursor.expect("[")?;
    let mut dims = cursor.dims()?;
    match (dims.pop(), dims.is_empty()) {
        (Some(work), true) => Ok(work),
        _ => Err(cursor.error("expected one expression")),
    }
}

fn arguments(cursor: &mut Cursor<'_>, buffers: &PrimaryMap<BufferId, Buffer>) -> Result<Vec<Argument>> {
    cursor.expect("(")?;
    let mut list = Vec::new();
    while !cursor.eat(")") {
        if !list.is_empty() {
            cursor.expect(",")?;
        }
        let first = access(cursor, buffers)?;
        cursor.expect("as")?;
        cursor.expect("[")?;
        list.push(Argument { first, shape: cursor.dims()? });
    }

    Ok(list)
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    program: Program,
    consts: TensorReader,
}

impl Reader<'_> {
    /// `program NAME {`
    fn head(&mut self, keyword: &str) -> Result<()> {
        self.cursor.expect(keyword)?;
        self.program.name = self.cursor.name()?;
        self.open()
    }

    fn open(&mut self) -> Result<()> {
        self.cursor.expect("{")?;
        self.cursor.end_line()
    }

    fn line(&mut self) -> Result<()> {
        if self.cursor.eat("@") {
            self.buffer()?;
        } else {
            match self.cursor.word() {
                "symbol" => self.symbol()?,
                "assume" => self.assume()?,
                "workers" => self.program.workers = self.cursor.number()?,
                "device" => {
                    let target = self.cursor.name()?;
                    let bytes = self.cursor.number()?;
                    self.program.devices.push(Device { target, bytes });
                }
                "at_once" => {
                    let target = self.cursor.name()?;
                    let at_once = self.cursor.number()?;
                    self.program.call_limits.push(CallLimit { target, at_once });
                }
                "images" => self.program.batch_blocks = Some(self.batch_blocks()?),
                "policies" => {
                    self.cursor.expect("any")?;
                    self.program.policies = Policies::Any;
                }
                "partition" => {
                    let partition = self.partition()?;
                    self.program.partitions.push(partition);
                }
                "input" => {
                    let port = self.port()?;
                    self.program.inputs.push(port);
                }
                "output" => {
                    let port = self.port()?;
                    self.program.outputs.push(port);
                }
                "rows" => {
                    let rows = self.rows()?;
                    self.program.state.get_or_insert_default().rows = Some(rows);
                }
                "state" => {
                    let tensor = self.state_tensor()?;
                    self.program.state.get_or_insert_default().tensors.push(tensor);
                }
                "data_dependent" => self.data_dependent()?,
                "kernel" => {
                    let kernel = self.kernel()?;
                    self.program.kernels.push(kernel);
                }
                word => {
                    let control = self.control(word)?;
                    self.program.kernels.push(Kernel::control("", control));
                }
            }
        }
        self.cursor.end_line()
    }

    /// `images N by BLOCK slices S shares INPUT …`
    fn batch_blocks(&mut self) -> Result<BatchBlocks> {
        let images = self.cursor.number()?;
        self.cursor.expect("by")?;
        let block = self.cursor.number()?;
        self.cursor.expect("slices")?;
        let slices = self.cursor.number()?;
        let mut blocks = BatchBlocks { images, block, slices, shared: BTreeSet::new() };
        while self.cursor.eat_word("shares") {
            blocks.shared.insert(self.cursor.number()?);
        }
        Ok(blocks)
    }

    fn symbol(&mut self) -> Result<()> {
        let (symbol, declaration) = text::symbol(&mut self.cursor)?;
        if self.program.symbols.contains(&symbol) {
            return Err(self.cursor.error(format!("symbol {symbol} is declared twice")));
        }
        self.program.symbols.push(symbol.clone());
        let Some(declaration) = declaration else { return Ok(()) };
        let declared = self.program.facts.declare(&symbol, declaration);
        declared.map_err(|error| self.cursor.error(error.to_string()))
    }

    fn data_dependent(&mut self) -> Result<()> {
        let (symbol, upper_bound, declaration) = text::data_dependent(&mut self.cursor)?;
        self.program.data_dependent.push(DataDependent { symbol: symbol.clone(), upper_bound });
        let Some(declaration) = declaration else { return Ok(()) };
        let declared = self.program.facts.declare(&symbol, declaration);
        declared.map_err(|error| self.cursor.error(error.to_string()))
    }

    fn control(&mut self, word: &str) -> Result<Control> {
        let cursor = &mut self.cursor;
        Ok(match word {
            "if" => Control::If(buffer_id(cursor, &self.program.buffers)?),
            "else" => Control::Else,
            "while" => Control::While(buffer_id(cursor, &self.program.buffers)?),
            "end" => Control::End,
            "require" => Control::Require(text::assumption(cursor)?),
            "fail" => Control::Fail(cursor.string()?),
            "call" => Control::Call(Box::new(call(cursor, &self.program.buffers)?)),
            "bind" => {
                let symbol = cursor.symbol(&["="])?;
                cursor.expect("=")?;
                let from = buffer_id(cursor, &self.program.buffers)?;
                cursor.expect("in")?;
                let lo = cursor.dim(&[".."])?;
                cursor.expect("..")?;
                let end = cursor.dim(&[","])?;
                cursor.expect(",")?;
                Control::Bind { symbol, from, lo, end, context: cursor.string()? }
            }
            _ => return Err(cursor.error("expected a symbol, assumption, buffer, port, kernel or region")),
        })
    }

    fn assume(&mut self) -> Result<()> {
        let Assumption { relation, origin } = text::assumption(&mut self.cursor)?;
        let assumed = self.program.facts.assume(relation, &origin);
        assumed.map_err(|error| self.cursor.error(error.to_string()))
    }

    fn buffer(&mut self) -> Result<()> {
        let next = self.program.buffers.len();
        self.cursor.parsed(&format!("`{next}`, the next buffer's number"), |word| {
            (word.parse() == Ok(next)).then_some(())
        })?;
        let name = if self.cursor.at_name() { self.cursor.name()? } else { String::new() };

        self.cursor.expect(":")?;
        let dtype = self.cursor.dtype()?;
        self.cursor.expect("[")?;
        let elems = self.cursor.dim(&["]"])?;
        self.cursor.expect("]")?;

        let space = match self.cursor.word() {
            "input" => MemorySpace::Input(self.cursor.number()?),
            "output" => MemorySpace::Output(self.cursor.number()?),
            "state" => MemorySpace::State(self.cursor.number()?),
            "arena" => MemorySpace::Arena,
            "scratch" => MemorySpace::Scratch,
            "device" => MemorySpace::Device(self.cursor.number()?),
            "const" => MemorySpace::Const(self.consts.tensor(&mut self.cursor, dtype)?),
            _ => {
                return Err(self.cursor.error(
                    "expected a space: `input`, `output`, `state`, `arena`, `scratch`, `device` or `const`",
                ));
            }
        };

        self.program.buffers.push(Buffer { name, dtype, elems, space });
        Ok(())
    }

    fn port(&mut self) -> Result<Port> {
        let name = self.cursor.name()?;
        self.cursor.expect("[")?;
        let shape = self.cursor.dims()?;
        self.cursor.expect("=")?;
        let buffer = buffer_id(&mut self.cursor, &self.program.buffers)?;
        Ok(Port { name, shape, buffer })
    }

    /// `LENGTH of CAPACITY grow DIM`
    fn rows(&mut self) -> Result<BlockRows> {
        let length = self.cursor.symbol(&["of"])?;
        self.cursor.expect("of")?;
        let capacity = self.cursor.symbol(&["grow"])?;
        self.cursor.expect("grow")?;
        Ok(BlockRows { length, capacity, growth: self.cursor.dim(&[])? })
    }

    /// `IN = OUT[DIMS] [append AXIS] = @N`
    fn state_tensor(&mut self) -> Result<StateTensor> {
        let input = self.cursor.name()?;
        self.cursor.expect("=")?;
        let output = self.cursor.name()?;
        self.cursor.expect("[")?;
        let shape = self.cursor.dims()?;
        let axis = if self.cursor.eat("append") { Some(self.cursor.number()?) } else { None };
        if axis.is_some_and(|axis| axis >= shape.len()) {
            return Err(self.cursor.error("the tensor has no such axis"));
        }
        self.cursor.expect("=")?;
        let buffer = buffer_id(&mut self.cursor, &self.program.buffers)?;
        Ok(StateTensor { input, output, shape, axis, buffer })
    }

    /// `NAME BEGIN..END after [P, …] on TARGET`
    fn partition(&mut self) -> Result<Partition> {
        let name = self.cursor.name()?;
        let begin = self.cursor.number()?;
        self.cursor.expect("..")?;
        let end = self.cursor.number()?;
        self.cursor.expect("after")?;
        self.cursor.expect("[")?;

        let mut after = Vec::new();
        while !self.cursor.eat("]") {
            if !after.is_empty() {
                self.cursor.expect(",")?;
            }
            after.push(self.cursor.number()?);
        }

        self.cursor.expect("on")?;
        Ok(Partition { name, kernels: begin..end, after, target: self.cursor.name()? })
    }

    fn kernel(&mut self) -> Result<Kernel> {
        let mut kernel = Kernel { name: self.cursor.name()?, ..Kernel::default() };
        self.open()?;

        while self.cursor.in_braces()? {
            if self.cursor.peek_word().starts_with("local") {
                let next = format!("local{}", kernel.locals.len());
                self.cursor
                    .parsed(&format!("`{next}`, the next variable"), |word| (word == next).then_some(()))?;
                self.cursor.expect(":")?;
                kernel.locals.push(self.cursor.dtype()?);
                self.cursor.end_line()?;
            } else {
                kernel.body.push(self.stmt(&kernel.locals, 0)?);
            }
        }

        Ok(kernel)
    }

    fn stmts(&mut self, locals: &PrimaryMap<Local, DType>, depth: usize) -> Result<Vec<Stmt>> {
        self.open()?;
        let mut stmts = Vec::new();
        while self.cursor.in_braces()? {
            stmts.push(self.stmt(locals, depth + 1)?);
        }
        Ok(stmts)
    }

    fn stmt(&mut self, locals: &PrimaryMap<Local, DType>, depth: usize) -> Result<Stmt> {
        if depth > MAX_DEPTH {
            return Err(self.cursor.error("statements are nested too deeply"));
        }

        let stmt = match self.cursor.word() {
            "for" => self.for_stmt(locals, depth)?,
            "block" => Stmt::Block(self.code(locals)?),
            "strip" => {
                let axis = axis(&mut self.cursor, &["{"])?;
                Stmt::Strip { axis, code: self.code(locals)? }
            }
            "contraction" => Stmt::Contraction(Box::new(self.contraction(locals)?)),
            "if" => {
                let cond = local(&mut self.cursor, locals)?;
                let then = self.stmts(locals, depth)?;
                let has_else = self.cursor.eat_word("else");
                let otherwise = if has_else { self.stmts(locals, depth)? } else { Vec::new() };
                Stmt::If { cond, then, otherwise }
            }
            "while" => {
                let cond = local(&mut self.cursor, locals)?;
                Stmt::While { cond, body: self.stmts(locals, depth)? }
            }
            _ => {
                let expected = "expected `for`, `block`, `strip`, `contraction`, `if` or `while`";
                return Err(self.cursor.error(expected));
            }
        };

        self.cursor.end_line()?;
        Ok(stmt)
    }

    fn for_stmt(&mut self, locals: &PrimaryMap<Local, DType>, depth: usize) -> Result<Stmt> {
        let axis = axis(&mut self.cursor, &[" parallel {", "{"])?;
        let parallel = self.cursor.eat_word("parallel");
        Ok(Stmt::For { axis, parallel, body: self.stmts(locals, depth)? })
    }

    fn code(&mut self, locals: &PrimaryMap<Local, DType>) -> Result<InstSeq> {
        self.open()?;
        self.insts(locals)
    }

    fn insts(&mut self, locals: &PrimaryMap<Local, DType>) -> Result<InstSeq> {
        let mut code = CodeReader::new(locals);
        while self.cursor.in_braces()? {
            code.inst(&mut self.cursor, &self.program.buffers)?;
        }
        Ok(code.code)
    }

    fn contraction(&mut self, locals: &PrimaryMap<Local, DType>) -> Result<Contraction> {
        let dtype = self.cursor.dtype()?;
        let precision = self.cursor.precision()?;
        self.open()?;

        let m = self.axes("m")?;
        let mut columns = self.axes("n")?;
        let k = self.axes("k")?;
        if m.is_empty() || columns.len() != 1 {
            return Err(self
                .cursor
                .error("a contraction has at least one row axis and exactly one column axis"));
        }

        let n = columns.remove(0);
        self.in_line("lhs")?;
        let lhs = access(&mut self.cursor, &self.program.buffers)?;

        self.cursor.end_line()?;
        self.in_line("rhs")?;
        let packed = self.cursor.eat_word("panels");
        let few_bits = self.cursor.eat_word("few_bits");
        let at = access(&mut self.cursor, &self.program.buffers)?;

        let rhs = if packed {
            self.cursor.expect("width")?;
            let width = self.cursor.number()?;
            Rhs::Panels { buffer: at.buffer, base: at.index, width }
        } else if few_bits {
            let form = self.few_bits_form()?;
            let unpack_buffer = match self.cursor.eat_word("unpack") {
                true => Some(buffer_id(&mut self.cursor, &self.program.buffers)?),
                false => None,
            };
            Rhs::FewBits(FewBitsPanels { buffer: at.buffer, base: at.index, form, unpack_buffer })
        } else {
            Rhs::Indexed(at)
        };

        self.cursor.end_line()?;
        let mut padding = None;
        if self.cursor.next_line() && self.cursor.eat_word("zero") {
            padding = Some(self.padding()?);
            self.cursor.end_line()?;
        }
        let mut pack_buffer = None;
        if self.cursor.next_line() && self.cursor.eat_word("pack") {
            pack_buffer = Some(buffer_id(&mut self.cursor, &self.program.buffers)?);
            self.cursor.end_line()?;
        }

        let epilogue = self.insts(locals)?;
        Ok(Contraction { m, n, k, lhs, rhs, dtype, precision, padding, pack_buffer, epilogue })
    }

    /// `unless POSITION in BEGIN..END`
    fn padding(&mut self) -> Result<Padding> {
        self.cursor.expect("unless")?;
        let position = self.cursor.dim(&[" in "])?;
        self.cursor.expect("in")?;
        let begin = self.cursor.dim(&[".."])?;
        self.cursor.expect("..")?;
        Ok(Padding { position, begin, end: self.cursor.dim(&[])? })
    }

    /// `bits B block N scale TYPE [zeros]`
    fn few_bits_form(&mut self) -> Result<FewBitsForm> {
        self.cursor.expect("bits")?;
        let bits = self.cursor.number()?;
        self.cursor.expect("block")?;
        let block = self.cursor.number()?;
        self.cursor.expect("scale")?;
        let scale = self.cursor.dtype()?;
        let has_zeros = self.cursor.eat_word("zeros");
        Ok(FewBitsForm { bits, block, scale, has_zeros, rounds_lhs: self.cursor.eat_word("rounds") })
    }

    fn in_line(&mut self, keyword: &str) -> Result<()> {
        self.cursor.next_line();
        self.cursor.expect(keyword)
    }

    /// Consecutive lines `KEYWORD axis`; possibly none.
    fn axes(&mut self, keyword: &str) -> Result<Vec<Axis>> {
        let mut axes = Vec::new();
        while self.cursor.next_line() && self.cursor.eat_word(keyword) {
            axes.push(axis(&mut self.cursor, &[])?);
            self.cursor.end_line()?;
        }
        Ok(axes)
    }
}
