//! A weight is stored once in each form that kernels read.

use crate::{
    cli, compiled,
    machine::Machine,
    models::{self, weights},
    protos::{float, float_tensor, node},
};
use prost::Message;
use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Result,
    graph::{Graph, Value},
    import::proto::{GraphProto, ModelProto, OperatorSetIdProto},
    kernel::Program,
    pipeline::Pipeline,
    quantise::{WeightRequest, quantise, round_activations},
    tensor::Tensor,
};
use symshape_runtime::DType;

/// Weights that keep the magnitude of a chain of contractions over 48 elements.
fn square(seed: u32) -> Tensor {
    let weights = weights(&[48, 48], seed);
    let elems: Vec<f32> = (0..weights.elems()).map(|at| weights.get(at).as_f64() as f32 / 8.0).collect();
    Tensor::from_f32(vec![48, 48], &elems).expect("a square")
}

fn lower(graph: &Graph, options: CompileOptions) -> Program {
    Pipeline::new(graph).options(options).lower().expect("a supported graph").program
}

/// Asserts that machine code and C source of `graph` hold `elems` elements of weights, and that machine code computes
/// the graph.
fn assert_stores(graph: &Graph, elems: usize) {
    assert_eq!(lower(graph, CompileOptions::for_c_source()).const_bytes(), 4 * elems as i64, "C source");
    let program = lower(graph, CompileOptions::default());
    assert_eq!(program.const_bytes(), 4 * elems as i64, "machine code");
    compiled::assert_same(&graph.name, graph, &Machine::compile(program, false));
}

/// A chain of contractions. `weight` gives the weight of each.
fn chain(name: &str, weight: impl Fn(&mut Graph, usize) -> Result<Value>) -> Result<Graph> {
    let mut g = models::graph(name, &[("N", 1, 40)]);
    let mut x = g.input("x", DType::F32, vec![Dim::symbol("N"), 48.into()])?;
    for step in 0..6 {
        let w = weight(&mut g, step)?;
        let product = g.matmul(x, w)?;
        x = g.relu(product)?;
    }
    g.output("y", x)?;
    Ok(g)
}

#[test]
fn contractions_with_one_weight_store_it_once() -> Result<()> {
    let mut g = models::graph("shared", &[("N", 1, 40)]);
    let mut x = g.input("x", DType::F32, vec![Dim::symbol("N"), 48.into()])?;
    let w = g.constant(square(3))?;
    for _ in 0..6 {
        let product = g.matmul(x, w)?;
        x = g.relu(product)?;
    }
    g.output("y", x)?;
    assert_stores(&g, 48 * 48);
    Ok(())
}

#[test]
fn equal_weights_are_one() -> Result<()> {
    let twice = chain("twice", |g, _| g.constant(square(3)))?;
    assert_stores(&twice, 48 * 48);
    let two = chain("two", |g, step| g.constant(square(step as u32 % 2)))?;
    assert_stores(&two, 2 * 48 * 48);
    Ok(())
}

#[test]
fn weights_of_equal_bytes_and_other_types_stay_apart() -> Result<()> {
    let mut g = models::graph("types", &[("N", 1, 9)]);
    let n = Dim::symbol("N");
    let x = g.input("x", DType::F32, vec![n.clone(), 4.into()])?;
    let y = g.input("y", DType::I32, vec![n, 4.into()])?;
    let floats = weights(&[4], 5);
    let integers = Tensor::new(DType::I32, vec![4], floats.shared_bytes()).expect("four elements");
    let floats = g.constant(floats)?;
    let integers = g.constant(integers)?;
    let sum = g.add(x, floats)?;
    let total = g.add(y, integers)?;
    g.output("sum", sum)?;
    g.output("total", total)?;

    let program = lower(&g, CompileOptions::default());
    assert_eq!(program.const_bytes(), 32);
    Ok(())
}

#[test]
fn convolutions_with_one_filter_store_it_once() -> Result<()> {
    let mut g = models::graph("heads", &[("N", 1, 3)]);
    let filter = g.constant(weights(&[16, 16, 3, 3], 3))?;
    for (head, size) in [8, 8, 16, 16, 12].into_iter().enumerate() {
        let shape = vec![Dim::symbol("N"), 16.into(), size.into(), size.into()];
        let x = g.input(&format!("x{head}"), DType::F32, shape)?;
        let windows = g.window(x, &[2, 3], &[3, 3], &[1, 1], &[1, 1])?;
        let y = g.contract(windows, b"nchwyx", filter, b"ocyx", b"nohw")?;
        g.output(&format!("y{head}"), y)?;
    }

    assert_eq!(lower(&g, CompileOptions::for_c_source()).const_bytes(), 4 * 16 * 16 * 9);
    let program = lower(&g, CompileOptions::default());
    let forms = [16 * 16 * 9, 16 * 16 * 16, 16 * 16 * 36];
    assert!(program.const_bytes() <= 4 * forms.iter().sum::<i64>(), "each form is stored once");
    compiled::assert_same("heads", &g, &Machine::compile(program, false));
    Ok(())
}

