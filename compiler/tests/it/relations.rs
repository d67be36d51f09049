//! Symbols that the caller does not declare, and that the operators of the model determine.

use crate::{machine, protos};

use machine::Machine;
use protos::{float, node};
use symshape_compiler::{
    graph::{Graph, eval::eval},
    import::{
        self, ImportOptions, Model,
        proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto},
    },
    lower, schedule,
    tensor::Tensor,
};

/// A model with these inputs and nodes, and the output `y`.
fn model(inputs: Vec<ValueInfoProto>, nodes: Vec<NodeProto>) -> Model {
    let graph = GraphProto {
        node: nodes,
        input: inputs,
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    Model::from(ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() })
}

/// `y = concat(past, new) * mask`, where only the values say that the mask is as long as the concatenation.
fn masked() -> Model {
    let mut concat = node("Concat", &["past", "new"], &["all"]);
    concat.attribute = vec![AttributeProto { name: "axis".into(), kind: 2, i: 1, ..Default::default() }];
    model(
        vec![float("past", &["N", "P"]), float("new", &["N", "S"]), float("mask", &["M", "T"])],
        vec![concat, node("Mul", &["all", "mask"], &["y"])],
    )
}

fn options(dims: &[&str]) -> ImportOptions {
    ImportOptions { dims: import::parse_dims(dims).unwrap().dims, ..Default::default() }
}

fn symbols(graph: &Graph) -> Vec<&str> {
    graph.symbols.iter().map(|symbol| symbol.name()).collect()
}

/// The elements 1, 2, 3, … in this shape.
fn counting(shape: &[usize]) -> Tensor {
    let elems: Vec<f32> = (1..=shape.iter().product()).map(|k: usize| k as f32).collect();
    Tensor::from_f32(shape.to_vec(), &elems).unwrap()
}

#[test]
fn mask_has_the_length_of_past_and_new() {
    let model = masked();
    let options = options(&["N=1..3", "P=0..5", "S=1..4"]);
    let graph = import::import(&model, &options).unwrap();
    assert_eq!(symbols(&graph), ["N", "P", "S"]);
    let mask: Vec<String> = graph.shape(graph.inputs[2].1).iter().map(ToString::to_string).collect();
    assert_eq!(mask, ["N", "P + S"]);
    assert_eq!(
        import::notes(&model, &options, &graph),
        [
            "`M` (input `mask` axis 0) is N, as the model requires",
            "`T` (input `mask` axis 1) is P + S, as the model requires"
        ]
    );

    let mut program = lower::lower(&graph).unwrap();
    schedule::schedule(&mut program).unwrap();
    let machine = Machine::compile(program, false);
    for [n, p, s] in [[1, 0, 1], [1, 1, 1], [2, 3, 3], [3, 4, 3], [3, 5, 4]] {
        let inputs = [counting(&[n, p]), counting(&[n, s]), counting(&[n, p + s])];
        let expected = eval(&graph, &inputs).unwrap().remove(0);
        let raw: Vec<Vec<u8>> = inputs.iter().map(|input| input.bytes().to_vec()).collect();
        let results = machine.run(&[n as i64, p as i64, s as i64], &raw);
        let results = results.unwrap_or_else(|refusal| panic!("at {n}, {p}, {s}: {refusal:?}"));
        assert_eq!(results[0], expected.bytes().to_vec(), "at {n}, {p}, {s}");
    }
}

#[test]
fn error_does_not_ask_for_a_range_of_the_mask() {
    let error = import::import(&masked(), &ImportOptions::default()).unwrap_err().to_string();
    let expected = "`N` (input `past` axis 0), `P` (input `past` axis 1), `S` (input `new` axis 1) have no upper \
                    bound; declare, for example, --dim N=1..64 --dim P=1..64 --dim S=1..64, or compile with \
                    --dynamic-memory";
    assert_eq!(error, expected);
}

#[test]
fn declared_symbols_stay_symbols() {
    let options = options(&["N=1..3", "M=1..3", "P=0..5", "S=1..4", "T=1..9"]);
    let graph = import::import(&masked(), &options).unwrap();
    assert_eq!(symbols(&graph), ["N", "P", "S", "M", "T"]);
    assert_eq!(import::notes(&masked(), &options, &graph), [""; 0]);
}

#[test]
fn note_warns_of_a_range_that_excludes_sizes() {
    let options = options(&["N=1..3", "M=1..3", "P=0..5", "S=1..4", "T=1..8"]);
    let graph = import::import(&masked(), &options).unwrap();
    let expected = "calls need T == P + S (node `the Mul`: broadcast [N, P + S] with [M, T]), but the range of T \
                    excludes some of these sizes; --dim T=P+S allows all";
    assert_eq!(import::notes(&masked(), &options, &graph), [expected]);
}

/// A symbol is not replaced by a difference, which could be negative.
#[test]
fn differences_replace_no_symbol() {
    let error = import::import(&masked(), &options(&["N=1..3", "S=1..4", "T=1..8"])).unwrap_err().to_string();
    assert!(error.starts_with("`P` (input `past` axis 1) has no upper bound"), "{error}");
}
