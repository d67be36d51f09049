//! Files that are either whole or not there.

use super::link::Piece;
use crate::error::{At, Error, ErrorKind, Result};
use ar_archive_writer::{ArchiveKind, DEFAULT_OBJECT_READER, NewArchiveMember, write_archive_to_stream};
use std::{
    fs::File,
    io::{Cursor, Seek, SeekFrom, Write},
    path::Path,
};

/// Writes a file under another name in the same folder, and then gives it its name.
///
/// # Errors
/// When the folder is missing or can't be written to.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write(path, 0o666, &|file| file.write_all(bytes))
}

/// Writes a file that may be executed, from parts at growing places in it; between them it is zero.
///
/// # Errors
/// When the folder is missing or can't be written to.
pub(super) fn write_pieces(path: &Path, pieces: &[Piece<'_>]) -> Result<()> {
    write(path, 0o777, &|file| {
        for (at, bytes) in pieces {
            file.seek(SeekFrom::Start(*at))?;
            file.write_all(bytes)?;
        }
        Ok(())
    })
}

/// Lets `fill` write a file under another name in the same folder, and then gives it its name.
fn write(path: &Path, mode: u32, fill: &dyn Fn(&mut File) -> std::io::Result<()>) -> Result<()> {
    let folder = folder(path)?;
    let write = || -> std::io::Result<()> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".symshape-");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
        #[cfg(not(unix))]
        let _ = mode;
        let mut file = builder.tempfile_in(folder)?;
        fill(file.as_file_mut())?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|error| unwritable(&error)).at(|| path.display().to_string())
}

/// The folder that a file will be in.
pub(super) fn folder(path: &Path) -> Result<&Path> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match folder.is_dir() && path.file_name().is_some() {
        true => Ok(folder),
        false => {
            Err(Error::new(ErrorKind::Io, "can't write: there is no such folder")
                .at(path.display().to_string()))
        }
    }
}

/// The error for an output that can't be written.
pub(super) fn unwritable(error: &std::io::Error) -> Error {
    // The rest of the text names a temporary file.
    let text = error.to_string();
    let text = text.split(" at path ").next().unwrap_or_default();
    Error::new(ErrorKind::Io, format!("can't write: {text}"))
}

/// An archive (`.a`) with one member.
///
/// # Errors
/// Only when the object is none.
pub fn archive(name: &str, object: &[u8]) -> Result<Vec<u8>> {
    let kind = if cfg!(target_vendor = "apple") { ArchiveKind::Darwin } else { ArchiveKind::Gnu };
    let member = NewArchiveMember::new(object, &DEFAULT_OBJECT_READER, format!("{name}.o"));
    let mut bytes = Cursor::new(Vec::new());
    write_archive_to_stream(&mut bytes, &[member], kind, false, None)
        .map_err(|error| Error::internal(format!("archive: {error}")))?;
    Ok(bytes.into_inner())
}
