//! Searches for an element that two accesses have in common, at example values of the symbols.
//!
//! A proof that two accesses are disjoint is expensive, and it is most expensive where it must fail. One common element
//! shows that there is no such proof. At example values an address is usually linear in the loop variables, and the
//! search assigns the variables in the order of their strides:
//!
//! ```text
//! a = 7 + 64*i + j,  b = 2 + 8*x + y    ⇒    64*i + j + 8*x' + y' = t, all variables from 0 on
//! ```
//!
//! The variables of `b` count down, so that all strides are positive. A value is tried only if the remaining variables
//! can reach the rest.

use super::Axis;
use num_bigint::BigInt;
use num_integer::Integer;
use num_traits::ToPrimitive;
use std::collections::{BTreeMap, BTreeSet};
use symshape::{Dim, Facts, Node, Symbol};

/// The number of examples to search whose sizes are ends of their ranges.
const ENDS: usize = 4;

/// The number of examples to search whose sizes are inside of their ranges. The ends of a range are often multiples of
/// powers of two, but the last line of a padded image is read only if the number of lines is odd.
const INNER: usize = 6;

/// The maximum number of assignments of a search. Without a common element so far, there may be one.
const MAX_STEPS: usize = 2_000;

/// Values of the symbols that the facts allow.
pub(super) type Example = BTreeMap<Symbol, BigInt>;

/// Values of the declared symbols to search at.
pub(super) fn examples(facts: &Facts) -> Vec<Example> {
    let mut all = facts.examples();
    let mut examples: Vec<Example> = all.by_ref().take(ENDS).collect();
    examples.extend(all.rev().take(INNER));
    examples
}

/// The addresses of an access at one example.
#[derive(Clone, Debug)]
pub(super) struct LinearAddress {
    /// The smallest address.
    first: i64,
    loops: Vec<Loop>,
}

/// A loop that moves an address upwards.
#[derive(Clone, Debug)]
struct Loop {
    stride: i64,
    /// The largest value of the variable.
    last: i64,
}

impl LinearAddress {
    /// The addresses at an example. Loops whose variable another extent depends on have only their first iteration in
    /// one element of the list, and their last one in another. An element is left out if the address is not linear in
    /// the loop variables, exceeds 64 bits, or a loop has no iteration.
    pub(super) fn all(index: &Dim, axes: &[Axis], example: &Example) -> Vec<LinearAddress> {
        let fixed = fixed(axes);
        let ends: &[bool] = if fixed.is_empty() { &[false] } else { &[false, true] };
        ends.iter().filter_map(|at_last| LinearAddress::of(index, axes, example, &fixed, *at_last)).collect()
    }

    /// The addresses in the first or the last iteration of each loop over a variable of `fixed`.
    fn of(
        index: &Dim,
        axes: &[Axis],
        example: &Example,
        fixed: &BTreeSet<Symbol>,
        at_last: bool,
    ) -> Option<LinearAddress> {
        let linear = Linear::of(index, axes, example)?;
        let extents = extents(axes, fixed, example, at_last)?;
        let mut address = LinearAddress { first: linear.constant, loops: Vec::new() };
        for ((axis, stride), extent) in axes.iter().zip(linear.strides).zip(extents) {
            let last = extent.checked_sub(1)?;
            if last < 0 {
                return None;
            }
            let is_fixed = fixed.contains(&axis.var);
            // Counted down, the variable begins at its largest value.
            let begins_at_last = if is_fixed { at_last } else { stride < 0 };
            if begins_at_last {
                address.first = address.first.checked_add(stride.checked_mul(last)?)?;
            }
            if stride != 0 && last > 0 && !is_fixed {
                address.loops.push(Loop { stride: stride.checked_abs()?, last });
            }
        }
        Some(address)
    }

    /// The largest address.
    fn end(&self) -> Option<i64> {
        self.loops.iter().try_fold(self.first, |end, l| end.checked_add(l.stride.checked_mul(l.last)?))
    }

