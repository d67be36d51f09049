//! Proofs about many accesses at once.
//!
//! The loads of a window differ by constants and by sizes, such as the length of a line. In every iteration they have
//! one order, `lo <= … <= hi`. So an address below `lo` or above `hi` differs from all of them, and two proofs do the
//! work of one for each load.
//!
//! The same holds for remainders modulo a stride, if `lo` and `hi` always have the same quotient. Loads in several
//! lines of an image have several quotients; they are divided by the quotients at an example.

use super::access_range::{AccessRange, strides};
use crate::kernel::{Program, common_element::Example};
use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::{Signed, Zero};
use symshape::{Dim, Facts, Symbol};

/// The smallest number of accesses for which a common proof is tried.
const MIN_ACCESSES: usize = 4;

/// An access, and the part of its address in which it differs from others in the same loops.
struct Placed<'a> {
    range: &'a AccessRange,
    offset: Dim,
    /// The value of `offset` at the example.
    value: BigInt,
}

/// The accesses of `others` that are not proven to be disjoint from `a` by proofs about several of them.
pub(super) fn remaining<'a>(
    program: &Program,
    a: &AccessRange,
    others: Vec<&'a AccessRange>,
    examples: &[Example],
) -> Vec<&'a AccessRange> {
    // Large sizes separate the lines of an image.
    let largest = examples.iter().max_by_key(|example| example.values().sum::<BigInt>());
    let Some(example) = largest.filter(|_| others.len() >= MIN_ACCESSES) else { return others };

    let mut groups: Vec<Vec<&AccessRange>> = Vec::new();
    for range in others {
        match groups.iter_mut().find(|group| group[0].axes == range.axes) {
            Some(group) => group.push(range),
            None => groups.push(vec![range]),
        }
    }

    let mut left = Vec::new();
    for group in groups {
        let (placed, unplaced) = placed(&program.facts, group, example);
        left.extend(unplaced);
        let is_ascending =
            |x: &Placed<'_>, y: &Placed<'_>| program.facts.prove_le(&x.offset, &y.offset).is_yes();
        for run in placed.chunk_by(is_ascending) {
            let run = if run.len() < MIN_ACCESSES {
                run.iter().collect()
            } else {
                unproven(program, a, run, example)
            };
            left.extend(run.into_iter().map(|placed| placed.range));
        }
    }
    left
}

/// The accesses of a group in the order of their offsets at the example, and those whose offsets depend on loops.
fn placed<'a>(
    facts: &Facts,
    group: Vec<&'a AccessRange>,
    example: &Example,
) -> (Vec<Placed<'a>>, Vec<&'a AccessRange>) {
    let base = group[0];
    let (mut placed, mut unplaced) = (Vec::new(), Vec::new());
    for range in group {
        let difference = &range.index - &base.index;
        // The normal form of a difference has no loop variable, or it has no value at the example.
        let offset = match base.axes.first() {
            Some(axis) => {
                let linear = facts.linear_in(&difference, &axis.var);
                linear.filter(|(step, _)| step.as_i64() == Some(0)).map(|(_, rest)| rest)
            }
            None => Some(difference),
        };
        let value =
            offset.as_ref().and_then(|offset| offset.eval(&|symbol| example.get(symbol).cloned()).ok());
        match (offset, value) {
            (Some(offset), Some(value)) => placed.push(Placed { range, offset, value }),
            _ => unplaced.push(range),
        }
    }
    placed.sort_by(|x, y| x.value.cmp(&y.value));
    (placed, unplaced)
}

/// The accesses of an ascending run that are not proven to be disjoint from `a`.
fn unproven<'r, 'a>(
    program: &Program,
    a: &AccessRange,
    run: &'r [Placed<'a>],
    example: &Example,
) -> Vec<&'r Placed<'a>> {
    let mut facts = program.facts.clone();
    let lowest = run[0].range.renamed(program);
    for axis in a.axes.iter().chain(&lowest.axes) {
        facts.declare_index(&axis.var, &axis.extent);
    }
    let whole = |at: &Dim| at.clone();
    if is_outside(&facts, program, a, run, &whole) {
        return Vec::new();
    }

    let mut pending = vec![run];
    for stride in strides(&facts, &[a, &lowest]) {
        let value = stride.eval(&|symbol| example.get(symbol).cloned());
        let Some(value) = value.ok().filter(Signed::is_positive) else { continue };
        if !facts.prove_lt(&Dim::zero(), &stride).is_yes() {
            continue;
        }
        let rest = |at: &Dim| facts.simplify(&at.modulo(stride.clone()));
        let line = |placed: &Placed<'_>| quotient(&placed.range.index, &value, example);
        let lines = pending.iter().flat_map(|run| run.chunk_by(|x, y| line(x) == line(y)));
        pending = lines.filter(|run| !is_outside(&facts, program, a, run, &rest)).collect();
    }
    pending.into_iter().flatten().collect()
}

