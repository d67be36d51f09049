//! Index expressions in C, in 64-bit integers.
//!
//! `/` and `%` divide non-negative values by positive ones; all other divisions call helpers that round down.

use super::names::SymbolNames;
use crate::error::{Error, ErrorKind, Result};
use num_traits::Signed;
use symshape::{Dim, Facts, Node};

/// The precedence of the operator around an expression.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Precedence {
    Sum,
    Product,
    Operand,
}

/// A dim as a C expression that can be a term of a sum.
///
/// # Errors
/// A constant that does not fit in 64 bits, or an unknown symbol.
pub(super) fn term(names: &SymbolNames, facts: &Facts, dim: &Dim) -> Result<String> {
    DimPrinter { names, facts }.print(dim, Precedence::Sum)
}

struct DimPrinter<'p> {
    names: &'p SymbolNames,
    facts: &'p Facts,
}

impl DimPrinter<'_> {
    fn print(&self, dim: &Dim, place: Precedence) -> Result<String> {
        match dim.node() {
            Node::Int(_) => match dim.as_i64() {
                Some(i64::MIN) => Ok("INT64_MIN".into()),
                Some(value) => Ok(within(value.to_string(), value < 0 && place > Precedence::Sum)),
                None => Err(too_large(dim)),
            },
            Node::Symbol(symbol) => {
                let name = self.names.symbol(symbol);
                let name = name.ok_or_else(|| Error::internal(format!("unknown symbol {symbol}")))?;
                Ok(name.to_string())
            }
            Node::Add(terms) => Ok(within(self.sum(terms)?, place > Precedence::Sum)),
            Node::Mul(factors) => {
                let factors: Vec<String> = factors
                    .iter()
                    .map(|factor| self.print(factor, Precedence::Operand))
                    .collect::<Result<_>>()?;
                Ok(within(factors.join("*"), place > Precedence::Product))
            }
            Node::FloorDiv(a, b) => self.division(dim, [a, b], "/", "floor_div", place),
            Node::Mod(a, b) => self.division(dim, [a, b], "%", "floor_mod", place),
            Node::Min(list) => self.extreme(list, "min_i64"),
            Node::Max(list) => self.extreme(list, "max_i64"),
        }
    }

    fn sum(&self, terms: &[Dim]) -> Result<String> {
        let mut out = String::new();
        for term in terms {
            let (sign, magnitude) = if is_negative(term) { ("-", -term) } else { ("+", term.clone()) };
            let text = self.print(&magnitude, Precedence::Sum)?;
            match (out.is_empty(), sign) {
                (true, "+") => out = text,
                (true, _) => out = format!("-{text}"),
                (false, _) => out = format!("{out} {sign} {text}"),
            }
        }
        Ok(out)
    }

    fn division(
        &self,
        dim: &Dim,
        [a, b]: [&Dim; 2],
        operator: &str,
        helper: &str,
        place: Precedence,
    ) -> Result<String> {
        let over = self.facts.bounds(a);
        let under = self.facts.bounds(b);
        if [&over.lo, &over.hi, &under.lo, &under.hi]
            .iter()
            .any(|bound| bound.as_ref().is_some_and(|bound| i64::try_from(bound).is_err()))
        {
            return Err(too_large(dim));
        }
        if over.lo.is_some_and(|lo| !lo.is_negative()) && under.lo.is_some_and(|lo| lo.is_positive()) {
            let a = self.print(a, Precedence::Operand)?;
            let b = self.print(b, Precedence::Operand)?;
            return Ok(within(format!("{a}{operator}{b}"), place > Precedence::Sum));
        }

        let a = self.print(a, Precedence::Sum)?;
        let b = self.print(b, Precedence::Sum)?;
        Ok(format!("{helper}({a}, {b})"))
    }

    fn extreme(&self, list: &[Dim], helper: &str) -> Result<String> {
        let list: Vec<String> =
            list.iter().map(|dim| self.print(dim, Precedence::Sum)).collect::<Result<_>>()?;
        let joined = list.into_iter().rev().reduce(|rest, dim| format!("{helper}({dim}, {rest})"));
        joined.ok_or_else(|| Error::internal("a minimum or maximum without operands"))
    }
}

/// Whether the term is a negative integer, or has a negative coefficient.
fn is_negative(term: &Dim) -> bool {
    match term.node() {
        Node::Int(value) => value.is_negative(),
        Node::Mul(factors) => factors[0].as_int().is_some_and(Signed::is_negative),
        _ => false,
    }
}

fn within(text: String, parentheses: bool) -> String {
    if parentheses { format!("({text})") } else { text }
}

fn too_large(dim: &Dim) -> Error {
    Error::new(ErrorKind::Limit, format!("{dim} does not fit in 64 bits for all allowed sizes"))
}
