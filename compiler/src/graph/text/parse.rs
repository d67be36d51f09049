//! Parses a graph. Every line appends to it through the builder.

use crate::{
    error::{At, Result},
    external,
    graph::{Coord, Graph, Label, Op, ScatterMode, Type, Value, build::declare_data_dependent},
    scalar::{BinaryOp, Body, CompareOp, ReduceOp, Reg, Step, UnaryOp},
    text::{Cursor, TensorReader, assumption, symbol},
};
use std::collections::HashMap;
use symshape::{Assumption, Dim};
use symshape_runtime::DType;

pub(super) fn graph(text: &str) -> Result<Graph> {
    let mut reader = Reader {
        cursor: Cursor::new(text),
        graph: Graph::default(),
        consts: TensorReader::default(),
        numbered: HashMap::new(),
        depth: 0,
    };

    reader.whole()?;
    if reader.cursor.next_line() {
        Err(reader.cursor.error("unexpected text after the graph"))
    } else {
        Ok(reader.graph)
    }
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    graph: Graph,
    consts: TensorReader,
    /// The values of `%0`, `%1`, …
    numbered: HashMap<u32, Value>,
    /// The number of regions around this graph.
    depth: usize,
}

/// The largest depth of nested regions. A hostile text could otherwise exhaust the stack.
const MAX_DEPTH: usize = 64;

impl<'a> Reader<'a> {
    /// `graph NAME { … }`
    fn whole(&mut self) -> Result<()> {
        self.cursor.next_line();
        self.cursor.expect("graph")?;
        self.graph.name = self.cursor.name()?;
        self.cursor.expect("{")?;
        self.cursor.end_line()?;
        while self.cursor.in_braces()? {
            self.line()?;
            self.cursor.end_line()?;
        }
        Ok(())
    }

    /// Parses the graph of a region, on separate lines.
    fn region(&mut self) -> Result<Box<Graph>> {
        if self.depth == MAX_DEPTH {
            return Err(self.cursor.error("regions are nested too deeply"));
        }

        let mut inner = Reader {
            cursor: self.cursor.clone(),
            graph: Graph::default(),
            consts: TensorReader::default(),
            numbered: HashMap::new(),
            depth: self.depth + 1,
        };

        inner.whole()?;
        inner.cursor.end_line()?;
        self.cursor = inner.cursor;

        Ok(Box::new(inner.graph))
    }

    /// Parses operands, and the regions after them.
    fn values_and_regions<const N: usize>(&mut self) -> Result<(Vec<Value>, [Box<Graph>; N])> {
        let values = self.values()?;
        self.cursor.expect("{")?;
        self.cursor.end_line()?;
        let mut regions = Vec::new();
        for _ in 0..N {
            regions.push(self.region()?);
        }
        self.cursor.next_line();
        self.cursor.expect("}")?;
        let regions = regions.try_into().map_err(|_| self.cursor.error("wrong number of regions"))?;
        Ok((values, regions))
    }

    fn bracketed(&mut self) -> Result<Dim> {
        self.cursor.expect("[")?;
        let dim = self.cursor.dim(&["]"])?;
        self.cursor.expect("]")?;
        Ok(dim)
    }

    /// Parses a control-flow operator.
    fn control(&mut self) -> Result<(Op, Vec<Value>)> {
        match self.cursor.word() {
            "bind" => {
                let symbol = self.cursor.symbol(&[" from "])?;
                self.cursor.expect("from")?;
                let lo = self.bracketed()?;
                self.cursor.expect("to")?;
                let hi = self.bracketed()?;
                let place = self.cursor.place();
                declare_data_dependent(&mut self.graph.facts, &symbol, &lo, &Dim::max(&lo, hi.clone()))
                    .at(|| place)?;
                Ok((Op::Bind { symbol, lo, hi }, vec![self.value()?]))
            }
            "fail" => Ok((Op::Fail { why: self.cursor.string()? }, Vec::new())),
            "if" => {
                let (values, [then, otherwise]) = self.values_and_regions()?;
                Ok((Op::If { then, otherwise }, values))
            }
            _ => {
                let counter = self.cursor.symbol(&[" below "])?;
                self.cursor.expect("below")?;
                let max_iterations = self.bracketed()?;
                self.cursor.expect("carry")?;
                let carried = self.cursor.number()?;
                let (values, [body]) = self.values_and_regions()?;
                Ok((Op::Loop { counter, max_iterations, carried, body }, values))
            }
        }
    }

