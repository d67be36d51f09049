//! The call contract in the artefact: the bindings and refusals of `check`.

use crate::machine;

use machine::{Machine, Refusal};
use symshape_compiler::{graph::Graph, pipeline};
use symshape_runtime::{Context, DType, MAX_AXES};

/// A program without kernels whose inputs have these shapes.
fn contract(declarations: &str, inputs: &[&str]) -> Machine {
    let mut source = format!("program contract {{\n{declarations}\n");
    for (idx, shape) in inputs.iter().enumerate() {
        let elems: Vec<String> = shape.split(',').map(|dim| format!("({})", dim.trim())).collect();
        source += &format!("@{idx} x{idx}: f32[{}] input {idx}\n", elems.join("*"));
    }
    for (idx, shape) in inputs.iter().enumerate() {
        source += &format!("input x{idx}[{shape}] = @{idx}\n");
    }
    Machine::new(&(source + "}\n"))
}

fn refused(machine: &Machine, shapes: &[Vec<i64>]) -> Refusal {
    machine.check(shapes).expect_err("a shape that breaks the contract")
}

#[test]
fn a_range_is_named_with_its_place() {
    let machine = contract("symbol N = 1..64", &["N, 3"]);
    assert_eq!(machine.check(&[vec![64, 3]]), Ok(vec![64]));
    for n in [0, 65, -1, i64::MIN, i64::MAX] {
        let refusal = refused(&machine, &[vec![n, 3]]);
        assert_eq!((refusal.code, refusal.place, refusal.numbers), (1, (0, 0), [n, 1, 64]));
        assert_eq!((refusal.symbol.as_str(), refusal.tensor.as_str()), ("N", "x0"));
        assert_eq!(refusal.why, "N is declared 1..=64");
    }
}

#[test]
fn a_fixed_dim_is_checked() {
    let machine = contract("symbol N = 1..64", &["N, 3"]);
    let refusal = refused(&machine, &[vec![2, 4]]);
    assert_eq!((refusal.code, refusal.place, refusal.numbers), (3, (0, 1), [4, 3, 3]));
    assert_eq!((refusal.symbol.as_str(), refusal.why.as_str()), ("3", "declared as 3"));
}

#[test]
fn steps_and_value_sets() {
    let machine = contract("symbol S = 8..512/8\nsymbol H = {1, 2, 12}", &["S", "H"]);
    assert_eq!(machine.check(&[vec![16], vec![12]]), Ok(vec![16, 12]));
    assert_eq!(refused(&machine, &[vec![20], vec![2]]).code, 2);
    assert_eq!(refused(&machine, &[vec![520], vec![2]]).code, 1);
    let refusal = refused(&machine, &[vec![16], vec![3]]);
    assert_eq!((refusal.code, refusal.place, refusal.symbol.as_str()), (2, (1, 0), "H"));
    assert_eq!(refusal.why, "H is declared {1, 2, 12}");
}

#[test]
fn two_places_must_agree() {
    let machine = contract("symbol N = 0..64", &["N", "2, N"]);
    assert_eq!(machine.check(&[vec![0], vec![2, 0]]), Ok(vec![0]));
    let refusal = refused(&machine, &[vec![4], vec![2, 5]]);
    assert_eq!((refusal.code, refusal.place, refusal.numbers), (3, (1, 1), [5, 4, 4]));
    assert_eq!((refusal.symbol.as_str(), refusal.tensor.as_str()), ("N", "x1"));
}

#[test]
fn derived_dims_are_solved_and_checked() {
    let machine = contract("symbol S = 1..100\nsymbol T = 0..100", &["2*S + 1", "S*T, T + S"]);
    assert_eq!(machine.check(&[vec![7], vec![12, 7]]), Ok(vec![3, 4]));
    let odd = refused(&machine, &[vec![8], vec![12, 7]]);
    assert_eq!((odd.code, odd.place, odd.symbol.as_str()), (3, (0, 0), "2*S + 1"));
    assert_eq!(refused(&machine, &[vec![7], vec![13, 7]]).code, 3);
    assert_eq!(refused(&machine, &[vec![1], vec![0, 7]]).code, 1);
}

