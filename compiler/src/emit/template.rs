//! Templates of generated files, with placeholders for the model's name and other content.
//!
//! All placeholders are filled in one pass over the text. A filling is never searched for placeholders, so a model may
//! have any name.

/// Placeholder for the model's name in C files and Rust modules.
const PREFIX: &str = "PREFIX";

/// Placeholder for the model's name in capitals.
const UPPER: &str = "UPPER";

/// The text with each placeholder replaced; `gaps` are pairs of a placeholder and its filling.
pub(super) fn filled(text: &str, gaps: &[(&str, &str)]) -> String {
    let next = |rest: &str| {
        let found = gaps.iter().filter_map(|(gap, filling)| Some((rest.find(gap)?, gap.len(), *filling)));
        found.min_by_key(|(at, _, _)| *at)
    };

    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, len, filling)) = next(rest) {
        out.push_str(&rest[..at]);
        out.push_str(filling);
        rest = &rest[at + len..];
    }

    out + rest
}

/// The text with the model's name filled in.
pub(super) fn named(text: &str, name: &str) -> String {
    filled(text, &[(PREFIX, name), (UPPER, &name.to_uppercase())])
}

/// Text that can neither end a comment nor start another line.
pub(super) fn comment(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.replace("*/", "* /").replace("/*", "/ *").chars().map(plain).collect()
}

/// A string literal of C.
pub(super) fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => out.extend(['\\', byte as char]),
            // An octal escape of three digits ends after them, unlike a hexadecimal one. `??` may begin a trigraph.
            0..32 | 127.. | b'?' => out.push_str(&format!("\\{byte:03o}")),
            _ => out.push(byte as char),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fillings_are_not_searched_for_placeholders() {
        assert_eq!(named("UPPER PREFIX.", "an_UPPER_PREFIX"), "AN_UPPER_PREFIX an_UPPER_PREFIX.");
        assert_eq!(filled("a{x}b{y}{x}", &[("{x}", "{y}"), ("{y}", "{x}")]), "a{y}b{x}{y}");
    }
}
