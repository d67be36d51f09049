//! Index expressions as instructions: [`FuncCtx::dim`] and the sums behind [`FuncCtx::address`].
//!
//! Every term is computed in the scope where the innermost of its symbols is bound. Terms of a sum are added from
//! the outermost scope inwards, so that loops only add what varies in them.
//! Code that is moved out of a loop runs even where the loop would not, so nothing here may trap.

use super::FuncCtx;
use crate::{
    error::{Error, ErrorKind, Result},
    kernel::BufferId,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};
use symshape::{Dim, Node};

/// Emits one instruction in the scope `depth`: at its end, or before the branch by which control left it.
macro_rules! emit {
    ($ctx:expr, $depth:expr, $op:ident $(, $arg:expr)*) => {
        match $ctx.scopes[$depth].exit {
            Some(exit) if $depth + 1 < $ctx.scopes.len() => {
                $ctx.before(exit).ins().$op($($arg),*)
            }
            _ => $ctx.builder.ins().$op($($arg),*),
        }
    };
}

/// A value and the scope in which it was computed.
type Placed = (Value, usize);

impl FuncCtx<'_, '_> {
    /// The value of an expression as an `i64`.
    ///
    /// # Errors
    /// A symbol that is not bound here, or a part that does not fit in 64 bits.
    pub fn dim(&mut self, dim: &Dim) -> Result<Value> {
        Ok(self.place(dim)?.0)
    }

    fn place(&mut self, dim: &Dim) -> Result<Placed> {
        if let Some(symbol) = dim.as_symbol() {
            return self.symbol(symbol);
        }
        for (depth, scope) in self.scopes.iter().enumerate() {
            if let Some(value) = scope.dims.get(dim) {
                return Ok((*value, depth));
            }
        }
        let (value, depth) = self.place_node(dim)?;
        self.scopes[depth].dims.insert(dim.clone(), value);
        Ok((value, depth))
    }

    fn place_node(&mut self, dim: &Dim) -> Result<Placed> {
        match dim.node() {
            Node::Int(value) => {
                let value = value.to_i64().ok_or_else(|| too_large(dim))?;
                Ok((emit!(self, 0, iconst, types::I64, value), 0))
            }
            Node::Symbol(symbol) => self.symbol(symbol),
            Node::Add(terms) => {
                let terms = self.place_all(terms)?;
                Ok(self.fold(terms, |f, depth, a, b| emit!(f, depth, iadd, a, b)))
            }
            Node::Mul(factors) => {
                let factors = self.place_all(factors)?;
                Ok(self.fold(factors, |f, depth, a, b| emit!(f, depth, imul, a, b)))
            }
            Node::Min(list) => self.place_extreme(list, |f, depth, a, b| emit!(f, depth, smin, a, b)),
            Node::Max(list) => self.place_extreme(list, |f, depth, a, b| emit!(f, depth, smax, a, b)),
            Node::FloorDiv(a, b) => self.place_quotient(a, b),
            Node::Mod(a, b) => self.place_remainder(a, b),
        }
    }

    fn place_all(&mut self, dims: &[Dim]) -> Result<Vec<Placed>> {
        dims.iter().map(|dim| self.place(dim)).collect()
    }

    /// Combines from the outermost scope inwards.
    fn fold(
        &mut self,
        mut list: Vec<Placed>,
        combine: impl Fn(&mut Self, usize, Value, Value) -> Value,
    ) -> Placed {
        list.sort_by_key(|(_, depth)| *depth);
        list.into_iter()
            .reduce(|(a, _), (b, depth)| (combine(self, depth, a, b), depth))
            .expect("sums and products have operands")
    }

    fn place_extreme(
        &mut self,
        list: &[Dim],
        combine: impl Fn(&mut Self, usize, Value, Value) -> Value,
    ) -> Result<Placed> {
        for dim in list {
            self.require_fit(dim)?;
        }
        let list = self.place_all(list)?;
        Ok(self.fold(list, combine))
    }

    /// The quotient rounded down, and whether it may be had by a shift or an unsigned division.
    fn place_quotient(&mut self, a: &Dim, b: &Dim) -> Result<Placed> {
        let (x, dx) = self.place(a)?;
        if let Some(shift) = power_of_two(b) {
            // An arithmetic shift rounds down, whatever the sign.
            return Ok((emit!(self, dx, sshr_imm_u, x, i64::from(shift)), dx));
        }
        let (y, dy) = self.place(b)?;
        let depth = dx.max(dy);
        let y = self.nonzero_divisor(b, y, depth)?;
        if self.not_negative(a, depth)? && self.not_negative(b, depth)? {
            return Ok((emit!(self, depth, udiv, x, y), depth));
        }
        let (quotient, remainder) = self.truncated(depth, x, y);
        let less = self.rounds_down(depth, remainder, y);
        Ok((emit!(self, depth, isub, quotient, less), depth))
    }

    /// What [`FuncCtx::place_quotient`] leaves over.
    fn place_remainder(&mut self, a: &Dim, b: &Dim) -> Result<Placed> {
        let (x, dx) = self.place(a)?;
        if let Some(shift) = power_of_two(b) {
            let mask = (1i64 << shift) - 1;
            return Ok((emit!(self, dx, band_imm_s, x, mask), dx));
        }
        let (y, dy) = self.place(b)?;
        let depth = dx.max(dy);
        let y = self.nonzero_divisor(b, y, depth)?;
        if self.not_negative(a, depth)? && self.not_negative(b, depth)? {
            return Ok((emit!(self, depth, urem, x, y), depth));
        }
        let (_, remainder) = self.truncated(depth, x, y);
        let less = self.rounds_down(depth, remainder, y);
        let back = emit!(self, depth, imul, less, y);
        Ok((emit!(self, depth, iadd, remainder, back), depth))
    }

