//! Fourier transforms of windows and of whole signals, by the importer's graphs and by machine code, against the
//! definition.

use crate::machine;
use crate::protos;

use machine::Machine;
use protos::{float, node};
use std::f64::consts::TAU;
use symshape_compiler::{
    graph::{Graph, eval::eval},
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{
            AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
            ValueInfoProto,
        },
    },
    pipeline::{Lowered, Pipeline},
    scalar::Precision,
    tensor::{Bytes, Tensor},
};

/// The only node of a model over `x`, and its other inputs.
fn graph(node: NodeProto, x: &[&str], constants: Vec<TensorProto>, dims: &[&str]) -> Graph {
    let graph = GraphProto {
        node: vec![node],
        initializer: constants,
        input: vec![float("x", x)],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 19 }];
    let proto = ModelProto { ir_version: 9, graph: Some(graph), opset_import, ..Default::default() };
    let dims = dims.iter().map(|dim| parse_dim(dim).expect("a range")).collect();
    import(&Model::from(proto), &ImportOptions { dims, ..Default::default() }).expect("it can be imported")
}

fn int(name: &str, value: i64) -> TensorProto {
    TensorProto { name: name.into(), data_type: 7, int64_data: vec![value], ..Default::default() }
}

fn floats(name: &str, values: &[f32]) -> TensorProto {
    let dims = vec![values.len() as i64];
    TensorProto { name: name.into(), data_type: 1, dims, float_data: values.to_vec(), ..Default::default() }
}

fn flag(name: &str, value: i64) -> AttributeProto {
    AttributeProto { name: name.into(), kind: 2, i: value, ..Default::default() }
}

/// Numbers without a pattern in -1..1.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|k| ((k * k * 37 + k * 11) % 101) as f32 / 50.0 - 1.0).collect()
}

/// Cosine and sine of the multiples of `1/length` of a circle.
fn turns(length: usize) -> Vec<[f64; 2]> {
    let turn = |k| TAU * k as f64 / length as f64;
    (0..length).map(|k| [turn(k).cos(), turn(k).sin()]).collect()
}

/// Frequency `k` of as many points as there are turns, of which there are these.
fn frequency(x: &[[f64; 2]], k: usize, turns: &[[f64; 2]]) -> [f64; 2] {
    let mut sum = [0.0; 2];
    for (j, [re, im]) in x.iter().enumerate() {
        let [cos, sin] = turns[j * k % turns.len()];
        sum = [sum[0] + re * cos + im * sin, sum[1] + im * cos - re * sin];
    }
    sum
}

/// The results of the oracle and of machine code for `x` at these sizes of the symbols.
#[track_caller]
fn check(graph: &Graph, machine: &Machine, dims: &[i64], x: &Tensor, shape: &[usize], expected: &[f64]) {
    let by_oracle = eval(graph, std::slice::from_ref(x)).expect("within the contract").remove(0);
    assert_eq!(by_oracle.shape(), shape, "{dims:?}");
    let bytes = machine.run(dims, &[x.bytes().to_vec()]).expect("within the contract").remove(0);
    let by_machine = Tensor::new(by_oracle.dtype(), shape.to_vec(), Bytes::Owned(bytes.into()));
    let by_machine = by_machine.expect("of the same size");
    let largest = expected.iter().fold(1.0_f64, |largest, x| largest.max(x.abs()));
    for (at, want) in expected.iter().enumerate() {
        for got in [by_oracle.get(at).as_f64(), by_machine.get(at).as_f64()] {
            assert!((got - want).abs() <= 3e-6 * largest, "{dims:?} [{at}]: {got}, not {want}");
        }
    }
}

fn machine(graph: &Graph) -> Machine {
    let Lowered { program, plan, .. } = Pipeline::new(graph).lower().expect("all of it can be compiled");
    Machine::assemble(program, &plan, false).expect("all of it can be compiled")
}

/// Windows of a length, how far apart, with how many weights (if there are any).
struct Windows {
    length: usize,
    step: usize,
    weights: Option<usize>,
    parts: usize,
    onesided: bool,
}

impl Windows {
    fn graph(&self) -> Graph {
        let weights = self.weights.map(numbers);
        let mut stft =
            node("STFT", &["x", "step", if weights.is_some() { "weights" } else { "" }, "length"], &["y"]);
        stft.attribute.push(flag("onesided", self.onesided.into()));
        let mut constants = vec![int("step", self.step as i64), int("length", self.length as i64)];
        constants.extend(weights.map(|weights| floats("weights", &weights)));
        let sizes = format!("T={}..{}", self.length, self.length + 40);
        graph(stft, &["N", "T", &self.parts.to_string()], constants, &["N=1..3", &sizes])
    }

