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
use symshape_runtime::{TrustedKey, Weights, abi::WEIGHTS_MAGIC, check_signature};

/// Examples at the end of `symc help verify`.
const EXAMPLES: &str = "\
Examples:
  # A shared object, and the weights file that was written with it:
  symc verify model.so

  # Other weights for it:
  symc verify model.so --weights tuned.weights

  # Both must be signed with a key of minisign:
  symc verify model.so --public-key minisign.pub
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
    /// Require a signature by this key of minisign: its base64 text or its file. One of several keys is enough
    #[arg(long = "public-key", value_name = "KEY")]
    public_keys: Vec<String>,
    /// Print one JSON object a file to standard output
    #[arg(long)]
    json: bool,
}

/// An intact file.
struct Intact {
    contents: Contents,
    /// The trusted comment of its signature, if a key is given.
    comment: Option<String>,
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
type Outcome = Result<Intact, String>;

/// Verifies all files. The answer is no if any is damaged.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let keys: Result<Vec<TrustedKey>> = args
        .public_keys
        .iter()
        .map(|key| TrustedKey::from_argument(key).map_err(|error| usage(format!("--public-key: {error}"))))
        .collect();
    let keys = keys?;
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
            report(path, weights(path, None, &keys));
            continue;
        }
        match artefact(path, &keys)? {
            Err(reason) => report(path, Err(reason)),
            Ok(Artefact { weights: None, .. }) if args.weights.is_some() => {
                return Err(takes_none("contains its weights"));
            }
            Ok(Artefact { parts, weights: own, comment }) => {
                report(path, Ok(Intact { contents: Contents::Artefact(parts), comment }));
                if let Some(own) = own {
                    let file = args.weights.clone().unwrap_or_else(|| own.path(path));
                    report(&file, weights(&file, Some(own.artefact), &keys));
                }
            }
        }
    }
    Ok(verdict)
}

/// Whether a file begins as a weights file does.
pub(super) fn is_weights(path: &Path) -> Result<bool> {
    let mut head = [0; 8];
    let mut file = at_path(fs::File::open(path), path)?;
    Ok(file.read_exact(&mut head).is_ok() && head == WEIGHTS_MAGIC.to_le_bytes())
}

/// An intact artefact.
struct Artefact {
    parts: Vec<(String, u64)>,
    /// `None` if it contains its weights.
    weights: Option<OwnWeights>,
    /// See [`Intact::comment`].
    comment: Option<String>,
}

/// Verifies an artefact.
fn artefact(path: &Path, keys: &[TrustedKey]) -> Result<Result<Artefact, String>> {
    let file = match SealedFile::read(path)? {
        Ok(file) => file,
        Err(reason) => return Ok(Err(reason)),
    };
    let parts = file.parts.iter().map(|part| (part.name.clone(), part.range.len() as u64)).collect();
    let weights = file.weights().map_err(|error| error.message().to_string());
    let comment = signature(path, file.bytes(), keys);
    Ok(weights.and_then(|weights| Ok(Artefact { parts, weights, comment: comment? })))
}

/// Verifies a weights file, which must belong to `artefact`.
fn weights(path: &Path, artefact: Option<[u8; 32]>, keys: &[TrustedKey]) -> Outcome {
    let file = Weights::open(path).map_err(|error| error.reason().to_string())?;
    if artefact.is_some_and(|artefact| artefact != file.artefact()) {
        return Err("it belongs to another artefact".into());
    }
    let progress = Progress::new(format!("reading {}", path.display()), 0);
    let verified = file.verify(|done, total| progress.bytes(done as u64, total as u64));
    verified.map_err(|error| error.reason().to_string())?;
    let contents = Contents::Weights {
        count: file.segments().len(),
        bytes: file.segments().iter().map(|segment| segment.range().len() as u64).sum(),
        levels: file.levels().to_string(),
    };
    Ok(Intact { contents, comment: signature(path, file.bytes(), keys)? })
}

/// The trusted comment of the signature of a file. `None` if no key is given.
fn signature(path: &Path, bytes: &[u8], keys: &[TrustedKey]) -> Result<Option<String>, String> {
    if keys.is_empty() { Ok(None) } else { check_signature(path, bytes, keys).map(Some) }
}

fn print(path: &Path, outcome: &Outcome, json: bool) {
    let file = path.display().to_string();
    let line = match outcome {
        Ok(intact) if json => {
            let mut line = match &intact.contents {
                Contents::Artefact(parts) => {
                    let parts: Vec<_> =
                        parts.iter().map(|(name, bytes)| json!({"name": name, "bytes": bytes})).collect();
                    json!({"file": file, "intact": true, "parts": parts})
                }
                Contents::Weights { count, bytes, levels } => {
                    let levels: Vec<&str> = levels.split(',').collect();
                    json!({"file": file, "intact": true, "weights": count, "bytes": bytes, "levels": levels})
                }
            };
            if let Some(comment) = &intact.comment {
                line["trusted_comment"] = json!(comment);
            }
            line.to_string()
        }
        Err(reason) if json => json!({"file": file, "intact": false, "reason": reason}).to_string(),
        Ok(intact) => {
            let contents = match &intact.contents {
                Contents::Artefact(parts) => {
                    let parts = parts.iter().map(|(name, bytes)| format!("{name} {bytes} B"));
                    parts.collect::<Vec<_>>().join(", ")
                }
                Contents::Weights { count, bytes, levels } => {
                    format!("{count} weights of {bytes} B for {levels}")
                }
            };
            let signed = intact.comment.as_ref().map(|comment| {
                let comment: String = comment.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                format!("; signed, trusted comment: {comment}")
            });
            format!("{file}: intact ({contents}){}", signed.unwrap_or_default())
        }
        Err(reason) => format!("{file}: refused: {reason}"),
    };
    print_line(&line);
}
