//! Every rule of `symshape::RULES`, checked three ways: its law on a box of small integers of both signs, its law
//! with random big integers, and its code on instances by evaluation. A rule without instances fails.

use crate::cases;

use std::collections::BTreeMap;

use cases::{Case, Source};
use num_bigint::BigInt;
use num_integer::Integer;
use symshape::{Declaration, Dim, Facts, RULES, Relation, Rule, Symbol};

type Point = BTreeMap<Symbol, BigInt>;

fn value(dim: &Dim, point: &Point) -> Option<BigInt> {
    dim.eval(&|symbol| point.get(symbol).cloned()).ok()
}

fn sides(text: &str, operator: &str) -> Option<(Dim, Dim)> {
    let (a, b) = text.split_once(operator)?;
    Some((a.parse().expect("a side of a law"), b.parse().expect("a side of a law")))
}

/// A law and its conditions, parsed.
struct Law {
    sides: (Dim, Dim),
    given: Vec<Relation>,
    symbols: Vec<Symbol>,
}

impl Law {
    fn of(rule: &Rule) -> Law {
        Law::parse(rule.law, rule.given)
    }

    fn parse(law: &str, given: &str) -> Law {
        let sides = sides(law, "==").expect("a law has two sides");
        let conditions = given.split(" and ").filter(|condition| !condition.is_empty());
        let given: Vec<Relation> = conditions.map(condition).collect();
        let symbols = sides.0.symbols().union(&sides.1.symbols()).cloned().collect();
        Law { sides, given, symbols }
    }

    fn applies(&self, point: &Point) -> bool {
        self.given.iter().all(|relation| value(&relation.a, point) <= value(&relation.b, point))
    }

    fn holds(&self, point: &Point) -> bool {
        let (a, b) = (value(&self.sides.0, point), value(&self.sides.1, point));
        a.is_some() && a == b
    }

    /// Panics if the law fails at `point` although its conditions hold; `false` if they do not.
    fn check(&self, rule: &Rule, point: &Point) -> bool {
        if !self.applies(point) {
            return false;
        }
        assert!(self.holds(point), "{}: `{}` fails at {point:?}", rule.name, rule.law);
        true
    }
}

fn condition(text: &str) -> Relation {
    match (sides(text, "<="), sides(text, ">=")) {
        (Some((a, b)), _) => Relation::le(a, b),
        (_, Some((a, b))) => Relation::ge(a, b),
        _ => panic!("`{text}` is not a condition"),
    }
}

/// Laws that are wrong, or lack a condition: `(rule, law, conditions)`.
const BROKEN: &[(&str, &str, &str)] = &[
    ("split", "(m*q + r) // m == q + r // m + 1", "m >= 1"),
    ("small numerator", "(k*m + r) // m == k", "m >= 1 and 0 <= r and r <= m"),
    ("cancel", "(g*a + r) // (g*m) == a // m", "g >= 1 and m >= 1 and 0 <= r and r <= g"),
    ("nested", "(a//m + b) // n == (a + m*b) // (m*n)", "m >= 1"),
    ("scale", "min(g*a, g*b) == g*min(a, b)", ""),
    ("drop", "min(a, b) == a", ""),
    ("median min", "max(y, min(max(x, y), z)) == min(x, z)", ""),
];

/// The box is large enough to tell a broken rule from a right one.
#[test]
fn a_broken_law_is_noticed() {
    for (name, law, given) in BROKEN {
        let rule = RULES.iter().find(|rule| rule.name == *name).expect("a rule");
        let broken = Law::parse(law, given);
        let holds = |point: &Point| !broken.applies(point) || broken.holds(point);
        assert!(!points_of_box(&broken).iter().all(holds), "{}: `{law}` passes", rule.name);
    }
}

/// Integers of both signs around 0 for each symbol of a law.
fn points_of_box(law: &Law) -> Vec<Point> {
    let (side, count) = (if law.symbols.len() > 4 { 7 } else { 9 }, law.symbols.len() as u32);
    let point = |mut number: usize| {
        let mut point = Point::new();
        for symbol in &law.symbols {
            point.insert(symbol.clone(), BigInt::from(number % side) - side / 2);
            number /= side;
        }
        point
    };
    (0..side.pow(count)).map(point).collect()
}

