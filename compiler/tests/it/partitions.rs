//! Partitions: the same bits as in one piece, whatever the cut, the policy, the order and the threads.

use crate::{models, tensors::as_ref};

use std::{
    path::Path,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};
use symshape::Dim;
use symshape_compiler::{
    CompileOptions,
    graph::{Graph, Value},
    kernel::{Partition, Policies, Program, partition::stages, text, verify},
    partition::Count,
    pipeline::{Artifact, Lowered, Pipeline},
    plan::{self, problem::Budget},
    scalar::{ReduceOp, Scalar},
    target::Target,
    tensor::Tensor,
};
use symshape_runtime::{
    CallError, Context, DType, Model, Policy, StepError, Steps, TensorInfo, TensorMut, TensorRef,
};

fn lowered(graph: &Graph, partitions: impl Into<Option<Count>>, policies: Policies) -> Lowered {
    let options = CompileOptions::default().partitions(partitions.into()).policies(policies);
    let lowered = Pipeline::new(graph)
        .options(options)
        .lower()
        .unwrap_or_else(|error| panic!("{}: {error}", graph.name));
    plan::verify::verify(&lowered.program, &lowered.plan).expect("a good plan");
    lowered
}

fn model(lowered: &Lowered) -> Model {
    lowered.jit().expect("supported")
}

fn of(count: u32) -> Count {
    Count::Of(count.try_into().expect("not zero"))
}

/// The outputs' bytes of a call.
fn call(context: &mut Context, inputs: &[Tensor]) -> Vec<Vec<u8>> {
    let refs: Vec<TensorRef> = inputs.iter().map(as_ref).collect();
    let outputs = context.run_views(&refs).expect("in range");
    (0..outputs.len()).map(|idx| outputs.get(idx).bytes().to_vec()).collect()
}

