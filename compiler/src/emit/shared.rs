//! Shared objects. Those for x86-64 ELF are linked here, others by the system's C compiler.

use super::{
    file::{folder, unwritable, write_pieces},
    link,
    object::Object,
};
use crate::error::{At, Error, ErrorKind, Result};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Links an object into the shared object at `path`, which appears whole or not at all; `libraries` have the functions
/// that the model calls, if it calls any.
///
/// # Errors
/// When the file can't be written; where a C compiler is needed, when there is none, or when it fails.
pub fn shared(mut object: Object, libraries: &[PathBuf], path: &Path) -> Result<()> {
    if !libraries.is_empty() || object.has_callees() || !object.is_x86_64_elf() {
        return by_compiler(&object.into_bytes()?, libraries, path);
    }
    let (bytes, weights) = object.apart()?;
    write_pieces(path, &link::link(&bytes, weights)?)
}

/// The compiler is that of the environment variable `CC`, else `cc`.
fn by_compiler(object: &[u8], libraries: &[PathBuf], path: &Path) -> Result<()> {
    let compiler =
        std::env::var_os("CC").filter(|name| !name.is_empty()).unwrap_or_else(|| OsString::from("cc"));
    let folder = folder(path)?;
    let scratch = tempfile::Builder::new()
        .prefix(".symshape-")
        .tempdir_in(folder)
        .map_err(|error| unwritable(&error))
        .at(|| path.display().to_string())?;
    let (input, output) = (scratch.path().join("model.o"), scratch.path().join("model.so"));
    fs::write(&input, object).map_err(|error| unwritable(&error)).at(|| input.display().to_string())?;
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-o"]).arg(&output).arg(&input);
    if libraries.is_empty() {
        command.arg("-nostdlib");
    }
    for library in libraries {
        // A library without a soname is found again by its path.
        let whole = std::path::absolute(library).map_err(|error| unwritable(&error));
        command.arg(whole.at(|| library.display().to_string())?);
    }
    if !libraries.is_empty() && cfg!(target_os = "linux") {
        command.args(["-lm", "-Wl,-rpath,$ORIGIN"]);
    }
    if cfg!(target_os = "linux") {
        // References bind to the artefact's functions, even if the process defines others of the same names.
        command.args(["-Wl,-Bsymbolic", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,--no-undefined"]);
    }
    let result = command.output().map_err(|error| no_compiler(&compiler, &error))?;
    if !result.status.success() {
        let text = String::from_utf8_lossy(&result.stderr);
        let message = format!("`{}` can't link a shared object: {}", compiler.display(), text.trim());
        return Err(Error::new(ErrorKind::Io, message));
    }
    fs::rename(&output, path).map_err(|error| unwritable(&error)).at(|| path.display().to_string())
}

/// The error of a machine without a C compiler.
fn no_compiler(compiler: &OsString, error: &std::io::Error) -> Error {
    let message = format!(
        "this shared object needs a C compiler as linker, and `{}` can't be started ({error}): install one, name it in the \
         environment variable CC, or emit an object (-o model.o)",
        compiler.display()
    );
    Error::new(ErrorKind::Io, message)
}
