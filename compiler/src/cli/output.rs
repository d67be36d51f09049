//! Results of commands on standard output, and their exit codes.

use std::io::{ErrorKind, Write};

/// Answer of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Exit code 0.
    Yes,
    /// Exit code 1.
    No,
}

/// Prints a line to standard output and flushes it.
///
/// If the reader has closed the pipe, the program exits quietly. Any other failure ends it with exit code 2.
pub(super) fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    let Err(error) = writeln!(out, "{text}").and_then(|()| out.flush()) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }

    eprintln!("symc: standard output: {error}");
    std::process::exit(2);
}
