//! The search for a placement within a given capacity.
//!
//! Time is cut into sections, one for each maximal set of items that are alive at once. Two items that overlap also
//! overlap in a section. A section's floor is the height below which no further item is placed. The search fills
//! valleys:
//!
//! ```text
//! solve(sections):
//!   propagate: an item begins no lower than the highest floor that it spans; a floor is no lower than the lowest
//!     beginning of the items left in its section; in no section do the items left, begun as early as they can,
//!     end above the capacity; otherwise fail
//!   split into runs of sections that no item left connects; each is solved by itself
//!   if this state (items left, floors) failed before, fail
//!   take a section with the lowest floor; either one of the items left begins there,
//!     or none does and the floor rises to the lowest place where one can begin
//! ```
//! The two cases are complete because the floor is the lowest: all sections that such an item spans have the same
//! floor, so no space below the item is lost. When a placement is pushed down as far as possible, every item rests on
//! the floor or on another item. This bounds how far the floor rises in the second case.
//!
//! Among equally low sections, and among the items that fit, the order of the choices decides how long a run takes. So
//! every run has a limit of steps, and the next run chooses in another order. It keeps the failed states.
//!
//! Weights of sections carry over as well: sections that failed in earlier runs are filled earlier in the next one
//! (Boussemart et al., "Boosting Systematic Search by Weighting Constraints", 2004).

use crate::random;
use std::{collections::HashSet, time::Instant};

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// Every item has its offset.
    Found,
    /// There is no placement.
    Failed,
    /// The limit was reached first.
    Limit,
}

/// Which of the lowest sections is filled first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TieBreak {
    /// The one with the fewest items to choose from.
    FewestItems,
    /// The one with the smallest slack.
    MinSlack,
    /// The one with the fewest items for its failures.
    FewestItemsPerFailure,
}

/// An item: the first and the last section that it spans, and its size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rectangle {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) size: i64,
}

/// The largest number of failed states to keep, which bounds the memory.
const MAX_FAILED: usize = 1 << 21;

/// Blame of a section without failures. The blame of a section that fails in most runs is several times as large.
const UNBLAMED: i64 = 100;

/// Branches are multiplied by this before they are divided by a blame.
const BRANCH_SCALE: i64 = 1 << 20;

/// Steps between two readings of the clock.
const CLOCK_STEPS: u64 = 1 << 10;

pub(super) struct Search {
    rectangles: Vec<Rectangle>,
    capacity: i64,
    /// The items of each section, placed or not.
    live: Vec<Vec<usize>>,
    /// For each item, the others that it overlaps.
    beside: Vec<Vec<u32>>,
    /// One bit pattern for each item, for hashes of sets.
    keys: Vec<u64>,
    placed: Vec<bool>,
    offsets: Vec<i64>,
    /// The lowest possible offset of each remaining item.
    base: Vec<i64>,
    floor: Vec<i64>,
    /// For each section, the sum of its remaining items' sizes.
    rest: Vec<i64>,
    /// For each section, the number of remaining items that span it and the next one.
    bridges: Vec<u32>,
    /// For each section, a hash of the set of remaining items that begin in it.
    starts: Vec<u64>,
    /// How often each section caused a failure, recent failures weighted more.
    blame: Vec<i64>,
    trail: Vec<Change>,
    /// Sections whose items or floors changed since the last propagation.
    dirty: Vec<usize>,
    is_dirty: Vec<bool>,
    /// Bases and sizes of one section's items; a field so that its allocation is reused.
    queue: Vec<(i64, i64)>,
    failed: HashSet<(u64, u64)>,
    rank: Vec<f64>,
    tie_break: TieBreak,
    steps: u64,
    limit: u64,
    deadline: Option<Instant>,
}

/// A change that backtracking undoes.
#[derive(Clone, Copy)]
enum Change {
    Floor(usize, i64),
    Base(usize, i64),
    Placed(usize),
}

