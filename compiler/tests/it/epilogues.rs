//! Contractions run in their microkernels, whatever their epilogue is, and the list of scalar loops finds the others.

use crate::{compiled::assert_same, machine::Machine};

use symshape_compiler::{
    codegen::{self, ScalarLoop},
    graph::{self, Graph},
    kernel::Program,
    pipeline::{Lowered, Pipeline},
    target::{Placement, Target},
};

/// The product of the input `x` and a constant, as `%0`, followed by these lines.
fn product(symbols: &str, inputs: &str, rest: &str) -> String {
    format!(
        "graph product {{
  symbol N = 1..70
  {symbols}
  input x: f32[N, 24]
  {inputs}
  %9 = const f32[24, 44] random 1
  %0 = contraction f32 [mk, kn -> mn] x, %9
  {rest}
}}"
    )
}

/// Epilogues that have no vector form, at least not as part of a contraction, by name.
fn graphs() -> Vec<(&'static str, String)> {
    let table = "%1 = const f32[5, 44] random 2";
    vec![
        (
            "rows of a table",
            product(
                "",
                "input ids: i64[N]",
                &format!(
                    "{table}\n %2 = gather [N, 44] [@1[$0], $1] %1, ids\n %3 = add %0, %2\n output y = %3"
                ),
            ),
        ),
        (
            "rows of a table, and more operations",
            product(
                "",
                "input ids: i32[N]",
                &format!(
                    "{table}\n %2 = gather [N, 44] [@1[$0], $1] %1, ids\n %3 = add %0, %2\n %4 = tanh %3
                    %5 = reduce sum [1] %4\n output y = %4\n output z = %5"
                ),
            ),
        ),
        (
            "an element of a table for each element",
            product(
                "",
                "input ids: i64[N, 44]",
                "%1 = const f32[5] random 2\n %2 = gather [N, 44] [@1[$0, $1]] %1, ids\n %3 = mul %0, %2
                output y = %3",
            ),
        ),
        (
            "columns of a table",
            product(
                "",
                "input r: f32[N, 5]\n input ids: i64[44]",
                "%2 = gather [N, 44] [$0, @1[$1]] r, ids\n %3 = add %0, %2\n output y = %3",
            ),
        ),
        (
            "an address that is not linear",
            product(
                "",
                "input r: f32[N, 64]",
                "%2 = view [N, 44] [$0, ($1 + 4)%8*7 + ($1 + 4)//8] r\n %3 = add %0, %2\n output y = %3",
            ),
        ),
        (
            "64-bit integers",
            product(
                "",
                "input c: i64[N, 44]\n input r: f32[N, 44]",
                "%1 = map c, %0, r {
                  r3 = const i64 1
                  r4 = eq r0, r3
                  r5 = select r4, r1, r2
                  yield r5
                }\n output y = %1",
            ),
        ),
        (
            "64-bit integers of a row",
            product(
                "",
                "input c: i64[N]\n input r: f32[N, 44]",
                "%1 = view [N, 44] [$0] c
                %2 = map %1, %0, r {
                  r3 = const i64 1
                  r4 = eq r0, r3
                  r5 = select r4, r1, r2
                  yield r5
                }\n output y = %2",
            ),
        ),
        (
            "the remainder of an index",
            product(
                "",
                "",
                "%1 = index i64[N, 44] $0 + $1
                %2 = map %1, %0 {
                  r2 = const i64 3
                  r3 = mod r0, r2
                  r4 = const i64 0
                  r5 = eq r3, r4
                  r6 = const f32 0.5
                  r7 = select r5, r1, r6
                  yield r7
                }\n output y = %2",
            ),
        ),
        ("doubles", product("", "input r: f64[N, 44]", "%1 = cast f32 r\n %2 = add %0, %1\n output y = %2")),
        ("a result of doubles", product("", "", "%1 = cast f64 %0\n output y = %1")),
        (
            "half precision",
            product("", "input r: f16[N, 44]", "%1 = cast f32 r\n %2 = add %0, %1\n output y = %2"),
        ),
        (
            "a function without a vector form",
            product(
                "",
                "",
                "%1 = map %0 {
                  r1 = cast f64 r0
                  r2 = const f64 0.75
                  r3 = rem r1, r2
                  r4 = cast f32 r3
                  yield r4
                }\n output y = %1",
            ),
        ),
        ("attention after a past", causal()),
        ("bytes", bytes()),
    ]
}

