//! Both targets, alone and together: in this process against the reference evaluator, and as objects with C functions.

use std::{path::Path, process::Command, sync::Arc};
use symshape::{Declaration, Dim};
use symshape_compiler::{
    CompileOptions, ErrorKind, OversizedParts, Result, emit,
    graph::{Graph, Node, Value, eval::eval},
    kernel::{Argument, Control, Policies, walk},
    offload::{Selection, Subgraph, Target, Targets, select},
    partition::Count,
    pipeline::{Lowered, Pipeline},
    tensor::Tensor,
};
use symshape_example_targets::{
    blas::Blas,
    models::{self, ROWS, constant},
    npu::Npu,
};
use symshape_runtime::{Context, DType, Policy, TensorRef};

fn net() -> Graph {
    models::net().expect("a valid graph")
}

fn towers() -> Graph {
    models::towers().expect("a valid graph")
}

fn chain() -> Graph {
    models::chain().expect("a valid graph")
}

fn input(rows: i64) -> Vec<f32> {
    (0..rows * 20).map(|idx| (idx % 23) as f32 / 16.0 - 0.5).collect()
}

fn known() -> Vec<Arc<dyn Target>> {
    vec![Arc::new(Npu::default()), Arc::new(Blas::default())]
}

fn lowered(targets: &Targets) -> Lowered {
    Pipeline::new(&net()).targets(targets).lower().expect("supported")
}

/// Targets and functions of the calls, in order.
fn steps(lowered: &Lowered) -> Vec<String> {
    let call = |control: &Control| match control {
        Control::Call(call) => Some(format!("{}/{}", call.callee.target, call.callee.symbol)),
        _ => None,
    };
    lowered.program.kernels.iter().filter_map(|kernel| call(kernel.control.as_ref()?)).collect()
}

fn assert_close(case: &str, got: &[f32], expected: &Tensor) {
    assert_eq!(got.len(), expected.elems(), "{case}");
    for (idx, got) in got.iter().enumerate() {
        let wanted = expected.get(idx).as_f64();
        assert!(
            (f64::from(*got) - wanted).abs() <= 1e-4 * (1.0 + wanted.abs()),
            "{case} [{idx}]: {got}, not {wanted}"
        );
    }
}

fn check_in_process(names: &str) {
    let Selection { targets, machine } = select(names, &known()).expect("all known");
    assert_eq!(machine, Some("cpu"));
    let model = Pipeline::new(&net()).targets(&targets).jit().expect("supported");
    let mut context = Context::new(&model).expect("memory");
    for rows in [1, 2, 5, ROWS - 1, ROWS] {
        let x = input(rows);
        let expected = eval(&net(), &[Tensor::from_f32(vec![rows as usize, 20], &x).expect("sized")]);
        let outputs = context.run_views(&[TensorRef::new(&[rows as usize, 20], &x).expect("sized")]);
        let outputs = outputs.expect("the functions succeed");
        let got = outputs.get(0).elems::<f32>().expect("floats");
        assert_close(&format!("{names} at N = {rows}"), got, &expected.expect("a result")[0]);
    }
}

#[test]
fn a_library_takes_products_and_the_machine_the_rest() {
    check_in_process("blas,cpu");
    let steps = steps(&lowered(&known()[1..]));
    assert_eq!(steps, ["blas/blas_sgemm"; 5]);
}

