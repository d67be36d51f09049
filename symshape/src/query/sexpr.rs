//! Prefix expressions: read into a [`Dim`] or a [`Relation`], and written from a [`Dim`].

use num_bigint::BigInt;

use super::relation;
use crate::assume::Relation;
use crate::dim::{Dim, MAX_DEPTH, Node};
use crate::render::rounded_up;

/// A prefix expression as read.
#[derive(Clone, Debug)]
pub(super) enum Sexpr<'a> {
    Word(&'a str),
    List(Vec<Sexpr<'a>>),
}

/// Longer integers are refused: reading one is quadratic in its digits.
const MAX_DIGITS: usize = 4096;

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn read(&mut self, depth: u32) -> Result<Sexpr<'a>, String> {
        match self.peek() {
            None => Err("the expression ends too early".to_string()),
            Some(b'(') if depth == 0 => Err("the expression is nested too deeply".to_string()),
            Some(b')') => Err(format!("unexpected `)` at byte {}", self.at)),
            Some(b'(') => {
                self.at += 1;
                let mut list = Vec::with_capacity(3);
                while self.peek() != Some(b')') {
                    list.push(self.read(depth - 1)?);
                }
                self.at += 1;
                Ok(Sexpr::List(list))
            }
            Some(_) => {
                let start = self.at;
                let ends = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'(' || *byte == b')';
                self.at += self.text.as_bytes()[start..].iter().take_while(|byte| !ends(byte)).count();
                Ok(Sexpr::Word(&self.text[start..self.at]))
            }
        }
    }
}

pub(super) fn read(text: &str) -> Result<Sexpr<'_>, String> {
    let mut reader = Reader { text, at: 0 };
    let sexpr = reader.read(MAX_DEPTH)?;
    match reader.peek() {
        None => Ok(sexpr),
        Some(_) => Err(format!("unexpected text at byte {}", reader.at)),
    }
}

/// Reads a prefix expression over `+ - * floordiv mod ceildiv min max`.
///
/// # Errors
/// Text that is none, with what is wrong.
pub fn parse_dim(text: &str) -> Result<Dim, String> {
    dim_of(&read(text)?)
}

pub(super) fn parse_relation(text: &str) -> Result<Relation, String> {
    match read(text)? {
        Sexpr::List(list) => relation_of(&list),
        Sexpr::Word(word) => Err(format!("expected a relation, found `{word}`")),
    }
}

pub(super) fn relation_of(list: &[Sexpr<'_>]) -> Result<Relation, String> {
    let [Sexpr::Word(operator), a, b] = list else {
        return Err("expected a relation of two sides".to_string());
    };
    relation(operator, dim_of(a)?, dim_of(b)?).ok_or_else(|| format!("`{operator}` is not a relation"))
}

pub(super) fn dim_of(sexpr: &Sexpr<'_>) -> Result<Dim, String> {
    let list = match sexpr {
        Sexpr::Word(word) => return word_of(word),
        Sexpr::List(list) => list,
    };
    let [Sexpr::Word(operator), operands @ ..] = list.as_slice() else {
        return Err("expected an operator after `(`".to_string());
    };
    let operands = operands.iter().map(dim_of).collect::<Result<Vec<Dim>, String>>()?;
    apply(operator, &operands)
}

fn word_of(word: &str) -> Result<Dim, String> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    match digits.as_bytes() {
        [] => Err(format!("`{word}` is neither a name nor an integer")),
        [b'0'..=b'9', ..] if digits.len() > MAX_DIGITS => Err("the integer is too long".to_string()),
        [b'0'..=b'9', ..] => match word.parse::<BigInt>() {
            Ok(value) => Ok(value.into()),
            Err(_) => Err(format!("`{word}` is neither a name nor an integer")),
        },
        _ => Ok(Dim::symbol(word)),
    }
}

fn apply(operator: &str, operands: &[Dim]) -> Result<Dim, String> {
    match (operator, operands) {
        ("+", [_, ..]) => Ok(Dim::sum(operands.iter().cloned())),
        ("*", [_, ..]) => Ok(Dim::product(operands.iter().cloned())),
        ("-", [a]) => Ok(-a),
        ("-", [a, b]) => Ok(a - b),
        ("floordiv", [a, b]) => Ok(a.floor_div(b)),
        ("mod", [a, b]) => Ok(a.modulo(b)),
        ("ceildiv", [a, b]) => Ok(a.ceil_div(b)),
        ("min", [first, rest @ ..]) => Ok(rest.iter().fold(first.clone(), |acc, next| Dim::min(&acc, next))),
        ("max", [first, rest @ ..]) => Ok(rest.iter().fold(first.clone(), |acc, next| Dim::max(&acc, next))),
        _ => Err(format!("`{operator}` does not take {} operands", operands.len())),
    }
}

