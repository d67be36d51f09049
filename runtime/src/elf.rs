//! Checks that an ELF file is complete. The system's loader maps a truncated file too, and its code then crashes at
//! the first access past the end.

use crate::bytes::{array_at, u64_at};
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
};

const MAGIC: [u8; 4] = *b"\x7fELF";
/// Bytes of the header of 64-bit files.
const HEADER: usize = 64;
const CLASS_64_LITTLE: [u8; 2] = [2, 1];
/// Bytes of an entry of the segment table.
const SEGMENT: usize = 56;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// Reads the headers and compares the extents that they describe with the file's length.
///
/// # Errors
/// When the file is not a shared object for this architecture, or is truncated.
pub(crate) fn check_whole(file: &mut File) -> Result<(), String> {
    let io = |error: std::io::Error| error.to_string();
    let len = file.metadata().map_err(io)?.len();
    let mut header = [0; HEADER];
    file.read_exact(&mut header).map_err(|_| "it is not a shared object".to_string())?;
    if header[..4] != MAGIC {
        return Err("it is not a shared object".to_string());
    }
    if header[4..6] != CLASS_64_LITTLE {
        return Err("it is a shared object for another architecture".to_string());
    }

    let inside = |begin: u64, size: u64| match begin.checked_add(size) {
        Some(end) if end <= len => Ok(()),
        _ => Err(format!("it is truncated: its headers describe more than its {len} bytes")),
    };
    let segments = u64_at(&header, 32);
    let n_segments = u64::from(u16_at(&header, 56));
    let sections = u64_at(&header, 40);
    let n_sections = u64::from(u16_at(&header, 60));
    inside(segments, n_segments * SEGMENT as u64)?;
    inside(sections, n_sections * u64::from(u16_at(&header, 58)))?;
    file.seek(SeekFrom::Start(segments)).map_err(io)?;
    for _ in 0..n_segments {
        let mut segment = [0; SEGMENT];
        file.read_exact(&mut segment).map_err(io)?;
        inside(u64_at(&segment, 8), u64_at(&segment, 32))?;
    }
    Ok(())
}

/// The name of a library that the system's loader would load with the shared object, if there is one.
///
/// `file` is complete, see [`check_whole`].
pub(crate) fn needed_library(file: &[u8]) -> Option<String> {
    let n_segments = usize::from(u16_at(file, 56));
    let begin = usize::try_from(u64_at(file, 32)).ok()?;
    let segments = file.get(begin..)?.chunks_exact(SEGMENT).take(n_segments);
    let kind = |segment: &[u8]| u32::from_le_bytes(array_at(segment, 0));

    let dynamic = segments.clone().find(|segment| kind(segment) == PT_DYNAMIC)?;
    let begin = usize::try_from(u64_at(dynamic, 8)).ok()?;
    let bytes = usize::try_from(u64_at(dynamic, 32)).ok()?;
    let entries = file.get(begin..begin.checked_add(bytes)?)?.chunks_exact(16);
    let entries = entries.map(|entry| (u64_at(entry, 0), u64_at(entry, 8)));
    let value = |wanted: u64| entries.clone().find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
    let name_offset = value(DT_NEEDED)?;

    // The table of names is at an address, and the name may be unreadable. The entry alone makes the loader look.
    let name = || {
        let table = value(DT_STRTAB)?;
        let holds = |segment: &&[u8]| {
            kind(segment) == PT_LOAD
                && (u64_at(segment, 16)..u64_at(segment, 16).saturating_add(u64_at(segment, 32)))
                    .contains(&table)
        };
        let segment = segments.clone().find(holds)?;
        let at = (table - u64_at(segment, 16)).checked_add(u64_at(segment, 8))?.checked_add(name_offset)?;
        let name = file.get(usize::try_from(at).ok()?..)?.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(name).ok().map(String::from)
    };
    Some(name().unwrap_or_else(|| "of a name that can't be read".to_string()))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}
