//! Pseudo-random choices, the same from the same seed.

use num_bigint::BigInt;

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }

    /// A number in `lo..=hi`.
    pub(crate) fn between(&mut self, lo: i64, hi: i64) -> i64 {
        lo + (self.next() % (hi - lo + 1) as u64) as i64
    }

    pub(crate) fn pick<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.next() as usize % list.len()].clone()
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.next().is_multiple_of(times)
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for idx in (1..list.len()).rev() {
            list.swap(idx, self.next() as usize % (idx + 1));
        }
    }

    /// A number in `lo..=hi`: often one of the ends or next to one.
    pub(crate) fn near(&mut self, lo: &BigInt, hi: &BigInt) -> BigInt {
        let count = hi - lo + 1;
        let offset = BigInt::from(self.next()) * BigInt::from(self.next() >> 4) % &count;
        match self.next() % 6 {
            0 => lo.clone(),
            1 => hi.clone(),
            2 => lo + BigInt::from(self.next() % 5) % &count,
            3 => hi - BigInt::from(self.next() % 5) % &count,
            _ => lo + offset,
        }
    }
}
