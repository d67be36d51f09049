//! Profiles: which kernels they have, the arithmetic and the bytes that they count, and the page that shows them.

use crate::{models, networks, tensors};
use symshape::Declaration;
use symshape_compiler::{
    CompileOptions, ErrorKind,
    graph::Graph,
    pipeline::{Lowered, Pipeline},
    profile::{BoundBy, Demand, Divided, Machine, Profiler},
    scalar::ReduceOp,
    tensor::Tensor,
};
use symshape_runtime::{Context, DType, TensorRef};

/// `x[N, 64]` times a constant `[64, 32]`, then the maximum of each column.
fn matmul_and_max() -> Lowered {
    let mut g = Graph { name: "m".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 100)).expect("a new name");
    let x = g.input("x", DType::F32, vec![n, 64.into()]).expect("an input");
    let w = Tensor::from_f32(vec![64, 32], &[0.5; 64 * 32]).expect("sized");
    let w = g.constant(w).expect("a constant");
    let y = g.matmul(x, w).expect("shapes agree");
    g.output("y", y).expect("an output");
    let z = g.reduce(ReduceOp::Max, y, &[0], false).expect("an axis");
    g.output("z", z).expect("an output");
    Pipeline::new(&g).options(CompileOptions::default()).lower().expect("supported")
}

#[test]
fn every_kernel_has_a_time_and_the_demand_of_its_sizes() {
    let lowered = matmul_and_max();
    let profiler = Profiler::new(&lowered).expect("this machine");
    for n in [1, 2, 51, 99, 100] {
        let profile = profiler.at(&[n]).expect("in range");
        assert_eq!(profile.at, format!("N={n}"));
        assert!(profile.call_ns > 0.0);
        let ranges: Vec<usize> = profile.kernels.iter().flat_map(|kernel| kernel.kernels.clone()).collect();
        assert_eq!(
            ranges,
            (0..lowered.program.kernels.len()).collect::<Vec<_>>(),
            "each kernel once, in order"
        );

        let n = n as f64;
        let contraction = profile.kernels.iter().find(|kernel| kernel.demand.multiplications > 0.0);
        let Demand { multiplications, byte_multiplications, bytes, depends_on_data, .. } =
            contraction.expect("a contraction").demand;
        assert_eq!(multiplications, n * 64.0 * 32.0);
        assert_eq!((byte_multiplications, depends_on_data), (0.0, false));
        assert_eq!(bytes, 4.0 * (n * 64.0 + 64.0 * 32.0 + n * 32.0), "both operands and the result");
        for kernel in &profile.kernels {
            let share = kernel.share().expect("a bound");
            assert!(share.is_finite() && share > 0.0, "{kernel:?}");
        }
    }
}

#[test]
fn calls_by_steps_have_the_results_of_calls() {
    let lowered = matmul_and_max();
    let model = lowered.jit().expect("this machine");
    let mut context = Context::new(&model).expect("memory");
    let x: Vec<f32> = (0..7 * 64).map(|idx| (idx % 13) as f32 - 6.0).collect();
    let inputs = [TensorRef::new(&[7, 64], &x).expect("sized")];
    let expected: Vec<Vec<u8>> = {
        let outputs = context.run_views(&inputs).expect("in range");
        (0..2).map(|idx| outputs.get(idx).bytes().to_vec()).collect()
    };
    // A model without partitions has no steps: the policy is not called.
    let outputs = context.run_views_by_steps(&inputs, |_| panic!("no steps")).expect("in range");
    let got: Vec<Vec<u8>> = (0..2).map(|idx| outputs.get(idx).bytes().to_vec()).collect();
    assert_eq!(got, expected);
}

/// The bytes of all outputs.
fn outputs(context: &mut Context, inputs: &[Tensor]) -> Vec<Vec<u8>> {
    let refs: Vec<TensorRef<'_>> = inputs.iter().map(tensors::as_ref).collect();
    let outputs = context.run_views(&refs).expect("in range");
    (0..outputs.len()).map(|idx| outputs.get(idx).bytes().to_vec()).collect()
}

