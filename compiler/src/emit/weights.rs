//! Weights files: the constants of an artefact, as its kernels read them.
//!
//! [`abi::WeightsHeader`] describes the format. The bytes go from memory to the file without another copy.

use super::{
    file::{Staged, fill},
    template::filled,
};
use crate::{
    codegen::{WeightsLayout, WeightsSegment},
    error::{Error, Result},
};
use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufWriter, Seek, SeekFrom, Write},
    mem::offset_of,
    path::Path,
};
use symshape_runtime::abi::{self, WeightsHeader};

/// Bytes that are hashed and written between two reports of progress.
const CHUNK_BYTES: usize = 16 << 20;

/// The contents of a weights file.
#[derive(Clone, Debug)]
pub struct WeightsFile {
    /// Hash of the artefact, see [`abi::WeightsDesc::artefact`].
    pub(crate) artefact: [u8; 32],
    /// The ISA levels, separated by commas.
    pub(crate) levels: String,
    pub(crate) layout: WeightsLayout,
}

impl WeightsFile {
    /// Size of the file.
    pub fn bytes(&self) -> u64 {
        self.names_offset()
            + self.layout.segments.iter().map(|segment| segment.name.len() as u64).sum::<u64>()
    }

    /// The hash of the artefacts that can read the file.
    pub fn artefact(&self) -> [u8; 32] {
        self.artefact
    }

    /// The segments in the order of the file.
    pub fn segments(&self) -> &[WeightsSegment] {
        &self.layout.segments
    }

    /// The declarations of a C header for the model `name`.
    pub(super) fn declarations(&self, name: &str) -> String {
        let list = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let mut magic = abi::WEIGHTS_MAGIC.to_le_bytes().to_vec();
        magic.extend(abi::WEIGHTS_VERSION.to_le_bytes());
        let gaps = [
            ("PREFIX", name.to_string()),
            ("UPPER", name.to_uppercase()),
            ("FILE_BYTES", self.table_offset().to_string()),
            ("MAGIC_BYTES", list(&magic)),
            ("ARTEFACT_BYTES", list(&self.artefact)),
            ("ARTEFACT_OFFSET", offset_of!(WeightsHeader, artefact).to_string()),
        ];
        let gaps: Vec<(&str, &str)> = gaps.iter().map(|(gap, filling)| (*gap, filling.as_str())).collect();
        filled(include_str!("weights.h"), &gaps)
    }

    /// Offset of the table of segments, which follows everything that calls read.
    pub(super) fn table_offset(&self) -> u64 {
        self.layout.end().next_multiple_of(8)
    }

    fn names_offset(&self) -> u64 {
        self.table_offset() + (self.layout.segments.len() * size_of::<abi::WeightsSegment>()) as u64
    }

    /// Writes the file under a temporary name in the same folder. `progress(done, total)` gets bytes.
    ///
    /// # Errors
    /// When the folder is missing or can't be written to, or the disk is full.
    pub fn stage(&self, path: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<Staged> {
        if self.layout.segments.len() > u32::MAX as usize {
            return Err(Error::internal("a weights file of more than 4,294,967,295 segments"));
        }
        fill(path, 0o666, &mut |file| self.write(file, progress))
    }

    fn write(&self, file: &mut File, progress: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
        file.set_len(self.bytes())?;
        let mut hashes = Vec::with_capacity(self.layout.segments.len());
        for segment in &self.layout.segments {
            file.seek(SeekFrom::Start(segment.offset))?;
            hashes.push(self.write_segment(file, segment, progress)?);
        }
        file.seek(SeekFrom::Start(self.table_offset()))?;
        let table = self.table(&hashes);
        file.write_all(&table)?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&self.header(&table))?;
        progress(self.bytes(), self.bytes());
        Ok(())
    }

    /// Writes the bytes of a segment and returns their hash.
    fn write_segment(
        &self,
        file: &mut File,
        segment: &WeightsSegment,
        progress: &mut dyn FnMut(u64, u64),
    ) -> io::Result<[u8; 32]> {
        let mut hash = blake3::Hasher::new();
        let mut file = BufWriter::new(file);
        let mut done = segment.offset;
        segment.bytes.visit(CHUNK_BYTES, &mut |chunk| -> io::Result<()> {
            hash.update(chunk);
            file.write_all(chunk)?;
            done += chunk.len() as u64;
            progress(done, self.bytes());
            Ok(())
        })?;
        file.flush()?;
        Ok(*hash.finalize().as_bytes())
    }

    /// Everything that calls read: the header and the segments, each with its offset in the file. The header is that of
    /// a file without a table.
    pub(super) fn parts_for_calls(&self) -> Vec<(u64, Cow<'_, [u8]>)> {
        let segments = self.layout.segments.iter();
        let segments = segments.map(|segment| (segment.offset, Cow::Borrowed(&segment.bytes[..])));
        [(0, Cow::Owned(self.header(&[])))].into_iter().chain(segments).collect()
    }

    /// The table of segments and their names.
    fn table(&self, hashes: &[[u8; 32]]) -> Vec<u8> {
        let mut table = Vec::new();
        let mut name_offset = self.names_offset();
        for (segment, hash) in self.layout.segments.iter().zip(hashes) {
            let name_bytes = segment.name.len() as u64;
            for word in [segment.offset, segment.bytes.len() as u64, name_offset, name_bytes] {
                table.extend(word.to_le_bytes());
            }
            table.extend(hash);
            name_offset += name_bytes;
        }
        self.layout.segments.iter().for_each(|segment| table.extend(segment.name.as_bytes()));
        table
    }

    /// The header of the file that ends with `table`.
    fn header(&self, table: &[u8]) -> Vec<u8> {
        let mut header = vec![0; size_of::<WeightsHeader>()];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(WeightsHeader, magic), &abi::WEIGHTS_MAGIC.to_le_bytes());
        put(offset_of!(WeightsHeader, version), &abi::WEIGHTS_VERSION.to_le_bytes());
        let n_segments = self.layout.segments.len() as u32;
        put(offset_of!(WeightsHeader, n_segments), &n_segments.to_le_bytes());
        put(offset_of!(WeightsHeader, bytes), &self.bytes().to_le_bytes());
        put(offset_of!(WeightsHeader, table_offset), &self.table_offset().to_le_bytes());
        put(offset_of!(WeightsHeader, artefact), &self.artefact);
        let levels = self.levels.as_bytes();
        put(offset_of!(WeightsHeader, levels), &levels[..levels.len().min(64)]);

        let hash = *blake3::Hasher::new().update(&header).update(table).finalize().as_bytes();
        header[offset_of!(WeightsHeader, hash)..].copy_from_slice(&hash);
        header
    }
}