#[test]
fn an_accelerator_takes_what_it_can_by_steps_of_the_plan() {
    check_in_process("npu,cpu");
    let lowered = lowered(&known()[..1]);
    let steps = steps(&lowered);
    // The nodes before the softmax, and the difference and the product inside it.
    assert_eq!(steps.iter().filter(|step| *step == "npu/npu_run").count(), 3, "{steps:?}");
    assert!(steps.contains(&"npu/npu_load".into()) && steps.contains(&"npu/npu_store".into()), "{steps:?}");
    // The tensors between the device's steps are in its memory, and so are its intermediate results. No kernel of the
    // machine touches them.
    let [device] = &lowered.program.devices[..] else { panic!("one memory") };
    assert_eq!((device.target.as_str(), device.bytes), ("npu", 1 << 20));
    let [room] = lowered.plan.devices[..] else { panic!("one memory") };
    assert!(
        room.max >= room.lower_bound && room.lower_bound > 0 && room.max < lowered.plan.arena_max,
        "{room:?}"
    );
    let on_device = |id| lowered.program.buffers[id].space.device() == Some(0);
    // Each name says which function writes the buffer, or its purpose.
    let mut names = Vec::new();
    for buffer in lowered.program.buffers.values().filter(|buffer| buffer.space.device() == Some(0)) {
        let tells = ["npu_load", "npu_run", "scratch of npu_run"];
        assert!(tells.iter().any(|start| buffer.name.starts_with(start)), "{}", buffer.name);
        names.push(&buffer.name);
    }
    names.sort();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "{names:?}");
    for kernel in &lowered.program.kernels {
        walk::accesses(&kernel.body, &mut |site| assert!(!on_device(site.access.buffer)));
        if let Some(Control::Call(call)) = &kernel.control {
            let all = |list: &[Argument]| list.iter().all(|one| on_device(one.first.buffer));
            let places = (all(&call.operands), all(&call.results), call.scratch.is_some_and(on_device));
            let wanted = match call.callee.symbol.as_str() {
                "npu_load" => (false, true, false),
                "npu_store" => (true, false, false),
                _ => (true, true, true),
            };
            assert_eq!(places, wanted, "{}", call.callee.symbol);
        }
        if let Some(Control::Call(call)) = &kernel.control {
            let code: Vec<&str> = call.callee.attributes.iter().map(|one| one.name.as_str()).collect();
            assert_eq!(code, if call.callee.symbol == "npu_run" { vec!["code"] } else { vec![] });
        }
    }
}

#[test]
fn what_one_leaves_goes_to_the_next() {
    check_in_process("npu,blas,cpu");
    let steps = steps(&lowered(&known()));
    assert_eq!(steps.iter().filter(|step| *step == "blas/blas_sgemm").count(), 2, "{steps:?}");
    // The nodes before the softmax, and the difference and the product inside it.
    assert_eq!(steps.iter().filter(|step| *step == "npu/npu_run").count(), 3, "{steps:?}");
    check_in_process("blas,npu,cpu");
}

#[test]
fn partitions_keep_to_one_target() {
    let options = CompileOptions::default().partitions(Some(Count::Auto));
    let lowered = Pipeline::new(&net()).targets(&known()).options(options).lower().expect("supported");
    let targets: Vec<&str> = lowered.program.partitions.iter().map(|part| part.target.as_str()).collect();
    for name in ["npu", "blas", "cpu"] {
        assert!(targets.contains(&name), "{targets:?}");
    }
    for partition in &lowered.program.partitions {
        for kernel in &lowered.program.kernels[partition.kernels.clone()] {
            match &kernel.control {
                Some(Control::Call(call)) => assert_eq!(call.callee.target, partition.target),
                _ => assert_eq!(partition.target, "cpu"),
            }
        }
    }
}

#[test]
fn partitions_give_the_same_bits_under_every_policy() {
    let options = CompileOptions::default().partitions(Some(Count::Auto)).policies(Policies::Any);
    let lowered = Pipeline::new(&net()).targets(&known()).options(options).lower().expect("supported");
    let (model, _) =
        emit::jit::jit(&lowered.program, &lowered.plan, &CompileOptions::default()).expect("supported");
    let mut context = Context::new(&model).expect("memory");
    context.set_threads(2).expect("a thread");
    for rows in [1, 2, ROWS] {
        let x = input(rows);
        let mut all = Vec::new();
        for policy in [Policy::Serial, Policy::Parallel] {
            context.set_policy(policy);
            let outputs = context.run_views(&[TensorRef::new(&[rows as usize, 20], &x).expect("sized")]);
            let outputs = outputs.expect("the functions succeed");
            all.push(outputs.get(0).bytes().to_vec());
        }
        assert_eq!(all[0], all[1], "at N = {rows}");
    }
}

