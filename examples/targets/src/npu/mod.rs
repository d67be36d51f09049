//! A simulated accelerator with its own memory, layout and instructions.
//!
//! The device works on matrices in tiles of eight columns, `[tiles][rows][8]`, in its memory. It multiplies
//! by constant matrices, adds, multiplies and takes maxima; it can't subtract. Data go in and out in steps of the plan:
//!
//! ```text
//! host: tile x ─ npu_load ▶ device memory ─ npu_run (instructions) ▶ device memory ─ npu_store ▶ host: untile y
//! ```
//!
//! Hooks in the order of their use: [`Target::claim`] claims the operations of the device, [`Target::graph_pass`]
//! rewrites differences, [`Target::lower`] writes the steps and a listing of the device's instructions,
//! [`Target::memory_bytes`] lets the plan place the device's tensors in its memory, [`Target::emit`] assembles the
//! listing, [`Target::cost`] estimates a step.

mod code;
mod functions;

use code::Listing;
use std::collections::HashMap;
use symshape::Dim;
use symshape_compiler::{
    Error, Result,
    external::Callee,
    graph::{Graph, Node, Op, Type, Value},
    kernel::{Argument, ExternalCall, Program},
    offload::{CallCost, GraphPhase, Subgraph, Target},
    scalar::{BinaryOp, Body, Scalar, Step},
};
use symshape_runtime::{
    DType,
    external::{Attribute, AttributeValue, Function},
};

/// Columns of a tile.
pub const TILE: i64 = 8;

/// The target `npu`.
pub struct Npu {
    /// Bytes of the device's memory.
    pub memory_bytes: u64,
}

impl Default for Npu {
    fn default() -> Npu {
        Npu { memory_bytes: 1 << 20 }
    }
}

impl Target for Npu {
    fn name(&self) -> &str {
        "npu"
    }

    fn graph_pass(&self, phase: GraphPhase, graph: &mut Graph) -> Result<()> {
        match phase {
            GraphPhase::Optimized => {}
            GraphPhase::Claimed => graph.nodes.values_mut().for_each(without_differences),
        }
        Ok(())
    }

    fn claim(&self, graph: &Graph, node: &Node) -> bool {
        let is_matrix = |value: &Value| {
            let ty = graph.ty(*value);
            ty.dtype == DType::F32 && ty.shape.len() == 2 && ty.shape[1].as_i64().is_some_and(|n| n > 0)
        };
        let shapes = node.operands.iter().chain(&node.results).all(is_matrix);
        let known = |value: Value| graph.as_constant(value).is_some();
        shapes
            && match &node.op {
                Op::Contraction { lhs, rhs, out, dtype: DType::F32, .. } => {
                    let plain = lhs[1] == rhs[0] && out[..] == [lhs[0], rhs[1]];
                    plain && lhs[0] != rhs[1] && known(node.operands[1]) && !known(node.operands[0])
                }
                Op::Map(body) => body.steps.iter().all(can_do) && !node.operands.is_empty(),
                _ => false,
            }
    }

    fn lower(&self, part: &Subgraph, graph: &mut Graph) -> Result<Vec<Value>> {
        let mut device = Device {
            part,
            graph,
            host: HashMap::new(),
            regs: HashMap::new(),
            loads: Vec::new(),
            listing: Listing::default(),
        };
        for node in part.graph.nodes.values() {
            device.node(node)?;
        }
        device.finish()
    }

    fn memory_bytes(&self) -> Option<u64> {
        Some(self.memory_bytes)
    }

    fn emit(&self, call: &mut ExternalCall, _program: &Program) -> Result<()> {
        for attribute in &mut call.callee.attributes {
            if let (true, AttributeValue::Bytes(text)) = (attribute.name == "listing", &attribute.value) {
                let text = String::from_utf8_lossy(text).into_owned();
                *attribute =
                    Attribute { name: "code".into(), value: AttributeValue::Bytes(code::assemble(&text)?) };
            }
        }
        Ok(())
    }

