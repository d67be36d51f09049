//! Artefacts as others see them: a C program that links one, the symbols of an object, a shared object that is loaded,
//! and the JIT, which runs the same code.

use crate::models;
#[cfg(target_arch = "x86_64")]
use crate::tensors::as_ref;
use std::{
    path::Path,
    process::{Command, Output},
};
use symshape::Declaration;
use symshape_compiler::{
    emit,
    graph::Graph,
    pipeline::{self, Artifact, Lowered, Pipeline},
    scalar::ReduceOp,
    target::Target,
    tensor::Tensor,
};
#[cfg(target_os = "linux")]
use symshape_runtime::Prefault;
use symshape_runtime::{CallError, Context, DType, Model, OpenOptions, TensorRef};

/// `y[N, 4] = softmax(x) + x` and `total[N]`, the sums of the rows of `y`, for N in 1..=8.
fn blend() -> Graph {
    let build = || -> symshape_compiler::Result<Graph> {
        let mut g = Graph { name: "blend".into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(1, 8))?;
        let x = g.input("x", DType::F32, vec![n, 4.into()])?;
        let soft = g.softmax(x, 1)?;
        let y = g.add(soft, x)?;
        let total = g.reduce(ReduceOp::Sum, y, &[1], false)?;
        g.output("y", y)?;
        g.output("total", total)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

fn lowered() -> Lowered {
    Pipeline::new(&blend()).lower().expect("supported")
}

/// Compiles to a file in `folder`, with the header next to it.
fn compile(folder: &Path, artifact: Artifact) {
    let compiled = lowered().compile(&Target::host().unwrap(), artifact).expect("supported");
    match artifact {
        Artifact::Object => {
            std::fs::write(folder.join("blend.o"), compiled.object.into_bytes().unwrap()).unwrap()
        }
        Artifact::Archive => {
            let archive = emit::archive("blend", &compiled.object.into_bytes().unwrap()).unwrap();
            std::fs::write(folder.join("libblend.a"), archive).unwrap();
        }
        Artifact::Shared => emit::shared::shared(compiled.object, &[], &folder.join("blend.so")).unwrap(),
    }
    std::fs::write(folder.join("blend.h"), compiled.header).unwrap();
}

/// Runs a tool in `folder`; the tests need a C compiler and `nm`, as their users do.
fn tool(folder: &Path, name: &str, args: &[&str]) -> Output {
    let output = Command::new(name).current_dir(folder).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{name} is needed by this test: {error}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {args:?}: {}\n{text}", output.status);
    assert!(text.is_empty(), "{name} {args:?} complains:\n{text}");
    output
}

/// Links the C program with `library` in `folder`, and compares its output with the expected one.
fn check_c_program(folder: &Path, library: &str) {
    let main = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/main.c");
    let warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let args = [&warnings[..], &["-I.", main, library, "-o", "program"]].concat();
    tool(folder, "cc", &args);
    let output = tool(folder, "./program", &[]);
    let lines = [
        "N=1: 1.000/-5.0",
        "N=3: 1.000/-5.0 1.000/4.0 1.000/-1.0",
        "refused: x axis 0: N = 9, not in 1..=8 (N is declared 1..=8)",
    ];
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), lines);
}

#[test]
fn c_program_links_the_object() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), Artifact::Object);
    check_c_program(folder.path(), "blend.o");
}

#[test]
fn c_program_links_the_archive() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), Artifact::Archive);
    check_c_program(folder.path(), "libblend.a");
}

#[test]
fn header_serves_cxx() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), Artifact::Object);
    let args = [
        "-std=c++11",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-I.",
        "main.cc",
        "blend.o",
        "-o",
        "program",
    ];
    let main = "#include \"blend.h\"\nint main() { return blend_arena_max == BLEND_ARENA_MAX ? 0 : 1; }\n";
    std::fs::write(folder.path().join("main.cc"), main).unwrap();
    // Without a C++ compiler there is nothing to show.
    if Command::new("c++").arg("--version").output().is_ok() {
        tool(folder.path(), "c++", &args);
        tool(folder.path(), "./program", &[]);
    }
}

