//! The textual form of kernels: what `Display` of a [`Program`] prints, [`parse`] reads back to an equal program.
//!
//! ```text
//! program  = 'program' name '{' line* '}'                      a line a declaration; '; …' is a comment
//! line     = 'symbol' dim ['=' lo '..' [hi] ['/' step] | '=' '{' int (',' int)* '}']
//!          | 'assume' dim ('==' | '!=' | '<=' | '<' | 'divides') dim [',' string]
//!          | '@'N [name] ':' dtype '[' dim ']' space           elements; numbered from 0
//!          | ('input' | 'output') name '[' dims ']' '=' '@'N
//!          | 'data_dependent' dim '<=' dim ['=' range]                   a data-dependent symbol
//!          | 'kernel' name '{' ('local'N ':' dtype)* stmt* '}'
//!          | 'if' '@'N | 'else' | 'while' '@'N | 'end' | 'require' relation
//!          | 'call' callee '(' arguments ')' '->' '(' arguments ')' ['scratch' '@'N] ',' string
//!          | 'bind' dim '=' '@'N 'in' dim '..' dim ',' string | 'fail' string
//! argument = access 'as' '[' dims ']'                         callees are those of the graphs' text
//! space    = 'input' N | 'output' N | 'arena' | 'scratch'
//!          | 'const' '[' ints ']' (literals | 'all' literal | 'iota' | 'random' seed | 'elided' hash)
//! stmt     = 'for' axis ['parallel'] '{' stmt* '}' | 'strip' axis '{' inst* '}' | 'block' '{' inst* '}'
//!          | 'if' localN '{' stmt* '}' ['else' '{' stmt* '}'] | 'while' localN '{' stmt* '}'
//!          | 'contraction' dtype ['by' precision] '{' ('m' axis)+ 'n' axis ('k' axis)* 'lhs' access 'rhs' rhs ['pack' '@'N] inst* '}'
//! axis     = dim 'in' '0..' dim
//! access   = '@'N '[' dim ']'
//! rhs      = access | 'panels' access 'width' N
//! inst     = reg '=' ('const' dtype literal | 'index' dtype dim | 'load' access | 'sum' | 'get' localN
//!          | unary reg | binary reg ',' reg | compare reg ',' reg | 'select' reg ',' reg ',' reg | 'cast' dtype reg)
//!          | 'bind' dim '=' reg | 'set' localN ',' reg | 'store' access ',' reg | 'reduce' op reg '->' localN
//!          | 'check' dim '<=' reg '<' dim [',' string]
//! ```
//!
//! Each statement head, declaration and instruction stands on a line of its own. A register is `%` and any number;
//! printing uses the instruction's position. Large constants are printed elided, and such a text is not read back.

mod code;
mod parse;
mod print;

use super::Program;
use crate::error::Result;

/// Reads a program; it is well-formed as text, which [`super::verify`] goes beyond.
///
/// # Errors
/// What is wrong, with line and column.
pub fn parse(text: &str) -> Result<Program> {
    parse::program(text)
}
