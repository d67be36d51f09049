//! Values for symbols that the facts allow, and fast evaluation at them.
//!
//! A [`Domain`] knows every symbol that some terms depend on, in an order in which each symbol's bounds can be
//! evaluated from the symbols before it. It gives corner and pseudo-random points (always the same ones) and walks
//! all points where they are few.

use std::collections::BTreeMap;

use num_bigint::BigInt;

use crate::assume::{Comparison, Declaration, Facts, Relation};
use crate::dim::{Dim, Node, Symbol};
use crate::int::Int;

/// A value for each symbol of a [`Domain`], in its order.
pub(crate) type Point = Vec<Int>;

/// A term compiled to a stack machine over the values of a [`Point`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytecode(Vec<Instruction>);

#[derive(Clone, Debug)]
enum Instruction {
    Int(Int),
    Load(usize),
    Add,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

/// The maximum width of a value, in bits.
const MAX_BITS: u64 = 1 << 14;

impl Bytecode {
    /// The value at `point`; `None` where a divisor is 0 or a value exceeds [`MAX_BITS`].
    pub(crate) fn run(&self, point: &[Int], stack: &mut Vec<Int>) -> Option<Int> {
        stack.clear();
        for op in &self.0 {
            let value = match op {
                Instruction::Int(value) => value.clone(),
                Instruction::Load(slot) => point[*slot].clone(),
                _ => {
                    let b = stack.pop()?;
                    let a = stack.pop()?;

                    match op {
                        Instruction::Add => &a + &b,
                        Instruction::Mul if a.bits() + b.bits() > MAX_BITS => return None,
                        Instruction::Mul => &a * &b,
                        Instruction::FloorDiv | Instruction::Mod if b.is_zero() => return None,
                        Instruction::FloorDiv => a.div_floor(&b),
                        Instruction::Mod => a.mod_floor(&b),
                        Instruction::Min => a.min(b),
                        _ => a.max(b),
                    }
                }
            };
            stack.push(value);
        }

        stack.pop()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The number of leading values of a point that this code reads from.
    fn prefix(&self) -> usize {
        let slots = self.0.iter().map(|op| if let Instruction::Load(slot) = op { slot + 1 } else { 0 });
        slots.max().unwrap_or(0)
    }
}

impl Facts {
    /// Values of the declared symbols that these facts allow: first with each symbol at an end of its range, then
    /// pseudo-random ones. They are few, always the same, and may repeat.
    ///
    /// ```
    /// use symshape::{Declaration, Facts, Symbol};
    /// let mut facts = Facts::new();
    /// facts.declare(&Symbol::new("N"), Declaration::range(2, 64))?;
    /// assert_eq!(facts.examples().next().unwrap()[&Symbol::new("N")], 2.into());
    /// # Ok::<(), symshape::FactError>(())
    /// ```
    pub fn examples(&self) -> impl DoubleEndedIterator<Item = BTreeMap<Symbol, BigInt>> {
        let symbols: Vec<Dim> = self.symbols().map(Dim::from).collect();
        let domain = Domain::new(self, &symbols.iter().collect::<Vec<_>>());
        (0..N_EXAMPLES).filter_map(move |seed| Some(domain.named(&domain.point(seed)?).into_iter().collect()))
    }
}

/// The number of points that [`Facts::examples`] tries.
const N_EXAMPLES: u64 = 48;

struct Slot {
    symbol: Symbol,
    declaration: Option<Declaration>,
    lower: Vec<Bytecode>,
    upper: Vec<Bytecode>,
    /// The value, where an equation gives it.
    definition: Option<Bytecode>,
}

/// The symbols that some terms depend on, with their allowed values.
pub(crate) struct Domain {
    slots: Vec<Slot>,
    relations: Vec<(Comparison, Bytecode, Bytecode)>,
}

/// The sampled range of a symbol without an upper bound, in steps from its lower bound; around 0 if it has no bounds.
const REACH: i64 = 40;

impl Domain {
    /// The domain of everything that `terms` depend on.
    pub(crate) fn new(facts: &Facts, terms: &[&Dim]) -> Domain {
        let mut domain = Domain { slots: Vec::new(), relations: Vec::new() };
        terms.iter().for_each(|term| domain.add_symbols(facts, term, 0));
        domain.add_bounded(facts);
        let mut added = vec![false; facts.assumptions().len()];

        // A relation matters once one of its symbols does, and then all of them do.
        while let Some(idx) = (0..added.len()).find(|&idx| !added[idx] && domain.touches(facts, idx)) {
            added[idx] = true;
            let Relation { comparison, a, b } = facts.assumptions()[idx].relation.clone();
            domain.add_symbols(facts, &a, 0);
            domain.add_symbols(facts, &b, 0);
            let codes = (domain.compile(&a), domain.compile(&b));
            domain.relations.push((comparison, codes.0, codes.1));
            domain.add_bounded(facts);
        }

        domain
    }