/// Positions of the rectangles that share a section with this one.
fn met(rectangles: &[Rectangle], rectangle: &Rectangle) -> Vec<u32> {
    let overlaps = |other: &Rectangle| rectangle.first <= other.last && other.first <= rectangle.last;
    (0..)
        .zip(rectangles)
        .filter(|(_, other)| overlaps(other) && !std::ptr::eq(*other, rectangle))
        .map(|(idx, _)| idx)
        .collect()
}

impl Search {
    /// `sections` is more than every rectangle's last one; sizes are positive and together fit in an `i64`.
    pub(super) fn new(
        rectangles: &[Rectangle],
        sections: usize,
        capacity: i64,
        deadline: Option<Instant>,
    ) -> Search {
        let mut search = Search {
            rectangles: rectangles.to_vec(),
            capacity,
            live: vec![Vec::new(); sections],
            beside: rectangles.iter().map(|rectangle| met(rectangles, rectangle)).collect(),
            keys: (1..=rectangles.len() as u64)
                .map(|idx| random::mix(idx.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
                .collect(),
            placed: vec![false; rectangles.len()],
            offsets: vec![0; rectangles.len()],
            base: vec![0; rectangles.len()],
            floor: vec![0; sections],
            rest: vec![0; sections],
            bridges: vec![0; sections],
            starts: vec![0; sections],
            blame: vec![0; sections],
            trail: Vec::new(),
            dirty: Vec::new(),
            is_dirty: vec![false; sections],
            queue: Vec::new(),
            failed: HashSet::new(),
            rank: vec![0.0; rectangles.len()],
            tie_break: TieBreak::FewestItems,
            steps: 0,
            limit: 0,
            deadline,
        };

        for (idx, rectangle) in rectangles.iter().enumerate() {
            (rectangle.first..=rectangle.last).for_each(|section| search.live[section].push(idx));
            search.put_back(idx);
        }

        search
    }

    /// Searches for `steps` steps. Among the items that fit, those of low rank are tried first.
    pub(super) fn run(&mut self, tie_break: TieBreak, rank: Vec<f64>, steps: u64) -> Outcome {
        (self.tie_break, self.rank) = (tie_break, rank);
        self.limit = self.steps.saturating_add(steps);
        // Old failures count for less than recent ones.
        self.blame.iter_mut().for_each(|blame| *blame = *blame * 4 / 5);
        (0..self.floor.len()).for_each(|section| self.touch(section));
        let outcome = self.solve(0, self.floor.len());
        if outcome != Outcome::Found {
            self.undo(0);
        }
        outcome
    }

    /// Steps of all runs so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }

    /// The offset of each item, after a run that found a placement.
    pub(super) fn offsets(&self) -> &[i64] {
        &self.offsets
    }

    fn touch(&mut self, section: usize) {
        if !self.is_dirty[section] {
            self.is_dirty[section] = true;
            self.dirty.push(section);
        }
    }

    fn set_floor(&mut self, section: usize, floor: i64) {
        self.trail.push(Change::Floor(section, self.floor[section]));
        self.floor[section] = floor;
        self.touch(section);
    }

    fn put_back(&mut self, idx: usize) {
        let Rectangle { first, last, size } = self.rectangles[idx];
        self.placed[idx] = false;
        self.starts[first] ^= self.keys[idx];
        self.rest[first..=last].iter_mut().for_each(|rest| *rest += size);
        self.bridges[first..last].iter_mut().for_each(|bridges| *bridges += 1);
    }

    fn place(&mut self, idx: usize, offset: i64) {
        let Rectangle { first, last, size } = self.rectangles[idx];
        self.placed[idx] = true;
        self.offsets[idx] = offset;
        self.trail.push(Change::Placed(idx));
        self.starts[first] ^= self.keys[idx];
        self.rest[first..=last].iter_mut().for_each(|rest| *rest -= size);
        self.bridges[first..last].iter_mut().for_each(|bridges| *bridges -= 1);
        (first..=last).for_each(|section| self.set_floor(section, offset + size));
    }

    fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop().expect("the trail is longer than the mark") {
                Change::Floor(section, floor) => self.floor[section] = floor,
                Change::Base(idx, base) => self.base[idx] = base,
                Change::Placed(idx) => self.put_back(idx),
            }
        }
    }

