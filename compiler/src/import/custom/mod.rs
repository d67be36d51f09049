//! Custom operators: a declaration binds an ONNX operator to an external function.
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
//! Operands match the inputs of the node in order, attributes by name. A name alone as a dim is bound to the size at
//! its first occurrence. At other places, and in expressions, the sizes are compared. The name of an `int` attribute
//! is its value there. [`apply`] builds the graph of a node.

pub(crate) mod apply;
pub(crate) mod declaration;
mod parse;
pub(crate) mod suggest;