    /// Adds the symbols that are bounded by symbols of this domain: a point that leaves them no value is not allowed.
    fn add_bounded(&mut self, facts: &Facts) {
        for entry in facts.entries() {
            let mut bounds = entry.lower.iter().chain(&entry.upper);
            if bounds.any(|bound| self.slots.iter().any(|slot| bound.contains(&slot.symbol))) {
                self.add_symbols(facts, &Dim::from(&entry.symbol), 0);
            }
        }
    }

    fn touches(&self, facts: &Facts, idx: usize) -> bool {
        let relation = &facts.assumptions()[idx].relation;
        self.slots.iter().any(|slot| relation.a.contains(&slot.symbol) || relation.b.contains(&slot.symbol))
    }

    fn add_symbols(&mut self, facts: &Facts, term: &Dim, depth: u32) {
        for dim in term.post_order() {
            if let Some(symbol) = dim.as_symbol()
                && self.slot(symbol).is_none()
                && depth < 64
            {
                self.add_symbol(facts, symbol, depth);
            }
        }
    }

    fn add_symbol(&mut self, facts: &Facts, symbol: &Symbol, depth: u32) {
        let mut lower = Vec::new();
        let mut upper = Vec::new();
        let mut declaration = None;
        let definition = facts.definition(symbol);
        definition.into_iter().for_each(|term| self.add_symbols(facts, term, depth + 1));

        if let Some(entry) = facts.entry(symbol) {
            declaration = entry.declaration.clone();
            entry.lower.iter().chain(&entry.upper).for_each(|term| self.add_symbols(facts, term, depth + 1));
            lower.extend(entry.lower.iter().map(|term| self.compile(term)));
            upper.extend(entry.upper.iter().map(|term| self.compile(term)));
        }

        let definition = definition.map(|term| self.compile(term));
        if self.slot(symbol).is_none() {
            self.slots.push(Slot { symbol: symbol.clone(), declaration, lower, upper, definition });
        }
    }

    fn slot(&self, symbol: &Symbol) -> Option<usize> {
        self.slots.iter().position(|slot| slot.symbol == *symbol)
    }

    /// `term` as code for the points of this domain; a term with other symbols gives code without a value.
    pub(crate) fn compile(&self, term: &Dim) -> Bytecode {
        let mut code = Vec::with_capacity(16);
        if term.is_tractable() && self.emit(term, &mut code).is_some() {
            Bytecode(code)
        } else {
            Bytecode::default()
        }
    }

    fn emit(&self, term: &Dim, code: &mut Vec<Instruction>) -> Option<()> {
        let mut list = |list: &[Dim], op: Instruction| -> Option<()> {
            for (idx, operand) in list.iter().enumerate() {
                self.emit(operand, code)?;
                if idx > 0 {
                    code.push(op.clone());
                }
            }
            Some(())
        };

        match term.node() {
            Node::Int(value) => code.push(Instruction::Int(value.into())),
            Node::Symbol(symbol) => code.push(Instruction::Load(self.slot(symbol)?)),
            Node::Add(operands) => list(operands, Instruction::Add)?,
            Node::Mul(operands) => list(operands, Instruction::Mul)?,
            Node::FloorDiv(a, b) => list(&[a.clone(), b.clone()], Instruction::FloorDiv)?,
            Node::Mod(a, b) => list(&[a.clone(), b.clone()], Instruction::Mod)?,
            Node::Min(operands) => list(operands, Instruction::Min)?,
            Node::Max(operands) => list(operands, Instruction::Max)?,
        }

        Some(())
    }