#[test]
fn rehearsals_divide_calls_and_have_their_bits() {
    const THREADS: [u32; 4] = [2, 8, 32, 64];
    for (name, network) in &networks::NETWORKS[..2] {
        let graph = network().unwrap_or_else(|error| panic!("{name}: {error}"));
        let options = CompileOptions::default().threads(64);
        let lowered = Pipeline::new(&graph).options(options).lower().expect("supported");
        let model = lowered.jit().expect("this machine");
        let mut context = Context::new(&model).expect("memory");
        for dims in models::bindings(&graph) {
            let inputs = models::inputs(&graph, &dims);
            let expected = outputs(&mut context, &inputs);
            for threads in THREADS {
                context.rehearse(threads);
                assert!(outputs(&mut context, &inputs) == expected, "{name} at {dims:?} on {threads}");
                let rounds = context.take_rounds();
                assert!(rounds.len() <= lowered.program.kernels.len(), "{name}: {} rounds", rounds.len());
                for round in &rounds {
                    let shares = round.parts_ns.iter().filter(|part| !part.is_empty()).count();
                    assert!((2..=threads as usize).contains(&shares), "{name}: {round:?}");
                    let ns: f64 = round.parts_ns.iter().flatten().sum();
                    assert!(
                        (ns / f64::from(threads)..=ns).contains(&round.longest_ns()),
                        "{name}: {round:?}"
                    );
                }
                assert!(context.take_rounds().is_empty(), "rounds are taken once");
                context.rehearse(0);
            }
        }
        let largest = models::bindings(&graph).pop().expect("sizes");
        let inputs = models::inputs(&graph, &largest);
        context.rehearse(8);
        outputs(&mut context, &inputs);
        assert!(!context.take_rounds().is_empty(), "{name} divides nothing at {largest:?}");
    }
}

#[test]
fn predictions_add_up() {
    let lowered = matmul_and_max();
    let profiler = Profiler::new(&lowered).expect("this machine");
    let scaling = profiler.scaling_at(&[100], 8).expect("in range");
    assert_eq!((&scaling.at[..], scaling.threads), ("N=100", 8));
    let kernels: Vec<usize> = scaling.kernels.iter().flat_map(|kernel| kernel.kernels.clone()).collect();
    assert_eq!(kernels, (0..lowered.program.kernels.len()).collect::<Vec<_>>(), "each kernel once, in order");

    let divided = Divided { ns: 10_000.0, barriers: 2, shares: 4, divided_ns: 8_000.0, longest_ns: 3_000.0 };
    assert_eq!(divided.serial_ns(), 2_000.0);
    assert_eq!(divided.predicted_ns(), 2_000.0 + 3_000.0 + 2.0 * 1250.0);
    assert_eq!(divided.imbalance(4), 1.5, "equal shares take 2,000 ns");
    assert_eq!(Divided { barriers: 0, ..divided }.imbalance(4), 1.0);
    assert_eq!(
        profiler.scaling_at(&[101], 8).expect_err("out of range").to_string(),
        "N = 101; N is declared 1..=100"
    );
}

#[test]
fn wrong_sizes_are_refused_by_name() {
    let lowered = matmul_and_max();
    let profiler = Profiler::new(&lowered).expect("this machine");
    let error = profiler.at(&[101]).expect_err("out of range");
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert_eq!(error.to_string(), "N = 101; N is declared 1..=100");
    let sizes = |pairs: &[(&str, i64)]| {
        let pairs: Vec<(String, i64)> = pairs.iter().map(|(name, size)| (name.to_string(), *size)).collect();
        profiler.dims(&pairs)
    };
    assert_eq!(sizes(&[("N", 5)]).expect("a symbol"), [5]);
    assert_eq!(sizes(&[]).expect_err("missing").to_string(), "N has no size");
    assert_eq!(sizes(&[("M", 5)]).expect_err("unknown").to_string(), "the model has no symbol M; it has N");
    assert!(profiler.at(&[]).is_err());
}

