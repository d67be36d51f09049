//! Computed dims that are 0 in a call, and axes without elements: the oracle and machine code against ONNX.

use crate::{machine, protos};

use machine::Machine;
use protos::{float, int64_tensor, node};
use symshape_compiler::{
    Result,
    graph::{Graph, eval::eval},
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ValueInfoProto},
    },
    lower, schedule,
    tensor::Tensor,
};

fn with_int(mut node: NodeProto, name: &str, value: i64) -> NodeProto {
    node.attribute.push(AttributeProto { name: name.into(), kind: 2, i: value, ..Default::default() });
    node
}

/// The graph of these nodes, with the output `y` and the constants `one`, `two`, `four` and `open` (-1).
fn imported(nodes: Vec<NodeProto>, inputs: Vec<ValueInfoProto>, ranges: &[&str]) -> Result<Graph> {
    let graph = GraphProto {
        node: nodes,
        input: inputs,
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        initializer: vec![
            int64_tensor("one", &[1]),
            int64_tensor("two", &[2]),
            int64_tensor("four", &[4]),
            int64_tensor("open", &[-1]),
        ],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    let proto = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    let dims = ranges.iter().map(|range| parse_dim(range).expect("a range")).collect();
    import(&Model::from(proto), &ImportOptions { dims, ..Default::default() })
}

/// `x: f32[N, 4]` with the shape `[N - less, …]`.
fn shortened(less: &str, second: &str) -> Graph {
    let nodes = vec![
        with_int(node("Shape", &["x"], &["rows"]), "end", 1),
        node("Sub", &["rows", less], &["first"]),
        with_int(node("Concat", &["first", second], &["to"]), "axis", 0),
        node("Reshape", &["x", "to"], &["y"]),
    ];
    imported(nodes, vec![float("x", &["N", "4"])], &["N=1..8"]).expect("some sizes fit")
}

/// Counts from 0 in this shape.
fn counted(shape: &[usize]) -> Tensor {
    let elems: Vec<f32> = (0..shape.iter().product()).map(|k: usize| k as f32).collect();
    Tensor::from_f32(shape.to_vec(), &elems).expect("as many as the shape")
}

/// The first output, by the oracle. Machine code must agree.
fn computed(graph: &Graph, inputs: &[Tensor], dims: &[i64]) -> Result<Tensor> {
    let y = eval(graph, inputs)?.remove(0);

    let mut program = lower::lower(graph)?;
    schedule::schedule(&mut program)?;
    let raw: Vec<Vec<u8>> = inputs.iter().map(|input| input.bytes().to_vec()).collect();
    let results = Machine::compile(program, false).run(dims, &raw);
    let results = results.unwrap_or_else(|refusal| panic!("at {dims:?}: {refusal:?}"));
    assert_eq!(results[0], y.bytes().to_vec(), "machine code at {dims:?}");
    Ok(y)
}

/// The shape of the first output, which must have the elements of `inputs[0]`.
fn reshaped(graph: &Graph, inputs: &[Tensor], dims: &[i64]) -> Result<Vec<usize>> {
    let y = computed(graph, inputs, dims)?;
    assert_eq!(y.bytes().to_vec(), inputs[0].bytes().to_vec(), "at {dims:?}");
    Ok(y.shape().to_vec())
}

#[test]
fn reshape_copies_the_dim_where_a_computed_dim_is_zero() {
    let fixed = shortened("one", "four");
    assert_eq!(reshaped(&fixed, &[counted(&[1, 4])], &[1]).expect("the dim of the input"), [1, 4]);
    assert!(eval(&fixed, &[counted(&[3, 4])]).is_err(), "2 rows of 4 are not 3 rows of 4");

    let open = shortened("one", "open");
    for (n, shape) in [(1, [1, 4]), (2, [1, 8]), (3, [2, 6]), (5, [4, 5])] {
        let y = reshaped(&open, &[counted(&[n, 4])], &[n as i64]).expect("it fits");
        assert_eq!(y, shape, "N = {n}");
    }
    assert!(eval(&open, &[counted(&[4, 4])]).is_err(), "16 elements are not 3 rows");
}

#[test]
fn reshape_copies_the_dim_where_a_dim_of_unknown_sign_is_zero() {
    let open = shortened("two", "open");
    for (n, shape) in [(2, [2, 4]), (3, [1, 12]), (4, [2, 8]), (6, [4, 6])] {
        let y = reshaped(&open, &[counted(&[n, 4])], &[n as i64]).expect("it fits");
        assert_eq!(y, shape, "N = {n}");
    }
}

#[test]
fn reshape_copies_the_dim_where_a_symbol_is_zero() {
    let nodes = vec![
        node("Shape", &["z"], &["columns"]),
        with_int(node("Concat", &["columns", "open"], &["to"]), "axis", 0),
        node("Reshape", &["x", "to"], &["y"]),
    ];
    let inputs = vec![float("x", &["N", "M"]), float("z", &["M"])];
    let graph = imported(nodes, inputs, &["N=1..4", "M=0..4"]).expect("some sizes fit");
    for (n, m, shape) in [(2, 0, [2, 0]), (2, 1, [1, 2]), (2, 3, [3, 2]), (4, 4, [4, 4])] {
        let y = reshaped(&graph, &[counted(&[n, m]), counted(&[m])], &[n as i64, m as i64]).expect("it fits");
        assert_eq!(y, shape, "N = {n}, M = {m}");
    }
}

/// `[B, T, 4]` to `[B*T, -1]`: a product with a matrix of 4 rows needs 4 columns for `T = 0` too.
#[test]
fn reshape_that_merges_axes_has_static_dims() {
    let nodes = vec![
        with_int(node("Shape", &["x"], &["batches"]), "end", 1),
        with_int(with_int(node("Shape", &["x"], &["steps"]), "start", 1), "end", 2),
        node("Mul", &["batches", "steps"], &["rows"]),
        with_int(node("Concat", &["rows", "open"], &["to"]), "axis", 0),
        node("Reshape", &["x", "to"], &["y"]),
    ];
    let graph =
        imported(nodes, vec![float("x", &["B", "T", "4"])], &["B=1..4", "T=0..4"]).expect("any size fits");
    let shape: Vec<String> = graph.shape(graph.outputs[0].1).iter().map(ToString::to_string).collect();
    assert_eq!(shape, ["B*T", "4"]);
    assert_eq!(reshaped(&graph, &[counted(&[2, 0, 4])], &[2, 0]).expect("it fits"), [0, 4]);
}

/// With the 4 of the input there would be 16 elements, but there are none.
#[test]
fn reshape_keeps_a_zero_that_alone_fits() {
    let nodes = vec![
        with_int(node("Shape", &["x"], &["rows"]), "end", 1),
        with_int(node("Concat", &["four", "rows"], &["to"]), "axis", 0),
        node("Reshape", &["x", "to"], &["y"]),
    ];
    let graph = imported(nodes, vec![float("x", &["N", "4"])], &["N=0..8"]).expect("any size fits");
    let shape: Vec<String> = graph.shape(graph.outputs[0].1).iter().map(ToString::to_string).collect();
    assert_eq!(shape, ["4", "N"]);
    for n in [0, 1, 5] {
        assert_eq!(reshaped(&graph, &[counted(&[n, 4])], &[n as i64]).expect("it fits"), [4, n]);
    }
}

#[test]
fn reshape_copies_the_dim_where_an_input_is_zero() {
    let mut to = float("to", &["2"]);
    to.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor").elem_type = 7;
    let inputs = vec![float("x", &["N", "4"]), to];
    let graph = imported(vec![node("Reshape", &["x", "to"], &["y"])], inputs, &["N=1..8"]);
    let graph = graph.expect("the shape is found at run time");
    for (to, shape) in
        [([0, -1], [3, 4]), ([0, 0], [3, 4]), ([-1, 0], [3, 4]), ([0, 4], [3, 4]), ([2, -1], [2, 6])]
    {
        let to = Tensor::from_i64(vec![2], &to).expect("two");
        let y = eval(&graph, &[counted(&[3, 4]), to]).expect("it fits").remove(0);
        assert_eq!(y.shape(), shape);
    }
}

#[test]
fn extrema_of_empty_axes_are_refused_unless_the_result_is_empty() {
    for op in ["ArgMax", "ArgMin"] {
        let chosen = |dims: &[&str], keep: i64, ranges: &[&str]| {
            let nodes = vec![with_int(with_int(node(op, &["x"], &["y"]), "axis", 1), "keepdims", keep)];
            imported(nodes, vec![float("x", dims)], ranges)
        };
        let why = "axis 1 has size 0, so it has no largest or smallest element to choose; pad the axis or skip the node";
        let error = chosen(&["2", "0"], 1, &[]).expect_err("no element").to_string();
        assert_eq!(error, format!("node `the {op}`: {why}"));
        let error = chosen(&["N", "0"], 0, &["N=0..8"]).expect_err("no element").to_string();
        assert_eq!(error, format!("node `the {op}`: {why}"));

        for (keep, shape) in [(1, vec![0, 1, 3]), (0, vec![0, 3])] {
            let graph = chosen(&["0", "0", "3"], keep, &[]).expect("the result is empty");
            let y = eval(&graph, &[counted(&[0, 0, 3])]).expect("it computes").remove(0);
            assert_eq!(y.shape(), shape);
        }
    }
}

#[test]
fn extrema_of_axes_that_are_empty_in_a_call_are_empty_where_the_result_is() {
    for op in ["ArgMax", "ArgMin"] {
        let nodes = vec![with_int(node(op, &["x"], &["y"]), "axis", 1)];
        let graph =
            imported(nodes, vec![float("x", &["N", "M"])], &["N=0..4", "M=0..4"]).expect("some sizes fit");
        for [n, m] in [[0, 0], [0, 3], [2, 1], [2, 3]] {
            let y = computed(&graph, &[counted(&[n, m])], &[n as i64, m as i64]).expect("it fits");
            assert_eq!(y.shape(), [n, 1], "N = {n}, M = {m}");
        }
        assert!(eval(&graph, &[counted(&[2, 0])]).is_err(), "no largest of no elements");
    }
}

#[test]
fn hardmax_of_an_empty_axis_is_empty() {
    for axis in [0, 1] {
        let nodes = vec![with_int(node("Hardmax", &["x"], &["y"]), "axis", axis)];
        let graph =
            imported(nodes, vec![float("x", &["N", "M"])], &["N=0..4", "M=0..4"]).expect("any size fits");
        for shape in [[0, 0], [0, 3], [2, 0], [2, 3]] {
            let y =
                computed(&graph, &[counted(&shape)], &shape.map(|size| size as i64)).expect("it computes");
            assert_eq!(y.shape(), shape);
            let n_maxima = (0..y.elems()).filter(|elem| y.get(*elem).as_f64() == 1.0).count();
            let other = shape[1 - axis as usize];
            assert_eq!(n_maxima, if shape[axis as usize] == 0 { 0 } else { other }, "{shape:?}");
        }
    }
}
