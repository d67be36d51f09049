//! Opens shared objects.

use crate::{
    OpenError,
    abi::{DESC_SYMBOL, ModelDesc},
    descriptor::Desc,
    elf,
};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};
use libloading::{Library, Symbol};
use std::path::{Path, PathBuf};

/// The descriptor of the model in the shared object at `path`.
pub(crate) fn open(path: &Path) -> Result<Desc, OpenError> {
    let failed =
        |reason: &str| OpenError::Load { path: path.display().to_string(), reason: reason.to_string() };
    let full = full_path(path).map_err(|error| failed(&error))?;

    // SAFETY: initialisers of symshape's artefacts are safe to run; `Model::open` documents that those of any other
    // file run too.
    let library = unsafe { Library::new(&full) }.map_err(|error| failed(&reason(&error)))?;
    let name = format!("{DESC_SYMBOL}\0");

    // SAFETY: only artefacts export this name, as data of this type.
    let desc: Symbol<'_, *const ModelDesc> = unsafe { library.get(name.as_bytes()) }
        .map_err(|_| OpenError::Malformed("it does not export the symbol `symshape_model`"))?;
    let desc = *desc;

    if cfg!(target_os = "linux") {
        touch(desc as usize);
    }

    // SAFETY: `Desc::read` checks magic and version first; everything else is as the ABI says for that version, and
    // stays mapped while the library is kept.
    unsafe { Desc::read(desc, Arc::new(library)) }
}

/// Largest number of bytes of an artefact that are read when it is opened.
const MAX_READ_BYTES: usize = 256 << 20;

/// Reads the mapped file that contains the address `inside`. The kernel then has mapped its pages, and small weights
/// are in the caches, so the first call takes no longer than later ones. Does nothing if the system does not list its
/// mappings.
fn touch(inside: usize) {
    const LINE: usize = 64;
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let mappings: Vec<(core::ops::Range<usize>, &str)> = maps.lines().filter_map(mapping).collect();
    let Some((_, file)) = mappings.iter().find(|(range, _)| range.contains(&inside)) else { return };
    let own = mappings.iter().filter(|(_, other)| other == file);
    for at in own.flat_map(|(range, _)| range.clone().step_by(LINE)).take(MAX_READ_BYTES / LINE) {
        // SAFETY: the page is mapped for reading while the library is kept, and is inside the file, whose length was
        // compared with its headers before.
        unsafe { core::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
    }
}

/// The address range of a readable mapping, and the device and inode of its file, from a line of `/proc/self/maps`.
fn mapping(line: &str) -> Option<(core::ops::Range<usize>, &str)> {
    let mut fields = line.splitn(4, ' ');
    let range = fields.next()?;
    let rights = fields.next()?;
    let _offset = fields.next()?;
    let file = fields.next()?;
    let (begin, end) = range.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let path_at = file.match_indices(' ').nth(1)?.0;
    rights.starts_with('r').then_some((hex(begin)?..hex(end)?, &file[..path_at]))
}

/// The reason that the system's loader gives.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The absolute path of a complete file. The system's loader does not search other folders for an absolute path.
fn full_path(path: &Path) -> Result<PathBuf, String> {
    let io = |error: std::io::Error| error.to_string();
    let mut file = std::fs::File::open(path).map_err(io)?;
    if file.metadata().map_err(io)?.is_dir() {
        return Err("it is a folder, not a shared object".to_string());
    }
    if cfg!(target_os = "linux") {
        elf::check_whole(&mut file)?;
    }
    std::path::absolute(path).map_err(io)
}
