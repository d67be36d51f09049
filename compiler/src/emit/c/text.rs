//! Generated C as text: the identifiers in it and the helpers that it calls.

use std::collections::BTreeSet;

/// Small functions that the generated code may call, separated by empty lines.
const HELPERS: &str = include_str!("helpers.c");

/// Functions of `math.h` that generated code may call. Those for single precision end with an `f`.
const MATH: [&str; 28] = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf",
    "exp", "expm1", "fabs", "floor", "fmod", "log", "log1p", "pow", "rint", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc", "signbit",
];

/// The helpers that `body` calls, directly or through other helpers, in the order of their file.
pub(super) fn helpers_for(body: &str) -> String {
    let blocks: Vec<&str> = HELPERS.trim_end().split("\n\n").collect();
    let mut wanted: BTreeSet<&str> = identifiers(body).collect();
    let mut chosen = vec![false; blocks.len()];
    // A helper calls only earlier ones.
    for (idx, block) in blocks.iter().enumerate().rev() {
        if wanted.contains(defined(block)) {
            chosen[idx] = true;
            wanted.extend(identifiers(block));
        }
    }
    blocks.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(block, _)| format!("{block}\n\n")).collect()
}

/// The name of the function in a block of helpers.
fn defined(block: &str) -> &str {
    let head = block.lines().find(|line| line.starts_with("static")).unwrap_or_default();
    let before = head.split('(').next().unwrap_or_default();
    before.rsplit([' ', '*']).next().unwrap_or_default()
}

/// Whether `name` is a function or macro of `math.h` that generated code may use.
pub(super) fn is_math(name: &str) -> bool {
    MATH.contains(&name) || name.strip_suffix('f').is_some_and(|double| MATH.contains(&double))
}

/// The identifiers and literals in a text, except those in comments.
pub(super) fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("*/").filter_map(|part| part.split("/*").next());
    let words = code.flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_include_the_helpers_that_they_call() {
        let found = helpers_for("x = mod_i64(a, b);");
        let names: Vec<&str> = found.trim_end().split("\n\n").map(defined).collect();
        assert_eq!(names, ["rem_i64", "mod_i64"]);
    }

    #[test]
    fn every_helper_has_a_name() {
        let names: Vec<&str> = HELPERS.trim_end().split("\n\n").map(defined).collect();
        assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }
}
