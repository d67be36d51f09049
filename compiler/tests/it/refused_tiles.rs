//! Artefacts with code for tile registers in processes whose system refuses these: a seccomp filter answers the
//! request, in a child process, before the artefact is loaded. Machines without the registers request nothing, and the
//! same must hold.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

use std::{path::Path, process::Command};
use symshape::Declaration;
use symshape_compiler::{
    CompileOptions, emit,
    graph::Graph,
    pipeline::{Artifact, Pipeline},
    scalar::Precision,
    target::Target,
    tensor::Tensor,
};
use symshape_runtime::{DType, abi::Code};

/// `y[N, 40] = x[N, 40] w` for N in 1..=40.
fn dense() -> Graph {
    let build = || -> symshape_compiler::Result<Graph> {
        let mut g = Graph { name: "dense".into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(1, 40))?;
        let x = g.input("x", DType::F32, vec![n, 40.into()])?;
        let numbers: Vec<f32> = (0..1600).map(|idx| (idx * 5807 % 1000) as f32 / 700.0 - 0.7).collect();
        let w = g.constant(Tensor::from_f32(vec![40, 40], &numbers).expect("sized"))?;
        let y = g.matmul(x, w)?;
        g.output("y", y)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// Compiles the model into a file for the machine's own level, with or without additional code for tile registers.
fn compile(path: &Path, precision: Precision, tiles: bool, require_tiles: bool) {
    let host = Target::host().expect("this machine").level;
    let levels = if tiles { format!("{},x86-64-v4-amx", host.name()) } else { host.name().to_string() };
    let target = Target::parse(None, Some(&levels)).expect("known levels");
    let options = CompileOptions::for_target(&target).precision(precision).require_tiles(require_tiles);
    let lowered = Pipeline::new(&dense()).options(options).lower().expect("supported");
    let compiled = lowered.compile(&target, Artifact::Shared).expect("supported");
    emit::shared::shared(compiled.object, &[], path).expect("a file");
}

/// The output of the program: the call's return code, whether tile registers were used, and the bits of the output.
fn call(program: &Path, artefact: &Path, how: &str) -> (i32, i32, Vec<String>) {
    let output = Command::new(program).arg(artefact).args(["dense", how]).output().expect("it was built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{how}: {}: {errors}", output.status);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let first: Vec<i32> = lines
        .next()
        .expect("a first line")
        .split(' ')
        .map(|number| number.parse().expect("a number"))
        .collect();
    (first[0], first[1], lines.map(str::to_owned).collect())
}

#[test]
fn artefacts_do_without_tile_registers_where_the_system_refuses_them() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("refused");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/refused.c");
    let built = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", source, "-ldl", "-o"])
        .arg(&program)
        .status()
        .expect("a C compiler is needed by this test");
    assert!(built.success());
    let file = |name: &str| folder.path().join(name);
    let plain = file("plain.so");
    compile(&plain, Precision::Bf16x3, false, false);
    let (code, uses, expected) = call(&program, &plain, "allow");
    assert_eq!((code, uses), (0, 0), "no code for tile registers");
    for precision in [Precision::Bf16x3, Precision::Bf16] {
        let both = file(&format!("{precision}.so"));
        compile(&both, precision, true, false);
        let (code, uses, bits) = call(&program, &both, "refuse");
        assert_eq!((code, uses), (0, 0), "{precision}: refused");
        assert_eq!(bits, expected, "{precision}: kernels for f32 run");
        // Allowed, they run where there are any, to the precision that was asked for.
        let (code, uses, allowed) = call(&program, &both, "allow");
        assert_eq!(code, 0);
        assert!(
            uses == 1 || allowed == expected,
            "{precision}: without tile registers the bits are those of f32"
        );
        let number = |bits: &String| f32::from_bits(u32::from_str_radix(bits, 16).expect("bits"));
        // The magnitudes of the products of a sum add up to less than 8.
        let most = 8.0 * precision.max_product_error() as f32 + 1e-5;
        assert_eq!(allowed.len(), expected.len(), "{precision}");
        for (got, want) in allowed.iter().map(number).zip(expected.iter().map(number)) {
            assert!((got - want).abs() <= most, "{precision}: {got}, not {want}");
        }
        let alone = file(&format!("{precision}_alone.so"));
        compile(&alone, precision, true, true);
        let (code, uses, _) = call(&program, &alone, "refuse");
        assert_eq!((code, uses), (Code::NoTiles as i32, 0), "{precision}: no other kernels");
    }
}
