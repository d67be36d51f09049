//! Weights that are rounded while compiling: the artefact computes the rewritten graph, and the table tells the truth.

mod command;

use crate::{models, tensors::refs};

use symshape::Dim;
use symshape_compiler::{
    CompileOptions, Microkernels, Result, emit,
    graph::{self, Graph, Op, Value},
    pipeline::{Artifact, Pipeline},
    quantise::{self, Quantised, WeightRequest, WeightType, Why},
    target::Target,
    tensor::Tensor,
};
use symshape_runtime::{Context, DType};

const MAX_ROWS: i64 = 19;

/// Rows of the table. Columns, depths and rows don't fill panels and blocks.
const WORDS: usize = 61;
const WIDTH: usize = 75;

const TYPES: [&str; 7] = ["int8", "int8:64", "int4", "int4:16", "int4:64", "f16", "bf16"];

fn named(g: &mut Graph, name: &str, shape: &[usize], seed: u32) -> Result<Value> {
    g.origin = format!("weight `{name}`");
    let value = g.constant(models::weights(shape, seed));
    g.origin.clear();
    value
}

/// A language model of one layer: rows of a table, a product with a matrix as it is stored, one with a transposed
/// matrix, a gated unit, and a product with the table itself.
fn tied() -> Graph {
    let build = || {
        let mut g = models::graph("tied", &[("S", 1, MAX_ROWS)]);
        let ids = g.input("ids", DType::I64, vec![Dim::symbol("S")])?;
        let table = named(&mut g, "table", &[WORDS, WIDTH], 1)?;
        let x = g.gather(table, ids, 0)?;
        let up = named(&mut g, "up", &[WIDTH, 50], 2)?;
        let h = g.matmul(x, up)?;
        let h = g.relu(h)?;
        let down = named(&mut g, "down", &[WIDTH, 50], 3)?;
        let down = g.transpose(down, &[1, 0])?;
        let h = g.matmul(h, down)?;
        let bias = named(&mut g, "bias", &[WIDTH], 4)?;
        let h = g.add(h, bias)?;
        let h = g.add(h, x)?;
        let head = g.transpose(table, &[1, 0])?;
        let y = g.matmul(h, head)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    build().expect("a valid graph")
}

/// Three products of one input. The outputs add the first as it is, and a tenth of the others.
fn unequal() -> Graph {
    let build = || {
        let mut g = models::graph("unequal", &[("S", 1, MAX_ROWS)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("S"), 64.into()])?;
        let mut sum = None;
        for (idx, (name, scale)) in [("a", 1.0), ("b", 0.1), ("c", 0.1)].into_iter().enumerate() {
            let w = named(&mut g, name, &[64, 48], idx as u32)?;
            let y = g.matmul(x, w)?;
            let scale = g.number(DType::F32, scale)?;
            let y = g.mul(y, scale)?;
            sum = Some(match sum {
                Some(sum) => g.add(sum, y)?,
                None => y,
            });
        }
        g.output("y", sum.expect("three products"))?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    build().expect("a valid graph")
}

fn request(weight_type: &str) -> WeightRequest {
    WeightRequest::new(weight_type.parse().expect("a type"))
}

fn quantised(graph: &Graph, request: &WeightRequest) -> Quantised {
    quantise::quantise(graph, request).expect("weights that can be quantised")
}

/// Weights of exactly this type.
fn all_of(weight_type: &str) -> WeightRequest {
    WeightRequest { max_error: f64::INFINITY, ..request(weight_type) }
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    (0..tensor.elems()).map(|idx| tensor.get(idx).as_f64()).collect()
}

/// The root of the mean squared difference, relative to `want`.
fn distance(want: &Tensor, got: &Tensor) -> f64 {
    let square = |x: &f64| x * x;
    let want = floats(want);
    let difference: Vec<f64> = want.iter().zip(floats(got)).map(|(want, got)| want - got).collect();
    (difference.iter().map(square).sum::<f64>() / want.iter().map(square).sum::<f64>()).sqrt()
}

/// The constants of a graph by name.
fn constants(graph: &Graph) -> Vec<(String, Tensor)> {
    let named = graph.nodes.values().filter_map(|node| match &node.op {
        Op::Const(tensor) => {
            Some((node.origin.strip_prefix("weight `")?.trim_end_matches('`').to_string(), tensor.clone()))
        }
        _ => None,
    });
    named.collect()
}

fn constant(graph: &Graph, name: &str) -> Tensor {
    constants(graph).into_iter().find(|(other, _)| other == name).expect("a constant of this name").1
}

#[track_caller]
fn assert_close(got: &Tensor, want: &Tensor, context: &str) {
    assert_eq!(got.shape(), want.shape(), "{context}");
    let largest = floats(want).iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    for (idx, (got, want)) in floats(got).iter().zip(floats(want)).enumerate() {
        assert!((got - want).abs() <= 2e-6 * largest, "{context} [{idx}]: {got}, not {want}");
    }
}

fn run(context: &mut Context, inputs: &[Tensor]) -> Tensor {
    let outputs = context.run_views(&refs(inputs)).expect("it runs");
    let output = outputs.get(0);
    Tensor::new(
        output.dtype(),
        output.shape().to_vec(),
        symshape_compiler::tensor::Bytes::Owned(output.bytes().into()),
    )
    .expect("a tensor")
}

#[test]
fn artefacts_compute_the_rewritten_graph() {
    for weight_type in TYPES {
        for graph in [tied(), unequal()] {
            let Quantised { graph, table } = quantised(&graph, &all_of(weight_type));
            let options = CompileOptions::default().half_weights(table.has_halves());
            let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
            for microkernels in [Microkernels::Native, Microkernels::ScalarLoops] {
                let options = options.microkernels(microkernels);
                let (model, _) =
                    emit::jit::jit(&lowered.program, &lowered.plan, &options).expect("supported");
                let mut context = Context::new(&model).expect("memory");
                for rows in [1, 2, 9, MAX_ROWS - 1, MAX_ROWS] {
                    let inputs = models::inputs(&graph, &[rows]);
                    let want = graph::eval::eval(&graph, &inputs).expect("an oracle");
                    let got = run(&mut context, &inputs);
                    assert_close(&got, &want[0], &format!("{weight_type}, {microkernels:?}, {rows} rows"));
                }
            }
        }
    }
}

#[test]
fn look_ups_find_the_rounded_elements() {
    for weight_type in TYPES {
        let build = || {
            let mut g = models::graph("table", &[("S", 1, MAX_ROWS)]);
            let ids = g.input("ids", DType::I64, vec![Dim::symbol("S")])?;
            let table = named(&mut g, "table", &[WORDS, WIDTH], 1)?;
            let x = g.gather(table, ids, 0)?;
            g.output("x", x)?;
            let columns = named(&mut g, "columns", &[40, WORDS], 2)?;
            let y = g.gather(columns, ids, 0)?;
            g.output("y", y)?;
            Ok::<Graph, symshape_compiler::Error>(g)
        };
        let original = build().expect("a valid graph");
        let Quantised { graph, table } = quantised(&original, &all_of(weight_type));
        assert_eq!(table.rows.len(), 2, "{weight_type}");

        let inputs = models::inputs(&graph, &[MAX_ROWS]);
        let want = graph::eval::eval(&original, &inputs).expect("an oracle");
        let got = graph::eval::eval(&graph, &inputs).expect("an oracle");
        let limit = if weight_type.starts_with("int4") { 0.12 } else { 0.01 };
        for (want, got) in want.iter().zip(&got) {
            let error = distance(want, got);
            assert!(error > 0.0 && error < limit, "{weight_type}: {error}");
        }
        // A product would read the same elements.
        let product = quantised(&tied(), &all_of(weight_type)).graph;
        let elements = floats(&constant(&product, "table"));
        let ids = inputs[0].to_i64s();
        for (row, id) in ids.iter().enumerate() {
            let want = &elements[*id as usize * WIDTH..][..WIDTH];
            assert_eq!(&floats(&got[0])[row * WIDTH..][..WIDTH], want, "{weight_type}, row {row}");
        }
    }
}

#[test]
fn the_table_states_the_errors_and_sizes() {
    for weight_type in TYPES {
        let original = tied();
        let Quantised { graph, table } = quantised(&original, &all_of(weight_type));
        let names: Vec<&str> = table.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["table", "up", "down"], "{weight_type}: the bias stays f32");
        for row in &table.rows {
            let before = constant(&original, &row.name);
            let after = constant(&graph, &row.name);
            assert_eq!((row.why, row.weight_type.to_string().as_str()), (Why::Requested, weight_type));
            let error = distance(&before, &after);
            assert!(
                error > 0.0 && (row.error - error).abs() <= 1e-9 * error,
                "{weight_type}: {} not {error}",
                row.error
            );

            let elems = before.elems() as u64;
            assert_eq!(row.f32_bytes(), 4 * elems);
            let wanted = match &after.few_bits() {
                Some(weights) => {
                    let blocks: usize = weights
                        .shape()
                        .iter()
                        .zip(weights.block())
                        .map(|(dim, block)| dim.div_ceil(*block))
                        .product();
                    (elems * u64::from(weights.bits())).div_ceil(8) + 2 * blocks as u64
                }
                None => 2 * elems,
            };
            assert_eq!(row.bytes, wanted, "{weight_type}: {}", row.name);
        }

        let error = table.output_error.expect("the model runs");
        assert!(table.note.is_none(), "{:?}", table.note);
        let rows: i64 = error.at.strip_prefix("S=").and_then(|rows| rows.parse().ok()).expect("a size");
        let limit = if weight_type.starts_with("int4") { 0.3 } else { 0.02 };
        assert!(rows > 1 && error.error > 0.0 && error.error < limit, "{weight_type}: {error:?}");
    }
}

#[test]
fn the_error_of_the_outputs_is_that_of_the_rewritten_graph() {
    let original = unequal();
    let Quantised { graph, table } = quantised(&original, &all_of("int4"));
    let measured = table.output_error.expect("the model runs");
    assert_eq!(measured.at, format!("S={MAX_ROWS}"));
    // Other inputs in the same range have nearly the same error.
    let inputs = models::inputs(&original, &[MAX_ROWS]);
    let want = graph::eval::eval(&original, &inputs).expect("an oracle");
    let got = graph::eval::eval(&graph, &inputs).expect("an oracle");
    let error = distance(&want[0], &got[0]);
    assert!((0.8..1.25).contains(&(measured.error / error)), "{measured:?}, not {error}");
}

#[test]
fn any_names_of_inputs_allow_trials() {
    let build = || {
        let mut g = models::graph("names", &[("S", 1, 4)]);
        let x = g.input("weight 0", DType::F32, vec![Dim::symbol("S"), 64.into()])?;
        let bias = g.input(" weight 0", DType::F32, vec![48.into()])?;
        let w = named(&mut g, "w", &[64, 48], 1)?;
        let y = g.matmul(x, w)?;
        let y = g.add(y, bias)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    let table = quantised(&build().expect("a valid graph"), &all_of("int4")).table;
    assert!(table.output_error.is_some(), "{:?}", table.note);
}

#[test]
fn sensitive_weights_keep_more_bits() {
    let Quantised { graph, table } = quantised(&unequal(), &request("int4"));
    let types: Vec<(&str, String, Why)> =
        table.rows.iter().map(|row| (row.name.as_str(), row.weight_type.to_string(), row.why)).collect();
    let wanted =
        [("a", "int8", Why::Sensitive), ("b", "int4", Why::Requested), ("c", "int4", Why::Requested)];
    assert_eq!(types, wanted.map(|(name, weight_type, why)| (name, weight_type.to_string(), why)));
    let bits = |name: &str| constant(&graph, name).few_bits().map(|weights| weights.bits());
    assert_eq!(["a", "b", "c"].map(bits), [Some(8), Some(4), Some(4)]);
    let rows = &table.rows;
    let [a, b, c] = [0, 1, 2].map(|idx| rows[idx].output_error.expect("it was tried"));
    assert!(a < 0.01 && b > 0.004 && c > 0.004 && b < 0.02 && c < 0.02, "{a} {b} {c}");

    // A larger limit accepts it, and a name decides alone.
    let loose = WeightRequest { max_error: 0.2, ..request("int4") };
    let mut by_name = request("int4");
    by_name.name("a=int4").expect("a name and a type");
    by_name.name("b=f32").expect("a name and a type");
    for (request, b) in [(loose, "int4"), (by_name, "f32")] {
        let table = quantised(&unequal(), &request).table;
        let types: Vec<String> = table.rows.iter().map(|row| row.weight_type.to_string()).collect();
        assert_eq!(types, ["int4", b, "int4"]);
    }
}

#[test]
fn weights_with_extreme_elements_and_other_uses_stay_as_they_are() {
    let build = || {
        let mut g = models::graph("extreme", &[("S", 1, 4)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("S"), 40.into()])?;
        let mut elems = vec![0.5; 40 * 40];
        elems[77] = f32::INFINITY;
        g.origin = "weight `infinite`".into();
        let w = g.constant(Tensor::from_f32(vec![40, 40], &elems).expect("all elements"))?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        let shared = named(&mut g, "shared", &[40, 40], 1)?;
        let z = g.matmul(x, shared)?;
        g.output("z", z)?;
        let twice = g.add(shared, shared)?;
        g.output("twice", twice)?;
        let both = named(&mut g, "both", &[40, 40], 2)?;
        let turned = g.transpose(both, &[1, 0])?;
        let u = g.matmul(x, both)?;
        let u = g.matmul(u, turned)?;
        g.output("u", u)?;
        let small = named(&mut g, "small", &[40, 25], 4)?;
        let s = g.matmul(x, small)?;
        g.output("s", s)?;
        let narrow = g.input("narrow", DType::F32, vec![Dim::symbol("S"), 7.into()])?;
        let short = named(&mut g, "short", &[7, 200], 5)?;
        let n = g.matmul(narrow, short)?;
        g.output("n", n)?;
        let itself = named(&mut g, "itself", &[40, 40], 3)?;
        g.output("itself", itself)?;
        let v = g.matmul(x, itself)?;
        g.output("v", v)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    let graph = build().expect("a valid graph");
    let Quantised { graph: new, table } = quantised(&graph, &request("int8"));
    let rows: Vec<(&str, WeightType, Why)> =
        table.rows.iter().map(|row| (row.name.as_str(), row.weight_type, row.why)).collect();
    assert_eq!(rows, [("infinite", WeightType::F32, Why::Extreme)]);
    let mut by_name = request("int8");
    by_name.name("infinite=f32").expect("a name and a type");
    assert_eq!(quantised(&graph, &by_name).table.rows[0].why, Why::Named);
    for (name, tensor) in constants(&graph) {
        assert_eq!(constant(&new, &name).bytes(), tensor.bytes(), "{name}");
    }
}

#[test]
fn scaled_columns_of_few_bits_stay_packed() {
    let build = || {
        let mut g = models::graph("scaled", &[("S", 1, 4)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("S"), 64.into()])?;
        let w = named(&mut g, "w", &[64, 96], 1)?;
        let y = g.matmul(x, w)?;
        let scale = named(&mut g, "scale", &[96], 2)?;
        let y = g.mul(y, scale)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    let graph = quantised(&build().expect("a valid graph"), &all_of("int4")).graph;
    let program = Pipeline::new(&graph).lower().expect("supported").program;
    let bytes = program.const_bytes();
    assert!(bytes < 64 * 96 + 4 * 96 + 64, "{bytes} bytes of constants");
}

/// Bytes of an object of `graph`.
fn object_bytes(graph: &Graph, half_weights: bool) -> usize {
    let target = Target::parse(None, Some("x86-64-v3")).expect("a known level");
    let options = CompileOptions::for_target(&target).half_weights(half_weights);
    let lowered = Pipeline::new(graph).options(options).lower().expect("supported");
    let object = lowered.compile(&target, Artifact::Object).expect("supported").object;
    object.into_bytes().expect("an object").len()
}

#[test]
fn artefacts_shrink_with_the_weights() {
    let build = || {
        let mut g = models::graph("wide", &[("S", 1, 64)]);
        let x = g.input("x", DType::F32, vec![Dim::symbol("S"), 512.into()])?;
        let w = named(&mut g, "w", &[512, 512], 1)?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        Ok::<Graph, symshape_compiler::Error>(g)
    };
    let graph = build().expect("a valid graph");
    let code = object_bytes(&graph, false) - 4 * 512 * 512;
    for (weight_type, bits) in
        [("int8", 8.5), ("int4", 4.5), ("int4:128", 4.125), ("f16", 16.0), ("bf16", 16.0)]
    {
        let Quantised { graph, table } = quantised(&graph, &all_of(weight_type));
        let bytes = object_bytes(&graph, table.has_halves());
        let weights = (512.0 * 512.0 * bits / 8.0) as usize;
        assert_eq!(table.rows[0].bytes as usize, weights, "{weight_type}");
        // The kernels of few bits have more code.
        assert!(
            bytes < weights + 2 * code + 16_384,
            "{weight_type}: {bytes} bytes, {weights} of weights, {code} of code"
        );
    }
}

#[test]
fn unknown_names_and_limits_are_refused() {
    let refusal =
        |request: &WeightRequest| quantise::quantise(&tied(), request).expect_err("refused").to_string();
    for (name, expected) in [
        ("tabel=int8", "weight `tabel`: the model has no weight of this name; a similar one is `table`"),
        ("bias=int8", "weight `bias`: it is not an f32 constant of more than 1024 elements"),
    ] {
        let mut request = request("f32");
        request.name(name).expect("a name and a type");
        let error = refusal(&request);
        assert!(error.contains(expected), "{error}");
    }
    for max_error in [-1.0, f64::NAN] {
        let error = refusal(&WeightRequest { max_error, ..request("int4") });
        assert!(error.contains("expected a number of 0 or more"), "{error}");
    }
    for text in ["", "table", "=int8", "table=int3", "table=int4:7"] {
        assert!(request("f32").name(text).is_err(), "{text}");
    }
}
