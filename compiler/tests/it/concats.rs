//! Concatenations without copies: densely connected blocks, necks of detectors, depthwise branches, batches of parts.

use crate::{
    cli,
    models::{self, conv, weights},
    protos::{float, node},
    tensors::refs,
};
use prost::Message;
use symshape::Dim;
use symshape_compiler::{
    Result,
    graph::{Graph, Value, eval},
    import::proto::{AttributeProto, GraphProto, ModelProto, OperatorSetIdProto},
    kernel,
    pipeline::{Lowered, Pipeline},
    scalar::{ReduceOp, Scalar},
    tensor::Tensor,
};
use symshape_runtime::{Context, DType};

fn images(name: &str) -> Result<(Graph, Value)> {
    let mut g = models::graph(name, &[("N", 1, 3), ("H", 3, 9)]);
    let x = g.input("x", DType::F32, vec![Dim::symbol("N"), 8.into(), Dim::symbol("H"), 6.into()])?;
    Ok((g, x))
}

fn layer(g: &mut Graph, x: Value, channels: [usize; 2], kernel: usize, seed: u32) -> Result<Value> {
    let y = conv(g, x, channels, kernel, 1, seed)?;
    g.relu(y)
}

/// Each layer reads the features of all earlier layers, concatenated anew as exporters do.
fn dense_block() -> Result<Graph> {
    let (mut g, x) = images("dense_block")?;
    let mut features = vec![layer(&mut g, x, [8, 16], 1, 1)?];
    for n in 0..3 {
        let all = if n == 0 { features[0] } else { g.concat(&features, 1)? };
        let scale = g.constant(weights(&[16 + 8 * n, 1, 1], 20 + n as u32))?;
        let scaled = g.mul(all, scale)?;
        let narrow = layer(&mut g, scaled, [16 + 8 * n, 12], 1, 30 + n as u32)?;
        features.push(layer(&mut g, narrow, [12, 8], 3, 40 + n as u32)?);
    }
    let all = g.concat(&features, 1)?;
    let mean = g.mean(all, &[2, 3], false)?;
    g.output("mean", mean)?;
    Ok(g)
}

/// Halves of a layer, of which one goes through more layers: every part is concatenated again. One value is read by a
/// convolution with padding and by a concatenation.
fn neck() -> Result<Graph> {
    let (mut g, x) = images("neck")?;
    let whole = layer(&mut g, x, [8, 16], 1, 1)?;
    let halves = g.split(whole, 1, &[8.into(), 8.into()])?;
    let deep = layer(&mut g, halves[1], [8, 8], 1, 3)?;
    let deeper = layer(&mut g, deep, [8, 8], 3, 5)?;
    let all = g.concat(&[halves[0], halves[1], deep, deeper], 1)?;
    let y = layer(&mut g, all, [32, 16], 1, 7)?;
    let mean = g.mean(y, &[2, 3], false)?;
    g.output("mean", mean)?;
    Ok(g)
}

/// Pools of one another are concatenated, each also padded for the next.
fn pyramid() -> Result<Graph> {
    let (mut g, x) = images("pyramid")?;
    let mut levels = vec![layer(&mut g, x, [8, 8], 1, 1)?];
    for n in 0..3 {
        let side = [0, 0, 2, 2].map(Dim::from);
        let lowest = Scalar::f32(f32::NEG_INFINITY);
        let padded = g.pad(levels[n], &side, &side, lowest)?;
        let windows = g.window(padded, &[2, 3], &[5, 5], &[1, 1], &[1, 1])?;
        levels.push(g.reduce(ReduceOp::Max, windows, &[4, 5], false)?);
    }
    let all = g.concat(&levels, 1)?;
    let y = layer(&mut g, all, [32, 16], 1, 7)?;
    let mean = g.mean(y, &[2, 3], false)?;
    g.output("mean", mean)?;
    Ok(g)
}

/// A layer occurs several times in one batch and in one image, with and without padding.
fn repeated() -> Result<Graph> {
    let (mut g, x) = images("repeated")?;
    let y = layer(&mut g, x, [8, 8], 3, 1)?;
    let batch = g.concat(&[y, x, y], 0)?;
    let wide = g.concat(&[batch, batch], 3)?;
    let rows = g.concat(&[wide, wide, wide], 2)?;
    let z = layer(&mut g, rows, [8, 8], 3, 3)?;
    g.output("z", z)?;
    let deep = g.concat(&[y, x, y], 1)?;
    let z = layer(&mut g, deep, [24, 8], 1, 5)?;
    g.output("deep", z)?;
    Ok(g)
}

