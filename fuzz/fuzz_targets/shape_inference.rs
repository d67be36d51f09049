//! Graphs with symbolic dims: inferred shapes and contents, at a binding, against the oracle's concrete ones.
#![no_main]

#[path = "../../compiler/tests/it/properties/checks.rs"]
#[allow(dead_code, reason = "each target runs one of the checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(why) = checks::inferred_is_computed(bytes) {
        panic!("{why}");
    }
});
