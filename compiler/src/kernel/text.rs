//! The textual form of programs. `Display` of a [`Program`] prints it, and [`parse`] reads it back to an equal program.
//!
//! ```text
//! program  = 'program' name '{' line* '}'                      one declaration per line; '; …' is a comment
//! line     = 'symbol' dim ['=' lo '..' [hi] ['/' step] | '=' '{' int (',' int)* '}']
//!          | 'assume' dim ('==' | '!=' | '<=' | '<' | 'divides') dim [',' string]
//!          | '@'N [name] ':' dtype '[' dim ']' space           elements; numbered from 0
//!          | ('input' | 'output') name '[' dims ']' '=' '@'N
//!          | 'rows' dim 'of' dim 'grow' dim                 length, capacity and growth of the state
//!          | 'state' name '=' name '[' dims ']' ['append' N] '=' '@'N     input and output, and the axis of the rows
//!          | 'data_dependent' dim '<=' dim ['=' range]                   a data-dependent symbol
//!          | 'kernel' name '{' ('local'N ':' dtype)* stmt* '}'
//!          | 'if' '@'N | 'else' | 'while' '@'N | 'end' | 'require' relation
//!          | 'call' callee '(' arguments ')' '->' '(' arguments ')' ['scratch' '@'N] ',' string
//!          | 'bind' dim '=' '@'N 'in' dim '..' dim ',' string | 'fail' string
//! argument = access 'as' '[' dims ']'                         callees are those of the graphs' text
//! space    = 'input' N | 'output' N | 'state' N | 'arena' | 'scratch'
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
//! Each statement head, declaration and instruction is on a separate line. A register is `%` and any number; printing
//! uses the index of the instruction. Large constants are elided in print, and such a text is refused.

mod code;
mod operand;
mod parse;
mod print;

use super::Program;
use crate::error::Result;

/// Parses a program. It is well-formed as a text; [`super::verify`] checks the rules of the IR.
///
/// # Errors
/// The first error of the text, with line and column.
pub fn parse(text: &str) -> Result<Program> {
    parse::program(text)
}