    /// The range of slot `idx` when the slots before it have the values of `point`.
    fn range(&self, idx: usize, point: &[Int], stack: &mut Vec<Int>) -> Option<(Option<Int>, Option<Int>)> {
        let slot = &self.slots[idx];
        let declared = slot.declaration.as_ref();

        let mut lo = declared.map(|declaration| Int::from(&declaration.lo));
        let mut hi = declared.and_then(|declaration| declaration.hi.as_ref()).map(Int::from);
        for code in &slot.lower {
            let bound = code.run(point, stack)?;
            lo = Some(lo.map_or(bound.clone(), |old| old.max(bound)));
        }

        for code in &slot.upper {
            let bound = code.run(point, stack)?;
            hi = Some(hi.map_or(bound.clone(), |old| old.min(bound)));
        }

        let (step, offset) = slot.step();
        let lo = lo.map(|lo| &lo + &(&offset - &lo).mod_floor(&step));
        let hi = hi.map(|hi| &hi - &(&hi - &offset).mod_floor(&step));
        let Some(code) = &slot.definition else { return Some((lo, hi)) };
        let value = code.run(point, stack)?;
        let inside = lo.is_none_or(|lo| lo <= value) && hi.is_none_or(|hi| value <= hi);

        inside.then(|| (Some(value.clone()), Some(value)))
    }

    fn allowed(&self, idx: usize, value: &Int) -> bool {
        let slot = &self.slots[idx];
        let listed = slot.declaration.as_ref().filter(|d| d.values.is_some() || slot.definition.is_some());
        listed.is_none_or(|declaration| declaration.contains(&value.to_big()))
    }

    fn relations_hold(&self, point: &[Int], stack: &mut Vec<Int>) -> bool {
        (0..self.relations.len()).all(|idx| self.relation_holds(idx, point, stack))
    }

    fn relation_holds(&self, idx: usize, point: &[Int], stack: &mut Vec<Int>) -> bool {
        let (comparison, a, b) = &self.relations[idx];
        let a = a.run(point, stack);
        let b = b.run(point, stack);
        matches!((a, b), (Some(a), Some(b)) if compare(*comparison, &a, &b) == Some(true))
    }

    /// The point number `seed`: corners first, then pseudo-random ones. `None` where the facts exclude it.
    pub(crate) fn point(&self, seed: u64) -> Option<Point> {
        let mut point = Vec::with_capacity(self.slots.len());
        let mut stack = Vec::new();

        let mut random = Random::new(seed);
        for idx in 0..self.slots.len() {
            let (lo, hi) = self.range(idx, &point, &mut stack)?;
            let corner = (seed < CORNERS).then_some(seed >> (idx % 4) & 1);
            let value = self.slots[idx].choose(lo, hi, corner, &mut random)?;
            if !self.allowed(idx, &value) {
                return None;
            }
            point.push(value);
        }

        self.relations_hold(&point, &mut stack).then_some(point)
    }

    /// A lower estimate of the number of points, from constant ranges alone; `None` if a symbol has no bound.
    fn min_size(&self) -> Option<Int> {
        self.slots.iter().try_fold(Int::ONE, |size, slot| {
            let bounded = slot.definition.is_some() || !slot.upper.is_empty();
            let declared =
                slot.declaration.as_ref().and_then(|d| Some((Int::from(d.hi.as_ref()?), Int::from(&d.lo))));
            match (declared, bounded) {
                (_, true) => Some(size),
                (Some((hi, lo)), _) => Some(&size * &(&(&hi - &lo).div_floor(&slot.step().0) + &Int::ONE)),
                (None, false) => None,
            }
        })
    }

    /// Calls `visit` on every point if there are at most `limit`; `false` if there are more
    /// or `visit` returned `false`.
    pub(crate) fn for_each(&self, limit: usize, visit: &mut dyn FnMut(&[Int]) -> bool) -> bool {
        let few = |size: Int| self.relations.is_empty() && size > Int::from(limit as i64);
        if self.min_size().is_none_or(few) {
            return false;
        }

        let mut decided = vec![Vec::new(); self.slots.len() + 1];
        for (idx, (_, a, b)) in self.relations.iter().enumerate() {
            decided[a.prefix().max(b.prefix())].push(idx);
        }

        let mut enumeration = Enumeration { domain: self, left: limit, decided, stack: Vec::new(), visit };
        enumeration.from(&mut Vec::with_capacity(self.slots.len()), true)
    }

    /// Whether [`Domain::for_each`] cannot reach all points, because the first symbols alone have more values than
    /// `limit`.
    pub(crate) fn is_beyond(&self, limit: usize) -> bool {
        let is_constant =
            |slot: &&Slot| slot.lower.is_empty() && slot.upper.is_empty() && slot.definition.is_none();
        let mut count = Int::ONE;
        for slot in self.slots.iter().take_while(is_constant) {
            let Some(Declaration { lo, hi: Some(hi), step, values, .. }) = &slot.declaration else { break };
            let values = match values {
                Some(values) => Int::from(values.len() as i64),
                None => &(&Int::from(hi) - &Int::from(lo)).div_floor(&Int::from(step)) + &Int::ONE,
            };
            count = &count * &values;
        }
        count > Int::from(limit as i64)
    }

