//! Signatures of files in the format of minisign.
//!
//! The signature of a file is in a second file, whose name is that of the first with `.minisig` at its end. It covers
//! all bytes of the file, but not its name: a file that is replaced by another one with its own signature by the same
//! key is accepted.

use minisign_verify::{Error, PublicKey, Signature};
use std::{
    ffi::OsString,
    format,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    str::FromStr,
    string::{String, ToString},
};

/// Larger files are neither keys nor signatures.
const MAX_BYTES: u64 = 1 << 16;
/// Characters of a secret key in base64.
const SECRET_KEY_CHARACTERS: usize = 212;
/// The beginning of the first line of each file of minisign.
const COMMENT: &str = "untrusted comment:";

/// A public key of minisign. A program that trusts it opens only files that its secret key has signed, see
/// [`OpenOptions::trusted_key`](crate::OpenOptions::trusted_key).
///
/// Parses from its base64 text, or from the contents of its file:
///
/// ```
/// use symshape_runtime::TrustedKey;
///
/// let key: TrustedKey = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3".parse()?;
/// # Ok::<(), symshape_runtime::KeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrustedKey(PublicKey);

/// The reason why a text or a file is not a public key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct KeyError(String);

impl TrustedKey {
    /// Reads a key file, such as `minisign.pub`.
    ///
    /// # Errors
    /// The file can't be read, or is not a public key of minisign.
    pub fn read(path: impl AsRef<Path>) -> Result<TrustedKey, KeyError> {
        let path = path.as_ref();
        let failed = |reason: String| KeyError(format!("{}: {reason}", path.display()));
        let text = read_text(path).map_err(|error| failed(error.to_string()))?;
        text.parse().map_err(|error: KeyError| failed(error.0))
    }

    /// The key that an argument names: its base64 text, or the path of its file.
    ///
    /// # Errors
    /// The argument is neither.
    pub fn from_argument(argument: &str) -> Result<TrustedKey, KeyError> {
        if let Ok(key) = argument.parse() {
            return Ok(key);
        }
        if !Path::new(argument).exists() {
            let message = format!("`{argument}` is neither a public key of minisign in base64 nor a file");
            return Err(KeyError(message));
        }
        TrustedKey::read(argument)
    }
}

impl FromStr for TrustedKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<TrustedKey, KeyError> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        let key = if first.starts_with(COMMENT) { lines.next().unwrap_or_default() } else { first };
        let failed = |reason: &str| KeyError(format!("it is not a public key of minisign: {reason}"));
        if key.len() == SECRET_KEY_CHARACTERS {
            return Err(failed("it is a secret key; keep it secret, and name its public key"));
        }
        if lines.next().is_some() {
            return Err(failed("it has more than one line after the comment"));
        }
        PublicKey::from_base64(key).map(TrustedKey).map_err(|error| match error {
            Error::UnsupportedAlgorithm => failed("its algorithm is unknown"),
            _ => failed("expected 56 characters of base64"),
        })
    }
}

/// The file with the signature of the file at `path`.
pub fn signature_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".minisig");
    name.into()
}

/// Checks the signature of the file at `path`, whose contents are `bytes`, by any of the keys. Returns the trusted
/// comment, which the signature covers.
///
/// # Errors
/// The reason why the file is refused: it has no signature, or one by another key, or it was changed since.
pub fn check_signature(path: &Path, bytes: &[u8], keys: &[TrustedKey]) -> Result<String, String> {
    let file = signature_path(path);
    let text = read_text(&file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("it has no signature: there is no file {}", file.display()),
        _ => format!("its signature can't be read: {}: {error}", file.display()),
    })?;
    let signature = Signature::decode(&text).map_err(|error| {
        let reason = match error {
            Error::UnsupportedAlgorithm => "its algorithm is unknown",
            _ => "it is damaged, or not a signature of minisign",
        };
        format!("its signature can't be read: {}: {reason}", file.display())
    })?;

    let mut reason = "is by a key that is not trusted";
    for TrustedKey(key) in keys {
        match key.verify(bytes, &signature, true) {
            Ok(()) => return Ok(signature.trusted_comment().to_string()),
            Err(Error::UnexpectedKeyId) => {}
            Err(_) => reason = "does not match: the file, its signature or the trusted comment was changed",
        }
    }
    Err(format!("its signature {} {reason}", file.display()))
}

/// The contents of a small file.
fn read_text(path: &Path) -> io::Result<String> {
    // To open a pipe would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = std::vec::Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not text in UTF-8"))
}
