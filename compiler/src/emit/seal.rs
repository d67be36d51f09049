//! Seals of artefacts: hashes of their parts at the end of the file, see [`symshape_runtime::seal`].

use super::link::WEIGHTS;
use object::{Object, ObjectSection, SectionKind};
use symshape_runtime::SealedPart;

/// The bytes to append to an object or a shared object. Only tools for ELF are known to ignore them, so other formats
/// get none.
///
/// `recipe` is how the artefact was made; it becomes the last part, [`RECIPE`], unless it is empty.
pub(super) fn seal(artefact: &[u8], recipe: &str) -> Vec<u8> {
    if !artefact.starts_with(&object::elf::ELFMAG) {
        return Vec::new();
    }
    let mut pieces = vec![artefact];
    let mut parts = parts(artefact);
    if !recipe.is_empty() {
        pieces.push(recipe.as_bytes());
        let range = artefact.len()..artefact.len() + recipe.len();
        parts.push(SealedPart { name: RECIPE.into(), range });
    }
    [recipe.as_bytes(), &symshape_runtime::seal(&pieces, &parts)].concat()
}

/// The part that says how an artefact was made.
pub const RECIPE: &str = "command line";

/// The parts of an object: its sections by their use, and between them the headers and tables of its format. A file of
/// a format without sections is one part.
fn parts(artefact: &[u8]) -> Vec<SealedPart> {
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

    let mut parts: Vec<SealedPart> = Vec::new();
    let mut add = |name: &str, end: usize| {
        let begin = parts.last().map_or(0, |part| part.range.end);
        match parts.last_mut() {
            _ if end <= begin => {}
            Some(last) if last.name == name => last.range.end = end,
            _ => parts.push(SealedPart { name: name.into(), range: begin..end }),
        }
    };
    for (begin, end, name) in sections {
        let inside = |at: u64| (at as usize).min(artefact.len());
        add(TABLES, inside(begin));
        add(name, inside(end));
    }
    add(TABLES, artefact.len());
    parts
}

/// The part of everything that is not code or constants.
const TABLES: &str = "headers, tables";

fn part_name<'d>(section: &impl ObjectSection<'d>) -> &'static str {
    match (section.kind(), section.name()) {
        (SectionKind::Text, _) => "code",
        (_, Ok(WEIGHTS)) => "weights",
        (SectionKind::ReadOnlyData | SectionKind::ReadOnlyString, _) => "constants",
        (SectionKind::ReadOnlyDataWithRel, _) => "contract",
        (SectionKind::Data, _) => "contract, data",
        _ => TABLES,
    }
}
