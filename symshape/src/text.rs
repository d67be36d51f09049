//! Text of a [`Dim`], both directions: `Display` and `FromStr`, one grammar.
//!
//! ```text
//! sum     = product (('+' | '-') product)*
//! product = unary (('*' | '//' | '%') unary)*          left to right, as in Python
//! unary   = '-' unary | atom
//! atom    = integer | name | '(' sum ')' | ('min' | 'max') '(' sum (',' sum)* ')'
//! name    = [A-Za-z_$] [A-Za-z0-9_$.]* | '`' any text, with \ before ` and \ '`'
//! ```
//! The output of `Display` parses back to an equal term.

use std::fmt;
use std::str::FromStr;

use num_bigint::BigInt;
use num_traits::Signed;

use crate::dim::{Dim, MAX_DEPTH, Node, Symbol};

/// Longer integer literals are refused: reading one is quadratic in its digits.
const MAX_DIGITS: usize = 4096;

/// Why and where a text is not a [`Dim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The offset in the text, in bytes.
    pub at: usize,
    /// The problem at that position.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.message, self.at)
    }
}

impl std::error::Error for ParseError {}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.name().bytes();
        let plain = bytes.next().is_some_and(starts_name) && bytes.all(continues_name);
        if plain && self.name() != "min" && self.name() != "max" {
            return f.write_str(self.name());
        }

        f.write_str("`")?;
        for c in self.name().chars() {
            if c == '`' || c == '\\' {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }

        f.write_str("`")
    }
}

impl fmt::Debug for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn starts_name(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$'
}

fn continues_name(byte: u8) -> bool {
    starts_name(byte) || byte.is_ascii_digit() || byte == b'.'
}

/// How tightly a context binds: an operand of lower precedence is put in parentheses.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Precedence {
    Sum,
    Product,
    Atom,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.depth() <= MAX_DEPTH { write_dim(f, self, Precedence::Sum) } else { f.write_str("…") }
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_dim(f: &mut fmt::Formatter<'_>, dim: &Dim, context: Precedence) -> fmt::Result {
    let own = match dim.node() {
        Node::Add(_) => Precedence::Sum,
        Node::Int(value) if value.is_negative() => Precedence::Product,
        Node::Mul(_) | Node::FloorDiv(..) | Node::Mod(..) => Precedence::Product,
        Node::Int(_) | Node::Symbol(_) | Node::Min(_) | Node::Max(_) => Precedence::Atom,
    };

    if own < context {
        f.write_str("(")?;
    }

    write_node(f, dim)?;
    if own < context {
        f.write_str(")")?;
    }

    Ok(())
}

fn write_node(f: &mut fmt::Formatter<'_>, dim: &Dim) -> fmt::Result {
    match dim.node() {
        Node::Int(value) => write!(f, "{value}"),
        Node::Symbol(symbol) => write!(f, "{symbol}"),
        Node::Add(list) => write_sum(f, list),
        Node::Mul(list) => write_product(f, list),
        Node::FloorDiv(a, b) => write_quotient(f, a, "//", b),
        Node::Mod(a, b) => write_quotient(f, a, "%", b),
        Node::Min(list) => write_call(f, "min", list),
        Node::Max(list) => write_call(f, "max", list),
    }
}

fn write_sum(f: &mut fmt::Formatter<'_>, list: &[Dim]) -> fmt::Result {
    for (idx, term) in list.iter().enumerate() {
        let positive = if idx > 0 { negated(term) } else { None };
        match (idx, &positive) {
            (0, _) => {}
            (_, Some(_)) => f.write_str(" - ")?,
            (_, None) => f.write_str(" + ")?,
        }
        write_dim(f, positive.as_ref().unwrap_or(term), Precedence::Product)?;
    }
    Ok(())
}

/// `-term`, where `term` is written with a minus sign in front.
fn negated(term: &Dim) -> Option<Dim> {
    match term.node() {
        Node::Int(value) if value.is_negative() => Some((-value).into()),
        Node::Mul(list) if list[0].as_int().is_some_and(BigInt::is_negative) => Some(-term),
        _ => None,
    }
}

fn write_product(f: &mut fmt::Formatter<'_>, list: &[Dim]) -> fmt::Result {
    let mut rest = list;
    if list[0].is_int(-1) {
        f.write_str("-")?;
        rest = &list[1..];
    } else if let Some(value) = list[0].as_int() {
        write!(f, "{value}*")?;
        rest = &list[1..];
    }

    for (idx, factor) in rest.iter().enumerate() {
        if idx > 0 {
            f.write_str("*")?;
        }
        write_dim(f, factor, Precedence::Atom)?;
    }

    Ok(())
}

fn write_quotient(f: &mut fmt::Formatter<'_>, a: &Dim, operator: &str, b: &Dim) -> fmt::Result {
    write_dim(f, a, Precedence::Product)?;
    f.write_str(operator)?;
    write_dim(f, b, Precedence::Atom)
}

