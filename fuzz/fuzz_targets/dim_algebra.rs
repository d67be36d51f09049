//! Everything that the symbolic engine says about random terms, against brute force.
//!
//! The cases and their checks are those of symshape/tests/it/oracle.rs; here the fuzzer picks the bytes.

#![no_main]

#[path = "../../symshape/tests/it/cases.rs"]
mod cases;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(case) = cases::Case::read(&mut cases::Source::new(bytes)) {
        case.check();
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(dim) = text.parse::<symshape::Dim>() {
            assert_eq!(dim.to_string().parse::<symshape::Dim>().expect("what is printed parses"), dim);
        }
        let _ = symshape::query::answer_line(text);
    }
});
