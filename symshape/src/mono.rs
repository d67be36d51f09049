//! [`Mono`]: a product of atoms, packed into one word so that comparing two is one instruction.

use std::ops::Deref;

/// A polynomial, monomial or coefficient went beyond the caps of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLarge;

/// The number of an atom in its table.
pub(crate) type AtomId = u16;

/// The maximum number of factors.
const MAX_DEGREE: usize = 12;

/// The width of a factor's number, in bits.
const WIDTH: u32 = 10;

/// The largest atom number that fits.
pub(crate) const MAX_ID: AtomId = (1 << WIDTH) - 1;

/// A product of atoms, sorted by number, with repetition.
///
/// The top byte is 255 minus the number of factors. The factors' numbers follow, the smallest first. So the order of
/// the words is the order of terms in a polynomial: more factors first, then the lower numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Mono(u128);

/// The factors of a [`Mono`].
#[derive(Clone, Copy)]
pub(crate) struct Ids {
    list: [AtomId; MAX_DEGREE],
    len: usize,
}

impl Deref for Ids {
    type Target = [AtomId];

    fn deref(&self) -> &[AtomId] {
        &self.list[..self.len]
    }
}

impl IntoIterator for Ids {
    type Item = AtomId;
    type IntoIter = std::iter::Take<std::array::IntoIter<AtomId, MAX_DEGREE>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().take(self.len)
    }
}

const LEN_SHIFT: u32 = 120;

const fn place(idx: usize) -> u32 {
    LEN_SHIFT - WIDTH * (idx as u32 + 1)
}

impl Mono {
    pub(crate) const UNIT: Mono = Mono(255 << LEN_SHIFT);

    pub(crate) fn atom(id: AtomId) -> Self {
        Mono(254 << LEN_SHIFT | u128::from(id) << place(0))
    }

    pub(crate) fn degree(&self) -> usize {
        255 - (self.0 >> LEN_SHIFT) as usize
    }

    fn id(&self, idx: usize) -> AtomId {
        (self.0 >> place(idx)) as AtomId & MAX_ID
    }

    pub(crate) fn ids(&self) -> Ids {
        let mut list = [0; MAX_DEGREE];
        let len = self.degree();
        list.iter_mut().take(len).enumerate().for_each(|(idx, id)| *id = self.id(idx));
        Ids { list, len }
    }

    /// The only factor, if there is just one.
    pub(crate) fn only(&self) -> Option<AtomId> {
        (self.degree() == 1).then(|| self.id(0))
    }

    pub(crate) fn is_unit(&self) -> bool {
        *self == Mono::UNIT
    }

    pub(crate) fn degree_in(&self, id: AtomId) -> usize {
        (0..self.degree()).filter(|&idx| self.id(idx) == id).count()
    }

    fn from_sorted(ids: impl Iterator<Item = AtomId>) -> Result<Self, TooLarge> {
        let mut word = 0;
        let mut len = 0;
        for id in ids {
            if len == MAX_DEGREE {
                return Err(TooLarge);
            }
            word |= u128::from(id) << place(len);
            len += 1;
        }
        Ok(Mono(word | (255 - len as u128) << LEN_SHIFT))
    }

    pub(crate) fn mul(&self, other: &Mono) -> Result<Mono, TooLarge> {
        if self.is_unit() {
            return Ok(*other);
        }
        if other.is_unit() {
            return Ok(*self);
        }

        let a = self.ids();
        let b = other.ids();
        let mut a = a.iter().peekable();
        let mut b = b.iter().peekable();
        Mono::from_sorted(std::iter::from_fn(|| match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x <= y => a.next().copied(),
            (Some(_), None) => a.next().copied(),
            _ => b.next().copied(),
        }))
    }

    /// `self / other`, if `other` divides it.
    pub(crate) fn div(&self, other: &Mono) -> Option<Mono> {
        if other.is_unit() {
            return Some(*self);
        }
        if self == other {
            return Some(Mono::UNIT);
        }
        let divisor = other.ids();
        let mut rest = divisor.iter().peekable();
        let mono = Mono::from_sorted(self.ids().into_iter().filter(|id| rest.next_if_eq(&id).is_none()));
        rest.peek().is_none().then(|| mono.ok()).flatten()
    }

    pub(crate) fn gcd(&self, other: &Mono) -> Mono {
        if self.is_unit() || other.is_unit() {
            return Mono::UNIT;
        }
        let other = other.ids();
        let mut rest = other.iter().peekable();
        let common = self.ids().into_iter().filter(|id| {
            while rest.next_if(|&other| other < id).is_some() {}
            rest.next_if_eq(&id).is_some()
        });
        Mono::from_sorted(common).expect("a divisor is not longer")
    }

    /// `self` without any power of `id`.
    pub(crate) fn without(&self, id: AtomId) -> Mono {
        match self.only() {
            Some(only) if only == id => Mono::UNIT,
            _ => Mono::from_sorted(self.ids().into_iter().filter(|&other| other != id))
                .expect("a divisor is not longer"),
        }
    }
}
