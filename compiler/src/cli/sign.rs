//! `symc sign`: signatures of artefacts and weights files in the format of minisign, and key pairs.

use super::{
    errors::{at_path, usage},
    output::{Verdict, print_line},
    progress::Progress,
    sealed::SealedFile,
    secret_key::{self, Password},
    verify::is_weights,
};
use crate::{
    emit,
    error::{At, Error, Result},
};
use minisign::SecretKey;
use serde_json::json;
use std::{
    io::{self, Read},
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};
use symshape_runtime::{Weights, signature_path};

/// Examples at the end of `symc help sign`.
const EXAMPLES: &str = "\
Examples:
  # A key pair: release.key, which must stay secret, and release.pub:
  symc sign --generate --secret-key release.key

  # model.so.minisig, and model.weights.minisig if the artefact has a weights file:
  symc sign model.so --secret-key release.key

  # Refuse files that were not signed with the key:
  symc verify model.so --public-key release.pub
";

/// Arguments of `symc sign`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Shared objects, objects, archives and weights files from `symc compile`. The weights file that was written with
    /// an artefact is signed with it
    #[arg(required_unless_present = "generate", conflicts_with = "generate")]
    files: Vec<PathBuf>,
    /// The secret key: a file of `minisign -G`, `rsign generate` or `symc sign --generate`
    #[arg(short, long, value_name = "FILE")]
    secret_key: PathBuf,
    /// A file whose first line is the password of the secret key. Without it the password is asked for
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The trusted comment, which the signature covers, in place of the time and the name of the file
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,
    /// Write a new secret key to the file of --secret-key, and its public key to that name with .pub at its end
    #[arg(long)]
    generate: bool,
    /// Do not encrypt the new secret key
    #[arg(long, requires = "generate", conflicts_with = "password_file")]
    no_password: bool,
    /// Print one JSON object a file to standard output
    #[arg(long)]
    json: bool,
}

/// Signs all files, or writes a key pair. A damaged file is not signed.
pub(super) fn main(args: &Args) -> Result<Verdict> {
    let password = match &args.password_file {
        Some(path) => Password::from_file(path)?,
        None => Password::Ask,
    };
    if args.generate {
        generate(args, password)?;
        return Ok(Verdict::Yes);
    }
    if args.comment.as_ref().is_some_and(|comment| comment.contains(char::is_control)) {
        return Err(usage("--comment: a trusted comment is one line without control characters"));
    }

    let mut files = Vec::new();
    for path in &args.files {
        files.extend(intact(path)?);
    }
    let pair = secret_key::read(&args.secret_key, password)?;
    let public = pair.pk.to_base64();
    for path in files {
        let signature = sign(&path, &pair.sk, args.comment.as_deref())?;
        if args.json {
            let signature = signature.display().to_string();
            let line =
                json!({"file": path.display().to_string(), "signature": signature, "public_key": public});
            print_line(&line.to_string());
        } else {
            print_line(&format!("{}: signed; the public key is {public}", signature.display()));
        }
    }
    Ok(Verdict::Yes)
}

/// Writes a key pair, and prints the public key.
fn generate(args: &Args, password: Password) -> Result<()> {
    let password = if args.no_password { Password::None } else { password };
    let path = args.secret_key.with_extension("pub");
    if path == args.secret_key {
        return Err(usage("--secret-key: the name must not end with .pub, which is that of the public key"));
    }
    let public = secret_key::generate(&args.secret_key, &path, password)?;
    if args.json {
        let secret = args.secret_key.display().to_string();
        let line = json!({"secret_key": secret, "file": path.display().to_string(), "public_key": public});
        print_line(&line.to_string());
    } else {
        print_line(&format!("{}: the public key is {public}", path.display()));
    }
    Ok(())
}

/// The file itself, and the weights file that was written with it. All their bytes match their hashes.
fn intact(path: &Path) -> Result<Vec<PathBuf>> {
    let place = || path.display().to_string();
    if is_weights(path)? {
        let weights = Weights::open(path).map_err(|error| Error::invalid(error.reason()).at(place()))?;
        let progress = Progress::new(format!("verifying {}", path.display()), 0);
        let verified = weights.verify(|done, total| progress.bytes(done as u64, total as u64));
        verified.map_err(|error| Error::invalid(error.reason()).at(place()))?;
        return Ok(vec![path.to_path_buf()]);
    }
    let file = SealedFile::read(path)?.map_err(Error::invalid).at(place)?;
    let mut files = vec![path.to_path_buf()];
    if let Some(own) = file.weights().at(place)? {
        let weights = own.path(path);
        if Weights::open(&weights).is_ok_and(|weights| weights.artefact() != own.artefact) {
            return Err(Error::invalid("it belongs to another artefact").at(weights.display().to_string()));
        }
        files.extend(intact(&weights)?);
    }
    Ok(files)
}

/// Writes the signature of a file, and returns its path.
fn sign(path: &Path, key: &SecretKey, comment: Option<&str>) -> Result<PathBuf> {
    let file = at_path(std::fs::File::open(path), path)?;
    let bytes = at_path(file.metadata(), path)?.len();
    let progress = Progress::new(format!("signing {}", path.display()), 0);
    let reader = Watched { file, done: 0, report: &|done| progress.bytes(done, bytes) };

    let comment = comment.map_or_else(|| default_comment(path), |comment| comment.trim().to_string());
    let untrusted = "signature by symc";
    let signed = minisign::sign(None, key, reader, Some(&comment), Some(untrusted));
    let signed = signed.map_err(|error| Error::invalid(error.to_string()).at(path.display().to_string()))?;
    let signature = signature_path(path);
    emit::write_atomically(&signature, &signed.to_bytes())?;
    Ok(signature)
}

/// The trusted comment that minisign itself would write.
fn default_comment(path: &Path) -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name: String = name.chars().filter(|c| !c.is_control()).collect();
    format!("timestamp:{seconds}\tfile:{}\thashed", name.trim())
}

/// A file that reports how many bytes were read.
struct Watched<'a> {
    file: std::fs::File,
    done: u64,
    report: &'a dyn Fn(u64),
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.done += count as u64;
        (self.report)(self.done);
        Ok(count)
    }
}