#[test]
fn bounds_are_the_longer_one_of_arithmetic_and_memory() {
    let machine = Machine {
        multiplications: 10.0,
        byte_multiplications: 40.0,
        bandwidths: vec![(1e3, 100.0), (1e5, 1.0)],
    };
    let demand = Demand { multiplications: 1e4, bytes: 1e3, ..Demand::default() };
    let bound = machine.bound(&demand);
    assert_eq!((bound.ns, bound.by), (1e3, BoundBy::Arithmetic));
    // Between the measured sizes the rate falls with the logarithm of the size.
    let bound = machine.bound(&Demand { bytes: 1e4, ..Demand::default() });
    assert!((bound.ns - 1e3).abs() < 1e-6 && bound.by == BoundBy::Memory, "{bound:?}");
    let bound = machine.bound(&Demand { bytes: 1e6, ..demand });
    assert_eq!((bound.ns, bound.by), (1e6, BoundBy::Memory));
    let bound = machine.bound(&Demand { byte_multiplications: 4e4, bytes: 1e3, ..Demand::default() });
    assert_eq!((bound.ns, bound.by), (1e3, BoundBy::Arithmetic));
}

/// The JSON of a page.
fn data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once(r#"id="data">"#).expect("data");
    let (data, _) = rest.split_once("</script>").expect("an end");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn pages_are_compared_with_earlier_pages() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/block.onnx");
    let dims = ["--dim", "N=1..4", "--dim", "S=1..8"];
    let report = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_symc"));
        command.args(["report", model]).args(dims).args(arguments);
        command.output().expect("symc runs")
    };

    let first = report(&["-o", &path("first.html"), "--profile", "N=2,S=3", "N=4,S=8", "--json"]);
    assert!(first.status.success(), "{first:?}");
    let line: serde_json::Value = serde_json::from_slice(&first.stdout).expect("one line");
    let sizes = line["profile"].as_array().expect("profiles");
    assert_eq!(sizes.iter().map(|size| &size["at"]).collect::<Vec<_>>(), ["N=2,S=3", "N=4,S=8"]);

    let second =
        report(&["-o", &path("second.html"), "--profile", "N=2,S=3", "--baseline", &path("first.html")]);
    assert!(second.status.success(), "{second:?}");
    let text = String::from_utf8(second.stdout).expect("UTF-8");
    assert!(text.contains("N=2,S=3: a call takes"), "{text}");
    let page = data(&std::fs::read_to_string(path("second.html")).expect("a page"));
    assert_eq!(page["profile"]["baseline"]["name"], "first.html");
    assert_eq!(page["profile"]["baseline"]["sizes"], *line.get("profile").expect("profiles"));

    // Files that are no pages with profiles.
    std::fs::write(path("text.html"), "no page").expect("a file");
    std::fs::write(path("damaged.html"), r#"<script type="application/json" id="data">{"a"</script>"#)
        .expect("a file");
    let odd = r#"<script type="application/json" id="data">{"profile": {"sizes": [{"at": 1}]}}</script>"#;
    std::fs::write(path("odd.html"), odd).expect("a file");
    assert!(report(&["-o", &path("plain.html")]).status.success());
    for (name, reason) in [
        ("text.html", "the file is not a report page"),
        ("damaged.html", "the data of the page is damaged"),
        ("odd.html", "the profiles of the page are damaged"),
        ("plain.html", "the page has no profiles"),
        ("missing.html", "No such file"),
    ] {
        let refused = report(&["-o", &path("third.html"), "--profile", "N=1,S=1", "--baseline", &path(name)]);
        let message = String::from_utf8(refused.stderr).expect("UTF-8");
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(message.contains(name) && message.contains(reason), "{message}");
    }
    assert!(!std::path::Path::new(&path("third.html")).exists());

    let outside = report(&["-o", &path("third.html"), "--profile", "N=5,S=1"]);
    let message = String::from_utf8(outside.stderr).expect("UTF-8");
    assert!(message.contains("--profile N=5,S=1: N = 5; N is declared 1..=4"), "{message}");
}