#[test]
fn object_imports_nothing() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), Artifact::Object);
    let output = tool(folder.path(), "nm", &["-u", "blend.o"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let exported = tool(folder.path(), "nm", &["-g", "--defined-only", "-j", "blend.o"]);
    let exported = String::from_utf8_lossy(&exported.stdout).into_owned();
    let mut names: Vec<&str> = exported.lines().collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "blend_arena_bytes",
            "blend_arena_max",
            "blend_check",
            "blend_model",
            "blend_output_shape",
            "blend_run"
        ]
    );
}

#[test]
fn driver_and_contract_are_small() {
    let mut g = Graph { name: "layers".into(), ..Graph::default() };
    let n = g.symbol("N", Declaration::range(1, 64)).unwrap();
    let mut x = g.input("x", DType::F32, vec![n, 64.into()]).unwrap();
    for _ in 0..3 {
        let weights = g.constant(Tensor::from_f32(vec![64, 64], &[0.1; 64 * 64]).unwrap()).unwrap();
        x = g.matmul(x, weights).unwrap();
        x = g.relu(x).unwrap();
    }
    g.output("y", x).unwrap();
    let lowered = Pipeline::new(&g).lower().expect("supported");
    let compiled = lowered.compile(&Target::host().unwrap(), Artifact::Object).expect("supported");
    let driver = compiled.summary.driver_bytes();
    assert!((500..10_000).contains(&driver), "{driver} bytes of driver, contract check and shape functions");
}

#[test]
fn shared_object_and_jit_agree_bit_for_bit_at_every_size() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), Artifact::Shared);
    let loaded = Model::open(folder.path().join("blend.so")).unwrap();
    let jit = pipeline::jit(&blend()).unwrap();
    assert_eq!(loaded.arena_max(), jit.arena_max());
    assert_eq!(loaded.name(), "blend");
    assert_eq!(loaded.outputs()[0].max_bytes(), 8 * 4 * 4);
    let (mut first, mut second) = (Context::new(&loaded).unwrap(), Context::new(&jit).unwrap());
    let x: Vec<f32> = (0..32).map(|idx| (idx as f32 * 0.7).sin() * 5.0).collect();
    let mut whole = Vec::new();
    for n in (1..=8).rev() {
        let inputs = [TensorRef::new(&[n, 4], &x[..4 * n]).unwrap()];
        let (a, b) = (first.run_views(&inputs).unwrap(), second.run_views(&inputs).unwrap());
        assert_eq!(a.get(0).bytes(), b.get(0).bytes());
        assert_eq!(a.get(1).shape(), [n]);
        // Rows don't depend on how many there are.
        if whole.is_empty() {
            whole = a.get(0).bytes().to_vec();
        }
        assert_eq!(a.get(0).bytes(), &whole[..16 * n]);
    }
}

