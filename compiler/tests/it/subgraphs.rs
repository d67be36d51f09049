//! The names of branches and loop bodies. A name that a subgraph defines hides that of a graph around it.

use crate::protos;

use protos::{float, int64_tensor, node};
use symshape_compiler::{
    graph::{Op, eval::eval},
    import::{
        ImportOptions, Model, import, parse_bind, parse_dim,
        proto::{
            AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
            ValueInfoProto,
        },
    },
    tensor::{Bytes, Tensor},
};
use symshape_runtime::DType;

fn value(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), ty: None }
}

fn floats(name: &str, values: &[f32]) -> TensorProto {
    let raw: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    TensorProto {
        name: name.into(),
        dims: vec![values.len() as i64],
        data_type: 1,
        raw_data: Some(raw.into()),
        ..Default::default()
    }
}

/// The subgraph of these nodes with the output `output`.
fn subgraph(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
    GraphProto { node: nodes, output: vec![value(output)], ..Default::default() }
}

fn with_graphs(mut node: NodeProto, graphs: Vec<(&str, GraphProto)>) -> NodeProto {
    for (name, graph) in graphs {
        node.attribute.push(AttributeProto {
            name: name.into(),
            kind: 5,
            g: Some(graph),
            ..Default::default()
        });
    }
    node
}

/// An `If` with the output `y`.
fn choice(condition: &str, then: GraphProto, otherwise: GraphProto) -> NodeProto {
    with_graphs(node("If", &[condition], &["y"]), vec![("then_branch", then), ("else_branch", otherwise)])
}

/// A model with the inputs `x: f32[N]` and the conditions `a` and `b`, and the output `y`.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let condition = |name: &str| {
        let mut info = float(name, &[]);
        info.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor").elem_type = 9;
        info
    };
    let graph = GraphProto {
        node: nodes,
        input: vec![float("x", &["N"]), condition("a"), condition("b")],
        output: vec![value("y")],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() }
}

fn options() -> ImportOptions {
    ImportOptions { dims: vec![parse_dim("N=1..8").expect("a range")], ..Default::default() }
}

/// `y` for `x = [-1, 2, -3]`, by conditions that are known only at run time.
fn at_run_time(proto: &ModelProto, a: bool, b: bool) -> Vec<f64> {
    let graph = import(&Model::from(proto.clone()), &options()).expect("the names are well scoped");
    let condition = |holds: bool| {
        Tensor::new(DType::Bool, Vec::new(), Bytes::Owned(vec![u8::from(holds)].into())).expect("one element")
    };
    let x = Tensor::from_f32(vec![3], &[-1.0, 2.0, -3.0]).expect("three elements");
    let y = eval(&graph, &[x, condition(a), condition(b)]).expect("it computes").remove(0);
    (0..y.elems()).map(|k| y.get(k).as_f64()).collect()
}

/// `y` for `x = [-1, 2, -3]`, by conditions that the import binds.
fn when_bound(proto: &ModelProto, a: bool, b: bool) -> Vec<f64> {
    let binds =
        [("a", a), ("b", b)].map(|(name, holds)| parse_bind(&format!("{name}={holds}")).expect("a constant"));
    let graph = import(&Model::from(proto.clone()), &ImportOptions { binds: binds.into(), ..options() });
    let graph = graph.expect("the names are well scoped");
    assert!(!graph.nodes.values().any(|node| matches!(node.op, Op::If { .. })), "a branch is left");
    let x = Tensor::from_f32(vec![3], &[-1.0, 2.0, -3.0]).expect("three elements");
    let y = eval(&graph, &[x]).expect("it computes").remove(0);
    (0..y.elems()).map(|k| y.get(k).as_f64()).collect()
}

/// Checks `y` for each choice of the conditions, with `expected(a, b)`.
#[track_caller]
fn chooses(proto: &ModelProto, expected: impl Fn(bool, bool) -> [f64; 3]) {
    for a in [false, true] {
        for b in [false, true] {
            assert_eq!(at_run_time(proto, a, b), expected(a, b), "at run time, a = {a}, b = {b}");
            assert_eq!(when_bound(proto, a, b), expected(a, b), "bound, a = {a}, b = {b}");
        }
    }
}

/// The form of a merged decoder: one with a cache and one without, behind `use_cache_branch`.
#[test]
fn branches_may_name_their_outputs_as_the_if() {
    let proto = model(vec![
        node("Neg", &["x"], &["minus"]),
        choice(
            "a",
            subgraph(vec![node("Identity", &["x"], &["y"])], "y"),
            subgraph(vec![node("Identity", &["minus"], &["y"])], "y"),
        ),
    ]);
    chooses(&proto, |a, _| if a { [-1.0, 2.0, -3.0] } else { [1.0, -2.0, 3.0] });
}

