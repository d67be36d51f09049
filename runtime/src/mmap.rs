//! Files as memory.

use std::{fs::File, io, path::Path};

/// The file at `path`, mapped for reading.
///
/// The contents must not change while they are mapped: a truncated file would end the process on the next access.
///
/// # Errors
/// The file can't be opened or mapped.
pub fn map_file(path: &Path) -> io::Result<memmap2::Mmap> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder, not a file"));
    }
    // SAFETY: the mapping is read-only and private. The caller must not truncate the file while it is mapped, as
    // documented above.
    unsafe { memmap2::Mmap::map(&file) }
}
