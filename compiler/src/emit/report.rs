//! The report: one page for a browser that shows the contract, the arena at any size, the partitions, and the kernels.
//!
//! The page contains the plan as data: for every buffer its offset and its end as expressions, and its lifetime in
//! steps. A script evaluates them for the sizes on the sliders, so the page shows the plan at every size. The page
//! loads no other files. With profiles, it also shows the time of each kernel at the measured sizes.

use super::template::filled;
use crate::{
    codegen::{self, ScalarLoop},
    error::Result,
    kernel::{self, BufferId, MemorySpace, Partition, Port, Program, SequencePart, cost, partition::stages},
    plan::{self, OffsetArithmetic, Plan, arena_formula, lifetimes, reserved_bytes},
};
use num_traits::ToPrimitive;
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use symshape::{Dim, Node, Symbol};

const PROFILE_SCRIPT: &str = include_str!("report/profile.js");

const PAGE: &str = include_str!("report/page.html");

/// The page for a program and its plan. `profile` is the data of the profiles, or null.
pub(crate) fn report(program: &Program, plan: &Plan, profile: &Json) -> String {
    let name = &program.name;
    let data = json!({
        "name": name,
        "symbols": program.symbols.iter().map(|symbol| self::symbol(program, symbol)).collect::<Vec<_>>(),
        "inputs": ports(program, &program.inputs),
        "outputs": ports(program, &program.outputs),
        "arena": {"max": plan.arena_max, "lower_bound": plan.lower_bound, "formula": arena_formula(program, plan)},
        "weights": program.const_bytes(),
        "precision": program.precision.name(),
        "tiles": program.on_tiles_count(),
        "buffers": buffers(program, plan),
        "partitions": partitions(program),
        "scalar_loops": scalar_loops(program),
        "copies": copies(program),
        "profile": profile,
        "ragged": ragged(program),
        "kernels": (0..program.kernels.len()).map(|idx| json!({"name": program.kernels[idx].name, "text": kernel_text(program, idx)}))
            .collect::<Vec<_>>(),
    });

    // Only this sequence could end the script element.
    let data = data.to_string().replace("</", "<\\/");
    filled(PAGE, &[("{{name}}", name), ("{{data}}", &data), ("{{profile_script}}", PROFILE_SCRIPT)])
}

/// The hot loops without a vector form, as data.
pub(crate) fn scalar_loops(program: &Program) -> Vec<Json> {
    let row = |found: ScalarLoop| json!({"kernel": found.kernel, "form": found.form, "share": found.share, "reason": found.reason});
    codegen::scalar_loops(program).into_iter().map(row).collect()
}

/// The partition table: the order of the partitions, and their work.
fn partitions(program: &Program) -> Vec<Json> {
    let stages = stages(&program.partitions);
    let partition = |(partition, stage): (&Partition, &usize)| {
        let Partition { name, kernels, after, target } = partition;
        let work = program.kernels[kernels.clone()].iter().map(|kernel| cost::of(program, kernel));
        let cost = program.facts.simplify(&Dim::sum(work));
        json!({
            "name": name, "kernels": [kernels.start, kernels.end], "after": after, "stage": stage, "target": target,
            "cost": expression(&cost),
        })
    };
    program.partitions.iter().zip(&stages).map(partition).collect()
}

/// How the kernels and the buffers of a ragged batch are divided among its sequences; null without one. The work of a
/// kernel is that of all rows, or of one sequence.
fn ragged(program: &Program) -> Json {
    let Some(ragged) = &program.ragged else { return Json::Null };
    let of_sequence = program.of_one_sequence(ragged);
    let kernels = program.kernels.iter().enumerate().map(|(idx, kernel)| {
        let group = ragged.groups.iter().position(|group| group.contains(&idx));
        let work = cost::of(&of_sequence, kernel);
        json!({"kernel": idx, "group": group, "reason": ragged.reasons.get(&idx), "work": expression(&work)})
    });
    let buffers = ragged.parts.iter().map(|(id, part)| {
        let (unit, elems) = match part {
            SequencePart::Rows(elems) => ("row", elems),
            SequencePart::Sequence(elems) => ("sequence", elems),
        };
        json!({"id": id.to_string(), "name": program.buffers[*id].name, "unit": unit, "elems": elems.to_string()})
    });
    json!({
        "length": ragged.length.name(), "sequences": ragged.sequences.name(), "rows": ragged.rows.name(),
        "mask": ragged.padded.mask, "lengths": ragged.padded.lengths, "offsets": program.inputs[ragged.offsets as usize].name,
        "kernels": kernels.collect::<Vec<_>>(), "buffers": buffers.collect::<Vec<_>>(),
    })
}