    fn line(&mut self) -> Result<()> {
        if self.cursor.eat("%") {
            return self.node();
        }
        match self.cursor.word() {
            "symbol" => self.symbol(),
            "data_dependent" => {
                let symbol = self.cursor.symbol(&[])?;
                self.graph.data_dependent.push(symbol);
                Ok(())
            }
            "assume" => {
                let Assumption { relation, origin } = assumption(&mut self.cursor)?;
                let assumed = self.graph.facts.assume(relation, &origin);
                assumed.map_err(|error| self.cursor.error(error.to_string()))
            }
            "require" => {
                let place = self.cursor.place();
                let Assumption { relation, origin } = assumption(&mut self.cursor)?;
                self.graph.require(relation, &origin).at(|| place)
            }
            "input" => self.input(),
            "output" => {
                let place = self.cursor.place();
                let name = self.cursor.name()?;
                self.cursor.expect("=")?;
                let value = self.value()?;
                self.graph.output(&name, value).at(|| place)
            }
            _ => Err(self.cursor.error("expected a symbol, assumption, input, output or `%`")),
        }
    }

    fn symbol(&mut self) -> Result<()> {
        let (symbol, declaration) = symbol(&mut self.cursor)?;
        if self.graph.symbols.contains(&symbol) {
            return Err(self.cursor.error(format!("symbol {symbol} is declared twice")));
        }
        self.graph.symbols.push(symbol.clone());
        let Some(declaration) = declaration else { return Ok(()) };
        let declared = self.graph.facts.declare(&symbol, declaration);
        declared.map_err(|error| self.cursor.error(error.to_string()))
    }

    fn input(&mut self) -> Result<()> {
        let place = self.cursor.place();
        let name = self.cursor.name()?;
        self.cursor.expect(":")?;
        let dtype = self.cursor.dtype()?;
        let shape = self.dims()?;
        self.graph.input(&name, dtype, shape).at(|| place)?;
        Ok(())
    }

    fn node(&mut self) -> Result<()> {
        let mut indices = vec![self.cursor.number::<u32>()?];
        while self.cursor.eat(",") {
            self.cursor.expect("%")?;
            indices.push(self.cursor.number()?);
        }

        self.cursor.expect("=")?;
        let place = self.cursor.place();
        let (op, operands) = self.op()?;
        let results = self.graph.push_multi(op, &operands).at(|| place)?;
        if results.len() != indices.len() {
            return Err(self.cursor.error(format!("the operator has {} results", results.len())));
        }

        for (number, result) in indices.into_iter().zip(results) {
            if self.numbered.insert(number, result).is_some() {
                return Err(self.cursor.error(format!("%{number} is defined twice")));
            }
        }

        Ok(())
    }

    fn value(&mut self) -> Result<Value> {
        if self.cursor.eat("%") {
            let numbered = &self.numbered;
            return self
                .cursor
                .parsed("a value defined above", |word| numbered.get(&word.parse().ok()?).copied());
        }
        let name = self.cursor.name()?;
        let input = self.graph.inputs.iter().find(|(input, _)| *input == name);
        input.map(|(_, value)| *value).ok_or_else(|| self.cursor.error(format!("unknown input `{name}`")))
    }

    fn values(&mut self) -> Result<Vec<Value>> {
        let mut values = vec![self.value()?];
        while self.cursor.eat(",") {
            values.push(self.value()?);
        }
        Ok(values)
    }

    fn op(&mut self) -> Result<(Op, Vec<Value>)> {
        let op = match self.cursor.peek_word() {
            "const" => {
                self.cursor.word();
                let dtype = self.cursor.dtype()?;
                return Ok((Op::Const(self.consts.tensor(&mut self.cursor, dtype)?), Vec::new()));
            }
            "index" => {
                self.cursor.word();
                let dtype = self.cursor.dtype()?;
                let shape = self.dims()?;
                return Ok((Op::Index { dtype, shape, expr: self.cursor.dim(&[])? }, Vec::new()));
            }
            "map" => {
                self.cursor.word();
                return self.map();
            }
            "pad" => {
                self.cursor.word();
                return self.pad();
            }
            "bind" | "fail" | "if" | "loop" => return self.control(),
            "call" => {
                self.cursor.word();
                return self.call();
            }
            _ => self.plain_op()?,
        };

        match op {
            Some(op) => Ok((op, self.values()?)),
            None => self.step_op(),
        }
    }