    fn is_left(&self, idx: usize, section: usize) -> bool {
        !self.placed[idx] && self.rectangles[idx].first <= section && section <= self.rectangles[idx].last
    }

    /// Propagates from the touched sections, as the module's documentation says; `false` on a contradiction.
    fn propagate(&mut self) -> bool {
        let mut next = 0;
        let mut sound = true;

        // Sections touched on the way are appended. A section that is touched again later is processed again.
        while sound && next < self.dirty.len() {
            let section = self.dirty[next];
            self.is_dirty[section] = false;
            next += 1;
            sound = self.raise_bases(section) && self.raise_floor(section);
            if !sound {
                self.blame[section] += 1;
            }
        }

        let mut touched = std::mem::take(&mut self.dirty);
        touched.iter().for_each(|section| self.is_dirty[*section] = false);

        if sound {
            touched.sort_unstable();
            touched.dedup();
            sound = touched.iter().all(|section| self.fits(*section));
        }

        touched.clear();
        self.dirty = touched;
        sound
    }

    /// Items of this section begin at its floor or higher.
    fn raise_bases(&mut self, section: usize) -> bool {
        let floor = self.floor[section];
        for position in 0..self.live[section].len() {
            let idx = self.live[section][position];
            if self.placed[idx] || self.base[idx] >= floor {
                continue;
            }
            self.trail.push(Change::Base(idx, self.base[idx]));
            self.base[idx] = floor;
            let Rectangle { first, last, size } = self.rectangles[idx];
            if floor + size > self.capacity {
                return false;
            }
            (first..=last).for_each(|other| self.touch(other));
        }

        true
    }

    /// The floor is where the first item can begin.
    fn raise_floor(&mut self, section: usize) -> bool {
        let left = self.live[section].iter().filter(|idx| !self.placed[**idx]);
        let Some(lowest) = left.map(|idx| self.base[*idx]).min() else { return true };
        if lowest > self.floor[section] {
            self.set_floor(section, lowest);
        }
        self.floor[section] + self.rest[section] <= self.capacity
    }

    /// Whether the remaining items end within the capacity, if each begins as low as possible.
    fn fits(&mut self, section: usize) -> bool {
        let left = self.live[section].iter().filter(|idx| !self.placed[**idx]);
        let highest = left.clone().map(|idx| self.base[*idx]).max().unwrap_or(0);

        // No order of them can end higher than this.
        if highest + self.rest[section] <= self.capacity {
            return true;
        }

        self.queue.clear();
        self.queue.extend(left.map(|idx| (self.base[*idx], self.rectangles[*idx].size)));
        self.queue.sort_unstable();

        let end = self.queue.iter().fold(0, |end: i64, (base, size)| end.max(*base) + size);
        if end > self.capacity {
            self.blame[section] += 1;
        }

        end <= self.capacity
    }

    /// Places the remaining items of these sections.
    fn solve(&mut self, begin: usize, end: usize) -> Outcome {
        if !self.propagate() {
            return Outcome::Failed;
        }

        let mut runs = self.runs(begin, end);
        runs.sort_by_key(|(begin, end)| end - begin);

        for (begin, end) in runs {
            match self.run_of_sections(begin, end) {
                Outcome::Found => {}
                other => return other,
            }
        }

        Outcome::Found
    }

    /// The maximal ranges of sections that remaining items connect.
    fn runs(&self, begin: usize, end: usize) -> Vec<(usize, usize)> {
        let mut runs = Vec::new();
        let mut section = begin;
        while section < end {
            let first = section;
            while section + 1 < end && self.bridges[section] > 0 {
                section += 1;
            }
            section += 1;
            if self.rest[first] > 0 {
                runs.push((first, section));
            }
        }

        runs
    }

