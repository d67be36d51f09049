//! Errors of the importer: each names the place in the model and the remedy.

use crate::protos;

use protos::{float, int64_tensor, node};
use symshape_compiler::{
    graph::{Op, eval::eval},
    import::{
        Bounds, ImportOptions, InputConstant, Model, import, parse_dim, parse_input,
        proto::{
            AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
            ValueInfoProto,
        },
    },
    pipeline::Pipeline,
    scalar::Scalar,
    tensor::Tensor,
};
use symshape_runtime::{Context, TensorRef};

/// A model with the input `x: f32[N, 4]`, the output `y`, and these nodes.
fn model(nodes: Vec<NodeProto>) -> ModelProto {
    let graph = GraphProto {
        node: nodes,
        input: vec![float("x", &["N", "4"])],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() }
}

fn bounded() -> ImportOptions {
    ImportOptions { dims: vec![parse_dim("N=1..64").unwrap()], ..Default::default() }
}

#[track_caller]
fn refused(model: ModelProto, options: &ImportOptions, expected: &str) {
    let error = import(&Model::from(model), options).expect_err("the model is bad");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn names_must_be_defined_once_and_without_cycles() {
    refused(
        model(vec![node("Relu", &["z"], &["y"])]),
        &bounded(),
        "node `the Relu`: `z` is used but not defined",
    );
    refused(
        model(vec![node("Relu", &["z"], &["y"]), node("Abs", &["y"], &["z"])]),
        &bounded(),
        "node `the Relu`: cycle: its inputs depend on its output `y`",
    );
    refused(
        model(vec![node("Relu", &["x"], &["y"]), node("Abs", &["x"], &["y"])]),
        &bounded(),
        "node `the Abs`: `y` is defined twice",
    );
}

#[test]
fn nodes_may_stand_in_any_order() {
    let model = Model::from(model(vec![node("Relu", &["z"], &["y"]), node("Abs", &["x"], &["z"])]));
    let graph = import(&model, &bounded()).unwrap();
    assert_eq!(graph.shape(graph.outputs[0].1)[0].to_string(), "N");
}

#[test]
fn models_for_the_vectors_of_one_machine_are_refused_with_the_remedy() {
    let mut blocked = node("Conv", &["x"], &["y"]);
    blocked.domain = "com.microsoft.nchwc".into();
    let expected = "node `the Conv`: unsupported: op com.microsoft.nchwc::Conv: ONNX Runtime's optimiser wrote this \
                    model for the vectors of one machine; save it with the optimisation level \"extended\" \
                    (ORT_ENABLE_EXTENDED) instead of \"all\"";
    refused(model(vec![blocked]), &bounded(), expected);
}

#[test]
fn unknown_attributes_and_inputs_are_named() {
    let mut odd = node("Relu", &["x"], &["y"]);
    odd.attribute.push(AttributeProto { name: "slope".into(), kind: 2, ..Default::default() });
    let expected = "node `the Relu`: unknown attribute `slope` for Relu (opset 21)";
    refused(model(vec![odd]), &bounded(), expected);

    let expected = "node `the Relu`: Relu (opset 21) takes at most 1 input, got 2";
    refused(model(vec![node("Relu", &["x", "x"], &["y"])]), &bounded(), expected);
}

#[test]
fn missing_bounds_show_the_flags() {
    refused(
        model(vec![node("Relu", &["x"], &["y"])]),
        &ImportOptions::default(),
        "`N` (input `x` axis 0) has no upper bound; declare, for example, --dim N=1..64, or compile with --dynamic-memory",
    );
    let unknown = ImportOptions { dims: vec![parse_dim("M=1..2").unwrap()], ..bounded() };
    let options = ImportOptions { bounds: Bounds { dims: bounded().dims, ..Bounds::default() }, ..unknown };
    let expected = "--dim M: no input has a symbol `M`; known: N";
    refused(model(vec![node("Relu", &["x"], &["y"])]), &options, expected);
}

#[test]
fn inputs_are_redeclared_and_bound() {
    let proto = model(vec![node("Relu", &["x"], &["y"])]);
    let inputs = vec![parse_input("x=2*N,M").unwrap()];
    let dims = vec![parse_dim("N=1..8").unwrap(), parse_dim("M=4,8").unwrap()];
    let graph =
        import(&Model::from(proto.clone()), &ImportOptions { inputs, dims, ..Default::default() }).unwrap();
    let shape: Vec<String> = graph.shape(graph.outputs[0].1).iter().map(ToString::to_string).collect();
    assert_eq!(shape, ["2*N", "M"]);

    let binds = vec![("z".to_string(), InputConstant::Text("1".into()))];
    let options = ImportOptions { binds, ..bounded() };
    refused(proto, &options, "the model has no input `z`; it has x");
}

#[test]
fn wrong_declared_sizes_are_errors_only_in_strict_imports() {
    let mut bad = model(vec![node("Relu", &["x"], &["y"])]);
    bad.graph.as_mut().unwrap().output = vec![float("y", &["N", "5"])];
    let strict = ImportOptions { unbounded: true, ..bounded() };
    refused(bad.clone(), &strict, "node `the Relu`: `y`: axis 1 is declared as 5, but it is 4");
    import(&Model::from(bad), &bounded()).expect("the declaration is ignored");
}

#[test]
fn squeeze_without_axes_refuses_calls_that_change_the_rank() {
    let proto = model(vec![node("Unsqueeze", &["x", "zero"], &["z"]), node("Squeeze", &["z"], &["y"])]);
    let mut proto = proto;
    proto.graph.as_mut().unwrap().initializer.push(int64_tensor("zero", &[0]));
    let graph = import(&Model::from(proto.clone()), &bounded()).unwrap();
    let shape: Vec<String> = graph.shape(graph.outputs[0].1).iter().map(ToString::to_string).collect();
    assert_eq!(shape, ["N", "4"]);
    assert_eq!(graph.constraints.len(), 1);

    let compiled = symshape_compiler::pipeline::jit(&graph).unwrap();
    let mut context = Context::new(&compiled).unwrap();
    let mut call = |rows: usize| {
        let x = vec![1.0_f32; rows * 4];
        context.run_views(&[TensorRef::new(&[rows, 4], &x).unwrap()]).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(call(2), Ok(()));
    let refused = call(1).expect_err("the result would have another number of axes");
    assert!(refused.contains("`x` axis 0 gives N = 1; N is declared 2..=64"), "{refused}");
    let warnings = symshape_compiler::import::warnings(&Model::from(proto.clone()), &bounded(), &graph);
    assert!(warnings[0].starts_with("calls need N != 1: "), "{warnings:?}");
    assert!(warnings[0].contains("Squeeze without axes removes axes of size 1"), "{warnings:?}");

    let larger = ImportOptions { dims: vec![parse_dim("N=2..64").unwrap()], ..Default::default() };
    assert!(import(&Model::from(proto), &larger).unwrap().constraints.is_empty());
}

#[test]
fn outputs_declared_with_another_shape_give_a_warning() {
    let mut proto = model(vec![node("Identity", &["x"], &["y"])]);
    proto.graph.as_mut().expect("there is one").output = vec![float("y", &["N"])];
    let warnings = |proto: &ModelProto| {
        let model = Model::from(proto.clone());
        let graph = import(&model, &bounded()).expect("code can be generated");
        symshape_compiler::import::warnings(&model, &bounded(), &graph)
    };
    assert_eq!(warnings(&proto), ["output `y`: it is declared with 1 axes, but its shape is [N, 4]"]);
    proto.graph.as_mut().expect("there is one").output = vec![float("y", &["N", "5"])];
    assert_eq!(warnings(&proto), ["output `y`: axis 1 is declared as 5, but it is 4"]);
    proto.graph.as_mut().expect("there is one").output = vec![float("y", &["N", "4"])];
    assert!(warnings(&proto).is_empty());
}

#[test]
fn support_vectors_are_counted() {
    let machine = |op: &str, attribute: AttributeProto| {
        let mut node = node(&format!("ai.onnx.ml:{op}"), &["x"], &["y"]);
        node.attribute.push(attribute);
        let mut proto = model(vec![node]);
        proto.opset_import.push(OperatorSetIdProto { domain: "ai.onnx.ml".into(), version: 3 });
        proto
    };
    let count = AttributeProto { name: "n_supports".into(), kind: 2, i: -1, ..Default::default() };
    refused(
        machine("SVMRegressor", count),
        &bounded(),
        "node `the SVMRegressor`: n_supports must not be negative, but it is -1",
    );
    let counts = |ints: &[i64]| {
        let name = "vectors_per_class".into();
        AttributeProto { name, kind: 7, ints: ints.into(), ..Default::default() }
    };
    let expected = "node `the SVMClassifier`: vectors_per_class holds a negative count";
    refused(machine("SVMClassifier", counts(&[-1, 2])), &bounded(), expected);
    let expected = "node `the SVMClassifier`: the sum of vectors_per_class is too large";
    refused(machine("SVMClassifier", counts(&[i64::MAX; 3])), &bounded(), expected);
    let expected = "node `the SVMClassifier`: unsupported: SVMClassifier without support vectors";
    refused(machine("SVMClassifier", counts(&[])), &bounded(), expected);
}

#[test]
fn every_part_of_a_file_is_read_or_refused() {
    let mut proto = model(vec![node("Add", &["x", "w"], &["y"])]);
    let data = vec![0; 16];
    let weight = TensorProto {
        name: "w".into(),
        dims: vec![4],
        data_type: 1,
        raw_data: Some(data.into()),
        ..Default::default()
    };
    proto.graph.as_mut().unwrap().initializer.push(weight);
    let bytes = prost::Message::encode_to_vec(&proto);
    for end in 0..bytes.len() {
        if let Ok(model) = Model::from_bytes(&bytes[..end]) {
            let _ = import(&model, &bounded());
        }
        for flip in [1, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[end] ^= flip;
            if let Ok(model) = Model::from_bytes(&bytes) {
                let _ = import(&model, &bounded());
            }
        }
    }
}

fn branch(name: &str, nodes: Vec<NodeProto>, output: &str) -> AttributeProto {
    let output = vec![ValueInfoProto { name: output.into(), ty: None }];
    let graph = GraphProto { node: nodes, output, ..Default::default() };
    AttributeProto { name: name.into(), kind: 5, g: Some(graph), ..Default::default() }
}

/// `x: [N, M]` squeezed to `[N]` where `M` is 1, and then a product that only a vector has.
fn squeezed_if_single() -> ModelProto {
    let mut choice = node("If", &["single"], &["z"]);
    choice.attribute = vec![
        branch("then_branch", vec![node("Squeeze", &["x", "one"], &["a"])], "a"),
        branch("else_branch", vec![node("Identity", &["x"], &["b"])], "b"),
    ];
    let mut size = node("Shape", &["x"], &["size"]);
    size.attribute.push(AttributeProto { name: "start".into(), kind: 2, i: 1, ..Default::default() });
    let mut dots = node("Einsum", &["z", "z"], &["y"]);
    let equation =
        AttributeProto { name: "equation".into(), kind: 3, s: "i,i->".into(), ..Default::default() };
    dots.attribute.push(equation);
    let mut proto = model(vec![size, node("Equal", &["size", "one"], &["single"]), choice, dots]);
    let graph = proto.graph.as_mut().expect("there is one");
    graph.input = vec![float("x", &["N", "M"])];
    graph.initializer.push(int64_tensor("one", &[1]));
    proto
}

#[test]
fn what_follows_branches_of_two_ranks_moves_into_both() {
    let dims = vec![parse_dim("N=1..4").expect("a range"), parse_dim("M=1..3").expect("a range")];
    let options = ImportOptions { dims, ..Default::default() };
    let graph = import(&Model::from(squeezed_if_single()), &options).expect("one branch fits what follows");
    assert!(graph.shape(graph.outputs[0].1).is_empty());
    let x = Tensor::from_f32(vec![3, 1], &[1.0, 2.0, 3.0]).expect("three elements");
    assert_eq!(eval(&graph, &[x]).expect("it computes")[0].get(0).as_f64(), 14.0);
    // The other branch contradicts the nodes after it: it is compiled, and ends the call.
    let x = Tensor::from_f32(vec![1, 3], &[1.0, 2.0, 3.0]).expect("three elements");
    let error = eval(&graph, &[x]).expect_err("no vector");
    assert!(error.to_string().contains("the term `i` does not fit an input with 2 axes"), "{error}");
}

/// An input of `count` integers.
fn found_ints(name: &str, count: &str) -> ValueInfoProto {
    let mut input = float(name, &[count]);
    input.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor").elem_type = 7;
    input
}

/// `x` repeated as often as the input `times` says.
fn repeated() -> ModelProto {
    let mut proto = model(vec![node("Tile", &["x", "times"], &["y"])]);
    let graph = proto.graph.as_mut().expect("there is one");
    graph.input.push(found_ints("times", "2"));
    graph.output = vec![float("y", &["rows", "columns"])];
    proto
}

#[test]
fn sizes_found_while_running_are_declared_by_name() {
    let known = |more: &[&str]| ImportOptions {
        dims: ["N=1..64"].iter().chain(more).map(|text| parse_dim(text).expect("a range")).collect(),
        ..Default::default()
    };
    refused(
        repeated(),
        &known(&[]),
        "node `the Tile`: axis 0 of Tile: `rows` is known only at run time and has no upper bound; declare, for example, \
         --dim rows=0..4096",
    );
    let graph =
        import(&Model::from(repeated()), &known(&["rows=0..100", "columns=1..8"])).expect("both are bounded");
    let shape: Vec<String> = graph.shape(graph.outputs[0].1).iter().map(ToString::to_string).collect();
    assert_eq!(shape, ["rows", "columns"]);
    refused(
        repeated(),
        &known(&["rows=0..100", "columns=0..8", "height=1..2"]),
        "--dim height: no input has a symbol `height`; known: N, columns, rows",
    );
}

#[test]
fn types_that_are_stored_only_are_not_computed_with() {
    let mut narrow = node("Cast", &["x"], &["z"]);
    narrow.attribute.push(AttributeProto { name: "to".into(), kind: 2, i: 17, ..Default::default() });
    let mut wide = node("Cast", &["moved"], &["y"]);
    wide.attribute.push(AttributeProto { name: "to".into(), kind: 2, i: 1, ..Default::default() });
    let moved = model(vec![narrow.clone(), node("Transpose", &["z"], &["moved"]), wide]);
    let graph = import(&Model::from(moved), &bounded()).expect("moving and converting is known");
    let x = Tensor::from_f32(vec![1, 4], &[1.0, 0.3, 500.0, -2.0]).expect("four elements");
    let y = &eval(&graph, &[x]).expect("it computes")[0];
    let elems: Vec<f64> = (0..4).map(|k| y.get(k).as_f64()).collect();
    assert_eq!(elems, [1.0, 0.3125, 448.0, -2.0]);
    let added = model(vec![narrow, node("Add", &["z", "z"], &["y"])]);
    refused(added, &bounded(), "node `the Add`: unsupported: Add of float8e4m3fn");
}

/// `condition`, which is known only at run time, as an input of one element.
fn with_condition(mut proto: ModelProto) -> ModelProto {
    let mut condition = float("condition", &[]);
    let tensor = condition.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor");
    tensor.elem_type = 9;
    proto.graph.as_mut().expect("there is one").input.push(condition);
    proto
}

#[test]
fn branches_have_outputs() {
    let mut choice = node("If", &["condition"], &["z"]);
    let empty = |name| AttributeProto {
        name: String::from(name),
        kind: 5,
        g: Some(GraphProto::default()),
        ..Default::default()
    };
    choice.attribute = vec![empty("then_branch"), empty("else_branch")];
    let proto = model(vec![choice, node("Relu", &["x"], &["y"])]);
    refused(with_condition(proto), &bounded(), "node `the If`: the branches have no outputs");
}

#[test]
fn sequences_are_taken_apart_inside_of_branches_too() {
    let mut parts = node("SplitToSequence", &["x"], &["parts"]);
    parts.attribute.push(AttributeProto { name: "axis".into(), kind: 2, i: 1, ..Default::default() });
    let mut choice = node("If", &["condition"], &["y"]);
    let mut end_to_end = node("ConcatFromSequence", &["more"], &["b"]);
    end_to_end.attribute.push(AttributeProto { name: "axis".into(), kind: 2, i: 1, ..Default::default() });
    let again = vec![node("SequenceInsert", &["parts", "x"], &["more"]), end_to_end];
    choice.attribute = vec![
        branch("then_branch", vec![node("SequenceAt", &["parts", "last"], &["a"])], "a"),
        branch("else_branch", again, "b"),
    ];
    let mut proto = with_condition(model(vec![parts, choice]));
    proto.graph.as_mut().expect("there is one").initializer.push(int64_tensor("last", &[-1]));
    let graph = import(&Model::from(proto), &bounded()).expect("four parts");
    for (condition, expected) in [(true, vec![4.0]), (false, vec![1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0])] {
        let x = Tensor::from_f32(vec![1, 4], &[1.0, 2.0, 3.0, 4.0]).expect("four elements");
        let condition =
            Tensor::from_scalars(symshape_runtime::DType::Bool, vec![], &[Scalar::bool(condition)]);
        let y = &eval(&graph, &[x, condition.expect("one element")]).expect("it computes")[0];
        assert_eq!((0..y.elems()).map(|k| y.get(k).as_f64()).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn sequences_stay_inside_of_the_model() {
    refused(
        model(vec![node("SequenceConstruct", &["x", "x"], &["y"])]),
        &bounded(),
        "outputs: unsupported: `y` is a sequence: a graph can't return it",
    );
    refused(
        model(vec![node("SequenceConstruct", &["x", "x"], &["pair"]), node("Relu", &["pair"], &["y"])]),
        &bounded(),
        "node `the Relu`: unsupported: Relu of a sequence",
    );
    refused(
        model(vec![node("SplitToSequence", &["x"], &["rows"]), node("SequenceLength", &["rows"], &["y"])]),
        &bounded(),
        "node `the SplitToSequence`: unsupported: a sequence whose length N is not a constant",
    );
}

/// The size of axis 0 of `x`, plus `more`, as `out`.
fn size_plus(proto: &mut ModelProto, more: i64, out: &str) {
    let graph = proto.graph.as_mut().expect("there is one");
    let mut size = node("Shape", &["x"], &["size"]);
    size.attribute.push(AttributeProto { name: "end".into(), kind: 2, i: 1, ..Default::default() });
    graph.initializer.push(int64_tensor("more", &[more]));
    graph.node.extend([size, node("Add", &["size", "more"], &[out])]);
}

/// The sums of the rows of `y` at `N` rows of ones.
fn rows_of(proto: &ModelProto, n: usize) -> Vec<f64> {
    let options = ImportOptions { dims: vec![parse_dim("N=1..8").expect("a range")], ..Default::default() };
    let graph = import(&Model::from(proto.clone()), &options).expect("all of it is known");
    let x = Tensor::from_f32(vec![n, 4], &(0..n * 4).map(|k| (k / 4 + 1) as f32).collect::<Vec<_>>());
    let y = &eval(&graph, &[x.expect("as many as the shape")]).expect("it computes")[0];
    (0..y.shape()[0]).map(|row| y.get(row * 4).as_f64()).collect()
}

#[test]
fn slices_start_where_symbols_may_be_negative() {
    let mut proto = model(vec![node("Slice", &["x", "start", "end"], &["y"])]);
    size_plus(&mut proto, -3, "start");
    proto.graph.as_mut().expect("there is one").initializer.push(int64_tensor("end", &[99]));
    // Positions below zero count from the end.
    assert_eq!(rows_of(&proto, 1), [1.0]);
    assert_eq!(rows_of(&proto, 2), [2.0]);
    assert_eq!(rows_of(&proto, 3), [1.0, 2.0, 3.0]);
    assert_eq!(rows_of(&proto, 8), [6.0, 7.0, 8.0]);
}

#[test]
fn pads_may_add_or_take_away() {
    let mut proto = model(vec![
        node("Sub", &["nine", "grown"], &["after"]),
        node("Concat", &["zeros", "after", "zero"], &["pads"]),
        node("Pad", &["x", "pads"], &["y"]),
    ]);
    size_plus(&mut proto, 4, "grown");
    let graph = proto.graph.as_mut().expect("there is one");
    graph.initializer.extend([
        int64_tensor("nine", &[9]),
        int64_tensor("zeros", &[0, 0]),
        int64_tensor("zero", &[0]),
    ]);
    graph.node[1].attribute.push(AttributeProto { name: "axis".into(), kind: 2, ..Default::default() });
    assert_eq!(rows_of(&proto, 1), [1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(rows_of(&proto, 5), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(rows_of(&proto, 8), [1.0, 2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn shapes_of_recurrent_layers_need_no_bounds() {
    let floats = |name: &str, dims: &[i64]| TensorProto {
        name: name.into(),
        dims: dims.to_vec(),
        data_type: 1,
        raw_data: Some(vec![0; 4 * dims.iter().product::<i64>() as usize].into()),
        ..Default::default()
    };
    let mut layer = node("GRU", &["steps", "w", "r"], &["y"]);
    layer.attribute.push(AttributeProto { name: "hidden_size".into(), kind: 2, i: 2, ..Default::default() });
    let mut proto = model(vec![node("Unsqueeze", &["x", "one"], &["steps"]), layer]);
    let graph = proto.graph.as_mut().expect("there is one");
    graph.initializer = vec![int64_tensor("one", &[1]), floats("w", &[1, 6, 4]), floats("r", &[1, 6, 2])];
    let options = ImportOptions { unbounded: true, ..Default::default() };
    let graph = import(&Model::from(proto), &options).expect("its shape is known");
    let shape: Vec<String> = graph.shape(graph.outputs[0].1).iter().map(ToString::to_string).collect();
    assert_eq!(shape, ["N", "1", "1", "2"]);
}

/// The sums of all rows of `x` so far, by a loop that ends where its counter, by this comparison, has met the number
/// of rows.
fn summed(comparison: &str) -> ModelProto {
    let value = |name: &str| ValueInfoProto { name: name.into(), ty: None };
    let compared = match comparison {
        "Less" => ["next", "limit in"],
        _ => ["limit in", "next"],
    };
    let body = GraphProto {
        node: vec![
            node("Add", &["at", "one"], &["next"]),
            node("Gather", &["rows", "at"], &["row"]),
            node("Add", &["so far", "row"], &["sum"]),
            node("Identity", &["limit in"], &["limit out"]),
            node(comparison, &compared, &["again"]),
            node("Identity", &["sum"], &["slice"]),
        ],
        input: ["round", "goes on", "at", "limit in", "rows", "so far"].map(value).into(),
        output: ["again", "next", "limit out", "rows", "sum", "slice"].map(value).into(),
        ..Default::default()
    };
    let mut rounds = node("Loop", &["", "go", "zero", "limit", "x", "none"], &["a", "b", "c", "d", "sums"]);
    rounds.attribute.push(AttributeProto {
        name: "body".into(),
        kind: 5,
        g: Some(body),
        ..Default::default()
    });
    let mut proto = model(vec![
        node("Less", &["zero", "limit"], &["go"]),
        node("Slice", &["x", "zero", "one"], &["first"]),
        node("Sub", &["first", "first"], &["none"]),
        rounds,
        node("Squeeze", &["sums", "one"], &["y"]),
    ]);
    size_plus(&mut proto, 0, "limit");
    proto
        .graph
        .as_mut()
        .expect("there is one")
        .initializer
        .extend([int64_tensor("zero", &[0]), int64_tensor("one", &[1])]);
    proto
}

#[test]
fn loops_that_count_need_no_bounds_and_carry_what_changes() {
    for comparison in ["Less", "Greater"] {
        let proto = summed(comparison);
        assert_eq!(rows_of(&proto, 1), [1.0]);
        assert_eq!(rows_of(&proto, 5), [1.0, 3.0, 6.0, 10.0, 15.0]);
        assert_eq!(rows_of(&proto, 8).last(), Some(&36.0));
        let graph = import(&Model::from(proto), &bounded()).expect("the number of rows bounds it");
        let carried = graph.nodes.values().find_map(|node| match &node.op {
            Op::Loop { carried, max_iterations, .. } => Some((*carried, max_iterations.to_string())),
            _ => None,
        });
        assert_eq!(carried, Some((2, "N".to_string())), "the counter and the sum, for each row");
    }
    let expected = "node `the Loop`: `Loop0` is known only at run time and has no upper bound; declare, for example, --dim \
                    Loop0=0..4096";
    refused(endless(), &bounded(), expected);
}

/// A loop whose condition stays true.
fn endless() -> ModelProto {
    let mut endless = summed("Less");
    let body =
        endless.graph.as_mut().and_then(|graph| graph.node[3].attribute[0].g.as_mut()).expect("a body");
    body.node[0].op_type = "Sub".into();
    endless
}

#[test]
fn a_call_that_passes_the_limit_of_a_loop_names_the_flag() {
    let dims = ["N=1..8", "Loop0=0..5"].map(|dim| parse_dim(dim).expect("a range")).into();
    let graph =
        import(&Model::from(endless()), &ImportOptions { dims, ..Default::default() }).expect("bounded");
    let model = Pipeline::new(&graph).jit().expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let x = [0.5f32; 32];
    let error =
        context.run_views(&[TensorRef::new(&[8, 4], &x).expect("sized")]).expect_err("too many rounds");
    let expected = "node `the Loop` (limited by --dim Loop0) gives Loop1 = 5, outside 0..=4 (Loop1 depends on the data and is \
                    known only at run time)";
    assert_eq!(error.to_string(), expected);
}

fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { name: name.into(), kind: 7, ints: ints.to_vec(), ..Default::default() }
}

/// Compile time grows fast with the number of axes.
#[test]
fn tensors_have_a_limited_number_of_axes() {
    let mut known = model(vec![node("Reshape", &["x", "to"], &["y"])]);
    let axes: Vec<i64> = [vec![-1, 4], vec![1; 27]].concat();
    known.graph.as_mut().expect("a graph").initializer.push(int64_tensor("to", &axes));
    let limit = "node `the Reshape`: a tensor of 29 axes; the limit is 28";
    refused(known, &bounded(), limit);
    let mut found = model(vec![node("Reshape", &["x", "to"], &["y"])]);
    found.graph.as_mut().expect("a graph").input.push(found_ints("to", "96"));
    refused(found, &bounded(), limit);
}

fn pad(mode: &str) -> NodeProto {
    let mut pad = node("Pad", &["x", "pads"], &["y"]);
    pad.attribute = vec![AttributeProto { kind: 3, s: mode.to_string().into(), ..ints("mode", &[]) }];
    pad
}

#[test]
fn reflections_longer_than_the_axis_go_back_and_forth() {
    let mut found = model(vec![pad("reflect")]);
    found.graph.as_mut().expect("a graph").input.push(found_ints("pads", "4"));
    let options = ImportOptions { data_dependent_max: Some(100), ..bounded() };
    let graph = import(&Model::from(found), &options).expect("it is bounded");
    let rows = |n: usize, before: i64, after: i64| -> Vec<f64> {
        let x = Tensor::from_f32(vec![n, 4], &(0..n * 4).map(|k| (k / 4 + 1) as f32).collect::<Vec<_>>());
        let pads = Tensor::from_i64(vec![4], &[before, 0, after, 0]);
        let inputs = [x.expect("as many as the shape"), pads.expect("four")];
        let y = &eval(&graph, &inputs).expect("it computes")[0];
        (0..y.shape()[0]).map(|row| y.get(row * 4).as_f64()).collect()
    };
    assert_eq!(rows(2, 3, 1), [2.0, 1.0, 2.0, 1.0, 2.0, 1.0]);
    assert_eq!(rows(3, 0, 5), [1.0, 2.0, 3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
    assert_eq!(rows(1, 2, 1), [1.0; 4]);
}

/// No element outside of a tensor is read. The contract excludes sizes at which a reflection, an edge or a maximum
/// would need one.
#[test]
fn elements_that_are_repeated_or_chosen_must_be_there() {
    let required = |node: NodeProto, pads: &[i64]| -> Vec<String> {
        let mut proto = model(vec![node]);
        proto.graph.as_mut().expect("a graph").initializer.push(int64_tensor("pads", pads));
        let from_none = ImportOptions { dims: vec![parse_dim("N=0..64").unwrap()], ..Default::default() };
        let graph = import(&Model::from(proto), &from_none).expect("it is taken");
        graph.constraints.iter().map(|assumed| assumed.relation.to_string()).collect()
    };
    assert_eq!(required(pad("edge"), &[0, 0, 2, 0]), ["1 <= N"]);
    assert_eq!(required(pad("wrap"), &[1, 0, 0, 0]), ["1 <= N"]);
    assert_eq!(required(pad("reflect"), &[2, 0, 1, 0]), ["1 <= N", "3 <= N"]);
    assert_eq!(required(pad("reflect"), &[0, 9, 0, 9]), [""; 0]);
    assert_eq!(required(node("ArgMax", &["x"], &["y"]), &[]), ["1 <= N"]);
}

#[test]
fn pools_of_short_axes_have_one_window_or_none() {
    let mut pool = node("MaxPool", &["image"], &["y"]);
    pool.attribute.extend([ints("kernel_shape", &[5, 1]), ints("strides", &[3, 1])]);
    let mut proto = model(vec![node("Unsqueeze", &["x", "places"], &["image"]), pool]);
    proto.graph.as_mut().expect("there is one").initializer.push(int64_tensor("places", &[0, 1]));
    let options = ImportOptions { dims: vec![parse_dim("N=1..8").expect("a range")], ..Default::default() };
    let graph = import(&Model::from(proto), &options).expect("any size is fine");
    for (n, windows) in [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (7, 1), (8, 2)] {
        let x = Tensor::from_f32(vec![n, 4], &vec![1.0; 4 * n]).expect("as many as the shape");
        assert_eq!(eval(&graph, &[x]).expect("it computes")[0].shape(), [1, 1, windows, 4], "N = {n}");
    }
}

#[test]
fn what_a_slice_left_may_broadcast() {
    let mut proto = model(vec![
        node("Slice", &["z", "zero", "four", "one"], &["cut"]),
        node("Add", &["x", "cut"], &["y"]),
    ]);
    let graph = proto.graph.as_mut().expect("there is one");
    graph.input.push(float("z", &["1", "M"]));
    graph.initializer =
        vec![int64_tensor("zero", &[0]), int64_tensor("four", &[4]), int64_tensor("one", &[1])];
    let dims = vec![parse_dim("N=1..8").expect("a range"), parse_dim("M=1..8").expect("a range")];
    let graph = import(&Model::from(proto), &ImportOptions { dims, ..Default::default() });
    let graph = graph.expect("calls decide");
    let sums = |m: usize| {
        let x = Tensor::from_f32(vec![1, 4], &[0.0; 4]).expect("four");
        let z: Vec<f32> = (1..=m).map(|k| k as f32).collect();
        let z = Tensor::from_f32(vec![1, m], &z).expect("as many as the shape");
        let y = eval(&graph, &[x, z])?.remove(0);
        Ok::<_, symshape_compiler::Error>((0..4).map(|k| y.get(k).as_f64()).collect::<Vec<_>>())
    };
    assert_eq!(sums(1).expect("one for all"), [1.0; 4]);
    assert_eq!(sums(4).expect("one for each"), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(sums(7).expect("what is left is cut"), [1.0, 2.0, 3.0, 4.0]);
    let error = sums(3).expect_err("three don't fit four").to_string();
    assert!(error.contains("broadcast"), "{error}");
}

#[test]
fn axes_found_while_running_must_have_size_one() {
    let mut proto = model(vec![node("Squeeze", &["z", "axis"], &["y"])]);
    let graph = proto.graph.as_mut().expect("there is one");
    let mut axis = float("axis", &["1"]);
    axis.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor").elem_type = 7;
    graph.input = vec![float("z", &["A", "B"]), axis];
    graph.output = vec![float("y", &["C"])];
    let dims = vec![parse_dim("A=1..4").expect("a range"), parse_dim("B=1..4").expect("a range")];
    let graph = import(&Model::from(proto), &ImportOptions { dims, ..Default::default() });
    let graph = graph.expect("either axis may go");
    let squeezed = |shape: [usize; 2], axis: i64| {
        let z = Tensor::from_f32(shape.to_vec(), &vec![1.0; shape[0] * shape[1]]).expect("it fits");
        eval(&graph, &[z, Tensor::from_i64(vec![1], &[axis]).expect("one")]).map(|y| y[0].shape().to_vec())
    };
    assert_eq!(squeezed([1, 3], 0).expect("the first"), [3]);
    assert_eq!(squeezed([3, 1], -1).expect("the last"), [3]);
    assert!(squeezed([2, 3], 0).is_err());
}

#[test]
fn long_transforms_need_no_tables() {
    for points in [1 << 40, 1 << 62, 1 << 21] {
        let nodes = vec![
            node("Unsqueeze", &["x", "last"], &["signal"]),
            node("DFT", &["signal", "points", "axis"], &["y"]),
        ];
        let mut proto = model(nodes);
        let graph = proto.graph.as_mut().expect("there is one");
        graph.initializer.extend([
            int64_tensor("last", &[2]),
            int64_tensor("points", &[points]),
            int64_tensor("axis", &[1]),
        ]);
        let graph = import(&Model::from(proto), &bounded()).expect("the length is only a size here");
        assert_eq!(graph.shape(graph.outputs[0].1)[1].as_i64(), Some(points));
    }
}
