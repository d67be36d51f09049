//! Custom operators: closures in this process, C functions linked with objects, C source and shared objects, and
//! declarations that are wrong.

use crate::foreign;
use crate::models;
use crate::protos;

use foreign::Program;
use protos::{float, node};
use std::{path::Path, process::Command};
use symshape_compiler::{
    CompileOptions, ErrorKind, Result, emit,
    graph::{self, Graph, eval::eval, text},
    import::{
        self, Custom, ImportOptions, parse_dim,
        proto::{
            AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
            ValueInfoProto,
        },
    },
    kernel, lower,
    pipeline::{self, Artifact, Pipeline},
    target::Target,
};
use symshape_runtime::{CallError, Context, DType, Model, TensorRef, external::Function};

const SOFT: &str = "com.acme:Soft(x: T[D...], alpha: float = 1.5) -> T[D...] = acme_soft";
const PICK: &str =
    "com.acme:Pick(x: f32[D..., A], k: int) -> (f32[D..., k], i64[D..., k]) = acme_pick scratch 4*A";

fn soft() -> Function {
    Function::new(|call| {
        let alpha = call.attribute("alpha").and_then(|alpha| alpha.floats()).ok_or(100)?[0];
        let x = call.inputs[0].elems::<f32>().map_err(|_| 101)?;
        let y = call.outputs[0].elems_mut::<f32>().map_err(|_| 102)?;
        for (y, x) in y.iter_mut().zip(x) {
            if *x == 1000.0 {
                return Err(7);
            }
            *y = alpha * x / (1.0 + x.abs());
        }
        Ok(())
    })
}

fn pick() -> Function {
    Function::new(|call| {
        let k = call.attribute("k").and_then(|k| k.ints()).ok_or(100)?[0] as usize;
        let row = *call.inputs[0].shape().last().ok_or(101)? as usize;
        assert_eq!(call.scratch.len(), 4 * row);
        let x = call.inputs[0].elems::<f32>().map_err(|_| 102)?;
        let (first, second) = call.outputs.split_at_mut(1);
        let y = first[0].elems_mut::<f32>().map_err(|_| 103)?;
        let at = second[0].elems_mut::<i64>().map_err(|_| 104)?;
        for (r, x) in x.chunks(row).enumerate() {
            for i in 0..k {
                y[r * k + i] = x[k - 1 - i];
                at[r * k + i] = (k - 1 - i) as i64;
            }
        }
        Ok(())
    })
}

fn ints(name: &str, values: &[i64]) -> AttributeProto {
    match values {
        [value] => AttributeProto { name: name.into(), i: *value, kind: 2, ..Default::default() },
        _ => AttributeProto { name: name.into(), ints: values.to_vec(), kind: 7, ..Default::default() },
    }
}

fn with(node: NodeProto, attribute: AttributeProto) -> NodeProto {
    NodeProto { attribute: vec![attribute], ..node }
}

fn model(input: &[ValueInfoProto], nodes: Vec<NodeProto>, outputs: &[&str]) -> ModelProto {
    let elems: Vec<f32> = (0..24).map(|k| (k % 7) as f32 / 4.0 - 0.6).collect();
    let weights = TensorProto {
        dims: vec![4, 6],
        data_type: 1,
        float_data: elems,
        name: "w".into(),
        ..Default::default()
    };
    let graph = GraphProto {
        node: nodes,
        initializer: vec![weights],
        input: input.to_vec(),
        output: outputs.iter().map(|name| ValueInfoProto { name: name.to_string(), ty: None }).collect(),
        name: "acme".into(),
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() }
}

/// Operands that are transposed, computed, and inputs; results that are placed, inlined and outputs.
fn mixed() -> ModelProto {
    let nodes = vec![
        node("MatMul", &["x", "w"], &["h"]),
        with(node("Transpose", &["h"], &["t"]), ints("perm", &[0, 2, 1])),
        node("com.acme:Soft", &["t"], &["a"]),
        with(node("com.acme:Pick", &["a"], &["p", "i"]), ints("k", &[2])),
        node("com.acme:Soft", &["x"], &["s"]),
        node("Neg", &["p"], &["n"]),
        with(node("Concat", &["p", "n"], &["y"]), ints("axis", &[1])),
        node("Add", &["s", "x"], &["z"]),
    ];
    model(&[float("x", &["N", "S", "4"])], nodes, &["y", "i", "a", "z"])
}