/// Every kind of work after a concatenation of inputs.
fn inputs() -> Result<Graph> {
    let mut g = models::graph("inputs", &[("N", 1, 40), ("M", 1, 5)]);
    let of = |rows: &str, columns: i64| vec![Dim::symbol(rows), columns.into()];
    let a = g.input("a", DType::F32, of("N", 24))?;
    let b = g.input("b", DType::F32, of("N", 17))?;
    let c = g.input("c", DType::F32, of("M", 24))?;

    let columns = g.concat(&[a, b], 1)?;
    let soft = g.softmax(columns, 1)?;
    g.output("soft", soft)?;
    let product = models::dense(&mut g, columns, 41, 20, 1)?;
    g.output("product", product)?;

    let rows = g.concat(&[a, c], 0)?;
    let product = models::dense(&mut g, rows, 24, 20, 3)?;
    g.output("rows", product)?;
    let transposed = g.transpose(rows, &[1, 0])?;
    let tall = g.matmul(a, transposed)?;
    g.output("against_rows", tall)?;
    Ok(g)
}

fn lowered(graph: &Graph) -> Lowered {
    let lowered = Pipeline::new(graph).lower().expect("supported");
    let unproven = kernel::verify::verify(&lowered.program).expect("well-formed");
    assert!(unproven.is_empty(), "{unproven:?}\n{}", lowered.program);
    lowered
}

/// The names of the kernels that copy anything but an input of the model.
fn copies(lowered: &Lowered) -> Vec<String> {
    let program = &lowered.program;
    let is_input = |copy: &kernel::Copy| program.inputs.iter().any(|port| port.buffer == copy.from);
    let copies = kernel::copies(program).into_iter().filter(|copy| !is_input(copy));
    copies.map(|copy| program.kernels[copy.kernel].name.clone()).collect()
}

fn run(lowered: &Lowered, inputs: &[Tensor]) -> Vec<Vec<f32>> {
    let model = lowered.jit().expect("machine code");
    let mut context = Context::new(&model).expect("an arena");
    let outputs = context.run_views(&refs(inputs)).expect("a call");
    (0..outputs.len()).map(|idx| outputs.get(idx).elems::<f32>().expect("floats").to_vec()).collect()
}

fn assert_follows_the_oracle(graph: &Graph, lowered: &Lowered) {
    for dims in models::bindings(graph) {
        let inputs = models::inputs(graph, &dims);
        let want = eval::eval(graph, &inputs).expect("a result");
        let interpreted = kernel::eval::eval(&lowered.program, &dims, &inputs).expect("a result");
        for ((want, interpreted), got) in want.iter().zip(&interpreted).zip(run(lowered, &inputs)) {
            assert_eq!(want.elems(), got.len(), "{} at {dims:?}", graph.name);
            for (idx, got) in got.into_iter().enumerate() {
                let expected = want.get(idx).as_f64();
                for got in [f64::from(got), interpreted.get(idx).as_f64()] {
                    let tolerance = 1e-5 * (1.0 + expected.abs());
                    assert!(
                        (got - expected).abs() <= tolerance,
                        "{} at {dims:?}: {got}, {expected}",
                        graph.name
                    );
                }
            }
        }
    }
}

#[test]
fn a_dense_block_copies_nothing() {
    let graph = dense_block().expect("a valid graph");
    let lowered = lowered(&graph);
    assert_eq!(copies(&lowered), [""; 0], "{}", lowered.program);
    assert_follows_the_oracle(&graph, &lowered);
}

#[test]
fn a_neck_copies_nothing() {
    let graph = neck().expect("a valid graph");
    let lowered = lowered(&graph);
    assert_eq!(copies(&lowered), [""; 0], "{}", lowered.program);
    assert_follows_the_oracle(&graph, &lowered);
}

#[test]
fn pools_of_one_another_copy_nothing() {
    let graph = pyramid().expect("a valid graph");
    let lowered = lowered(&graph);
    assert_eq!(copies(&lowered), [""; 0], "{}", lowered.program);
    assert_follows_the_oracle(&graph, &lowered);
}

#[test]
fn a_value_is_stored_several_times_in_one_tensor() {
    let graph = repeated().expect("a valid graph");
    let lowered = lowered(&graph);
    assert_follows_the_oracle(&graph, &lowered);
}

#[test]
fn work_on_concatenated_inputs_copies_nothing() {
    let graph = inputs().expect("a valid graph");
    let lowered = lowered(&graph);
    assert_eq!(kernel::copies(&lowered.program), [], "{}", lowered.program);
    assert_follows_the_oracle(&graph, &lowered);
}