/// The quotient of an address in the first iteration of all loops, at an example.
fn quotient(index: &Dim, stride: &BigInt, example: &Example) -> Option<BigInt> {
    let value = |symbol: &Symbol| Some(example.get(symbol).cloned().unwrap_or_else(BigInt::zero));
    Some(index.eval(&value).ok()?.div_floor(stride))
}

/// Whether `part` of an address of `a` is proven to be below or above that of all accesses of an ascending run. The
/// part is the address or its remainder.
fn is_outside(
    facts: &Facts,
    program: &Program,
    a: &AccessRange,
    run: &[Placed<'_>],
    part: &dyn Fn(&Dim) -> Dim,
) -> bool {
    let [lo, hi] = [&run[0], &run[run.len() - 1]];
    let [first, last] = [lo, hi].map(|placed| part(&placed.range.renamed(program).index));
    let own = part(&a.index);
    if !(facts.prove_lt(&own, &first).is_yes() || facts.prove_lt(&last, &own).is_yes()) {
        return false;
    }
    // Remainders are in the order of the addresses only if no multiple of the stride is between them.
    facts.prove_eq(&(last - first), &(&hi.offset - &lo.offset)).is_yes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Axis, common_element::examples};
    use symshape::Declaration;

    /// A program with an image of up to 320 by 320 elements.
    fn program() -> Program {
        let mut program = Program::default();
        for (name, lo, hi, step) in [("N", 1, 64, 1), ("H", 64, 320, 32), ("W", 64, 320, 32)] {
            let symbol = Symbol::new(name);
            program.symbols.push(symbol.clone());
            let declaration = Declaration::range(lo, hi).step(step, 0);
            program.facts.declare(&symbol, declaration).expect("a range");
        }
        program
    }

    fn range(index: &str, axes: &[(&str, &str)], is_store: bool) -> AccessRange {
        let axis = |(var, extent): &(&str, &str)| Axis {
            var: Symbol::new(var),
            extent: extent.parse().expect("a term"),
        };
        AccessRange::new(index.parse().expect("a term"), axes.iter().map(axis).collect(), is_store)
    }

    /// The taps of a window of 5 by 9, in loops over an image with a border of two elements.
    fn window() -> Vec<AccessRange> {
        let loops = [("i0", "N"), ("i1", "H//8"), ("i2", "W//16"), ("i3", "96")];
        let tap = |row: i64, column: i64| {
            let at = 192 * row + 96 * column;
            let index =
                format!("24*(H + 4)*(W + 4)*i0 + {}*W + 192*(W + 4)*i1 + 768*i2 + i3 + {at}", 48 * row);
            range(&index, &loops, false)
        };
        (0..5).flat_map(|row| (0..9).map(move |column| tap(row, column))).collect()
    }

    fn remaining_of(program: &Program, a: &AccessRange, window: &[AccessRange]) -> usize {
        remaining(program, a, window.iter().collect(), &examples(&program.facts)).len()
    }

    #[test]
    fn border_is_apart_from_all_taps() {
        let program = program();
        let last_rows = "24*(H + 2)*(W + 4) + 24*(H + 4)*(W + 4)*i0 + i3";
        let last_rows = range(last_rows, &[("i0", "N"), ("i3", "48*(W + 4)")], true);
        assert_eq!(remaining_of(&program, &last_rows, &window()), 0);

        let last_columns = "24*(H + 4)*(W + 4)*i0 + 48*(W + 4)*i2 + 48*W + 96 + i1";
        let last_columns = range(last_columns, &[("i0", "N"), ("i2", "H//2"), ("i1", "96")], true);
        assert_eq!(remaining_of(&program, &last_columns, &window()), 0);
    }

    #[test]
    fn memory_that_a_tap_reads_remains() {
        let program = program();
        for (first, expected) in [("0", 45), ("48*(W + 4)", 36), ("48*(W + 4)*(H//2 - 1)", 9)] {
            let line = format!("{first} + 24*(H + 4)*(W + 4)*i0 + i3");
            let line = range(&line, &[("i0", "N"), ("i3", "48*(W + 4)")], true);
            let left = remaining_of(&program, &line, &window());
            assert!(left >= expected, "{left} remain at {first}");
        }
    }

    #[test]
    fn lines_are_apart_only_at_all_sizes() {
        let mut program = Program { symbols: vec![Symbol::new("W")], ..Program::default() };
        let loops = [("i", "5")];
        let taps: Vec<_> = (8..16).map(|tap| range(&format!("W*i + {tap}"), &loops, false)).collect();
        let store = range("W*i + 1", &loops, true);
        program.facts.declare(&Symbol::new("W"), Declaration::range(16, 64)).expect("a range");
        assert_eq!(remaining_of(&program, &store, &taps), 0);
        // Modulo 14, the last tap is 1.
        program.facts = Facts::new();
        program.facts.declare(&Symbol::new("W"), Declaration::range(9, 64)).expect("a range");
        assert!(remaining_of(&program, &store, &taps) > 0);
    }
}
