//! C source: the whole model as one portable C11 file, for compilers and machines that nothing else here reaches.
//!
//! It has the functions of the header and nothing else outside: no memory is allocated, and of the C library only the
//! functions of `math.h` that the header lists are called, besides the functions that the model itself calls. Kernels are printed as the loops that they are, each a
//! function of the sizes and buffers that it uses; the C compiler vectorises them. With `NAME_STATIC_ARENA` defined,
//! the file also has an arena of its own and `NAME_run_static`, which uses it.

mod call;
mod constants;
mod contract;
mod dims;
mod driver;
mod kernels;
mod names;
pub(super) mod partitions;
mod scalars;

use crate::{error::Result, kernel::Program, plan::Plan};
use names::Names;
use std::{collections::BTreeSet, fmt::Write};

/// Small functions that the generated code may call, separated by empty lines.
const HELPERS: &str = include_str!("helpers.c");

/// What generated code may call of `math.h`; the functions for single precision end with an `f`.
const MATH: [&str; 28] = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf",
    "exp", "expm1", "fabs", "floor", "fmod", "log", "log1p", "pow", "rint", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc", "signbit",
];

/// The C file, and the header that it includes.
#[derive(Clone, Debug)]
pub struct Source {
    /// `NAME.c`
    pub code: String,
    /// `NAME.h`
    pub header: String,
}

/// The C source of `program`; `header` is the name under which the file finds its header.
///
/// # Errors
/// A size without a bound or beyond 64 bits, or symbols that the shapes of the inputs don't tell.
pub fn source(program: &Program, plan: &Plan, header: &str) -> Result<Source> {
    let names = Names::new(program);
    let mut body = String::new();
    let fallible = kernels::kernels(&mut body, program, &names)?;
    contract::check(&mut body, program, &names)?;
    driver::driver(&mut body, program, plan, &names, &fallible)?;
    let helpers = helpers_for(&body);
    call::check(program, &body, &helpers)?;
    let used = identifiers(&body).chain(identifiers(&helpers)).collect::<BTreeSet<_>>();
    let math: Vec<&str> = used.iter().copied().filter(|name| is_math(name)).collect();
    let mut code = format!("/* {}: compiled by symshape {}. */\n", program.name, env!("CARGO_PKG_VERSION"));
    let (declared, constants) = (constants::declarations(program), constants::definitions(program));
    let atomics = if program.partitions.is_empty() { "" } else { "#include <stdatomic.h>\n" };
    let includes =
        if math.is_empty() && !used.contains("NAN") && !used.contains("INFINITY") && !constants.contains('N')
        {
            ""
        } else {
            "#include <math.h>\n\n"
        };
    let _ = write!(code, "#include \"{header}\"\n{atomics}{includes}\n{helpers}{declared}{body}{constants}");
    let calls = match math.as_slice() {
        [] => "The model's source calls nothing of the C library.".to_string(),
        list => format!("Of the C library the model's source calls, from math.h: {}.", list.join(", ")),
    };
    Ok(Source { code, header: super::header::header_for_source(program, plan, &calls) })
}

/// The helpers that `body` calls, and those that they call, in their order.
fn helpers_for(body: &str) -> String {
    let blocks: Vec<&str> = HELPERS.trim_end().split("\n\n").collect();
    let mut wanted: BTreeSet<&str> = identifiers(body).collect();
    let mut chosen = vec![false; blocks.len()];
    // A helper calls earlier ones only.
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

fn is_math(name: &str) -> bool {
    MATH.contains(&name) || name.strip_suffix('f').is_some_and(|double| MATH.contains(&double))
}

/// The identifiers and numbers in a text, but for its comments.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let code = text.split("*/").filter_map(|part| part.split("/*").next());
    let words = code.flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    words.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_bring_those_that_they_call() {
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
