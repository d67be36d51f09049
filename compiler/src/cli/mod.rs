//! The command line `symc`: parses arguments, calls the stages, prints.
//!
//! Results go to standard output, with `--json` as one JSON object a line and nothing else; messages and progress go
//! to standard error. Exit codes: 0 success, 1 the answer is no, 2 bad input, with a located error.

mod args;
mod artefact;
mod asm;
mod at;
mod bench;
mod compare;
mod compile;
mod copies;
mod customs;
mod errors;
mod feed;
mod grow;
mod manual;
mod npy;
mod output;
mod packed;
mod passes;
mod plan;
mod progress;
mod query;
mod ragged;
mod report;
mod run;
mod sealed;
mod secret_key;
mod selfcheck;
mod sensitivity;
mod shapes;
mod sign;
mod source;
mod stateful;
mod sym;
mod test;
mod verify;
mod web;
mod weight_types;
mod weights;

use self::output::Verdict;
use crate::offload::Target;
use clap::{CommandFactory, Parser, Subcommand};
use std::{process::ExitCode, sync::Arc};

/// Ahead-of-time compiler for neural networks with symbolic dimensions.
#[derive(Parser)]
#[command(name = "symc", version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile a model to an object, an archive, a shared object or C source with a C header, or to WebAssembly
    Compile(compile::Args),
    /// Call a model once
    Run(run::Args),
    /// Run test cases in the directory layout of the ONNX backend tests
    Test(test::Args),
    /// Measure how long calls take
    Bench(bench::Args),
    /// Print the call contract, the sizes of a call, or the largest dim for a memory budget
    Query(query::Args),
    /// Compare artefacts and weights files with the hashes that they contain, and with their signatures
    Verify(verify::Args),
    /// Sign artefacts and weights files in the format of minisign, or write a key pair
    Sign(sign::Args),
    /// Write other weights of the same structure for an artefact with a weights file
    Weights(weights::Args),
    /// Infer the symbolic shape of every value
    Shapes(shapes::Args),
    /// Answer queries to the symbolic engine (for developers)
    Sym(sym::Args),
    /// Plan an arena for buffers of fixed sizes and lifetimes (for developers)
    Plan(plan::Args),
    /// Compare compiled code with the reference evaluator at the ends of every range
    Selfcheck(selfcheck::Args),
    /// Write an HTML page that shows the call contract, the arena at any size, the kernels and their times
    Report(report::Args),
    /// Print completions for a shell
    Completions(manual::CompletionArgs),
    /// Write manual pages
    Man(manual::ManArgs),
    /// Run one case of `test`; the parent process watches this one
    #[command(hide = true)]
    Case(test::CaseArgs),
}

/// As [`main`]; `--target` can name the offload targets `targets`, see [`crate::offload`].
pub fn main_with(targets: Vec<Arc<dyn Target>>, allocations: fn() -> u64) -> ExitCode {
    args::register_targets(targets);
    main(allocations)
}

/// Runs the command line. `allocations` returns the number of heap calls of this process since its first call.
pub fn main(allocations: fn() -> u64) -> ExitCode {
    let verdict = match Args::parse().command {
        Command::Compile(args) => compile::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Test(args) => test::main(&args),
        Command::Bench(args) => bench::main(&args, allocations),
        Command::Query(args) => query::main(&args),
        Command::Verify(args) => verify::main(&args),
        Command::Sign(args) => sign::main(&args),
        Command::Weights(args) => weights::main(&args),
        Command::Shapes(args) => shapes::main(&args),
        Command::Sym(args) => sym::main(&args),
        Command::Plan(args) => plan::main(&args),
        Command::Selfcheck(args) => selfcheck::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Completions(args) => manual::completions(&args, Args::command()),
        Command::Man(args) => manual::man(&args, Args::command()),
        Command::Case(args) => test::case_main(&args),
    };
    match verdict {
        Ok(Verdict::Yes) => ExitCode::SUCCESS,
        Ok(Verdict::No) => ExitCode::from(1),
        Err(error) => {
            eprintln!("symc: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Args;
    use clap::Parser;

    /// The words of a line by the rules of a shell, up to a comment.
    fn words(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        let mut word = String::new();

        let mut quoted = false;
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                '#' if !quoted && word.is_empty() => break,
                ' ' if !quoted => {
                    words.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()))
                }
                c => word.push(c),
            }
        }

        words.extend(Some(word).filter(|word| !word.is_empty()));
        words
    }

    #[test]
    fn command_lines_in_the_documents_parse() {
        let mut n_lines = 0;
        for chapter in [
            include_str!("../../../README.md"),
            include_str!("../../../docs/bare-metal.md"),
            include_str!("../../../docs/c-source.md"),
            include_str!("../../../docs/custom-ops.md"),
            include_str!("../../../docs/embedding-c.md"),
            include_str!("../../../docs/generation.md"),
            include_str!("../../../docs/partitions.md"),
            include_str!("../../../docs/precision.md"),
            include_str!("../../../docs/profiling.md"),
            include_str!("../../../docs/releasing.md"),
            include_str!("../../../docs/serving.md"),
            include_str!("../../../docs/targets.md"),
            include_str!("../../../docs/weights.md"),
        ] {
            let snippets = chapter.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
            for line in snippets.flat_map(str::lines) {
                // A custom `symc` takes the same arguments.
                let own = line.split_once("cargo run -p symshape-example-targets -- ");

                let line = own.map_or(line.to_string(), |(_, rest)| format!("symc {rest}"));
                if line.starts_with("symc ") {
                    let parsed = Args::try_parse_from(words(&line));
                    assert!(
                        parsed.is_ok(),
                        "{line}\n{}",
                        parsed.err().map_or_else(String::new, |e| e.to_string())
                    );
                    n_lines += 1;
                }
            }
        }

        assert!(n_lines >= 10, "found only {n_lines} command lines");
    }
}
