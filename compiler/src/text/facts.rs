//! Prints and parses lines about symbols: `symbol N = 1..64/8` and `assume a == b, "origin"`.

use super::{Cursor, Quoted, join};
use crate::error::Result;
use num_bigint::BigInt;
use std::fmt::{self, Formatter};
use symshape::{Assumption, Comparison, Declaration, Dim, Relation, Symbol};

/// `  symbol NAME = RANGE`
pub(crate) fn write_symbol(
    f: &mut Formatter<'_>,
    symbol: &Symbol,
    declaration: Option<&Declaration>,
) -> fmt::Result {
    match declaration {
        Some(declaration) => writeln!(f, "  symbol {symbol} = {}", Range(declaration)),
        None => writeln!(f, "  symbol {symbol}"),
    }
}

/// `  data_dependent NAME <= UPPER_BOUND = RANGE`
pub(crate) fn write_data_dependent(
    f: &mut Formatter<'_>,
    symbol: &Symbol,
    upper_bound: &Dim,
    declaration: Option<&Declaration>,
) -> fmt::Result {
    match declaration {
        Some(declaration) => {
            writeln!(f, "  data_dependent {symbol} <= {upper_bound} = {}", Range(declaration))
        }
        None => writeln!(f, "  data_dependent {symbol} <= {upper_bound}"),
    }
}

/// Reads the symbol, its upper bound, and its declaration if there is one, after the word `data_dependent`.
pub(crate) fn data_dependent(cursor: &mut Cursor<'_>) -> Result<(Symbol, Dim, Option<Declaration>)> {
    let symbol = cursor.symbol(&["<="])?;
    cursor.expect("<=")?;
    let upper_bound = cursor.dim(&["="])?;
    if cursor.at_line_end() {
        return Ok((symbol, upper_bound, None));
    }
    cursor.expect("=")?;
    Ok((symbol, upper_bound, Some(declaration(cursor)?)))
}

struct Range<'a>(&'a Declaration);

impl fmt::Display for Range<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Declaration { lo, hi, step, values, .. } = self.0;
        if let Some(values) = values {
            return write!(f, "{{{}}}", join(values));
        }
        write!(f, "{lo}..")?;
        if let Some(hi) = hi {
            write!(f, "{hi}")?;
        }
        if *step == 1.into() { Ok(()) } else { write!(f, "/{step}") }
    }
}

/// `  assume a == b, "origin"`, with this keyword.
pub(crate) fn write_assumption(f: &mut Formatter<'_>, keyword: &str, assumption: &Assumption) -> fmt::Result {
    let relation = &assumption.relation;
    let sign = match relation.comparison {
        Comparison::Eq => "==",
        Comparison::Ne => "!=",
        Comparison::Lt => "<",
        Comparison::Le => "<=",
        Comparison::Divides => "divides",
    };

    write!(f, "  {keyword} {} {sign} {}", relation.a, relation.b)?;
    match &*assumption.origin {
        "" => f.write_str("\n"),
        origin => writeln!(f, ", {}", Quoted(origin)),
    }
}

/// Reads the symbol, and its declaration if there is one, after the word `symbol`.
pub(crate) fn symbol(cursor: &mut Cursor<'_>) -> Result<(Symbol, Option<Declaration>)> {
    let symbol = cursor.symbol(&["="])?;
    if cursor.at_line_end() {
        return Ok((symbol, None));
    }
    cursor.expect("=")?;
    Ok((symbol, Some(declaration(cursor)?)))
}

fn integer(cursor: &Cursor<'_>, text: &str) -> Result<BigInt> {
    text.trim().parse().map_err(|_| cursor.error(format!("`{text}` is not an integer")))
}

fn declaration(cursor: &mut Cursor<'_>) -> Result<Declaration> {
    if cursor.eat("{") {
        let list = cursor.until(&["}"]);
        let values: Vec<BigInt> = list.split(',').map(|text| integer(cursor, text)).collect::<Result<_>>()?;
        cursor.expect("}")?;
        return Ok(Declaration::values(values));
    }

    let text = cursor.until(&[".."]);
    let lo = integer(cursor, text)?;
    cursor.expect("..")?;

    let declaration = match cursor.until(&["/"]) {
        "" => Declaration::at_least(lo.clone()),
        text => Declaration::range(lo.clone(), integer(cursor, text)?),
    };

    if !cursor.eat("/") {
        return Ok(declaration);
    }

    let text = cursor.until(&[]);
    Ok(declaration.step(integer(cursor, text)?, lo))
}

/// Reads the relation and its origin after the word `assume`.
pub(crate) fn assumption(cursor: &mut Cursor<'_>) -> Result<Assumption> {
    let a = cursor.dim(&["==", "!=", "<", " divides "])?;
    let sign = ["==", "!=", "<=", "<", "divides"].into_iter().find(|sign| cursor.eat(sign));
    let comparison = match sign {
        Some("==") => Comparison::Eq,
        Some("!=") => Comparison::Ne,
        Some("<=") => Comparison::Le,
        Some("<") => Comparison::Lt,
        Some(_) => Comparison::Divides,
        None => return Err(cursor.error("expected a comparison")),
    };

    let b = cursor.dim(&[","])?;
    let origin = if cursor.eat(",") { cursor.string()? } else { String::new() };
    Ok(Assumption { relation: Relation { comparison, a, b }, origin: origin.into() })
}
