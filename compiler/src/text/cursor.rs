//! The position of a parser in a text. It reads blanks, words, strings and expressions, and locates errors.

use super::name::is_plain;
use crate::{
    error::{Error, Result},
    scalar::{Precision, Scalar},
};
use std::str::FromStr;
use symshape::{Dim, Symbol};
use symshape_runtime::DType;

/// A position in a text.
#[derive(Clone)]
pub(crate) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Cursor { text, at: 0 }
    }

    /// An error at this position.
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        self.error_at(self.at, message)
    }

    fn error_at(&self, at: usize, message: impl Into<String>) -> Error {
        Error::invalid(message).at(self.place_at(at))
    }

    /// This position for messages: line and column.
    pub(crate) fn place(&mut self) -> String {
        self.skip_blanks();
        self.place_at(self.at)
    }

    fn place_at(&self, at: usize) -> String {
        let before = &self.text[..self.text.floor_char_boundary(at)];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("line {line}, column {column}")
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips spaces within the line, and a comment up to the end of the line.
    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r']).len();
        if self.rest().starts_with(';') {
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Skips blanks, comments and line ends. Returns false at the end of the text.
    pub(crate) fn next_line(&mut self) -> bool {
        self.skip_blanks();
        while self.rest().starts_with('\n') {
            self.at += 1;
            self.skip_blanks();
        }
        !self.rest().is_empty()
    }

    /// Requires the end of the line.
    pub(crate) fn end_line(&mut self) -> Result<()> {
        self.skip_blanks();
        if self.rest().is_empty() || self.rest().starts_with('\n') {
            Ok(())
        } else {
            Err(self.error("unexpected text"))
        }
    }

    /// Whether the rest of the line is empty.
    pub(crate) fn at_line_end(&mut self) -> bool {
        self.end_line().is_ok()
    }

    pub(crate) fn eat(&mut self, token: &str) -> bool {
        self.skip_blanks();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    pub(crate) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.error(format!("expected `{token}`"))) }
    }

    /// Reads letters, digits and `_`; the word may be empty.
    pub(crate) fn peek_word(&mut self) -> &'a str {
        self.skip_blanks();
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    }

    pub(crate) fn word(&mut self) -> &'a str {
        let word = self.peek_word();
        self.at += word.len();
        word
    }

    /// Consumes this whole word if it comes next.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == word;
        if found {
            self.at += word.len();
        }
        found
    }

    /// Reads a word that `read` accepts; `what` describes the expected words, for the error.
    pub(crate) fn parsed<T>(&mut self, what: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<T> {
        let word = self.peek_word();
        let value = read(word).ok_or_else(|| self.error(format!("expected {what}")))?;
        self.at += word.len();
        Ok(value)
    }

    pub(crate) fn number<T: FromStr>(&mut self) -> Result<T> {
        self.parsed("a number", |word| word.parse().ok())
    }

    /// Whether a plain or quoted name comes next.
    pub(crate) fn at_name(&mut self) -> bool {
        self.skip_blanks();
        self.rest().starts_with(|c: char| c == '"' || is_plain(c))
    }

    /// Reads a plain or quoted name.
    pub(crate) fn name(&mut self) -> Result<String> {
        self.skip_blanks();
        if self.rest().starts_with('"') {
            return self.string();
        }
        let rest = self.rest();
        let end = rest.find(|c: char| !is_plain(c)).unwrap_or(rest.len());
        if end == 0 {
            return Err(self.error("expected a name"));
        }
        self.at += end;
        Ok(rest[..end].to_string())
    }

    /// Reads a quoted string.
    pub(crate) fn string(&mut self) -> Result<String> {
        let start = self.at;
        self.expect("\"")?;

        let mut string = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((offset, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += offset + 1;
                    return Ok(string);
                }
                '\n' => break,
                '\\' => string.extend(chars.next().map(|(_, c)| if c == 'n' { '\n' } else { c })),
                _ => string.push(c),
            }
        }

        Err(self.error_at(start, "the string has no end"))
    }

    /// Reads text up to the first of `stops` outside parentheses and back-quotes, or up to the end of the line.
    pub(crate) fn until(&mut self, stops: &[&str]) -> &'a str {
        self.skip_blanks();
        let rest = self.rest();

        let mut depth = 0usize;
        let mut chars = rest.char_indices();

        let mut end = rest.len();
        while let Some((offset, c)) = chars.next() {
            let stopped = depth == 0 && stops.iter().any(|stop| rest[offset..].starts_with(stop));
            if stopped || c == '\n' || c == ';' {
                end = offset;
                break;
            }
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                '`' => skip_quoted(&mut chars),
                _ => {}
            }
        }

        self.at += end;
        rest[..end].trim_end()
    }

    /// Reads an expression up to the first of `stops` or the end of the line.
    pub(crate) fn dim(&mut self, stops: &[&str]) -> Result<Dim> {
        self.skip_blanks();
        let start = self.at;
        let text = self.until(stops);
        text.parse().map_err(|error: symshape::ParseError| self.error_at(start + error.at, error.message))
    }

    /// Reads the expressions up to `]`, and consumes it.
    pub(crate) fn dims(&mut self) -> Result<Vec<Dim>> {
        let mut dims = Vec::new();
        while !self.eat("]") {
            if !dims.is_empty() {
                self.expect(",")?;
            }
            dims.push(self.dim(&[",", "]"])?);
        }
        Ok(dims)
    }

    /// Reads a constant of this type, up to a comma, a blank or the end of the line.
    pub(crate) fn literal(&mut self, dtype: DType) -> Result<Scalar> {
        let text = self.until(&[",", " "]);
        Scalar::parse(dtype, text)
            .ok_or_else(|| self.error(format!("`{text}` is not a value of type {dtype}")))
    }

    /// Reads an element type.
    pub(crate) fn dtype(&mut self) -> Result<DType> {
        self.parsed("an element type", DType::from_name)
    }

    /// Reads an optional `by PRECISION`.
    pub(crate) fn precision(&mut self) -> Result<Precision> {
        if self.eat_word("by") {
            self.parsed("a precision", Precision::from_name)
        } else {
            Ok(Precision::F32)
        }
    }

    /// Goes to the next line. Returns false, after consuming it, if that is a closing brace.
    pub(crate) fn in_braces(&mut self) -> Result<bool> {
        if self.next_line() { Ok(!self.eat("}")) } else { Err(self.error("expected `}`")) }
    }

    /// Reads a symbol up to the first of `stops` or the end of the line.
    pub(crate) fn symbol(&mut self, stops: &[&str]) -> Result<Symbol> {
        self.skip_blanks();
        let start = self.at;
        let dim = self.dim(stops)?;
        dim.as_symbol().cloned().ok_or_else(|| self.error_at(start, "expected a symbol"))
    }
}

/// Skips a back-quoted name after its first quote.
fn skip_quoted(chars: &mut std::str::CharIndices<'_>) {
    while let Some((_, c)) = chars.next() {
        match c {
            '`' => return,
            '\\' => drop(chars.next()),
            _ => {}
        }
    }
}
