//! Placement of items of fixed sizes: the lowest placement found, and a lower bound on every placement.
//!
//! Greedy placements come first. Where they leave a gap to the largest sum of sizes alive at once, a [search](super)
//! tries capacities between the two, the lowest one first, in runs that grow longer round by round. Without a time
//! limit the budget is counted in steps, and results never depend on the machine.

pub use super::interval::BufferInterval;

use super::{
    greedy,
    search::{Outcome, Rectangle, Search, TieBreak},
};
use crate::error::{At, Error, ErrorKind, Result};
use std::time::{Duration, Instant};

/// How long to search.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Budget {
    /// Steps of the search, a few microseconds each.
    pub steps: u64,
    /// Seconds, in place of steps; results then depend on the machine.
    pub seconds: Option<f64>,
}

impl Budget {
    /// A compilation hardly notices this effort; most networks are placed optimally without a search.
    pub const COMPILE: Budget = Budget { steps: 10_000, seconds: None };
}

impl Default for Budget {
    fn default() -> Self {
        Budget { steps: 300_000, seconds: None }
    }
}

/// A placement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Solution {
    /// The highest end.
    pub height: i64,
    /// No placement is lower.
    pub lower_bound: i64,
    /// The offset of each item.
    pub offsets: Vec<i64>,
}

impl Solution {
    /// The distance from the bound to the height, as a fraction of the bound.
    pub fn gap(&self) -> f64 {
        match self.lower_bound {
            0 => 0.0,
            bound => (self.height - bound) as f64 / bound as f64,
        }
    }

    /// Whether no placement is lower.
    pub fn is_optimal(&self) -> bool {
        self.height == self.lower_bound
    }
}

/// The maximum number of items of a search, whose memory is quadratic in it. More items are placed greedily.
const MAX_SEARCHED: usize = 2000;

/// Steps of a run in the first round, or more if every item needs a step.
const RUN_STEPS: u64 = 500;

/// Places the items; the sizes together fit in an `i64`, see [`read_csv`].
pub fn solve(items: &[BufferInterval], budget: &Budget) -> Solution {
    let mut offsets = greedy::place(items, &|a, b| items[a].overlaps(&items[b]));
    // Empty items occupy no memory, so they fit at the bottom.
    items.iter().zip(&mut offsets).filter(|(item, _)| item.size == 0).for_each(|(_, offset)| *offset = 0);
    let height = greedy::height(items, &offsets);
    let (rectangles, sections) = rectangles(items);
    let mut solution = Solution { height, lower_bound: max_live(&rectangles, sections), offsets };
    if !solution.is_optimal() && items.len() <= MAX_SEARCHED {
        improve(items, &rectangles, sections, budget, &mut solution);
    }
    solution
}

/// The largest sum of sizes in one section.
fn max_live(rectangles: &[Rectangle], sections: usize) -> i64 {
    let mut live = vec![0; sections];
    for rectangle in rectangles {
        live[rectangle.first..=rectangle.last].iter_mut().for_each(|live| *live += rectangle.size);
    }
    live.into_iter().max().unwrap_or(0)
}

/// The items' rectangles, and the number of sections.
///
/// A section is the moment just before the first end of an item after some item has started. The sets of items alive
/// at these moments are the maximal ones.
fn rectangles(items: &[BufferInterval]) -> (Vec<Rectangle>, usize) {
    // At equal times, ends (`false`) come before starts.
    let mut events: Vec<(i64, bool)> = items.iter().flat_map(|i| [(i.start, true), (i.end, false)]).collect();
    events.sort_unstable();

    let mut moments = Vec::new();
    let mut started = None;
    for (time, starts) in events {
        if starts {
            started = Some(time);
        } else {
            moments.extend(started.take());
        }
    }

    let section = |time| moments.partition_point(|moment| *moment < time);
    let rectangle = |item: &BufferInterval| Rectangle {
        first: section(item.start),
        last: section(item.end) - 1,
        size: item.size,
    };

    (items.iter().map(rectangle).collect(), moments.len())
}

/// The search at one capacity, until a placement is found or refuted.
struct Attempt {
    capacity: i64,
    search: Search,
    seeds: Seeds,
}

