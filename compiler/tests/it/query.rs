//! The largest dim for a memory budget: `symc query`, the runtime, and the C header agree with a search of all values.

use crate::cli::{BLOCK, json, refusal, shared, symc};

use serde_json::json as object;
use std::process::Command;
use symshape::{Declaration, Dim};
use symshape_compiler::{
    CompileOptions,
    graph::Graph,
    pipeline::{self, Artifact, Lowered, Pipeline},
    scalar::ReduceOp,
    target::Target,
};
use symshape_runtime::{DType, Model};

/// `h + sum(h)` for `h[rows, M] = a[rows, S] * b[S, M]`, where `rows` is a dim over N. `h` is in the arena.
fn sums(name: &str, rows: impl Fn(Dim) -> Dim) -> Graph {
    let build = || -> symshape_compiler::Result<Graph> {
        let mut g = Graph { name: name.into(), ..Graph::default() };
        let n = g.symbol("N", Declaration::range(1, 63))?;
        let s = g.symbol("S", Declaration::range(5, 64).step(8, 0))?;
        let m = g.symbol("M", Declaration::values([1, 5, 9]))?;
        let a = g.input("a", DType::F32, vec![rows(n), s.clone()])?;
        let b = g.input("b", DType::F32, vec![s, m])?;
        let h = g.matmul(a, b)?;
        let sum = g.reduce(ReduceOp::Sum, h, &[0], true)?;
        let y = g.add(h, sum)?;
        g.output("y", y)?;
        Ok(g)
    };
    build().expect("a valid graph")
}

/// A model whose arena grows with every symbol, and one whose arena shrinks as N grows.
fn graphs() -> [Graph; 2] {
    [sums("rising", |n| n), sums("falling", |n| Dim::from(64) - n)]
}

/// All allowed values of a symbol.
fn values(model: &Model, position: usize) -> Vec<i64> {
    let symbol = &model.symbols()[position];
    (0..symbol.count()).filter_map(|idx| symbol.nth(idx)).collect()
}

#[test]
fn only_rising_arenas_are_monotone() {
    let [rising, falling] = graphs().map(|graph| Pipeline::new(&graph).lower().expect("supported"));
    assert!(rising.plan.is_monotone);
    assert!(!falling.plan.is_monotone);

    let bytes_of = |lowered: Lowered| {
        let model = lowered.jit().expect("supported");
        [1, 32, 63].map(|n| model.arena_bytes(&[n, 64, 9]).expect("allowed"))
    };
    assert!(bytes_of(rising).is_sorted_by(|a, b| a < b));
    assert!(bytes_of(falling).is_sorted_by(|a, b| a > b));
}

#[test]
fn the_largest_dim_is_that_of_a_search() {
    for graph in graphs() {
        let model = pipeline::jit(&graph).expect("supported");
        for position in 0..model.symbols().len() {
            let candidates = values(&model, position);
            let symbol = model.symbols()[position].name();
            for others in [0, 1, 2] {
                let all = (0..model.symbols().len()).map(|idx| values(&model, idx)[others]);
                let mut dims: Vec<i64> = all.collect();
                let mut bytes_at = |value: i64| {
                    dims[position] = value;
                    model.arena_bytes(&dims).expect("allowed")
                };
                let bytes: Vec<usize> = candidates.iter().map(|value| bytes_at(*value)).collect();

                for budget in bytes.iter().flat_map(|bytes| [bytes.saturating_sub(1), *bytes, bytes + 1]) {
                    let fitting = candidates.iter().zip(&bytes).filter(|(_, bytes)| **bytes <= budget);
                    let expected = fitting.map(|(value, _)| *value).next_back();
                    let found = model.max_dim(symbol, budget, &dims).expect("allowed");
                    assert_eq!(found, expected, "{}: {symbol} for {budget} bytes at {dims:?}", graph.name);
                }
            }
        }
    }
}

