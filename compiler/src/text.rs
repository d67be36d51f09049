//! What the textual forms of both IRs share: the reader's cursor, names, facts about symbols, and constants.
//!
//! Both are made of lines; `; …` is a comment. Printing and reading are each other's inverse, except that large
//! constants are printed elided.

mod cursor;
mod facts;
mod tensor;

pub(crate) use cursor::Cursor;
pub(crate) use facts::{
    assumption, data_dependent, symbol, write_assumption, write_data_dependent, write_symbol,
};
pub(crate) use tensor::{Elems, TensorReader};

use std::fmt::{self, Formatter, Write};

/// A name as it stands when it is made of letters, digits and `_./-` only, else in quotes.
pub(crate) struct Name<'a>(pub(crate) &'a str);

/// Whether [`Name`] writes this character without quotes.
pub(crate) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_./-".contains(c)
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match !self.0.is_empty() && self.0.chars().all(is_plain) {
            true => f.write_str(self.0),
            false => write!(f, "{}", Quoted(self.0)),
        }
    }
}

/// A string in quotes.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                _ => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// The items with `, ` between them.
pub(crate) fn join<T: fmt::Display>(items: impl IntoIterator<Item = T>) -> String {
    let texts: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    texts.join(", ")
}
