//! Parts of the textual forms of both IRs: the parser's cursor, names, facts about symbols, and constants.
//!
//! Both forms consist of lines; `; …` is a comment. Parsing a printed text gives an equal program, except that large
//! constants are elided in print.

mod cursor;
mod facts;
mod name;
mod tensor;

pub(crate) use cursor::Cursor;
pub(crate) use facts::{
    assumption, data_dependent, symbol, write_assumption, write_data_dependent, write_symbol,
};
pub(crate) use name::{Name, Quoted, join};
pub(crate) use tensor::{Elems, TensorReader};