fn improve(
    items: &[BufferInterval],
    rectangles: &[Rectangle],
    sections: usize,
    budget: &Budget,
    solution: &mut Solution,
) {
    let searched: Vec<usize> = (0..items.len()).filter(|idx| items[*idx].size > 0).collect();
    let rectangles: Vec<Rectangle> = searched.iter().map(|idx| rectangles[*idx]).collect();

    // A NaN counts as 0 seconds.
    let within = |seconds: f64| if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, 1e9) };
    let seconds = budget.seconds.map(|seconds| Duration::from_secs_f64(within(seconds)));
    let deadline = seconds.map(|seconds| Instant::now() + seconds);
    let unit = rectangles.iter().fold(0, |unit, rectangle| num_integer::gcd(unit, rectangle.size)).max(1);
    let mut left = if deadline.is_some() { u64::MAX } else { budget.steps };
    let seeds = Seeds::new(&rectangles, sections);

    let mut attempts: Vec<Attempt> = Vec::new();
    let mut turn = 0;
    let mut ease = EASE;

    // One step for each item, and some for backtracking.
    let min_steps = (rectangles.len() + rectangles.len() / 8) as u64;

    while left > 0 && !solution.is_optimal() {
        turn += 1;

        // If a placement reaches the bound, easier capacities waste steps, unless they are very easy.
        ease = if turn % 8 == 0 { EASE } else { ease };

        for capacity in capacities(solution.lower_bound, solution.height, unit, ease) {
            if left == 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return;
            }

            let position = attempts.iter().position(|attempt| attempt.capacity == capacity);
            let position = position.unwrap_or_else(|| {
                let search = Search::new(&rectangles, sections, capacity, deadline);
                attempts.push(Attempt { capacity, search, seeds: seeds.clone() });
                attempts.len() - 1
            });

            let Attempt { search, seeds, .. } = &mut attempts[position];
            let steps = RUN_STEPS.max(min_steps) * seeds.next_round();
            let before = search.steps();
            let outcome = search.run(seeds.tie_break(), seeds.rank(), steps.min(left));
            left = left.saturating_sub(search.steps() - before);
            ease += i64::from(outcome == Outcome::Limit && capacity != solution.lower_bound);

            match outcome {
                Outcome::Limit => continue,
                Outcome::Failed => solution.lower_bound = (capacity + unit).min(solution.height),
                Outcome::Found => {
                    searched.iter().zip(search.offsets()).for_each(|(idx, at)| solution.offsets[*idx] = *at);
                    solution.height = greedy::height(items, &solution.offsets);
                }
            }

            let lo = solution.lower_bound;
            let hi = solution.height;
            attempts.retain(|attempt| lo <= attempt.capacity && attempt.capacity < hi);
            break;
        }
    }
}

/// Eighth between the bound and the height at which easier capacities begin. They end at the last one.
const EASE: i64 = 5;

/// Capacities worth a try below `height`: the bound itself, and perhaps one that is easier.
fn capacities(bound: i64, height: i64, unit: i64, ease: i64) -> Vec<i64> {
    let steps = (height - bound) / unit;
    let easier = bound + i64::try_from(i128::from(steps) * i128::from(ease) / 8).unwrap_or(steps) * unit;
    if ease < 8 && bound < easier && easier < height { vec![bound, easier] } else { vec![bound] }
}

/// Seeds of consecutive runs.
#[derive(Clone)]
struct Seeds {
    /// Orders in which to place the items: for each order, a rank for every item. The lowest rank is placed first.
    ranks: Vec<Vec<f64>>,
    round: u64,
    random: u64,
}

impl Seeds {
    fn new(rectangles: &[Rectangle], sections: usize) -> Seeds {
        let mut live = vec![0i64; sections];
        for rectangle in rectangles {
            live[rectangle.first..=rectangle.last].iter_mut().for_each(|live| *live += rectangle.size);
        }

        let crowd = |rectangle: &Rectangle| {
            live[rectangle.first..=rectangle.last].iter().copied().max().unwrap_or(0) as f64
        };
        let span = |rectangle: &Rectangle| (rectangle.last - rectangle.first + 1) as f64;
        let size = |rectangle: &Rectangle| rectangle.size as f64;
        let largest = rectangles.iter().map(size).fold(1.0, f64::max);
        let rank = |value: &dyn Fn(&Rectangle) -> f64| {
            rectangles.iter().map(|rectangle| -value(rectangle)).collect()
        };

        let ranks = vec![
            rank(&|rectangle| size(rectangle) * span(rectangle)),
            rank(&size),
            rank(&|rectangle| span(rectangle) + size(rectangle) / (2.0 * largest)),
            rank(&|rectangle| crowd(rectangle) / largest * sections as f64 + span(rectangle)),
        ];

        Seeds { ranks, round: 0, random: 0x2545_f491_4f6c_dd1d }
    }

