//! Contractions in Einstein notation, imported from ONNX: the oracle and machine code against the definition of
//! `Einsum`.

use crate::{machine, models, protos};

use machine::Machine;
use protos::{float, node};
use std::collections::BTreeMap;
use symshape_compiler::{
    Result,
    graph::{Graph, eval::eval},
    import::{
        ImportOptions, Model, import, parse_dim,
        proto::{AttributeProto, GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto},
    },
    lower, schedule,
    tensor::Tensor,
};

/// A model of one `Einsum` whose inputs have these dims.
fn imported(equation: &str, shapes: &[&[&str]]) -> Result<Graph> {
    let names: Vec<String> = (0..shapes.len()).map(|k| format!("x{k}")).collect();
    let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut contraction = node("Einsum", &inputs, &["y"]);
    contraction.attribute.push(AttributeProto {
        name: "equation".into(),
        kind: 3,
        s: equation.to_string().into(),
        ..Default::default()
    });

    let graph = GraphProto {
        node: vec![contraction],
        input: inputs.iter().zip(shapes).map(|(name, dims)| float(name, dims)).collect(),
        output: vec![ValueInfoProto { name: "y".into(), ty: None }],
        ..Default::default()
    };
    let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: 21 }];
    let proto = ModelProto { ir_version: 10, graph: Some(graph), opset_import, ..Default::default() };

    let used =
        |symbol: &&str| shapes.iter().any(|dims| dims.contains(&symbol.split_once('=').expect("a range").0));
    let ranges = ["N=1..5", "M=1..4"].into_iter().filter(|range| used(range));
    let dims = ranges.map(|range| parse_dim(range).expect("a range")).collect();
    import(&Model::from(proto), &ImportOptions { dims, ..Default::default() })
}

/// The labels of a term for an input of this rank. The axes of `...` are digits, counted from the last.
fn labels(term: &str, rank: usize) -> Vec<char> {
    let Some((head, tail)) = term.split_once("...") else { return term.chars().collect() };
    let digits = (0..rank - head.len() - tail.len()).rev().map(|k| char::from(b'0' + k as u8));
    head.chars().chain(digits).chain(tail.chars()).collect()
}

/// The result of `equation` by its definition. The output is in explicit form.
fn by_definition(equation: &str, inputs: &[Tensor]) -> Tensor {
    let (left, right) = equation.split_once("->").expect("explicit form");
    let terms: Vec<Vec<char>> =
        left.split(',').zip(inputs).map(|(term, input)| labels(term, input.shape().len())).collect();

    let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
    for (term, input) in terms.iter().zip(inputs) {
        for (label, size) in term.iter().zip(input.shape()) {
            let known = sizes.entry(*label).or_insert(1);
            *known = if *known == 1 { *size } else { *known };
        }
    }

    let dots = sizes.keys().filter(|label| label.is_ascii_digit()).count();
    let out = labels(right, right.replace("...", "").len() + dots);
    let shape: Vec<usize> = out.iter().map(|label| sizes[label]).collect();
    let mut sums = vec![0.0; shape.iter().product()];

    for combination in 0..sizes.values().product() {
        let mut left = combination;
        let mut at = BTreeMap::new();
        for (label, size) in &sizes {
            at.insert(*label, left % size);
            left /= size;
        }

        let flat = |labels: &[char], shape: &[usize]| {
            // An axis of size 1 has the same element for each index of its label.
            let axes = labels.iter().zip(shape);
            axes.fold(0, |flat, (label, size)| flat * size + if *size == 1 { 0 } else { at[label] })
        };
        let factors = terms.iter().zip(inputs).map(|(term, x)| x.get(flat(term, x.shape())).as_f64());
        sums[flat(&out, &shape)] += factors.product::<f64>();
    }

    let sums: Vec<f32> = sums.into_iter().map(|sum| sum as f32).collect();
    Tensor::from_f32(shape, &sums).expect("as many as the shape")
}

fn is_close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 2e-5 * (1.0 + b.abs())
}

/// Compares the model with the definition of `explicit` at the edges and in the middle of all ranges.
#[track_caller]
fn computes(equation: &str, explicit: &str, shapes: &[&[&str]]) {
    let graph = imported(equation, shapes).unwrap_or_else(|error| panic!("{equation}: {error}"));
    let mut program = lower::lower(&graph).unwrap_or_else(|error| panic!("{equation}: {error}"));
    schedule::schedule(&mut program).unwrap_or_else(|error| panic!("{equation}: {error}"));
    let machine = Machine::compile(program, false);

    for dims in models::bindings(&graph) {
        let inputs = models::inputs(&graph, &dims);
        let expected = by_definition(explicit, &inputs);
        let y =
            eval(&graph, &inputs).unwrap_or_else(|error| panic!("{equation} at {dims:?}: {error}")).remove(0);
        assert_eq!(y.shape(), expected.shape(), "{equation} at {dims:?}");

        let raw: Vec<Vec<u8>> = inputs.iter().map(|input| input.bytes().to_vec()).collect();
        let results = machine.run(&dims, &raw);
        let bytes = results.unwrap_or_else(|refusal| panic!("{equation} at {dims:?}: {refusal:?}")).remove(0);
        assert_eq!(bytes.len(), 4 * expected.elems(), "{equation} at {dims:?}");
        for (k, chunk) in bytes.chunks(4).enumerate() {
            let want = expected.get(k).as_f64();
            let oracle = y.get(k).as_f64();
            let machine = f64::from(f32::from_le_bytes(chunk.try_into().expect("4 bytes")));
            assert!(
                is_close(oracle, want),
                "{equation} at {dims:?} [{k}]: the oracle has {oracle}, not {want}"
            );
            assert!(
                is_close(machine, want),
                "{equation} at {dims:?} [{k}]: machine code has {machine}, not {want}"
            );
        }
    }
}

