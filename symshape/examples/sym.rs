//! Answers query files: `cargo run --release --example sym [FILE]`, one answer a line, as `symc sym` does.

use std::io::{BufRead, BufReader, Read, Write};

fn main() -> std::io::Result<()> {
    let input: Box<dyn Read> = match std::env::args().nth(1) {
        Some(path) => Box::new(std::fs::File::open(path)?),
        None => Box::new(std::io::stdin()),
    };
    let mut output = std::io::stdout().lock();
    for line in BufReader::new(input).lines() {
        writeln!(output, "{}", symshape::query::answer_line(&line?))?;
    }
    Ok(())
}
