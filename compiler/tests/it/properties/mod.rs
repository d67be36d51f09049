//! Properties of random graphs at random sizes: inference agrees with the oracle, printing and parsing a text keeps
//! it, and optimisation keeps the results. Every law of scalar operators is checked on a set of special values.

mod checks;
mod laws;

use crate::random_cases;
use checks::{Check, Outcome};
use symshape_compiler::{graph::text, tensor::Tensor};

/// Checks a property of random graphs, most of which must allow the check.
fn check_random(property: fn(&[u8]) -> Check) {
    // Enough bytes for a graph of all steps.
    random_cases::check_random(400, 200, 300, |bytes| Ok(property(bytes)? == Outcome::Compared));
}

#[test]
fn inference_agrees_with_evaluation() {
    check_random(checks::inferred_is_computed);
}

#[test]
fn printed_text_is_parsed_to_the_same_text() {
    check_random(checks::text_is_read_as_printed);
}

#[test]
fn optimisation_keeps_the_results() {
    check_random(checks::optimised_computes_the_same);
}

/// When views are composed, `A <= M0 <= 2` becomes `A <= 2`, which a call violates before `M0` is bound.
#[test]
fn sizes_that_contradict_data_dependent_sizes_are_refused() {
    let graph = text::parse(
        "graph g {
          symbol A = {1, 3, 8}
          data_dependent M0
          require A <= M0, \"element $2 of an axis of size M0\"
          input x: f32[2, A]
          input m: i64[]
          %0 = bind M0 from [0] to [2] m    ; i64[] = M0
          %1 = view [M0, A] [$0, $1] x      ; f32[M0, A]
          %2 = view [A, A] [$0, $1] %1      ; f32[A, A]
          %3 = neg %2                       ; f32[A, A]
          output y = %3
        }",
    )
    .expect("a graph");
    for (a, m) in [(1, 1), (1, 2), (1, 0), (3, 2), (3, 11), (1, 11)] {
        let x: Vec<f32> = (0..2 * a).map(|k| k as f32).collect();
        let x = Tensor::from_f32(vec![2, a], &x).expect("sized");
        let m = Tensor::from_i64(vec![], &[m]).expect("sized");
        checks::computes_the_same(&graph, &[x, m]).expect("the same");
    }
}