#[test]
fn einsum_ellipsis_of_two_operands() {
    for (equation, shapes) in [
        ("...k,kj->...j", [&["N", "2", "M"][..], &["M", "3"]]),
        ("...k,kj->...j", [&["M"], &["M", "3"]]),
        ("...ij,...jk->...ik", [&["2", "N", "M", "3"], &["2", "N", "3", "4"]]),
        ("b...k,kj->b...j", [&["N", "2", "3", "4"], &["4", "M"]]),
        ("i...,...j->...ij", [&["2", "N", "M"], &["N", "M", "3"]]),
        ("...,...->...", [&["N", "M"], &["N", "M"]]),
        ("...i,...i->i", [&["N", "M", "3"], &["N", "M", "3"]]),
        ("...i,...j->...", [&["N", "3"], &["N", "M"]]),
        ("A...K,K...->A...", [&["2", "N", "3"], &["3", "N"]]),
    ] {
        computes(equation, equation, &shapes);
    }
}

#[test]
fn einsum_ellipsis_broadcasts() {
    for (equation, shapes) in [
        ("...ij,...jk->...ik", [&["1", "N", "2", "3"][..], &["M", "1", "3", "2"]]),
        ("...ij,...jk->...ik", [&["N", "2", "3"], &["M", "N", "3", "2"]]),
        ("...ij,...jk->...ik", [&["2", "3"], &["M", "N", "3", "2"]]),
        ("...i,...i->...", [&["N", "1", "3"], &["M", "3"]]),
        ("...i,...i->i", [&["1", "3"], &["N", "3"]]),
        ("...i,...i->...", [&["N", "1"], &["N", "3"]]),
    ] {
        computes(equation, equation, &shapes);
    }
}

#[test]
fn einsum_ellipsis_of_one_and_three_operands() {
    computes("...ii->...i", "...ii->...i", &[&["M", "N", "N"]]);
    computes("i...i->...", "i...i->...", &[&["N", "M", "2", "N"]]);
    computes("...ij->...ji", "...ij->...ji", &[&["2", "N", "M"]]);
    computes("...->", "...->", &[&["2", "N", "M"]]);
    computes("a...,...b,bc->a...c", "a...,...b,bc->a...c", &[&["2", "N"], &["N", "M"], &["M", "3"]]);
    computes("...i,...i,...i->...", "...i,...i,...i->...", &[&["1", "3"], &["N", "3"], &["M", "1", "1"]]);
    computes("i,i,i->", "i,i,i->", &[&["1"], &["N"], &["1"]]);
}

#[test]
fn einsum_without_an_arrow_puts_the_ellipsis_first() {
    computes("...k,kj", "...k,kj->...j", &[&["2", "N", "3"], &["3", "M"]]);
    computes("b...,Ba...", "b...,Ba...->...Bab", &[&["2", "N"], &["3", "M", "N"]]);
    computes("i...i", "i...i->...", &[&["N", "M", "N"]]);
}

#[test]
fn einsum_without_enough_letters_is_refused() {
    let refused = |equation: &str, shapes: &[&[&str]]| {
        imported(equation, shapes).expect_err("the equation is bad").to_string()
    };
    let named: String = ('a'..='z').collect();
    let others: String = ('A'..='Y').collect();
    let equation = format!("{named},{others}...->");
    let ones = vec!["1"; 26];
    let graph = imported(&equation, &[&ones, &ones]).expect("one letter is left");
    assert!(graph.shape(graph.outputs[0].1).is_empty());

    let more = vec!["1"; 27];
    assert_eq!(
        refused(&equation, &[&ones, &more]),
        format!(
            "node `the Einsum`: unsupported: `{equation}` with 2 axes for `...`: labels are letters, and it leaves 1 of the 52 letters \
             unused; name fewer axes"
        )
    );
    assert_eq!(
        refused("i1->i", &[&["N", "M"]]),
        "node `the Einsum`: `1` in the term `i1`: labels are letters, and `...` occurs once in a term"
    );
    assert_eq!(
        refused("...i...->i", &[&["N", "M"]]),
        "node `the Einsum`: `.` in the term `...i...`: labels are letters, and `...` occurs once in a term"
    );
    assert_eq!(
        refused("...ijk->i", &[&["N", "M"]]),
        "node `the Einsum`: the term `...ijk` does not fit an input with 2 axes"
    );
}

#[test]
fn einsum_diagonals_need_equal_sizes() {
    for shape in [["3", "1"], ["1", "3"]] {
        let error = imported("ii->i", &[&shape]).expect_err("no diagonal").to_string();
        assert!(error.contains("axis 1, which repeats the label `i`"), "{error}");
    }
}
