//! `symc sym`: answers queries to the symbolic engine, one per line.

use super::{
    errors::at_path,
    output::{Verdict, print_line},
};
use crate::error::Result;
use std::{
    fs::File,
    io::{BufRead, BufReader, Read, stdin},
    path::{Path, PathBuf},
};
use symshape::query::answer_line;

/// Arguments of `symc sym`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// File with one query per line: id, symbols, expression, kind, separated by tabs; default: standard input
    file: Option<PathBuf>,
    /// Print one JSON object per line to standard output
    #[arg(long)]
    json: bool,
}

/// Answers each query on a line.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let (source, name): (Box<dyn Read>, &Path) = match &args.file {
        Some(path) => (Box::new(at_path(File::open(path), path)?), path),
        None => (Box::new(stdin()), Path::new("standard input")),
    };

    let mut source = BufReader::new(source);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if at_path(source.read_until(b'\n', &mut bytes), name)? == 0 {
            return Ok(Verdict::Yes);
        }
        // Invalid UTF-8 becomes a malformed query, which gets an error as its answer.
        let text = String::from_utf8_lossy(&bytes);
        if text.trim().is_empty() {
            continue;
        }
        let reply = answer_line(&text);
        print_line(&if args.json { reply.to_json() } else { reply.to_string() });
    }
}
