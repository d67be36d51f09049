//! Opens shared objects.

use crate::{
    OpenError, Prefault, TrustedKey,
    abi::{DESC_SYMBOL, ModelDesc},
    descriptor::Desc,
    elf, mmap, prefault,
};
use alloc::{
    format,
    string::{String, ToString},
    sync::Arc,
};
use core::ops::Range;
use libloading::{Library, Symbol};
use std::path::{Path, PathBuf};
#[cfg(target_os = "linux")]
use {
    crate::check_signature,
    std::{
        fs::File,
        io::{Read, Seek},
        os::{fd::FromRawFd, unix::fs::MetadataExt},
    },
};

/// Shared objects are smaller: code and weights in one reach each other up to 2 GB.
#[cfg(target_os = "linux")]
const MAX_LIBRARY_BYTES: u64 = 1 << 32;

/// The descriptor of the model in the shared object at `path`, and an address in it.
pub(crate) fn load(path: &Path) -> Result<(Desc, usize), OpenError> {
    let failed =
        |reason: &str| OpenError::Load { path: path.display().to_string(), reason: reason.to_string() };
    let full = full_path(path).map_err(|error| failed(&error))?;
    open(&full, path, ())
}

/// As [`load`], for a file with a signature by one of the keys. The code that is mapped is that of a copy, which no
/// process can change after its signature was checked.
#[cfg(target_os = "linux")]
pub(crate) fn load_signed(path: &Path, keys: &[TrustedKey]) -> Result<(Desc, usize), OpenError> {
    use std::os::fd::AsRawFd;
    let failed = |reason: String| OpenError::Load { path: path.display().to_string(), reason };
    let mut copy = sealed_copy(path).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the copy is sealed, so its bytes and its length never change.
    let bytes = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&copy) };
    let bytes = bytes.map_err(|error| failed(error.to_string()))?;
    check_signature(path, &bytes, keys).map_err(failed)?;
    elf::check_whole(&mut copy).map_err(failed)?;
    if let Some(library) = elf::needed_library(&bytes) {
        return Err(failed(format!(
            "it needs the library {library}, whose code its signature does not cover"
        )));
    }
    drop(bytes);

    let name = PathBuf::from(format!("/proc/self/fd/{}", copy.as_raw_fd()));
    let inode = copy.metadata().map_err(|error| failed(error.to_string()))?.ino();
    // The system's loader tells libraries apart by their names, so the descriptor stays open as long as the library.
    let (desc, inside) = open(&name, path, copy)?;
    if prefault::inode_at(inside) != Some(inode) {
        return Err(failed(
            "the system's loader returned another library of the same descriptor".to_string(),
        ));
    }
    Ok((desc, inside))
}

/// Other systems can't load a library from memory.
#[cfg(not(target_os = "linux"))]
pub(crate) fn load_signed(path: &Path, _keys: &[TrustedKey]) -> Result<(Desc, usize), OpenError> {
    let reason = "signatures are checked on Linux only: this system can't load a library from sealed memory";
    Err(OpenError::Load { path: path.display().to_string(), reason: reason.to_string() })
}

/// A copy of the file at `path` in memory, which can't be changed.
#[cfg(target_os = "linux")]
fn sealed_copy(path: &Path) -> std::io::Result<File> {
    let file = mmap::open(path)?;
    if file.metadata()?.len() > MAX_LIBRARY_BYTES {
        return Err(std::io::Error::other("it is too large for a shared object of symc"));
    }
    // SAFETY: the name ends with a zero byte.
    let descriptor =
        unsafe { libc::memfd_create(c"symshape".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and nothing else owns it.
    let mut copy = unsafe { File::from_raw_fd(descriptor) };
    std::io::copy(&mut file.take(MAX_LIBRARY_BYTES), &mut copy)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE | libc::F_SEAL_SEAL;
    // SAFETY: the command takes an integer.
    if unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    copy.rewind()?;
    Ok(copy)
}

/// Opens the library at `full`, which errors call `path`. `keep` is dropped after the library.
fn open<K: Send + Sync + 'static>(full: &Path, path: &Path, keep: K) -> Result<(Desc, usize), OpenError> {
    let failed =
        |reason: &str| OpenError::Load { path: path.display().to_string(), reason: reason.to_string() };
    // SAFETY: initialisers of symshape's artefacts are safe to run; `Model::open` documents that those of any other
    // file run too.
    let library = unsafe { Library::new(full) }.map_err(|error| failed(&reason(&error)))?;
    let name = format!("{DESC_SYMBOL}\0");

    // SAFETY: only artefacts export this name, as data of this type.
    let desc: Symbol<'_, *const ModelDesc> = unsafe { library.get(name.as_bytes()) }
        .map_err(|_| OpenError::Malformed("it does not export the symbol `symshape_model`"))?;
    let desc = *desc;

    // SAFETY: `Desc::read` checks magic and version first; everything else is as the ABI says for that version, and
    // stays mapped while the library is kept.
    let read = unsafe { Desc::read(desc, Arc::new((library, keep))) }?;
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