    /// Whether the search finds an address that both have.
    pub(super) fn meets(&self, other: &LinearAddress) -> bool {
        self.search(other).unwrap_or(false)
    }

    fn search(&self, other: &LinearAddress) -> Option<bool> {
        let target = other.end()?.checked_sub(self.first)?;
        let mut loops: Vec<Loop> = self.loops.iter().chain(&other.loops).cloned().collect();
        loops.sort_by_key(|l| std::cmp::Reverse(l.stride));
        let mut reach = vec![0_i64];
        let mut step = vec![0_i64];
        for (idx, l) in loops.iter().rev().enumerate() {
            reach.push(reach[idx].checked_add(l.stride.checked_mul(l.last)?)?);
            step.push(step[idx].gcd(&l.stride));
        }
        reach.reverse();
        step.reverse();
        Some(Search { loops: &loops, reach: &reach, step: &step, left: MAX_STEPS }.reaches(0, target))
    }
}

/// The variables of loops that extents of others depend on.
fn fixed(axes: &[Axis]) -> BTreeSet<Symbol> {
    let vars = axes.iter().map(|axis| &axis.var);
    vars.filter(|var| axes.iter().any(|axis| axis.extent.contains(var))).cloned().collect()
}

/// The extents of loops at an example, in the first or the last iteration of each loop over a variable of `fixed`.
fn extents(axes: &[Axis], fixed: &BTreeSet<Symbol>, example: &Example, at_last: bool) -> Option<Vec<i64>> {
    if fixed.is_empty() {
        let extent = |axis: &Axis| Linear::of(&axis.extent, axes, example)?.as_constant();
        return axes.iter().map(extent).collect();
    }
    let mut values = example.clone();
    let extent = |axis: &Axis| {
        let extent = Linear::of(&axis.extent, &[], &values)?.as_constant()?;
        if fixed.contains(&axis.var) {
            let value = if at_last { extent.checked_sub(1)? } else { 0 };
            values.insert(axis.var.clone(), BigInt::from(value));
        }
        Some(extent)
    };
    axes.iter().map(extent).collect()
}

struct Search<'s> {
    /// By stride, the largest first.
    loops: &'s [Loop],
    /// The largest sum of the loops from each index on.
    reach: &'s [i64],
    /// The greatest common divisor of the strides from each index on.
    step: &'s [i64],
    left: usize,
}

impl Search<'_> {
    /// Whether the loops from `idx` on add up to `target`.
    fn reaches(&mut self, idx: usize, target: i64) -> bool {
        if target < 0 || target > self.reach[idx] {
            return false;
        }
        let Some(Loop { stride, last }) = self.loops.get(idx).cloned() else { return target == 0 };
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        if target % self.step[idx] != 0 {
            return false;
        }

        let largest = last.min(target / stride);
        let smallest = Integer::div_ceil(&(target - self.reach[idx + 1]).max(0), &stride);
        for value in (smallest..=largest).rev() {
            if self.reaches(idx + 1, target - stride * value) {
                return true;
            }
            if self.left == 0 {
                return false;
            }
        }
        false
    }
}

/// A term that is linear in some variables, one stride for each.
pub(super) struct Linear {
    pub(super) constant: i64,
    pub(super) strides: Vec<i64>,
}

impl Linear {
    /// `None` if the term depends on a symbol that is not one of the variables, or if it is not linear in them.
    pub(super) fn without_symbols(dim: &Dim, axes: &[Axis]) -> Option<Linear> {
        Linear::of(dim, axes, &Example::new())
    }