fn write_call(f: &mut fmt::Formatter<'_>, name: &str, list: &[Dim]) -> fmt::Result {
    write!(f, "{name}(")?;
    for (idx, operand) in list.iter().enumerate() {
        if idx > 0 {
            f.write_str(", ")?;
        }
        write_dim(f, operand, Precedence::Sum)?;
    }
    f.write_str(")")
}

impl FromStr for Dim {
    type Err = ParseError;

    /// Reads the grammar of this module.
    ///
    /// ```
    /// use symshape::Dim;
    /// let e: Dim = "(N + 7)//8*8 - N".parse().unwrap();
    /// assert_eq!(e.eval_i64(&|_| Some(13)), Ok(3));
    /// assert_eq!("1 +".parse::<Dim>().unwrap_err().at, 3);
    /// ```
    fn from_str(text: &str) -> Result<Dim, ParseError> {
        let mut parser = Parser { text, at: 0, depth: 0 };
        let dim = parser.sum()?;
        match parser.peek() {
            None => Ok(dim),
            Some(_) => Err(parser.error("unexpected text")),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl Parser<'_> {
    fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError { at: self.at, message: message.into() }
    }

    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, token: &str) -> bool {
        self.peek();
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<(), ParseError> {
        if self.eat(token) { Ok(()) } else { Err(self.error(format!("expected `{token}`"))) }
    }

    fn sum(&mut self) -> Result<Dim, ParseError> {
        let mut terms = vec![self.product()?];
        loop {
            if self.eat("+") {
                terms.push(self.product()?);
            } else if self.eat("-") {
                terms.push(-self.product()?);
            } else {
                return Ok(Dim::sum(terms));
            }
        }
    }

    fn product(&mut self) -> Result<Dim, ParseError> {
        let mut dim = self.unary()?;
        loop {
            if self.eat("*") {
                dim = dim * self.unary()?;
            } else if self.eat("//") {
                dim = dim.floor_div(self.unary()?);
            } else if self.eat("%") {
                dim = dim.modulo(self.unary()?);
            } else {
                return Ok(dim);
            }
            if dim.depth() > MAX_DEPTH {
                return Err(self.error("nested too deeply"));
            }
        }
    }

    fn unary(&mut self) -> Result<Dim, ParseError> {
        let mut negative = false;
        while self.eat("-") {
            negative = !negative;
        }
        let dim = self.atom()?;
        Ok(if negative { -dim } else { dim })
    }

    fn atom(&mut self) -> Result<Dim, ParseError> {
        match self.peek() {
            Some(b'(') => self.nested(|parser| {
                parser.at += 1;
                let dim = parser.sum()?;
                parser.expect(")")?;
                Ok(dim)
            }),
            Some(b'0'..=b'9') => self.integer(),
            Some(b'`') => self.quoted(),
            Some(byte) if starts_name(byte) => self.name(),
            Some(_) => Err(self.error("expected a name, an integer or `(`")),
            None => Err(self.error("unexpected end")),
        }
    }

    fn nested(
        &mut self,
        inner: impl FnOnce(&mut Self) -> Result<Dim, ParseError>,
    ) -> Result<Dim, ParseError> {
        if self.depth >= MAX_DEPTH / 2 {
            return Err(self.error("nested too deeply"));
        }
        self.depth += 1;
        let dim = inner(self);
        self.depth -= 1;
        dim
    }

    fn take_while(&mut self, accept: fn(u8) -> bool) -> &str {
        let start = self.at;
        self.at += self.text.as_bytes()[start..].iter().take_while(|&&byte| accept(byte)).count();
        &self.text[start..self.at]
    }

    fn integer(&mut self) -> Result<Dim, ParseError> {
        let start = self.at;
        let digits = self.take_while(|byte| byte.is_ascii_digit());
        if digits.len() > MAX_DIGITS {
            self.at = start;
            return Err(self.error("the integer is too long"));
        }
        Ok(digits.parse::<BigInt>().expect("digits are an integer").into())
    }

    fn quoted(&mut self) -> Result<Dim, ParseError> {
        let start = self.at;
        let mut name = String::new();

        let mut chars = self.text[start..].char_indices().skip(1);
        while let Some((offset, c)) = chars.next() {
            match c {
                '`' => {
                    self.at = start + offset + 1;
                    return Ok(Dim::symbol(&name));
                }
                '\\' => name.extend(chars.next().map(|(_, escaped)| escaped)),
                _ => name.push(c),
            }
        }

        Err(self.error("the quoted name has no end"))
    }

    fn name(&mut self) -> Result<Dim, ParseError> {
        let name = self.take_while(continues_name).to_string();
        match name.as_str() {
            "min" => self.call(Dim::min),
            "max" => self.call(Dim::max),
            _ => Ok(Dim::symbol(&name)),
        }
    }

    fn call(&mut self, combine: fn(&Dim, Dim) -> Dim) -> Result<Dim, ParseError> {
        self.nested(|parser| {
            parser.expect("(")?;
            let mut dim = parser.sum()?;
            while parser.eat(",") {
                dim = combine(&dim, parser.sum()?);
            }
            parser.expect(")")?;
            Ok(dim)
        })
    }
}
