//! Functions of one stored integer as tables.
//!
//! An activation between quantised layers computes one byte from another: it dequantises, applies functions and
//! quantises again. Its 256 results are computed here, by the oracle, and looked up at run time.

use super::real::{is_fixed, uniform};
use crate::{
    error::Result,
    graph::{
        Coord, Graph, Op, Value, axis,
        eval::{Binding, values},
    },
    opt::bodies::number,
    scalar::{BinaryOp, Body, Step, UnaryOp},
    tensor::{Bytes, Tensor},
};
use std::collections::HashMap;
use symshape::Dim;
use symshape_runtime::DType;

/// The values of a byte.
const BYTES: usize = 256;

/// About the number of simple operations that take the time of a lookup.
const LOOKUP_COST: usize = 48;

/// The largest number of definitions between two bytes.
const MAX_VALUES: usize = 256;

/// The stored integers that a value is a function of.
#[derive(Clone, Copy, PartialEq)]
enum Argument {
    /// None: the value is a constant.
    None,
    /// One byte, at the same place.
    Byte(Value),
    /// Others.
    Other,
}

/// The conversion of `x` to a byte of type `to` as a lookup, if `x` is a costly function of a byte.
pub(super) fn lookup(new: &mut Graph, x: Value, to: DType) -> Result<Option<Value>> {
    let Argument::Byte(byte) = argument(new, x, &mut HashMap::new()) else { return Ok(None) };
    let is_signed = new.dtype(byte) == DType::I8;

    let arguments =
        (0..BYTES).map(|index| if is_signed { index as u8 ^ 0x80 } else { index as u8 }).collect();
    let arguments = Tensor::new(new.dtype(byte), vec![BYTES], Bytes::Owned(arguments));
    let arguments = new.constant(arguments.expect("a byte each"))?;
    let mut copy = Copy { made: HashMap::from([(byte, arguments)]), cost: 0 };
    let results = copy.of(new, x)?;
    if copy.cost < LOOKUP_COST {
        return Ok(None);
    }
    let results = new.cast(to, results)?;
    let results = new.cast(DType::I32, results)?;
    let Some(table) = values(new, &Binding::new(), &[], &[results]).ok().and_then(|mut found| found.pop())
    else {
        return Ok(None);
    };

    let table = new.constant(table)?;
    let mut index = new.cast(DType::I32, byte)?;
    if is_signed {
        let lowest = new.number(DType::I32, 128.0)?;
        index = new.add(index, lowest)?;
    }
    let result = new.gather(table, index, 0)?;
    new.cast(to, result).map(Some)
}

/// The argument of a value. A byte that is a function of another byte is none itself.
fn argument(graph: &Graph, value: Value, known: &mut HashMap<Value, Argument>) -> Argument {
    if let Some(argument) = known.get(&value) {
        return *argument;
    }
    if is_uniform(graph, value) {
        return Argument::None;
    }
    if known.len() >= MAX_VALUES {
        return Argument::Other;
    }

    // Definitions are acyclic, so this is read only if the limit ends the search.
    known.insert(value, Argument::Other);
    let mut found = if is_elementwise(graph, value) { Argument::None } else { Argument::Other };
    if found == Argument::None {
        for operand in inputs(graph, value) {
            found = match (found, argument(graph, operand, known)) {
                (Argument::Other, _) | (_, Argument::Other) => Argument::Other,
                (argument, Argument::None) | (Argument::None, argument) => argument,
                (one, other) if one == other => one,
                _ => Argument::Other,
            };
        }
    }
    if found == Argument::Other && matches!(graph.dtype(value), DType::U8 | DType::I8) {
        found = Argument::Byte(value);
    }
    known.insert(value, found);
    found
}

/// Whether the value repeats one constant element.
fn is_uniform(graph: &Graph, value: Value) -> bool {
    if number(graph, value).is_some() {
        return true;
    }
    let source = graph.through_views(value);
    graph.shape(source).iter().all(|dim| dim.as_i64() == Some(1)) && is_fixed(graph, source)
}

/// Whether each element depends on the elements of the inputs at the same place alone: a map, or a lookup in a
/// constant.
fn is_elementwise(graph: &Graph, value: Value) -> bool {
    match graph.op(value) {
        Op::Map(_) => true,
        Op::Gather { coords, .. } => {
            let [Coord::Load { operand: 1, at }] = &coords[..] else { return false };
            let is_same_place = at.iter().enumerate().all(|(k, at)| *at == Dim::from(axis(k)));
            is_same_place && matches!(graph.op(graph.operands(value)[0]), Op::Const(_))
        }
        _ => false,
    }
}

/// The operands of an elementwise value that are not tables.
fn inputs(graph: &Graph, value: Value) -> Vec<Value> {
    let tables = usize::from(matches!(graph.op(value), Op::Gather { .. }));
    graph.operands(value)[tables..].to_vec()
}

/// The definitions of a value again, for all arguments.
struct Copy {
    made: HashMap<Value, Value>,
    /// Simple operations.
    cost: usize,
}

impl Copy {
    fn of(&mut self, new: &mut Graph, value: Value) -> Result<Value> {
        if let Some(made) = self.made.get(&value) {
            return Ok(*made);
        }
        let constant = if is_uniform(new, value) { uniform(new, value)? } else { None };
        let made = if let Some(constant) = constant {
            new.broadcast_to(constant, &[BYTES.into()])?
        } else {
            let mut operands = Vec::new();
            for input in inputs(new, value) {
                operands.push(self.of(new, input)?);
            }
            match new.op(value).clone() {
                Op::Map(body) => {
                    self.cost += cost(&body);
                    new.map(body, &operands)?
                }
                _ => {
                    self.cost += LOOKUP_COST;
                    let table = new.operands(value)[0];
                    new.gather(table, operands[0], 0)?
                }
            }
        };
        self.made.insert(value, made);
        Ok(made)
    }
}

/// Simple operations of a body.
fn cost(body: &Body) -> usize {
    use UnaryOp::{Abs, Ceil, Floor, Neg, Not, Recip, Round, Sign, Sqrt, Trunc};
    let cost = |step: &Step| match step {
        Step::Const(_) => 0,
        Step::Unary(Neg | Abs | Not | Floor | Ceil | Round | Trunc | Sign, _) => 1,
        Step::Unary(Sqrt | Recip, _) | Step::Binary(BinaryOp::Div, ..) => 5,
        Step::Unary(..) | Step::Binary(BinaryOp::Pow | BinaryOp::Atan2, ..) => 24,
        _ => 1,
    };
    body.steps.iter().map(cost).sum()
}