#[test]
fn laws_hold_on_a_box() {
    for rule in RULES {
        let law = Law::of(rule);
        let tried = points_of_box(&law).iter().filter(|point| law.check(rule, point)).count();
        assert!(tried > 0, "{}: nothing satisfies `{}`", rule.name, rule.given);
    }
}

#[test]
fn laws_hold_for_big_integers() {
    for rule in RULES {
        let law = Law::of(rule);
        let (mut random, mut tried) = (Random(7), 0);
        for _ in 0..4_000 {
            let mut point: Point =
                law.symbols.iter().map(|symbol| (symbol.clone(), random.integer())).collect();
            satisfy(rule, &mut point, &mut random);
            tried += usize::from(law.check(rule, &point));
        }
        assert!(tried > 100, "{}: only {tried} points satisfy `{}`", rule.name, rule.given);
    }
}

/// Moves a point of random integers to where narrow conditions hold.
fn satisfy(rule: &Rule, point: &mut Point, random: &mut Random) {
    let get = |point: &Point, name: &str| point[&Symbol::new(name)].clone();
    for divisor in ["m", "g"] {
        let bound = get_positive(point, divisor);
        if rule.given.contains(&format!("r <= {divisor} - 1")) {
            let rest = get(point, "r").mod_floor(&bound);
            point.insert(Symbol::new("r"), rest);
        }
    }
    if rule.given.contains("x <= l + 1") {
        let value = get(point, "l") + (random.next() & 1);
        point.insert(Symbol::new("x"), value);
    }
}

fn get_positive(point: &Point, name: &str) -> BigInt {
    point.get(&Symbol::new(name)).cloned().unwrap_or_default().max(1.into())
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// Small, near 2^63, or about 2^100, of either sign.
    fn integer(&mut self) -> BigInt {
        let small = BigInt::from(self.next() % 9) - 4;
        match self.next() % 3 {
            0 => small,
            1 => (BigInt::from(1) << 63) * (1 - 2 * i64::from(self.next() & 1 == 1)) + small,
            _ => {
                BigInt::from(self.next())
                    * BigInt::from(self.next())
                    * (1 - 2 * i64::from(self.next() & 1 == 1))
            }
        }
    }
}

/// Terms to which a rule applies: `(rule, symbols with their ranges, term)`.
const INSTANCES: &[(&str, &str, &str)] = &[
    ("negative divisor", "x:-9..9", "(3*x + 1)//(-4)"),
    ("negative divisor", "x:-9..9 n:1..4", "x//(-n)"),
    ("small numerator", "x:16..23", "x//8"),
    ("small numerator", "x:-8..-1", "x//8"),
    ("small numerator", "n:1..6 j:0..5", "(j - n - 5)//(20*n)"),
    ("split", "x:-9..9 y:-9..9", "(8*x + 3*y + 17)//8"),
    ("split", "x:-5..5 n:1..5 y:-9..9", "(x*n + y)//n"),
    ("reduce", "x:-9..9", "(13*x + 2)//5"),
    ("reduce", "x:-9..9 y:-4..4", "(-13*x + 9*y)//5"),
    ("flip", "x:-9..9", "(-3*x + 2)//7"),
    ("flip", "x:-9..9 n:1..5", "(-x)//n"),
    ("flip", "n:1..40", "(-12)//n"),
    ("cancel", "x:-9..9 y:0..3", "(8*x + y + 4)//24"),
    ("cancel", "x:-9..9 y:-2..1", "(8*x + 2*y + 5)//24"),
    ("cancel", "x:-5..5 n:1..6", "(x*n)//(3*n)"),
    ("proportional", "x:1..9", "(7*x + 7)//(12*x + 12)"),
    ("proportional", "x:1..9", "(-7*x - 7)//(3*x + 3)"),
    ("long division", "x:-4..4 n:1..6", "(x*n + x)//(n + 1)"),
    ("long division", "n:2..8", "(3*n + 4)//(n + 1)"),
    ("two values", "x:0..1", "(3*x + 3)//4"),
    ("two values", "x:-1..0", "(-3*x + 3)//4"),
    ("nested", "x:-30..30", "(x//4 + 3)//5"),
    ("nested", "x:-30..30 y:-3..3", "(y - x//4)//5"),
    ("nested", "x:-30..30 n:1..4", "(x//n + 1)//(2*n)"),
    ("flatten", "x:-5..5 y:-5..5 z:-5..5", "min(3*min(x, y) + z, 7)"),
    ("drop", "x:0..5 y:6..9", "min(x, y)"),
    ("drop", "x:-5..5", "min(x + 3, x - 2)"),
    ("drop", "x:0..6 y:5..9", "min(x, y, x + 2)"),
    ("common divisor", "x:-9..9 y:-9..9", "min(x//4, y//4 + 1)"),
    ("common divisor", "x:-9..9 y:-9..9", "min(-(x//4), -(y//4) - 2)"),
    ("shift", "x:-5..5 y:-5..5", "min(x + 2*y, y - 1)"),
    ("scale", "x:-5..5 y:-5..5", "min(6*x, 4*y + 2)"),
    ("scale", "x:-5..5 y:-5..5 n:0..3", "min(n*x, n*y)"),
    ("square", "x:-5..5 y:-5..5", "min(x, y)*max(x, y)"),
    ("square", "x:-5..5", "min(x, 0)*min(x, 0)*min(x, 0)"),
    ("min commutes", "x:-3..3 y:-3..3", "min(x, y)"),
    ("max commutes", "x:-3..3 y:-3..3", "max(x, y)"),
    ("absorb max", "x:-3..3 y:-3..3", "min(x, max(x, y))"),
    ("absorb min", "x:-3..3 y:-3..3", "max(x, min(x, y))"),
    ("distribute min", "x:-3..3 y:-3..3 z:-3..3", "min(x, max(y, z))"),
    ("distribute max", "x:-3..3 y:-3..3 z:-3..3", "max(x, min(y, z))"),
    ("median min", "x:-3..3 y:-3..3 z:-3..3", "max(y, min(max(x, y), z))"),
    ("median max", "x:-3..3 y:-3..3 z:-3..3", "min(y, max(min(x, y), z))"),
    ("collect min", "x:-3..3 y:-3..3 z:-3..3", "max(min(x, y), min(x, z))"),
    ("collect max", "x:-3..3 y:-3..3 z:-3..3", "min(max(x, y), max(x, z))"),
    ("halves", "x:-9..9", "(x + 1)//2 + x//2"),
    ("halves", "x:-9..9 y:-3..3", "y*((x + 1)//2) - (x//2)*3"),
];