#[test]
fn names_are_those_of_targets_and_at_the_end_of_the_machine() {
    let names =
        |text: &str| select(text, &known()).map(|list| (list.targets.len(), list.machine.map(String::from)));
    assert_eq!(names("npu,blas,x86_64"), Ok((2, Some("x86_64".into()))));
    assert_eq!(names("npu"), Ok((1, None)));
    for (text, expected) in [
        (
            "tpu,npu,cpu",
            "unknown target `tpu`; the targets are npu, blas; only the last name may be the machine",
        ),
        ("npu,npu,cpu", "duplicate target `npu`"),
    ] {
        assert_eq!(names(text).expect_err("not so").to_string(), expected);
    }
}

#[test]
fn claims_that_can_not_be_honoured_are_errors_with_a_place() {
    let small: Vec<Arc<dyn Target>> = vec![Arc::new(Npu { memory_bytes: 1024 })];
    let options = CompileOptions::default().oversized_parts(OversizedParts::Refuse);
    let error = Pipeline::new(&net()).targets(&small).options(options).lower().expect_err("too small");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let start = "plan: target npu: unsupported: the tensors alive at once take up to ";
    assert!(error.to_string().starts_with(start), "{error}");
    assert!(
        error.to_string().contains(" bytes, but the memory of the device has 1024; the largest buffer, "),
        "{error}"
    );

    let mut g = Graph { name: "long".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 1i64 << 33)).expect("a symbol");
    let x = g.input("x", DType::F32, vec![n, 2.into()]).expect("an input");
    let w = constant(&mut g, &[2, 2], 1).expect("a constant");
    g.origin = "node `dense`".into();
    let y = g.matmul(x, w).expect("a product");
    g.output("y", y).expect("an output");
    let error = Pipeline::new(&g).targets(&known()[1..]).lower().expect_err("too long for it");
    let expected = "target blas: node `dense`: unsupported: the kernel counts in 32 bits; N can be larger";
    assert_eq!(error.to_string(), expected);
}

/// A target that gives something else than it was asked for.
struct Wrong;

impl Target for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn claim(&self, graph: &Graph, node: &Node) -> bool {
        Blas::default().claim(graph, node)
    }

    fn lower(&self, part: &Subgraph, graph: &mut Graph) -> Result<Vec<Value>> {
        let value = graph.slice(part.operands[0], 1, Dim::zero(), Dim::one(), 1)?;
        Ok(vec![value; part.graph.outputs.len()])
    }
}

#[test]
fn what_a_target_gives_is_checked() {
    let wrong: Vec<Arc<dyn Target>> = vec![Arc::new(Wrong)];
    let error = Pipeline::new(&net()).targets(&wrong).lower().expect_err("other shapes").to_string();
    assert!(error.starts_with("target wrong: first: `lower` returned Type"), "{error}");
}

fn run(folder: &Path, command: &str, args: &[&str]) -> String {
    let output = Command::new(command).current_dir(folder).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{command} is needed by this test: {error}"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaint.is_empty(), "{command} {args:?}: {complaint}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// A folder with the object and the header of a model, as the program `c-model` writes them, and with C files.
fn c_model(args: &[&str], files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), env!("CARGO_BIN_EXE_c-model"), &[args, &["-o", "model.o"]].concat());
    for file in files {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(file);
        std::fs::copy(from, folder.path().join(file)).expect("a file");
    }
    folder
}

#[test]
fn objects_are_linked_with_the_targets_functions() {
    for (names, functions) in [
        ("blas,cpu", &["blas.c"][..]),
        ("npu,cpu", &["npu.c"][..]),
        ("npu,blas,cpu", &["npu.c", "blas.c"][..]),
    ] {
        let folder = c_model(&["net", "--target", names], &[functions, &["call.c"]].concat());
        let mut args =
            vec!["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o", "program", "model.o", "call.c"];
        args.extend(functions);
        run(folder.path(), "cc", &args);
        for rows in [1, 2, ROWS] {
            let printed = run(folder.path(), "./program", &[&rows.to_string()]);
            let got: Vec<f32> = printed.lines().map(|line| line.parse().expect("a number")).collect();
            let x = Tensor::from_f32(vec![rows as usize, 20], &input(rows)).expect("sized");
            let expected = eval(&net(), &[x]).expect("a result");
            assert_close(&format!("{names} at N = {rows}"), &got, &expected[0]);
        }
    }
}