fn options(register: bool) -> ImportOptions {
    let customs = [(SOFT, soft()), (PICK, pick())].map(|(text, function)| {
        let custom = Custom::parse(text).expect("a declaration");
        if register { custom.function(function) } else { custom }
    });
    ImportOptions {
        name: Some("acme".into()),
        dims: vec![parse_dim("N=1..6").expect("a dim"), parse_dim("S=2..9").expect("a dim")],
        customs: customs.into(),
        ..Default::default()
    }
}

fn import_with(model: ModelProto, options: &ImportOptions) -> Result<Graph> {
    import::import(&import::Model::from(model), options)
}

fn mixed_graph() -> Graph {
    import_with(mixed(), &options(true)).expect("supported")
}

#[test]
fn closures_are_called_by_compiled_code_and_by_both_interpreters() {
    let graph = mixed_graph();
    let model = pipeline::jit(&graph).expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let program = lower::lower(&graph).expect("supported");
    let unproven = kernel::verify::verify(&program).expect("well-formed");
    assert!(unproven.is_empty(), "{unproven:?}");
    for dims in models::bindings(&graph) {
        let inputs = models::inputs(&graph, &dims);
        let expected = eval(&graph, &inputs).expect("the functions succeed");
        let interpreted = kernel::eval::eval(&program, &dims, &inputs).expect("the functions succeed");
        let x: Vec<f32> = (0..inputs[0].elems()).map(|idx| inputs[0].get(idx).as_f64() as f32).collect();
        let x = TensorRef::new(inputs[0].shape(), &x).expect("sized");
        let outputs = context.run_views(&[x]).expect("the functions succeed");
        for (idx, expected) in expected.iter().enumerate() {
            let got = outputs.get(idx);
            assert_eq!(got.shape(), expected.shape(), "output {idx} at {dims:?}");
            let elems: Vec<f64> = match got.dtype() {
                DType::I64 => got.elems::<i64>().expect("integers").iter().map(|x| *x as f64).collect(),
                _ => got.elems::<f32>().expect("floats").iter().map(|x| f64::from(*x)).collect(),
            };
            for (elem, got) in elems.into_iter().enumerate() {
                let wanted = expected.get(elem).as_f64();
                for got in [got, interpreted[idx].get(elem).as_f64()] {
                    let close = (got - wanted).abs() <= 1e-5 * (1.0 + wanted.abs());
                    assert!(close, "output {idx} [{elem}] at {dims:?}: {got}, not {wanted}");
                }
            }
        }
    }
}

#[test]
fn a_failure_names_node_function_and_code() {
    let model = pipeline::jit(&mixed_graph()).expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let mut x = [0.5f32; 8];
    x[3] = 1000.0;
    let error = context.run_views(&[TensorRef::new(&[1, 2, 4], &x).expect("sized")]).expect_err("it fails");
    let CallError::CalleeFailed(broken) = &error else { panic!("{error}") };
    assert_eq!((broken.value(), broken.symbol(), broken.code()), (7, Some("acme_soft"), 7));
    assert!(
        error.to_string().starts_with("node `the Soft` calls acme_soft, which fails with code 7"),
        "{error}"
    );
    // The context is as good as before.
    x[3] = 0.5;
    context.run_views(&[TensorRef::new(&[1, 2, 4], &x).expect("sized")]).expect("it succeeds");
}

#[test]
fn without_a_function_in_this_process_objects_can_be_made_and_nothing_else() {
    let graph = import_with(mixed(), &options(false)).expect("shapes need no function");
    let error = pipeline::jit(&graph).expect_err("nothing to call");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the external function acme_soft is not registered"), "{error}");
    let dims = vec![1, 2];
    let error = eval(&graph, &models::inputs(&graph, &dims)).expect_err("nothing to call");
    assert!(error.to_string().contains("is not registered in this process"), "{error}");
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    let compiled = lowered.compile(&Target::host().expect("known"), Artifact::Object);
    let imports =
        emit::object::imports(&compiled.expect("supported").object.into_bytes().expect("an object"))
            .expect("an object");
    assert_eq!(imports, ["acme_soft", "acme_pick"]);
}

