//! Graphs are read as they were printed, and no text makes the reader panic.
#![no_main]

#[path = "../../compiler/tests/it/properties/checks.rs"]
#[allow(dead_code, reason = "each target runs one of the checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(why) = checks::text_is_read_as_printed(bytes) {
        panic!("{why}");
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        _ = symshape_compiler::graph::text::parse(text);
    }
});
