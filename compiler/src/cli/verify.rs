//! `symc verify`: compares artefacts and weights files with the hashes that they contain.

use super::{
    errors::{at_path, usage},
    output::{Verdict, print_line},
    progress::Progress,
    sealed::{OwnWeights, SealedFile},
};
use crate::error::Result;
use serde_json::json;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};
use symshape_runtime::{Weights, abi::WEIGHTS_MAGIC};

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
    /// The weights file of the artefacts, if it is not the one that was written with them
    #[arg(long, value_name = "M.weights")]
    weights: Option<PathBuf>,
    /// Print one JSON object a file to standard output
    #[arg(long)]
    json: bool,
}

/// The contents of an intact file.
enum Contents {
    /// The parts of an artefact and their bytes.
    Artefact(Vec<(String, u64)>),
    Weights {
        count: usize,
        bytes: u64,
        /// The ISA levels, separated by commas.
        levels: String,
    },
}

/// The answer for one file: its contents, or the reason why it is refused.
type Outcome = Result<Contents, String>;

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
        let takes_none = |why: &str| usage(format!("--weights: {} {why}", path.display()));
        if is_weights(path)? {
            if args.weights.is_some() {
                return Err(takes_none("is a weights file itself"));
            }
            report(path, weights(path, None));
            continue;
        }
        match artefact(path)? {
            Err(reason) => report(path, Err(reason)),
            Ok(Artefact { weights: None, .. }) if args.weights.is_some() => {
                return Err(takes_none("contains its weights"));
            }
            Ok(Artefact { parts, weights: own }) => {
                report(path, Ok(Contents::Artefact(parts)));
                if let Some(own) = own {
                    let file = args.weights.clone().unwrap_or_else(|| own.path(path));
                    report(&file, weights(&file, Some(own.artefact)));
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
struct Artefact {
    parts: Vec<(String, u64)>,
    /// `None` if it contains its weights.
    weights: Option<OwnWeights>,
}

/// Verifies an artefact.
fn artefact(path: &Path) -> Result<Result<Artefact, String>> {
    let file = match SealedFile::read(path)? {
        Ok(file) => file,
        Err(reason) => return Ok(Err(reason)),
    };
    let parts = file.parts.iter().map(|part| (part.name.clone(), part.range.len() as u64)).collect();
    let weights = file.weights().map_err(|error| error.message().to_string());
    Ok(weights.map(|weights| Artefact { parts, weights }))
}

/// Verifies a weights file, which must belong to `artefact`.
fn weights(path: &Path, artefact: Option<[u8; 32]>) -> Outcome {
    let file = Weights::open(path).map_err(|error| error.reason().to_string())?;
    if artefact.is_some_and(|artefact| artefact != file.artefact()) {
        return Err("it belongs to another artefact".into());
    }
    let progress = Progress::new(format!("reading {}", path.display()), 0);
    let verified = file.verify(|done, total| progress.bytes(done as u64, total as u64));
    verified.map_err(|error| error.reason().to_string())?;
    Ok(Contents::Weights {
        count: file.segments().len(),
        bytes: file.segments().iter().map(|segment| segment.range().len() as u64).sum(),
        levels: file.levels().to_string(),
    })
}

fn print(path: &Path, outcome: &Outcome, json: bool) {
    let file = path.display().to_string();
    if !json {
        print_line(&match outcome {
            Ok(Contents::Artefact(parts)) => {
                let parts: Vec<String> =
                    parts.iter().map(|(name, bytes)| format!("{name} {bytes} B")).collect();
                format!("{file}: intact ({})", parts.join(", "))
            }
            Ok(Contents::Weights { count, bytes, levels }) => {
                format!("{file}: intact ({count} weights of {bytes} B for {levels})")
            }
            Err(reason) => format!("{file}: refused: {reason}"),
        });
        return;
    }
    let line = match outcome {
        Ok(Contents::Artefact(parts)) => {
            let parts: Vec<_> =
                parts.iter().map(|(name, bytes)| json!({"name": name, "bytes": bytes})).collect();
            json!({"file": file, "intact": true, "parts": parts})
        }
        Ok(Contents::Weights { count, bytes, levels }) => {
            let levels: Vec<&str> = levels.split(',').collect();
            json!({"file": file, "intact": true, "weights": count, "bytes": bytes, "levels": levels})
        }
        Err(reason) => json!({"file": file, "intact": false, "reason": reason}),
    };
    print_line(&line.to_string());
}
