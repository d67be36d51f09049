//! Prints a graph.

use crate::{
    graph::{Coord, Graph, Label, Node, Op, ScatterMode, Value},
    scalar::{Body, Precision, Reg, Step},
    text::{Elems, Name, Quoted, join, write_assumption, write_symbol},
};
use std::{
    collections::HashMap,
    fmt::{self, Formatter},
};

/// The largest number of known elements that are shown.
const MAX_SHOWN: usize = 16;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {} {{", Name(&self.name))?;
        for symbol in &self.symbols {
            write_symbol(f, symbol, self.facts.declaration(symbol))?;
        }
        for symbol in &self.data_dependent {
            writeln!(f, "  data_dependent {symbol}")?;
        }
        for assumption in self.facts.assumptions() {
            let required = self.constraints.iter().any(|other| other.relation == assumption.relation);
            write_assumption(f, if required { "require" } else { "assume" }, assumption)?;
        }

        // Requirements on data-dependent symbols are not facts.
        let is_fact = |late: &symshape::Assumption| {
            self.facts.assumptions().iter().any(|fact| fact.relation == late.relation)
        };
        for late in self.constraints.iter().filter(|constraint| !is_fact(constraint)) {
            write_assumption(f, "require", late)?;
        }
        let names = Names::new(self);
        for (name, value) in &self.inputs {
            let ty = self.ty(*value);
            writeln!(f, "  input {}: {}[{}]", Name(name), ty.dtype, join(&ty.shape))?;
        }
        for node in self.nodes.values().filter(|node| !matches!(node.op, Op::Input(_))) {
            write_node(f, self, node, &names)?;
        }
        for (name, value) in &self.outputs {
            writeln!(f, "  output {} = {}", Name(name), names.of(*value))?;
        }
        f.write_str("}\n")
    }
}

/// The printed names of values: the names of inputs, and `%` with consecutive integers for others.
struct Names(HashMap<Value, String>);

impl Names {
    fn new(graph: &Graph) -> Names {
        let mut names: HashMap<Value, String> =
            graph.inputs.iter().map(|(name, value)| (*value, Name(name).to_string())).collect();
        let computed = graph.nodes.values().filter(|node| !matches!(node.op, Op::Input(_)));
        for (number, value) in computed.flat_map(|node| &node.results).enumerate() {
            names.insert(*value, format!("%{number}"));
        }
        Names(names)
    }

    fn of(&self, value: Value) -> &str {
        self.0.get(&value).map_or("%?", String::as_str)
    }

    fn all(&self, values: &[Value]) -> String {
        join(values.iter().map(|value| self.of(*value)))
    }
}

fn write_node(f: &mut Formatter<'_>, graph: &Graph, node: &Node, names: &Names) -> fmt::Result {
    let head =
        format!("  {} = {}", names.all(&node.results), Head { op: &node.op, operands: node.operands.len() });
    let line = if node.operands.is_empty() { head } else { format!("{head} {}", names.all(&node.operands)) };

    let body = match &node.op {
        Op::Map(body) if only_step(body).is_none() => Some(body),
        _ => None,
    };

    let regions = node.op.regions();
    let line = if body.is_some() || !regions.is_empty() { format!("{line} {{") } else { line };
    write!(f, "{line:<54} ;")?;

    for (i, result) in node.results.iter().enumerate() {
        let ty = graph.ty(*result);
        write!(f, "{} {}[{}]", if i > 0 { "," } else { "" }, ty.dtype, join(&ty.shape))?;
    }

    let known = graph.contents(node.results[0]).filter(|_| !matches!(node.op, Op::Const(_)));
    if let Some(elems) = known.filter(|elems| elems.len() <= MAX_SHOWN) {
        write!(f, " = {}", join(elems))?;
    }

    f.write_str("\n")?;
    for (_, region) in &regions {
        write!(f, "{region}")?;
    }

    if !regions.is_empty() {
        f.write_str("  }\n")?;
    }

    body.map_or(Ok(()), |body| write_body(f, body))
}

/// The only step of a body that applies an operator to its parameters in order. It is printed without the body.
fn only_step(body: &Body) -> Option<&Step> {
    let [step] = body.steps.as_slice() else { return None };
    let params: Vec<Reg> = (0..body.params.len() as u32).map(Reg).collect();
    let plain = body.result.0 as usize == body.params.len() && step.operands() == params;
    (plain && !matches!(step, Step::Const(_))).then_some(step)
}

/// An operator and its attributes, without its operands.
struct Head<'a> {
    op: &'a Op,
    operands: usize,
}