#[test]
fn nested_branches_may_name_their_outputs_as_the_if() {
    let inner = choice(
        "b",
        subgraph(vec![node("Abs", &["x"], &["y"])], "y"),
        subgraph(vec![node("Relu", &["outer"], &["inner"]), node("Neg", &["inner"], &["y"])], "y"),
    );
    let proto = model(vec![
        // In the file, `outer` follows the branch that reads it.
        choice("a", subgraph(vec![inner], "y"), subgraph(vec![node("Identity", &["outer"], &["y"])], "y")),
        node("Neg", &["x"], &["outer"]),
    ]);
    chooses(&proto, |a, b| match (a, b) {
        (true, true) => [1.0, 2.0, 3.0],
        (true, false) => [-1.0, 0.0, -3.0],
        (false, _) => [1.0, -2.0, 3.0],
    });
}

/// The nodes after the `If` define names that its branches define too: as an initialiser, and as an output.
#[test]
fn names_of_branches_hide_those_of_later_nodes() {
    let mut then = subgraph(vec![node("Add", &["x", "scale"], &["chosen"])], "chosen");
    then.initializer.push(floats("scale", &[10.0]));
    let otherwise =
        subgraph(vec![node("Abs", &["shift"], &["chosen"]), node("Neg", &["x"], &["shift"])], "chosen");
    let mut choice = choice("a", then, otherwise);
    choice.output = vec!["z".into()];
    let proto = model(vec![
        choice,
        node("Abs", &["z"], &["scale"]),
        node("Neg", &["scale"], &["shift"]),
        node("Add", &["shift", "scale"], &["chosen"]),
        node("Add", &["chosen", "z"], &["y"]),
    ]);
    chooses(&proto, |a, _| if a { [9.0, 12.0, 7.0] } else { [1.0, 2.0, 3.0] });
}

#[test]
fn branches_that_read_the_output_of_their_if_are_cyclic() {
    for nodes in [vec![], vec![node("Abs", &["y"], &["z"])]] {
        let output = if nodes.is_empty() { "y" } else { "z" };
        let proto = model(vec![choice(
            "a",
            subgraph(nodes, output),
            subgraph(vec![node("Abs", &["x"], &["y"])], "y"),
        )]);
        let error = import(&Model::from(proto), &options()).expect_err("a cycle").to_string();
        assert_eq!(error, "node `the If`: cycle: its inputs depend on its output `y`");
    }
}

/// The body names its carried value as the loop names its result, and its sum as a later node names its output.
#[test]
fn loop_bodies_may_reuse_names() {
    let body = GraphProto {
        node: vec![node("Add", &["y", "x"], &["sum"]), node("Identity", &["go in"], &["go"])],
        input: ["round", "go in", "y"].map(value).into(),
        output: ["go", "sum"].map(value).into(),
        ..Default::default()
    };
    let rounds = with_graphs(node("Loop", &["times", "", "x"], &["total"]), vec![("body", body)]);
    let mut proto = model(vec![rounds, node("Abs", &["total"], &["sum"]), node("Neg", &["sum"], &["y"])]);
    proto.graph.as_mut().expect("there is one").initializer.push(int64_tensor("times", &[3]));
    chooses(&proto, |_, _| [-4.0, -8.0, -12.0]);
}

/// The second output of a node of the body is the limit of the loop, not the constant of the same name around it.
#[test]
fn limits_of_loops_are_those_of_the_body() {
    let body = GraphProto {
        node: vec![
            node("Split", &["limits"], &["first", "limit"]),
            node("Add", &["at", "one"], &["next"]),
            node("Less", &["next", "limit"], &["again"]),
            node("Add", &["so far", "x"], &["sum"]),
        ],
        input: ["round", "goes on", "at", "so far"].map(value).into(),
        output: ["again", "next", "sum"].map(value).into(),
        ..Default::default()
    };
    let mut body = body;
    body.node[0].attribute.push(AttributeProto {
        name: "num_outputs".into(),
        kind: 2,
        i: 2,
        ..Default::default()
    });

    let rounds = with_graphs(node("Loop", &["", "", "zero", "x"], &["count", "y"]), vec![("body", body)]);
    let mut proto = model(vec![rounds]);
    let constants = [
        int64_tensor("limits", &[7, 4]),
        int64_tensor("limit", &[1]),
        int64_tensor("one", &[1]),
        int64_tensor("zero", &[0]),
    ];
    proto.graph.as_mut().expect("there is one").initializer.extend(constants);
    chooses(&proto, |_, _| [-5.0, 10.0, -15.0]);
}