/// The elements that kernels move without a computation, in the order of the kernels.
fn copies(program: &Program) -> Vec<Json> {
    let copy = |copy: kernel::Copy| {
        json!({
            "kernel": copy.kernel, "from": program.buffers[copy.from].name, "to": program.buffers[copy.to].name,
            "bytes": expression(&copy.bytes), "formula": copy.bytes.to_string(),
        })
    };
    kernel::copies(program).into_iter().map(copy).collect()
}

/// A symbol with the values that it may take: a range with a step, or a list.
fn symbol(program: &Program, symbol: &Symbol) -> Json {
    let Some(declared) = program.facts.declaration(symbol) else { return json!({"name": symbol.name()}) };
    let number = |value: &num_bigint::BigInt| value.to_i64();
    let values: Option<Vec<Option<i64>>> =
        declared.values.as_ref().map(|values| values.iter().map(number).collect());
    json!({
        "name": symbol.name(), "declared": declared.to_string(), "lo": number(&declared.lo),
        "hi": declared.hi.as_ref().and_then(number), "step": number(&declared.step),
        "offset": number(&declared.offset), "values": values,
    })
}

fn ports(program: &Program, ports: &[Port]) -> Vec<Json> {
    let shape = |port: &Port| port.shape.iter().map(Dim::to_string).collect::<Vec<_>>();
    let port = |port: &Port| json!({"name": port.name, "dtype": program.buffers[port.buffer].dtype.to_string(), "shape": shape(port)});
    ports.iter().map(port).collect()
}

/// The buffers of the arena, each after the buffers below it.
fn buffers(program: &Program, plan: &Plan) -> Vec<Json> {
    let lifetimes: HashMap<_, _> = lifetimes(program).into_iter().map(|life| (life.buffer, life)).collect();
    let mut arithmetic = OffsetExpressions { program, ends: Vec::new() };
    let spans = plan::layout(&plan.placements, &mut arithmetic).expect("a plan that was verified");

    let buffer = |(span, end): (plan::Span<Json>, Json)| {
        let buffer = &program.buffers[span.buffer];
        let lifetime = lifetimes.get(&span.buffer);
        json!({
            "id": span.buffer.to_string(), "name": buffer.name, "dtype": buffer.dtype.to_string(),
            "elems": buffer.elems.to_string(), "begin": span.begin, "end": end,
            "first": lifetime.map(|life| life.first), "last": lifetime.map(|life| life.last),
            "scratch": matches!(buffer.space, MemorySpace::Scratch),
            "device": buffer.space.device().map(|number| &program.devices[number as usize].target),
        })
    };

    spans.into_iter().zip(arithmetic.ends).map(buffer).collect()
}

/// Offsets as data; `["end", i]` is the end of the buffer at index `i`.
struct OffsetExpressions<'p> {
    program: &'p Program,
    /// The end of each buffer so far.
    ends: Vec<Json>,
}

impl OffsetArithmetic for OffsetExpressions<'_> {
    type Offset = Json;

    fn largest(&mut self, ends: Vec<Json>) -> Result<Json> {
        let operands = [json!("max"), json!(0)].into_iter().chain(ends);
        Ok(Json::Array(operands.collect()))
    }

    fn end(&mut self, buffer: BufferId, begin: &Json) -> Result<Json> {
        let bytes = expression(&reserved_bytes(self.program, buffer));
        self.ends.push(json!(["+", begin, bytes]));
        Ok(json!(["end", self.ends.len() - 1]))
    }
}

/// A dim as data: an integer, the name of a symbol, or a list of an operator and its operands.
fn expression(dim: &Dim) -> Json {
    let list = |op: &str, operands: &[Dim]| {
        Json::Array(std::iter::once(json!(op)).chain(operands.iter().map(expression)).collect())
    };
    match dim.node() {
        // Numbers of a browser are doubles, which represent every size of a plan exactly.
        Node::Int(value) => json!(value.to_f64()),
        Node::Symbol(symbol) => json!(symbol.name()),
        Node::Add(terms) => list("+", terms),
        Node::Mul(factors) => list("*", factors),
        Node::Min(operands) => list("min", operands),
        Node::Max(operands) => list("max", operands),
        Node::FloorDiv(a, b) => json!(["//", expression(a), expression(b)]),
        Node::Mod(a, b) => json!(["%", expression(a), expression(b)]),
    }
}

/// The text of a kernel. In a ragged batch it begins with how the kernel runs, and why.
fn kernel_text(program: &Program, idx: usize) -> String {
    let text = program.kernels[idx].to_string();
    let Some(ragged) = &program.ragged else { return text };
    match ragged.reasons.get(&idx) {
        Some(reason) => format!("; once for each sequence: {reason}\n{text}"),
        None => format!("; once for all rows\n{text}"),
    }
}