impl fmt::Display for Head<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let flag = |set: bool, word: &'static str| if set { word } else { "" };
        match self.op {
            Op::Input(number) => write!(f, "input {number}"),
            Op::Const(tensor) => {
                write!(f, "const {}[{}] {}", tensor.dtype(), join(tensor.shape()), Elems(tensor))
            }
            Op::Index { dtype, shape, expr } => write!(f, "index {dtype}[{}] {expr}", join(shape)),
            Op::Map(body) => match only_step(body) {
                Some(step) => f.write_str(&step_word(step)),
                None => f.write_str("map"),
            },
            Op::View { shape, index } => write!(f, "view [{}] [{}]", join(shape), join(index)),
            Op::Pad { lo, hi, value } => write!(f, "pad {value} [{}] [{}]", join(lo), join(hi)),
            Op::Concat { axis } => write!(f, "concat axis {axis}"),
            Op::Gather { shape, coords } => {
                write!(f, "gather [{}] [{}]", join(shape), join(coords.iter().map(coord)))
            }
            Op::Scatter { coords, mode } => {
                let mode = match mode {
                    ScatterMode::Assign => "assign",
                    ScatterMode::Combine(op) => op.name(),
                };
                write!(f, "scatter {mode} [{}]", join(coords.iter().map(coord)))
            }
            Op::Reduce { op, axes } => write!(f, "reduce {op} [{}]", join(axes)),
            Op::ArgReduce { op, axis, last } => {
                write!(f, "argreduce {op}{} axis {axis}", flag(*last, " last"))
            }
            Op::Contraction { lhs, rhs, out, dtype, precision } => {
                write!(f, "contraction {dtype}")?;
                if *precision != Precision::F32 {
                    write!(f, " by {precision}")?;
                }
                write!(f, " [{}, {} -> {}]", letters(lhs), letters(rhs), letters(out))
            }
            Op::Sort { axis, descending, first } => {
                write!(f, "sort{}", flag(*descending, " descending"))?;
                if let Some(first) = first {
                    write!(f, " first [{first}]")?;
                }
                write!(f, " axis {axis}")
            }
            Op::Scan { op, axis, exclusive, reverse } => {
                let exclusive = flag(*exclusive, " exclusive");
                let reverse = flag(*reverse, " reverse");
                write!(f, "scan {op}{exclusive}{reverse} axis {axis}")
            }
            Op::Bind { symbol, lo, hi } => write!(f, "bind {symbol} from [{lo}] to [{hi}]"),
            Op::If { .. } => f.write_str("if"),
            Op::Loop { counter, max_iterations, carried, .. } => {
                write!(f, "loop {counter} below [{max_iterations}] carry {carried}")
            }
            Op::Call { callee, results, scratch } => {
                let types = results.iter().map(|ty| format!("{}[{}]", ty.dtype, join(&ty.shape)));
                write!(f, "call {callee} -> ({})", join(types))?;
                match scratch.as_i64() {
                    Some(0) => Ok(()),
                    _ => write!(f, " scratch [{scratch}]"),
                }
            }
            Op::Fail { why } => write!(f, "fail {}", Quoted(why)),
        }?;

        debug_assert!(
            self.operands > 0
                || matches!(
                    self.op,
                    Op::Input(_) | Op::Const(_) | Op::Index { .. } | Op::Call { .. } | Op::Fail { .. }
                )
        );
        Ok(())
    }
}

fn coord(coord: &Coord) -> String {
    match coord {
        Coord::At(expr) => expr.to_string(),
        Coord::Load { operand, at } => format!("@{operand}[{}]", join(at)),
    }
}

fn letters(labels: &[Label]) -> String {
    labels.iter().map(|label| *label as char).collect()
}

fn step_word(step: &Step) -> String {
    match step {
        Step::Const(value) => format!("const {} {value}", value.dtype()),
        Step::Unary(op, _) => op.to_string(),
        Step::Binary(op, ..) => op.to_string(),
        Step::Compare(op, ..) => op.to_string(),
        Step::Select(..) => "select".into(),
        Step::Cast(to, _) => format!("cast {to}"),
        Step::Bits(to, _) => format!("bits {to}"),
    }
}

fn write_body(f: &mut Formatter<'_>, body: &Body) -> fmt::Result {
    for (i, step) in body.steps.iter().enumerate() {
        let regs = join(step.operands().iter().map(|reg| format!("r{}", reg.0)));
        let space = if regs.is_empty() { "" } else { " " };
        writeln!(f, "    r{} = {}{space}{regs}", body.params.len() + i, step_word(step))?;
    }
    writeln!(f, "    yield r{}", body.result.0)?;
    f.write_str("  }\n")
}
