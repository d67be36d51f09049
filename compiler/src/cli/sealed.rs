//! Files of artefacts that are read without being loaded: their seals, their weights, and how they were made.

use super::errors::at_path;
use crate::{
    emit,
    error::{Error, Result},
};
use memmap2::Mmap;
use object::{Object, ObjectSection, ObjectSymbol};
use std::{
    mem::offset_of,
    path::{Path, PathBuf},
};
use symshape_runtime::{SealedPart, abi::WeightsDesc, check_seal, map_file};

/// A file whose seal is intact.
pub(super) struct SealedFile {
    map: Mmap,
    pub(super) parts: Vec<SealedPart>,
}

/// The description of the weights file of an artefact.
pub(super) struct WeightsOf {
    pub(super) artefact: [u8; 32],
    /// Name of the file that was written with the artefact.
    pub(super) file_name: String,
}

impl SealedFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The outer error if the file can't be read; the inner one is the reason why its seal refuses it.
    pub(super) fn read(path: &Path) -> Result<Result<SealedFile, String>> {
        let map = at_path(map_file(path), path)?;
        Ok(check_seal(&map).map(|parts| SealedFile { map, parts }))
    }

    /// The arguments of the command that made the artefact.
    pub(super) fn recipe(&self) -> Option<Vec<String>> {
        let part = self.parts.iter().find(|part| part.name == emit::RECIPE)?;
        let text = std::str::from_utf8(&self.map[part.range.clone()]).ok()?;
        Some(text.split('\0').map(str::to_string).collect())
    }

    /// The description of the weights file; `None` if the artefact contains its weights.
    pub(super) fn weights(&self) -> Result<Option<WeightsOf>> {
        let broken = |error: object::Error| Error::invalid(format!("not an object: {error}"));
        let file = object::File::parse(&*self.map).map_err(broken)?;
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
        let mut artefact = [0; 32];
        artefact.copy_from_slice(&bytes[offset_of!(WeightsDesc, artefact)..][..32]);
        let name = bytes[offset_of!(WeightsDesc, file_name)..].split(|byte| *byte == 0).next();
        let file_name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
        Ok(Some(WeightsOf { artefact, file_name }))
    }
}

impl WeightsOf {
    /// The path of the weights file of the artefact at `artefact`.
    pub(super) fn path(&self, artefact: &Path) -> PathBuf {
        artefact.with_file_name(&self.file_name)
    }
}
