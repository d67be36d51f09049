//! Generated C as text: the identifiers in it and the helpers that it calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

/// The bits of floats, in the same form as the helpers. Helpers and our own functions of `math.h` call them.
const BITS: &str = include_str!("bits.c");

/// Small functions that the generated code may call, separated by empty lines.
const HELPERS: &str = include_str!("helpers.c");

/// The functions of `math.h`, without a library, in the same form as the helpers.
const OWN_MATH: &str = concat!(
    include_str!("math/exact.c"),
    "\n",
    include_str!("math/exp.c"),
    "\n",
    include_str!("math/pow.c"),
    "\n",
    include_str!("math/trig.c"),
    "\n",
    include_str!("math/erf.c")
);

/// Functions of single precision that C compilers compute in vectors, in the same form.
const SINGLE_MATH: &str = include_str!("math/single.c");

/// The functions that have a form in single precision.
const SINGLE: [&str; 3] = ["expf", "tanhf", "erff"];

/// Functions of single precision that are exact without doubles, which small machines lack.
const EXACT_SINGLE: [&str; 1] = ["rintf"];

/// Functions that are instructions of WebAssembly, except for their suffix.
const WASM_INSTRUCTIONS: [&str; 7] = ["ceil", "copysign", "fabs", "floor", "rint", "sqrt", "trunc"];

/// Functions of `math.h` that generated code may call. Those for single precision end with an `f`.
const MATH: [&str; 28] = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf",
    "exp", "expm1", "fabs", "floor", "fmod", "log", "log1p", "pow", "rint", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc", "signbit",
];

/// The helpers that `body` calls, directly or through other helpers, in the order of their file.
pub(super) fn helpers_for(body: &str) -> String {
    blocks_for(HELPERS, identifiers(body).collect())
}

/// The functions for the bits of floats that `code` calls.
pub(super) fn bits_for(code: &str) -> String {
    blocks_for(BITS, identifiers(code).collect())
}

/// Our own definitions of these functions and macros of `math.h`. Each is a function `own_NAME` of doubles and a macro
/// that calls it, so it does not conflict with a definition of the C compiler under the same name. With `vectors`, some
/// functions of single precision are computed in single precision, and instructions of WebAssembly are used.
pub(super) fn own_math(names: &[&str], vectors: bool) -> String {
    let double =
        |name: &str| name.strip_suffix('f').filter(|double| MATH.contains(double)).map(str::to_string);
    let is_instruction =
        |name: &&str| vectors && WASM_INSTRUCTIONS.contains(&double(name).as_deref().unwrap_or(name));
    let is_single = |name: &&str| vectors && SINGLE.contains(name);
    let (instructions, rest): (Vec<&str>, Vec<&str>) = names.iter().copied().partition(is_instruction);
    let (single, rest): (Vec<&str>, Vec<&str>) = rest.into_iter().partition(is_single);
    let is_exact = |name: &&str| EXACT_SINGLE.contains(name);

    let singles: Vec<String> =
        single.iter().map(|name| format!("single_{}", name.strip_suffix('f').unwrap_or(name))).collect();
    let doubles: Vec<String> = rest
        .iter()
        .map(|name| format!("own_{}", double(name).filter(|_| !is_exact(name)).unwrap_or(name.to_string())))
        .collect();
    let blocks = |text, names: &[String]| blocks_for(text, names.iter().map(String::as_str).collect());
    let mut out = blocks(OWN_MATH, &doubles) + &blocks(SINGLE_MATH, &singles);

    for name in instructions {
        let _ = writeln!(out, "#define {name} __builtin_{name}");
    }
    for (name, function) in single.iter().zip(singles) {
        let _ = writeln!(out, "#define {name} {function}");
    }
    for name in rest {
        let _ = match (name, double(name).filter(|_| !is_exact(&name))) {
            ("signbit", _) => writeln!(out, "#define signbit(x) own_signbit((double)(x))"),
            ("atan2f" | "copysignf" | "fmodf" | "powf", Some(function)) => {
                writeln!(out, "#define {name}(x, y) ((float)own_{function}((double)(x), (double)(y)))")
            }
            (_, Some(function)) => writeln!(out, "#define {name}(x) ((float)own_{function}((double)(x)))"),
            (_, None) => writeln!(out, "#define {name} own_{name}"),
        };
    }
    out + "\n"
}

/// The blocks that define `wanted`, and those that they call.
fn blocks_for<'t>(text: &'t str, mut wanted: BTreeSet<&'t str>) -> String {
    let blocks: Vec<&str> = text.trim_end().split("\n\n").collect();
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

/// Code with other names in place of the identifiers that are keys of `names`. It must have no comments.
pub(super) fn renamed(code: &str, names: &BTreeMap<&str, String>) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while !rest.is_empty() {
        let word = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        out.push_str(names.get(&rest[..word]).map_or(&rest[..word], String::as_str));
        rest = &rest[word..];
        let other = rest.find(is_part).unwrap_or(rest.len());
        out.push_str(&rest[..other]);
        rest = &rest[other..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_identifiers_are_renamed() {
        let names = BTreeMap::from([("b1", "b0".to_string()), ("c2", "c1".to_string())]);
        assert_eq!(renamed("b1[b12] = c2*b1;b1", &names), "b0[b12] = c1*b0;b0");
        assert_eq!(renamed("(b1", &names), "(b0");
    }

    #[test]
    fn helpers_include_the_helpers_that_they_call() {
        let found = helpers_for("x = mod_i64(a, b);");
        let names: Vec<&str> = found.trim_end().split("\n\n").map(defined).collect();
        assert_eq!(names, ["rem_i64", "mod_i64"]);
    }

    #[test]
    fn every_helper_has_a_name() {
        for text in [BITS, HELPERS, OWN_MATH, SINGLE_MATH] {
            let names: Vec<&str> = text.trim_end().split("\n\n").map(defined).collect();
            assert!(names.iter().all(|name| !name.is_empty()), "{names:?}");
            assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        }
    }

    #[test]
    fn every_function_of_math_has_an_own_definition() {
        for name in MATH {
            assert!(own_math(&[name], false).contains(&format!(" own_{name}(")), "{name}");
        }
    }
}