    /// Parses an operator whose attributes come before its operands. `None` if the word does not name one.
    fn plain_op(&mut self) -> Result<Option<Op>> {
        let cursor = &mut self.cursor;
        let word = cursor.peek_word();
        if !["view", "concat", "gather", "scatter", "reduce", "argreduce", "contraction", "sort", "scan"]
            .contains(&word)
        {
            return Ok(None);
        }
        cursor.word();

        Ok(Some(match word {
            "view" => Op::View { shape: self.dims()?, index: self.dims()? },
            "concat" => Op::Concat { axis: self.axis()? },
            "gather" => Op::Gather { shape: self.dims()?, coords: self.coords()? },
            "scatter" => Op::Scatter { mode: self.mode()?, coords: self.coords()? },
            "reduce" => Op::Reduce { op: self.reduce_op()?, axes: self.ints()? },
            "argreduce" => {
                let op = self.reduce_op()?;
                Op::ArgReduce { op, last: self.cursor.eat_word("last"), axis: self.axis()? }
            }
            "contraction" => self.contraction()?,
            "sort" => {
                let descending = self.cursor.eat_word("descending");
                let first = if self.cursor.eat_word("first") { Some(self.bracketed()?) } else { None };
                Op::Sort { descending, first, axis: self.axis()? }
            }
            _ => {
                let op = self.reduce_op()?;
                let exclusive = self.cursor.eat_word("exclusive");
                let reverse = self.cursor.eat_word("reverse");
                Op::Scan { op, exclusive, reverse, axis: self.axis()? }
            }
        }))
    }

    fn reduce_op(&mut self) -> Result<ReduceOp> {
        self.cursor.parsed("`sum`, `prod`, `min` or `max`", ReduceOp::from_name)
    }

    fn mode(&mut self) -> Result<ScatterMode> {
        if self.cursor.eat_word("assign") {
            Ok(ScatterMode::Assign)
        } else {
            Ok(ScatterMode::Combine(self.reduce_op()?))
        }
    }

    fn axis(&mut self) -> Result<usize> {
        self.cursor.expect("axis")?;
        self.cursor.number()
    }

    fn dims(&mut self) -> Result<Vec<Dim>> {
        self.cursor.expect("[")?;
        self.cursor.dims()
    }

    fn ints(&mut self) -> Result<Vec<usize>> {
        let dims = self.dims()?;
        let ints = dims.iter().map(|dim| usize::try_from(dim.as_i64()?).ok()).collect::<Option<_>>();
        ints.ok_or_else(|| self.cursor.error("expected integers"))
    }

    fn coords(&mut self) -> Result<Vec<Coord>> {
        self.cursor.expect("[")?;
        let mut coords = Vec::new();
        while !self.cursor.eat("]") {
            if !coords.is_empty() {
                self.cursor.expect(",")?;
            }
            coords.push(if self.cursor.eat("@") {
                Coord::Load { operand: self.cursor.number()?, at: self.dims()? }
            } else {
                Coord::At(self.cursor.dim(&[",", "]"])?)
            });
        }

        Ok(coords)
    }

    fn contraction(&mut self) -> Result<Op> {
        let dtype = self.cursor.dtype()?;
        let precision = self.cursor.precision()?;
        self.cursor.expect("[")?;
        let lhs = self.labels();
        self.cursor.expect(",")?;
        let rhs = self.labels();
        self.cursor.expect("->")?;
        let out = self.labels();
        self.cursor.expect("]")?;
        Ok(Op::Contraction { lhs, rhs, out, dtype, precision })
    }

    fn labels(&mut self) -> Vec<Label> {
        self.cursor.word().bytes().collect()
    }