    /// The values of `point` by symbol.
    pub(crate) fn named(&self, point: &[Int]) -> Vec<(Symbol, BigInt)> {
        self.slots.iter().zip(point).map(|(slot, value)| (slot.symbol.clone(), value.to_big())).collect()
    }
}

/// The first points are the corners in up to four directions.
const CORNERS: u64 = 16;

impl Slot {
    fn step(&self) -> (Int, Int) {
        match &self.declaration {
            Some(declaration) => (Int::from(&declaration.step), Int::from(&declaration.offset)),
            None => (Int::ONE, Int::ZERO),
        }
    }

    fn choose(
        &self,
        lo: Option<Int>,
        hi: Option<Int>,
        corner: Option<u64>,
        random: &mut Random,
    ) -> Option<Int> {
        if let Some(values) = self.declaration.as_ref().and_then(|declaration| declaration.values.as_ref()) {
            let idx = match corner {
                Some(0) => 0,
                Some(_) => values.len() - 1,
                None => random.below(values.len() as i64) as usize,
            };
            return Some(Int::from(&values[idx]));
        }

        let (step, _) = self.step();
        let reach = &Int::from(REACH) * &step;

        let (lo, hi) = match (lo, hi) {
            (Some(lo), Some(hi)) => (lo, hi),
            (Some(lo), None) => (lo.clone(), &lo + &reach),
            (None, Some(hi)) => (&hi - &reach, hi),
            (None, None) => (-&reach, reach),
        };

        if hi < lo {
            return None;
        }

        let count = (&hi - &lo).div_floor(&step);
        let place = match corner {
            Some(0) => Int::ZERO,
            Some(_) => count,
            None => random.place(&count),
        };

        Some(&lo + &(&place * &step))
    }
}

struct Enumeration<'a> {
    domain: &'a Domain,
    left: usize,
    /// The relations by the number of leading values that decide them.
    decided: Vec<Vec<usize>>,
    stack: Vec<Int>,
    visit: &'a mut dyn FnMut(&[Int]) -> bool,
}

impl Enumeration<'_> {
    /// Visits the points that begin with these values. `allowed` says whether the relations decided so far hold.
    fn from(&mut self, point: &mut Point, allowed: bool) -> bool {
        let idx = point.len();
        let holds = |relation: &usize| self.domain.relation_holds(*relation, point, &mut self.stack);
        let allowed = allowed && self.decided[idx].iter().all(holds);
        if idx == self.domain.slots.len() {
            return !allowed || (self.visit)(point);
        }

        let Some((Some(lo), Some(hi))) = self.domain.range(idx, point, &mut self.stack) else { return false };
        let (step, _) = self.domain.slots[idx].step();

        let mut value = lo;
        while value <= hi {
            if self.left == 0 {
                return false;
            }

            self.left -= 1;
            if self.domain.allowed(idx, &value) {
                point.push(value.clone());
                let more = self.from(point, allowed);
                point.pop();
                if !more {
                    return false;
                }
            }

            value = &value + &step;
        }

        true
    }
}

/// Whether the relation holds for two values; `None` for divisibility by 0.
pub(crate) fn compare(comparison: Comparison, a: &Int, b: &Int) -> Option<bool> {
    match comparison {
        Comparison::Eq => Some(a == b),
        Comparison::Ne => Some(a != b),
        Comparison::Lt => Some(a < b),
        Comparison::Le => Some(a <= b),
        Comparison::Divides if a.is_zero() => None,
        Comparison::Divides => Some(b.is_multiple_of(a)),
    }
}

/// A fixed pseudo-random sequence (xorshift), so that answers are the same on every run and machine.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, count: i64) -> i64 {
        (self.next() >> 33) as i64 % count
    }

    /// A place in `0..=count`: often near one of the ends, otherwise uniform.
    fn place(&mut self, count: &Int) -> Int {
        let near = Int::from(self.below(4)).min(count.clone());
        match self.below(8) {
            0 | 1 => near,
            2 => count - &near,
            _ => Int::from((self.next() >> 2) as i64).mod_floor(&(count + &Int::ONE)),
        }
    }
}