    fn of(dim: &Dim, axes: &[Axis], example: &Example) -> Option<Linear> {
        let of = |dim: &Dim| Linear::of(dim, axes, example);
        let constant = |constant: i64| Linear { constant, strides: vec![0; axes.len()] };
        let both = |a: &Dim, b: &Dim| Some((of(a)?.as_constant()?, of(b)?.as_constant()?));

        Some(match dim.node() {
            Node::Int(value) => constant(value.to_i64()?),
            Node::Symbol(symbol) => match axes.iter().rposition(|axis| axis.var == *symbol) {
                Some(idx) => {
                    let mut linear = constant(0);
                    linear.strides[idx] = 1;
                    linear
                }
                None => constant(example.get(symbol)?.to_i64()?),
            },
            Node::Add(list) => list.iter().try_fold(constant(0), |sum, next| sum.plus(&of(next)?))?,
            Node::Mul(list) => list.iter().try_fold(constant(1), |product, next| product.times(of(next)?))?,
            Node::FloorDiv(a, b) => {
                let (a, b) = both(a, b)?;
                if b <= 0 {
                    return None;
                }
                constant(Integer::div_floor(&a, &b))
            }
            Node::Mod(a, b) => {
                let (a, b) = both(a, b)?;
                if b <= 0 {
                    return None;
                }
                constant(Integer::mod_floor(&a, &b))
            }
            Node::Min(list) => constant(extreme(list, &of)?.0),
            Node::Max(list) => constant(extreme(list, &of)?.1),
        })
    }

    pub(super) fn as_constant(&self) -> Option<i64> {
        self.strides.iter().all(|stride| *stride == 0).then_some(self.constant)
    }

    fn plus(&self, other: &Linear) -> Option<Linear> {
        let sums = self.strides.iter().zip(&other.strides).map(|(a, b)| a.checked_add(*b));
        Some(Linear {
            constant: self.constant.checked_add(other.constant)?,
            strides: sums.collect::<Option<_>>()?,
        })
    }

    fn times(self, other: Linear) -> Option<Linear> {
        let (linear, factor) = match other.as_constant() {
            Some(factor) => (self, factor),
            None => {
                let factor = self.as_constant()?;
                (other, factor)
            }
        };
        let products = linear.strides.iter().map(|stride| stride.checked_mul(factor));
        Some(Linear {
            constant: linear.constant.checked_mul(factor)?,
            strides: products.collect::<Option<_>>()?,
        })
    }
}