/// Bias and activation are computed where the parts of the contraction are finished: there is no other computation.
#[test]
fn contractions_of_parts_keep_their_epilogues() {
    for axis in [0, 1] {
        let build = || -> Result<Graph> {
            let mut g = models::graph("epilogue", &[("N", 8, 40), ("M", 8, 40)]);
            let a = g.input("a", DType::F32, vec![64.into(), Dim::symbol("N")])?;
            let b = g.input("b", DType::F32, vec![64.into(), Dim::symbol("M")])?;
            let all = g.concat(&[a, b], 1)?;
            let rows = if axis == 0 { g.transpose(all, &[1, 0])? } else { all };
            let product = match axis {
                0 => models::dense(&mut g, rows, 64, 20, 1)?,
                _ => {
                    let w = g.constant(weights(&[20, 64], 1))?;
                    let product = g.matmul(w, rows)?;
                    let bias = g.constant(weights(&[20, 1], 2))?;
                    g.add(product, bias)?
                }
            };
            let y = g.relu(product)?;
            g.output("y", y)?;
            Ok(g)
        };
        let graph = build().expect("a valid graph");
        let lowered = lowered(&graph);
        let names: Vec<&str> = lowered.program.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        // The result of columns also changes its layout at the output, as without a concatenation.
        assert_eq!(names[..2], ["contraction"; 2], "axis {axis}: {names:?}");
        assert!(names[2..].iter().all(|name| *name == "output"), "axis {axis}: {names:?}");
        assert_follows_the_oracle(&graph, &lowered);
    }
}

#[test]
fn a_row_of_concatenated_inputs_has_the_same_bits_in_any_batch() {
    let graph = inputs().expect("a valid graph");
    let lowered = lowered(&graph);
    let all = models::inputs(&graph, &[40, 3]);
    let expected = run(&lowered, &all);
    for rows in [1, 2, 19, 39] {
        let first = |tensor: &Tensor| {
            let columns = tensor.shape()[1];
            let elems: Vec<f32> = (0..rows * columns).map(|idx| tensor.get(idx).as_f64() as f32).collect();
            Tensor::from_f32(vec![rows, columns], &elems).expect("rows")
        };
        let got = run(&lowered, &[first(&all[0]), first(&all[1]), all[2].clone()]);
        for output in [0, 1] {
            let bits = |elems: &[f32]| elems.iter().map(|elem| elem.to_bits()).collect::<Vec<_>>();
            let len = got[output].len();
            assert_eq!(bits(&got[output]), bits(&expected[output][..len]), "{rows} rows, output {output}");
        }
    }
}

#[test]
fn summary_and_report_name_the_copies() {
    let mut concat = node("Concat", &["x", "y"], &["z"]);
    concat.attribute.push(AttributeProto { name: "axis".into(), i: 1, kind: 2, ..Default::default() });
    let graph = GraphProto {
        name: "copied".into(),
        node: vec![concat],
        input: vec![float("x", &["N", "64"]), float("y", &["N", "4"])],
        output: vec![float("z", &["N", "68"])],
        ..Default::default()
    };
    let opset = OperatorSetIdProto { version: 17, ..Default::default() };
    let model =
        ModelProto { ir_version: 8, opset_import: vec![opset], graph: Some(graph), ..Default::default() };

    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("a path").to_string();
    let [model_path, object, page] = ["copied.onnx", "copied.o", "copied.html"].map(path);
    std::fs::write(&model_path, model.encode_to_vec()).expect("a model");

    let compile = ["compile", &model_path, "--dim", "N=1..20", "-o", &object];
    let text = String::from_utf8(cli::symc(&compile).stdout).expect("text");
    assert!(text.contains(", 2 copies of at most 5440 B, "), "{text}");
    let line = "  copies `x` to `z` in `concat`: 256*N B, at most 5120 B";
    assert!(text.lines().any(|printed| printed.starts_with(line)), "{text}");
    assert!(text.lines().any(|printed| printed == "  smaller copies: 1, see --emit plan"), "{text}");
    let copies = &cli::json(&compile)[0]["copies"];
    assert_eq!(copies[1]["bytes"], "16*N");
    assert_eq!(copies[1]["max_bytes"], 320);

    let report = ["report", &model_path, "--dim", "N=1..20", "-o", &page];
    assert_eq!(&cli::json(&report)[0]["copies"], copies);
    let data = std::fs::read_to_string(&page).expect("a page");
    assert!(data.contains(r#""formula":"256*N","from":"x""#), "{data}");
}
