//! The textual form of graphs. `Display` of a [`Graph`] prints it, and [`parse`] reads it back to an equal graph.
//!
//! ```text
//! graph    = 'graph' name '{' line* '}'                       a line a statement; '; …' is a comment
//! line     = 'symbol' dim ['=' range] | 'assume' relation [',' string] | 'require' relation [',' string]
//!          | 'data_dependent' dim                                          a data-dependent symbol
//!          | 'input' name ':' dtype '[' dims ']' | 'output' name '=' value
//!          | '%'N (',' '%'N)* '=' op
//! value    = '%'N | name                                      a name is that of an input
//! op       = 'const' dtype '[' ints ']' (literals | 'all' literal | 'iota' | 'random' seed)
//!          | 'index' dtype '[' dims ']' dim
//!          | (unary | binary | compare | 'select' | 'cast' dtype) values
//!          | 'map' values '{' (reg '=' step)* 'yield' reg '}'
//!          | 'view' '[' dims ']' '[' dims ']' value
//!          | 'pad' literal '[' dims ']' '[' dims ']' value
//!          | 'concat' 'axis' N values
//!          | 'gather' '[' dims ']' '[' coords ']' values
//!          | 'scatter' ('assign' | reduceop) '[' coords ']' values
//!          | 'reduce' reduceop '[' ints ']' value
//!          | 'argreduce' reduceop ['last'] 'axis' N value
//!          | 'contraction' dtype '[' labels ',' labels '->' labels ']' value ',' value
//!          | 'sort' ['descending'] 'axis' N value
//!          | 'scan' reduceop ['exclusive'] ['reverse'] 'axis' N value
//!          | 'bind' dim 'from' '[' dim ']' 'to' '[' dim ']' value | 'fail' string
//!          | 'call' callee '->' '(' type (',' type)* ')' ['scratch' '[' dim ']'] [values]
//!          | 'if' values '{' graph graph '}'
//!          | 'loop' dim 'below' '[' dim ']' 'carry' N values '{' graph '}'
//! type     = dtype '[' dims ']'
//! callee   = ['[' target ']'] symbol ['{' string '=' ('ints' | 'floats' | 'bytes') '[' numbers ']' (',' …)* '}']
//! coord    = dim | '@'N '[' dims ']'                          loaded from operand N
//! step     = 'const' dtype literal | (unary | binary | compare | 'select' | 'cast' dtype) regs
//! reg      = 'r'N                                             operands first
//! ```
//!
//! `symbol`, `assume` and constants are those of the kernels' text. `require` is an entry of [`Graph::constraints`].
//! Printing renumbers values and refers to inputs by name. A comment shows each type and the known elements. Parsing
//! rebuilds the graph, so that inference and all checks run on it.

mod parse;
mod print;

use super::Graph;
use crate::error::Result;

/// Parses a graph.
///
/// ```
/// use symshape_compiler::graph::text;
/// let g = text::parse("graph g {\n symbol N = 0..9\n input x: f32[N, 1]\n %0 = relu x\n}").unwrap_err();
/// assert_eq!(g.to_string(), "line 4, column 7: unknown operator `relu`");
/// ```
///
/// # Errors
/// A syntax or type error, with line and column.
pub fn parse(text: &str) -> Result<Graph> {
    parse::graph(text)
}
