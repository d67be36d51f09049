//! The division of the iterations of a `parallel_for` among threads.
//!
//! The iterations are grouped into *units*, and each thread owns the same number of consecutive units. A thread claims
//! half of its own units that are left, from the front, until none is left. Then it claims half of those that are left
//! to another thread, from the back. So a thread takes most of its units in one long range, and the last ranges of a
//! round are short: a thread that is late, or has more work, loses units to the others.

use core::ops::Range;

/// Most units that a thread owns.
pub(crate) const MAX_OWN_UNITS: u64 = 255;

/// Most units of all threads.
const MAX_UNITS: u64 = 0xffff;

/// The number of units of `count` iterations.
pub(crate) fn units(count: i64, threads: usize) -> u64 {
    let most = (threads as u64).saturating_mul(MAX_OWN_UNITS).min(MAX_UNITS);
    (count.max(0) as u64).min(most)
}

/// The units that a thread owns.
pub(crate) fn own_units(units: u64, thread: usize, threads: usize) -> Range<u64> {
    let [begin, end] = [thread, thread + 1].map(|bound| units * bound as u64 / threads as u64);
    begin..end
}

/// The iterations of some units.
pub(crate) fn iterations(range: &Range<u64>, units: u64, count: i64) -> Range<i64> {
    // The product of a count and a number of units may not fit 64 bits.
    let [begin, end] = [range.start, range.end].map(|bound| {
        let bound = i128::from(count) * i128::from(bound) / i128::from(units.max(1));
        bound as i64
    });
    begin..end
}

/// The units that a thread has left.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Left {
    /// Units that were claimed at the front.
    pub(crate) front: u64,
    /// Units that were claimed at the back.
    pub(crate) back: u64,
}

impl Left {
    /// No unit has been claimed.
    pub(crate) const ALL: Left = Left { front: 0, back: 0 };

    /// Claims units of `own`: at the front by their owner, at the back by another thread. Returns them and those that
    /// are left afterwards.
    pub(crate) fn claim(self, own: &Range<u64>, is_owner: bool) -> Option<(Range<u64>, Left)> {
        let begin = own.start + self.front;
        let end = own.end - self.back;
        let claimed = (end - begin).div_ceil(2);
        if claimed == 0 {
            return None;
        }
        Some(if is_owner {
            (begin..begin + claimed, Left { front: self.front + claimed, ..self })
        } else {
            (end - claimed..end, Left { back: self.back + claimed, ..self })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_of_all_threads_cover_the_count() {
        for count in [0, 1, 7, 64, 255, 256, 1000, i64::MAX] {
            for threads in [1, 2, 3, 64, 1000] {
                let units = units(count, threads);
                let mut next = 0;
                for thread in 0..threads {
                    let own = own_units(units, thread, threads);
                    assert!(own.end - own.start <= MAX_OWN_UNITS, "{count} on {threads}");
                    let range = iterations(&own, units, count);
                    assert_eq!(range.start, next, "{count} on {threads}");
                    next = range.end;
                }
                assert_eq!(next, count, "{count} on {threads}");
            }
        }
    }

    #[test]
    fn claims_from_both_ends_meet() {
        let own = 10..18;
        let (range, left) = Left::ALL.claim(&own, true).expect("eight are left");
        assert_eq!(range, 10..14);
        let (range, left) = left.claim(&own, false).expect("four are left");
        assert_eq!(range, 16..18);
        let (range, left) = left.claim(&own, true).expect("two are left");
        assert_eq!(range, 14..15);
        let (range, left) = left.claim(&own, false).expect("one is left");
        assert_eq!(range, 15..16);
        assert_eq!(left.claim(&own, true), None);
        assert_eq!(left.claim(&own, false), None);
    }
}