/// Writes the C functions, and a header with the interface for them.
fn functions(folder: &Path, model: &str) {
    std::fs::write(folder.join("acme.h"), format!("#include \"{model}.h\"\n")).expect("a file");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/acme.c"), folder.join("acme_functions.c"))
        .expect("a file");
}

fn check_linked(graph: &Graph, program: &Program) {
    for dims in models::bindings(graph) {
        let inputs = models::inputs(graph, &dims);
        let expected = eval(graph, &inputs).expect("the functions succeed");
        program.assert_gives(&format!("at {dims:?}"), &inputs, &expected);
    }
}

#[test]
fn objects_are_linked_with_c_functions() {
    let graph = mixed_graph();
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    for target in [(None, None), (None, Some("x86-64-v2,x86-64-v3"))] {
        let Ok(target) = Target::parse(target.0, target.1) else { continue };
        let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
        let folder = tempfile::tempdir().expect("a folder");
        assert!(compiled.header.contains("int32_t acme_pick(const symshape_call *call);"));
        std::fs::write(folder.path().join("acme_model.o"), compiled.object.into_bytes().expect("an object"))
            .expect("a file");
        std::fs::write(folder.path().join("acme.h"), compiled.header).expect("a header");
        std::fs::copy(
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/acme.c"),
            folder.path().join("functions.c"),
        )
        .expect("a file");
        let program = Program::link(folder, "cc", &[], "acme", &["acme_model.o", "functions.c"]);
        check_linked(&graph, &program);
    }
}

#[test]
fn c_source_calls_c_functions() {
    let graph = mixed_graph();
    let lowered = Pipeline::new(&graph).options(CompileOptions::for_c_source()).lower().expect("supported");
    let source = lowered.source("acme.h").expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("acme.h"), source.header).expect("a header");
    std::fs::write(folder.path().join("model.c"), source.code).expect("a source");
    std::fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/acme.c"), folder.path().join("functions.c"))
        .expect("a file");
    check_linked(&graph, &Program::link(folder, "cc", &[], "acme", &["model.c", "functions.c"]));
}

/// A library of the functions in `folder`, and the model's file.
fn library(folder: &Path) -> (String, String) {
    use prost::Message;
    let path = |name: &str| folder.join(name).to_str().expect("UTF-8").to_string();
    let header = Pipeline::new(&mixed_graph()).lower().expect("supported");
    let header = emit::header::header(&header.program, &header.plan, None);
    std::fs::write(folder.join("mixed.h"), header).expect("a header");
    functions(folder, "mixed");
    std::fs::write(folder.join("mixed.onnx"), mixed().encode_to_vec()).expect("a model");
    std::fs::write(folder.join("ops.txt"), format!("# ours\n{SOFT}\n\n{PICK} # with indices\n"))
        .expect("a file");
    let library = path("libacme.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o", &library, &path("acme_functions.c"), "-I", &path("")])
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (path("mixed.onnx"), library)
}

fn symc(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_symc")).args(args).output().expect("symc starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_line_takes_declarations_and_libraries() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, library) = library(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_string();
    let dims = ["--dim", "N=1..6", "--dim", "S=2..9"];
    let customs = ["--custom", SOFT, "--custom", PICK];
    let object = path("m.o");
    let (code, out, err) =
        symc(&[&["compile", &model, "-o", &object, "--json"], &dims[..], &customs].concat());
    assert_eq!(code, Some(0), "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["calls"], serde_json::json!(["acme_pick", "acme_soft"]));

    let shared = path("m.so");
    let compile = [&["compile", &model, "-o", &shared], &dims[..], &customs].concat();
    let (code, _, err) = symc(&compile);
    assert_eq!(code, Some(2));
    assert!(err.contains("(acme_pick, acme_soft): name the library that has them with --link"), "{err}");
    let (code, _, err) = symc(&[&compile[..], &["--link", &library]].concat());
    assert_eq!(code, Some(0), "{err}");
    let opened = Model::open(Path::new(&shared)).expect("it finds its library");
    let mut context = Context::new(&opened).expect("memory");
    let x = TensorRef::new(&[1, 2, 4], &[0.5f32; 8]).expect("sized");
    let outputs = context.run_views(&[x]).expect("the functions succeed");
    assert_eq!(outputs.by_name("z").expect("an output").elems::<f32>().expect("floats"), [1.0; 8]);

    let file = path("ops.txt");
    let check = [&["selfcheck", &model, "--custom", &file, "--link", &library], &dims[..]].concat();
    let (code, out, err) = symc(&check);
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, _, err) = symc(&[&["selfcheck", &model], &dims[..]].concat());
    assert_eq!(code, Some(2));
    assert!(err.contains("op com.acme::Soft (opset 1); --custom \"com.acme:Soft("), "{err}");
}