    fn expected(&self, x: &[f32], size: usize) -> Vec<f64> {
        let taken = self.weights.map_or(self.length, |count| count.min(self.length));
        let weights = self.weights.map_or(vec![1.0; taken], numbers);
        let bins = if self.onesided { self.length / 2 + 1 } else { self.length };
        let (mut all, turns) = (Vec::new(), turns(self.length));
        for row in x.chunks(size * self.parts) {
            for first in (0..=size - self.length).step_by(self.step) {
                let part = |j: usize, part: usize| match part < self.parts {
                    true => f64::from(row[(first + j) * self.parts + part]) * f64::from(weights[j]),
                    false => 0.0,
                };
                let frame: Vec<[f64; 2]> = (0..taken).map(|j| [part(j, 0), part(j, 1)]).collect();
                all.extend((0..bins).flat_map(|k| frequency(&frame, k, &turns)));
            }
        }
        all
    }

    fn check(&self) {
        let graph = self.graph();
        let machine = machine(&graph);
        let bins = if self.onesided { self.length / 2 + 1 } else { self.length };
        for size in [0, 1, 2, 3, 17, 39, 40].map(|more| self.length + more) {
            for rows in [1, 3] {
                let x = numbers(rows * size * self.parts);
                let frames = (size - self.length) / self.step + 1;
                let shape = [rows, frames, bins, 2];
                let expected = self.expected(&x, size);
                let x = Tensor::from_f32(vec![rows, size, self.parts], &x).expect("it fits");
                check(&graph, &machine, &[rows as i64, size as i64], &x, &shape, &expected);
            }
        }
    }
}

#[test]
fn windows_are_transformed_as_the_definition_says() {
    for (length, step, weights) in [
        (1, 1, Some(1)),
        (8, 3, Some(8)),
        (9, 4, None),
        (8, 11, Some(8)),
        (12, 5, Some(7)),
        (7, 7, Some(10)),
        (64, 16, Some(64)),
        (128, 16, Some(128)),
        (135, 16, Some(110)),
    ] {
        for (parts, onesided) in [(1, true), (1, false), (2, false)] {
            Windows { length, step, weights, parts, onesided }.check();
        }
    }
}

#[test]
fn long_windows_are_transformed_in_steps() {
    for (weights, parts, onesided) in [(Some(2000), 1, true), (None, 2, false)] {
        Windows { length: 2058, step: 40, weights, parts, onesided }.check();
    }
}

#[test]
fn windows_keep_their_precision() {
    let windows = Windows { length: 64, step: 16, weights: Some(64), parts: 1, onesided: true };
    let mut graph = windows.graph();
    let x = Tensor::from_f32(vec![1, 80, 1], &numbers(80)).expect("it fits");
    let before = eval(&graph, std::slice::from_ref(&x)).expect("within the contract");
    graph.set_precision(Precision::Bf16);
    let after = eval(&graph, &[x]).expect("within the contract");
    assert_eq!(before[0].bytes(), after[0].bytes());
}

#[test]
fn signals_are_transformed_as_the_definition_says() {
    // 67 has no steps; of 128 points there are fewer in the signal, and of 40 more.
    for (points, parts, onesided) in
        [(150, 1, false), (67, 1, true), (67, 2, false), (128, 1, true), (128, 2, false), (40, 1, true)]
    {
        let mut dft = node("DFT", &["x", "points"], &["y"]);
        dft.attribute.extend([flag("axis", 1), flag("onesided", i64::from(onesided))]);
        let sizes = ["N=1..3", "T=60..80"];
        let graph = graph(dft, &["N", "T", "2", &parts.to_string()], vec![int("points", points)], &sizes);
        let machine = machine(&graph);
        let points = points as usize;
        let turns = turns(points);
        let bins = if onesided { points / 2 + 1 } else { points };
        for (rows, size) in [(1_usize, 60_usize), (2, 61), (3, 67), (1, 79), (3, 80)] {
            let x = numbers(rows * size * 2 * parts);
            let mut expected = Vec::new();
            for (row, k, column) in
                (0..rows).flat_map(|row| (0..bins).flat_map(move |k| [0, 1].map(|column| (row, k, column))))
            {
                let element = |j: usize, part: usize| match part < parts {
                    true => f64::from(x[((row * size + j) * 2 + column) * parts + part]),
                    false => 0.0,
                };
                let signal: Vec<[f64; 2]> =
                    (0..size.min(points)).map(|j| [element(j, 0), element(j, 1)]).collect();
                expected.extend(frequency(&signal, k, &turns));
            }
            let x = Tensor::from_f32(vec![rows, size, 2, parts], &x).expect("it fits");
            check(&graph, &machine, &[rows as i64, size as i64], &x, &[rows, bins, 2, 2], &expected);
        }
    }
}