/// A call whose partitions are run by `policy`.
fn call_steps(
    context: &mut Context,
    inputs: &[Tensor],
    policy: impl FnOnce(&Steps<'_>),
) -> Result<Vec<Vec<u8>>, CallError> {
    let refs: Vec<TensorRef> = inputs.iter().map(as_ref).collect();
    context.bind(&refs)?;
    let model = context.model().clone();
    let bytes = |(idx, info): (usize, &TensorInfo)| {
        vec![0xa5; context.output_shape(idx).iter().product::<usize>() * info.dtype().size_bytes()]
    };
    let mut buffers: Vec<Vec<u8>> = model.outputs().iter().enumerate().map(bytes).collect();
    let outputs = buffers.iter_mut().zip(model.outputs());
    let outputs = outputs.map(|(buffer, info)| TensorMut::from_bytes(info.dtype(), buffer).expect("aligned"));
    context.run_steps(&refs, &mut outputs.collect::<Vec<_>>(), policy)?;
    Ok(buffers)
}

/// Runs whatever is ready, the last entry of the table first.
fn backwards(steps: &Steps<'_>) {
    let mut left: Vec<usize> = (0..steps.len()).collect();
    while let Some(at) = left.iter().rposition(|number| steps.is_ready(*number)) {
        steps.run(left.remove(at)).expect("ready, and none of these fails");
    }
}

/// Three threads that run partitions that are ready.
fn on_threads(steps: &Steps<'_>) {
    let done = AtomicUsize::new(0);
    let work = || {
        while done.load(Ordering::Acquire) < steps.len() {
            for number in 0..steps.len() {
                if steps.is_ready(number) && steps.run(number).is_ok() {
                    done.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
    };
    std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(work))));
}

/// Holds every policy against a model in one piece.
fn check(graph: &Graph, partitions: Count) {
    let whole = lowered(graph, None, Policies::Serial);
    let arena_max = whole.plan.arena_max;
    let whole = model(&whole);
    assert!(whole.partitions().is_empty());
    let mut whole = Context::new(&whole).expect("memory");
    for policies in [Policies::Serial, Policies::Any] {
        let lowered = lowered(graph, partitions, policies);
        if policies == Policies::Serial {
            assert_eq!(lowered.plan.arena_max, arena_max, "one order takes no more memory than one piece");
        }
        let model = model(&lowered);
        assert_eq!(model.any_order(), policies == Policies::Any);
        assert_eq!(model.partitions().len(), lowered.program.partitions.len());
        let mut context = Context::new(&model).expect("memory");
        for dims in models::bindings(graph) {
            let inputs = models::inputs(graph, &dims);
            let expected = call(&mut whole, &inputs);
            let same = |what: &str, got: Vec<Vec<u8>>| {
                assert!(
                    got == expected,
                    "{} in {partitions:?}, {policies:?}, {what} at {dims:?}",
                    graph.name
                );
            };
            for threads in [1, 3] {
                context.set_threads(threads).expect("threads");
                for policy in [Policy::Auto, Policy::Serial, Policy::Parallel] {
                    if policies == Policies::Serial && policy == Policy::Parallel {
                        continue;
                    }
                    context.set_policy(policy);
                    same(&format!("{policy:?} on {threads}"), call(&mut context, &inputs));
                }
            }
            same("backwards", call_steps(&mut context, &inputs, backwards).expect("in range"));
            if policies == Policies::Any {
                same("on threads", call_steps(&mut context, &inputs, on_threads).expect("in range"));
            }
        }
    }
}

#[test]
fn every_model_keeps_its_bits() {
    for (_, make) in models::MODELS {
        let graph = make().expect("a valid graph");
        [of(1), of(2), of(5), Count::Auto].into_iter().for_each(|count| check(&graph, count));
    }
}

fn conv(g: &mut Graph, x: Value, channels: [usize; 2], kernel: usize, seed: u32) -> Value {
    let x = models::conv(g, x, channels, kernel, 1, seed).expect("a convolution");
    g.relu(x).expect("floats")
}

/// A stem, two blocks of four towers each, and a head, as in inception nets: N and H are symbols.
fn towers() -> Graph {
    let mut g = models::graph("towers", &[("N", 0, 3), ("H", 3, 40)]);
    let shape = vec![Dim::symbol("N"), 6.into(), Dim::symbol("H"), 24.into()];
    let x = g.input("x", DType::F32, shape).expect("an input");
    let mut x = conv(&mut g, x, [6, 24], 3, 1);
    for block in 0..2 {
        let seed = 10 + 20 * block;
        let a = conv(&mut g, x, [24, 8], 1, seed);
        let b = conv(&mut g, x, [24, 12], 1, seed + 2);
        let b = conv(&mut g, b, [12, 8], 3, seed + 4);
        let c = conv(&mut g, x, [24, 4], 1, seed + 6);
        let c = conv(&mut g, c, [4, 4], 3, seed + 8);
        let c = conv(&mut g, c, [4, 4], 3, seed + 10);
        let side = [Dim::zero(), Dim::zero(), Dim::one(), Dim::one()];
        let d = g.pad(x, &side, &side, Scalar::f32(f32::NEG_INFINITY)).expect("a border");
        let d = g.window(d, &[2, 3], &[3, 3], &[1, 1], &[1, 1]).expect("windows");
        let d = g.reduce(ReduceOp::Max, d, &[4, 5], false).expect("a maximum");
        let d = conv(&mut g, d, [24, 4], 1, seed + 12);
        x = g.concat(&[a, b, c, d], 1).expect("channels");
    }
    let y = conv(&mut g, x, [24, 5], 1, 90);
    g.output("y", y).expect("an output");
    g
}

#[test]
fn towers_don_t_wait_for_each_other() {
    let graph = towers();
    let program = lowered(&graph, Count::Auto, Policies::Any).program;
    let stages = stages(&program.partitions);
    let widest = stages.iter().map(|stage| stages.iter().filter(|other| *other == stage).count()).max();
    assert!(widest >= Some(3), "{stages:?}\n{program}");
    for count in [Count::Auto, of(4), of(9)] {
        check(&graph, count);
    }
}

#[test]
fn numbers_of_partitions_are_as_asked_for() {
    for count in [1, 2, 3, 5, 8] {
        let program = lowered(&towers(), of(count), Policies::Any).program;
        assert_eq!(program.partitions.len(), count as usize);
    }
    // More than there are kernels.
    let graph = models::MODELS[0].1().expect("a valid graph");
    let program = lowered(&graph, of(200), Policies::Any).program;
    assert_eq!(program.partitions.len(), program.kernels.len());
}

/// Eight convolutions with borders, one after another.
fn chain() -> Graph {
    let mut g = models::graph("chain", &[("N", 1, 3), ("H", 3, 40)]);
    let shape = vec![Dim::symbol("N"), 16.into(), Dim::symbol("H"), 24.into()];
    let mut x = g.input("x", DType::F32, shape).expect("an input");
    for layer in 0..8 {
        x = conv(&mut g, x, [16, 16], 3, 10 * layer);
    }
    g.output("y", x).expect("an output");
    g
}

#[test]
fn small_branches_don_t_take_the_places_of_large_pieces() {
    let mut g = chain();
    for name in ["a", "b", "c"] {
        let small = g.input(name, DType::F32, vec![Dim::symbol("N")]).expect("an input");
        let small = g.relu(small).expect("floats");
        g.output(&format!("{name}_out"), small).expect("an output");
    }
    let model = model(&lowered(&g, of(4), Policies::Any));
    let costs: Vec<i64> =
        (0..4).map(|number| model.partition_cost(number, &[3, 40], 1).expect("an entry")).collect();
    assert!(costs.iter().all(|cost| 8 * cost > costs.iter().sum()), "{costs:?}");
}

#[test]
fn a_chain_takes_no_more_memory_in_pieces() {
    let graph = chain();
    let whole = lowered(&graph, None, Policies::Serial);
    for count in [3, 100] {
        let parts = lowered(&graph, of(count), Policies::Any);
        assert!(parts.program.partitions.len() >= 3);
        assert_eq!(parts.plan.arena_max, whole.plan.arena_max, "{count}\n{}", parts.program);
    }
}

#[test]
fn the_table_has_a_textual_form() {
    let graph = models::MODELS.iter().find(|(name, _)| *name == "reductions").expect("a model").1();
    let program = lowered(&graph.expect("a valid graph"), of(3), Policies::Any).program;
    let text = program.to_string();
    let again = text::parse(&text).expect("its own text");
    assert_eq!(again.to_string(), text);
    assert_eq!((again.partitions, again.policies), (program.partitions, program.policies));
}

/// The program with its partitions changed.
fn spoiled(spoil: impl FnOnce(&mut Vec<Partition>)) -> Program {
    let mut program = lowered(&towers(), of(6), Policies::Any).program;
    spoil(&mut program.partitions);
    program
}

#[test]
fn forgotten_dependencies_are_found() {
    let program = spoiled(|_| {});
    verify::verify(&program).expect("as it was made");
    for number in 0..program.partitions.len() {
        for at in 0..program.partitions[number].after.len() {
            let spoiled = spoiled(|list| _ = list[number].after.remove(at));
            let error = verify::verify(&spoiled).expect_err("it waits for less than it must");
            assert!(error.to_string().contains("does not wait for"), "{error}");
            let serial = Program { policies: Policies::Serial, ..spoiled.clone() };
            let plan = plan::plan(&serial, &Budget::COMPILE).expect("a plan");
            plan::verify::verify(&serial, &plan).expect("good for one after another");
        }
    }
    let overlapping = spoiled(|list| list[1].kernels.start += 1);
    assert!(verify::verify(&overlapping).is_err());
    let forward = spoiled(|list| list[0].after.push(1));
    assert!(verify::verify(&forward).is_err());
}

/// The guard on a data-dependent size is between kernels that are independent of it.
const DEMANDING: &str = "graph demanding {
  symbol A = 1..7
  data_dependent M
  require M <= A, \"element $0 of an axis of size A\"
  input x: f32[A]
  input scores: f32[A]
  %0 = scan sum reverse axis 0 x
  %1 = concat axis 0 %0, x
  %2 = sign %1
  %3 = reduce max [0] scores
  %4 = cast i64 %3
  %5 = const i64[] 1
  %6 = index i64[] A
  %7 = max %4, %5
  %8 = min %7, %6
  %9 = bind M from [1] to [A] %8
  %10 = view [M] [$0] x
  %11 = scan sum axis 0 scores
  output y = %10
  output z = %2
  output w = %11
}
";

