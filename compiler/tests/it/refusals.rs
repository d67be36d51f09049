//! A model with several refused nodes: one error names all of them, with declarations to copy.

use crate::protos;

use protos::{float, node};
use symshape_compiler::import::{
    Custom, ImportOptions, Model, import, parse_dim,
    proto::{
        AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, ValueInfoProto,
    },
};

/// A node of the operator `com.foo::OP`.
fn foreign(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    node(&format!("com.foo:{op}"), inputs, outputs)
}

/// The attribute `NAME`, with ONNX's number of its kind.
fn attribute(name: &str, kind: i32) -> AttributeProto {
    AttributeProto { name: name.into(), kind, ..Default::default() }
}

/// A model with the inputs `x: f32[N, 4]` and `z: f32[2*N + 1]`, and the output `y`.
fn model(nodes: Vec<NodeProto>, declared: Vec<ValueInfoProto>) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        input: vec![float("x", &["N", "4"]), float("z", &["2*N + 1"])],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        value_info: declared,
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() }
}

fn options(customs: &[&str]) -> ImportOptions {
    ImportOptions {
        dims: vec![parse_dim("N=1..64").unwrap()],
        customs: customs.iter().map(|text| Custom::parse(text).unwrap()).collect(),
        ..Default::default()
    }
}

fn error(model: ModelProto, customs: &[&str]) -> String {
    import(&Model::from(model), &options(customs)).expect_err("the model has unknown operators").to_string()
}

/// The declarations that an error message suggests.
fn suggestions(error: &str) -> Vec<&str> {
    let parts = error.split("--custom \"").skip(1);
    parts.map(|part| part.split('"').next().unwrap()).collect()
}

#[test]
fn unknown_operator_has_declaration_to_copy() {
    let mut swish = foreign("FastSwish", &["x", "z"], &["y"]);
    swish.attribute =
        vec![attribute("alpha", 1), attribute("axis", 2), attribute("mode", 3), attribute("pads", 7)];
    let expected = "node `the FastSwish`: unsupported: op com.foo::FastSwish (opset 1); --custom \
                    \"com.foo:FastSwish(x0: f32[N, 4], x1: f32[A1], alpha: float, axis: int, mode: string, \
                    pads: ints) -> f32[N, 4] = com_foo_fast_swish\" binds it to a function of yours, see \
                    docs/custom-ops.md";
    assert_eq!(error(model(vec![swish], vec![]), &[]), expected);

    let unknown = node("Bar", &["x"], &["y"]);
    let expected = "node `the Bar`: unsupported: op Bar (opset 21); --custom \"Bar(x0: f32[N, 4]) -> f32[N, 4] \
                    = bar\" binds it to a function of yours, see docs/custom-ops.md";
    assert_eq!(error(model(vec![unknown], vec![]), &[]), expected);
}

#[test]
fn suggested_result_has_the_declared_shape() {
    let text = error(
        model(
            vec![foreign("Sum", &["x"], &["s"]), node("Abs", &["s"], &["y"])],
            vec![float("s", &["4", "N"])],
        ),
        &[],
    );
    assert_eq!(suggestions(&text), ["com.foo:Sum(x0: f32[N, 4]) -> f32[4, N] = com_foo_sum"]);
}

#[test]
fn node_that_no_declaration_describes_gets_the_form() {
    let mut bar = foreign("Bar", &["x"], &["y"]);
    bar.attribute = vec![AttributeProto { t: Some(TensorProto::default()), ..attribute("table", 4) }];
    assert_eq!(suggestions(&error(model(vec![bar], vec![]), &[])), ["com.foo:Bar(…) -> … = FUNCTION"]);

    let gap = foreign("Bar", &["x", "", "z"], &["y"]);
    assert_eq!(suggestions(&error(model(vec![gap], vec![]), &[])), ["com.foo:Bar(…) -> … = FUNCTION"]);
}

/// Four nodes of unknown operators. One of them needs the result of another.
fn chain() -> ModelProto {
    let nodes = vec![
        foreign("Bar", &["x"], &["a"]),
        node("Relu", &["a"], &["b"]),
        foreign("Bar", &["x"], &["c"]),
        foreign("Baz", &["b", "x"], &["d"]),
        node("Add", &["c", "d"], &["e"]),
        foreign("Qux", &["x", "z"], &["f"]),
        node("Add", &["e", "f"], &["y"]),
    ];
    model(nodes, vec![])
}

#[test]
fn all_unknown_operators_are_in_one_error() {
    let expected = "unsupported: 4 nodes can't be compiled:
  node `the Bar` and another: unsupported: op com.foo::Bar (opset 1); --custom \"com.foo:Bar(x0: f32[N, 4]) -> \
                    f32[N, 4] = com_foo_bar\" binds it to a function of yours, see docs/custom-ops.md
  node `the Baz`: unsupported: op com.foo::Baz (opset 1); --custom \"com.foo:Baz(x0: T0[D0...], x1: f32[N, 4]) -> \
                    T0[D0...] = com_foo_baz\" binds it to a function of yours, see docs/custom-ops.md
  node `the Qux`: unsupported: op com.foo::Qux (opset 1); --custom \"com.foo:Qux(x0: f32[N, 4], x1: f32[A1]) -> f32[N, 4] = \
                    com_foo_qux\" binds it to a function of yours, see docs/custom-ops.md";
    assert_eq!(error(chain(), &[]), expected);
}

#[test]
fn suggested_declarations_are_accepted() {
    let text = error(chain(), &[]);
    let declarations = suggestions(&text);
    assert_eq!(declarations.len(), 3);
    import(&Model::from(chain()), &options(&declarations)).unwrap();
}

#[test]
fn many_reasons_are_cut_off() {
    let nodes = (0..30).map(|k| foreign(&format!("Op{k}"), &["x"], &[&format!("v{k}")]));
    let nodes = nodes.chain([node("Relu", &["v0"], &["y"])]).collect();
    let text = error(model(nodes, vec![]), &[]);
    assert!(text.starts_with("unsupported: 30 nodes can't be compiled:\n"), "{text}");
    assert!(text.ends_with("\n  and 10 nodes for other reasons"), "{text}");
    assert_eq!(suggestions(&text).len(), 20);
}
