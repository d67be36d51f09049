//! Index expressions as instructions: [`FuncCtx::dim`], and the sums of [`FuncCtx::address`].
//!
//! Every term is computed in the scope that binds its innermost symbol. Terms of a sum are added from the outermost
//! scope inwards, so that a loop adds only the terms that vary in it. Code that is moved out of a loop runs even if
//! the loop does not, so no instruction here may trap.

use super::FuncCtx;
use crate::{
    error::{Error, ErrorKind, Result},
    kernel::BufferId,
};
use cranelift_codegen::ir::{InstBuilder, Value, condcodes::IntCC, types};
use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};
use symshape::{Dim, Node};

/// Emits one instruction in scope `depth`: at its end, or before the branch by which control left it.
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
    /// `Internal` if a symbol is not bound here, `Limit` if a part does not fit in 64 bits.
    pub(crate) fn dim(&mut self, dim: &Dim) -> Result<Value> {
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

    /// Combines the values from the outermost scope inwards.
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

    /// The quotient rounded down: a shift or an unsigned division if possible.
    fn place_quotient(&mut self, a: &Dim, b: &Dim) -> Result<Placed> {
        let (x, dx) = self.place(a)?;
        if let Some(shift) = power_of_two(b) {
            // An arithmetic shift rounds down for either sign.
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

    /// The remainder of [`FuncCtx::place_quotient`].
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

    /// The quotient rounded towards zero, and its remainder.
    ///
    /// The smallest integer divided by -1 would trap, so the dividend is clamped. It has that value only in code that
    /// was moved out of a loop which does not run: see [`FuncCtx::require_fit`].
    fn truncated(&mut self, depth: usize, x: Value, y: Value) -> (Value, Value) {
        let min = emit!(self, depth, iconst, types::I64, -i64::MAX);
        let x = emit!(self, depth, smax, x, min);
        let quotient = emit!(self, depth, sdiv, x, y);
        let back = emit!(self, depth, imul, quotient, y);
        (quotient, emit!(self, depth, isub, x, back))
    }

    /// 1 if the truncated quotient is above the floor, else 0: the remainder is not zero, and its sign differs from
    /// the divisor's.
    fn rounds_down(&mut self, depth: usize, remainder: Value, y: Value) -> Value {
        let zero = emit!(self, depth, iconst, types::I64, 0);
        let signs = emit!(self, depth, bxor, remainder, y);
        let differ = emit!(self, depth, icmp, IntCC::SignedLessThan, signs, zero);
        let inexact = emit!(self, depth, icmp, IntCC::NotEqual, remainder, zero);
        let both = emit!(self, depth, band, differ, inexact);
        emit!(self, depth, uextend, types::I64, both)
    }

    /// The divisor if it can't be zero. Otherwise zero is replaced by 1, because a quotient by zero is never used.
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

    /// Whether the facts of scope `depth` prove that the expression is not negative. Facts of inner scopes do not
    /// count: the value may be reused outside of them.
    fn not_negative(&self, dim: &Dim, depth: usize) -> Result<bool> {
        self.require_fit(dim)?;
        let lo = self.scopes[depth].facts.bounds(dim).lo;
        Ok(lo.is_some_and(|lo| !lo.is_negative()))
    }

    /// Requires that an operand of a division or comparison fits in 64 bits. Sums and products may wrap: they are
    /// right again as soon as they are in range.
    fn require_fit(&self, dim: &Dim) -> Result<()> {
        let bounds = self.facts().bounds(dim);
        let fits = |bound: &Option<BigInt>| bound.as_ref().is_none_or(|value| value.to_i64().is_some());
        if fits(&bounds.lo) && fits(&bounds.hi) { Ok(()) } else { Err(too_large(dim)) }
    }

    /// `base + at * size`, each term in its scope.
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

        // The constant terms become one displacement.
        let mut constant = 0i64;
        let mut placed = vec![(base, 0)];
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

    /// `term * size`, with one multiplication by the product of the term's coefficient and the size.
    fn scaled(&mut self, term: &Dim, size: i64) -> Result<Placed> {
        let mut factor = size;
        let mut rest = term.clone();
        if let Node::Mul(factors) = term.node()
            && let Some(coefficient) = factors[0].as_i64().and_then(|c| c.checked_mul(size))
        {
            factor = coefficient;
            rest = Dim::product(factors[1..].iter().cloned());
        }

        let (value, depth) = self.place(&rest)?;
        if factor == 1 {
            return Ok((value, depth));
        }
        Ok((emit!(self, depth, imul_imm_s, value, factor), depth))
    }
}

fn power_of_two(dim: &Dim) -> Option<u32> {
    let value = dim.as_i64().filter(|value| *value > 0)?;
    (value.count_ones() == 1).then_some(value.trailing_zeros())
}

fn too_large(dim: &Dim) -> Error {
    Error::new(ErrorKind::Limit, format!("{dim} does not fit in 64 bits for all allowed sizes"))
}
