//! Optimised graphs against the oracle on what they were before.
#![no_main]

#[path = "../../compiler/tests/it/properties/checks.rs"]
#[allow(dead_code, reason = "each target runs one of the checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(why) = checks::optimised_computes_the_same(bytes) {
        panic!("{why}");
    }
});