    fn state(&self, begin: usize, end: usize) -> (u64, u64) {
        let mut a = begin as u64;
        let mut b = end as u64;
        for section in begin..end {
            let word = self.starts[section].wrapping_mul(3) ^ self.floor[section] as u64;
            a = random::mix(a ^ word);
            b = (b.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        (a, b)
    }

    fn run_of_sections(&mut self, begin: usize, end: usize) -> Outcome {
        self.steps += 1;
        let late = |deadline: Instant| Instant::now() >= deadline;
        if self.steps > self.limit
            || (self.steps.is_multiple_of(CLOCK_STEPS) && self.deadline.is_some_and(late))
        {
            return Outcome::Limit;
        }

        let state = self.state(begin, end);
        if self.failed.contains(&state) {
            return Outcome::Failed;
        }

        let section = self.valley(begin, end);
        for idx in self.choices(section) {
            let mark = self.trail.len();
            self.place(idx, self.floor[section]);
            match self.solve(begin, end) {
                Outcome::Failed => self.undo(mark),
                other => return other,
            }
        }

        if let Some(floor) = self.next_floor(section) {
            let mark = self.trail.len();
            self.set_floor(section, floor);
            match self.solve(begin, end) {
                Outcome::Failed => self.undo(mark),
                other => return other,
            }
        }

        if self.failed.len() < MAX_FAILED {
            self.failed.insert(state);
        }

        Outcome::Failed
    }

    /// A section with the lowest floor among those with remaining items.
    fn valley(&self, begin: usize, end: usize) -> usize {
        let lowest = self.floor[begin..end].iter().copied().min().unwrap_or(0);
        let sections = (begin..end).filter(|section| self.floor[*section] == lowest);
        let chosen = sections.min_by_key(|section| {
            let choices = self.live[*section].iter().filter(|idx| self.begins(**idx, lowest)).count() as i64;
            let slack = self.capacity - lowest - self.rest[*section];
            let branches = choices + i64::from(slack > 0);
            match self.tie_break {
                TieBreak::FewestItems => (branches, slack),
                TieBreak::MinSlack => (slack, choices),
                TieBreak::FewestItemsPerFailure => {
                    (branches * BRANCH_SCALE / (UNBLAMED + self.blame[*section]), slack)
                }
            }
        });

        chosen.unwrap_or(begin)
    }

    fn begins(&self, idx: usize, floor: i64) -> bool {
        !self.placed[idx] && self.base[idx] == floor
    }

    /// The items that can begin at the floor of this section, without duplicates of equal items.
    fn choices(&self, section: usize) -> Vec<usize> {
        let floor = self.floor[section];
        let mut choices: Vec<usize> =
            self.live[section].iter().copied().filter(|idx| self.begins(*idx, floor)).collect();
        choices.sort_by(|a, b| self.rank[*a].total_cmp(&self.rank[*b]).then(a.cmp(b)));

        let shape =
            |idx: usize| (self.rectangles[idx].first, self.rectangles[idx].last, self.rectangles[idx].size);
        let mut seen = Vec::new();
        choices.retain(|idx| {
            let new = !seen.contains(&shape(*idx));
            seen.push(shape(*idx));
            new
        });

        choices
    }

    /// The lowest offset above this section's floor at which an item can begin and rest on another one.
    fn next_floor(&self, section: usize) -> Option<i64> {
        let floor = self.floor[section];
        let slack = self.capacity - floor - self.rest[section];
        if slack == 0 {
            return None;
        }
        let left = self.live[section].iter().copied().filter(|idx| !self.placed[*idx]);
        let lowest = left.filter_map(|idx| {
            if self.base[idx] > floor { Some(self.base[idx]) } else { self.lowest_end_beside(idx, section) }
        });
        lowest.min().filter(|next| *next <= floor + slack)
    }

    /// The lowest end of the remaining items that overlap `idx`, but not in this section.
    fn lowest_end_beside(&self, idx: usize, section: usize) -> Option<i64> {
        let beside = self.beside[idx].iter().map(|other| *other as usize);
        let beside = beside.filter(|other| !self.placed[*other] && !self.is_left(*other, section));
        beside.map(|other| self.base[other] + self.rectangles[other].size).min()
    }
}