fn facts_of(symbols: &str) -> (Facts, Vec<Point>) {
    let (mut facts, mut points) = (Facts::new(), vec![Point::new()]);
    for entry in symbols.split(' ') {
        let (name, range) = entry.split_once(':').expect("name:lo..hi");
        let (lo, hi) = range.split_once("..").expect("lo..hi");
        let (lo, hi): (i64, i64) = (lo.parse().unwrap(), hi.parse().unwrap());
        let symbol = Symbol::new(name);
        facts.declare(&symbol, Declaration::range(lo, hi)).unwrap();
        let with = |point: &Point, value: i64| {
            let mut point = point.clone();
            point.insert(symbol.clone(), value.into());
            point
        };
        points = points.iter().flat_map(|point| (lo..=hi).map(move |value| with(point, value))).collect();
    }
    (facts, points)
}

#[test]
fn every_rule_keeps_the_value_of_its_instances() {
    for rule in RULES {
        let instances: Vec<_> = INSTANCES.iter().filter(|(name, ..)| *name == rule.name).collect();
        assert!(!instances.is_empty(), "the rule `{}` has no instance: nothing checks it", rule.name);
        for (_, symbols, term) in instances {
            let (facts, points) = facts_of(symbols);
            let before: Dim = term.parse().unwrap();
            let after = rule.rewrite(&facts, &before);
            let after = after.unwrap_or_else(|| panic!("`{}` does not apply to {before}", rule.name));
            for point in &points {
                let (a, b) = (value(&before, point), value(&after, point));
                assert_eq!(a, b, "`{}`: {before} became {after} at {point:?}", rule.name);
            }
        }
    }
}

#[test]
fn every_instance_names_a_rule() {
    for (name, ..) in INSTANCES {
        assert!(RULES.iter().any(|rule| rule.name == *name), "there is no rule `{name}`");
    }
}

#[test]
fn rules_keep_the_value_of_random_terms() {
    let mut random = Random(3);
    for _ in 0..1_500 {
        let bytes: Vec<u8> = (0..160).map(|_| random.next() as u8).collect();
        if let Some(case) = Case::read(&mut Source::new(&bytes)) {
            case.check_rules();
        }
    }
}