/// Padding around padding. Only proofs from one side tell its borders from its interior.
const PADDED: &str = "graph padded {
  symbol A = 2..12
  symbol B = 1..11
  symbol C = 1..11
  data_dependent M
  input x: f32[C, A, B]
  %0 = sign x
  %1 = cast bool %0
  %2 = reduce max [0, 1, 2] %1
  %3 = cast i64 %2
  %4 = const i64[] 1
  %5 = index i64[] A
  %6 = max %3, %4
  %7 = min %6, %5
  %8 = bind M from [1] to [A] %7
  %9 = view [C, M, B] [$0, $1, $2] %1
  %10 = pad true [0, 2, 0] [2, 0, 0] %1
  %11 = reduce max [2] %9
  %12 = view [C, M, B] [$0, $1] %11
  %13 = min %9, %12
  %14 = pad true [0, 1, 0] [1, 0, 0] %10
  %15 = pad true [0, 0, 2] [1, 0, 2] %14
  %16 = scan min axis 1 %13
  output y = %16
  output z = %13
  output w = %15
}
";

/// A window needs two elements of a data-dependent size. This requirement keeps the number of windows from being
/// negative.
const WINDOWS: &str = "graph windows {
  symbol C = 0..7
  data_dependent M
  require 1 <= M, \"axis 1 has size M, its window 2 at stride 1\"
  require 0 <= M - 1, \"axis 1 of size M - 1\"
  input x: f32[C + 1, C]
  %0 = reduce max [0, 1] x
  %1 = cast i64 %0
  %2 = bind M from [0] to [C] %1
  %3 = view [C + 1, M] [$0, $1] x
  %4 = view [C + 1, M - 1, 2] [$0, $1 + $2] %3
  %5 = index i64[M - 1] M - $0 - 2
  %6 = gather [C + 1, M - 1, 2] [$0, @1[$1], $2] %4, %5
  %7 = reduce max [2] %6
  %8 = view [C + 1, M - 1, 1] [$0, $1] %7
  %9 = view [C + 1, M - 1, 2] [$0, $1, 0] %8
  %10 = add %9, %6
  %11 = mul %10, %10
  %12 = exp %11
  output y = %12
  output z = %11
}
";

