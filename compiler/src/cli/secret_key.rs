//! Secret keys of minisign, and their passwords.

use super::errors::{at_path, usage};
use crate::error::{At, Error, Result};
use ct_codecs::{Base64, Decoder};
use minisign::{KeyPair, PError, PublicKey, SecretKey, SecretKeyBox};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    ops::Range,
    path::Path,
};

/// Larger files are not keys.
const MAX_BYTES: u64 = 1 << 16;
/// Bytes of a secret key.
const KEY_BYTES: usize = 158;
/// The place of the name of the function that derives keys from passwords; zeros for a key without a password.
const ENCRYPTION: Range<usize> = 2..4;
const SCRYPT: &[u8] = b"Sc";
/// The place of the cost of deriving a key from a password.
const OPERATIONS: Range<usize> = 38..46;
/// The place of the hash of the key.
const CHECKSUM: Range<usize> = 126..158;
/// The largest cost of deriving a key from a password: 16 times that of minisign.
const MAX_OPERATIONS: u64 = 1 << 29;

/// Where the password of a key comes from.
pub(super) enum Password {
    /// The terminal.
    Ask,
    Given(String),
    /// The new key is not encrypted.
    None,
}

impl Password {
    /// The first line of a file.
    pub(super) fn from_file(path: &Path) -> Result<Password> {
        Ok(Password::Given(read_text(path)?.lines().next().unwrap_or_default().to_string()))
    }
}

/// Reads the secret key at `path`, which contains its public key.
///
/// # Errors
/// It is not a secret key of minisign, or the password is missing or wrong.
pub(super) fn read(path: &Path, password: Password) -> Result<KeyPair> {
    let place = || path.display().to_string();
    let text = read_text(path)?;
    let bytes = decoded(&text).map_err(not_a_key).at(place)?;
    let key = if bytes[ENCRYPTION] == *SCRYPT {
        let password = match password {
            Password::Given(password) => password,
            Password::Ask | Password::None => ask(&format!("Password of {}: ", path.display()))?,
        };
        SecretKeyBox::from(text).into_secret_key(Some(password))
    } else if bytes[CHECKSUM].iter().all(|byte| *byte == 0) {
        // The program minisign writes no checksum into such keys.
        SecretKey::from_bytes(&bytes)
    } else {
        SecretKeyBox::from(text).into_unencrypted_secret_key()
    };
    let sk = key.map_err(|error| invalid(&error)).at(place)?;
    let pk = PublicKey::from_secret_key(&sk).map_err(|error| invalid(&error)).at(place)?;
    // Signs nothing, and checks the signature by the public key.
    let trial = minisign::sign(Some(&pk), &sk, io::empty(), None, None);
    trial.map_err(|_| Error::invalid("the secret key is damaged").at(place()))?;
    Ok(KeyPair { pk, sk })
}

/// Writes a new key pair to two files that don't exist yet. Returns the public key in base64.
pub(super) fn generate(secret_path: &Path, public_path: &Path, password: Password) -> Result<String> {
    for path in [secret_path, public_path] {
        if path.exists() {
            return Err(usage(format!("{} exists already: keys are never replaced", path.display())));
        }
    }
    let pair = match password {
        Password::None => KeyPair::generate_unencrypted_keypair(),
        Password::Given(password) => KeyPair::generate_encrypted_keypair(Some(password)),
        Password::Ask => {
            let password = ask("Password for the new secret key: ")?;
            if ask("The same password again: ")? != password {
                return Err(usage("the two passwords differ"));
            }
            KeyPair::generate_encrypted_keypair(Some(password))
        }
    };
    let KeyPair { pk: public, sk: secret } = pair.map_err(|error| invalid(&error))?;
    let comment = "minisign secret key";
    let secret = secret.to_box(Some(comment)).map_err(|error| invalid(&error))?;
    let public_box = public.to_box().map_err(|error| invalid(&error))?;
    create(secret_path, 0o600, &secret.to_bytes())?;
    let written = create(public_path, 0o644, &public_box.to_bytes());
    if written.is_err() {
        // One key without the other is of no use. The first error says more than a second one.
        let _ = fs::remove_file(secret_path);
    }
    written?;
    Ok(public.to_base64())
}

/// The bytes of the secret key in this text.
///
/// # Errors
/// The reason why the text is not a secret key of minisign that can be used here.
fn decoded(text: &str) -> std::result::Result<Vec<u8>, &'static str> {
    let mut lines = text.lines();
    let _comment = lines.next();
    let key = lines.next().ok_or("expected a comment and a line of base64")?;
    let key = Base64::decode_to_vec(key, None).map_err(|_| "its second line is not base64")?;
    if key.len() != KEY_BYTES {
        return Err(match key.len() {
            42 => "it is a public key",
            _ => "it has another size",
        });
    }
    if &key[..2] != b"Ed" || &key[4..6] != b"B2" {
        return Err("its algorithm is unknown");
    }
    let operations = u64::from_le_bytes(key[OPERATIONS].try_into().map_err(|_| "it has another size")?);
    match &key[ENCRYPTION] {
        SCRYPT if operations > MAX_OPERATIONS => Err("its password would take too long to check"),
        SCRYPT | [0, 0] => Ok(key),
        _ => Err("its encryption is unknown"),
    }
}

fn not_a_key(reason: &str) -> Error {
    Error::invalid(format!("it is not a secret key of minisign: {reason}"))
}

fn invalid(error: &PError) -> Error {
    Error::invalid(error.to_string())
}

/// Reads a password from the terminal.
fn ask(prompt: &str) -> Result<String> {
    rpassword::prompt_password(prompt).map_err(|error| {
        usage(format!(
            "no terminal to ask for the password of the secret key ({error}): name --password-file"
        ))
    })
}

/// The contents of a small file.
fn read_text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let file = at_path(File::open(path), path)?;
    at_path(file.take(MAX_BYTES + 1).read_to_end(&mut bytes), path)?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= MAX_BYTES);
    text.ok_or_else(|| Error::invalid("it is not a short text").at(path.display().to_string()))
}

/// Writes a file that does not exist yet.
fn create(path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = at_path(options.open(path), path)?;
    at_path(file.write_all(bytes), path)
}