/// Rows of a table, and the product with the same table. `duplicate` stores the transposed table as a second constant.
fn tied(rows: usize, columns: usize, duplicate: bool) -> Result<Graph> {
    let mut g = models::graph("tied", &[("S", 1, 20)]);
    let table = weights(&[rows, columns], 3);
    let ids = g.input("ids", DType::I64, vec![Dim::symbol("S")])?;
    let embedding = g.constant(table.clone())?;
    let x = g.gather(embedding, ids, 0)?;
    let x = g.relu(x)?;
    let head = if duplicate {
        let elems: Vec<f32> = (0..columns * rows)
            .map(|at| table.get(at % rows * columns + at / rows).as_f64() as f32)
            .collect();
        g.constant(Tensor::from_f32(vec![columns, rows], &elems).expect("a transposed table"))?
    } else {
        g.transpose(embedding, &[1, 0])?
    };
    let y = g.matmul(x, head)?;
    g.output("y", y)?;
    Ok(g)
}

#[test]
fn tied_embedding_and_head_store_one_table() -> Result<()> {
    for duplicate in [false, true] {
        assert_stores(&tied(4096, 24, duplicate)?, 4096 * 24);
        // The last panel is padded.
        assert_stores(&tied(4099, 24, duplicate)?, 4112 * 24);
    }
    Ok(())
}

#[test]
fn tied_embedding_and_head_of_few_bits_store_their_codes_once() -> Result<()> {
    for (columns, weight_type, bits) in
        [(24, "int4", 4), (75, "int4", 4), (75, "int4:16", 4), (75, "int8", 8)]
    {
        let mut request = WeightRequest::new(weight_type.parse()?);
        request.max_error = f64::INFINITY;
        let graph = quantise(&tied(4099, columns, false)?, &request)?.graph;
        let program = lower(&graph, CompileOptions::default());
        let code_bytes = 4099 * (columns * bits / 8) as i64;
        let bytes = program.const_bytes();
        assert!(
            bytes < 2 * code_bytes,
            "{columns} columns, {weight_type}: {bytes} B, {code_bytes} B of codes"
        );
        compiled::assert_same("tied", &graph, &Machine::compile(program, false));

        let rounded = round_activations(&graph)?;
        assert_eq!((rounded.summary.rounded, rounded.summary.products), (1, 1));
        let program = lower(&rounded.graph, CompileOptions::default());
        assert!(program.const_bytes() < 2 * code_bytes, "{columns} columns, {weight_type}: rounded");
        compiled::assert_same("tied", &rounded.graph, &Machine::compile(program, false));
    }
    Ok(())
}

#[test]
fn table_is_stored_twice_where_one_form_would_be_slower() -> Result<()> {
    let small = tied(64, 24, false)?;
    let program = lower(&small, CompileOptions::default());
    assert_eq!(program.const_bytes(), 2 * 4 * 64 * 24);
    compiled::assert_same("tied", &small, &Machine::compile(program, false));
    Ok(())
}

/// [`tied`] as an ONNX model.
fn tied_model(rows: usize, columns: usize) -> Vec<u8> {
    let table = float_tensor("table", &weights(&[rows, columns], 3));
    let mut ids = float("ids", &["S"]);
    ids.ty.as_mut().and_then(|ty| ty.tensor_type.as_mut()).expect("a tensor").elem_type = 7;
    let graph = GraphProto {
        name: "tied".into(),
        initializer: vec![table],
        input: vec![ids],
        output: vec![float("y", &["S", &rows.to_string()])],
        node: vec![
            node("Gather", &["table", "ids"], &["rows"]),
            node("Relu", &["rows"], &["x"]),
            node("Transpose", &["table"], &["head"]),
            node("MatMul", &["x", "head"], &["y"]),
        ],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() }
        .encode_to_vec()
}

#[test]
fn summary_names_weights_in_several_forms() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tied.onnx");
    std::fs::write(&path, tied_model(256, 24)).expect("a model");
    let model = path.to_str().expect("a path");
    let output = folder.path().join("tied.o");
    let output = output.to_str().expect("a path");

    let text = cli::symc(&["compile", model, "--dim", "S=1..20", "-o", output]);
    let text = String::from_utf8(text.stdout).expect("text");
    let line = "  weight `table` is stored in 2 forms (row-major 24576 B, panels 24576 B), 24576 B more than one: its \
                kernels are faster so";
    assert!(text.lines().any(|printed| printed == line), "{text}");

    let summary = &cli::json(&["compile", model, "--dim", "S=1..20", "-o", output])[0];
    let weight = &summary["repeated_weights"][0];
    assert_eq!(weight["name"], "weight `table`");
    assert_eq!(weight["forms"].as_array().map(Vec::len), Some(2));
}