#[test]
fn memory_is_no_less_than_nothing() {
    let graph = symshape_compiler::graph::text::parse(WINDOWS).expect("a graph");
    for count in 1..=3 {
        let lowered = lowered(&graph, of(count), Policies::Any);
        verify::verify(&lowered.program).unwrap_or_else(|error| panic!("in {count}: {error}"));
    }
}

#[test]
fn demands_stand_between_what_comes_before_and_after() {
    any_number_of_parts(DEMANDING);
}

#[test]
fn proofs_are_looked_for_from_both_sides() {
    any_number_of_parts(PADDED);
}

fn any_number_of_parts(text: &str) {
    let graph = symshape_compiler::graph::text::parse(text).expect("a graph");
    let whole = model(&lowered(&graph, None, Policies::Any));
    for count in 1..=5 {
        let lowered = lowered(&graph, of(count), Policies::Any);
        verify::verify(&lowered.program).unwrap_or_else(|error| panic!("in {count}: {error}"));
        let parts = model(&lowered);
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let bytes =
                [&whole, &parts].map(|model| call(&mut Context::new(model).expect("memory"), &inputs));
            assert_eq!(bytes[0], bytes[1], "in {count} at {dims:?}");
        }
    }
}

#[test]
fn a_plan_for_one_order_is_refused_for_any() {
    let program = lowered(&towers(), Count::Auto, Policies::Any).program;
    let serial = Program { policies: Policies::Serial, ..program.clone() };
    let plan = plan::plan(&serial, &Budget::COMPILE).expect("a plan");
    let error = plan::verify::verify(&program, &plan).expect_err("towers share memory");
    assert!(error.to_string().contains("alive at once"), "{error}");
}

