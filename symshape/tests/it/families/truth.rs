//! The truth about a query, by evaluation alone, and the check of an answer against it.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_integer::Integer;
use symshape::query::parse_dim;
use symshape::{Dim, Symbol};

use super::random::Random;

/// The expected answer.
pub(crate) enum Expected {
    /// A term of equal value with no more operations than this one.
    Form(String),
    /// It holds everywhere.
    Proven,
    /// It fails somewhere.
    Disproven,
    /// The smallest and the largest value.
    Range(BigInt, BigInt),
    /// The smallest and the largest value over all points, by evaluation.
    Tight,
}

pub(crate) struct Query {
    pub(crate) symbols: String,
    pub(crate) expression: String,
    pub(crate) kind: &'static str,
    pub(crate) expected: Expected,
}

impl Query {
    pub(crate) fn line(&self) -> String {
        format!("q\t{}\t{}\t{}", self.symbols, self.expression, self.kind)
    }
}

type Point = BTreeMap<Symbol, BigInt>;

struct Axis {
    symbol: Symbol,
    lo: Dim,
    hi: Dim,
    step: BigInt,
    residue: BigInt,
}

/// The value of a query at a point.
enum Meaning {
    Term(Dim),
    Relation(String, Dim, Dim),
}

/// The points of a query's domain, or some of them, and the query's value there.
pub(crate) struct Truth {
    points: Vec<Point>,
    complete: bool,
    meaning: Meaning,
}

/// More points than this are sampled.
const ALL: usize = 6_000;
const SAMPLES: usize = 300;

fn value(dim: &Dim, point: &Point) -> Option<BigInt> {
    dim.eval(&|symbol| point.get(symbol).cloned()).ok()
}

fn compare(operator: &str, a: &BigInt, b: &BigInt) -> bool {
    match operator {
        "<" => a < b,
        "<=" => a <= b,
        ">" => a > b,
        ">=" => a >= b,
        "==" => a == b,
        "!=" => a != b,
        _ => panic!("`{operator}` compares nothing"),
    }
}

impl Axis {
    fn read(entry: &str) -> Axis {
        let (name, rest) = entry.trim().split_once(':').expect("name:range");
        let (range, multiple) = rest.split_once(":mult").unwrap_or((rest, "1"));
        let (lo, hi) = range.split_once("..").expect("lo..hi");
        let (step, residue) = multiple.split_once("rem").unwrap_or((multiple, "0"));
        let integer = |text: &str| text.trim().parse().expect("an integer");
        Axis {
            symbol: Symbol::new(name),
            lo: parse_dim(lo).expect("a bound"),
            hi: parse_dim(hi).expect("a bound"),
            step: integer(step),
            residue: integer(residue),
        }
    }

    /// The smallest and largest value where earlier symbols have the values of `point`.
    fn ends(&self, point: &Point) -> (BigInt, BigInt) {
        let (lo, hi) = (value(&self.lo, point).expect("a value"), value(&self.hi, point).expect("a value"));
        (&lo + (&self.residue - &lo).mod_floor(&self.step), &hi - (&hi - &self.residue).mod_floor(&self.step))
    }
}

fn all_points(axes: &[Axis]) -> Option<Vec<Point>> {
    let mut points = vec![Point::new()];
    for axis in axes {
        let mut longer = Vec::new();
        for point in &points {
            let (mut next, hi) = axis.ends(point);
            while next <= hi {
                if longer.len() >= ALL {
                    return None;
                }
                longer.push(point.iter().map(|(s, v)| (s.clone(), v.clone())).collect::<Point>());
                longer.last_mut().expect("just pushed").insert(axis.symbol.clone(), next.clone());
                next += &axis.step;
            }
        }
        points = longer;
    }
    Some(points)
}

fn some_points(axes: &[Axis], random: &mut Random) -> Vec<Point> {
    let sample = |random: &mut Random| {
        let mut point = Point::new();
        for axis in axes {
            let (lo, hi) = axis.ends(&point);
            if hi < lo {
                return None;
            }
            let count = (&hi - &lo) / &axis.step;
            let value = &lo + random.near(&BigInt::ZERO, &count) * &axis.step;
            point.insert(axis.symbol.clone(), value);
        }
        Some(point)
    };
    (0..SAMPLES).filter_map(|_| sample(random)).collect()
}

