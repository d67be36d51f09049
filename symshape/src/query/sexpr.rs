//! Prefix expressions: read into a [`Dim`] or a [`Relation`], and written from a [`Dim`].

use num_bigint::BigInt;
use smallvec::SmallVec;

use crate::assume::{Comparison, Relation};
use crate::dim::rounded_up;
use crate::dim::{Dim, MAX_DEPTH, Node, Symbol};
use crate::int::Int;

/// Longer integers are refused: reading one is quadratic in its digits.
const MAX_DIGITS: usize = 4096;

/// So many names are remembered, so that each is one allocation.
const MAX_NAMES: usize = 12;

const DIVISIONS: [&str; 3] = ["floordiv", "mod", "ceildiv"];

/// Reads prefix expressions from one text.
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
    names: Vec<Dim>,
    refuses_zero: bool,
}

impl<'a> Reader<'a> {
    /// A reader that knows the symbols of a query.
    pub(super) fn new(text: &'a str, symbols: impl Iterator<Item = Symbol>) -> Self {
        let names = symbols.take(MAX_NAMES).map(Dim::from).collect();
        Reader { text, at: 0, depth: MAX_DEPTH, names, refuses_zero: false }
    }

    /// This reader, with a division by 0 as an error.
    pub(super) fn refusing_zero(self) -> Self {
        Reader { refuses_zero: true, ..self }
    }

    fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        self.text.as_bytes().get(self.at).copied()
    }

    /// The next word, which is not empty unless a parenthesis or the end comes first.
    fn word(&mut self) -> &'a str {
        self.peek();
        let start = self.at;
        let ends = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'(' || *byte == b')';
        self.at += self.text.as_bytes()[start..].iter().take_while(|byte| !ends(byte)).count();
        &self.text[start..self.at]
    }

    /// The operator after `(`, or `None` where a word comes next.
    pub(super) fn open(&mut self) -> Result<Option<&'a str>, String> {
        match self.peek() {
            None => Err("the expression ends too early".to_string()),
            Some(b'(') if self.depth == 0 => Err("the expression is nested too deeply".to_string()),
            Some(b')') => Err(format!("unexpected `)` at byte {}", self.at)),
            Some(b'(') => {
                self.at += 1;
                self.depth -= 1;
                match self.word() {
                    "" => Err("expected an operator after `(`".to_string()),
                    operator => Ok(Some(operator)),
                }
            }
            Some(_) => Ok(None),
        }
    }

    /// Whether the list that was opened last ends here.
    pub(super) fn close(&mut self) -> bool {
        let closed = self.peek() == Some(b')');
        if closed {
            self.at += 1;
            self.depth += 1;
        }
        closed
    }

    /// A word where no operator was.
    pub(super) fn leaf(&mut self) -> &'a str {
        self.word()
    }

    pub(super) fn end(&mut self) -> Result<(), String> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(format!("unexpected text at byte {}", self.at)),
        }
    }

    pub(super) fn dim(&mut self) -> Result<Dim, String> {
        match self.open()? {
            Some(operator) => self.call(operator),
            None => {
                let word = self.word();
                self.operand(word)
            }
        }
    }

    fn call(&mut self, operator: &str) -> Result<Dim, String> {
        let mut operands: SmallVec<[Dim; 2]> = SmallVec::new();
        while !self.close() {
            operands.push(self.dim()?);
        }
        match operands.as_slice() {
            [a, b] if self.refuses_zero && DIVISIONS.contains(&operator) && b.is_int(0) => {
                Err(format!("division by zero in {}", a.floor_div(b)))
            }
            _ => apply(operator, operands),
        }
    }

    fn operand(&mut self, word: &str) -> Result<Dim, String> {
        if let Some(value) = integer(word)? {
            return Ok(match value {
                Int::Small(value) => value.into(),
                Int::Big(value) => (*value).into(),
            });
        }

        let known = self.names.iter().find(|name| name.as_symbol().is_some_and(|name| name.name() == word));
        if let Some(known) = known {
            return Ok(known.clone());
        }

        let dim = Dim::symbol(word);
        if self.names.len() < MAX_NAMES {
            self.names.push(dim.clone());
        }

        Ok(dim)
    }

    /// The rest of a relation whose operator was read.
    pub(super) fn relation(&mut self, operator: &str) -> Result<Relation, String> {
        let a = self.dim()?;
        let b = self.dim()?;
        if self.close() {
            relation(operator, a, b).ok_or_else(|| format!("`{operator}` is not a relation"))
        } else {
            Err("expected a relation of two sides".to_string())
        }
    }
}

/// The value of a word, if it starts as an integer.
pub(super) fn integer(word: &str) -> Result<Option<Int>, String> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    match digits.as_bytes() {
        [] => Err(format!("`{word}` is neither a name nor an integer")),
        [b'0'..=b'9', ..] if digits.len() > MAX_DIGITS => Err("the integer is too long".to_string()),
        [b'0'..=b'9', ..] => {
            let value = word.parse().map(Int::Small).or_else(|_| word.parse::<BigInt>().map(Int::from));
            value.map(Some).map_err(|_| format!("`{word}` is neither a name nor an integer"))
        }
        _ => Ok(None),
    }
}

/// Reads a prefix expression over `+ - * floordiv mod ceildiv min max`.
///
/// # Errors
/// The text is not an expression; the message says why.
pub fn parse_dim(text: &str) -> Result<Dim, String> {
    read_dim(Reader::new(text, std::iter::empty()))
}

pub(super) fn read_dim(mut reader: Reader<'_>) -> Result<Dim, String> {
    let dim = reader.dim()?;
    reader.end()?;
    Ok(dim)
}

pub(super) fn read_relation(mut reader: Reader<'_>) -> Result<Relation, String> {
    let Some(operator) = reader.open()? else {
        return Err(format!("expected a relation, found `{}`", reader.leaf()));
    };
    let relation = reader.relation(operator)?;
    reader.end()?;
    Ok(relation)
}

fn apply(operator: &str, operands: SmallVec<[Dim; 2]>) -> Result<Dim, String> {
    match (operator, operands.as_slice()) {
        ("+", [_, ..]) => Ok(Dim::sum(operands)),
        ("*", [_, ..]) => Ok(Dim::product(operands)),
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
    if dim.is_tractable() {
        write(&mut text, dim)
    } else {
        text.push('-')
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

/// The relation that `operator` writes between `a` and `b`.
fn relation(operator: &str, a: Dim, b: Dim) -> Option<Relation> {
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

/// The operator that writes `comparison`.
pub(super) fn operator(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq | Comparison::Divides => "==",
        Comparison::Ne => "!=",
        Comparison::Lt => "<",
        Comparison::Le => "<=",
    }
}
