//! Which pages of an artefact are read when it is opened.

use alloc::{string::String, vec::Vec};
use core::ops::Range;

/// How much of an artefact is read when it is opened, see [`crate::Model::open_with`]. Systems other than Linux read
/// each page when it is first used, whatever this says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Prefault {
    /// Nothing. The first calls read the pages that they use.
    Nothing,
    /// Up to 256 MB, before the artefact is open. Small weights are then in the caches.
    #[default]
    Start,
    /// All, by the kernel and while the program goes on.
    Background,
    /// All, before the artefact is open. The first call then reads nothing from the file and takes no page fault.
    All,
}

/// Largest number of bytes that [`Prefault::Start`] reads.
const START_BYTES: usize = 256 << 20;
/// Bytes that are read between two reports of progress.
const CHUNK_BYTES: usize = 16 << 20;

/// The addresses that are read: readable mappings of the file that contains the address `inside`, then the weights
/// file, which is mapped at the beginning of a page. Only the latter if the system does not list its mappings.
pub(crate) fn ranges(inside: usize, weights: Option<&[u8]>, prefault: Prefault) -> Vec<Range<usize>> {
    let mut left = match prefault {
        Prefault::Nothing => return Vec::new(),
        Prefault::Start => START_BYTES,
        Prefault::Background | Prefault::All => usize::MAX,
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_else(|_| String::new());
    let mappings: Vec<(Range<usize>, &str)> = maps.lines().filter_map(mapping).collect();
    let file = mappings.iter().find(|(range, _)| range.contains(&inside)).map(|(_, file)| *file);
    let own = mappings.iter().filter(|(_, other)| Some(*other) == file).map(|(range, _)| range.clone());
    let weights = weights.map(|bytes| {
        let start = bytes.as_ptr() as usize;
        start..start + bytes.len()
    });
    let shorten = |range: Range<usize>| {
        let bytes = range.len().min(left);
        left -= bytes;
        range.start..range.start + bytes
    };
    own.chain(weights).map(shorten).filter(|range| !range.is_empty()).collect()
}

/// The ranges in pieces.
pub(crate) fn chunks(ranges: &[Range<usize>]) -> impl Iterator<Item = Range<usize>> {
    let pieces = |range: &Range<usize>| {
        let end = range.end;
        range.clone().step_by(CHUNK_BYTES).map(move |at| at..end.min(at + CHUNK_BYTES))
    };
    ranges.iter().flat_map(pieces)
}

/// The inode of the file that is mapped at an address, if the system lists its mappings.
#[cfg(target_os = "linux")]
pub(crate) fn inode_at(address: usize) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (_, file) = maps.lines().filter_map(mapping).find(|(range, _)| range.contains(&address))?;
    file.split(' ').nth(1)?.parse().ok()
}

/// The address range of a readable mapping, and the device and inode of its file, from a line of `/proc/self/maps`.
fn mapping(line: &str) -> Option<(Range<usize>, &str)> {
    let mut fields = line.splitn(4, ' ');
    let range = fields.next()?;
    let rights = fields.next()?;
    let _offset = fields.next()?;
    let file = fields.next()?;
    let (begin, end) = range.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    let path_at = file.match_indices(' ').nth(1)?.0;
    rights.starts_with('r').then_some((hex(begin)?..hex(end)?, &file[..path_at]))
}
