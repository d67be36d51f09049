//! Random graphs at random sizes: what is inferred is what the oracle computes, text is read as it was printed, and
//! optimised graphs compute the same. Every law of scalar operators is tried on a box of awkward values.

mod checks;
mod laws;

use proptest::prelude::*;
use symshape_compiler::{graph::text, tensor::Tensor};

/// Enough bytes for a graph of all steps.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..200)
}

fn passes(check: checks::Check) -> Result<(), TestCaseError> {
    check.map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn inferred_is_computed(bytes in bytes()) {
        passes(checks::inferred_is_computed(&bytes))?;
    }

    #[test]
    fn text_is_read_as_printed(bytes in bytes()) {
        passes(checks::text_is_read_as_printed(&bytes))?;
    }

    #[test]
    fn optimised_computes_the_same(bytes in bytes()) {
        passes(checks::optimised_computes_the_same(&bytes))?;
    }
}

/// Where views are read through each other, `A <= M0 <= 2` becomes `A <= 2`, which a call breaks before `M0` is found.
#[test]
fn sizes_that_contradict_what_is_found_are_refused() {
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