#[test]
fn declarations_that_say_nothing_clear_are_refused() {
    let refusals = [
        ("", "expected DOMAIN:OPERATOR( or OPERATOR("),
        ("a b()", "expected DOMAIN:OPERATOR( or OPERATOR("),
        ("Op(x f32[A]) -> f32[A] = f", "line 1, column 6: expected `:`"),
        ("Op(x: f33[A]) -> f32[A] = f", "expected an element type such as f32"),
        ("Op(x: f32[A], x: f32[A]) -> f32[A] = f", "two parameters are called `x`"),
        ("Op(x: f32[A) -> f32[A] = f", "line 1, column 12: unexpected text"),
        ("Op(x: f32[A]) -> f32[B] = f", "unknown name B in `B`"),
        ("Op(x: f32[2*B]) -> f32[B] = f", "unknown name B in `2*B`"),
        ("Op(x: f32[A...]) -> f32[A] = f", "unknown name A in `A`"),
        ("Op(x: f32[A, A...]) -> f32[A] = f", "A is used both for one axis and for any number of axes"),
        ("Op(x: f32[A..., B...]) -> f32[A...] = f", "a shape may have one `...` only"),
        ("Op(x: f32[A]) -> f32[C...] = f", "C... is not in an operand"),
        ("Op(x: f32[A]) -> T[A] = f", "T is not the element type of an operand"),
        ("Op(x: f32[A]) -> f32[-1] = f", "the size -1 must not be negative"),
        ("Op(x: f32[A]) -> f32[A] = 7f", "expected the name of a C function"),
        ("Op(x: f32[A]) -> f32[A] = int", "`int` cannot name a C function"),
        ("Op(x: f32[A]) -> f32[A] = symshape_run", "cannot name a C function"),
        ("Op(x: f32[A]) -> f32[A] = f g", "unexpected text"),
        ("Op(x: f32[A]) -> f32[A] = f scratch", "line 1, column 36"),
        ("Op(x: f32[A], k: int = many) -> f32[A] = f", "`many` is not a default of this type"),
        ("Op(x: f32[A]) -> () = f", "expected an element type"),
        ("Op(x: f32[A]) -> f32[A]", "expected `=`"),
    ];
    for (text, expected) in refusals {
        let error = Custom::parse(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    let deep = format!("Op(x: f32[{}A]) -> f32[A] = f", "(".repeat(5000));
    Custom::parse(&deep).expect_err("beyond a limit");
    let long = format!("Op(x: f32[A]) -> f32[A] = {}", "f".repeat(300));
    Custom::parse(&long).expect_err("beyond a limit");
    let error = Custom::parse_all("# fine\nOp(x: f32[A]) -> f32[A] = f\nOp(").expect_err("broken");
    assert!(error.to_string().starts_with("declaration on line 3: "), "{error}");
}

#[track_caller]
fn refused(declaration: &str, node: NodeProto, expected: &str) {
    let options =
        ImportOptions { customs: vec![Custom::parse(declaration).expect("fine")], ..options(false) };
    let outputs = node.output.clone();
    let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
    let graph = import_with(
        model(&[float("x", &["N", "S", "4"]), float("v", &["N"])], vec![node], &outputs),
        &options,
    );
    let error = graph.expect_err("the node does not fit");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn nodes_that_do_not_fit_their_declaration_are_refused_by_name() {
    let op = |inputs: &[&str]| node("com.acme:Op", inputs, &["y"]);
    let two = "com.acme:Op(a: f32[A, B], b: f32[A]) -> f32[A] = f";
    let at = "node `the Op`: as com.acme:Op is declared: ";
    refused(two, op(&["x"]), &format!("{at}the node has 1 inputs, but the declaration has 2 (a, b)"));
    refused(
        two,
        op(&["x", "v"]),
        &format!("{at}input 0 (`a`): it has 3 axes, [N, S, 4], but f32[A, B] is declared, which has 2"),
    );
    refused(
        "com.acme:Op(a: f32[N..., A, B, C, D]) -> f32[A] = f",
        op(&["x"]),
        &format!(
            "{at}input 0 (`a`): it has 3 axes, [N, S, 4], but f32[N..., A, B, C, D] is declared, which has 4 or more"
        ),
    );
    refused(
        "com.acme:Op(a: i32[D...]) -> f32[D...] = f",
        op(&["x"]),
        &format!("{at}input 0 (`a`): its element type is f32, but i32[D...] is declared, which is i32 here"),
    );
    refused(
        "com.acme:Op(a: T[D...], b: T[D...]) -> T[D...] = f",
        op(&["x", "v"]),
        &format!("{at}input 1 (`b`): D... has 1 axes here, but 3 in an earlier operand"),
    );
    refused(
        "com.acme:Op(a: f32[A, B, 5]) -> f32[A] = f",
        op(&["x"]),
        &format!(
            "{at}`4 == 5` (node `the Op`: axis 2 of input 0 (`a`), declared as f32[A, B, 5]) cannot hold"
        ),
    );
    refused(
        "com.acme:Op(a: f32[D...], k: int) -> f32[k] = f",
        op(&["x"]),
        &format!("{at}the node lacks the attribute `k`, which has no default"),
    );
    refused(
        "com.acme:Op(a: f32[D...]) -> f32[D...] = f",
        with(op(&["x"]), ints("k", &[2])),
        "node `the Op`: unknown attribute `k` for Op (opset 1)",
    );
    refused(
        "com.acme:Op(a: f32[A, B, C], k: int) -> f32[A - k] = f",
        with(op(&["x"]), ints("k", &[100])),
        &format!("{at}node `the Op`: the dim N - 100 can be negative"),
    );
    refused(
        "com.acme:Op(a: f32[D...]) -> f32[D...] = f",
        node("com.acme:Op", &["x"], &["y", "z"]),
        "node `the Op`: Op has 1 outputs, but the node names 2",
    );
}

#[test]
fn sizes_that_can_not_be_decided_are_checked_by_the_artefact() {
    let declaration = "com.acme:Op(a: f32[A, B, C], b: f32[B]) -> f32[A] = f";
    let options =
        ImportOptions { customs: vec![Custom::parse(declaration).expect("fine")], ..options(false) };
    let nodes = vec![node("com.acme:Op", &["x", "v"], &["y"])];
    let graph =
        import_with(model(&[float("x", &["N", "S", "4"]), float("v", &["N"])], nodes, &["y"]), &options)
            .expect("N and S can be equal");
    let constraints: Vec<String> = graph.constraints.iter().map(|one| one.relation.to_string()).collect();
    assert_eq!(constraints, ["N == S"]);
}

#[test]
fn an_operator_of_symshape_can_be_bound_too() {
    let relu = Custom::parse("Relu(x: T[D...]) -> T[D...] = my_relu").expect("fine");
    let options = ImportOptions { customs: vec![relu], ..options(false) };
    let graph = import_with(
        model(&[float("x", &["N", "S", "4"])], vec![node("Relu", &["x"], &["y"])], &["y"]),
        &options,
    );
    assert!(graph.expect("fine").to_string().contains("call my_relu -> (f32[N, S, 4]) x"));
}

#[test]
fn calls_stand_in_branches_and_loops() {
    let text = "graph g {
  symbol N = 1..5
  input x: f32[N, 3]
  %0 = const i64[] 4
  %1 = const bool[] true
  %2 = loop i below [4] carry 1 %0, %1, x {                ; i64[], f32[N, 3], f32[4, N, 3]
graph body {
  symbol N = 1..5
  symbol i = 0..3
  input in0: f32[N, 3]
  %0 = const bool[] true
  %1 = view [3, N] [$1, $0] in0
  %2 = call soft {\"alpha\" = floats [2.5]} -> (f32[3, N]) %1
  %3 = view [N, 3] [$1, $0] %2
  %4 = call soft {\"alpha\" = floats [1.0]} -> (f32[N, 3]) in0
  output again = %0
  output next = %3
  output slice = %4
}
  }
  output y = %2
}
";
    // The loop has three results.
    let text = text
        .replace("  %2 = loop", "  %2, %3, %4 = loop")
        .replace("  output y = %2", "  output y = %3\n  output z = %4");
    let mut graph = text::parse(&text).expect("a graph");
    assert_eq!(text::parse(&graph.to_string()).expect("printed text parses").to_string(), graph.to_string());
    graph.register(&|symbol| (symbol == "soft").then(soft));
    let model = pipeline::jit(&graph).expect("supported");
    let mut context = Context::new(&model).expect("memory");
    let program = Pipeline::new(&graph).lower().expect("supported").program;
    let printed = program.to_string();
    assert_eq!(kernel::text::parse(&printed).expect("printed text parses").to_string(), printed);
    for dims in models::bindings(&graph) {
        let inputs = models::inputs(&graph, &dims);
        let expected = graph::eval::eval(&graph, &inputs).expect("the functions succeed");
        let interpreted = kernel::eval::eval(&program, &dims, &inputs).expect("the functions succeed");
        let x: Vec<f32> = (0..inputs[0].elems()).map(|idx| inputs[0].get(idx).as_f64() as f32).collect();
        let outputs = context.run_views(&[TensorRef::new(inputs[0].shape(), &x).expect("sized")]);
        let outputs = outputs.expect("the functions succeed");
        for (idx, expected) in expected.iter().enumerate() {
            let got = outputs.get(idx);
            for (elem, got) in got.elems::<f32>().expect("floats").iter().enumerate() {
                assert_eq!(f64::from(*got), expected.get(elem).as_f64(), "output {idx} [{elem}] at {dims:?}");
                assert_eq!(
                    interpreted[idx].get(elem),
                    expected.get(elem),
                    "output {idx} [{elem}] at {dims:?}"
                );
            }
        }
    }
}

#[test]
fn names_of_the_model_are_its_own() {
    let text = "graph m {\n  symbol N = 1..5\n  input x: f32[N]\n  %0 = call m_run -> (f32[N]) x\n  output y = %0\n}\n";
    let lowered = Pipeline::new(&text::parse(text).expect("a graph")).lower().expect("supported");
    let error = lowered
        .compile(&Target::host().expect("known"), Artifact::Object)
        .expect_err("two functions of one name");
    assert!(
        error
            .to_string()
            .contains("the external function `m_run` has the name of a symbol of the model itself"),
        "{error}"
    );
    let text = text.replace("m_run", "expf");
    let lowered = Pipeline::new(&text::parse(&text).expect("a graph")).lower().expect("supported");
    let error = lowered.source("m.h").expect_err("math.h has one too");
    assert!(
        error.to_string().contains("`expf` can't be called from C source: the name has another meaning"),
        "{error}"
    );
}

#[test]
fn c_snippets_of_the_docs_compile() {
    let docs = include_str!("../../../docs/custom-ops.md");
    let snippets: Vec<&str> =
        docs.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!snippets.is_empty(), "the chapter shows a function");
    let lowered = Pipeline::new(&mixed_graph()).lower().expect("supported");
    let folder = tempfile::tempdir().expect("a folder");
    let header = emit::header::header(&lowered.program, &lowered.plan, None);
    std::fs::write(folder.path().join("model.h"), header).expect("a header");
    for snippet in snippets {
        std::fs::write(folder.path().join("snippet.c"), snippet).expect("a file");
        foreign::compile(folder.path(), "cc", "snippet.c", &[]);
    }
}

#[test]
fn declarations_of_the_docs_are_read() {
    let docs = include_str!("../../../docs/custom-ops.md");
    let text = docs.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(Custom::parse_all(text.expect("declarations")).expect("as documented").len(), 3);
}
