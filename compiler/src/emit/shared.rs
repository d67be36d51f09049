//! Shared libraries. This compiler links those of [`link::Format`] itself; a C compiler links others, and those with
//! external functions.

use super::{
    file::{append_seal, folder, unwritable, write_pieces},
    link,
    object::Object,
};
use crate::{
    error::{At, Error, ErrorKind, Result},
    target::Platform,
};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Links an object into the shared library at `path`, which appears completely or not at all. `libraries` define the
/// external functions of the model.
///
/// # Errors
/// When the file can't be written; when a C compiler is needed and is missing or fails.
pub fn shared(mut object: Object, libraries: &[PathBuf], path: &Path) -> Result<()> {
    let command_line = std::mem::take(&mut object.command_line);
    let Some(format) = object.library() else {
        let linking = Linking { platform: object.platform(), libraries, command_line: &command_line };
        return link_by_compiler(&object.into_unsealed()?, &linking, path);
    };

    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (bytes, weights) = object.without_weights()?;
    write_pieces(path, &link::link(format, &bytes, weights, &name)?, &command_line)
}

/// How a C compiler links an object.
struct Linking<'a> {
    platform: Platform,
    libraries: &'a [PathBuf],
    /// See [`Object::command_line`].
    command_line: &'a str,
}

/// Links by the compiler that the environment variable `CC` names, or else by `cc`.
fn link_by_compiler(object: &[u8], linking: &Linking<'_>, path: &Path) -> Result<()> {
    let Linking { platform, libraries, command_line } = *linking;
    let compiler =
        std::env::var_os("CC").filter(|name| !name.is_empty()).unwrap_or_else(|| OsString::from("cc"));
    let folder = folder(path)?;
    let scratch = tempfile::Builder::new()
        .prefix(".symshape-")
        .tempdir_in(folder)
        .map_err(|error| unwritable(&error))
        .at(|| path.display().to_string())?;
    let input = scratch.path().join("model.o");
    let output = scratch.path().join("model.so");
    fs::write(&input, object).map_err(|error| unwritable(&error)).at(|| input.display().to_string())?;

    let mut command = Command::new(&compiler);
    command.args(["-shared", "-o"]).arg(&output).arg(&input);
    if libraries.is_empty() {
        command.arg("-nostdlib");
    }
    for library in libraries {
        // The loader finds a library without a soname by this path.
        let absolute = std::path::absolute(library).map_err(|error| unwritable(&error));
        command.arg(absolute.at(|| library.display().to_string())?);
    }
    if !libraries.is_empty() && platform == Platform::Elf {
        command.args(["-lm", "-Wl,-rpath,$ORIGIN"]);
    }
    if platform == Platform::Elf {
        // References bind to the artefact's functions, even if the process defines functions of the same names.
        command.args(["-Wl,-Bsymbolic", "-Wl,-z,noexecstack", "-Wl,--build-id=none", "-Wl,--no-undefined"]);
    }

    let result = command.output().map_err(|error| no_compiler(&compiler, &error))?;
    if !result.status.success() {
        let text = String::from_utf8_lossy(&result.stderr);
        let message = format!("`{}` can't link a shared object: {}", compiler.display(), text.trim());
        return Err(Error::new(ErrorKind::Io, message));
    }
    let written = append_seal(&output, command_line, None).map_err(|error| unwritable(&error));
    written.at(|| output.display().to_string())?;
    fs::rename(&output, path).map_err(|error| unwritable(&error)).at(|| path.display().to_string())
}

/// The error for a C compiler that can't be started.
fn no_compiler(compiler: &OsString, error: &std::io::Error) -> Error {
    let message = format!(
        "this shared object needs a C compiler as linker, and `{}` can't be started ({error}): install one, name it in the \
         environment variable CC, or emit an object (-o model.o)",
        compiler.display()
    );
    Error::new(ErrorKind::Io, message)
}
