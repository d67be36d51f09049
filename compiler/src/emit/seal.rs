//! Seals of artefacts: hashes of their parts at the end of the file, see [`symshape_runtime::seal`].

use super::link::WEIGHTS;
use object::{Object, ObjectSection, SectionKind};
use std::ops::Range;
use symshape_runtime::SealedPart;

/// The bytes to append to an object or a shared object: the command line that compiled it, and the seal of all parts.
/// Only tools for ELF are known to ignore them, so other formats get none.
///
/// The command line becomes the last part, [`COMMAND_LINE`], unless it is empty. `hashed` gets each range that is not
/// read again. A part that is `known` is not read.
pub(super) fn sealed_end(
    artefact: &[u8],
    command_line: &str,
    known: Option<&SealedPart>,
    hashed: &mut dyn FnMut(Range<usize>),
) -> Vec<u8> {
    if !artefact.starts_with(&object::elf::ELFMAG) {
        return Vec::new();
    }
    let mut parts: Vec<SealedPart> = places(artefact)
        .into_iter()
        .map(|(name, range)| match known {
            Some(part) if part.name == name && part.range == range => part.clone(),
            _ => SealedPart::new_with(name, range.start, &artefact[range], hashed),
        })
        .collect();
    if !command_line.is_empty() {
        parts.push(SealedPart::new(COMMAND_LINE, artefact.len(), command_line.as_bytes()));
    }
    [command_line.as_bytes(), &symshape_runtime::seal(&parts)].concat()
}

/// The part with the arguments of the command line that compiled an artefact.
pub(crate) const COMMAND_LINE: &str = "command line";

/// The places of the parts of an object: its sections by their use, and between them the headers and tables of its
/// format. A file whose sections can't be read is one part.
fn places(artefact: &[u8]) -> Vec<(&'static str, Range<usize>)> {
    let mut sections: Vec<(u64, u64, &'static str)> = match object::File::parse(artefact) {
        Ok(file) => file
            .sections()
            .filter_map(|section| {
                let (begin, bytes) = section.file_range().filter(|(_, bytes)| *bytes > 0)?;
                Some((begin, begin.checked_add(bytes)?, part_name(&section)))
            })
            .collect(),
        Err(_) => Vec::new(),
    };
    sections.sort_unstable();

    let mut places: Vec<(&'static str, Range<usize>)> = Vec::new();
    let mut add = |name: &'static str, end: usize| {
        let begin = places.last().map_or(0, |(_, range)| range.end);
        match places.last_mut() {
            _ if end <= begin => {}
            Some((last, range)) if *last == name => range.end = end,
            _ => places.push((name, begin..end)),
        }
    };
    for (begin, end, name) in sections {
        let inside = |at: u64| (at as usize).min(artefact.len());
        add(TABLES, inside(begin));
        add(name, inside(end));
    }
    add(TABLES, artefact.len());
    places
}

/// The part with the section [`WEIGHTS`].
pub(super) const WEIGHTS_PART: &str = "weights";

/// The part of everything that is not code or constants.
const TABLES: &str = "headers, tables";

fn part_name<'d>(section: &impl ObjectSection<'d>) -> &'static str {
    match (section.kind(), section.name()) {
        (SectionKind::Text, _) => "code",
        (_, Ok(WEIGHTS)) => WEIGHTS_PART,
        (SectionKind::ReadOnlyData | SectionKind::ReadOnlyString, _) => "constants",
        (SectionKind::ReadOnlyDataWithRel, _) => "contract",
        (SectionKind::Data, _) => "contract, data",
        _ => TABLES,
    }
}
