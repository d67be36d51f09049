//! Whether a thread of a pool makes calls faster.
//!
//! A thread that shares its core with another process is interrupted for milliseconds, and the caller then waits for
//! the units that it has claimed. In short calls that costs more time than the thread saves. So the caller adds up
//! both, and a thread that costs time rests: it claims no units, and parks. Rests end by themselves, since the other
//! process may end. Each is longer than the one before, until the thread has worked for as long as it rested.

use std::time::{Duration, Instant};

/// Most nanoseconds that a thread can have saved. The sum is kept small, so that a change shows soon.
const MOST_SAVED: i64 = 200_000;

/// A thread rests when it has cost as many nanoseconds more than it has saved.
const MOST_LOST: i64 = 200_000;

/// The first rest, about two time slices of the system.
const SHORTEST: Duration = Duration::from_millis(8);

/// No rest is longer. It bounds how long calls have fewer threads after the other process has ended.
const LONGEST: Duration = Duration::from_millis(1024);

/// What a thread has saved and cost, and its rests.
#[derive(Debug)]
pub(crate) struct Benefit {
    /// The nanoseconds that the thread has saved, less those that it cost.
    saved: i64,
    /// The units of the round that the thread had done when it seemed interrupted.
    noted: Option<u64>,
    /// The length of the last rest.
    rest: Duration,
    /// The end of the last rest.
    until: Instant,
}

impl Benefit {
    /// A thread that has not worked.
    pub(crate) fn new(now: Instant) -> Benefit {
        Benefit { saved: 0, noted: None, rest: Duration::ZERO, until: now }
    }

    /// Whether the thread rests.
    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Notes how many units the thread has done, while the caller waits for the last units. If it does more of them, it
    /// was interrupted.
    pub(crate) fn note(&mut self, units: u64) {
        self.noted = Some(units);
    }

    /// Adds a round that ends now, in which the thread has done `units`: the time that the caller would have needed for
    /// them, and the time that the caller waited for threads.
    pub(crate) fn add(&mut self, units: u64, saved: Duration, waited: Duration, now: Instant) {
        let is_late = self.noted.take().is_some_and(|noted| noted < units);
        let cost = if is_late { nanos(waited) } else { 0 };
        self.saved = (self.saved + nanos(saved) - cost).min(MOST_SAVED);
        if self.saved < -MOST_LOST {
            let has_worked = now.saturating_duration_since(self.until) > self.rest;
            self.rest = if has_worked { SHORTEST } else { (self.rest * 2).clamp(SHORTEST, LONGEST) };
            self.until = now + self.rest;
            self.saved = 0;
        }
    }
}

/// The nanoseconds of a duration, at most those of a year.
fn nanos(duration: Duration) -> i64 {
    duration.as_nanos().min(1 << 55) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    /// Adds a round whose caller waits for the thread.
    fn wait(benefit: &mut Benefit, saved: Duration, waited: Duration, now: Instant) {
        benefit.note(0);
        benefit.add(1, saved, waited, now);
    }

    #[test]
    fn a_thread_that_saves_more_than_it_costs_never_rests() {
        let begin = Instant::now();
        let mut benefit = Benefit::new(begin);
        for round in 1..1000 {
            let now = begin + 100 * round * MICRO;
            wait(&mut benefit, 60 * MICRO, 50 * MICRO, now);
            assert!(!benefit.is_resting(now), "round {round}");
        }
    }

    #[test]
    fn a_thread_that_has_done_its_units_in_time_costs_nothing() {
        let begin = Instant::now();
        let mut benefit = Benefit::new(begin);
        benefit.note(3);
        benefit.add(3, MICRO, 5000 * MICRO, begin);
        assert!(!benefit.is_resting(begin));
    }

    #[test]
    fn rests_double_until_the_thread_has_worked_as_long() {
        let mut now = Instant::now();
        let mut benefit = Benefit::new(now);
        for rest in [8, 16, 32, 64, 128, 256, 512, 1024, 1024] {
            wait(&mut benefit, 100 * MICRO, 3000 * MICRO, now);
            assert!(benefit.is_resting(now));
            now += Duration::from_millis(rest) - MICRO;
            assert!(benefit.is_resting(now), "rest of {rest} ms");
            now += MICRO;
            assert!(!benefit.is_resting(now), "rest of {rest} ms");
        }

        now += Duration::from_millis(1024) + MICRO;
        wait(&mut benefit, 100 * MICRO, 3000 * MICRO, now);
        assert!(benefit.is_resting(now + SHORTEST - MICRO));
        assert!(!benefit.is_resting(now + SHORTEST));
    }
}