/// `y[M, 72] = x[M, 50] * (v - w) + shift`, with two weights of more than a page each, and an input without axes.
fn heavy() -> Graph {
    let build = || -> symshape_compiler::Result<Graph> {
        let mut g = Graph { name: "heavy".into(), ..Graph::default() };
        let m = g.symbol("M", Declaration::range(1, 9))?;
        let x = g.input("x", DType::F32, vec![m.clone(), 50.into()])?;
        let shift = g.input("shift", DType::F32, Vec::new())?;
        let numbers = |by: f32| (0..50 * 72).map(|idx| (idx as f32 * by).sin()).collect::<Vec<f32>>();
        let mut weight = |by| g.constant(Tensor::from_f32(vec![50, 72], &numbers(by)).expect("a tensor"));
        let (first, second) = (weight(0.37)?, weight(0.73)?);
        let (left, right) = (g.matmul(x, first)?, g.matmul(x, second)?);
        let y = g.sub(left, right)?;
        let shift = g.broadcast_to(shift, &[m, 72.into()])?;
        let y = g.add(y, shift)?;
        g.output("y", y)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

#[test]
fn weights_are_where_the_code_looks_for_them_in_every_kind_of_file() {
    let folder = tempfile::tempdir().unwrap();
    let lowered = Pipeline::new(&heavy()).lower().expect("supported");
    let compiled = |artifact| lowered.compile(&Target::host().unwrap(), artifact).expect("supported").object;
    let (own, other) = (folder.path().join("own.so"), folder.path().join("other.so"));
    emit::shared::shared(compiled(Artifact::Shared), &[], &own).unwrap();
    let object = compiled(Artifact::Shared).into_bytes().unwrap();
    std::fs::write(folder.path().join("heavy.o"), object).unwrap();
    tool(folder.path(), "cc", &["-shared", "-nostdlib", "-o", "other.so", "heavy.o"]);
    let (jit, _) = emit::jit::jit(&lowered.program, &lowered.plan, &Default::default()).expect("supported");
    let x: Vec<f32> = (0..7 * 50).map(|idx| (idx as f32 * 0.11).cos()).collect();
    let [own, other, jit] = [Model::open(own).unwrap(), Model::open(other).unwrap(), jit].map(|model| {
        let mut context = Context::new(&model).unwrap();
        let inputs = [TensorRef::new(&[7, 50], &x).unwrap(), TensorRef::new(&[], &[0.5_f32]).unwrap()];
        let outputs = context.run_views(&inputs).unwrap();
        outputs.get(0).bytes().to_vec()
    });
    assert!(own.iter().any(|byte| *byte != 0));
    assert_eq!((&own, &other), (&jit, &jit));
}

/// The bits of the output of products of floats, in an artefact for these levels.
#[cfg(target_arch = "x86_64")]
fn products_at(levels: &str, folder: &Path) -> Vec<u8> {
    let target = Target::parse(None, Some(levels)).unwrap();
    let graph = models::MODELS[0].1().expect("a valid graph");
    let lowered = Pipeline::new(&graph).lower().expect("supported");
    let compiled = lowered.compile(&target, Artifact::Shared).expect("supported");
    let path = folder.join(format!("{levels}.so"));
    emit::shared::shared(compiled.object, &[], &path).unwrap();
    let mut context = Context::new(&Model::open(path).unwrap()).unwrap();
    let inputs = models::inputs(&graph, models::bindings(&graph).last().expect("sizes"));
    let views: Vec<TensorRef> = inputs.iter().map(as_ref).collect();
    context.run_views(&views).unwrap().get(0).bytes().to_vec()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn an_artefact_of_several_levels_uses_the_highest_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let highest = Target::host().unwrap().level.min(symshape_compiler::target::Level::X86V4);
    let outputs = ["x86-64-v4,x86-64-v2,x86-64-v3", highest.name(), "x86-64-v2"].map(|levels| {
        let target = Target::parse(None, Some(levels)).unwrap();
        let compiled = lowered().compile(&target, Artifact::Shared).expect("supported");
        let path = folder.path().join(format!("{levels}.so"));
        emit::shared::shared(compiled.object, &[], &path).unwrap();
        let mut context = Context::new(&Model::open(path).unwrap()).unwrap();
        let x: Vec<f32> = (0..20).map(|idx| (idx as f32 * 0.7).sin() * 5.0).collect();
        let mut bits = || {
            let outputs = context.run_views(&[TensorRef::new(&[5, 4], &x).unwrap()]).unwrap();
            outputs.get(0).bytes().to_vec()
        };
        assert_eq!(bits(), bits(), "the first call and others");
        (bits(), compiled.summary.code_bytes)
    });
    assert_eq!(outputs[0].0, outputs[1].0);
    assert!(outputs[0].1 > outputs[1].1 + outputs[2].1, "there is code for all");
}

/// Machines with AVX-512 may lack AVX-VNNI, so the place of its level does not tell which machines have it. The level
/// below has no fused multiply-add, and so other bits.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_artefact_uses_avx_vnni_where_the_machine_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let [chosen, below, above] = ["x86-64-v3-vnni,x86-64-v2", "x86-64-v2", "x86-64-v3"]
        .map(|levels| products_at(levels, folder.path()));
    assert_ne!(below, above);
    let has_it = is_x86_feature_detected!("avxvnni");
    assert!(chosen == if has_it { above } else { below }, "the machine has it: {has_it}");
}

#[test]
fn shared_objects_without_an_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), Artifact::Shared);
    let bytes = std::fs::read(folder.path().join("blend.so")).unwrap();
    let cut = folder.path().join("cut.so");
    let end = symshape_runtime::check_seal(&bytes).unwrap().last().unwrap().range.end;
    for len in [0, 1, 63, 64, 65, 500, end / 2, end - 1] {
        std::fs::write(&cut, &bytes[..len]).unwrap();
        let error = Model::open(&cut).map(|_| ()).unwrap_err().to_string();
        assert!(
            error.contains("it is truncated") || error.contains("it is not a shared object"),
            "{len}: {error}"
        );
    }

    // The seal is no part of the shared object, and its end is missing only to those who read it.
    for len in [end, bytes.len() - 1] {
        std::fs::write(&cut, &bytes[..len]).unwrap();
        assert!(Model::open(&cut).is_ok());
        let error = OpenOptions::new().verify(true).open(&cut).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("it has no seal"), "{len}: {error}");
    }
}

