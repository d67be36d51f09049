//! Files as memory.

use core::ops::{Deref, Range};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// A file that is mapped for reading.
#[derive(Debug)]
pub struct FileMap(memmap2::Mmap);

impl FileMap {
    /// Tells the system that these bytes are not needed soon. They no longer count as memory of this process, and the
    /// next access reads them from the file or from its cache. Does nothing on systems other than Unix.
    pub fn release(&self, range: Range<usize>) {
        let range = range.start.min(self.len())..range.end.min(self.len());
        #[cfg(unix)]
        if !range.is_empty() {
            // SAFETY: the pages are a read-only view of a file, shared with it, so the next access finds the same
            // bytes.
            let advised = unsafe {
                self.0.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    range.start,
                    range.end - range.start,
                )
            };
            // Advice that is not taken changes nothing.
            drop(advised);
        }
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The file at `path`, mapped for reading.
///
/// The contents must not change while they are mapped: a truncated file would end the process on the next access.
///
/// # Errors
/// The file can't be opened or mapped.
pub fn map_file(path: &Path) -> io::Result<FileMap> {
    let file = open(path)?;
    // SAFETY: the mapping is read-only and shared with the file. The caller must not truncate the file while it is
    // mapped, as documented above.
    unsafe { memmap2::Mmap::map(&file) }.map(FileMap)
}

/// A copy of the file at `path` in memory that only this process can change.
///
/// # Errors
/// The file can't be read, or the system refuses the memory.
pub(crate) fn copy_file(path: &Path) -> io::Result<memmap2::Mmap> {
    let mut file = open(path)?;
    let bytes = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // A mapping has at least one byte.
    let mut copy = memmap2::MmapMut::map_anon(bytes.max(1))?;
    file.read_exact(&mut copy[..bytes])?;
    copy.make_read_only()
}

/// Opens a file for reading. A folder is refused.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, not a file"));
    }
    Ok(file)
}