    /// Parses a call of an external function, which may have no operands.
    fn call(&mut self) -> Result<(Op, Vec<Value>)> {
        let callee = external::read(&mut self.cursor)?;
        self.cursor.expect("->")?;
        self.cursor.expect("(")?;

        let mut results = Vec::new();
        while !self.cursor.eat(")") {
            if !results.is_empty() {
                self.cursor.expect(",")?;
            }
            results.push(Type { dtype: self.cursor.dtype()?, shape: self.dims()? });
        }

        let scratch = if self.cursor.eat_word("scratch") { self.bracketed()? } else { Dim::zero() };
        let values = if self.cursor.at_line_end() { Vec::new() } else { self.values()? };
        Ok((Op::Call { callee, results, scratch }, values))
    }

    /// The value's type is the operand's, which comes last.
    fn pad(&mut self) -> Result<(Op, Vec<Value>)> {
        let mut fill = self.cursor.clone();
        self.cursor.until(&[" "]);
        let lo = self.dims()?;
        let hi = self.dims()?;
        let x = self.value()?;
        let value = fill.literal(self.graph.dtype(x))?;
        Ok((Op::Pad { lo, hi, value }, vec![x]))
    }

    /// Parses a scalar operator, which is written in place of an `Op::Map`.
    fn step_op(&mut self) -> Result<(Op, Vec<Value>)> {
        let step = self.step_word()?;
        let values = self.values()?;
        let regs: Vec<Reg> = (0..values.len() as u32).map(Reg).collect();
        let step = step.with(&regs).ok_or_else(|| self.cursor.error("wrong number of operands"))?;
        let params: Vec<DType> = values.iter().map(|value| self.graph.dtype(*value)).collect();
        let result = Reg(params.len() as u32);
        Ok((Op::Map(Body { params, steps: vec![step], result }), values))
    }

    fn map(&mut self) -> Result<(Op, Vec<Value>)> {
        let values = self.values()?;
        let params: Vec<DType> = values.iter().map(|value| self.graph.dtype(*value)).collect();
        self.cursor.expect("{")?;
        self.cursor.end_line()?;
        let mut body = Body { params, steps: Vec::new(), result: Reg(0) };
        while self.cursor.next_line() && !self.cursor.eat_word("yield") {
            let next = body.params.len() + body.steps.len();
            self.cursor.expect(&format!("r{next} ="))?;
            let step = self.step_word()?;

            let mut regs = Vec::new();
            while !self.cursor.at_line_end() {
                if !regs.is_empty() {
                    self.cursor.expect(",")?;
                }
                regs.push(self.reg(next)?);
            }

            let step = step.with(&regs);
            body.steps.push(step.ok_or_else(|| self.cursor.error("wrong number of operands"))?);
            self.cursor.end_line()?;
        }

        body.result = self.reg(body.params.len() + body.steps.len())?;
        self.cursor.next_line();
        self.cursor.expect("}")?;
        Ok((Op::Map(body), values))
    }

    fn reg(&mut self, end: usize) -> Result<Reg> {
        self.cursor.parsed("a register defined above", |word| {
            let number: u32 = word.strip_prefix('r')?.parse().ok()?;
            ((number as usize) < end).then_some(Reg(number))
        })
    }

    /// Parses the operator of a step. [`Step::with`] sets its registers later.
    fn step_word(&mut self) -> Result<Step> {
        let word = self.cursor.peek_word();
        let none = Reg(0);
        let step = match word {
            "const" => {
                self.cursor.word();
                let dtype = self.cursor.dtype()?;
                return Ok(Step::Const(self.cursor.literal(dtype)?));
            }
            "cast" => {
                self.cursor.word();
                return Ok(Step::Cast(self.cursor.dtype()?, none));
            }
            "bits" => {
                self.cursor.word();
                return Ok(Step::Bits(self.cursor.dtype()?, none));
            }
            "select" => Some(Step::Select(none, none, none)),
            _ => UnaryOp::from_name(word)
                .map(|op| Step::Unary(op, none))
                .or_else(|| BinaryOp::from_name(word).map(|op| Step::Binary(op, none, none)))
                .or_else(|| CompareOp::from_name(word).map(|op| Step::Compare(op, none, none))),
        };

        let step = step.ok_or_else(|| self.cursor.error(format!("unknown operator `{word}`")))?;
        self.cursor.word();
        Ok(step)
    }
}
