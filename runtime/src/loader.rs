//! Opens shared objects.

use crate::{
    OpenError, Prefault,
    abi::{DESC_SYMBOL, ModelDesc},
    descriptor::Desc,
    elf, prefault,
};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
};
use core::ops::Range;
use libloading::{Library, Symbol};
use std::path::{Path, PathBuf};

/// The descriptor of the model in the shared object at `path`, and an address in it.
pub(crate) fn load(path: &Path) -> Result<(Desc, usize), OpenError> {
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

    // SAFETY: `Desc::read` checks magic and version first; everything else is as the ABI says for that version, and
    // stays mapped while the library is kept.
    let read = unsafe { Desc::read(desc, Arc::new(library)) }?;
    Ok((read, desc as usize))
}

/// Reads pages of the file that contains the address `inside`, and of `weights`, as `prefault` says.
pub(crate) fn read_ahead(
    inside: usize,
    weights: Option<&[u8]>,
    prefault: Prefault,
    progress: &mut dyn FnMut(usize, usize),
) {
    let ranges = prefault::ranges(inside, weights, prefault);
    let total = ranges.iter().map(|range| range.len()).sum();
    if prefault == Prefault::Background {
        ranges.into_iter().for_each(|range| _ = advise(range, Advice::ReadAhead));
        return;
    }

    let mut done = 0;
    for chunk in prefault::chunks(&ranges) {
        done += chunk.len();
        if !advise(chunk.clone(), Advice::MapPages) {
            touch(chunk.clone(), PAGE);
        }
        if prefault == Prefault::Start {
            touch(chunk, LINE);
        }
        progress(done, total);
    }
}

/// Bytes between two addresses in a line of the caches.
const LINE: usize = 64;
/// Smallest size of a page.
const PAGE: usize = 4096;

/// Reads one byte in each `step`.
fn touch(range: Range<usize>, step: usize) {
    for at in range.step_by(step) {
        // SAFETY: the page is mapped for reading, because the model under construction keeps the library and the
        // weights. It is inside of its file, whose length was compared with the headers before.
        unsafe { core::ptr::with_exposed_provenance::<u8>(at).read_volatile() };
    }
}

/// What the kernel is told about pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Advice {
    /// Read them from the file soon.
    ReadAhead,
    /// Read them from the file and map them, before the call returns.
    MapPages,
}

/// Passes the advice to the kernel. Returns whether it took it.
#[cfg(target_os = "linux")]
fn advise(range: Range<usize>, advice: Advice) -> bool {
    let advice = match advice {
        Advice::ReadAhead => libc::MADV_WILLNEED,
        Advice::MapPages => libc::MADV_POPULATE_READ,
    };
    let start = core::ptr::with_exposed_provenance_mut(range.start);
    // SAFETY: neither advice changes the contents or the rights of pages. A kernel refuses an advice that it does not
    // know.
    unsafe { libc::madvise(start, range.len(), advice) == 0 }
}

/// Other systems are not asked.
#[cfg(not(target_os = "linux"))]
fn advise(_range: Range<usize>, _advice: Advice) -> bool {
    false
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
