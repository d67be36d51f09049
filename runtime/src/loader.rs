//! Opens shared objects.

use crate::{Model, OpenError, abi::DESC_SYMBOL, abi::ModelDesc};
use alloc::{format, string::ToString, sync::Arc};
use libloading::{Library, Symbol};
use std::path::{Path, PathBuf};

/// The model in the shared object at `path`.
pub(crate) fn open(path: &Path) -> Result<Model, OpenError> {
    let failed =
        |reason: &str| OpenError::Load { path: path.display().to_string(), reason: reason.to_string() };
    let full = full_path(path).map_err(|error| failed(&error.to_string()))?;
    // SAFETY: artefacts of symshape have no initialisers; `Model::open` tells its callers that any other file's run.
    let library = unsafe { Library::new(&full) }.map_err(|error| failed(&error.to_string()))?;
    let name = format!("{DESC_SYMBOL}\0");
    // SAFETY: the name is only exported by artefacts, as data of this type.
    let desc: Symbol<'_, *const ModelDesc> = unsafe { library.get(name.as_bytes()) }
        .map_err(|_| OpenError::Malformed("it does not export `symshape_model`"))?;
    let desc = *desc;
    // SAFETY: `Desc::read` looks at magic and version first; the rest is as the ABI says for that version, and stays
    // mapped as long as the library is kept.
    unsafe { Model::from_desc(desc, Arc::new(library)) }
}

/// A path that the system's loader does not search for elsewhere.
fn full_path(path: &Path) -> std::io::Result<PathBuf> {
    std::fs::File::open(path)?;
    std::path::absolute(path)
}