    /// A start of 2 µs, then 4 GB in a second in and out, or 8 results in a nanosecond.
    fn cost(&self, call: &ExternalCall, _program: &Program) -> Option<CallCost> {
        let elems = Dim::sum(call.results.iter().map(Argument::elems));
        let per_second = if call.callee.symbol == "npu_run" { 8_000_000_000 } else { 1_000_000_000 };
        Some(CallCost::nanoseconds(2_000) + CallCost::at_rate(elems, per_second))
    }
}

/// The elementwise operators of the device. Differences are among them, since they are rewritten.
fn can_do(step: &Step) -> bool {
    matches!(
        step,
        Step::Const(_) | Step::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Max, ..)
    )
}

/// `x - y = x + y * -1`, bit for bit: products with -1 are exact.
fn without_differences(node: &mut Node) {
    let Op::Map(body) = &mut node.op else { return };
    let mut new = Body { params: body.params.clone(), steps: Vec::new(), result: body.result };
    let mut place: Vec<symshape_compiler::scalar::Reg> =
        (0..body.params.len() as u32).map(symshape_compiler::scalar::Reg).collect();
    for step in &body.steps {
        let mut push = |step: Step| {
            new.steps.push(step);
            symshape_compiler::scalar::Reg((new.params.len() + new.steps.len()) as u32 - 1)
        };
        let of = |reg: &symshape_compiler::scalar::Reg| place[reg.0 as usize];
        let reg = match step {
            Step::Binary(BinaryOp::Sub, x, y) => {
                let (x, y) = (of(x), of(y));
                let minus = push(Step::Const(Scalar::f32(-1.0)));
                let y = push(Step::Binary(BinaryOp::Mul, y, minus));
                push(Step::Binary(BinaryOp::Add, x, y))
            }
            Step::Binary(op, x, y) => push(Step::Binary(*op, of(x), of(y))),
            step => push(step.clone()),
        };
        place.push(reg);
    }
    new.result = place[body.result.0 as usize];
    *body = new;
}

/// A part on its way to the device.
struct Device<'p, 'g> {
    part: &'p Subgraph,
    graph: &'g mut Graph,
    /// Values of the part that the host has.
    host: HashMap<Value, Value>,
    /// Values of the part that the device has.
    regs: HashMap<Value, usize>,
    /// The initial content of the device's memory.
    loads: Vec<Value>,
    listing: Listing,
}

impl Device<'_, '_> {
    fn node(&mut self, node: &Node) -> Result<()> {
        let result = node.results[0];
        match &node.op {
            Op::Input(number) => {
                self.host.insert(result, self.part.operands[*number as usize]);
            }
            Op::Contraction { .. } => {
                let (a, b) = (self.on_device(node.operands[0])?, self.on_device(node.operands[1])?);
                let columns = self.columns(result);
                let reg = self.listing.push(columns, &format!("gemm {a} {b}"));
                self.regs.insert(result, reg);
            }
            Op::Map(body) => {
                let reg = self.map(node, body)?;
                self.regs.insert(result, reg);
            }
            // Constants and views of them stay on the host.
            op => {
                let operands: Vec<Value> = node.operands.iter().map(|value| self.host[value]).collect();
                let value = self.graph.push(op.clone(), &operands)?;
                self.host.insert(result, value);
            }
        }
        Ok(())
    }

    fn columns(&self, value: Value) -> i64 {
        self.part.graph.shape(value)[1].as_i64().unwrap_or_default()
    }

    fn map(&mut self, node: &Node, body: &Body) -> Result<usize> {
        let columns = self.columns(node.results[0]);
        let mut regs =
            node.operands.iter().map(|value| self.on_device(*value)).collect::<Result<Vec<_>>>()?;
        for step in &body.steps {
            let text = match step {
                Step::Const(value) => format!("fill {}", value.as_f64() as f32),
                Step::Binary(op, x, y) => format!("{op} {} {}", regs[x.0 as usize], regs[y.0 as usize]),
                other => return Err(Error::internal(format!("{other:?} was not claimed"))),
            };
            regs.push(self.listing.push(columns, &text));
        }
        Ok(regs[body.result.0 as usize])
    }