/// Bytes of a file's readable mappings in this process: all of them, and those whose pages are mapped.
#[cfg(target_os = "linux")]
fn mapped_and_resident_kb(path: &Path) -> (usize, usize) {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut sums = [0, 0];
    let mut is_own = false;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap();
        if !name.ends_with(':') {
            is_own = line.ends_with(path.to_str().unwrap()) && words.next().unwrap().starts_with('r');
        } else if let Some(sum) = ["Size:", "Rss:"].iter().position(|field| *field == name && is_own) {
            sums[sum] += words.next().unwrap().parse::<usize>().unwrap();
        }
    }
    (sums[0], sums[1])
}

#[test]
#[cfg(target_os = "linux")]
fn prefault_maps_every_page_before_the_first_call() {
    let mut g = Graph { name: "wide".into(), ..Graph::default() };
    let x = g.input("x", DType::F32, vec![1.into(), 1024.into()]).unwrap();
    let elems: Vec<f32> = (0..1024 * 2048).map(|idx| (idx as f32 * 0.37).sin()).collect();
    let weights = g.constant(Tensor::from_f32(vec![1024, 2048], &elems).unwrap()).unwrap();
    let y = g.matmul(x, weights).unwrap();
    g.output("y", y).unwrap();
    let lowered = Pipeline::new(&g).lower().expect("supported");

    let folder = tempfile::tempdir().unwrap();
    for prefault in [Prefault::Nothing, Prefault::Start, Prefault::Background, Prefault::All] {
        let path = folder.path().join(format!("{prefault:?}.so"));
        let object = lowered.compile(&Target::host().unwrap(), Artifact::Shared).expect("supported").object;
        emit::shared::shared(object, &[], &path).unwrap();
        let mut reports = Vec::new();
        let model = Model::open_with(&path, prefault, |done, total| reports.push((done, total))).unwrap();

        let (mapped, resident) = mapped_and_resident_kb(&path);
        assert!(mapped >= 8 << 10, "{mapped} KB");
        match prefault {
            Prefault::Start | Prefault::All => {
                assert_eq!(resident, mapped, "{prefault:?}");
                assert!(reports.is_sorted() && reports.iter().all(|report| report.1 == mapped << 10));
                assert_eq!(reports.last(), Some(&(mapped << 10, mapped << 10)));
            }
            _ => {
                assert!(resident < mapped / 2, "{prefault:?}: {resident} of {mapped} KB");
                assert_eq!(reports, []);
            }
        }
        let mut context = Context::new(&model).unwrap();
        let outputs = context.run_views(&[TensorRef::new(&[1, 1024], &elems[..1024]).unwrap()]).unwrap();
        assert!(outputs.get(0).elems::<f32>().unwrap().iter().any(|elem| *elem != 0.0));
    }
}

#[test]
fn errors_of_the_artefact_name_everything() {
    let model = pipeline::jit(&blend()).unwrap();
    let mut context = Context::new(&model).unwrap();
    let error = context.run_views(&[TensorRef::new(&[9, 4], &[0.0_f32; 36]).unwrap()]).unwrap_err();
    assert!(matches!(error, CallError::OutOfRange(_)));
    assert_eq!(error.to_string(), "`x` axis 0 gives N = 9; N is declared 1..=8");
    let error = context.run_views(&[TensorRef::new(&[2, 5], &[0.0_f32; 10]).unwrap()]).unwrap_err();
    assert!(matches!(error, CallError::Mismatch(_)));
    assert_eq!(error.to_string(), "`x` axis 1 is 5; 4 is expected (declared as 4)");
}

#[test]
fn a_model_outlives_whoever_made_it() {
    let mut context = Context::new(&pipeline::jit(&blend()).unwrap()).unwrap();
    let outputs = context.run_views(&[TensorRef::new(&[1, 4], &[0.0_f32; 4]).unwrap()]).unwrap();
    assert_eq!(outputs.get(0).elems::<f32>().unwrap(), [0.25; 4]);
}