    /// Begins the next round, and returns the length of its runs: 1 1 2 1 1 2 4 …, each repeated once for every rank.
    fn next_round(&mut self) -> u64 {
        self.round += 1;
        let mut round = (self.round - 1) / self.ranks.len() as u64 + 1;
        loop {
            let bits = 64 - round.leading_zeros();
            if round == (1 << bits) - 1 {
                return 1 << (bits - 1);
            }
            round -= (1 << (bits - 1)) - 1;
        }
    }

    /// The rounds before this one in which every rank was used.
    fn turn(&self) -> u64 {
        (self.round - 1) / self.ranks.len() as u64
    }

    fn tie_break(&self) -> TieBreak {
        let by_failures = TieBreak::FewestItemsPerFailure;
        [by_failures, TieBreak::FewestItems, by_failures, TieBreak::MinSlack][self.turn() as usize % 4]
    }

    /// A rank, disturbed in all but the first turn.
    fn rank(&mut self) -> Vec<f64> {
        let noise = match self.turn() {
            0 => 0.0,
            turn => [1.0, 0.3, 2.0][turn as usize % 3],
        };
        let rank = self.ranks[(self.round - 1) as usize % self.ranks.len()].clone();
        rank.into_iter().map(|value| value * (1.0 + noise * (self.random() - 0.5))).collect()
    }

    /// Between 0 and 1.
    fn random(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Reads items from lines of comma-separated values under a head that names the columns `id`, `start`, `end` and
/// `size` in any order (`lower` and `upper` mean `start` and `end`); other columns are ignored.
///
/// # Errors
/// The first error, and its line.
pub fn read_csv(text: &str) -> Result<Vec<BufferInterval>> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, head) = lines.next().ok_or_else(|| Error::invalid("the file is empty"))?;
    let names: Vec<String> = head.split(',').map(|name| name.trim().to_ascii_lowercase()).collect();

    let column = |wanted: &[&str]| {
        let found = names.iter().position(|name| wanted.contains(&name.as_str()));
        found.ok_or_else(|| Error::invalid(format!("line 1: there is no column `{}`", wanted[0])))
    };

    let columns = [
        column(&["id", "buffer", "buffer_id"])?,
        column(&["start", "lower"])?,
        column(&["end", "upper"])?,
        column(&["size"])?,
    ];

    let mut items: Vec<BufferInterval> = Vec::new();
    let mut total = 0i64;
    for (idx, line) in lines {
        let item = read_line(line, &columns).at(|| format!("line {}", idx + 1))?;
        total = total.checked_add(item.size).ok_or_else(|| {
            Error::new(ErrorKind::Limit, "the sizes together exceed 64 bits").at(format!("line {}", idx + 1))
        })?;
        items.push(item);
    }

    Ok(items)
}

fn read_line(line: &str, [id, start, end, size]: &[usize; 4]) -> Result<BufferInterval> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let field = |idx: usize| {
        fields.get(idx).copied().ok_or_else(|| Error::invalid(format!("there is no column {}", idx + 1)))
    };

    let number = |idx: usize| -> Result<i64> {
        let text = field(idx)?;
        text.parse().map_err(|_| Error::invalid(format!("`{text}` is not an integer in 64 bits")))
    };

    let item = BufferInterval {
        id: field(*id)?.to_string(),
        start: number(*start)?,
        end: number(*end)?,
        size: number(*size)?,
    };

    if item.start >= item.end {
        return Err(Error::invalid(format!(
            "the item ends at {}, not after its start at {}",
            item.end, item.start
        )));
    }

    if item.size < 0 { Err(Error::invalid(format!("the size {} is negative", item.size))) } else { Ok(item) }
}
