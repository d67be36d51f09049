//! Strips and epilogues whose loads have one address for groups of four or eight neighbouring elements.

use crate::{machine, parallel};

use machine::Machine;
use std::sync::atomic::AtomicUsize;
use symshape_compiler::{
    codegen,
    kernel::{Program, text},
};
use symshape_runtime::abi::Exec;

/// The largest number of rows.
const ROWS: usize = 5;

/// The numbers of elements in a row: parts of vectors, whole ones, and enough for several threads.
const WIDTHS: [usize; 8] = [8, 16, 24, 40, 48, 64, 72, 328];

fn address(group: usize, lane: usize) -> String {
    format!("{group}*(j//{group}) + {lane}")
}

/// `y[r, j] = x[r, address] + x[r, j]`. Columns of the result are adjacent, or a number of rows apart.
fn strips(width: usize, [group, lane]: [usize; 2], are_adjacent: bool) -> String {
    let target = if are_adjacent { format!("{width}*r + j") } else { "M*j + r".to_string() };
    format!(
        r#"program repeated {{
  symbol M = 1..{ROWS}
  workers 4
  @0 x: f32[{width}*M] input 0
  @1 y: f32[{width}*M] output 0
  input x[M, {width}] = @0
  output y[M, {width}] = @1
  kernel repeated {{
    for r in 0..M parallel {{
      strip j in 0..{width} {{
        %0 = load @0[{width}*r + {address}]
        %1 = load @0[{width}*r + j]
        %2 = add %0, %1
        store @1[{target}], %2
      }}
    }}
  }}
}}
"#,
        address = address(group, lane),
    )
}

/// `y[r, j] = x[r, 0] * 2 + bias[address]`.
fn epilogue(width: usize, [group, lane]: [usize; 2]) -> String {
    let numbers =
        |values: Vec<usize>| values.iter().map(|value| format!("{value}.0")).collect::<Vec<_>>().join(", ");
    format!(
        r#"program repeated {{
  symbol M = 1..{ROWS}
  @0 x: f32[M] input 0
  @1 w: f32[{width}] const [{width}] {twos}
  @2 y: f32[{width}*M] output 0
  @3 bias: f32[{width}] const [{width}] {bias}
  input x[M, 1] = @0
  output y[M, {width}] = @2
  kernel repeated {{
    contraction f32 {{
      m r in 0..M
      n j in 0..{width}
      k k in 0..1
      lhs @0[r + k]
      rhs @1[{width}*k + j]
      %0 = sum
      %1 = load @3[{address}]
      %2 = add %0, %1
      store @2[{width}*r + j], %2
    }}
  }}
}}
"#,
        twos = numbers(vec![2; width]),
        bias = numbers((0..width).collect()),
        address = address(group, lane),
    )
}

/// Whole numbers.
fn elements(count: usize) -> Vec<f32> {
    (0..count).map(|idx| (idx * 7 % 1013) as f32).collect()
}

fn groups() -> impl Iterator<Item = [usize; 2]> {
    [4, 8].into_iter().flat_map(|group| (0..group).map(move |lane| [group, lane]))
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Compares the result of both kinds of vectors, on one thread and on several, with the definition.
fn check(source: &str, x: &[f32], rows: usize, expected: &[f32]) {
    let parsed = || -> Program { text::parse(source).unwrap_or_else(|error| panic!("{error}")) };
    for machine in [Machine::compile(parsed(), false), Machine::on_tiles(parsed())] {
        let dims = [rows as i64];
        let alone = machine.run(&dims, &[bytes(x)]).expect("a run");
        assert_eq!(alone, [bytes(expected)], "{rows} rows\n{source}");
        let calls = AtomicUsize::new(0);
        let shared = machine.run_with(&dims, &[bytes(x)], &Exec { threads: 3, ..parallel::exec(&calls) });
        assert_eq!(shared, Ok(alone), "{rows} rows on three threads\n{source}");
    }
}

#[test]
fn strips_repeat_one_element_of_each_group() {
    for width in WIDTHS {
        for [group, lane] in groups() {
            for are_adjacent in [true, false] {
                let source = strips(width, [group, lane], are_adjacent);
                let program = text::parse(&source).unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(codegen::scalar_loops(&program), [], "{source}");
                for rows in [1, 2, ROWS] {
                    let x = elements(width * rows);
                    let at = |row: usize, column: usize| {
                        x[width * row + column / group * group + lane] + x[width * row + column]
                    };
                    let expected: Vec<f32> = if are_adjacent {
                        (0..width * rows).map(|idx| at(idx / width, idx % width)).collect()
                    } else {
                        (0..width * rows).map(|idx| at(idx % rows, idx / rows)).collect()
                    };
                    check(&source, &x, rows, &expected);
                }
            }
        }
    }
}

/// The last group has a part of its iterations at most sizes.
#[test]
fn strips_of_any_size_may_end_within_a_group() {
    let numbers: Vec<String> = (0..40).map(|number| format!("{number}.0")).collect();
    for [group, lane] in groups() {
        let source = format!(
            r#"program repeated {{
  symbol M = 1..40
  @0 x: f32[M] input 0
  @1 y: f32[M] output 0
  @2 numbers: f32[40] const [40] {numbers}
  input x[M] = @0
  output y[M] = @1
  kernel repeated {{
    strip j in 0..M {{
      %0 = load @2[{address}]
      %1 = load @0[j]
      %2 = add %0, %1
      store @1[j], %2
    }}
  }}
}}
"#,
            numbers = numbers.join(", "),
            address = address(group, lane),
        );
        for count in 1..=40 {
            let x = elements(count);
            let at = |idx: usize| (idx / group * group + lane) as f32 + x[idx];
            let expected: Vec<f32> = (0..count).map(at).collect();
            check(&source, &x, count, &expected);
        }
    }
}

/// The columns of a tile may be a part of a group.
#[test]
fn columns_of_contractions_share_elements_in_groups() {
    for width in [8, 24, 40] {
        for [group, lane] in groups() {
            let source = epilogue(width, [group, lane]);
            for rows in [1, ROWS] {
                let x = elements(rows);
                let at = |row: usize, column: usize| x[row] * 2.0 + (column / group * group + lane) as f32;
                let expected: Vec<f32> = (0..width * rows).map(|idx| at(idx / width, idx % width)).collect();
                check(&source, &x, rows, &expected);
            }
        }
    }
}
