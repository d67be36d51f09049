//! Random graphs at random sizes: what is inferred is what the oracle computes, text is read as it was printed, and
//! optimised graphs compute the same. Every law of scalar operators is tried on a box of awkward values.

mod checks;
mod laws;

use proptest::prelude::*;

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
