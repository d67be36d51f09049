//! Turns offsets into an order: which buffers are directly below each buffer.

use super::interval::BufferInterval;

/// The positions of all items, lowest first, and for each of them the items directly below it.
///
/// Sizes are positive. Items for which `overlaps` holds are needed at the same time and have disjoint ranges.
///
/// Two items that are alive at once are always connected, directly or through others. No connection follows from the
/// others.
pub(super) fn order(
    items: &[BufferInterval],
    offsets: &[i64],
    overlaps: &dyn Fn(usize, usize) -> bool,
) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut lowest_first: Vec<usize> = (0..items.len()).collect();
    lowest_first.sort_by_key(|idx| (offsets[*idx], *idx));
    let words = items.len().div_ceil(64);

    // One row of bits for each item: those below it, directly or not.
    let mut under: Vec<Vec<u64>> = vec![Vec::new(); items.len()];
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); items.len()];
    for (position, &idx) in lowest_first.iter().enumerate() {
        let mut row = vec![0u64; words];

        // Highest first: an item below a direct neighbour needs no further connection.
        let mut lower: Vec<usize> =
            lowest_first[..position].iter().copied().filter(|other| overlaps(idx, *other)).collect();
        lower.sort_by_key(|other| std::cmp::Reverse((offsets[*other], *other)));

        for other in lower {
            if row[other / 64] & (1 << (other % 64)) != 0 {
                continue;
            }
            below[idx].push(other);
            row[other / 64] |= 1 << (other % 64);
            row.iter_mut().zip(&under[other]).for_each(|(word, more)| *word |= more);
        }

        below[idx].sort_unstable();
        under[idx] = row;
    }

    let below = lowest_first.iter().map(|idx| std::mem::take(&mut below[*idx])).collect();
    (lowest_first, below)
}