    /// Quotient rounded towards zero, and what it leaves over. The least integer divided by -1 would trap: the
    /// operands are within the bounds that [`FuncCtx::require_fit`] asked for, or clamped to be.
    fn truncated(&mut self, depth: usize, x: Value, y: Value) -> (Value, Value) {
        let least = emit!(self, depth, iconst, types::I64, -i64::MAX);
        let x = emit!(self, depth, smax, x, least);
        let quotient = emit!(self, depth, sdiv, x, y);
        let back = emit!(self, depth, imul, quotient, y);
        (quotient, emit!(self, depth, isub, x, back))
    }

    /// 1 where the truncated quotient lies above the floor: the remainder is not zero and its sign is not the
    /// divisor's.
    fn rounds_down(&mut self, depth: usize, remainder: Value, y: Value) -> Value {
        let zero = emit!(self, depth, iconst, types::I64, 0);
        let signs = emit!(self, depth, bxor, remainder, y);
        let differ = emit!(self, depth, icmp, IntCC::SignedLessThan, signs, zero);
        let inexact = emit!(self, depth, icmp, IntCC::NotEqual, remainder, zero);
        let both = emit!(self, depth, band, differ, inexact);
        emit!(self, depth, uextend, types::I64, both)
    }

    /// The divisor itself where it can't be zero, else 1 in place of zero: the quotient is then never used.
    fn nonzero_divisor(&mut self, b: &Dim, y: Value, depth: usize) -> Result<Value> {
        let bounds = self.scopes[depth].facts.bounds(b);
        let is_zero = |bound: &Option<BigInt>| bound.as_ref().is_none_or(Zero::is_zero);
        let positive = bounds.lo.as_ref().is_some_and(Signed::is_positive);
        let negative = bounds.hi.as_ref().is_some_and(Signed::is_negative);
        if positive || negative {
            return Ok(y);
        }
        let one = emit!(self, depth, iconst, types::I64, 1);
        if bounds.lo.is_some() && is_zero(&bounds.lo) {
            return Ok(emit!(self, depth, smax, y, one));
        }
        let zero = emit!(self, depth, iconst, types::I64, 0);
        let bad = emit!(self, depth, icmp, IntCC::Equal, y, zero);
        Ok(emit!(self, depth, select, bad, one, y))
    }

    /// What is known in the scope where a value is put holds for all its later uses; what is known deeper inside
    /// holds only there.
    fn not_negative(&self, dim: &Dim, depth: usize) -> Result<bool> {
        self.require_fit(dim)?;
        let lo = self.scopes[depth].facts.bounds(dim).lo;
        Ok(lo.is_some_and(|lo| !lo.is_negative()))
    }

    /// Wrapped sums and products are right again once they are back in range; what is divided or compared is not.
    fn require_fit(&self, dim: &Dim) -> Result<()> {
        let bounds = self.facts().bounds(dim);
        let fits = |bound: &Option<BigInt>| bound.as_ref().is_none_or(|value| value.to_i64().is_some());
        if fits(&bounds.lo) && fits(&bounds.hi) { Ok(()) } else { Err(too_large(dim)) }
    }

    /// `base + at * size`, each part in its scope.
    pub(crate) fn element(&mut self, buffer: BufferId, base: Value, at: &Dim, size: i64) -> Result<Value> {
        let key = (buffer, at.clone());
        for scope in &self.scopes {
            if let Some(value) = scope.addresses.get(&key) {
                return Ok(*value);
            }
        }
        let single = [at.clone()];
        let terms = match at.node() {
            Node::Add(terms) => terms.as_slice(),
            _ => &single,
        };
        let (mut constant, mut placed) = (0i64, vec![(base, 0)]);
        for term in terms {
            match term.as_i64().and_then(|value| value.checked_mul(size)) {
                Some(bytes) => constant = constant.wrapping_add(bytes),
                None => placed.push(self.scaled(term, size)?),
            }
        }
        let (mut value, depth) = self.fold(placed, |f, depth, a, b| emit!(f, depth, iadd, a, b));
        if constant != 0 {
            value = emit!(self, depth, iadd_imm_s, value, constant);
        }
        self.scopes[depth].addresses.insert(key, value);
        Ok(value)
    }

    /// `term * size`, with one multiplication for the term's own coefficient and the size.
    fn scaled(&mut self, term: &Dim, size: i64) -> Result<Placed> {
        let (mut by, mut rest) = (size, term.clone());
        if let Node::Mul(factors) = term.node()
            && let Some(coefficient) = factors[0].as_i64().and_then(|c| c.checked_mul(size))
        {
            (by, rest) = (coefficient, Dim::product(factors[1..].iter().cloned()));
        }
        let (value, depth) = self.place(&rest)?;
        Ok(match by {
            1 => (value, depth),
            _ => (emit!(self, depth, imul_imm_s, value, by), depth),
        })
    }
}

fn power_of_two(dim: &Dim) -> Option<u32> {
    let value = dim.as_i64().filter(|value| *value > 0)?;
    (value.count_ones() == 1).then_some(value.trailing_zeros())
}

fn too_large(dim: &Dim) -> Error {
    Error::new(ErrorKind::Limit, format!("{dim} does not fit in 64 bits for all allowed sizes"))
}
