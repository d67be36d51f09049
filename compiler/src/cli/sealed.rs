//! Files of artefacts that are read without being loaded: their seals, their weights, and their command lines.

use super::errors::at_path;
use crate::{
    emit,
    error::{Error, Result},
    pipeline::Artifact,
};
use object::{FileKind, Object, ObjectKind, ObjectSection, ObjectSymbol, read::archive::ArchiveFile};
use std::{
    mem::offset_of,
    ops::Range,
    path::{Path, PathBuf},
};
use symshape_runtime::{FileMap, SealedPart, abi::WeightsDesc, check_seal, map_file};

/// An artefact whose seal is intact.
pub(super) struct SealedFile {
    map: FileMap,
    is_archive: bool,
    /// The place of the object in the file: all of it, or the member of an archive.
    object: Range<usize>,
    /// The parts of the object.
    pub(super) parts: Vec<SealedPart>,
}

/// The weights file that was written with an artefact.
pub(super) struct OwnWeights {
    /// See [`WeightsDesc::artefact`].
    pub(super) artefact: [u8; 32],
    /// The name of a file in the folder of the artefact.
    name: String,
}

impl SealedFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The outer error if the file can't be read; the inner one is the reason why its seal refuses it.
    pub(super) fn read(path: &Path) -> Result<Result<SealedFile, String>> {
        let map = at_path(map_file(path), path)?;
        Ok(SealedFile::check(map))
    }

    fn check(map: FileMap) -> Result<SealedFile, String> {
        let is_archive = matches!(FileKind::parse(&*map), Ok(FileKind::Archive));
        let object = if is_archive { member(&map)? } else { 0..map.len() };
        let parts = check_seal(&map[object.clone()])?;
        Ok(SealedFile { map, is_archive, object, parts })
    }

    /// The bytes of the object.
    fn object(&self) -> &[u8] {
        &self.map[self.object.clone()]
    }

    /// The bytes of the whole file.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The kind of the artefact, by its contents.
    pub(super) fn artifact(&self) -> Result<Artifact> {
        let file = object::File::parse(self.object()).map_err(broken)?;
        match file.kind() {
            _ if self.is_archive => Ok(Artifact::Archive),
            ObjectKind::Relocatable => Ok(Artifact::Object),
            ObjectKind::Dynamic => Ok(Artifact::Shared),
            kind => Err(Error::invalid(format!("not an artefact of symc: its kind is {kind:?}"))),
        }
    }

    /// The arguments of the command line that compiled the artefact.
    pub(super) fn command_line(&self) -> Option<Vec<String>> {
        let part = self.parts.iter().find(|part| part.name == emit::COMMAND_LINE)?;
        let text = std::str::from_utf8(&self.object()[part.range.clone()]).ok()?;
        Some(text.split('\0').map(str::to_string).collect())
    }

    /// The weights file that the artefact needs; `None` if it contains its weights.
    pub(super) fn weights(&self) -> Result<Option<OwnWeights>> {
        let file = object::File::parse(self.object()).map_err(broken)?;
        let is_desc = |symbol: &object::Symbol<'_, '_>| {
            symbol.size() == size_of::<WeightsDesc>() as u64
                && symbol.name().is_ok_and(|name| name.ends_with("_weights"))
        };
        let Some(symbol) = file.symbols().find(is_desc) else { return Ok(None) };
        let damaged = || Error::invalid("the description of its weights file is damaged");
        let section = symbol.section_index().ok_or_else(damaged)?;
        let section = file.section_by_index(section).map_err(broken)?;
        let range = section.data_range(symbol.address(), symbol.size()).map_err(broken)?;
        let bytes = range.ok_or_else(damaged)?;
        let artefact = bytes[offset_of!(WeightsDesc, artefact)..].first_chunk().ok_or_else(damaged)?;
        let name = bytes[offset_of!(WeightsDesc, file_name)..].first_chunk();
        let name = name.and_then(WeightsDesc::parse_name);
        let name = name.ok_or_else(|| Error::invalid("the name of its weights file is damaged"))?;
        Ok(Some(OwnWeights { artefact: *artefact, name: name.to_string() }))
    }
}

impl OwnWeights {
    /// The path of the weights file of the artefact at `artefact`.
    pub(super) fn path(&self, artefact: &Path) -> PathBuf {
        artefact.with_file_name(&self.name)
    }
}

fn broken(error: object::Error) -> Error {
    Error::invalid(format!("not an object: {error}"))
}

/// The place of the only member of an archive, all of whose other bytes are those that this program writes.
fn member(archive: &[u8]) -> Result<Range<usize>, String> {
    let broken = |error: object::Error| format!("it is not an archive: {error}");
    let file = ArchiveFile::parse(archive).map_err(broken)?;
    let member = file.members().next().ok_or("it has no members")?.map_err(broken)?;
    let object = member.data(archive).map_err(broken)?;
    let name = String::from_utf8_lossy(member.name());
    let is_whole = emit::archive(name.trim_end_matches(".o"), object).is_ok_and(|again| again == archive);
    if !is_whole {
        return Err("its archive headers or its table of symbols are damaged".into());
    }
    let (start, bytes) = member.file_range();
    Ok(start as usize..(start + bytes) as usize)
}