impl Truth {
    /// Evaluates the query; an error says that the expected answer is wrong.
    pub(crate) fn of(query: &Query) -> Result<Truth, String> {
        let axes: Vec<Axis> =
            query.symbols.split(';').filter(|entry| !entry.trim().is_empty()).map(Axis::read).collect();
        let all = all_points(&axes);
        let complete = all.is_some();
        let points = all.unwrap_or_else(|| some_points(&axes, &mut Random::new(99)));
        let meaning = match query.kind {
            "simplify" | "bounds" => Meaning::Term(parse_dim(&query.expression)?),
            _ => {
                let inner = query.expression.trim_start_matches('(');
                let (operator, sides) = inner.split_once(' ').expect("an operator");
                // A list is a sum to the reader, so the sides of a relation can be taken from one.
                let split = split_sides(&sides[..sides.len() - 1]);
                Meaning::Relation(operator.to_string(), parse_dim(split.0)?, parse_dim(split.1)?)
            }
        };
        let truth = Truth { points, complete, meaning };
        truth.agrees(&query.expected)?;
        Ok(truth)
    }

    fn term(&self) -> &Dim {
        match &self.meaning {
            Meaning::Term(term) | Meaning::Relation(_, term, _) => term,
        }
    }

    fn agrees(&self, expected: &Expected) -> Result<(), String> {
        match expected {
            Expected::Form(form) => self.same_value(&parse_dim(form)?),
            Expected::Proven if !self.holds_everywhere() => Err("it does not hold".to_string()),
            Expected::Disproven if self.holds_everywhere() => Err("it seems to hold".to_string()),
            Expected::Range(lo, hi) => self.inside(lo, hi),
            Expected::Tight if !self.complete => Err("too many points".to_string()),
            _ => Ok(()),
        }
    }

    fn same_value(&self, other: &Dim) -> Result<(), String> {
        let differs = |point: &&Point| {
            let expected = value(self.term(), point);
            expected.is_some() && expected != value(other, point)
        };
        match self.points.iter().find(differs) {
            Some(point) => Err(format!("another value at {point:?}")),
            None => Ok(()),
        }
    }

    fn holds_everywhere(&self) -> bool {
        let Meaning::Relation(operator, a, b) = &self.meaning else { return true };
        self.points.iter().all(|point| match (value(a, point), value(b, point)) {
            (Some(a), Some(b)) => compare(operator, &a, &b),
            _ => true,
        })
    }

    fn inside(&self, lo: &BigInt, hi: &BigInt) -> Result<(), String> {
        let mut values = self.points.iter().filter_map(|point| value(self.term(), point));
        match values.find(|value| value < lo || value > hi) {
            Some(value) => Err(format!("{value} is outside {lo}..{hi}")),
            None => Ok(()),
        }
    }

    fn range(&self) -> Option<(BigInt, BigInt)> {
        let values = || self.points.iter().filter_map(|point| value(self.term(), point));
        Some((values().min()?, values().max()?))
    }

    /// Whether `answer` solves the query; an error if it is wrong.
    pub(crate) fn judge(&self, query: &Query, answer: &str) -> Result<bool, String> {
        match (query.kind, answer) {
            (_, "unknown" | "-") => Ok(false),
            ("simplify", _) => {
                self.same_value(&parse_dim(answer)?)?;
                let operations = |text: &str| text.matches('(').count();
                Ok(matches!(&query.expected, Expected::Form(form) if operations(answer) <= operations(form)))
            }
            ("bounds", _) => {
                let (lo, hi) = answer.split_once("..").ok_or("no range")?;
                let (lo, hi): (BigInt, BigInt) =
                    (lo.parse().map_err(|_| "no range")?, hi.parse().map_err(|_| "no range")?);
                self.inside(&lo, &hi)?;
                Ok(match &query.expected {
                    Expected::Range(smallest, largest) => lo == *smallest && hi == *largest,
                    _ => self.range() == Some((lo, hi)),
                })
            }
            (_, "proven") if !self.holds_everywhere() => Err("it does not hold".to_string()),
            (_, "proven") => Ok(matches!(query.expected, Expected::Proven)),
            (_, "disproven") if matches!(query.expected, Expected::Proven) => Err("it holds".to_string()),
            (_, "disproven") if self.complete && self.holds_everywhere() => Err("it holds".to_string()),
            (_, "disproven") => Ok(true),
            (_, other) => Err(format!("not an answer: {other}")),
        }
    }
}

/// The two expressions in `text`.
fn split_sides(text: &str) -> (&str, &str) {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 => return (&text[..at], &text[at + 1..]),
            _ => {}
        }
    }
    panic!("`{text}` has one side")
}