/// Writes a prefix expression that [`parse_dim`] reads; quotients that round up are written as `ceildiv`.
pub fn write_dim(dim: &Dim) -> String {
    let mut text = String::with_capacity(32);
    match dim.is_tractable() {
        true => write(&mut text, dim),
        false => text.push('-'),
    }
    text
}

fn write(text: &mut String, dim: &Dim) {
    match dim.node() {
        Node::Int(value) => text.push_str(&value.to_string()),
        Node::Symbol(symbol) => text.push_str(symbol.name()),
        Node::Add(list) => write_sum(text, list),
        Node::Mul(list) => write_product(text, list),
        Node::FloorDiv(a, b) => match rounded_up(a, b) {
            Some(numerator) => write_call(text, "ceildiv", &numerator, b),
            None => write_call(text, "floordiv", a, b),
        },
        Node::Mod(a, b) => write_call(text, "mod", a, b),
        Node::Min(list) => write_chain(text, "min", list),
        Node::Max(list) => write_chain(text, "max", list),
    }
}

fn write_call(text: &mut String, operator: &str, a: &Dim, b: &Dim) {
    text.push('(');
    text.push_str(operator);
    for operand in [a, b] {
        text.push(' ');
        write(text, operand);
    }
    text.push(')');
}

/// `((a op b) op c)`
fn write_chain(text: &mut String, operator: &str, list: &[Dim]) {
    for _ in 1..list.len() {
        text.push('(');
        text.push_str(operator);
        text.push(' ');
    }
    for (idx, operand) in list.iter().enumerate() {
        if idx > 0 {
            text.push(' ');
        }
        write(text, operand);
        if idx > 0 {
            text.push(')');
        }
    }
}

fn write_sum(text: &mut String, list: &[Dim]) {
    let negated = |term: &Dim| match term.node() {
        Node::Int(value) if value.sign() == num_bigint::Sign::Minus => Some(-term),
        Node::Mul(factors) if factors[0].is_int(-1) => Some(-term),
        _ => None,
    };
    // A term that is added goes first, so that the others can be subtracted.
    let added = list.iter().position(|term| negated(term).is_none());
    let first = added.or_else(|| list.iter().position(|term| term.as_int().is_some())).unwrap_or(0);
    let rest: Vec<&Dim> =
        list.iter().enumerate().filter(|(idx, _)| *idx != first).map(|(_, term)| term).collect();
    for term in rest.iter().rev() {
        text.push_str(if negated(term).is_some() { "(- " } else { "(+ " });
    }
    write(text, &list[first]);
    for term in rest {
        text.push(' ');
        write(text, negated(term).as_ref().unwrap_or(term));
        text.push(')');
    }
}

fn write_product(text: &mut String, list: &[Dim]) {
    match list {
        [minus, rest @ ..] if minus.is_int(-1) => {
            let rest = Dim::product(rest.iter().cloned());
            match (rounded_down_negation(&rest), rest.node()) {
                (Some((a, b)), _) => write_call(text, "ceildiv", &a, &b),
                // -ceil(a / b) is a // -b.
                (None, Node::FloorDiv(a, b)) if rounded_up(a, b).is_some() && b.as_int().is_some() => {
                    write_call(text, "floordiv", &rounded_up(a, b).unwrap_or_else(Dim::zero), &-b);
                }
                _ => write_call(text, "-", &Dim::zero(), &rest),
            }
        }
        [first, rest @ ..] if first.as_int().is_some() => {
            let mut ordered = rest.to_vec();
            ordered.push(first.clone());
            write_chain(text, "*", &ordered);
        }
        _ => write_chain(text, "*", list),
    }
}

/// `(a, b)`, if `dim` is `(-a) // b`.
fn rounded_down_negation(dim: &Dim) -> Option<(Dim, Dim)> {
    let Node::FloorDiv(a, b) = dim.node() else { return None };
    match a.node() {
        Node::Mul(factors) if factors[0].is_int(-1) => Some((-a, b.clone())),
        _ => None,
    }
}
