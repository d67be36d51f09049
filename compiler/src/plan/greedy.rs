//! Placement without search: items are placed one by one, each into a gap between earlier ones.

use super::interval::BufferInterval;

/// How the gap for an item is chosen.
#[derive(Clone, Copy)]
enum Fit {
    /// The lowest that is large enough.
    First,
    /// The smallest that is large enough; among equal ones, the lowest.
    Best,
}

/// More items than this are tried in two orders only, because each order takes time quadratic in their number.
const MANY: usize = 4000;

/// The lowest placement over some orders of the items. `overlaps` says whether two items are needed at the same time.
pub(super) fn place(items: &[BufferInterval], overlaps: &dyn Fn(usize, usize) -> bool) -> Vec<i64> {
    let span = |item: &BufferInterval| i128::from(item.end) - i128::from(item.start);
    let size = |item: &BufferInterval| i128::from(item.size);
    type Key = fn(i128, i128, i128) -> (i128, i128);

    let keys: [Key; 5] = [
        |size, span, _| (-size, -span),
        |size, span, _| (-size.saturating_mul(span), -size),
        |size, _, start| (start, -size),
        |size, span, _| (-span, -size),
        |size, _, start| (-start, -size),
    ];

    let keys = if items.len() > MANY { &keys[..1] } else { &keys[..] };
    let mut best: Option<(i64, Vec<i64>)> = None;
    for key in keys {
        let mut order: Vec<usize> = (0..items.len()).collect();
        order.sort_by_key(|idx| {
            let item = &items[*idx];
            (key(size(item), span(item), i128::from(item.start)), *idx)
        });

        for fit in [Fit::Best, Fit::First] {
            let offsets = in_order(items, overlaps, &order, fit);
            let height = height(items, &offsets);
            if best.as_ref().is_none_or(|(lowest, _)| height < *lowest) {
                best = Some((height, offsets));
            }
        }
    }

    best.map(|(_, offsets)| offsets).unwrap_or_default()
}

/// The highest end.
pub(super) fn height(items: &[BufferInterval], offsets: &[i64]) -> i64 {
    items.iter().zip(offsets).map(|(item, offset)| offset + item.size).max().unwrap_or(0)
}

fn in_order(
    items: &[BufferInterval],
    overlaps: &dyn Fn(usize, usize) -> bool,
    order: &[usize],
    fit: Fit,
) -> Vec<i64> {
    let mut offsets = vec![0; items.len()];

    // Placed items as (offset, item), lowest first.
    let mut placed: Vec<(i64, usize)> = Vec::with_capacity(items.len());
    for &idx in order {
        let item = &items[idx];
        let overlapping = placed.iter().filter(|(_, other)| overlaps(idx, *other));
        let offset =
            gap(item.size, overlapping.map(|(offset, other)| (*offset, offset + items[*other].size)), fit);
        offsets[idx] = offset;
        let position = placed.partition_point(|entry| *entry < (offset, idx));
        placed.insert(position, (offset, idx));
    }

    offsets
}

/// An offset at which `size` fits between these ranges, which are sorted by their beginnings.
fn gap(size: i64, taken: impl Iterator<Item = (i64, i64)>, fit: Fit) -> i64 {
    let mut top = 0;
    let mut best = None;
    for (begin, end) in taken {
        let free = begin - top;
        let better = match (fit, best) {
            (_, None) => true,
            (Fit::First, Some(_)) => false,
            (Fit::Best, Some((smallest, _))) => free < smallest,
        };
        if free >= size && better {
            best = Some((free, top));
        }
        top = top.max(end);
    }

    best.map_or(top, |(_, offset)| offset)
}
