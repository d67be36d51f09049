//! Writes `examples/block.onnx`, the model of the tour: a transformer block over `x[N, S, 64]` as exporters write it,
//! with the head split's shape computed by Shape, Gather and Concat, and weights from a fixed sequence.
//!
//! `cargo run --example make_block`

use prost::{Message, bytes::Bytes};
use symshape_compiler::import::proto::{
    AttributeProto, DimensionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    TensorShapeProto, TensorTypeProto, TypeProto, ValueInfoProto,
};

const WIDTH: i64 = 64;
const HEADS: i64 = 4;
const HIDDEN: i64 = 128;

/// ONNX's codes of types: of elements, and of attributes.
const FLOAT: i32 = 1;
const INT64: i32 = 7;
const ATTRIBUTE_INT: i32 = 2;
const ATTRIBUTE_INTS: i32 = 7;

/// The model while it is being written.
#[derive(Default)]
struct Writer {
    graph: GraphProto,
    seed: u64,
}

impl Writer {
    /// Adds a node; its result's name is returned.
    fn node(&mut self, op: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let name = format!("{}_{}", op.to_lowercase(), self.graph.node.len());
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|input| input.to_string()).collect(),
            output: vec![name.clone()],
            name: name.clone(),
            op_type: op.into(),
            attribute: attributes,
            ..NodeProto::default()
        });
        name
    }

    /// Adds weights around `mean`, at most `spread` away.
    fn weights(&mut self, dims: &[i64], mean: f32, spread: f32) -> String {
        let elems = dims.iter().product::<i64>();
        let mut raw = Vec::new();
        for _ in 0..elems {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (self.seed >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
            raw.extend_from_slice(&(mean + spread * unit).to_le_bytes());
        }
        self.initializer(dims, FLOAT, raw)
    }

    /// Adds a constant list of integers.
    fn integers(&mut self, elems: &[i64]) -> String {
        let raw = elems.iter().flat_map(|elem| elem.to_le_bytes()).collect();
        self.initializer(&[elems.len() as i64], INT64, raw)
    }

    fn initializer(&mut self, dims: &[i64], data_type: i32, raw: Vec<u8>) -> String {
        let name = format!("w{}", self.graph.initializer.len());
        self.graph.initializer.push(TensorProto {
            name: name.clone(),
            dims: dims.to_vec(),
            data_type,
            raw_data: Some(Bytes::from(raw)),
            ..TensorProto::default()
        });
        name
    }

    /// `x @ w + b` with fresh weights.
    fn linear(&mut self, x: &str, from: i64, to: i64) -> String {
        let weights = self.weights(&[from, to], 0.0, 1.7 / (from as f32).sqrt());
        let bias = self.weights(&[to], 0.0, 0.1);
        let product = self.node("MatMul", &[x, &weights], vec![]);
        self.node("Add", &[&product, &bias], vec![])
    }

    fn norm(&mut self, x: &str) -> String {
        let (scale, bias) = (self.weights(&[WIDTH], 1.0, 0.2), self.weights(&[WIDTH], 0.0, 0.1));
        self.node("LayerNormalization", &[x, &scale, &bias], vec![int("axis", -1)])
    }

    /// `[N, S, WIDTH]` as `[N, HEADS, S, WIDTH / HEADS]`, or with the last two axes swapped.
    fn heads(&mut self, x: &str, transposed: bool) -> String {
        let shape = self.node("Shape", &[x], vec![]);
        let (zero, one) = (self.integers(&[0]), self.integers(&[1]));
        let batch = self.node("Gather", &[&shape, &zero], vec![int("axis", 0)]);
        let rows = self.node("Gather", &[&shape, &one], vec![int("axis", 0)]);
        let rest = self.integers(&[HEADS, WIDTH / HEADS]);
        let target = self.node("Concat", &[&batch, &rows, &rest], vec![int("axis", 0)]);
        let split = self.node("Reshape", &[x, &target], vec![]);
        let perm = if transposed { [0, 2, 3, 1] } else { [0, 2, 1, 3] };
        self.node("Transpose", &[&split], vec![ints("perm", &perm)])
    }

    fn attention(&mut self, x: &str) -> String {
        let (q, k, v) =
            (self.linear(x, WIDTH, WIDTH), self.linear(x, WIDTH, WIDTH), self.linear(x, WIDTH, WIDTH));
        let (q, k, v) = (self.heads(&q, false), self.heads(&k, true), self.heads(&v, false));
        let scores = self.node("MatMul", &[&q, &k], vec![]);
        let scale = self.weights(&[1], ((WIDTH / HEADS) as f32).sqrt().recip(), 0.0);
        let scaled = self.node("Mul", &[&scores, &scale], vec![]);
        let weights = self.node("Softmax", &[&scaled], vec![int("axis", -1)]);
        let mixed = self.node("MatMul", &[&weights, &v], vec![]);
        let rows = self.node("Transpose", &[&mixed], vec![ints("perm", &[0, 2, 1, 3])]);
        let flat = self.integers(&[0, 0, WIDTH]);
        let joined = self.node("Reshape", &[&rows, &flat], vec![]);
        self.linear(&joined, WIDTH, WIDTH)
    }

    /// `0.5 x (1 + erf(x / √2))`, written out.
    fn gelu(&mut self, x: &str) -> String {
        let (root, one, half) = (
            self.weights(&[1], 2.0_f32.sqrt(), 0.0),
            self.weights(&[1], 1.0, 0.0),
            self.weights(&[1], 0.5, 0.0),
        );
        let scaled = self.node("Div", &[x, &root], vec![]);
        let erf = self.node("Erf", &[&scaled], vec![]);
        let sum = self.node("Add", &[&erf, &one], vec![]);
        let product = self.node("Mul", &[x, &sum], vec![]);
        self.node("Mul", &[&product, &half], vec![])
    }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), kind: ATTRIBUTE_INT, i: value, ..AttributeProto::default() }
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto {
        name: name.into(),
        kind: ATTRIBUTE_INTS,
        ints: values.to_vec(),
        ..AttributeProto::default()
    }
}

/// A tensor `[N, S, WIDTH]` of floats.
fn port(name: &str) -> ValueInfoProto {
    let symbol = |name: &str| DimensionProto { dim_param: Some(name.into()), ..DimensionProto::default() };
    let width = DimensionProto { dim_value: Some(WIDTH), ..DimensionProto::default() };
    let shape = TensorShapeProto { dim: vec![symbol("N"), symbol("S"), width] };
    let tensor = TensorTypeProto { elem_type: FLOAT, shape: Some(shape) };
    let ty = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: name.into(), ty: Some(ty) }
}

fn main() -> std::io::Result<()> {
    let mut w = Writer { seed: 1, ..Writer::default() };
    let normed = w.norm("x");
    let attended = w.attention(&normed);
    let first = w.node("Add", &["x", &attended], vec![]);
    let normed = w.norm(&first);
    let hidden = w.linear(&normed, WIDTH, HIDDEN);
    let active = w.gelu(&hidden);
    let narrow = w.linear(&active, HIDDEN, WIDTH);
    let last = w.node("Add", &[&first, &narrow], vec![]);
    let result = w.graph.node.iter_mut().find(|node| node.output[0] == last).expect("just added");
    result.output[0] = "y".into();
    w.graph.name = "block".into();
    w.graph.input = vec![port("x")];
    w.graph.output = vec![port("y")];
    let model = ModelProto {
        ir_version: 8,
        graph: Some(w.graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 17 }],
        producer_name: "symshape".into(),
        ..ModelProto::default()
    };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/block.onnx");
    std::fs::write(path, model.encode_to_vec())
}
