//! Queries in one line of text, and their answers: what `symc sym` reads and prints.
//!
//! A line has tab-separated columns `id  symbols  expression  kind`, and from the fifth on whatever the writer likes;
//! the sixth, if there is one, holds assumed relations. Expressions are prefix: `(floordiv (+ (* i 8) j) 8)`.
//!
//! ```
//! use symshape::query::answer_line;
//! let line = "q1\ti:0..9; j:0..7\t(floordiv (+ (* i 8) j) 8)\tsimplify";
//! let answer = answer_line(line);
//! assert_eq!((answer.id.as_str(), answer.answer.as_str()), ("q1", "i"));
//! ```

mod predicate;
mod sexpr;

use std::fmt;
use std::time::Instant;

use num_bigint::BigInt;

use crate::assume::{Comparison, Declaration, Facts, Relation};
use crate::bounds::Bounds;
use crate::dim::{Dim, Symbol};
use crate::prove::Answer;

pub use sexpr::{parse_dim, write_dim};

/// The answer to one query.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The first column of the query.
    pub id: String,
    /// The answer, or `error: …`.
    pub answer: String,
    /// The time taken, in a context that knows nothing of earlier queries; unit: microseconds.
    pub micros: f64,
}

impl fmt::Display for Reply {
    /// The tab-separated line `id  answer  micros`; the time is left out where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.answer.starts_with("error: ") {
            true => write!(f, "{}\t{}", self.id, self.answer),
            false => write!(f, "{}\t{}\t{:.1}", self.id, self.answer, self.micros),
        }
    }
}

impl Reply {
    /// The object `{"id": …, "answer": …, "micros": …}` on one line.
    pub fn to_json(&self) -> String {
        let (id, answer) = (json_string(&self.id), json_string(&self.answer));
        format!("{{\"id\": {id}, \"answer\": {answer}, \"micros\": {:.1}}}", self.micros)
    }
}

fn json_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            c if c < ' ' => quoted.push_str(&format!("\\u{:04x}", c as u32)),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Longer lines are refused.
const MAX_LINE: usize = 1 << 20;

/// Answers the query in `line`. A malformed line is answered with `error: …`.
pub fn answer_line(line: &str) -> Reply {
    let start = Instant::now();
    let line = line.trim_end_matches(['\n', '\r']);
    let id = line.split('\t').next().unwrap_or_default().to_string();
    let answer = match line.len() <= MAX_LINE {
        true => answer_columns(line).unwrap_or_else(|message| format!("error: {message}")),
        false => "error: the line is too long".to_string(),
    };
    Reply { id, answer, micros: start.elapsed().as_nanos() as f64 / 1e3 }
}

fn answer_columns(line: &str) -> Result<String, String> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [_, symbols, expression, kind, ..] = columns.as_slice() else {
        return Err(format!("expected 4 columns, found {}", columns.len()));
    };
    let mut facts = Facts::new();
    for entry in entries(symbols) {
        declare(&mut facts, entry)?;
    }
    for relation in entries(columns.get(5).copied().unwrap_or("-")) {
        let relation = sexpr::parse_relation(relation)?;
        facts.assume(relation, "assumed").map_err(|error| error.to_string())?;
    }
    match kind.trim() {
        "simplify" => {
            let e = parse_dim(expression)?;
            if let Some(term) = zero_division(&e) {
                return Err(format!("division by zero in {term}"));
            }
            Ok(write_dim(&facts.simplify(&e)))
        }
        "bounds" => Ok(write_bounds(&facts.bounds(&parse_dim(expression)?))),
        "equal" | "prove_true" | "prove_false" => {
            Ok(verdict(&facts.prove(&sexpr::parse_relation(expression)?)))
        }
        "pred" => predicate::simplify(&facts, expression),
        other => Err(format!("unknown kind `{other}`")),
    }
}

/// The parts of a list joined by `;`, where `-` stands for none.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(';').map(str::trim).filter(|entry| !entry.is_empty() && *entry != "-")
}

fn zero_division(e: &Dim) -> Option<&Dim> {
    use crate::dim::Node;
    e.post_order()
        .into_iter()
        .find(|dim| matches!(dim.node(), Node::FloorDiv(_, b) | Node::Mod(_, b) if b.is_int(0)))
}

fn write_bounds(bounds: &Bounds) -> String {
    match (&bounds.lo, &bounds.hi) {
        (Some(lo), Some(hi)) => format!("{lo}..{hi}"),
        _ => "unknown".to_string(),
    }
}

fn verdict(answer: &Answer) -> String {
    match answer {
        Answer::Yes(_) => "proven",
        Answer::No(_) => "disproven",
        Answer::Unknown => "unknown",
    }
    .to_string()
}

/// Reads `name:lo..hi[:mult m[ rem r]]`.
fn declare(facts: &mut Facts, entry: &str) -> Result<(), String> {
    let malformed = || format!("malformed symbol `{entry}`, expected name:lo..hi");
    let (name, rest) = entry.split_once(':').ok_or_else(malformed)?;
    let (range, multiple) = match rest.split_once(":mult") {
        Some((range, multiple)) => (range, Some(multiple)),
        None => (rest, None),
    };
    let (lo, hi) = range.split_once("..").ok_or_else(malformed)?;
    let (lo, hi) = (parse_dim(lo)?, parse_dim(hi)?);
    let symbol = Symbol::new(name.trim());
    let (step, offset) = parse_multiple(multiple).ok_or_else(malformed)?;
    // A lower bound that is a term still bounds the symbol from below by its own least value.
    let least = lo.as_int().cloned().or_else(|| facts.bounds(&lo).lo);
    if let Some(least) = least {
        let declaration = match hi.as_int() {
            Some(greatest) => Declaration::range(least, greatest.clone()),
            None => Declaration::at_least(least),
        };
        facts.declare(&symbol, declaration.step(step, offset)).map_err(|error| error.to_string())?;
    }
    if lo.as_int().is_none() || hi.as_int().is_none() {
        facts.declare_between(&symbol, &lo, &hi);
    }
    Ok(())
}

/// `m` and `r` of ` m[ rem r]`.
fn parse_multiple(text: Option<&str>) -> Option<(BigInt, BigInt)> {
    let Some(text) = text else { return Some((1.into(), 0.into())) };
    match text.split_once("rem") {
        Some((step, offset)) => Some((step.trim().parse().ok()?, offset.trim().parse().ok()?)),
        None => Some((text.trim().parse().ok()?, 0.into())),
    }
}

pub(crate) fn relation(operator: &str, a: Dim, b: Dim) -> Option<Relation> {
    Some(match operator {
        "==" => Relation::eq(a, b),
        "!=" => Relation::ne(a, b),
        "<" => Relation::lt(a, b),
        "<=" => Relation::le(a, b),
        ">" => Relation::gt(a, b),
        ">=" => Relation::ge(a, b),
        _ => return None,
    })
}

pub(crate) fn operator(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq | Comparison::Divides => "==",
        Comparison::Ne => "!=",
        Comparison::Lt => "<",
        Comparison::Le => "<=",
    }
}