#[test]
fn a_driver_in_c_never_enters_the_device_twice() {
    let folder = c_model(&["towers", "--target", "npu,cpu", "--partitions", "12"], &["npu.c", "driver.c"]);
    let args = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o", "driver"];
    run(folder.path(), "cc", &[&args[..], &["model.o", "driver.c"]].concat());

    for _ in 0..20 {
        let printed = run(folder.path(), "./driver", &[]);
        let (entries, calls) = printed.trim_end().rsplit_once('\n').expect("lines");
        assert!(calls.ends_with("at once 1"), "{calls}");
        assert!(entries.lines().all(|line| ["npu 1", "cpu 0"].contains(&line)), "{entries}");
        assert!(entries.lines().filter(|line| *line == "npu 1").count() > 2, "{entries}");
    }
}

fn npu_with(memory_bytes: u64) -> Vec<Arc<dyn Target>> {
    vec![Arc::new(Npu { memory_bytes }), Arc::new(Blas::default())]
}

/// Calls the model at the edges of its range, and compares with the definition of the graph.
fn check_against_the_definition(case: &str, graph: &Graph, lowered: &Lowered) {
    let model = lowered.jit().expect("supported");
    let mut context = Context::new(&model).expect("memory");
    for rows in [1, 2, 5, ROWS - 1, ROWS] {
        let x = input(rows);
        let expected = eval(graph, &[Tensor::from_f32(vec![rows as usize, 20], &x).expect("sized")]);
        let outputs = context.run_views(&[TensorRef::new(&[rows as usize, 20], &x).expect("sized")]);
        let outputs = outputs.expect("the functions succeed");
        let got = outputs.get(0).elems::<f32>().expect("floats");
        assert_close(&format!("{case} at N = {rows}"), got, &expected.expect("a result")[0]);
    }
}

#[test]
fn a_part_that_does_not_fit_is_cut_or_left_at_every_memory_size() {
    let graph = chain();
    let targets = npu_with(1 << 20);
    let whole = Pipeline::new(&graph).targets(&targets[..1]).lower().expect("supported");
    let needed = whole.plan.devices[0].max;
    let runs = |lowered: &Lowered| steps(lowered).iter().filter(|step| *step == "npu/npu_run").count();
    assert_eq!((runs(&whole), whole.warnings.len()), (1, 0), "{:?}", whole.warnings);

    let mut counts = Vec::new();
    for memory in [needed, needed - 1, needed * 2 / 3, needed / 2, needed / 3, needed / 8, 64, 0] {
        let targets = npu_with(memory);
        let lowered = Pipeline::new(&graph).targets(&targets[..1]).lower().expect("divided");
        let most = lowered.plan.devices.first().map_or(0, |usage| usage.max);
        assert!(most <= memory, "{most} of {memory}");
        assert_eq!(lowered.warnings.is_empty(), memory == needed, "{:?}", lowered.warnings);
        for warning in &lowered.warnings {
            assert!(warning.starts_with("target npu: layer "), "{warning}");
            assert!(warning.contains(&format!("at once, and the device memory has {memory};")), "{warning}");
            assert!(
                warning.contains("the largest buffer, ") && warning.contains(", has up to "),
                "{warning}"
            );
        }
        counts.push(runs(&lowered));
        check_against_the_definition(&format!("{memory} bytes"), &graph, &lowered);
    }
    assert!(counts[1] > 1 && counts[2] > 1, "cut: {counts:?}");
    assert_eq!(counts[6..], [0, 0], "left to the CPU");
}

#[test]
fn a_node_that_does_not_fit_is_left_to_the_next_target() {
    let graph = chain();
    let targets = npu_with(4096);
    let lowered = Pipeline::new(&graph).targets(&targets).lower().expect("divided");
    let steps = steps(&lowered);
    assert!(steps.contains(&"npu/npu_run".into()) && steps.contains(&"blas/blas_sgemm".into()), "{steps:?}");
    assert!(
        lowered.warnings.iter().any(|warning| warning.contains("is left to the next target or the CPU")),
        "{:?}",
        lowered.warnings
    );
    check_against_the_definition("npu and blas", &graph, &lowered);
}