/// Links `c/max_dim.c` with an object in `folder`, and runs it.
fn check_c_program(folder: &std::path::Path, graph: &Graph, what: &str) {
    let name = &graph.name;
    let output = Command::new("cc")
        .current_dir(folder)
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I."])
        .args([&format!("-DMODEL={name}"), "-include", &format!("{name}.h")])
        .arg(format!("-DN_SYMBOLS={}", graph.symbols.len()))
        .args([concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/max_dim.c"), "out.o", "-o", "program", "-lm"])
        .output()
        .expect("cc is needed by this test");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.is_empty(), "{name}, {what}: {text}");

    let status = Command::new(folder.join("program")).status().expect("the program starts");
    assert_eq!(status.code(), Some(0), "{name}, {what}");
}

#[test]
fn c_headers_find_the_largest_dim() {
    for graph in graphs() {
        let name = &graph.name;
        let folder = tempfile::tempdir().expect("a folder");
        let header = folder.path().join(format!("{name}.h"));

        let lowered = Pipeline::new(&graph).lower().expect("supported");
        let target = Target::host().expect("this machine");
        let compiled = lowered.compile(&target, Artifact::Object).expect("supported");
        std::fs::write(&header, compiled.header).expect("a header");
        std::fs::write(folder.path().join("out.o"), compiled.object.into_bytes().expect("an object"))
            .expect("a file");
        check_c_program(folder.path(), &graph, "object");

        let portable = Pipeline::new(&graph).options(CompileOptions::for_c_source()).lower();
        let source = portable.and_then(|lowered| lowered.source(&format!("{name}.h"))).expect("supported");
        std::fs::write(&header, source.header).expect("a header");
        std::fs::write(folder.path().join("source.c"), source.code).expect("a source");
        crate::foreign::compile(folder.path(), "cc", "source.c", &[]);
        check_c_program(folder.path(), &graph, "source");
    }
}

#[test]
fn query_prints_the_contract_and_sizes() {
    let folder = tempfile::tempdir().expect("a folder");
    let block = shared(folder.path());
    let contract = json(&["query", &block]).remove(0);
    assert_eq!(contract["symbols"][0]["name"], "N");
    assert_eq!(contract["symbols"][1]["declared"], "1..=9");
    assert_eq!(contract["inputs"][0]["shape"], object!(["N", "S", "64"]));
    assert!(contract["relations"].is_null(), "an artefact has no table of relations");
    assert!(contract["arena_max"].as_u64() > Some(0));

    let from_model = json(&["query", BLOCK, "--dim", "N=1..4", "--dim", "S=1..9"]).remove(0);
    assert!(from_model["relations"].is_array());
    assert_eq!(from_model["arena_max"], contract["arena_max"]);

    let largest = json(&["query", &block, "--at", "N=4,S=9"]).remove(0);
    assert_eq!(largest["arena_bytes"], contract["arena_max"]);
    assert_eq!(largest["outputs"][0]["shape"], object!([4, 9, 64]));

    let text = |args: &[&str]| String::from_utf8(symc(args).stdout).expect("UTF-8");
    assert!(text(&["query", &block]).starts_with("N in 1..=4\nS in 1..=9\ninput x: "));
    assert!(text(&["query", &block, "--at", "N=2,S=3"]).ends_with("[2, 3, 64]\n"));
}

#[test]
fn query_finds_the_largest_symbol_for_a_budget() {
    let folder = tempfile::tempdir().expect("a folder");
    let block = shared(folder.path());
    let bytes_at = |n: i64| {
        let sizes = json(&["query", &block, "--at", &format!("N={n},S=7")]).remove(0);
        sizes["arena_bytes"].as_u64().expect("a number")
    };
    let find = |bytes: u64| json(&["query", &block, "--bytes", &bytes.to_string(), "--fix", "S=7"]).remove(0);
    for n in 2..4 {
        let exact = find(bytes_at(n));
        assert_eq!(exact["max"], n);
        assert_eq!(exact["arena_bytes"], bytes_at(n));
        assert_eq!(find(bytes_at(n) - 1)["max"], n - 1);
        assert_eq!(find(bytes_at(n + 1) - 1)["max"], n);
    }
    assert_eq!(find(1 << 30)["dims"], object!({"N": 4, "S": 7}));

    let small = symc(&["query", &block, "--bytes", "1K", "--fix", "S=7"]);
    assert_eq!(small.status.code(), Some(1), "the answer is no");
    let needed = format!("no N fits in 1024 B: N=1,S=7, the smallest, needs {} B\n", bytes_at(1));
    assert_eq!(String::from_utf8_lossy(&small.stdout), needed);
}

#[test]
fn bad_queries_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let block = shared(folder.path());
    let message = |args: &[&str]| refusal(&[&["query", &block], args].concat());
    let hint =
        "symc: --bytes: N and S are free, and only one can be searched; set the others, as in --fix N=1";
    assert_eq!(message(&["--bytes", "1M"]), hint);
    let none = "symc: --bytes: --fix sets every symbol; leave out the one to search, or use --at";
    assert_eq!(message(&["--bytes", "1M", "--fix", "N=1,S=2"]), none);
    let unknown = "symc: --fix T=1: the model has no symbol T; it has N, S";
    assert_eq!(message(&["--bytes", "1M", "--fix", "T=1"]), unknown);
    let outside = "symc: --fix S=10: S = 10; S is declared 1..=9";
    assert_eq!(message(&["--bytes", "1M", "--fix", "S=10"]), outside);
    let budget = "symc: --bytes 64Q: expected a number of bytes, alone or with K, M, G or T, such as 64M";
    assert_eq!(message(&["--bytes", "64Q", "--fix", "S=1"]), budget);
    assert_eq!(message(&["--at", "N=1"]), "symc: --at N=1: S is missing");
}
