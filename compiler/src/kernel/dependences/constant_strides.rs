//! Proofs about addresses whose strides are constants, in plain integers.
//!
//! Loops whose strides are multiples of a divisor don't change the remainder of an address. If the other loops stay
//! between two multiples of the divisor, the remainders are a range. Two addresses with disjoint ranges always differ,
//! for all values of the symbols.

use crate::kernel::{Axis, common_element::Linear};
use num_integer::Integer;
use symshape::Dim;

/// An address that is the sum of a constant and of loop variables with constant strides.
#[derive(Clone, Debug)]
pub(super) struct ConstantStrides {
    constant: i64,
    loops: Vec<Loop>,
}

#[derive(Clone, Debug)]
struct Loop {
    stride: i64,
    /// The largest value of the variable, if it is a constant.
    last: Option<i64>,
}

impl ConstantStrides {
    /// `None` if a symbol other than the loop variables moves the address, or if it is not linear.
    pub(super) fn of(index: &Dim, axes: &[Axis]) -> Option<ConstantStrides> {
        let linear = Linear::without_symbols(index, axes)?;
        let last = |axis: &Axis| {
            let extent = Linear::without_symbols(&axis.extent, axes)?.as_constant()?;
            // An empty loop has no address at all, so any value may be assumed.
            Some(extent.max(1) - 1)
        };
        let loops = axes.iter().zip(linear.strides).filter(|(_, stride)| *stride != 0);
        let loops = loops.map(|(axis, stride)| Loop { stride, last: last(axis) });
        Some(ConstantStrides { constant: linear.constant, loops: loops.collect() })
    }

    /// Whether both addresses always differ, because of their bounds or of their remainders modulo a stride.
    pub(super) fn is_disjoint(&self, other: &ConstantStrides) -> bool {
        let below = |x: (i64, i64), y: (i64, i64)| x.1 < y.0;
        let differ = |x: Option<(i64, i64)>, y: Option<(i64, i64)>| {
            x.zip(y).is_some_and(|(x, y)| below(x, y) || below(y, x))
        };
        differ(self.bounds(None), other.bounds(None))
            || self.loops.iter().chain(&other.loops).any(|l| {
                let divisor = l.stride.checked_abs().filter(|divisor| *divisor > 1);
                divisor.is_some_and(|divisor| differ(self.remainders(divisor), other.remainders(divisor)))
            })
    }

    /// The bounds of the address, or of its part without the loops whose strides are multiples of a divisor.
    fn bounds(&self, divisor: Option<i64>) -> Option<(i64, i64)> {
        let mut bounds = (self.constant, self.constant);
        for Loop { stride, last } in &self.loops {
            if divisor.is_some_and(|divisor| stride % divisor == 0) {
                continue;
            }
            let move_by = stride.checked_mul((*last)?)?;
            bounds.0 = bounds.0.checked_add(move_by.min(0))?;
            bounds.1 = bounds.1.checked_add(move_by.max(0))?;
        }
        Some(bounds)
    }

    /// The bounds of the remainder of the address. `None` if they are unknown, or if the quotient varies.
    fn remainders(&self, divisor: i64) -> Option<(i64, i64)> {
        let (lo, hi) = self.bounds(Some(divisor))?;
        let same_quotient = Integer::div_floor(&lo, &divisor) == Integer::div_floor(&hi, &divisor);
        same_quotient.then(|| (Integer::mod_floor(&lo, &divisor), Integer::mod_floor(&hi, &divisor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symshape::Symbol;

    fn axis(var: &str, extent: &str) -> Axis {
        Axis { var: Symbol::new(var), extent: extent.parse().expect("a term") }
    }

    fn address(index: &str, axes: &[Axis]) -> Option<ConstantStrides> {
        ConstantStrides::of(&index.parse().expect("a term"), axes)
    }

    /// All addresses of two loops.
    fn elements(index: &str, axes: &[Axis], extents: [i64; 2]) -> Vec<i64> {
        let index: Dim = index.parse().expect("a term");
        let mut elements = Vec::new();
        for i in 0..extents[0] {
            for j in 0..extents[1] {
                let value = |symbol: &Symbol| Some(if *symbol == axes[0].var { i } else { j });
                elements.push(index.eval_i64(&value).expect("a value"));
            }
        }
        elements
    }

    #[test]
    fn disjoint_addresses_have_no_common_element() {
        let indices = [
            "12*i + j",
            "12*i + j + 5",
            "12*i + j + 4",
            "12*i - j - 1",
            "12*i + 2*j + 3",
            "5*i + j",
            "7*j",
            "40 - 12*i - j",
            "100 + i + j",
            "12*i + 11",
            "24*i + 12*j + 3",
            "-12*i + 4",
            "3*i + 3*j + 1",
            "18*i + 7",
        ];
        let mut proven = 0;
        for n in [1, 2, 3, 7] {
            let constant = [axis("i", &n.to_string()), axis("j", "4")];
            let symbolic = [axis("i", "N"), axis("j", "4")];
            for a in indices {
                for b in indices {
                    let [own, other] = [a, b].map(|index| elements(index, &constant, [n, 4]));
                    let meet = other.iter().any(|element| own.contains(element));
                    for axes in [&constant, &symbolic] {
                        let [x, y] = [a, b].map(|index| address(index, axes).expect("constant strides"));
                        let disjoint = x.is_disjoint(&y);
                        assert!(!(disjoint && meet), "{a} and {b} for {n} iterations");
                        proven += usize::from(disjoint);
                    }
                }
            }
        }
        assert!(proven > 300, "{proven} proofs");
    }

    #[test]
    fn unread_border_of_an_image_is_disjoint_from_windows() {
        // The last line and the last column of an image of 114 by 114 pixels, and windows that move by two pixels.
        let loops = [axis("n", "N"), axis("y", "56"), axis("x", "56"), axis("c", "64")];
        let window = address("831744*n + 14592*y + 128*x + c + 14720", &loops).expect("constant strides");
        let line = address("831744*n + c + 824448", &[axis("n", "N"), axis("c", "7296")]);
        let column =
            address("831744*n + 7296*y + c + 14528", &[axis("n", "N"), axis("y", "112"), axis("c", "64")]);
        assert!(line.expect("constant strides").is_disjoint(&window));
        assert!(column.expect("constant strides").is_disjoint(&window));
        let read = address("831744*n + c + 817152", &[axis("n", "N"), axis("c", "7296")]);
        assert!(!read.expect("constant strides").is_disjoint(&window));
    }

    #[test]
    fn other_addresses_have_no_constant_strides() {
        let axes = [axis("i", "N"), axis("j", "i + 1")];
        for index in
            ["N*i", "i + N", "i*i", "i//2", "4*min(i, j)", "i*4611686018427387904 + i*4611686018427387904"]
        {
            assert!(address(index, &axes).is_none(), "{index}");
        }
        let triangle = address("8*i + j", &axes).expect("constant strides");
        let next = address("8*i + 9", &axes).expect("constant strides");
        assert!(!triangle.is_disjoint(&next), "the extent of a loop is unknown");
    }
}