#[test]
fn steps_are_held_to_the_table() {
    let graph = towers();
    let inputs = models::inputs(&graph, &[2, 7]);
    let any = model(&lowered(&graph, of(6), Policies::Any));
    let mut context = Context::new(&any).expect("memory");
    let last = any.partitions().len() - 1;
    let result = call_steps(&mut context, &inputs, |steps| {
        assert!(matches!(steps.run(last), Err(StepError::TooEarly { .. })));
        assert_eq!(steps.run(last + 1), Err(StepError::NoPartition { number: last + 1 }));
        assert_eq!(steps.run(0), Ok(()));
        assert_eq!(steps.run(0), Err(StepError::Twice { number: 0 }));
    });
    assert!(matches!(result, Err(CallError::NotRun { .. })), "{result:?}");

    let serial = model(&lowered(&graph, of(6), Policies::Serial));
    let mut context = Context::new(&serial).expect("memory");
    let second = serial.partitions().iter().rposition(|partition| partition.after() == [0]).expect("a tower");
    let result = call_steps(&mut context, &inputs, |steps| {
        assert_eq!(steps.run(0), Ok(()));
        let early = steps.run(second.max(2));
        assert!(matches!(early, Err(StepError::TooEarly { .. })), "memory is planned for one order");
    });
    assert!(result.is_err());
    context.set_policy(Policy::Parallel);
    let refs: Vec<TensorRef> = inputs.iter().map(as_ref).collect();
    let error = context.run_views(&refs).expect_err("not planned for it");
    assert!(
        matches!(error, CallError::NotPlanned(_)) && error.to_string().contains("--policies any"),
        "{error}"
    );
}

#[test]
fn the_table_tells_costs_and_places() {
    let graph = towers();
    let model = model(&lowered(&graph, Count::Auto, Policies::Any));
    for dims in [[1, 3], [3, 40]] {
        let arena = model.arena_bytes(&dims).expect("in range");
        for number in 0..model.partitions().len() {
            let slice = model.arena_slice(number, &dims).expect("an entry");
            assert!(slice.start < slice.end && slice.end <= arena, "{slice:?} of {arena}");
            let [alone, shared] =
                [1, 2].map(|threads| model.partition_cost(number, &dims, threads).expect("an entry"));
            assert!(alone > 0 && shared <= alone, "{alone}, {shared}");
            assert!(model.partitions()[number].symbols().iter().all(|symbol| *symbol < 2));
        }
    }
    let total = |dims: [i64; 2]| -> i64 {
        let costs = (0..model.partitions().len()).map(|number| model.partition_cost(number, &dims, 1));
        costs.map(|cost| cost.expect("an entry")).sum()
    };
    assert!(total([3, 40]) > 20 * total([1, 3]));
    assert!(model.partition_cost(0, &[1, 41], 1).is_err());
    assert!(model.arena_slice(model.partitions().len(), &[1, 3]).is_err());
}

