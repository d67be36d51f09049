//! Opens shared objects.

use crate::{Model, OpenError, abi::DESC_SYMBOL, abi::ModelDesc, elf};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
};
use libloading::{Library, Symbol};
use std::path::{Path, PathBuf};

/// The model in the shared object at `path`.
pub(crate) fn open(path: &Path) -> Result<Model, OpenError> {
    let failed =
        |reason: &str| OpenError::Load { path: path.display().to_string(), reason: reason.to_string() };
    let full = full_path(path).map_err(|error| failed(&error))?;
    // SAFETY: artefacts of symshape have no initialisers; `Model::open` tells its callers that any other file's run.
    let library = unsafe { Library::new(&full) }.map_err(|error| failed(&reason(&error)))?;
    let name = format!("{DESC_SYMBOL}\0");
    // SAFETY: the name is only exported by artefacts, as data of this type.
    let desc: Symbol<'_, *const ModelDesc> = unsafe { library.get(name.as_bytes()) }
        .map_err(|_| OpenError::Malformed("it does not export `symshape_model`"))?;
    let desc = *desc;
    // SAFETY: `Desc::read` looks at magic and version first; the rest is as the ABI says for that version, and stays
    // mapped as long as the library is kept.
    unsafe { Model::from_desc(desc, Arc::new(library)) }
}

/// What the system's loader has to say.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A path that the system's loader does not search for elsewhere, of a file that is whole.
fn full_path(path: &Path) -> Result<PathBuf, String> {
    let io = |error: std::io::Error| error.to_string();
    let mut file = std::fs::File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.is_dir() {
        return Err("it is a folder".to_string());
    }
    if cfg!(target_os = "linux") {
        elf::check_whole(&mut file)?;
    }
    std::path::absolute(path).map_err(io)
}
