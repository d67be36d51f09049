//! The allowed values of a symbol, and the largest of them that fits a budget. Needs no allocator.

/// Most values that are tried one by one.
const MAX_TRIALS: u64 = 1 << 20;

/// The allowed values of a symbol, in ascending order.
#[derive(Clone, Copy)]
pub(crate) struct SymbolRange<'a> {
    pub(crate) lo: i64,
    pub(crate) hi: i64,
    /// At least 1.
    pub(crate) step: i64,
    pub(crate) offset: i64,
    /// All values in ascending order; empty if range and step define them.
    pub(crate) values: &'a [i64],
}

impl SymbolRange<'_> {
    /// Whether the value is allowed.
    pub(crate) fn allows(&self, value: i64) -> bool {
        let is_listed = self.values.is_empty() || self.values.binary_search(&value).is_ok();
        let is_in_step = (i128::from(value) - i128::from(self.offset)) % i128::from(self.step) == 0;
        self.lo <= value && value <= self.hi && is_listed && is_in_step
    }

    /// Number of allowed values.
    pub(crate) fn count(&self) -> u64 {
        if !self.values.is_empty() {
            return self.values.len() as u64;
        }
        match self.first() {
            Some(first) => (i128::from(self.hi) - i128::from(first)) as u64 / self.step as u64 + 1,
            None => 0,
        }
    }

    /// The allowed value at index `idx`.
    pub(crate) fn nth(&self, idx: u64) -> Option<i64> {
        if !self.values.is_empty() {
            return self.values.get(usize::try_from(idx).ok()?).copied();
        }
        let value = i128::from(self.first()?) + i128::from(idx) * i128::from(self.step);
        i64::try_from(value).ok().filter(|value| *value <= self.hi)
    }

    /// The smallest value in range and step.
    pub(crate) fn first(&self) -> Option<i64> {
        let gap = (i128::from(self.offset) - i128::from(self.lo)).rem_euclid(i128::from(self.step));
        i64::try_from(i128::from(self.lo) + gap).ok().filter(|value| *value <= self.hi)
    }

    /// The largest value that fits. `is_monotone` says that all values below one that fits do so too.
    ///
    /// Otherwise the values are tried from the largest down. If there are more than 2^20, they are bisected: the result
    /// fits and the next value does not, but a larger one may fit as well.
    pub(crate) fn largest(&self, is_monotone: bool, mut fits: impl FnMut(i64) -> bool) -> Option<i64> {
        let count = self.count();
        let mut fits_at = |idx: u64| self.nth(idx).is_some_and(&mut fits);
        if !is_monotone && count <= MAX_TRIALS {
            let idx = (0..count).rev().find(|idx| fits_at(*idx))?;
            return self.nth(idx);
        }

        let mut lo = 0;
        let mut hi = count;
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if fits_at(mid) { lo = mid + 1 } else { hi = mid }
        }
        self.nth(lo.checked_sub(1)?)
    }
}

/// Searches of the batcher.
#[cfg(feature = "std")]
impl SymbolRange<'_> {
    /// The index of the first value that is at least `value`.
    fn index_of(&self, value: i64) -> u64 {
        let mut lo = 0;
        let mut hi = self.count();
        while lo < hi {
            let mid = lo + (hi - lo) / 2;
            if self.nth(mid).is_some_and(|other| other < value) { lo = mid + 1 } else { hi = mid }
        }
        lo
    }

    /// The smallest allowed value that is at least `value`.
    pub(crate) fn at_least(&self, value: i64) -> Option<i64> {
        if self.allows(value) { Some(value) } else { self.nth(self.index_of(value)) }
    }

    /// The largest allowed value below `value`.
    pub(crate) fn below(&self, value: i64) -> Option<i64> {
        self.nth(self.index_of(value).checked_sub(1)?)
    }

    /// The largest value from `least` to `max` that fits; see [`SymbolRange::largest`]. `least` is allowed and fits.
    pub(crate) fn largest_within(
        &self,
        least: i64,
        max: i64,
        is_monotone: bool,
        mut fits: impl FnMut(i64) -> bool,
    ) -> i64 {
        let mut lo = self.index_of(least);
        let mut hi = self.index_of(max.saturating_add(1));
        // The value at `lo` fits, and the answer is below `hi`.
        while hi > lo + 1 {
            let at = if is_monotone { lo + (hi - lo) / 2 } else { hi - 1 };
            if self.nth(at).is_some_and(&mut fits) { lo = at } else { hi = at }
        }
        self.nth(lo).unwrap_or(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(lo: i64, hi: i64, step: i64, values: &[i64]) -> SymbolRange<'_> {
        SymbolRange { lo, hi, step, offset: 0, values }
    }

    #[test]
    fn the_largest_value_is_found_in_steps_and_lists() {
        for is_monotone in [true, false] {
            let steps = range(5, 64, 8, &[]);
            assert_eq!(steps.largest(is_monotone, |value| value <= 63), Some(56));
            assert_eq!(steps.largest(is_monotone, |value| value <= 64), Some(64));
            assert_eq!(steps.largest(is_monotone, |value| value < 8), None);

            let list = range(1, 9, 1, &[1, 4, 9]);
            assert_eq!(list.largest(is_monotone, |value| value < 9), Some(4));
            assert_eq!(list.largest(is_monotone, |_| false), None);
        }
    }

    #[test]
    #[cfg(feature = "std")]
    fn the_largest_value_of_an_interval_is_found() {
        let steps = range(5, 64, 8, &[]);
        for is_monotone in [true, false] {
            assert_eq!(steps.largest_within(8, 40, is_monotone, |value| value <= 33), 32);
            assert_eq!(steps.largest_within(16, 17, is_monotone, |_| true), 16);
            assert_eq!(steps.largest_within(8, i64::MAX, is_monotone, |_| true), 64);
        }
        assert_eq!(steps.largest_within(8, 64, false, |value| value == 48), 48);
        assert_eq!((steps.below(16), steps.below(8), steps.at_least(17)), (Some(8), None, Some(24)));
    }

    #[test]
    fn sizes_that_shrink_are_searched_from_the_top() {
        let shrinks = |value: i64| 64 - value <= 10;
        assert_eq!(range(1, 64, 1, &[]).largest(false, shrinks), Some(64));
        assert_eq!(range(1, 64, 1, &[]).largest(false, |value| value == 17), Some(17));
    }

    #[test]
    fn long_ranges_end_at_a_value_that_fits() {
        assert_eq!(range(0, i64::MAX, 1, &[]).largest(false, |value| value <= 77), Some(77));
        assert_eq!(range(i64::MIN, i64::MAX - 1, 1, &[]).largest(true, |value| value <= -3), Some(-3));
    }
}
