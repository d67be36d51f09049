//! Terms as the checker's own polynomials, by nothing but the entries checked so far.

use num_bigint::BigInt;
use num_traits::One;

use super::sum::Sum;
use super::{Checked, Replay, flaw};
use crate::dim::{Dim, Node, Symbol};
use crate::engine::atoms::{Atom, AtomKind};
use crate::poly::{AtomId, Poly};

impl Replay<'_> {
    /// The value of `num // den`, from the quotients checked so far.
    pub(super) fn quotient(&self, num: &Sum, den: &Sum) -> Checked<Sum> {
        if *den == Sum::from(BigInt::one()) {
            return Ok(num.clone());
        }
        let num = self.reduce(num.clone());
        let den = self.reduce(den.clone());
        let same = |entry: &&[Sum; 3]| entry[1] == den && self.same(&entry[0], &num);
        let exact = self.quotients.iter().find(|entry| entry[0] == num && entry[1] == den);
        match exact.or_else(|| self.quotients.iter().find(same)) {
            Some(entry) => Ok(entry[2].clone()),
            None => flaw("a quotient was never derived"),
        }
    }

    /// The value of the minimum of `list`, from the atoms and minima checked so far.
    pub(super) fn minimum(&self, list: &[Sum]) -> Checked<Sum> {
        if let [only] = list {
            return Ok(only.clone());
        }

        let operands = |atom: &Atom| match &atom.kind {
            AtomKind::Min(operands) => Some(operands.iter().map(Sum::from).collect::<Vec<_>>()),
            _ => None,
        };

        for exactly in [true, false] {
            let is_it = |known: &[Sum]| if exactly { known == list } else { self.same_set(known, list) };
            if let Some((_, value)) = self.minima.iter().find(|entry| is_it(&entry.0)) {
                return Ok(value.clone());
            }
            let mut atoms = self.atoms[..self.ranges.len()].iter();
            if let Some(id) = atoms.position(|atom| operands(atom).is_some_and(|known| is_it(&known))) {
                return Ok(Sum::atom(id as AtomId));
            }
        }

        flaw("a minimum was never derived")
    }

    /// Whether two lists have the same values, in any order.
    pub(super) fn same_set(&self, a: &[Sum], b: &[Sum]) -> bool {
        let all_in = |a: &[Sum], b: &[Sum]| a.iter().all(|x| b.iter().any(|y| self.same(x, y)));
        all_in(a, b) && all_in(b, a)
    }

    /// The polynomial of a term.
    pub(super) fn expand(&self, dim: &Dim) -> Checked<Sum> {
        let all =
            |list: &[Dim]| list.iter().map(|operand| self.expand(operand)).collect::<Checked<Vec<Sum>>>();

        let sum = match dim.node() {
            Node::Int(value) => Sum::from(value.clone()),
            Node::Symbol(symbol) => self.expand_symbol(symbol)?,
            Node::Add(list) => all(list)?.iter().fold(Sum::default(), |acc, next| acc.plus(1, next)),
            Node::Mul(list) => {
                all(list)?.iter().fold(Sum::from(BigInt::one()), |acc, next| self.reduce(acc.times(next)))
            }
            Node::FloorDiv(a, b) => self.quotient(&self.expand(a)?, &self.expand(b)?)?,
            Node::Mod(a, b) => {
                let num = self.expand(a)?;
                let den = self.expand(b)?;
                num.plus(-1, &self.quotient(&num, &den)?.times(&den))
            }
            Node::Min(list) => self.minimum(&all(list)?)?,
            Node::Max(list) => {
                let negated: Vec<Sum> = all(list)?.iter().map(Sum::neg).collect();
                self.minimum(&negated)?.neg()
            }
        };

        Ok(self.reduce(sum))
    }

    fn expand_symbol(&self, symbol: &Symbol) -> Checked<Sum> {
        if let Some(definition) = self.facts.definition(symbol) {
            return self.expand(definition);
        }
        if let Some(declaration) = self.facts.declaration(symbol)
            && declaration.hi.as_ref() == Some(&declaration.lo)
        {
            return Ok(Sum::from(declaration.lo.clone()));
        }

        for (id, atom) in self.atoms[..self.ranges.len()].iter().enumerate() {
            if let AtomKind::Symbol { symbol: owner, step, offset } = &atom.kind
                && owner == symbol
            {
                let scaled = Sum::atom(id as AtomId).times(&Sum::from(step.to_big()));
                return Ok(scaled.plus_int(offset.to_big()));
            }
        }

        flaw("a symbol has no atom")
    }

    /// Applies two identities as long as they apply: `m*m == m*z` for `m = min(0, z)`, and
    /// `(a + 1)//2 == a - a//2` where both quotients occur.
    pub(super) fn reduce(&self, mut sum: Sum) -> Sum {
        for _ in 0..64 {
            match self.reduced_once(&sum) {
                Some(next) => sum = next,
                None => break,
            }
        }
        sum
    }

    /// Whether two sums are equal, also where only one of them shows a half that the other is written by.
    pub(super) fn same(&self, a: &Sum, b: &Sum) -> bool {
        let a = self.reduce(a.clone());
        let b = self.reduce(b.clone());
        a == b || self.without_raised_halves(a) == self.without_raised_halves(b)
    }

    /// The sum with `a - a//2` for every `(a + 1)//2` where `a//2` is an atom of the proof, in this sum or not.
    pub(super) fn without_raised_halves(&self, mut sum: Sum) -> Sum {
        for id in sum.0.keys().flatten().copied().collect::<std::collections::BTreeSet<AtomId>>() {
            let Some(floor) = self.half(id).map(|num| num.plus_int(-1)) else { continue };
            let found =
                (0..self.ranges.len() as AtomId).find(|other| self.half(*other).as_ref() == Some(&floor));
            if let Some(other) = found {
                sum = sum.replace(id, &floor.plus(-1, &Sum::atom(other)));
            }
        }
        sum
    }

    fn reduced_once(&self, sum: &Sum) -> Option<Sum> {
        for (ids, coef) in &sum.0 {
            for pair in ids.windows(2).filter(|pair| pair[0] == pair[1]) {
                if let AtomKind::Min(list) = &self.atoms[pair[0] as usize].kind
                    && let [zero, z] = list.as_slice()
                    && zero.is_zero()
                {
                    let mut others = ids.clone();
                    others.remove(others.iter().position(|id| *id == pair[0])?);
                    let product = Sum([(others, coef.clone())].into()).times(&Sum::from(z));
                    let mut rest = sum.clone();
                    rest.0.remove(ids);
                    return Some(rest.plus(1, &product));
                }
            }
        }

        let halves: Vec<(AtomId, Sum)> =
            sum.0.keys().flatten().filter_map(|&id| Some((id, self.half(id)?))).collect();

        for (raised, num) in &halves {
            let floor = num.plus_int(-1);
            if let Some((id, _)) = halves.iter().find(|(_, other)| *other == floor) {
                return Some(sum.replace(*raised, &floor.plus(-1, &Sum::atom(*id))));
            }
        }

        None
    }

    /// The numerator of an atom that is a quotient by 2.
    fn half(&self, id: AtomId) -> Option<Sum> {
        match &self.atoms[id as usize].kind {
            AtomKind::Div(num, den) if *den == Poly::from(2) => Some(num.into()),
            _ => None,
        }
    }
}
