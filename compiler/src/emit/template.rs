//! Texts of files with gaps in them, which stand for the model's name and what else a file is about.
//!
//! All gaps are filled in one pass over the text: what fills one is never searched for others, whatever a model is
//! called.

/// What stands for the model's name in the texts of C files and Rust modules.
const PREFIX: &str = "PREFIX";

/// What stands for it in capitals.
const UPPER: &str = "UPPER";

/// The text with each gap filled by what is beside it.
pub(super) fn filled(text: &str, gaps: &[(&str, &str)]) -> String {
    let next = |rest: &str| {
        let found = gaps.iter().filter_map(|(gap, filling)| Some((rest.find(gap)?, gap.len(), *filling)));
        found.min_by_key(|(at, _, _)| *at)
    };
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((at, len, filling)) = next(rest) {
        out.push_str(&rest[..at]);
        out.push_str(filling);
        rest = &rest[at + len..];
    }
    out + rest
}

/// The text of the model with that name.
pub(super) fn named(text: &str, name: &str) -> String {
    filled(text, &[(PREFIX, name), (UPPER, &name.to_uppercase())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fills_a_gap_is_no_gap() {
        assert_eq!(named("UPPER PREFIX.", "an_UPPER_PREFIX"), "AN_UPPER_PREFIX an_UPPER_PREFIX.");
        assert_eq!(filled("a{x}b{y}{x}", &[("{x}", "{y}"), ("{y}", "{x}")]), "a{y}b{x}{y}");
    }
}
