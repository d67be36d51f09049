//! Weights files that are mapped, or that are in memory for the rest of the program.

use super::{check, read_header};
use crate::{
    FileMap, TrustedKey,
    abi::{WEIGHTS_ALIGN, WeightsDesc, WeightsHeader, WeightsSegment},
    bytes::{array_at, u64_at},
    check_signature, map_file,
    mmap::copy_file,
};
use core::{fmt, mem::offset_of, ops::Range};
use memmap2::Mmap;
use std::{
    format,
    path::Path,
    str,
    string::{String, ToString},
    sync::Arc,
    vec::Vec,
};

/// Bytes that are hashed between two reports of progress.
const CHUNK_BYTES: usize = 16 << 20;

/// A weights file in memory. Clones share it, and so do processes that open the same file.
#[derive(Clone)]
pub struct Weights(Arc<Contents>);

struct Contents {
    name: String,
    memory: Memory,
    header: WeightsHeader,
    segments: Vec<SegmentInfo>,
}

enum Memory {
    Mapped(FileMap),
    Copied(Mmap),
    Static(&'static [u8]),
}

/// A constant in a weights file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentInfo {
    name: String,
    range: Range<usize>,
    hash: [u8; 32],
}

impl SegmentInfo {
    /// The weight in words, such as ``weight `w` ``, and the form that kernels read it in if it is packed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The place of its bytes in the file.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// The error of a weights file. It names the file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct WeightsError {
    file: String,
    reason: String,
}