#[test]
fn parts_are_divided_under_every_policy() {
    for graph in [net(), towers(), chain()] {
        for memory in [1500, 3000, 6000] {
            let options = CompileOptions::default().partitions(Some(Count::Auto)).policies(Policies::Any);
            let targets = npu_with(memory);
            let lowered =
                Pipeline::new(&graph).targets(&targets[..1]).options(options).lower().expect("divided");
            let model = lowered.jit().expect("supported");
            let mut context = Context::new(&model).expect("memory");
            context.set_threads(3).expect("threads");
            for policy in [Policy::Serial, Policy::Parallel, Policy::Auto] {
                context.set_policy(policy);
                for rows in [1, 2, 5, ROWS - 1, ROWS] {
                    let x = input(rows);
                    let shape = [rows as usize, 20];
                    let expected = eval(&graph, &[Tensor::from_f32(shape.to_vec(), &x).expect("sized")]);
                    let outputs = context.run_views(&[TensorRef::new(&shape, &x).expect("sized")]);
                    let outputs = outputs.expect("the functions succeed");
                    let got = outputs.get(0).elems::<f32>().expect("floats");
                    let case = format!("{} with {memory} bytes, {policy:?}, N = {rows}", graph.name);
                    assert_close(&case, got, &expected.expect("a result")[0]);
                }
            }
        }
    }
}

/// Writes a model of one product with weights of 819,200 bytes.
fn write_large_product(path: &Path) {
    use prost::Message;
    use symshape_compiler::import::proto::{
        GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorTypeProto, TypeProto,
        ValueInfoProto,
    };
    let float_data = (0..640 * 320).map(|idx| (idx % 251) as f32 / 4096.0 - 0.03).collect();
    let w = TensorProto {
        name: "w".into(),
        data_type: 1,
        dims: vec![640, 320],
        float_data,
        ..Default::default()
    };
    let node = NodeProto {
        op_type: "MatMul".into(),
        name: "large".into(),
        input: vec!["x".into(), "w".into()],
        output: vec!["y".into()],
        ..Default::default()
    };
    // The command line gives the shape.
    let tensor_type = Some(TensorTypeProto { elem_type: 1, shape: None });
    let ty = Some(TypeProto { tensor_type, ..Default::default() });
    let graph = GraphProto {
        node: vec![node],
        initializer: vec![w],
        input: vec![ValueInfoProto { name: "x".into(), ty }],
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { version: 18, ..Default::default() }];
    let model = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };
    std::fs::write(path, model.encode_to_vec()).expect("a file");
}

#[test]
fn symc_divides_or_refuses_a_part_that_does_not_fit() {
    let folder = tempfile::tempdir().expect("a folder");
    write_large_product(&folder.path().join("large.onnx"));
    let symc = |command: &[&str], more: &[&str]| {
        let model = ["large.onnx", "--input", "x=N,640", "--dim", "N=1..64", "--target", "npu,cpu"];
        let output = Command::new(env!("CARGO_BIN_EXE_symshape-example-targets"))
            .current_dir(folder.path())
            .args([command, &model, more].concat())
            .output()
            .expect("symc of this crate");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };

    let (code, said) = symc(&["selfcheck"], &[]);
    assert_eq!(code, Some(0), "{said}");
    let warning = "symc: large.onnx: warning: target npu: node `large` is left to the CPU: it needs up to 1146880 bytes at \
                   once, and the device memory has 1048576; the largest buffer, npu_load ";
    assert!(said.starts_with(warning) && said.trim_end().ends_with(", has up to 819200"), "{said}");

    let (code, said) = symc(&["compile"], &["-o", "large.o"]);
    assert_eq!((code, said.starts_with(warning)), (Some(0), true), "{said}");

    let (code, said) = symc(&["compile"], &["-o", "refused.o", "--oversized-parts", "refuse"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("the memory of the device has 1048576; the largest buffer, "), "{said}");
    assert!(!folder.path().join("refused.o").exists());

    let (code, said) = symc(&["compile"], &["-o", "large.o", "--oversized-parts", "drop"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("divide") && said.contains("refuse"), "{said}");
}