/// Runs a tool in `folder`; the tests need a C compiler and `nm`, as their users do.
fn tool(folder: &Path, name: &str, args: &[&str]) -> String {
    let output = Command::new(name).current_dir(folder).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{name} is needed by this test: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{name}: {}\n{text}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Writes the object and the header of a graph to `folder`; the number of partitions.
fn compile(graph: &Graph, folder: &Path) -> usize {
    let lowered = lowered(graph, Count::Auto, Policies::Any);
    let target = Target::host().expect("this machine");
    let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
    std::fs::write(
        folder.join(format!("{}.o", graph.name)),
        compiled.object.into_bytes().expect("an object"),
    )
    .expect("written");
    std::fs::write(folder.join(format!("{}.h", graph.name)), &compiled.header).expect("written");
    lowered.program.partitions.len()
}

const WARNINGS: [&str; 6] = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."];

/// Links a program that has its own policy with the model in `file`, and runs it. Returns the lines of the table.
fn run_steps(folder: &Path, model: &str) -> usize {
    let main = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/steps.c");
    let args = [main, model, "-O1", "-pthread", "-o", "program", "-lm"];
    tool(folder, "cc", &[&WARNINGS[..], &args].concat());
    tool(folder, "./program", &[]).lines().count()
}

#[test]
fn a_c_program_reads_the_table_with_a_policy_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let count = compile(&towers(), folder.path());
    assert_eq!(run_steps(folder.path(), "towers.o"), count);
    assert_eq!(tool(folder.path(), "nm", &["-u", "towers.o"]), "", "one object, nothing undefined");
}

#[test]
fn c_source_has_the_same_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = CompileOptions::for_c_source().partitions(Some(Count::Auto)).policies(Policies::Any);
    let lowered = Pipeline::new(&towers()).options(options).lower().expect("supported");
    let source = lowered.source("towers.h").expect("supported");
    std::fs::write(folder.path().join("towers.c"), source.code).expect("written");
    std::fs::write(folder.path().join("towers.h"), source.header).expect("written");
    assert_eq!(run_steps(folder.path(), "towers.c"), lowered.program.partitions.len());
}

/// A model of two partitions that don't wait for each other and fail: by an index that addresses nothing, and by a
/// function.
const TORN: &str = "graph torn {
  symbol N = 1..4
  input x: f32[N, 3]
  input at: i64[N]
  %0 = const f32[2, 3] 1, 2, 3, 4, 5, 6
  %1 = gather [N, 3] [@1[$0], $1] %0, at
  %2 = call torn_fails -> (f32[N, 3]) x
  output a = %1
  output b = %2
}
";

/// The codes of the calls that `c/torn.c` makes of the model in that file.
fn codes_of_torn(folder: &Path, model: &str) -> Vec<String> {
    let main = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/torn.c");
    tool(folder, "cc", &[&WARNINGS[..], &[main, model, "-o", "program", "-lm"]].concat());
    tool(folder, "./program", &[]).lines().map(String::from).collect()
}

#[test]
fn of_two_failures_at_once_code_and_error_are_those_of_one() {
    let graph = symshape_compiler::graph::text::parse(TORN).expect("a graph");
    let folder = tempfile::tempdir().expect("a folder");
    let lowered = lowered(&graph, of(2), Policies::Any);
    assert_eq!(stages(&lowered.program.partitions), [0, 0]);
    let target = Target::host().expect("this machine");
    let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
    std::fs::write(folder.path().join("torn.o"), compiled.object.into_bytes().expect("an object"))
        .expect("written");
    std::fs::write(folder.path().join("torn.h"), compiled.header).expect("written");
    assert_eq!(codes_of_torn(folder.path(), "torn.o").len(), 2);
    let source = lowered.source("torn.h").expect("supported");
    std::fs::write(folder.path().join("torn.c"), source.code).expect("written");
    std::fs::write(folder.path().join("torn.h"), source.header).expect("written");
    let codes = codes_of_torn(folder.path(), "torn.c");
    assert_ne!(codes[0], codes[1], "the host decides which fails first");
}

#[test]
fn the_c_snippets_of_the_chapter_compile() {
    let chapter = include_str!("../../../docs/partitions.md");
    let snippets: Vec<&str> =
        chapter.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(snippets.len(), 1);
    let folder = tempfile::tempdir().expect("a folder");
    compile(&Graph { name: "m".into(), ..towers() }, folder.path());
    for snippet in snippets {
        std::fs::write(folder.path().join("snippet.c"), snippet).expect("written");
        tool(folder.path(), "cc", &[&WARNINGS[..], &["-c", "snippet.c"]].concat());
    }
}
