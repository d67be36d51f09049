//! `symc verify`: compares artefacts and weights files with the hashes that they contain.

use super::{
    errors::at_path,
    output::{Verdict, print_line},
    sealed::SealedFile,
};
use crate::{emit, error::Result};
use object::read::archive::ArchiveFile;
use serde_json::json;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};
use symshape_runtime::{Weights, abi::WEIGHTS_MAGIC, check_seal};

/// Examples at the end of `symc help verify`.
const EXAMPLES: &str = "\
Examples:
  # A shared object, and the weights file that was written with it:
  symc verify model.so

  # Other weights for it:
  symc verify model.so --weights tuned.weights
";

/// Arguments of `symc verify`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Shared objects, objects, archives and weights files from `symc compile`
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The weights file of the artefact, if it is not the one that was written with it
    #[arg(long, value_name = "M.weights")]
    weights: Option<PathBuf>,
    /// Print one JSON object a file to standard output
    #[arg(long)]
    json: bool,
}

/// The answer for one file: its parts and their bytes, or the reason why it is refused.
type Outcome = Result<Vec<(String, u64)>, String>;

/// Verifies all files. The answer is no if any is damaged.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let mut verdict = Verdict::Yes;
    let mut report = |path: &Path, outcome: Outcome| {
        if outcome.is_err() {
            verdict = Verdict::No;
        }
        print(path, &outcome, args.json);
    };
    for path in &args.files {
        if is_weights(path)? {
            report(path, weights(path, None));
            continue;
        }
        match sealed(path)? {
            Err(reason) => report(path, Err(reason)),
            Ok(Checked { parts, weights: own }) => {
                report(path, Ok(parts));
                if let Some((artefact, file)) = own {
                    let file = args.weights.clone().unwrap_or(file);
                    report(&file, weights(&file, Some(artefact)));
                }
            }
        }
    }
    Ok(verdict)
}

/// Whether a file begins as a weights file does.
fn is_weights(path: &Path) -> Result<bool> {
    let mut head = [0; 8];
    let mut file = at_path(fs::File::open(path), path)?;
    Ok(file.read_exact(&mut head).is_ok() && head == WEIGHTS_MAGIC.to_le_bytes())
}

/// An intact artefact.
struct Checked {
    parts: Vec<(String, u64)>,
    /// The hash that its weights must name, and the file that was written with it.
    weights: Option<([u8; 32], PathBuf)>,
}

/// Verifies an artefact.
fn sealed(path: &Path) -> Result<Result<Checked, String>> {
    if path.extension() == Some("a".as_ref()) {
        let bytes = at_path(fs::read(path), path)?;
        return Ok(archive(&bytes).map(|parts| Checked { parts, weights: None }));
    }
    let file = match SealedFile::read(path)? {
        Ok(file) => file,
        Err(reason) => return Ok(Err(reason)),
    };
    let weights = file.weights()?.map(|weights| (weights.artefact, weights.path(path)));
    let parts = file.parts.iter().map(|part| (part.name.clone(), part.range.len() as u64)).collect();
    Ok(Ok(Checked { parts, weights }))
}

/// Verifies an archive: the seal of its member, and that all other bytes are those that this program writes.
fn archive(bytes: &[u8]) -> Outcome {
    let broken = |error: object::Error| format!("it is not an archive: {error}");
    let file = ArchiveFile::parse(bytes).map_err(broken)?;
    let member = file.members().next().ok_or("it has no members")?.map_err(broken)?;
    let object = member.data(bytes).map_err(broken)?;
    let parts = check_seal(object)?;
    let name = String::from_utf8_lossy(member.name());
    let same = emit::archive(name.trim_end_matches(".o"), object).is_ok_and(|again| again == bytes);
    if !same {
        return Err("its archive headers or its table of symbols are damaged".into());
    }
    Ok(parts.iter().map(|part| (part.name.clone(), part.range.len() as u64)).collect())
}

/// Verifies a weights file, which must belong to `artefact`.
fn weights(path: &Path, artefact: Option<[u8; 32]>) -> Outcome {
    let file = Weights::open(path).map_err(|error| error.reason().to_string())?;
    if artefact.is_some_and(|artefact| artefact != file.artefact()) {
        return Err("it belongs to another artefact".into());
    }
    file.verify(|_, _| {}).map_err(|error| error.reason().to_string())?;
    let bytes = file.segments().iter().map(|segment| segment.range().len() as u64).sum();
    Ok(vec![(format!("{} weights for {}", file.segments().len(), file.levels()), bytes)])
}

fn print(path: &Path, outcome: &Outcome, json: bool) {
    let file = path.display();
    match outcome {
        Ok(parts) if json => {
            let parts: Vec<_> =
                parts.iter().map(|(name, bytes)| json!({"name": name, "bytes": bytes})).collect();
            let line = json!({"file": file.to_string(), "intact": true, "parts": parts});
            print_line(&line.to_string());
        }
        Ok(parts) => {
            let parts: Vec<String> = parts.iter().map(|(name, bytes)| format!("{name} {bytes} B")).collect();
            print_line(&format!("{file}: intact ({})", parts.join(", ")));
        }
        Err(reason) if json => {
            let line = json!({"file": file.to_string(), "intact": false, "reason": reason});
            print_line(&line.to_string());
        }
        Err(reason) => print_line(&format!("{file}: refused: {reason}")),
    }
}