/// Attention to all positions up to the own one, after `P` positions of the past.
fn causal() -> String {
    "graph causal {
  symbol B = 1..3
  symbol S = 1..60
  symbol P = 0..50
  input q: f32[B, S, 16]
  input k: f32[B, P + S, 16]
  %0 = contraction f32 [bmk, bnk -> bmn] q, k
  %1 = index i64[B, S, P + S] $1 - $2
  %2 = index i64[B, S, P + S] P
  %3 = map %0, %1, %2 {
    r3 = add r1, r2
    r4 = const i64 0
    r5 = ge r3, r4
    r6 = const f32 -10.0
    r7 = select r5, r0, r6
    yield r7
  }
  output y = %3
}"
    .to_string()
}

/// Products of bytes and a row of a table.
fn bytes() -> String {
    "graph bytes {
  symbol N = 1..70
  input x: u8[N, 32]
  input ids: i64[N]
  %0 = const i8[32, 48] random 1
  %1 = contraction i32 [mk, kn -> mn] x, %0
  %2 = cast f32 %1
  %3 = const f32[5, 48] random 2
  %4 = gather [N, 48] [@1[$0], $1] %3, ids
  %5 = add %2, %4
  output y = %5
}"
    .to_string()
}

fn lowered(graph: &Graph) -> Lowered {
    Pipeline::new(graph).lower().unwrap_or_else(|error| panic!("{error}"))
}

/// The plans of the contractions at a level.
fn tile_plans(program: &Program, level: &str) -> String {
    let target = Target::parse(Some("x86_64-unknown-linux-gnu"), Some(level)).expect("a target");
    let isa = target.isa(Placement::Object).expect("an ISA");
    codegen::tile_plans(program, target.level, &*isa)
}

#[test]
fn contractions_run_in_their_microkernels() {
    for (name, text) in graphs() {
        let graph = graph::text::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let Lowered { program, plan, .. } = lowered(&graph);
        for level in ["x86-64-v3", "x86-64-v4"] {
            let plans = tile_plans(&program, level);
            assert!(plans.starts_with("m "), "{name} has no contraction:\n{program}");
            assert!(!plans.contains("scalar\n"), "{name} at {level}:\n{plans}{program}");
        }
        let is_contraction = |found: &ScalarLoop| found.form == "contraction";
        assert!(!codegen::scalar_loops(&program).iter().any(is_contraction), "{name}");

        for scalar in [true, false] {
            let machine = Machine::assemble(program.clone(), &plan, scalar);
            let machine = machine.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_same(name, &graph, &machine);
        }
    }
}

/// The reasons of the scalar loops of a graph.
fn scalar_loops(text: &str) -> Vec<(&'static str, String)> {
    let graph = graph::text::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let found = codegen::scalar_loops(&lowered(&graph).program);
    found.into_iter().map(|found| (found.form, found.reason)).collect()
}

#[test]
fn rows_of_tables_and_masks_of_positions_are_vectors() {
    for (name, text) in graphs() {
        if name.starts_with("rows of a table")
            || ["attention after a past", "bytes", "64-bit integers of a row"].contains(&name)
        {
            assert_eq!(scalar_loops(&text), [], "{name}");
        }
    }
}

#[test]
fn hot_scalar_loops_are_listed_with_the_reason() {
    let doubles = "graph doubles {
  symbol N = 1..70
  input x: f64[N, 24]
  %0 = const f64[24, 40] random 1
  %1 = contraction f64 [mk, kn -> mn] x, %0
  output y = %1
}";
    assert_eq!(scalar_loops(doubles), []);
    assert_eq!(
        scalar_loops(&doubles.replace("f64", "u64")),
        [("contraction", "it multiplies u64".to_string())]
    );

    let (_, remainder) = graphs().into_iter().find(|(name, _)| name.starts_with("a function")).expect("it");
    assert_eq!(scalar_loops(&remainder), [("strip", "`rem` of f64 has no vector form".to_string())]);

    let vectors = product("", "", "%1 = tanh %0\n output y = %1");
    assert_eq!(scalar_loops(&vectors), []);
}