#[test]
fn a_coefficient_of_zero_leaves_the_symbol_free() {
    let machine = contract("symbol N = 0..8\nsymbol S = 3..9", &["N", "N*S"]);
    assert_eq!(machine.check(&[vec![2], vec![10]]), Ok(vec![2, 5]));
    assert!(machine.check(&[vec![0], vec![0]]).is_ok_and(|dims| (3..=9).contains(&dims[1])));
    assert_eq!(refused(&machine, &[vec![0], vec![1]]).code, 3);
}

#[test]
fn facts_about_several_symbols() {
    let machine = contract(
        "symbol A = 1..64\nsymbol B = 1..64\nassume A <= B, \"window fits\"\nassume 4 divides A + B, \"lanes\"",
        &["A", "B"],
    );
    assert_eq!(machine.check(&[vec![3], vec![5]]), Ok(vec![3, 5]));
    let refusal = refused(&machine, &[vec![5], vec![3]]);
    assert_eq!((refusal.code, refusal.symbol.as_str(), refusal.why.as_str()), (4, "A <= B", "window fits"));
    assert_eq!(refusal.numbers[..2], [5, 3]);
    assert_eq!(refused(&machine, &[vec![3], vec![6]]).why, "lanes");
}

#[test]
fn symbols_that_must_be_equal_are_bound_each_by_its_own_axis() {
    let machine = contract(
        "symbol A = 1..64\nsymbol B = 1..64\nsymbol C = 1..64\nassume A == B, \"broadcast\"\nassume A == C, \"concat\"",
        &["A", "B, 2", "2*C + 1"],
    );
    assert_eq!(machine.check(&[vec![3], vec![3, 2], vec![7]]), Ok(vec![3, 3, 3]));
    assert_eq!(refused(&machine, &[vec![3], vec![5, 2], vec![7]]).why, "broadcast");
    assert_eq!(refused(&machine, &[vec![3], vec![3, 2], vec![9]]).why, "concat");
}

#[test]
fn what_equals_a_symbol_that_is_not_yet_bound_does_not_stand_for_it() {
    let declared = "symbol A = 1..64\nsymbol B = 1..64\nsymbol C = 0..64\nassume A == B, \"broadcast\"";
    for inputs in [["A", "A + C", "2*B"], ["B", "B + C", "2*A"]] {
        let machine = contract(declared, &inputs);
        assert_eq!(machine.check(&[vec![5], vec![7], vec![10]]), Ok(vec![5, 5, 2]));
        assert_eq!(refused(&machine, &[vec![5], vec![7], vec![12]]).why, "broadcast");
        assert_eq!(refused(&machine, &[vec![5], vec![4], vec![10]]).symbol, "C");
    }
}

#[test]
fn a_symbol_with_one_value_needs_no_input() {
    let machine = contract("symbol N = 5..5\nsymbol M = 1..2", &["M"]);
    assert_eq!(machine.check(&[vec![2]]), Ok(vec![5, 2]));
}

#[test]
fn run_looks_at_the_dims_again() {
    let machine = contract("symbol N = 1..64", &["N"]);
    assert_eq!(
        machine.run(&[65], &[vec![]]).map_err(|refusal| (refusal.code, refusal.symbol)),
        Err((1, "N".into()))
    );
    assert_eq!(machine.run_with(&[0], &[vec![]], std::ptr::null()), Err(1));
}

#[test]
fn tensors_of_calls_have_no_more_axes_than_can_be_lent() {
    let compiled = |rank: usize| {
        let mut g = Graph { name: "axes".into(), ..Graph::default() };
        let x = g.input("x", DType::F32, vec![1.into(); rank]).expect("a shape");
        let y = g.relu(x).expect("floats");
        g.output("y", y).expect("a name");
        pipeline::jit(&g)
    };
    let model = compiled(MAX_AXES).expect("as many as can be");
    assert_eq!(Context::new(&model).expect("memory").model().outputs().len(), 1);
    let error = compiled(MAX_AXES + 1).map(|_| ()).expect_err("one too many").to_string();
    assert!(error.contains("input `x` has 13 axes"), "{error}");
}
