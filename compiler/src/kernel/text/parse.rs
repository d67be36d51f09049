//! Reading, from the program down to a statement; [`super::code`] reads instructions.

use super::{code::CodeReader, cursor::Cursor};
use crate::{
    error::Result,
    kernel::{
        Access, Axis, Buffer, BufferId, Code, Contract, Kernel, Local, Port, Program, Rhs, Space, Stmt,
    },
    scalar::Scalar,
    tensor::{Bytes, Tensor},
};
use cranelift_entity::{EntityRef, PrimaryMap};
use num_bigint::BigInt;
use symshape::{Comparison, Declaration, FactError, Relation};
use symshape_runtime::DType;

/// Deeper statements are refused, so that a hostile text cannot exhaust the stack.
const MAX_DEPTH: usize = 64;

/// Constants of all buffers together: a short text could ask for any amount of memory.
const MAX_CONST_BYTES: usize = 1 << 28;

pub(super) fn program(text: &str) -> Result<Program> {
    let mut reader = Reader { cursor: Cursor::new(text), program: Program::default(), const_bytes: 0 };
    reader.cursor.next_line();
    reader.head("program")?;
    while reader.in_braces()? {
        reader.line()?;
    }
    match reader.cursor.next_line() {
        false => Ok(reader.program),
        true => Err(reader.cursor.error("unexpected text after the program")),
    }
}

pub(super) fn dtype(cursor: &mut Cursor<'_>) -> Result<DType> {
    cursor.parsed("an element type", DType::from_name)
}

pub(super) fn access(cursor: &mut Cursor<'_>, buffers: &PrimaryMap<BufferId, Buffer>) -> Result<Access> {
    let buffer = buffer_id(cursor, buffers)?;
    cursor.expect("[")?;
    let at = cursor.dim(&["]"])?;
    cursor.expect("]")?;
    Ok(Access { buffer, at })
}

fn buffer_id(cursor: &mut Cursor<'_>, buffers: &PrimaryMap<BufferId, Buffer>) -> Result<BufferId> {
    cursor.expect("@")?;
    cursor.parsed("the number of a buffer declared above", |word| {
        word.parse().ok().filter(|idx| *idx < buffers.len()).map(BufferId::new)
    })
}

pub(super) fn local(cursor: &mut Cursor<'_>, locals: &PrimaryMap<Local, DType>) -> Result<Local> {
    cursor.parsed("a variable declared above", |word| {
        let idx = word.strip_prefix("local")?.parse().ok()?;
        (idx < locals.len()).then(|| Local::new(idx))
    })
}

