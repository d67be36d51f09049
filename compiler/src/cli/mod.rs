//! The command line `symc`: parses arguments, calls the stages, prints.
//!
//! Results go to standard output, with `--json` as one JSON object a line and nothing else; messages and progress go
//! to standard error. Exit codes: 0 success, 1 the answer is no, 2 bad input, with an error that says what and where.

mod asm;
mod at;
mod bench;
mod compare;
mod compile;
mod customs;
mod feed;
mod grow;
mod npy;
mod passes;
mod plan;
mod progress;
mod report;
mod run;
mod selfcheck;
mod sensitivity;
mod shapes;
mod source;
mod sym;
mod test;

use crate::{
    error::Result,
    offload::{self, Selection, Target},
};
use clap::{Parser, Subcommand, ValueEnum};
use std::{
    process::ExitCode,
    sync::{Arc, OnceLock},
};

/// Ahead-of-time compiler for neural networks whose dimensions are symbols.
#[derive(Parser)]
#[command(name = "symc", version, about)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile a model to an object with its header, an archive, or a shared object
    Compile(compile::Args),
    /// Call a model once
    Run(run::Args),
    /// Run cases in the layout of the ONNX backend suite
    Test(test::Args),
    /// Time calls
    Bench(bench::Args),
    /// Infer the symbolic shape of every value
    Shapes(shapes::Args),
    /// Answer queries to the symbolic engine
    Sym(sym::Args),
    /// Place buffers of fixed sizes and lifetimes
    Plan(plan::Args),
    /// Compare compiled code with the reference evaluator at the edges of every range
    Selfcheck(selfcheck::Args),
    /// Write a page that shows the contract, the arena at any size, and the kernels
    Report(report::Args),
    /// One case of `test`, in a process of its own
    #[command(hide = true)]
    Case(test::CaseArgs),
}

/// What a command found: yes, or no (exit code 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Yes,
    No,
}

/// How the partitions of a model that has some are run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Whatever is estimated to be faster
    Auto,
    /// One after another, the kernels of each on all threads
    Serial,
    /// Those that don't wait for each other at once, each on one thread
    Parallel,
}

impl From<Policy> for symshape_runtime::Policy {
    fn from(policy: Policy) -> symshape_runtime::Policy {
        match policy {
            Policy::Auto => symshape_runtime::Policy::Auto,
            Policy::Serial => symshape_runtime::Policy::Serial,
            Policy::Parallel => symshape_runtime::Policy::Parallel,
        }
    }
}

/// The targets beside the machine that this program has.
static TARGETS: OnceLock<Vec<Arc<dyn Target>>> = OnceLock::new();

/// As [`main`], with targets that `--target` can name, see [`crate::offload`].
pub fn main_with(targets: Vec<Arc<dyn Target>>, allocations: fn() -> u64) -> ExitCode {
    // A second call in one process would find the first one's.
    let _ = TARGETS.set(targets);
    main(allocations)
}

/// The targets that `--target` asks for, and the name of the machine if it names one.
fn targets(names: Option<&str>) -> Result<Selection<'_>> {
    if let Some(names) = names.filter(|names| names.split(',').any(|name| name.trim().is_empty())) {
        return Err(usage(format!("--target {names}: a name is missing")));
    }
    let known = TARGETS.get().map_or(&[][..], Vec::as_slice);
    let Selection { targets, machine } =
        names.map_or(Ok(Selection::default()), |names| offload::select(names, known))?;
    let own = |name: &&str| !matches!(*name, "cpu" | "native") && *name != std::env::consts::ARCH;
    Ok(Selection { targets, machine: machine.filter(own) })
}

/// Runs the command line; `allocations` counts the heap calls of this process so far.
pub fn main(allocations: fn() -> u64) -> ExitCode {
    let verdict = match Args::parse().command {
        Command::Compile(args) => compile::main(&args),
        Command::Run(args) => run::main(&args),
        Command::Test(args) => test::main(&args),
        Command::Bench(args) => bench::main(&args, allocations),
        Command::Shapes(args) => shapes::main(&args),
        Command::Sym(args) => sym::main(&args),
        Command::Plan(args) => plan::main(&args),
        Command::Selfcheck(args) => selfcheck::main(&args),
        Command::Report(args) => report::main(&args),
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

/// Prints a line to standard output; a reader that went away ends the program quietly, any other failure does not.
fn line(text: &str) {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout().lock();
    let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("symc: standard output: {error}");
    std::process::exit(2);
}

/// The error of a wrong command line.
fn usage(message: impl Into<String>) -> crate::Error {
    crate::Error::new(crate::ErrorKind::Usage, message)
}

/// Adds the path to an error of the file system.
fn at_path<T>(result: std::io::Result<T>, path: &std::path::Path) -> Result<T> {
    result.map_err(|error| {
        crate::Error::new(crate::ErrorKind::Io, error.to_string()).at(path.display().to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::Args;
    use clap::Parser;

    /// The words of a line as a shell sees them, up to a comment.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
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
    fn command_lines_of_the_chapters_are_understood() {
        let mut lines = 0;
        for chapter in [
            include_str!("../../../README.md"),
            include_str!("../../../docs/bare-metal.md"),
            include_str!("../../../docs/c-source.md"),
            include_str!("../../../docs/custom-ops.md"),
            include_str!("../../../docs/embedding-c.md"),
            include_str!("../../../docs/partitions.md"),
            include_str!("../../../docs/precision.md"),
            include_str!("../../../docs/serving.md"),
            include_str!("../../../docs/targets.md"),
        ] {
            let snippets = chapter.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
            for line in snippets.flat_map(str::lines) {
                // A `symc` of one's own takes the same.
                let own = line.split_once("cargo run -p symshape-example-targets -- ");
                let line = own.map_or(line.to_string(), |(_, rest)| format!("symc {rest}"));
                if line.starts_with("symc ") {
                    let parsed = Args::try_parse_from(words(&line));
                    assert!(
                        parsed.is_ok(),
                        "{line}\n{}",
                        parsed.err().map_or_else(String::new, |e| e.to_string())
                    );
                    lines += 1;
                }
            }
        }
        assert!(lines >= 10, "{lines} lines");
    }
}