impl WeightsError {
    /// The reason, without the name of the file.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl Weights {
    /// Maps the file at `path` for reading, and checks its header, its size and the layout of its segments. The time
    /// does not depend on the size of the file.
    ///
    /// The file must not change while it is mapped: a truncated file would end the process on the next access.
    ///
    /// # Errors
    /// The file is missing, truncated or damaged, or is not a weights file of this version.
    pub fn open(path: impl AsRef<Path>) -> Result<Weights, WeightsError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let map = map_file(path);
        let map = map.map_err(|error| WeightsError { file: name.clone(), reason: error.to_string() })?;
        Weights::new(name, Memory::Mapped(map))
    }

    /// As [`Weights::open`], for a file with a signature by one of the keys, see [`TrustedKey`].
    ///
    /// Whoever may write to a mapped file can change it after it was checked. So the file is copied to memory of this
    /// process, and the copy is checked.
    ///
    /// # Errors
    /// As [`Weights::open`]; and when the file has no signature, or one that does not match, or when there is not
    /// enough memory.
    pub fn open_signed(path: impl AsRef<Path>, keys: &[TrustedKey]) -> Result<Weights, WeightsError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |reason: String| WeightsError { file: name.clone(), reason };
        let copy = copy_file(path).map_err(|error| failed(error.to_string()))?;
        check_signature(path, &copy, keys).map_err(failed)?;
        Weights::new(name, Memory::Copied(copy))
    }

    /// Weights that are in memory for the rest of the program, such as in flash, at a multiple of 64. `name` is
    /// their name in errors.
    ///
    /// # Errors
    /// As [`Weights::open`].
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Weights, WeightsError> {
        Weights::new(name.to_string(), Memory::Static(bytes))
    }

    fn new(name: String, memory: Memory) -> Result<Weights, WeightsError> {
        let failed = |reason: String| WeightsError { file: name.clone(), reason };
        let header = read_header(memory.bytes()).map_err(|reason| failed(reason.to_string()))?;
        let segments = segments(memory.bytes(), &header).map_err(failed)?;
        Ok(Weights(Arc::new(Contents { name, memory, header, segments })))
    }

    /// Reads the whole file and compares it with the hashes that it contains. `progress(done, total)` gets bytes.
    ///
    /// # Errors
    /// A segment is damaged, which the error names, or a byte between the segments.
    pub fn verify(&self, mut progress: impl FnMut(usize, usize)) -> Result<(), WeightsError> {
        let bytes = self.bytes();
        let failed = |reason: String| WeightsError { file: self.0.name.clone(), reason };
        let is_zero = |gap: Range<usize>| bytes[gap].iter().all(|byte| *byte == 0);
        let mut end = size_of::<WeightsHeader>();
        for segment in &self.0.segments {
            let mut hash = blake3::Hasher::new();
            let mut at = segment.range.start;
            for chunk in bytes[segment.range()].chunks(CHUNK_BYTES) {
                hash.update(chunk);
                at += chunk.len();
                progress(at, bytes.len());
            }
            if *hash.finalize().as_bytes() != segment.hash {
                return Err(failed(format!("{} is damaged", segment.name)));
            }
            if !is_zero(end..segment.range.start) {
                return Err(failed(format!("the bytes before {} are damaged", segment.name)));
            }
            end = segment.range.end;
        }
        if !is_zero(end..self.0.header.table_offset as usize) {
            return Err(failed("the bytes after its weights are damaged".to_string()));
        }
        progress(bytes.len(), bytes.len());
        Ok(())
    }

    /// The segments in the order of the file.
    pub fn segments(&self) -> &[SegmentInfo] {
        &self.0.segments
    }

    /// The ISA levels that the segments are packed for, separated by commas.
    pub fn levels(&self) -> &str {
        let levels = self.0.header.levels.split(|byte| *byte == 0).next().unwrap_or_default();
        str::from_utf8(levels).unwrap_or_default()
    }

    /// The hash of the artefacts that can read the file, see [`WeightsDesc::artefact`].
    pub fn artefact(&self) -> [u8; 32] {
        self.0.header.artefact
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.memory.bytes()
    }

    /// Checks that the file belongs to the artefact of this description and this name. An artefact that contains its
    /// weights has no description.
    pub(crate) fn require_artefact(
        &self,
        desc: Option<&WeightsDesc>,
        artefact: &str,
    ) -> Result<(), WeightsError> {
        let failed = |reason: String| WeightsError { file: self.0.name.clone(), reason };
        let desc = desc.ok_or_else(|| {
            failed(format!("the artefact {artefact} contains its weights, and takes no weights file"))
        })?;
        check(self.bytes(), desc).map_err(|reason| failed(format!("{reason}; the artefact is {artefact}")))
    }
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Mapped(map) => map,
            Memory::Copied(copy) => copy,
            Memory::Static(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// Reads the table of segments.
fn segments(bytes: &[u8], header: &WeightsHeader) -> Result<Vec<SegmentInfo>, String> {
    if header.bytes != bytes.len() as u64 {
        let how = if header.bytes > bytes.len() as u64 { "it is truncated" } else { "it was appended to" };
        return Err(format!("{how}: it has {} bytes, and its header states {}", bytes.len(), header.bytes));
    }
    let damaged = || "its header or its table of weights is damaged".to_string();
    let table_at = usize::try_from(header.table_offset).ok().filter(|at| *at >= WEIGHTS_ALIGN);
    let end = bytes.get(table_at.ok_or_else(damaged)?..).ok_or_else(damaged)?;
    if hash(bytes, end) != header.hash {
        return Err(damaged());
    }

    // The hash says that a compiler wrote the header and the table, but not that it was this one.
    let entries = end.chunks_exact(size_of::<WeightsSegment>()).take(header.n_segments as usize);
    let mut segments = Vec::with_capacity(entries.len());
    let mut free = WEIGHTS_ALIGN;
    // No two names share bytes, so they take no more memory than the file has bytes.
    let mut names_end = bytes.len() - end.len() + size_of::<WeightsSegment>() * entries.len();
    for entry in entries {
        let range = |offset: usize, len: usize| {
            let begin = usize::try_from(u64_at(entry, offset)).ok()?;
            let len = usize::try_from(u64_at(entry, len)).ok()?;
            Some(begin..begin.checked_add(len)?).filter(|range| range.end <= bytes.len())
        };
        let data = range(offset_of!(WeightsSegment, offset), offset_of!(WeightsSegment, bytes));
        let name = range(offset_of!(WeightsSegment, name_offset), offset_of!(WeightsSegment, name_bytes));
        let (Some(data), Some(name)) = (data, name) else { return Err(damaged()) };
        if data.start < free || data.end as u64 > header.table_offset {
            return Err("two of its weights overlap, or one is outside of the file".to_string());
        }
        free = data.end;
        if name.start != names_end {
            return Err(damaged());
        }
        names_end = name.end;
        let name = str::from_utf8(&bytes[name]).map_err(|_| damaged())?.to_string();
        let hash = array_at(entry, offset_of!(WeightsSegment, hash));
        segments.push(SegmentInfo { name, range: data, hash });
    }
    let is_whole = segments.len() == header.n_segments as usize && names_end == bytes.len();
    if is_whole { Ok(segments) } else { Err(damaged()) }
}

/// The hash of the header and of the end of the file.
fn hash(bytes: &[u8], end: &[u8]) -> [u8; 32] {
    let at = offset_of!(WeightsHeader, hash);
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..at]).update(&[0; 32]).update(&bytes[at + 32..size_of::<WeightsHeader>()]);
    *hasher.update(end).finalize().as_bytes()
}
