//! Operators of the user's: a declaration binds an ONNX operator to a function outside of the compiler.
//!
//! The declaration lists the function's inputs and outputs, with shapes in local symbols:
//!
//! ```text
//! com.acme:Swish(x: T[D...], alpha: float = 1.0) -> T[D...] = acme_swish
//! com.acme:Pick(x: f32[A, B], k: int) -> (f32[A, k], i64[A, k]) = acme_pick scratch 8*B
//!
//! declaration = [domain ':'] operator '(' [param (',' param)*] ')' '->' results '=' symbol ['scratch' dim]
//! param       = name ':' element '[' axes ']'
//!             | name ':' ('int' | 'float' | 'string' | 'ints' | 'floats') ['=' default]
//! results     = element '[' axes ']' | '(' element '[' axes ']' (',' …)* ')'
//! element     = an element type such as f32, or a name that begins with a capital letter: any type
//! axes        = [axis (',' axis)*]      axis = dim | name '...'      (any number of axes)
//! ```
//!
//! Operands come first in the order of the node's inputs, attributes by name. A lone name as a dim takes the size that
//! it meets; wherever else a name stands, sizes are compared, and an `int` attribute is a number there. [`apply`] puts a
//! node of such an operator into the graph.

pub(crate) mod apply;
pub(crate) mod declaration;
mod parse;
