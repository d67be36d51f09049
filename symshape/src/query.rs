//! Queries in one line of text, and their answers: the format of `symc sym`.
//!
//! A line has tab-separated columns `id  symbols  expression  kind`, and from the fifth on free text;
//! the sixth, if present, holds assumed relations. Expressions are prefix: `(floordiv (+ (* i 8) j) 8)`.
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

use crate::assume::{Declaration, Facts};
use crate::dim::{Dim, Symbol};
use crate::engine::bounds::Bounds;
use crate::int::Int;
use crate::prove::Answer;

use sexpr::{Reader, integer};
pub use sexpr::{parse_dim, write_dim};

/// The answer to one query.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The first column of the query.
    pub id: String,
    /// The answer, or `error: …`.
    pub answer: String,
    /// The time taken, in microseconds. No state is shared with earlier queries.
    pub micros: f64,
}

impl fmt::Display for Reply {
    /// The tab-separated line `id  answer  micros`; the time is left out where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.answer.starts_with("error: ") {
            write!(f, "{}\t{}", self.id, self.answer)
        } else {
            write!(f, "{}\t{}\t{:.1}", self.id, self.answer, self.micros)
        }
    }
}

impl Reply {
    /// The object `{"id": …, "answer": …, "micros": …}` on one line.
    pub fn to_json(&self) -> String {
        let id = json_string(&self.id);
        let answer = json_string(&self.answer);
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
    let answer = if line.len() <= MAX_LINE {
        answer_columns(line).unwrap_or_else(|message| format!("error: {message}"))
    } else {
        "error: the line is too long".to_string()
    };
    Reply { id, answer, micros: start.elapsed().as_nanos() as f64 / 1e3 }
}

fn answer_columns(line: &str) -> Result<String, String> {
    let mut columns = line.split('\t');
    let (Some(_), Some(symbols), Some(expression), Some(kind)) =
        (columns.next(), columns.next(), columns.next(), columns.next())
    else {
        return Err(format!("expected 4 columns, found {}", line.split('\t').count()));
    };

    let mut facts = Facts::new();
    for entry in entries(symbols) {
        declare(&mut facts, entry)?;
    }

    for relation in entries(columns.nth(1).unwrap_or("-")) {
        let relation = sexpr::read_relation(Reader::new(relation, facts.symbols().cloned()))?;
        facts.assume(relation, "assumed").map_err(|error| error.to_string())?;
    }

    let reader = || Reader::new(expression, facts.symbols().cloned());
    match kind.trim() {
        "simplify" => {
            let e = sexpr::read_dim(reader().refusing_zero())?;
            Ok(write_dim(&facts.simplify(&e)))
        }
        "bounds" => Ok(write_bounds(&facts.bounds(&sexpr::read_dim(reader())?))),
        "equal" | "prove_true" | "prove_false" => Ok(verdict(&facts.prove(&sexpr::read_relation(reader())?))),
        "pred" => predicate::simplify(&facts, expression),
        other => Err(format!("unknown kind `{other}`")),
    }
}

/// The parts of a list joined by `;`, where `-` means that there are none.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(';').map(str::trim).filter(|entry| !entry.is_empty() && *entry != "-")
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
    let (range, multiple) = match rest.split_once(':') {
        Some((range, multiple)) => (range, Some(multiple)),
        None => (rest, None),
    };

    let (lo, hi) = range.split_once("..").ok_or_else(malformed)?;
    let lo = End::read(lo, facts)?;
    let hi = End::read(hi, facts)?;
    let symbol = Symbol::new(name.trim());

    let multiple = match multiple {
        Some(text) => Some(parse_multiple(text).ok_or_else(malformed)?),
        None => None,
    };

    // A lower bound that is a term bounds the symbol from below by the smallest value of that term.
    let smallest = match &lo {
        End::Int(smallest) => Some(smallest.to_big()),
        End::Term(lo) => facts.bounds(lo).lo,
    };

    if let Some(smallest) = smallest {
        let mut declaration = match &hi {
            End::Int(largest) => Declaration::range(smallest, largest.to_big()),
            End::Term(_) => Declaration::at_least(smallest),
        };
        if let Some((step, offset)) = multiple {
            declaration = declaration.step(step, offset);
        }
        facts.declare(&symbol, declaration).map_err(|error| error.to_string())?;
    }

    if let (End::Int(_), End::Int(_)) = (&lo, &hi) {
        return Ok(());
    }

    facts.declare_between(&symbol, &lo.into_dim(), &hi.into_dim());
    Ok(())
}

/// One end of the range of a symbol.
enum End {
    Int(Int),
    Term(Dim),
}

impl End {
    fn read(text: &str, facts: &Facts) -> Result<End, String> {
        let word = text.trim();
        if !word.starts_with('(')
            && let Some(value) = integer(word)?
        {
            return Ok(End::Int(value));
        }
        let dim = sexpr::read_dim(Reader::new(word, facts.symbols().cloned()))?;
        Ok(match dim.as_int() {
            Some(value) => End::Int(value.into()),
            None => End::Term(dim),
        })
    }

    fn into_dim(self) -> Dim {
        match self {
            End::Int(Int::Small(value)) => value.into(),
            End::Int(Int::Big(value)) => (*value).into(),
            End::Term(dim) => dim,
        }
    }
}

/// `m` and `r` of `mult m[ rem r]`.
fn parse_multiple(text: &str) -> Option<(BigInt, BigInt)> {
    let text = text.trim().strip_prefix("mult")?;
    match text.split_once("rem") {
        Some((step, offset)) => Some((step.trim().parse().ok()?, offset.trim().parse().ok()?)),
        None => Some((text.trim().parse().ok()?, 0.into())),
    }
}