    /// The register of a value. A value of the host is tiled and loaded first.
    fn on_device(&mut self, value: Value) -> Result<usize> {
        if let Some(reg) = self.regs.get(&value) {
            return Ok(*reg);
        }
        // Each load of a part is named after its operand.
        let title = self.graph.origin.clone();
        self.graph.origin = format!("{} for {title}", self.name(self.host[&value]));
        let tiled = tile(self.graph, self.host[&value])?;
        let loaded = call(
            self.graph,
            "npu_load",
            &[tiled],
            self.graph.shape(tiled).to_vec(),
            Vec::new(),
            Dim::zero(),
        )?;
        self.graph.origin = title;
        self.loads.push(loaded);
        let reg = self.listing.load();
        self.regs.insert(value, reg);
        Ok(reg)
    }

    /// How something that the host has is called.
    fn name(&self, value: Value) -> String {
        let input = self.graph.inputs.iter().find(|(_, input)| *input == value);
        input.map_or_else(|| format!("argument {}", self.loads.len()), |(name, _)| name.clone())
    }

    /// The device's run, and the way back.
    fn finish(self) -> Result<Vec<Value>> {
        let outputs: Vec<Value> = self.part.graph.outputs.iter().map(|(_, value)| *value).collect();
        let shape = |value: &Value| {
            let shape = self.part.graph.shape(*value);
            vec![shape[1].ceil_div(TILE), shape[0].clone(), TILE.into()]
        };
        let results: Vec<Type> =
            outputs.iter().map(|value| Type { dtype: DType::F32, shape: shape(value) }).collect();
        let kept: Vec<usize> = outputs.iter().map(|value| self.regs[value]).collect();
        let rows = self.part.graph.shape(outputs[0])[0].clone();
        let listing = Attribute {
            name: "listing".into(),
            value: AttributeValue::Bytes(self.listing.text(&kept).into_bytes()),
        };
        let callee = Callee {
            attributes: vec![listing],
            function: functions::of("npu_run"),
            ..Callee::new("npu_run")
        };
        // Intermediate results stay on the device.
        let scratch = rows * TILE * 4 * self.listing.tiles();
        let done = self.graph.push_multi(Op::Call { callee, results, scratch }, &self.loads)?;
        let mut values = Vec::new();
        for (output, on_device) in outputs.iter().zip(done) {
            let stored = call(self.graph, "npu_store", &[on_device], shape(output), Vec::new(), Dim::zero())?;
            values.push(untile(self.graph, stored, self.part.graph.shape(*output))?);
        }
        Ok(values)
    }
}

fn call(
    graph: &mut Graph,
    symbol: &str,
    operands: &[Value],
    shape: Vec<Dim>,
    attributes: Vec<Attribute>,
    scratch: Dim,
) -> Result<Value> {
    let callee = Callee { attributes, function: functions::of(symbol), ..Callee::new(symbol) };
    let results = vec![Type { dtype: DType::F32, shape }];
    graph.push(Op::Call { callee, results, scratch }, operands)
}

/// `[rows, columns]` in the layout of the device, `[tiles, rows, 8]`, with zeros after the last column. Constants are
/// converted at compile time.
fn tile(graph: &mut Graph, value: Value) -> Result<Value> {
    let shape = graph.shape(value).to_vec();
    let tiles = shape[1].ceil_div(TILE);
    let missing = &tiles * TILE - &shape[1];
    let padded = graph.pad(value, &[Dim::zero(), Dim::zero()], &[Dim::zero(), missing], Scalar::f32(0.0))?;
    let parted = graph.reshape(padded, vec![shape[0].clone(), tiles, TILE.into()])?;
    graph.transpose(parted, &[1, 0, 2])
}

/// The other way round.
fn untile(graph: &mut Graph, value: Value, shape: &[Dim]) -> Result<Value> {
    let tiles = graph.shape(value)[0].clone();
    let rows = graph.transpose(value, &[1, 0, 2])?;
    let whole = graph.reshape(rows, vec![shape[0].clone(), tiles * TILE])?;
    graph.slice(whole, 1, Dim::zero(), shape[1].clone(), 1)
}

/// The functions that run the device in this process: `npu_load`, `npu_run` and `npu_store`.
pub fn function(symbol: &str) -> Option<Function> {
    functions::of(symbol)
}
