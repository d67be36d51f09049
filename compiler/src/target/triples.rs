//! The names of platforms: which have a code generator, which get C source, and the nearest names to a misspelt one.

use target_lexicon::{Architecture, BinaryFormat, OperatingSystem, Triple};

/// Common triples that have a code generator. Others of the same architectures work as well.
const NATIVE: [&str; 15] = [
    "aarch64-apple-darwin",
    "aarch64-unknown-linux-gnu",
    "aarch64-unknown-linux-musl",
    "aarch64-unknown-none",
    "riscv64gc-unknown-linux-gnu",
    "riscv64gc-unknown-linux-musl",
    "riscv64gc-unknown-none-elf",
    "riscv64imac-unknown-none-elf",
    "x86_64-apple-darwin",
    "x86_64-pc-windows-gnu",
    "x86_64-pc-windows-msvc",
    "x86_64-unknown-freebsd",
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "x86_64-unknown-none",
];

/// Common triples that get C source.
const SOURCE_ONLY: [&str; 15] = [
    "armv7-unknown-linux-gnueabihf",
    "armv7a-none-eabi",
    "i686-unknown-linux-gnu",
    "powerpc64le-unknown-linux-gnu",
    "riscv32imac-unknown-none-elf",
    "riscv32imc-unknown-none-elf",
    "s390x-unknown-linux-gnu",
    "thumbv6m-none-eabi",
    "thumbv7em-none-eabi",
    "thumbv7em-none-eabihf",
    "thumbv7m-none-eabi",
    "thumbv8m.base-none-eabi",
    "thumbv8m.main-none-eabi",
    "thumbv8m.main-none-eabihf",
    "wasm32-unknown-unknown",
];

/// Names that are less similar than this are no help, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.75;
/// Largest number of names that an error lists.
const MAX_NAMES: usize = 3;

/// Parses a triple.
///
/// # Errors
/// The reason, and the nearest known triples.
pub(super) fn parse(text: &str) -> Result<Triple, String> {
    let mut triple: Triple = text.parse().map_err(|error: target_lexicon::ParseError| {
        let names = nearest(text, NATIVE.into_iter().chain(SOURCE_ONLY));
        format!("target {text}: {error}{}", did_you_mean(&names))
    })?;

    // Without an operating system, objects are ELF, as the linkers of these machines expect.
    if is_bare(&triple) && triple.binary_format == BinaryFormat::Unknown {
        triple.binary_format = BinaryFormat::Elf;
    }
    Ok(triple)
}

/// Whether programs of this platform run without an operating system.
pub(super) fn is_bare(triple: &Triple) -> bool {
    matches!(triple.operating_system, OperatingSystem::None_ | OperatingSystem::Unknown)
        && !matches!(triple.architecture, Architecture::Wasm32 | Architecture::Wasm64)
}

/// The error for a platform without a code generator: how to get C source.
pub(super) fn source_hint(triple: &Triple) -> String {
    format!(
        "target {triple}: there is no code generator for this machine, but its C compiler takes C source: \
         symc compile … --target {triple} -o NAME.c"
    )
}

/// The most similar names, the best one first.
pub(crate) fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
    let mut scored: Vec<(f64, &str)> = names
        .into_iter()
        .map(|name| (strsim::normalized_damerau_levenshtein(word, name), name))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(MAX_NAMES).map(|(_, name)| name).collect()
}

/// The end of an error message about an unknown name; empty if no name is near.
pub(crate) fn did_you_mean(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_listed_triples_are_valid() {
        for name in NATIVE.into_iter().chain(SOURCE_ONLY) {
            parse(name).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn misspelt_triples_get_the_nearest_names() {
        let message = |text| parse(text).expect_err("no triple");
        assert!(message("aarch64-unknown-nome").ends_with("; did you mean aarch64-unknown-none?"));
        assert!(message("x86-64-unknown-none").contains("did you mean x86_64-unknown-none"));
        assert!(message("thumbv7emm-none-eabi").contains("thumbv7em-none-eabi"));
        assert!(!message("zzz").contains("did you mean"));
    }
}