fn axis(cursor: &mut Cursor<'_>, stops: &[&str]) -> Result<Axis> {
    let var = cursor.symbol(&[" in "])?;
    cursor.expect("in")?;
    cursor.expect("0..")?;
    let extent = cursor.dim(stops)?;
    Ok(Axis { var, extent })
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    program: Program,
    const_bytes: usize,
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

    /// Goes to the next line; `false`, and past it, when that is a closing brace.
    fn in_braces(&mut self) -> Result<bool> {
        match self.cursor.next_line() {
            true => Ok(!self.cursor.eat("}")),
            false => Err(self.cursor.error("expected `}`")),
        }
    }

    fn line(&mut self) -> Result<()> {
        if self.cursor.eat("@") {
            self.buffer()?;
        } else {
            match self.cursor.word() {
                "symbol" => self.symbol()?,
                "assume" => self.assume()?,
                "input" => {
                    let port = self.port()?;
                    self.program.inputs.push(port);
                }
                "output" => {
                    let port = self.port()?;
                    self.program.outputs.push(port);
                }
                "kernel" => {
                    let kernel = self.kernel()?;
                    self.program.kernels.push(kernel);
                }
                _ => {
                    return Err(self.cursor.error("expected a symbol, assumption, buffer, port or kernel"));
                }
            }
        }
        self.cursor.end_line()
    }

    fn integer(&mut self, text: &str) -> Result<BigInt> {
        text.trim().parse().map_err(|_| self.cursor.error(format!("`{text}` is not an integer")))
    }

    fn fact<T>(&self, result: Result<T, FactError>) -> Result<T> {
        result.map_err(|error| self.cursor.error(error.to_string()))
    }

    fn symbol(&mut self) -> Result<()> {
        let symbol = self.cursor.symbol(&["="])?;
        if self.program.symbols.contains(&symbol) {
            return Err(self.cursor.error(format!("symbol {symbol} is declared twice")));
        }
        self.program.symbols.push(symbol.clone());
        if self.cursor.at_line_end() {
            return Ok(());
        }
        self.cursor.expect("=")?;
        let declaration = self.declaration()?;
        let declared = self.program.facts.declare(&symbol, declaration);
        self.fact(declared)
    }

    fn declaration(&mut self) -> Result<Declaration> {
        if self.cursor.eat("{") {
            let list = self.cursor.until(&["}"]);
            let values: Vec<BigInt> =
                list.split(',').map(|text| self.integer(text)).collect::<Result<_>>()?;
            self.cursor.expect("}")?;
            return Ok(Declaration::values(values));
        }
        let text = self.cursor.until(&[".."]);
        let lo = self.integer(text)?;
        self.cursor.expect("..")?;
        let declaration = match self.cursor.until(&["/"]) {
            "" => Declaration::at_least(lo.clone()),
            text => Declaration::range(lo.clone(), self.integer(text)?),
        };
        if !self.cursor.eat("/") {
            return Ok(declaration);
        }
        let text = self.cursor.until(&[]);
        Ok(declaration.step(self.integer(text)?, lo))
    }

    fn assume(&mut self) -> Result<()> {
        let a = self.cursor.dim(&["==", "!=", "<", " divides "])?;
        let sign = ["==", "!=", "<=", "<", "divides"].into_iter().find(|sign| self.cursor.eat(sign));
        let comparison = match sign {
            Some("==") => Comparison::Eq,
            Some("!=") => Comparison::Ne,
            Some("<=") => Comparison::Le,
            Some("<") => Comparison::Lt,
            Some(_) => Comparison::Divides,
            None => return Err(self.cursor.error("expected a comparison")),
        };
        let b = self.cursor.dim(&[","])?;
        let origin = if self.cursor.eat(",") { self.cursor.string()? } else { String::new() };
        let assumed = self.program.facts.assume(Relation { comparison, a, b }, &origin);
        self.fact(assumed)
    }

    fn buffer(&mut self) -> Result<()> {
        let next = self.program.buffers.len();
        self.cursor.parsed(&format!("`{next}`, the next buffer's number"), |word| {
            (word.parse() == Ok(next)).then_some(())
        })?;
        let name = if self.cursor.at_name() { self.cursor.name()? } else { String::new() };
        self.cursor.expect(":")?;
        let dtype = dtype(&mut self.cursor)?;
        self.cursor.expect("[")?;
        let elems = self.cursor.dim(&["]"])?;
        self.cursor.expect("]")?;
        let space = match self.cursor.word() {
            "input" => Space::Input(self.cursor.number()?),
            "output" => Space::Output(self.cursor.number()?),
            "arena" => Space::Arena,
            "scratch" => Space::Scratch,
            "const" => Space::Const(self.tensor(dtype)?),
            _ => return Err(self.cursor.error("expected `input`, `output`, `arena`, `scratch` or `const`")),
        };
        self.program.buffers.push(Buffer { name, dtype, elems, space });
        Ok(())
    }

    fn tensor(&mut self, dtype: DType) -> Result<Tensor> {
        self.cursor.expect("[")?;
        let dims = self.cursor.dims()?;
        let shape: Option<Vec<usize>> =
            dims.iter().map(|dim| dim.as_i64().and_then(|dim| usize::try_from(dim).ok())).collect();
        let shape = shape.ok_or_else(|| self.cursor.error("the shape of a constant is made of numbers"))?;
        let bytes = shape
            .iter()
            .try_fold(dtype.size_bytes(), |bytes, dim| bytes.checked_mul(*dim))
            .filter(|bytes| *bytes <= MAX_CONST_BYTES - self.const_bytes)
            .ok_or_else(|| self.cursor.error(format!("constants exceed {MAX_CONST_BYTES} bytes")))?;
        self.const_bytes += bytes;
        if self.cursor.eat_word("elided") {
            return Err(self.cursor.error("this text leaves the elements of the constant out"));
        }
        let elems = if self.cursor.eat_word("all") {
            vec![literal(&mut self.cursor, dtype)?; bytes / dtype.size_bytes()]
        } else {
            self.literals(dtype)?
        };
        if elems.len() != bytes / dtype.size_bytes() {
            let count = bytes / dtype.size_bytes();
            return Err(self.cursor.error(format!("{count} elements expected, {} found", elems.len())));
        }
        let bytes: Vec<u8> = elems
            .iter()
            .flat_map(|elem| elem.bits().to_le_bytes().into_iter().take(dtype.size_bytes()))
            .collect();
        Tensor::new(dtype, shape, Bytes::Owned(bytes.into())).ok_or_else(|| self.cursor.error("odd shape"))
    }

    fn literals(&mut self, dtype: DType) -> Result<Vec<Scalar>> {
        let mut elems = Vec::new();
        while !self.cursor.at_line_end() {
            if !elems.is_empty() {
                self.cursor.expect(",")?;
            }
            elems.push(literal(&mut self.cursor, dtype)?);
        }
        Ok(elems)
    }

    fn port(&mut self) -> Result<Port> {
        let name = self.cursor.name()?;
        self.cursor.expect("[")?;
        let shape = self.cursor.dims()?;
        self.cursor.expect("=")?;
        let buffer = buffer_id(&mut self.cursor, &self.program.buffers)?;
        Ok(Port { name, shape, buffer })
    }

    fn kernel(&mut self) -> Result<Kernel> {
        let mut kernel = Kernel { name: self.cursor.name()?, ..Kernel::default() };
        self.open()?;
        while self.in_braces()? {
            if self.cursor.peek_word().starts_with("local") {
                let next = format!("local{}", kernel.locals.len());
                self.cursor
                    .parsed(&format!("`{next}`, the next variable"), |word| (word == next).then_some(()))?;
                self.cursor.expect(":")?;
                kernel.locals.push(dtype(&mut self.cursor)?);
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
        while self.in_braces()? {
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
            "contract" => Stmt::Contract(Box::new(self.contract(locals)?)),
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
                let expected = "expected `for`, `block`, `strip`, `contract`, `if` or `while`";
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

    fn code(&mut self, locals: &PrimaryMap<Local, DType>) -> Result<Code> {
        self.open()?;
        self.insts(locals)
    }

    fn insts(&mut self, locals: &PrimaryMap<Local, DType>) -> Result<Code> {
        let mut code = CodeReader::new(locals);
        while self.in_braces()? {
            code.inst(&mut self.cursor, &self.program.buffers)?;
        }
        Ok(code.code)
    }

    fn contract(&mut self, locals: &PrimaryMap<Local, DType>) -> Result<Contract> {
        let dtype = dtype(&mut self.cursor)?;
        self.open()?;
        let m = self.axes("row")?;
        let mut columns = self.axes("column")?;
        let k = self.axes("sum")?;
        if m.is_empty() || columns.len() != 1 {
            return Err(self.cursor.error("a contraction has rows and one column axis"));
        }
        let n = columns.remove(0);
        self.in_line("lhs")?;
        let lhs = access(&mut self.cursor, &self.program.buffers)?;
        self.cursor.end_line()?;
        self.in_line("rhs")?;
        let packed = self.cursor.eat_word("panels");
        let at = access(&mut self.cursor, &self.program.buffers)?;
        let rhs = if packed {
            self.cursor.expect("width")?;
            let width = self.cursor.number()?;
            Rhs::Panels { buffer: at.buffer, base: at.at, width }
        } else {
            Rhs::At(at)
        };
        self.cursor.end_line()?;
        Ok(Contract { m, n, k, lhs, rhs, dtype, epilogue: self.insts(locals)? })
    }

    fn in_line(&mut self, keyword: &str) -> Result<()> {
        self.cursor.next_line();
        self.cursor.expect(keyword)
    }

    /// As many lines `KEYWORD axis` as there are.
    fn axes(&mut self, keyword: &str) -> Result<Vec<Axis>> {
        let mut axes = Vec::new();
        while self.cursor.next_line() && self.cursor.eat_word(keyword) {
            axes.push(axis(&mut self.cursor, &[])?);
            self.cursor.end_line()?;
        }
        Ok(axes)
    }
}

pub(super) fn literal(cursor: &mut Cursor<'_>, dtype: DType) -> Result<Scalar> {
    let text = cursor.until(&[","]);
    Scalar::parse(dtype, text).ok_or_else(|| cursor.error(format!("`{text}` is no {dtype}")))
}