/// The smallest and the largest of some constant terms.
fn extreme(list: &[Dim], of: &dyn Fn(&Dim) -> Option<Linear>) -> Option<(i64, i64)> {
    let values: Vec<i64> = list.iter().map(|dim| of(dim)?.as_constant()).collect::<Option<_>>()?;
    Some((*values.iter().min()?, *values.iter().max()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(var: &str, extent: &str) -> Axis {
        Axis { var: Symbol::new(var), extent: extent.parse().expect("a term") }
    }

    fn example(values: &[(&str, i64)]) -> Example {
        values.iter().map(|(name, value)| (Symbol::new(name), BigInt::from(*value))).collect()
    }

    fn address(index: &str, axes: &[Axis], example: &Example) -> Option<LinearAddress> {
        LinearAddress::all(&index.parse().expect("a term"), axes, example).into_iter().next()
    }

    /// All addresses of an access with up to two loops.
    fn elements(index: &str, axes: &[Axis], example: &Example) -> Vec<BigInt> {
        let index: Dim = index.parse().expect("a term");
        let extent = |idx: usize| match axes.get(idx) {
            Some(axis) => axis.extent.eval(&|symbol| example.get(symbol).cloned()).expect("a value").to_i64(),
            None => Some(1),
        };
        let mut elements = Vec::new();
        for i in 0..extent(0).expect("a small extent") {
            for j in 0..extent(1).expect("a small extent") {
                let value_of = |symbol: &Symbol| match axes.iter().position(|axis| axis.var == *symbol) {
                    Some(0) => Some(i.into()),
                    Some(_) => Some(j.into()),
                    None => example.get(symbol).cloned(),
                };
                elements.push(index.eval(&value_of).expect("a value"));
            }
        }
        elements
    }

    #[test]
    fn search_agrees_with_enumeration() {
        let example = example(&[("W", 6)]);
        let axes = [axis("i", "W//2"), axis("j", "5")];
        let indices = [
            "2*i",
            "2*i + 1",
            "7",
            "W*i + j",
            "W*i + j + 4",
            "W*i - j",
            "10*j + 3*i",
            "4*i + 4*j + 2",
            "20 - 3*i",
            "(W + 1)*i",
            "W*(i + 1) + W%4",
            "min(W, 9)*i + 1",
            "3*W",
            "W*W + 1",
        ];
        let mut met = 0;
        for a in indices {
            for b in indices {
                let own = elements(a, &axes, &example);
                let common = elements(b, &axes, &example).iter().any(|element| own.contains(element));
                let [a_form, b_form] =
                    [a, b].map(|index| address(index, &axes, &example).expect("it is linear"));
                assert_eq!(a_form.meets(&b_form), common, "{a} and {b}");
                met += usize::from(common);
            }
        }
        assert!(met > 20 && met < indices.len() * indices.len() - 20, "{met} pairs meet");
    }

    #[test]
    fn loops_that_extents_depend_on_have_their_first_and_last_iteration() {
        // Blocks of three rows, the last of which is smaller.
        let axes = [axis("i", "W//3 + 1"), axis("j", "min(W - 3*i, 3)")];
        let example = example(&[("W", 8)]);
        let all = LinearAddress::all(&"10*(3*i + j)".parse().expect("a term"), &axes, &example);
        let ends: Vec<_> = all.iter().map(|address| (address.first, address.end())).collect();
        assert_eq!(ends, [(0, Some(20)), (60, Some(70))]);

        let row = |row: i64| LinearAddress { first: 10 * row, loops: Vec::new() };
        let met: Vec<i64> = (0..9).filter(|at| all.iter().any(|address| address.meets(&row(*at)))).collect();
        assert_eq!(met, [0, 1, 2, 6, 7]);
    }

    #[test]
    fn other_addresses_have_no_linear_form() {
        let example = example(&[("W", 6), ("Z", 0)]);
        let axes = [axis("i", "W"), axis("j", "i + 1")];
        for index in ["i*i", "i//2", "i%W", "min(i, 3)", "V + i", "W//Z", "j*i"] {
            assert!(address(index, &axes, &example).is_none(), "{index}");
        }
        let far = address("W*i*4611686018427387904", &[axis("i", "W")], &example);
        assert!(far.is_none(), "the stride has more than 64 bits");
        assert!(address("i", &[axis("i", "Z")], &example).is_none(), "an empty loop has no address");
        assert!(address("i*3", &axes[..1], &example).is_some());
    }

    #[test]
    fn loops_whose_extents_vary_are_searched_in_a_first_iteration() {
        // Four blocks of rows, the last one of two rows.
        let example = example(&[("N", 14)]);
        let axes = [axis("b", "(N + 3)//4"), axis("r", "min(N - 4*b, 4)"), axis("c", "10")];
        let rows = address("400*b + 100*r + c", &axes, &example).expect("it is linear");
        let meets = |at: i64| rows.meets(&address(&at.to_string(), &[], &example).expect("a constant"));
        for (at, expected) in [(0, true), (309, true), (310, false), (99, false), (400, false)] {
            assert_eq!(meets(at), expected, "element {at}");
        }
    }

    #[test]
    fn long_search_finds_nothing() {
        let axes: Vec<Axis> = ["a", "b", "c", "d", "e"].into_iter().map(|var| axis(var, "1000000")).collect();
        let example = Example::new();
        let many = address("6*a + 10*b + 15*c + 21*d + 35*e", &axes, &example).expect("it is linear");
        let far = address("300000000000", &axes, &example).expect("it is linear");
        assert!(!many.meets(&far));
    }
}
