//! Files that appear completely or not at all. Several files can be staged first and then committed.

use super::{
    link::{Content, Piece},
    seal::{WEIGHTS_PART, sealed_end},
};
use crate::{
    error::{At, Error, ErrorKind, Result},
    parallel,
    tensor::Bytes,
};
use ar_archive_writer::{ArchiveKind, DEFAULT_OBJECT_READER, NewArchiveMember, write_archive_to_stream};
use object::FileKind;
use std::{
    fs::File,
    io::{Cursor, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};
use symshape_runtime::{PartHasher, SealedPart};
use tempfile::NamedTempFile;

/// A file that is written but does not have its final name yet. Dropping it removes the file.
#[must_use = "the file appears only when it is committed"]
#[derive(Debug)]
pub struct Staged {
    file: NamedTempFile,
    path: PathBuf,
}

impl Staged {
    /// Gives the file its final name.
    ///
    /// # Errors
    /// When the path can't be replaced.
    pub fn commit(self) -> Result<()> {
        let Staged { file, path } = self;
        let named = file.persist(&path).map_err(|error| unwritable(&error.error));
        named.map(drop).at(|| path.display().to_string())
    }

    /// Calls `check` with the bytes that were written.
    pub(super) fn check(&self, check: impl FnOnce(&[u8]) -> Result<()>) -> Result<()> {
        let mapped = symshape_runtime::map_file(self.file.path()).map_err(|error| unwritable(&error));
        check(&mapped.at(|| self.path.display().to_string())?)
    }

    /// Appends the command line and the seal to the artefact that was written. The part of the weights may be hashed
    /// already.
    pub(super) fn seal(&self, command_line: &str, weights: Option<&SealedPart>) -> Result<()> {
        append_seal(self.file.path(), command_line, weights)
            .map_err(|error| unwritable(&error))
            .at(|| self.path.display().to_string())
    }
}

/// Writes a file under a temporary name in the same folder.
///
/// # Errors
/// When the folder is missing or can't be written to, or `path` is a folder.
pub fn stage(path: &Path, bytes: &[u8]) -> Result<Staged> {
    fill(path, 0o666, &mut |file| file.write_all(bytes))
}

/// Writes a file under a temporary name in the same folder, and then gives it its final name.
///
/// # Errors
/// When the folder is missing or can't be written to.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    stage(path, bytes)?.commit()
}

/// Bytes that are written before their memory is released.
const CHUNK_BYTES: usize = 4 << 20;

/// The smallest number of bytes that another thread hashes.
const MIN_SHARED_BYTES: usize = 512 << 10;

/// Writes an executable file from pieces at ascending offsets, and its seal. The bytes between pieces are zero.
///
/// The memory of weights that are mapped or computed is released on the way.
///
/// # Errors
/// When the folder is missing or can't be written to.
pub(super) fn write_pieces(path: &Path, pieces: &[Piece<'_>], command_line: &str) -> Result<()> {
    let mut weights: Option<PartHasher> = None;
    let staged = fill(path, 0o777, &mut |file| {
        for (at, content) in pieces {
            file.seek(SeekFrom::Start(*at))?;
            match content {
                Content::Weight(weight) => {
                    let at = *at as usize;
                    let part = weights.get_or_insert_with(|| PartHasher::new(WEIGHTS_PART, at));
                    append_zeros(part, at);
                    write_weight(file, weight, part)?;
                }
                Content::Bytes(bytes) => file.write_all(bytes)?,
            }
        }
        Ok(())
    })?;
    staged.seal(command_line, weights.map(PartHasher::finish).as_ref())?;
    staged.commit()
}

/// Appends zeros to the part of the weights, up to the next weight.
pub(super) fn append_zeros(part: &mut PartHasher, end: usize) {
    const ZEROS: [u8; 4096] = [0; 4096];
    while part.end() < end {
        part.update(&ZEROS[..(end - part.end()).min(ZEROS.len())]);
    }
}

/// Writes a weight, and hashes it at the same time. Its memory is released on the way if it is mapped or computed.
pub(super) fn write_weight(
    out: &mut dyn Write,
    weight: &Bytes,
    part: &mut PartHasher,
) -> std::io::Result<()> {
    weight.visit(CHUNK_BYTES, &mut |chunk| {
        if chunk.len() < MIN_SHARED_BYTES {
            part.update(chunk);
            out.write_all(chunk)?;
        } else {
            parallel::join(|| out.write_all(chunk), || part.update(chunk)).0?;
        }
        Ok(())
    })
}

/// Appends the command line of an artefact and the seal to its file. The part of the weights may be hashed already.
pub(super) fn append_seal(
    path: &Path,
    command_line: &str,
    weights: Option<&SealedPart>,
) -> std::io::Result<()> {
    let artefact = symshape_runtime::map_file(path)?;
    let end = sealed_end(&artefact, command_line, weights, &mut |range| artefact.release(range));
    File::options().append(true).open(path)?.write_all(&end)
}

/// Creates a file under a temporary name in the same folder, and lets `write` fill it.
pub(super) fn fill(
    path: &Path,
    mode: u32,
    write: &mut dyn FnMut(&mut File) -> std::io::Result<()>,
) -> Result<Staged> {
    let folder = folder(path)?;
    let mut create = || -> std::io::Result<NamedTempFile> {
        if path.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }

        let mut builder = tempfile::Builder::new();
        builder.prefix(".symshape-");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
        #[cfg(not(unix))]
        let _ = mode;

        let mut file = builder.tempfile_in(folder)?;
        write(file.as_file_mut())?;
        Ok(file)
    };
    let file = create().map_err(|error| unwritable(&error)).at(|| path.display().to_string())?;
    Ok(Staged { file, path: path.to_path_buf() })
}

/// The folder that a file will be in.
///
/// # Errors
/// There is no such folder.
pub(crate) fn folder(path: &Path) -> Result<&Path> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if folder.is_dir() && path.file_name().is_some() {
        Ok(folder)
    } else {
        Err(Error::new(ErrorKind::Io, "can't write: there is no such folder").at(path.display().to_string()))
    }
}

/// The error for an output that can't be written.
pub(super) fn unwritable(error: &std::io::Error) -> Error {
    // The rest of the message names a temporary file.
    let text = error.to_string();
    let text = text.split(" at path ").next().unwrap_or_default();
    Error::new(ErrorKind::Io, format!("can't write: {text}"))
}

/// An archive (`.a`, `.lib`) with one member, in the form that the linkers of the object's platform read.
///
/// # Errors
/// When `object` is not an object.
pub fn archive(name: &str, object: &[u8]) -> Result<Vec<u8>> {
    let kind = match object::FileKind::parse(object) {
        Ok(FileKind::MachO64) => ArchiveKind::Darwin,
        Ok(FileKind::Coff | FileKind::CoffBig) => ArchiveKind::Coff,
        Ok(_) => ArchiveKind::Gnu,
        Err(error) => return Err(Error::internal(format!("archive: {error}"))),
    };
    let member = NewArchiveMember::new(object, &DEFAULT_OBJECT_READER, format!("{name}.o"));
    let mut bytes = Cursor::new(Vec::new());
    write_archive_to_stream(&mut bytes, &[member], kind, false, None)
        .map_err(|error| Error::internal(format!("archive: {error}")))?;
    Ok(bytes.into_inner())
}
